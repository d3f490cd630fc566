//! Capacity against hit rate over a trace, without time: what caches of every size would have hit, by eviction, number of
//! workers and untimed placement.
//!
//! LRU and TTL come from reuse distances, in one pass for all capacities ([`stack`]); other evictions, and the placement
//! that looks into the caches, are simulated for each capacity ([`simulate`]), on all cores.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Serialize, Serializer};

use accesses::{Accesses, Rule, Volume};
use placement::Placement;
use savings::{KvVolume, Savings};
use stack::Order;
use store::{Eviction, StoreRules};
use tally::{Curve, Histograms, OverTime, Span};
use warmpath_core::count::{real, real_len};

use crate::replay::trace::TraceRequest;

pub mod accesses;
pub mod outcome;
pub mod placement;
pub mod savings;
pub mod simulate;
pub mod stack;
pub mod store;
pub mod tally;

/// Spans in which hits over time are told.
const SPANS: usize = 60;
/// Points of a sweep, before small ones are left out.
const SWEEP_POINTS: u32 = 40;
/// The largest capacity that a sweep leaves out.
const SWEEP_ABOVE: usize = 2_000;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Tokens that an id of the trace stands for.
    pub block_size: u32,
    /// Each worker's room.
    pub capacities: Capacities,
    /// Evictions.
    pub evictions: Vec<Eviction>,
    /// Numbers of workers.
    pub workers: Vec<usize>,
    /// Untimed placements.
    pub placements: Vec<Placement>,
    /// Which blocks count.
    pub rule: Rule,
    /// Which of the blocks that are used together counts as older.
    pub order: Order,
    /// The time of the eviction `ttl`, in ms.
    pub ttl_ms: u64,
    /// The seed of chance.
    pub seed: u64,
    /// Time to prefill a token on one GPU, in µs.
    pub us_per_token: f64,
    /// KV bytes of a token.
    pub bytes_per_token: Option<f64>,
}

/// Capacities in blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capacities {
    /// These.
    Listed(Vec<Capacity>),
    /// A curve's worth, up to the trace's different blocks.
    Sweep,
}

/// Room in blocks; `usize::MAX` is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capacity(pub usize);

/// One cache or fleet of caches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Room of each worker.
    pub capacity_blocks: Capacity,
    /// Who goes when a cache is full.
    pub eviction: String,
    /// Workers.
    pub workers: usize,
    /// Untimed placement.
    pub policy: String,
    /// Blocks that were looked up.
    pub blocks: u64,
    /// Of these, found with all before them.
    pub block_hits: u64,
    /// Prompt tokens.
    pub tokens: u64,
    /// Of these, in blocks that were found.
    pub token_hits: u64,
    /// Token hits over prompt tokens.
    pub hit_rate: f64,
    /// Block hits over blocks that were looked up.
    pub block_hit_rate: f64,
    /// Which blocks count.
    pub rule: String,
    /// Which of the blocks that are used together counts as older.
    pub order: String,
    /// What the hits are worth.
    #[serde(flatten)]
    pub savings: Savings,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// By workers, placement, eviction and capacity, in the order of the plan.
    pub rows: Vec<Row>,
    /// Requests of the trace.
    pub requests: usize,
    /// Different blocks.
    pub unique_blocks: usize,
    /// Tokens of a block.
    pub block_size: u32,
    /// From the first to the last arrival, in seconds.
    pub span_s: f64,
    /// KV that the prompts make, where a token's bytes are given.
    pub kv_volume: Option<KvVolume>,
    /// Reuse and use of blocks.
    #[serde(flatten)]
    pub histograms: Histograms,
    /// The capacities of `over_time`, in rising order.
    pub over_time_capacities: Vec<Capacity>,
    /// Hits of one LRU cache of each of these capacities over time; empty where look-ups and stores are lines of their own.
    pub over_time: Vec<Span>,
}

/// One line of the plan, all capacities together.
#[derive(Clone, Copy)]
struct Line {
    workers: usize,
    placement: Placement,
    eviction: Eviction,
}

/// Does what the plan asks, on all cores. `progress` is told how many of how many pieces of work are done.
pub fn run(requests: &[TraceRequest], plan: &Plan, progress: &(dyn Fn(usize, usize) + Sync)) -> Outcome {
    let accesses = Accesses::new(requests, plan.block_size, plan.rule);
    let capacities = plan.capacities.resolved(accesses.unique());
    let mut lines = Vec::new();
    for workers in &plan.workers {
        for placement in &plan.placements {
            let line = |eviction: &Eviction| Line { workers: *workers, placement: *placement, eviction: *eviction };
            lines.extend(plan.evictions.iter().map(line));
        }
    }
    let hits = hits_of(&accesses, plan, &lines, &capacities, progress);
    let (begin, end) = accesses.span_ms();
    let span_s = real(end - begin) / 1e3;
    let asked = accesses.asked();
    let mut rows = Vec::new();
    for (line, hits) in lines.iter().zip(hits) {
        rows.extend(
            capacities.iter().zip(hits).map(|(capacity, hits)| row(plan, line, *capacity, asked, hits, span_s)),
        );
    }
    let over_time_capacities = spread(&capacities);
    let tokens_per_s = if span_s > 0.0 { real(asked.tokens) / span_s } else { 0.0 };
    Outcome {
        rows,
        requests: requests.len(),
        unique_blocks: accesses.unique(),
        block_size: plan.block_size,
        span_s,
        kv_volume: plan.bytes_per_token.map(|bytes| KvVolume::of(tokens_per_s, bytes)),
        histograms: Histograms::of(&accesses),
        over_time: over_time(&accesses, plan, &over_time_capacities),
        over_time_capacities,
    }
}

fn row(plan: &Plan, line: &Line, capacity: Capacity, asked: Volume, hits: Volume, span_s: f64) -> Row {
    let rate = |hits: u64, all: u64| if all == 0 { 0.0 } else { real(hits) / real(all) };
    Row {
        capacity_blocks: capacity,
        eviction: line.eviction.to_string(),
        workers: line.workers,
        policy: line.placement.to_string(),
        blocks: asked.blocks,
        block_hits: hits.blocks,
        tokens: asked.tokens,
        token_hits: hits.tokens,
        hit_rate: rate(hits.tokens, asked.tokens),
        block_hit_rate: rate(hits.blocks, asked.blocks),
        rule: plan.rule.to_string(),
        order: plan.order.to_string(),
        savings: Savings::of(asked.tokens, hits.tokens, plan.us_per_token, span_s),
    }
}

/// The hits of each line at each capacity. Pieces of work are taken by whichever core is free.
fn hits_of(
    accesses: &Accesses,
    plan: &Plan,
    lines: &[Line],
    capacities: &[Capacity],
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Vec<Vec<Volume>> {
    // A line that one pass answers is one piece, any other is one for each capacity.
    let mut pieces: Vec<(usize, Option<usize>)> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if is_one_pass(accesses, line) {
            pieces.push((at, None));
        } else {
            pieces.extend((0..capacities.len()).map(|capacity| (at, Some(capacity))));
        }
    }
    let found = Mutex::new(vec![vec![Volume::default(); capacities.len()]; lines.len()]);
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some((at, capacity)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let hits: Vec<(usize, Volume)> = match capacity {
                None => one_pass(accesses, plan, &lines[*at], capacities).into_iter().enumerate().collect(),
                Some(capacity) => vec![(*capacity, simulated(accesses, plan, &lines[*at], capacities[*capacity]))],
            };
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            hits.into_iter().for_each(|(capacity, hits)| found[*at][capacity] = hits);
            drop(found);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, pieces.len());
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(pieces.len());
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn is_one_pass(accesses: &Accesses, line: &Line) -> bool {
    let by_age = matches!(line.eviction, Eviction::Lru | Eviction::Ttl);
    by_age && line.placement != Placement::LongestPrefix && !accesses.is_split()
}

fn one_pass(accesses: &Accesses, plan: &Plan, line: &Line, capacities: &[Capacity]) -> Vec<Volume> {
    let ttl_ms = if line.eviction == Eviction::Ttl { plan.ttl_ms } else { u64::MAX };
    let mut curve = Curve::default();
    let owners = line.placement.fixed(accesses, line.workers).unwrap_or_default();
    let (caches, _) = line.placement.caches(line.workers, 0);
    for cache in 0..caches {
        let own = accesses.requests().iter().zip(&owners).filter(move |(_, owner)| **owner == cache);
        stack::walk(accesses, own.map(|(request, _)| request), plan.order, |seen| curve.add(seen, ttl_ms));
    }
    capacities.iter().map(|capacity| curve.hits(line.placement.caches(line.workers, capacity.0).1)).collect()
}

fn simulated(accesses: &Accesses, plan: &Plan, line: &Line, capacity: Capacity) -> Volume {
    let rules = StoreRules { eviction: line.eviction, order: plan.order, ttl_ms: plan.ttl_ms, seed: plan.seed };
    simulate::simulate(accesses, line.placement, line.workers, rules, capacity.0)
}

fn over_time(accesses: &Accesses, plan: &Plan, capacities: &[Capacity]) -> Vec<Span> {
    if accesses.is_split() || accesses.is_empty() {
        return Vec::new();
    }
    let capacities: Vec<usize> = capacities.iter().map(|capacity| capacity.0).collect();
    let mut over_time = OverTime::new(accesses, SPANS, &capacities);
    stack::walk(accesses, accesses.requests().iter(), plan.order, |seen| over_time.add(seen));
    over_time.spans()
}

/// At most four of the capacities, in rising order: both ends and some between.
fn spread(capacities: &[Capacity]) -> Vec<Capacity> {
    let mut sorted = capacities.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let last = sorted.len().saturating_sub(1);
    let mut places: Vec<usize> = (0..=3).map(|part| last * part / 3).collect();
    places.dedup();
    places.into_iter().filter_map(|place| sorted.get(place).copied()).collect()
}

impl Capacities {
    /// The capacities for a trace of `unique` different blocks. A sweep has those of `unique · e^x / e⁴` above 2 000, with x
    /// in 40 even steps from −4 to 4, as the optimizer of the Tair KVCache manager sweeps; of a small trace, all.
    pub fn resolved(&self, unique: usize) -> Vec<Capacity> {
        if let Self::Listed(listed) = self {
            return listed.clone();
        }
        let points = (0..SWEEP_POINTS).map(|step| {
            let x = -4.0 + 8.0 * f64::from(step) / f64::from(SWEEP_POINTS - 1);
            floor(real_len(unique) * (x - 4.0).exp() * (1.0 + 1e-12))
        });
        let above = if unique > SWEEP_ABOVE { SWEEP_ABOVE } else { 0 };
        let mut points: Vec<Capacity> = points.filter(|point| *point > above).map(Capacity).collect();
        points.dedup();
        points
    }
}

#[expect(clippy::as_conversions, reason = "a share of a length, which fits")]
fn floor(value: f64) -> usize {
    value as usize
}

impl Capacity {
    /// No bound.
    pub const INFINITE: Self = Self(usize::MAX);
}

impl std::fmt::Display for Capacity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == Self::INFINITE { f.write_str("inf") } else { self.0.fmt(f) }
    }
}

impl std::str::FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "inf" {
            return Ok(Self::INFINITE);
        }
        text.parse().map(Self).map_err(|_| format!("a capacity is a number of blocks or `inf`, got `{text}`"))
    }
}

impl Serialize for Capacity {
    /// A number, or `"inf"`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::INFINITE => serializer.serialize_str("inf"),
            Self(blocks) => serializer.serialize_u64(u64::try_from(blocks).unwrap_or(u64::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{reachable, trace};

    fn conversation() -> Vec<TraceRequest> {
        trace::read(include_bytes!("../tests/data/traces/mooncake-conversation.jsonl.gz")).unwrap()
    }

    fn plan(capacities: &[usize]) -> Plan {
        Plan {
            block_size: 512,
            capacities: Capacities::Listed(capacities.iter().copied().map(Capacity).collect()),
            evictions: vec![Eviction::Lru],
            workers: vec![1],
            placements: vec![Placement::Pooled],
            rule: Rule::AnyBlock,
            order: Order::SuffixOlder,
            ttl_ms: 300_000,
            seed: 1,
            us_per_token: 31.0,
            bytes_per_token: None,
        }
    }

    fn run_quietly(requests: &[TraceRequest], plan: &Plan) -> Outcome {
        run(requests, plan, &|_, _| {})
    }

    fn block_hits(outcome: &Outcome) -> Vec<u64> {
        outcome.rows.iter().map(|row| row.block_hits).collect()
    }

    const CAPACITIES: [usize; 7] = [1_000, 5_000, 10_000, 30_000, 50_000, 100_000, usize::MAX];

    #[test]
    fn the_conversation_trace_has_the_hits_that_are_known_of_it() {
        let requests = conversation();
        let outcome = run_quietly(&requests, &plan(&CAPACITIES));
        assert_eq!((outcome.requests, outcome.unique_blocks), (12_031, 182_790));
        assert_eq!(block_hits(&outcome), [12_847, 32_260, 61_046, 93_978, 102_290, 104_924, 105_710]);
        let last = outcome.rows.last().unwrap();
        assert_eq!((last.blocks, last.tokens, last.token_hits), (288_500, 144_793_823, 54_098_411));
        assert!((last.hit_rate - 0.373_624).abs() < 5e-7, "{}", last.hit_rate);

        let tair = Plan { order: Order::PrefixOlder, ..plan(&CAPACITIES) };
        let outcome = run_quietly(&requests, &tair);
        assert_eq!(block_hits(&outcome), [12_831, 31_840, 60_921, 93_967, 102_290, 104_924, 105_710]);

        let engine = Plan { rule: Rule::Engine, ..plan(&[usize::MAX]) };
        let last = run_quietly(&requests, &engine).rows.remove(0);
        assert_eq!((last.block_hits, last.token_hits), (105_592, 54_063_104));
    }

    #[test]
    fn what_is_reachable_of_the_conversation_trace_is_the_engines_rule() {
        let requests = conversation();
        let capacities = [8_192, 16_384, 32_768, 65_536, 131_072, usize::MAX];
        let engine = Plan { rule: Rule::Engine, ..plan(&capacities) };
        let outcome = run_quietly(&requests, &engine);
        let rates: Vec<_> = outcome.rows.iter().map(|row| format!("{:.4}", row.hit_rate)).collect();
        assert_eq!(rates, ["0.1923", "0.2763", "0.3464", "0.3670", "0.3729", "0.3734"]);
        for row in outcome.rows.iter().take(2) {
            let reachable = reachable::hit_rate(&requests, 512, row.capacity_blocks.0);
            assert!((row.hit_rate - reachable).abs() < 1e-12);
        }
    }

    #[test]
    fn one_pass_and_block_by_block_agree() {
        let mut requests = conversation();
        requests.truncate(1_500);
        let accesses = Accesses::new(&requests, 512, Rule::Engine);
        for (eviction, order) in [
            (Eviction::Lru, Order::SuffixOlder),
            (Eviction::Lru, Order::PrefixOlder),
            (Eviction::Ttl, Order::SuffixOlder),
        ] {
            for placement in [Placement::Pooled, Placement::RoundRobin, Placement::Sticky] {
                let plan = Plan { order, ttl_ms: 60_000, ..plan(&[]) };
                let line = Line { workers: 3, placement, eviction };
                for capacity in [700, 3_000, usize::MAX].map(Capacity) {
                    let one = one_pass(&accesses, &plan, &line, &[capacity])[0];
                    assert_eq!(one, simulated(&accesses, &plan, &line, capacity), "{eviction} {placement} {capacity}");
                }
            }
        }
        // Where suffixes are older, the least recently used block is always a leaf.
        let line = |eviction| Line { workers: 1, placement: Placement::Pooled, eviction };
        let (lru, leaves) = (line(Eviction::Lru), line(Eviction::LeafAwareLru));
        let plan = plan(&[]);
        for capacity in [500, 5_000].map(Capacity) {
            let leaves = simulated(&accesses, &plan, &leaves, capacity);
            assert_eq!(one_pass(&accesses, &plan, &lru, &[capacity])[0], leaves);
        }
    }

    #[test]
    fn every_eviction_and_placement_has_its_row_and_none_beats_no_bound() {
        let mut requests = conversation();
        requests.truncate(800);
        let plan = Plan {
            evictions: store::EVICTIONS.map(|(eviction, _)| eviction).to_vec(),
            workers: vec![1, 4],
            placements: placement::PLACEMENTS.map(|(placement, _)| placement).to_vec(),
            ttl_ms: u64::MAX,
            ..plan(&[1_000, 4_000, usize::MAX])
        };
        let outcome = run_quietly(&requests, &plan);
        assert_eq!(outcome.rows.len(), 5 * 2 * 4 * 3);
        let most = outcome.rows.iter().map(|row| row.block_hits).max().unwrap();
        for rows in outcome.rows.chunks(3) {
            assert!(rows[2].policy != "pooled" || rows[2].block_hits == most, "{:?}", rows[2]);
            assert!(rows[0].eviction != "lru" || rows.is_sorted_by_key(|row| row.block_hits), "{rows:?}");
        }
        let again = run_quietly(&requests, &plan);
        assert_eq!(outcome.rows, again.rows, "equal seeds give equal rows, on however many cores");
    }

    #[test]
    fn a_sweep_is_the_one_that_is_known_and_a_small_trace_keeps_its_points() {
        let points = Capacities::Sweep.resolved(182_790);
        let points: Vec<_> = points.iter().map(|capacity| capacity.0).collect();
        assert_eq!(points.len(), 23);
        assert_eq!(points[..3], [2_004, 2_461, 3_021]);
        assert_eq!(points[20..], [121_277, 148_890, 182_790]);
        assert_eq!(Capacities::Sweep.resolved(100).last(), Some(&Capacity(100)));
        assert_eq!(Capacities::Sweep.resolved(0), []);
    }

    #[test]
    fn a_capacity_reads_and_shows_as_a_number_or_inf() {
        assert_eq!("inf".parse(), Ok(Capacity::INFINITE));
        assert_eq!(serde_json::to_string(&[Capacity(5), Capacity::INFINITE]).unwrap(), "[5,\"inf\"]");
        assert!("-1".parse::<Capacity>().unwrap_err().contains("got `-1`"));
    }

    #[test]
    fn an_empty_trace_has_rows_of_zeros() {
        let outcome = run_quietly(&[], &plan(&[10]));
        assert_eq!((outcome.rows.len(), outcome.rows[0].blocks, outcome.over_time.len()), (1, 0, 0));
        assert!(outcome.rows[0].hit_rate.abs() < 1e-12);
    }
}
