//! Who is inside: counts connections, of all and of each address, and knows them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use tokio::time::Instant;

use super::course::Course;

/// The connections of one door.
pub(super) struct Census {
    most: usize,
    most_of_one: usize,
    inside: Arc<Mutex<Inside>>,
}

#[derive(Default)]
struct Inside {
    next: u64,
    courses: HashMap<u64, Arc<Course>, RandomState>,
    addresses: HashMap<IpAddr, usize, RandomState>,
}

/// Why somebody is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// There are as many as may be.
    Full,
    /// There are as many of this address.
    Address,
}

impl Refused {
    /// The label of `client_connections_refused_total`.
    pub(super) fn label(self) -> &'static str {
        match self {
            Refused::Full => "full",
            Refused::Address => "address",
        }
    }
}

/// A connection's place; dropping it makes room.
pub(super) struct Seat {
    number: u64,
    address: IpAddr,
    course: Arc<Course>,
    inside: Arc<Mutex<Inside>>,
}

impl Census {
    pub(super) fn new(most: usize, most_of_one: usize) -> Self {
        Self { most, most_of_one, inside: Arc::default() }
    }

    /// A place for a connection from `address`, which begins now.
    pub(super) fn admit(&self, address: IpAddr) -> Result<Seat, Refused> {
        let address = network(address);
        let mut inside = lock(&self.inside);
        if inside.courses.len() >= self.most {
            return Err(Refused::Full);
        }
        let of_address = inside.addresses.entry(address).or_default();
        if *of_address >= self.most_of_one {
            return Err(Refused::Address);
        }
        *of_address += 1;
        let course = Course::new(Instant::now());
        let number = inside.next;
        inside.next += 1;
        inside.courses.insert(number, Arc::clone(&course));
        Ok(Seat { number, address, course, inside: Arc::clone(&self.inside) })
    }

    /// Does something to every connection. Returns how many there are.
    pub(super) fn each(&self, act: impl Fn(&Course)) -> usize {
        // Not under the lock: what is woken may leave at once.
        let courses: Vec<_> = lock(&self.inside).courses.values().cloned().collect();
        courses.iter().for_each(|course| act(course));
        courses.len()
    }
}

impl Seat {
    pub(super) fn course(&self) -> &Arc<Course> {
        &self.course
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inside = lock(&self.inside);
        inside.courses.remove(&self.number);
        if let Some(count) = inside.addresses.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                inside.addresses.remove(&self.address);
            }
        }
    }
}

fn lock(inside: &Mutex<Inside>) -> MutexGuard<'_, Inside> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one client can have by itself: an address of IPv4, a /64 network of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) & !u128::from(u64::MAX)).into()),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(census: &Census, address: &str) -> Result<Seat, Refused> {
        census.admit(address.parse().unwrap())
    }

    #[test]
    fn a_seat_is_free_again_when_its_connection_has_gone() {
        let census = Census::new(2, 2);
        let first = admit(&census, "10.0.0.1").unwrap();
        let _second = admit(&census, "10.0.0.2").unwrap();
        assert_eq!(admit(&census, "10.0.0.3").err(), Some(Refused::Full));
        drop(first);
        assert!(admit(&census, "10.0.0.3").is_ok());
    }

    #[test]
    fn one_address_or_network_leaves_room_for_others() {
        let census = Census::new(100, 2);
        let mut seats: Vec<Seat> = Vec::new();
        for (address, welcome) in [
            ("10.0.0.1", true),
            ("::ffff:10.0.0.1", true),
            ("10.0.0.1", false),
            ("10.0.0.2", true),
            ("2001:db8::1", true),
            ("2001:db8::ffff:1", true),
            ("2001:db8::2", false),
            ("2001:db8:0:1::2", true),
        ] {
            let seat = admit(&census, address);
            let expected = if welcome { None } else { Some(Refused::Address) };
            assert_eq!(seat.as_ref().err().copied(), expected, "{address}");
            seats.extend(seat);
        }
        drop(seats);
        assert!(lock(&census.inside).addresses.is_empty() && lock(&census.inside).courses.is_empty());
    }

    #[test]
    fn everybody_inside_is_told() {
        let census = Census::new(2, 2);
        let (first, second) = (admit(&census, "10.0.0.1").unwrap(), admit(&census, "10.0.0.2").unwrap());
        census.each(Course::ask_to_stop);
        assert!(first.course().is_stopping() && second.course().is_stopping());
        assert!(!first.course().is_cut());
    }
}
