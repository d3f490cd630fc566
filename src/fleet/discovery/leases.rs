//! Who is registered, and for how long yet. No I/O, and time is an argument.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::registration::Registration;
use crate::config::BaseUrl;

/// Registrations by key, each until it was not refreshed for the time of a lease.
#[derive(Debug)]
pub struct Leases {
    lease: Duration,
    most: usize,
    held: BTreeMap<String, Held>,
}

#[derive(Debug)]
struct Held {
    registration: Registration,
    revision: u64,
    heard: Instant,
    rival: Option<Rival>,
}

/// Another address under the same key.
#[derive(Debug)]
struct Rival {
    url: BaseUrl,
    heard: Instant,
    /// Whether it came while the one that is held was still there: there are two, and the first one counts.
    intrudes: bool,
}

impl Leases {
    /// Nobody is registered; at most `most` ever are.
    pub fn new(lease: Duration, most: usize) -> Self {
        Self { lease, most, held: BTreeMap::new() }
    }

    /// A registration was written, or read again. Returns whether it says anything new. One at another address takes the
    /// place of the last, unless that returns within its lease: then both are there, and the first one stays.
    pub fn heard(&mut self, now: Instant, revision: u64, registration: Registration) -> bool {
        let key = registration.key();
        let lease = self.lease;
        if let Some(held) = self.held.get_mut(&key) {
            if registration.url != held.registration.url && !held.yields(now, lease, &registration.url) {
                return false;
            }
            // A bucket that was made anew counts anew.
            if revision != held.revision {
                (held.revision, held.heard) = (revision, now);
            }
            let changed = held.registration != registration;
            held.registration = registration;
            return changed;
        }
        if self.held.len() < self.most {
            self.held.insert(key, Held { registration, revision, heard: now, rival: None });
            return true;
        }
        false
    }

    /// A registration was taken back, or has run out. Returns whether there was one.
    pub fn remove(&mut self, key: &str) -> bool {
        self.held.remove(key).is_some()
    }

    /// Nothing could be heard until now: everybody has the time of a whole lease to be heard again.
    pub fn extend(&mut self, now: Instant) {
        self.held.values_mut().for_each(|held| held.heard = now);
    }

    /// The keys of those that were not heard for the time of a lease, and the last revision of each.
    pub fn overdue(&self, now: Instant) -> Vec<(String, u64)> {
        let overdue = |held: &Held| now.saturating_duration_since(held.heard) >= self.lease;
        let keys = self.held.iter().filter(|(_, held)| overdue(held));
        keys.map(|(key, held)| (key.clone(), held.revision)).collect()
    }

    /// Of whom there are two: the key, the address that counts, and the one that does not.
    pub fn disputed(&self, now: Instant) -> impl Iterator<Item = (&str, &BaseUrl, &BaseUrl)> {
        let lease = self.lease;
        self.held.iter().filter_map(move |(key, held)| {
            let rival = held.rival.as_ref().filter(|rival| rival.intrudes && now < rival.heard + lease)?;
            Some((key.as_str(), &held.registration.url, &rival.url))
        })
    }

    /// Who is registered, by key.
    pub fn registrations(&self) -> impl Iterator<Item = &Registration> {
        self.held.values().map(|held| &held.registration)
    }
}

impl Held {
    /// The same is heard from another address. Returns whether that takes its place.
    fn yields(&mut self, now: Instant, lease: Duration, url: &BaseUrl) -> bool {
        let lives = |heard: Instant| now.saturating_duration_since(heard) < lease;
        let known = self.rival.as_mut().filter(|rival| rival.url == *url && lives(rival.heard));
        let intrudes = match known {
            Some(rival) if rival.intrudes && lives(self.heard) => {
                rival.heard = now;
                return false;
            }
            Some(rival) => !rival.intrudes,
            None => false,
        };
        self.rival = Some(Rival { url: self.registration.url.clone(), heard: self.heard, intrudes });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(id: &str, epoch: u64) -> Registration {
        let text = format!(
            "{{\"v\":1,\"id\":\"{id}\",\"model\":\"m\",\"url\":\"http://a:1\",\"block_size\":16,\"dp_ranks\":1,\"epoch\":{epoch},\"events\":\"nats\"}}"
        );
        Registration::read(id, text.as_bytes()).unwrap()
    }

    fn world() -> (Leases, Instant) {
        (Leases::new(Duration::from_secs(15), 2), Instant::now())
    }

    fn keys(overdue: Vec<(String, u64)>) -> Vec<String> {
        overdue.into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn a_registration_lasts_from_its_last_refresh() {
        let (mut leases, start) = world();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(leases.heard(at(0), 1, registration("a", 1)));
        assert!(leases.heard(at(0), 2, registration("b", 1)));
        assert!(!leases.heard(at(5), 3, registration("a", 1)));
        assert_eq!(keys(leases.overdue(at(14))), Vec::<String>::new());
        assert_eq!(leases.overdue(at(15)), [("b".to_owned(), 2)]);
        assert_eq!(keys(leases.overdue(at(20))), ["a", "b"]);
        assert!(leases.remove("b") && !leases.remove("b"));
    }

    #[test]
    fn a_bucket_that_counts_anew_refreshes_too() {
        let (mut leases, start) = world();
        leases.heard(start, 70, registration("a", 1));
        leases.heard(start + Duration::from_secs(10), 1, registration("a", 1));
        assert_eq!(keys(leases.overdue(start + Duration::from_secs(24))), Vec::<String>::new());
    }

    #[test]
    fn what_is_read_again_is_no_refresh() {
        let (mut leases, start) = world();
        leases.heard(start, 7, registration("a", 1));
        let later = start + Duration::from_secs(14);
        assert!(!leases.heard(later, 7, registration("a", 1)));
        assert_eq!(keys(leases.overdue(start + Duration::from_secs(15))), ["a"]);
    }

    #[test]
    fn of_two_at_different_addresses_the_first_counts_until_it_is_silent() {
        let (mut leases, start) = world();
        let at = |seconds| start + Duration::from_secs(seconds);
        let hear = |leases: &mut Leases, second, address: &str| {
            let mut heard = registration("a", 1);
            heard.url = BaseUrl::try_from(address.to_owned()).unwrap();
            leases.heard(at(second), second, heard);
            let used = leases.registrations().next().unwrap().url.to_string();
            (used, leases.disputed(at(second)).map(|(key, ..)| key.to_owned()).collect::<Vec<_>>())
        };
        let undisputed = |address: &str| (address.to_owned(), Vec::new());
        let disputed = || ("http://a:1".to_owned(), vec!["a".to_owned()]);
        // It has moved.
        assert_eq!(hear(&mut leases, 0, "http://a:1"), undisputed("http://a:1"));
        assert_eq!(hear(&mut leases, 2, "http://b:1"), undisputed("http://b:1"));
        // It has not: both are there.
        assert_eq!(hear(&mut leases, 5, "http://a:1"), disputed());
        assert_eq!(hear(&mut leases, 7, "http://b:1"), disputed());
        assert_eq!(hear(&mut leases, 10, "http://a:1"), disputed());
        assert_eq!(leases.disputed(at(22)).count(), 0);
        // The first falls silent.
        assert_eq!(hear(&mut leases, 12, "http://b:1"), disputed());
        assert_eq!(hear(&mut leases, 25, "http://b:1"), undisputed("http://b:1"));
        // The other has long been silent: it may move there.
        assert_eq!(hear(&mut leases, 30, "http://b:1"), undisputed("http://b:1"));
        assert_eq!(hear(&mut leases, 45, "http://a:1"), undisputed("http://a:1"));
    }

    #[test]
    fn while_nothing_can_be_heard_nobody_goes() {
        let (mut leases, start) = world();
        leases.heard(start, 1, registration("a", 1));
        let back = start + Duration::from_secs(600);
        leases.extend(back);
        assert_eq!(keys(leases.overdue(back + Duration::from_secs(14))), Vec::<String>::new());
        assert_eq!(keys(leases.overdue(back + Duration::from_secs(15))), ["a"]);
    }

    #[test]
    fn a_change_is_told_and_there_is_an_end_to_them() {
        let (mut leases, now) = world();
        assert!(leases.heard(now, 1, registration("a", 1)) && leases.heard(now, 2, registration("a", 2)));
        assert!(leases.heard(now, 3, registration("b", 1)) && !leases.heard(now, 4, registration("c", 1)));
        assert_eq!(leases.registrations().map(|r| (r.id.as_str(), r.epoch)).collect::<Vec<_>>(), [("a", 2), ("b", 1)]);
    }
}
