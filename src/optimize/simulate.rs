//! The hits of caches that are simulated block by block, for one capacity at a time.

use super::accesses::{Accesses, Volume};
use super::placement::Placement;
use super::store::{Store, StoreRules};
use crate::replay::trace::Access;

/// What a fleet of caches of `capacity` blocks each hits. O(blocks · log capacity), and for the placement by longest prefix
/// a look into every cache.
pub fn simulate(
    accesses: &Accesses,
    placement: Placement,
    workers: usize,
    rules: StoreRules,
    capacity: usize,
) -> Volume {
    let (count, capacity) = placement.caches(workers.max(1), capacity);
    let mut stores: Vec<Store> = (0..count).map(|_| Store::new(rules, capacity)).collect();
    let mut computed = vec![0_u64; count];
    let fixed = placement.fixed(accesses, workers);
    let mut hits = Volume::default();
    for (number, request) in accesses.requests().iter().enumerate() {
        let prompt = accesses.looked_up(request);
        let held = |store: &Store| store.run(prompt, request.at_ms);
        let at = match &fixed {
            Some(fixed) => fixed[number],
            None => {
                let best = |at: &usize| (held(&stores[*at]), u64::MAX - computed[*at], count - at);
                (0..count).max_by_key(best).unwrap_or(0)
            }
        };
        let run = held(&stores[at]);
        let tokens: u64 = (0..run).map(|place| u64::from(accesses.tokens(request, place))).sum();
        hits.blocks += u64::try_from(run).unwrap_or(0);
        hits.tokens += tokens;
        computed[at] += u64::from(request.input_length).saturating_sub(tokens);
        let only_held = request.access == Access::Read;
        // Of a look-up only what it found is used.
        let used = if only_held { &prompt[..run] } else { accesses.stored(request) };
        stores[at].touch(used, request.at_ms, only_held);
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::super::accesses::Rule;
    use super::super::stack::Order;
    use super::super::store::Eviction;
    use super::*;
    use crate::replay::trace::{About, TraceRequest};

    const RULES: StoreRules = StoreRules { eviction: Eviction::Lru, order: Order::SuffixOlder, ttl_ms: 0, seed: 1 };

    fn request(ids: &[u64], access: Access) -> TraceRequest {
        let input_length = u32::try_from(ids.len()).unwrap();
        let about = Some(Box::new(About { access, ..About::default() }));
        TraceRequest { input_length, hash_ids: ids.to_vec(), about, ..TraceRequest::default() }
    }

    fn hits(requests: &[TraceRequest], placement: Placement, workers: usize, capacity: usize) -> u64 {
        let accesses = Accesses::new(requests, 1, Rule::AnyBlock);
        simulate(&accesses, placement, workers, RULES, capacity).blocks
    }

    #[test]
    fn a_look_up_stores_nothing_and_a_write_asks_for_nothing() {
        let requests = [
            request(&[1, 2], Access::Read),
            request(&[1, 2], Access::Write),
            request(&[1, 2, 3], Access::Read),
            request(&[3], Access::Read),
        ];
        let accesses = Accesses::new(&requests, 1, Rule::AnyBlock);
        assert!(accesses.is_split());
        assert_eq!(accesses.asked(), Volume { blocks: 6, tokens: 6 });
        assert_eq!(hits(&requests, Placement::Pooled, 1, 10), 2);
    }

    #[test]
    fn the_longest_prefix_is_followed_and_new_work_goes_to_who_had_the_least() {
        let prompts: [&[u64]; 6] = [&[1, 2], &[5, 6], &[1, 2, 3], &[5, 6, 7], &[9], &[1, 2, 3]];
        let requests = prompts.map(|ids| request(ids, Access::Request));
        // In turn over two workers these would hit 2 + 2, and at the end nothing: [1, 2, 3] is at the other.
        assert_eq!(hits(&requests, Placement::RoundRobin, 2, 10), 4);
        assert_eq!(hits(&requests, Placement::LongestPrefix, 2, 10), 7);
        assert_eq!(hits(&requests, Placement::Pooled, 2, 10), 7);
    }
}
