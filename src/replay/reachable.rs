//! The yardstick of every router: the hit rate of one cache as large as the fleet's together. No bound, for where caches
//! thrash, several that each see a part of the prompts can keep more than one that sees all.

use std::collections::{BTreeMap, HashMap};

use warmpath_core::count::real;

use super::trace::TraceRequest;

/// Cached over input tokens of one LRU cache of `capacity` blocks over the requests in their order, untimed, under the
/// engine's own rule: only full blocks are stored, of a prompt of `n` tokens at most `⌊(n−1)/block⌋` hit, and of blocks
/// touched together the suffix is older than the prefix. O(blocks · log capacity).
pub fn hit_rate(requests: &[TraceRequest], block: u32, capacity: usize) -> f64 {
    hit_rate_after(0, requests, block, capacity)
}

/// The same, where the first `warm_up` requests fill the cache and do not count.
pub fn hit_rate_after(warm_up: usize, requests: &[TraceRequest], block: u32, capacity: usize) -> f64 {
    let tokens = course(requests, block, capacity).skip(warm_up);
    let (input, cached) = tokens.fold((0, 0), |sum: (u64, u64), tokens| (sum.0 + tokens.0, sum.1 + tokens.1));
    real(cached) / real(input.max(1))
}

/// Prompt tokens of each request, and how many of them that cache had.
pub fn course(requests: &[TraceRequest], block: u32, capacity: usize) -> impl Iterator<Item = (u64, u64)> {
    let mut cache = Lru { capacity, ages: HashMap::new(), order: BTreeMap::new(), clock: 0 };
    requests.iter().map(move |request| {
        let full = usize::try_from(request.input_length / block).unwrap_or(usize::MAX);
        let reusable = usize::try_from(request.input_length.saturating_sub(1) / block).unwrap_or(usize::MAX);
        let full = &request.hash_ids[..full.min(request.hash_ids.len())];
        let hits = full.iter().take(reusable).take_while(|id| cache.ages.contains_key(id)).count();
        full.iter().rev().for_each(|id| cache.touch(*id));
        (u64::from(request.input_length), u64::try_from(hits).unwrap_or(0) * u64::from(block))
    })
}

struct Lru {
    capacity: usize,
    ages: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
}

impl Lru {
    fn touch(&mut self, id: u64) {
        self.clock += 1;
        if let Some(age) = self.ages.insert(id, self.clock) {
            self.order.remove(&age);
        }
        self.order.insert(self.clock, id);
        if self.ages.len() > self.capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.ages.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(input_length: u32, hash_ids: &[u64]) -> TraceRequest {
        TraceRequest { input_length, output_length: 1, hash_ids: hash_ids.to_vec(), ..TraceRequest::default() }
    }

    #[test]
    fn the_last_full_block_of_a_prompt_is_never_a_hit() {
        let requests = [request(8, &[1, 2]), request(8, &[1, 2]), request(9, &[1, 2, 3])];
        // 0, then 4 of 8, then 8 of 9 tokens.
        assert!((hit_rate(&requests, 4, 100) - 12.0 / 25.0).abs() < 1e-12);
    }

    #[test]
    fn the_suffix_goes_before_the_prefix() {
        // Room for two of three blocks: the prefix stays, so that its first two blocks hit.
        let requests = [request(12, &[1, 2, 3]), request(13, &[1, 2, 3, 4])];
        assert!((hit_rate(&requests, 4, 2) - 8.0 / 25.0).abs() < 1e-12);
    }
}
