//! What comes from shared storage for requests that wait. Every rank of an engine fetches its own share of each page over a
//! way of its own, and a page is there once all of them have theirs: of ranks that are not equally fast the slowest counts.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use smallvec::SmallVec;
use warmpath_core::count::real_len;

use super::link::{Link, LinkSpec, TransferId};
use super::plan::{PrefetchPolicy, Tiers};
use crate::clock::Ms;
use crate::naming::Digest;
use crate::request::RequestId;

/// What is being fetched for a waiting request.
#[derive(Clone, Debug)]
struct Fetch {
    /// One for each rank.
    transfers: SmallVec<[TransferId; 1]>,
    /// Pages before those.
    first: usize,
    /// What the names of the pages in shared storage are taken from.
    keys: Vec<Digest>,
    begun: Ms,
}

/// What has become of a request's pages.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fetched {
    /// Nothing was to be fetched.
    Nothing,
    /// They are on their way, and the request waits for them.
    Underway,
    /// These pages have come, behind `first` others; no more will.
    Pages {
        /// Pages before those.
        first: usize,
        /// What their names in shared storage are taken from.
        keys: Vec<Digest>,
    },
}

/// The ways inward, and all that is on them.
#[derive(Debug)]
pub(super) struct Inward {
    policy: PrefetchPolicy,
    /// Tokens of a page.
    page: usize,
    /// Bytes of one rank's share of it.
    share: f64,
    /// One for each rank.
    links: Vec<Link>,
    fetches: HashMap<RequestId, Fetch, FixedState>,
}

impl Inward {
    pub(super) fn new(plan: &Tiers, page: usize) -> Self {
        let ranks = f64::from(plan.ranks.max(1));
        let link = |rank: u32| {
            let slowness = if rank + 1 == plan.ranks.max(1) { plan.slow_rank } else { 1.0 };
            let bytes_per_second = plan.network.bytes_per_second / ranks / slowness;
            Link::new(LinkSpec { bytes_per_second, ..plan.network })
        };
        Self {
            policy: plan.prefetch,
            page,
            share: real_len(page) * plan.kv_bytes / ranks,
            links: (0..plan.ranks.max(1)).map(link).collect(),
            fetches: HashMap::default(),
        }
    }

    /// Begins to fetch pages for a request.
    pub(super) fn begin(&mut self, now: Ms, id: RequestId, first: usize, keys: Vec<Digest>) {
        let bytes = self.share * real_len(keys.len());
        let transfers = self.links.iter_mut().map(|link| link.start(now, bytes)).collect();
        self.fetches.insert(id, Fetch { transfers, first, keys, begun: now });
    }

    /// What a request that could run now has of its pages: its fetch ends here unless it waits for it.
    pub(super) fn end(&mut self, now: Ms, id: RequestId) -> Fetched {
        let Some(fetch) = self.fetches.get(&id) else { return Fetched::Nothing };
        let limit = self.policy.limit(fetch.keys.len() * self.page);
        let is_over = limit.is_some_and(|limit| now >= fetch.begun + limit);
        let mut ranks = self.links.iter_mut().zip(&fetch.transfers);
        if !is_over && !ranks.all(|(link, transfer)| link.is_whole(now, *transfer)) {
            return Fetched::Underway;
        }
        let Some(Fetch { transfers, first, mut keys, .. }) = self.fetches.remove(&id) else { return Fetched::Nothing };
        let arrived = self.links.iter_mut().zip(&transfers).map(|(link, transfer)| link.stop(now, *transfer));
        let arrived = arrived.fold(f64::INFINITY, f64::min);
        let whole = (1..=keys.len()).take_while(|pages| self.share * real_len(*pages) <= arrived).count();
        keys.truncate(whole);
        Fetched::Pages { first, keys }
    }

    /// A request has left.
    pub(super) fn cancel(&mut self, id: RequestId) {
        if let Some(fetch) = self.fetches.remove(&id) {
            self.links.iter_mut().zip(fetch.transfers).for_each(|(link, transfer)| link.cancel(transfer));
        }
    }

    /// The first moment after `now` at which a request may no longer have to wait, and `until` at the latest.
    pub(super) fn next(&mut self, now: Ms, until: Ms) -> Ms {
        let limits = self.fetches.values().filter_map(|fetch| {
            let limit = self.policy.limit(fetch.keys.len() * self.page)?;
            Some(fetch.begun + limit)
        });
        let whole = self.links.iter_mut().filter_map(|link| link.next_whole(now));
        let soonest = limits.chain(whole).filter(|moment| *moment > now);
        soonest.fold(until, |until, moment| if moment < until { moment } else { until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 4096 tokens of 128 KiB in pages of 64, over 20 GB/s in all.
    fn fetched(ranks: u32, slow_rank: f64, prefetch: &str, at: f64) -> Fetched {
        let prefetch = prefetch.parse().unwrap();
        let plan = Tiers { ranks, slow_rank, prefetch, network: LinkSpec::of(20e9), ..Tiers::default() };
        let mut inward = Inward::new(&plan, 64);
        inward.begin(Ms::ZERO, RequestId(1), 3, (0..64).map(Digest::numbered).collect());
        inward.end(Ms(at), RequestId(1))
    }

    fn pages(ranks: u32, slow_rank: f64, at: f64) -> usize {
        let Fetched::Pages { first: 3, keys } = fetched(ranks, slow_rank, "best_effort", at) else {
            panic!("no pages")
        };
        assert!(keys.iter().copied().eq((0..64).map(Digest::numbered).take(keys.len())));
        keys.len()
    }

    #[test]
    fn equal_ranks_fetch_as_much_as_one_and_of_others_the_slowest_counts() {
        assert_eq!([1, 2, 8].map(|ranks| pages(ranks, 1.0, 10.0)), [23, 23, 23], "1472 tokens");
        // The last of the ranks has 11.9 pages by then, or 15.9.
        assert_eq!([pages(2, 2.0, 10.0), pages(8, 1.5, 10.0)], [11, 15]);
        assert_eq!(pages(1, 2.0, 10.0), 11, "a lone rank is the slowest");
    }

    #[test]
    fn whoever_waits_for_all_waits_for_the_slowest_rank() {
        assert_eq!(fetched(4, 2.0, "wait_complete", 26.9), Fetched::Underway, "the others are done at 26.84 ms");
        assert_eq!(fetched(4, 2.0, "wait_complete", 53.6), Fetched::Underway);
        assert!(matches!(fetched(4, 2.0, "wait_complete", 53.7), Fetched::Pages { keys, .. } if keys.len() == 64));
    }
}
