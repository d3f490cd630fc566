//! What a walk over reuse distances is summed up to: hits by capacity, hits over time, histograms.

use serde::Serialize;
use warmpath_core::count::{real, real_len};

use super::accesses::{Accesses, Volume};
use super::stack::{LookUp, Reuse};
use crate::replay::trace::Access;

/// Hits by capacity, of all capacities at once.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// Blocks and tokens that a cache of just so many blocks gains over one of a block less.
    gains: Vec<Volume>,
}

impl Curve {
    /// Takes note of a block. What was last used longer than `ttl_ms` ago is no hit.
    pub fn add(&mut self, seen: &LookUp<'_>, ttl_ms: u64) {
        let Some(Reuse { distance, age_ms }) = seen.reuse else { return };
        if age_ms > ttl_ms {
            return;
        }
        let distance = usize::try_from(distance).unwrap_or(usize::MAX);
        if self.gains.len() <= distance {
            self.gains.resize(distance + 1, Volume::default());
        }
        self.gains[distance].blocks += 1;
        self.gains[distance].tokens += u64::from(seen.tokens);
    }

    /// What a cache of `capacity` blocks hits. O(capacity).
    pub fn hits(&self, capacity: usize) -> Volume {
        let gains = self.gains.iter().take(capacity.saturating_add(1));
        gains.fold(Volume::default(), |sum, gain| Volume {
            blocks: sum.blocks + gain.blocks,
            tokens: sum.tokens + gain.tokens,
        })
    }
}

/// Hits in equal spans of time, for a few capacities.
#[derive(Clone, Debug)]
pub struct OverTime {
    begin_ms: u64,
    span_ms: u64,
    capacities: Vec<usize>,
    /// For each span: its prompt tokens, and for each capacity the tokens that it hits and none below.
    spans: Vec<(u64, Vec<u64>)>,
}

/// One span of time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Span {
    /// Its end, in seconds since the trace began.
    pub until_s: f64,
    /// Prompt tokens that came in it.
    pub tokens: u64,
    /// Of these, hits at each capacity.
    pub token_hits: Vec<u64>,
}

impl OverTime {
    /// `spans` equal spans of the trace's time, for `capacities` in rising order.
    pub fn new(accesses: &Accesses, spans: usize, capacities: &[usize]) -> Self {
        let (begin_ms, end_ms) = accesses.span_ms();
        let count = u64::try_from(spans.max(1)).unwrap_or(1);
        let span_ms = (end_ms - begin_ms + 1).div_ceil(count).max(1);
        let empty = (0, vec![0; capacities.len()]);
        let capacities = capacities.to_vec();
        let mut found = Self { begin_ms, span_ms, capacities, spans: vec![empty; spans.max(1)] };
        for request in accesses.requests().iter().filter(|request| request.access != Access::Write) {
            let at = found.place(request.at_ms);
            found.spans[at].0 += u64::from(request.input_length);
        }
        found
    }

    fn place(&self, at_ms: u64) -> usize {
        usize::try_from(at_ms.saturating_sub(self.begin_ms) / self.span_ms).unwrap_or(0).min(self.spans.len() - 1)
    }

    /// Takes note of a block.
    pub fn add(&mut self, seen: &LookUp<'_>) {
        let Some(reuse) = seen.reuse else { return };
        let at = self.place(seen.request.at_ms);
        let distance = usize::try_from(reuse.distance).unwrap_or(usize::MAX);
        let least = self.capacities.partition_point(|capacity| *capacity < distance);
        if let Some(hits) = self.spans[at].1.get_mut(least) {
            *hits += u64::from(seen.tokens);
        }
    }

    /// The spans in order.
    pub fn spans(&self) -> Vec<Span> {
        let span = |(at, (tokens, gains)): (usize, &(u64, Vec<u64>))| {
            let mut sum = 0;
            let token_hits = gains.iter().map(|gain| {
                sum += gain;
                sum
            });
            let until_s = real(self.span_ms) * real_len(at + 1) / 1e3;
            Span { until_s, tokens: *tokens, token_hits: token_hits.collect() }
        };
        self.spans.iter().enumerate().map(span).collect()
    }
}

/// How long until blocks are used again, and how often they are used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Histograms {
    /// Uses of blocks by the time since they were last used: at most 1 s, 2 s, 4 s and so on.
    pub time_locality: Vec<Reused>,
    /// Blocks by how often they are used: once, twice, up to 4 times, up to 8 and so on.
    pub access_frequency: Vec<Used>,
}

/// A bar of the histogram of time locality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reused {
    /// At most so many seconds since the last use, and more than in the bar before.
    pub within_s: u64,
    /// Uses.
    pub uses: u64,
}

/// A bar of the histogram of access frequency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Used {
    /// At most so many uses, and more than in the bar before.
    pub up_to: u64,
    /// Different blocks.
    pub blocks: u64,
    /// All their uses.
    pub uses: u64,
}

impl Histograms {
    /// Of all blocks that are stored or looked up. O(uses).
    pub fn of(accesses: &Accesses) -> Self {
        let mut last: Vec<Option<u64>> = vec![None; accesses.unique()];
        let mut counts = vec![0_u64; accesses.unique()];
        let mut found = Self::default();
        for request in accesses.requests() {
            for block in accesses.stored(request) {
                let block = usize::try_from(*block).unwrap_or(usize::MAX);
                counts[block] += 1;
                if let Some(before) = last[block].replace(request.at_ms) {
                    let seconds = request.at_ms.saturating_sub(before).div_ceil(1_000);
                    let bar = bar_of(&mut found.time_locality, seconds, |within_s| Reused { within_s, uses: 0 });
                    bar.uses += 1;
                }
            }
        }
        for uses in counts {
            let bar = bar_of(&mut found.access_frequency, uses, |up_to| Used { up_to, blocks: 0, uses: 0 });
            bar.blocks += 1;
            bar.uses += uses;
        }
        found
    }
}

/// The bar for `value` among those up to 1, 2, 4 and so on.
fn bar_of<T>(bars: &mut Vec<T>, value: u64, empty: fn(u64) -> T) -> &mut T {
    let at = value.max(1).next_power_of_two().ilog2();
    let at = usize::try_from(at).unwrap_or(0);
    while bars.len() <= at {
        let bound = 1_u64 << bars.len();
        bars.push(empty(bound));
    }
    &mut bars[at]
}

#[cfg(test)]
mod tests {
    use super::super::accesses::Rule;
    use super::super::stack::{Order, walk};
    use super::*;
    use crate::replay::trace::TraceRequest;

    fn accesses() -> Accesses {
        let request = |at_ms, ids: &[u64]| TraceRequest {
            at_ms,
            input_length: 10,
            hash_ids: ids.to_vec(),
            ..TraceRequest::default()
        };
        let requests =
            [request(0, &[1, 2, 3]), request(900, &[1, 2]), request(3_000, &[5]), request(9_999, &[1, 2, 3])];
        Accesses::new(&requests, 4, Rule::AnyBlock)
    }

    #[test]
    fn the_curve_gives_the_hits_of_every_capacity_and_age() {
        let accesses = accesses();
        let (mut curve, mut young) = (Curve::default(), Curve::default());
        walk(&accesses, accesses.requests().iter(), Order::SuffixOlder, |seen| {
            curve.add(seen, u64::MAX);
            young.add(seen, 900);
        });
        // Distances: 1, 2 at once; after 5 came in between 2, 3, 4. The last block of a prompt of 10 has 2 tokens.
        let hits: Vec<_> = (0..=5).map(|capacity| curve.hits(capacity).blocks).collect();
        assert_eq!(hits, [0, 1, 3, 4, 5, 5]);
        assert_eq!(curve.hits(usize::MAX), Volume { blocks: 5, tokens: 18 });
        assert_eq!(young.hits(usize::MAX), Volume { blocks: 2, tokens: 8 });
    }

    #[test]
    fn hits_over_time_add_up_to_the_curve() {
        let accesses = accesses();
        let mut over_time = OverTime::new(&accesses, 10, &[1, 3, usize::MAX]);
        walk(&accesses, accesses.requests().iter(), Order::SuffixOlder, |seen| over_time.add(seen));
        let spans = over_time.spans();
        assert_eq!(spans.len(), 10);
        assert_eq!(spans[0], Span { until_s: 1.0, tokens: 20, token_hits: vec![4, 8, 8] });
        assert_eq!(spans[9], Span { until_s: 10.0, tokens: 10, token_hits: vec![0, 8, 10] });
    }

    #[test]
    fn histograms_count_uses_by_time_and_blocks_by_uses() {
        let found = Histograms::of(&accesses());
        let bars: Vec<_> = found.time_locality.iter().map(|bar| (bar.within_s, bar.uses)).collect();
        // Twice after 0.9 s, twice after 9.1 s, once after 10 s.
        assert_eq!(bars, [(1, 2), (2, 0), (4, 0), (8, 0), (16, 3)]);
        let bars: Vec<_> = found.access_frequency.iter().map(|bar| (bar.up_to, bar.blocks, bar.uses)).collect();
        assert_eq!(bars, [(1, 1, 1), (2, 1, 2), (4, 2, 6)]);
    }
}
