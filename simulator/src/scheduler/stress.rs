//! Random workloads under pressure on every profile and tier setting: what must hold after every step.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use warmpath_core::ids::EngineHash;
use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::event::Content;

use super::*;
use crate::cache::Profile;
use crate::stats::EngineStats;
use crate::tiers::{Eviction, LinkSpec, PrefetchPolicy, Tiers, WritePolicy};
use crate::timing::Timing;

/// What a listener to the events believes to be cached in each tier, with the number of copies.
#[derive(Default)]
struct Listener {
    believed: BTreeMap<(Tier, EngineHash), usize>,
    /// Whether stored blocks always hang below known ones; nano-vllm forgets a parent's name while the block is in use.
    parents_are_known: bool,
}

impl Listener {
    fn hear(&mut self, events: &[BlockEvent]) {
        for event in events {
            match event {
                BlockEvent::Stored { hashes, parent, tier, content, .. } => {
                    let Content::Tokens(tokens) = content else { panic!("tokens are told") };
                    assert_eq!(tokens.len(), hashes.len() * 4);
                    let known = |name| Tier::ALL.iter().any(|tier| self.believed.contains_key(&(*tier, name)));
                    assert!(!self.parents_are_known || parent.is_none_or(known), "a parent is known in some tier");
                    for hash in hashes {
                        *self.believed.entry((*tier, *hash)).or_default() += 1;
                    }
                }
                BlockEvent::Removed { hash, tier } => {
                    let copies = self.believed.get_mut(&(*tier, *hash)).expect("only what was stored is removed");
                    *copies -= 1;
                    if *copies == 0 {
                        self.believed.remove(&(*tier, *hash));
                    }
                }
                BlockEvent::Cleared => self.believed.retain(|(tier, _), _| *tier != Tier::Device),
            }
        }
    }

    fn check(&self, engine: &Engine, shared: &SharedTier) {
        let mut truth: BTreeMap<_, _> = engine.cached().map(|(hash, copies)| ((Tier::Device, hash), copies)).collect();
        truth.extend(engine.cached_in_host().map(|hash| ((Tier::Host, hash), 1)));
        truth.extend(shared.keys().map(|hash| ((Tier::External, hash), 1)));
        assert_eq!(self.believed, truth, "events tell of exactly what is cached");
        let owners: Vec<_> = engine.running.iter().map(|job| &job.sequence).collect();
        let kv_usage = engine.stats().levels.kv_usage;
        assert!((0.0..=1.0).contains(&kv_usage) && (kv_usage > 0.0) != owners.is_empty());
        match &engine.cache {
            Cache::Radix(tree) => crate::radix::tests::check(tree, &owners),
            Cache::Nano(pool) => {
                let owned: std::collections::BTreeSet<_> = owners.iter().flat_map(|owner| owner.table()).collect();
                assert!(pool.free_blocks().all(|id| pool.refs(id) == 0 && !owned.contains(&id)));
                assert_eq!(pool.free_blocks().count() + owned.len(), 20);
            }
            Cache::Blocks { pool, .. } => {
                let owned: std::collections::BTreeSet<_> = owners.iter().flat_map(|owner| owner.table()).collect();
                assert_eq!((pool.used(), pool.free_blocks().count()), (owned.len(), 20 - owned.len()));
            }
        }
    }
}

fn tiers(write: WritePolicy, prefetch: &str, write_output: bool) -> Tiers {
    Tiers {
        host_pages: 30,
        write,
        write_output,
        prefetch: prefetch.parse().unwrap(),
        prefetch_min: 8,
        kv_bytes: 1000.0,
        layers: 4,
        bus: LinkSpec { bytes_per_second: 1e7, latency: Ms(0.1) },
        network: LinkSpec { bytes_per_second: 1e6, latency: Ms(0.5) },
        ..Tiers::default()
    }
}

fn engine(profile: Profile, tiers: Option<Tiers>, seed: u64) -> Engine {
    let config = EngineConfig {
        profile,
        tiers,
        seed,
        block_size: BlockSize::new(4).unwrap(),
        blocks: 20,
        null_block: false,
        max_num_seqs: 6,
        max_num_batched_tokens: 16,
        timing: Timing::Linear { computed: Ms(1.0), cached: Ms(0.0) },
        ..EngineConfig::default()
    };
    Engine::new(config).unwrap()
}

/// 200 requests with shared prefixes, priorities, aborts and resets.
fn stress(profile: Profile, tiers: Option<Tiers>, seed: u64) -> (Vec<Step>, EngineStats, usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut engine, mut shared) = (engine(profile, tiers, seed), SharedTier::new(60));
    let mut heard = Listener { parents_are_known: profile != Profile::Nano, ..Listener::default() };
    let (mut steps, mut now, mut written) = (Vec::new(), Ms::ZERO, 0);
    for id in 0..200 {
        let family = rng.random_range(0..6) * 1000;
        let prompt: Vec<_> = (family..family + rng.random_range(1..=40)).collect();
        let request = SimRequest {
            seed: id,
            priority: rng.random_range(0..2),
            ..SimRequest::new(RequestId(id), prompt, rng.random_range(1..30))
        };
        engine.submit_with(now, request, &mut shared).unwrap();
        if rng.random_bool(0.1) {
            engine.abort(RequestId(rng.random_range(id.saturating_sub(3)..=id)));
        }
        if rng.random_bool(0.05) {
            assert_eq!(engine.clear().is_ok(), engine.running.is_empty());
        }
        let most = if id == 199 { usize::MAX } else { rng.random_range(0..25) };
        for _ in 0..most {
            let Some(step) = engine.step_with(now, &mut shared) else { break };
            now += step.duration;
            assert!(step.duration > Ms::ZERO);
            heard.hear(&step.events);
            let events = shared.take_events();
            written += events.len();
            heard.hear_shared(&events);
            heard.check(&engine, &shared);
            steps.push(step);
        }
    }
    (steps, engine.stats(), written)
}

impl Listener {
    /// Shared storage has names of its own, and keeps no prefix whole.
    fn hear_shared(&mut self, events: &[BlockEvent]) {
        let strict = std::mem::replace(&mut self.parents_are_known, false);
        self.hear(events);
        self.parents_are_known = strict;
    }
}

fn holds(profile: Profile, tiers: Option<Tiers>) -> EngineStats {
    let mut last = EngineStats::default();
    for seed in 0..2 {
        let (steps, stats, written) = stress(profile, tiers, seed);
        let EngineStats { levels, totals, .. } = stats;
        assert_eq!(totals.finished + totals.aborted, 200, "{profile:?} seed {seed}");
        assert_eq!(levels, Levels::default(), "{profile:?} seed {seed}");
        assert!(totals.preemptions > 5 && totals.prefix_hits > 0, "{profile:?} exerts no pressure: {stats:?}");
        assert_eq!(written > 0, tiers.is_some());
        let tokens: usize = steps.iter().map(|step| step.tokens.len()).sum();
        assert_eq!(tokens, totals.generation_tokens);
        assert_eq!((&steps, stats, written), (&stress(profile, tiers, seed).0, stats, written), "deterministic");
        last = stats;
    }
    last
}

#[test]
fn under_pressure_every_profile_keeps_its_invariants() {
    for profile in [Profile::Vllm, Profile::Nano, Profile::SglangRadix] {
        assert_eq!(holds(profile, None).totals.loaded, 0);
    }
}

#[test]
fn under_pressure_every_tier_setting_keeps_its_invariants() {
    let writes = [WritePolicy::WriteThrough, WritePolicy::Selective { uses: 2 }, WritePolicy::WriteBack];
    for profile in [Profile::Vllm, Profile::SglangRadix] {
        for (write, prefetch) in writes.into_iter().zip(["best_effort", "wait_complete", "timeout:0.002,0.001"]) {
            for write_output in [false, true] {
                let stats = holds(profile, Some(tiers(write, prefetch, write_output)));
                assert!(stats.totals.loaded > 0, "{profile:?} {write} {prefetch}: nothing was loaded");
            }
        }
    }
}

#[test]
fn every_prefetch_policy_goes_with_every_write_policy() {
    for write in ["write_through", "write_back"] {
        for prefetch in ["best_effort", "wait_complete", "timeout:0.002,0.001"] {
            let policy: PrefetchPolicy = prefetch.parse().unwrap();
            let tiers = Tiers { prefetch: policy, ..tiers(write.parse().unwrap(), prefetch, true) };
            holds(Profile::SglangRadix, Some(tiers));
        }
    }
}

#[test]
fn every_eviction_and_rank_keeps_the_invariants() {
    for eviction in [Eviction::Lfu, Eviction::RandomLru] {
        for profile in [Profile::Vllm, Profile::SglangRadix] {
            let base = tiers(WritePolicy::WriteThrough, "wait_complete", true);
            let stats = holds(profile, Some(Tiers { eviction, ranks: 4, slow_rank: 1.5, ..base }));
            assert!(stats.totals.loaded > 0, "{profile:?} {eviction}: nothing was loaded");
        }
    }
}
