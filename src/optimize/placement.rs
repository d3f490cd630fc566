//! Untimed placements: which worker's cache a request meets when nobody looks at load or time. Timed placement, by the real
//! scheduler and its policies, is what `replay` is for.

use std::fmt;
use std::str::FromStr;

use super::accesses::{Accesses, Request};

/// How requests are spread over workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// All workers' room as one cache: the bound of every other.
    Pooled,
    /// In turn.
    RoundRobin,
    /// By the session, or else by the first block that not all requests share: what belongs together stays together.
    Sticky,
    /// To whom holds the longest prefix; of equals to whom had to compute the fewest tokens so far, then to the first.
    LongestPrefix,
}

/// All placements with their names.
pub const PLACEMENTS: [(Placement, &str); 4] = [
    (Placement::Pooled, "pooled"),
    (Placement::RoundRobin, "round_robin"),
    (Placement::Sticky, "sticky"),
    (Placement::LongestPrefix, "longest_prefix"),
];

impl Placement {
    /// The worker of each request, where it does not hang on what the caches hold. None for [`Placement::LongestPrefix`].
    pub fn fixed(self, accesses: &Accesses, workers: usize) -> Option<Vec<usize>> {
        let workers = workers.max(1);
        let requests = accesses.requests();
        match self {
            Self::Pooled => Some(vec![0; requests.len()]),
            Self::RoundRobin => Some((0..requests.len()).map(|at| at % workers).collect()),
            Self::Sticky => Some(requests.iter().map(|request| owner(request, workers)).collect()),
            Self::LongestPrefix => None,
        }
    }

    /// How many caches there are, and how many blocks each has when each worker has `capacity`.
    pub fn caches(self, workers: usize, capacity: usize) -> (usize, usize) {
        match self {
            Self::Pooled => (1, capacity.saturating_mul(workers)),
            _ => (workers, capacity),
        }
    }
}

fn owner(request: &Request, workers: usize) -> usize {
    let hash = xxhash_rust::xxh3::xxh3_64(&request.affinity.to_le_bytes());
    let workers = u64::try_from(workers).unwrap_or(u64::MAX);
    usize::try_from(hash % workers).unwrap_or(0)
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PLACEMENTS.iter().find(|(placement, _)| placement == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = PLACEMENTS.iter().find(|(_, name)| *name == text.replace('-', "_"));
        found.map(|(placement, _)| *placement).ok_or_else(|| {
            let names = PLACEMENTS.map(|(_, name)| name).join(", ");
            format!("no untimed placement is called `{text}` (known: {names}; for the router's policies see `replay`)")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::accesses::Rule;
    use super::*;
    use crate::replay::trace::TraceRequest;

    #[test]
    fn requests_go_in_turn_or_to_the_owner_of_what_they_share() {
        let request = |ids: &[u64]| TraceRequest { input_length: 9, hash_ids: ids.to_vec(), ..TraceRequest::default() };
        let requests = [request(&[0, 1]), request(&[0, 2]), request(&[0, 1, 5]), request(&[0, 2, 6])];
        let accesses = Accesses::new(&requests, 1, Rule::AnyBlock);
        assert_eq!(Placement::RoundRobin.fixed(&accesses, 3), Some(vec![0, 1, 2, 0]));
        let owners = Placement::Sticky.fixed(&accesses, 8).unwrap();
        assert_eq!((owners[0], owners[1]), (owners[2], owners[3]));
        assert_eq!(Placement::LongestPrefix.fixed(&accesses, 3), None);
        assert_eq!((Placement::Pooled.caches(4, 10), Placement::Sticky.caches(4, 10)), ((1, 40), (4, 10)));
        assert_eq!(Placement::Pooled.caches(4, usize::MAX), (1, usize::MAX));
    }

    #[test]
    fn a_name_may_be_written_with_hyphens() {
        assert_eq!("round-robin".parse(), Ok(Placement::RoundRobin));
        assert!("kv".parse::<Placement>().unwrap_err().contains("see `replay`"));
    }
}
