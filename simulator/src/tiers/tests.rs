//! What the tiers keep, tell, and how long they take, with pages of 64 tokens unless a test says otherwise.

use super::*;
use crate::cache::Profile;
use crate::engine_config::EngineConfig;
use crate::request::SimRequest;
use crate::scheduler::{Engine, Step};
use crate::timing::Timing;

mod order;

/// 4096 tokens of 128 KiB.
const PROMPT: u32 = 4096;

fn config(change: impl FnOnce(&mut EngineConfig, &mut Tiers)) -> EngineConfig {
    let mut tiers = Tiers { host_pages: 1000, ..Tiers::default() };
    let mut config = EngineConfig {
        profile: Profile::SglangRadix,
        block_size: BlockSize::new(64).unwrap(),
        blocks: 200,
        null_block: false,
        timing: Timing::Linear { computed: Ms(0.01), cached: Ms(0.0) },
        ..EngineConfig::default()
    };
    change(&mut config, &mut tiers);
    config.tiers = Some(tiers);
    config
}

fn engine(change: impl FnOnce(&mut EngineConfig, &mut Tiers)) -> Engine {
    Engine::new(config(change)).unwrap()
}

fn request(id: u64, first: u32, tokens: u32, output: usize) -> SimRequest {
    SimRequest { seed: id, ..SimRequest::new(RequestId(id), (first..first + tokens).collect::<Vec<_>>(), output) }
}

/// Runs until nothing is left to do. Returns when that is, and all steps.
fn run(engine: &mut Engine, mut now: Ms, shared: &mut SharedTier) -> (Ms, Vec<Step>) {
    let mut steps = Vec::new();
    while let Some(step) = engine.step_with(now, shared) {
        now += step.duration;
        steps.push(step);
    }
    (now, steps)
}

fn cached(steps: &[Step]) -> Vec<usize> {
    steps.iter().flat_map(|step| &step.tokens).filter_map(|out| Some(out.first?.cached_tokens)).collect()
}

fn told(steps: &[Step], tier: Tier) -> (usize, usize) {
    let (mut stored, mut removed) = (0, 0);
    for event in steps.iter().flat_map(|step| &step.events) {
        match event {
            BlockEvent::Stored { tier: of, hashes, .. } if *of == tier => stored += hashes.len(),
            BlockEvent::Removed { tier: of, .. } if *of == tier => removed += 1,
            _ => {}
        }
    }
    (stored, removed)
}

fn storage() -> SharedTier {
    SharedTier::new(10_000)
}

/// Storage that holds the 64 pages of the prompt, written by another engine long ago.
fn filled() -> SharedTier {
    let mut shared = storage();
    let mut writer = engine(|config, _| config.seed = 99);
    writer.submit_with(Ms::ZERO, request(1, 0, PROMPT + 64, 1), &mut shared).unwrap();
    run(&mut writer, Ms::ZERO, &mut shared);
    assert_eq!(shared.keys().count(), 65);
    shared
}

/// An engine that knows nothing, and that is asked at 1000 ms for a prompt of which storage has 4096 tokens.
fn asked(policy: &str, shared: &mut SharedTier) -> Engine {
    let mut engine = engine(|_, tiers| tiers.prefetch = policy.parse().unwrap());
    engine.submit_with(Ms(1000.0), request(1, 0, PROMPT + 1, 1), shared).unwrap();
    engine
}

#[test]
fn best_effort_uses_the_whole_pages_that_have_come_when_the_request_runs() {
    let mut shared = filled();
    let mut engine = asked("best_effort", &mut shared);
    let step = engine.step_with(Ms(1010.0), &mut shared).unwrap();
    assert_eq!(cached(std::slice::from_ref(&step)), [1472], "23 pages of 64, of 10 of 26.84 ms");
    assert_eq!(told(&[step], Tier::Host).0, 64, "the others are written down once computed");
    assert_eq!((engine.stats().totals.loaded, engine.stats().totals.prefix_hits), (1472, 1472));
}

#[test]
fn of_several_ranks_the_one_with_the_fewest_pages_counts() {
    for (ranks, slow_rank, tokens) in [(4, 1.0, 1472), (2, 2.0, 704)] {
        let mut shared = filled();
        let mut engine = engine(|_, tiers| (tiers.ranks, tiers.slow_rank) = (ranks, slow_rank));
        engine.submit_with(Ms(1000.0), request(1, 0, PROMPT + 1, 1), &mut shared).unwrap();
        let step = engine.step_with(Ms(1010.0), &mut shared).unwrap();
        assert_eq!(cached(&[step]), [tokens], "{ranks} ranks, the last {slow_rank} times as slow");
    }
}

#[test]
fn what_is_used_often_outlives_in_the_host_what_came_last_where_that_is_asked_for() {
    let found = |eviction| {
        let mut shared = SharedTier::new(0);
        let mut engine = engine(|config, tiers| {
            config.blocks = 10;
            (tiers.host_pages, tiers.eviction) = (20, eviction);
        });
        // Ten pages that are asked for thrice, then thirty that are asked for once.
        let (mut now, mut last) = (Ms::ZERO, Vec::new());
        for (id, first) in [(1, 0), (2, 0), (3, 0), (4, 1000), (5, 2000), (6, 3000), (7, 0)] {
            engine.submit_with(now, request(id, first, 640, 1), &mut shared).unwrap();
            let (end, steps) = run(&mut engine, now, &mut shared);
            (now, last) = (end + Ms(100.0), cached(&steps));
        }
        last
    };
    assert_eq!((found(Eviction::Lru), found(Eviction::Lfu)), (vec![0], vec![576]));
}

#[test]
fn wait_complete_runs_as_soon_as_all_has_come_and_not_before() {
    let mut shared = filled();
    let mut engine = asked("wait_complete", &mut shared);
    let (mut now, mut waited) = (Ms(1000.0), 0);
    let step = loop {
        let step = engine.step_with(now, &mut shared).unwrap();
        if !step.tokens.is_empty() {
            break step;
        }
        assert_eq!((step.events.len(), engine.stats().levels.running), (0, 0));
        now += step.duration;
        waited += 1;
    };
    assert_eq!(((now.0 * 1e4).round() / 1e4, waited), (1026.8435, 27));
    assert_eq!(cached(&[step]), [4096]);
}

#[test]
fn a_timeout_ends_the_wait_and_uses_what_has_come() {
    // 10 ms and 0.5 ms for each 1024 tokens are 12 ms, in which 28.6 of 64 pages come.
    for (policy, at, pages) in [("timeout:0.010,0.0005", 1012.0, 28), ("timeout:1,0.25", 1026.8435, 64)] {
        let mut shared = filled();
        let mut engine = asked(policy, &mut shared);
        let (end, steps) = run(&mut engine, Ms(1000.0), &mut shared);
        let last = steps.last().unwrap();
        assert_eq!(((end - last.duration).0 * 1e4).round() / 1e4, at, "{policy}");
        assert_eq!(cached(&steps), [pages * 64], "{policy}");
    }
}

#[test]
fn too_little_in_storage_is_not_worth_a_prefetch() {
    let mut shared = filled();
    for (tokens, cached_tokens) in [(256, 0), (257, 256)] {
        let mut engine = engine(|_, tiers| tiers.prefetch = PrefetchPolicy::WaitComplete);
        engine.submit_with(Ms(1000.0), request(1, 0, tokens, 1), &mut shared).unwrap();
        let (_, steps) = run(&mut engine, Ms(1000.0), &mut shared);
        assert_eq!(cached(&steps), [cached_tokens], "192 and 256 reusable tokens");
    }
}

#[test]
fn a_request_that_leaves_fetches_no_more() {
    let mut shared = filled();
    let mut engine = asked("wait_complete", &mut shared);
    assert!(engine.abort(RequestId(1)));
    engine.submit_with(Ms(1000.0), request(2, 0, PROMPT + 1, 1), &mut shared).unwrap();
    let (end, steps) = run(&mut engine, Ms(1000.0), &mut shared);
    let start = end - steps.last().unwrap().duration;
    assert_eq!((start.0 * 1e4).round() / 1e4, 1026.8435, "it has the link for itself");
}

/// Prompts of 640 tokens, 10 pages, through a GPU of 15 pages: the second evicts the first.
fn first_then_second(write: WritePolicy, shared: &mut SharedTier) -> (Engine, Vec<Vec<Step>>, Ms) {
    let mut engine = engine(|config, tiers| {
        config.blocks = 15;
        tiers.write = write;
    });
    let (mut now, mut all) = (Ms::ZERO, Vec::new());
    for (id, first) in [(1, 0), (2, 100_000)] {
        engine.submit_with(now, request(id, first, 640, 1), shared).unwrap();
        let (end, steps) = run(&mut engine, now, shared);
        now = end + Ms(100.0);
        all.push(steps);
    }
    (engine, all, now)
}

#[test]
fn write_through_copies_at_once_selective_after_a_second_use_and_write_back_at_eviction() {
    let selective = WritePolicy::Selective { uses: 2 };
    // Pages told of in the host while the first prompt runs, while the second does, and then found by the first again.
    let cases = [(WritePolicy::WriteThrough, 10, 10, 576), (WritePolicy::WriteBack, 0, 10, 576), (selective, 0, 0, 0)];
    for (policy, first, second, found) in cases {
        let mut shared = storage();
        let (mut engine, steps, now) = first_then_second(policy, &mut shared);
        assert_eq!((told(&steps[0], Tier::Host).0, told(&steps[1], Tier::Host).0), (first, second), "{policy}");
        assert_eq!(told(&steps[1], Tier::Device), (10, 10), "{policy}");
        assert_eq!(shared.keys().count(), first + second, "{policy}: what is in the host is written on");
        engine.submit_with(now, request(3, 0, 640, 1), &mut shared).unwrap();
        assert_eq!(cached(&run(&mut engine, now, &mut shared).1), [found], "{policy}");
    }
}

#[test]
fn selective_writing_goes_by_uses() {
    let mut shared = storage();
    let mut engine = engine(|_, tiers| tiers.write = WritePolicy::Selective { uses: 3 });
    let mut told_in_host = Vec::new();
    for id in 0..4 {
        engine
            .submit_with(Ms(f64::from(u32::try_from(id).unwrap()) * 100.0), request(id, 0, 641, 1), &mut shared)
            .unwrap();
        let steps = run(&mut engine, Ms(100.0), &mut shared).1;
        told_in_host.push(told(&steps, Tier::Host).0);
    }
    assert_eq!(told_in_host, [0, 0, 10, 0]);
}

#[test]
fn events_tell_of_backup_eviction_load_back_and_the_hosts_own_eviction() {
    let mut engine = engine(|config, tiers| {
        config.blocks = 15;
        tiers.host_pages = 14;
    });
    let mut seen = Vec::new();
    for (id, first) in [(1, 0), (2, 100_000), (3, 100_000)] {
        engine.submit(Ms(f64::from(u32::try_from(id).unwrap()) * 100.0), request(id, first, 640, 1)).unwrap();
        let step = engine.step(Ms(f64::from(u32::try_from(id).unwrap()) * 100.0)).unwrap();
        let step = [step];
        seen.push((told(&step, Tier::Device), told(&step, Tier::Host)));
    }
    assert_eq!(seen[0], ((10, 0), (10, 0)), "stored, and backed up while the copy on the GPU stays");
    assert_eq!(seen[1], ((10, 10), (10, 6)), "evicted from the GPU, and six pages from the host");
    assert_eq!(seen[2], ((0, 0), (0, 0)), "nothing is new");
    engine.submit(Ms(900.0), request(4, 0, 640, 1)).unwrap();
    let step = engine.step(Ms(900.0)).unwrap();
    let told_now = told(std::slice::from_ref(&step), Tier::Device);
    assert_eq!((told_now, cached(&[step])), ((10, 10), vec![256]), "four pages are loaded back and told of again");
}

#[test]
fn writing_down_takes_nothing_from_the_first_token() {
    let mut durations = Vec::new();
    for tiers in [None, Some(Tiers::default())] {
        let mut engine = Engine::new(EngineConfig { tiers, ..config(|_, _| ()) }).unwrap();
        engine.submit(Ms::ZERO, request(1, 0, 640, 5)).unwrap();
        let mut shared = storage();
        durations.push(run(&mut engine, Ms::ZERO, &mut shared).1.iter().map(|step| step.duration).collect::<Vec<_>>());
    }
    assert_eq!(durations[0], durations[1]);
}

#[test]
fn what_is_loaded_makes_the_step_longer_as_far_as_computing_does_not_hide_it() {
    let mut shared = storage();
    let (mut engine, _, now) = first_then_second(WritePolicy::WriteThrough, &mut shared);
    engine.submit_with(now, request(3, 0, 640, 1), &mut shared).unwrap();
    let step = engine.step_with(now, &mut shared).unwrap();
    let plan = engine.config().tiers.unwrap();
    let (compute, load) = (Ms(0.64), plan.bus.time(576.0 * 131_072.0));
    assert_eq!(step.duration, plan.overlapped(compute, load));
    assert!(step.duration > load && step.duration < load + compute);
}

#[test]
fn a_page_on_its_way_to_the_host_cannot_be_read_yet() {
    let mut engine = engine(|config, tiers| {
        config.blocks = 10;
        tiers.bus = LinkSpec::of(1e6);
    });
    engine.submit(Ms::ZERO, request(1, 0, 640, 1)).unwrap();
    engine.step(Ms::ZERO).unwrap();
    engine.submit(Ms(10.0), request(2, 100_000, 640, 1)).unwrap();
    engine.step(Ms(10.0)).unwrap();
    assert_eq!(engine.cached_in_host().count(), 20);
    // A page of 8 MiB takes 8389 ms over 1 MB/s.
    engine.submit(Ms(9000.0), request(3, 0, 640, 1)).unwrap();
    assert_eq!(cached(&[engine.step(Ms(9000.0)).unwrap()]), [64]);
}

#[test]
fn generated_pages_are_written_only_where_that_is_asked_for() {
    assert!(!Tiers::default().write_output);
    for (write_output, pages) in [(false, 2), (true, 4)] {
        let mut shared = storage();
        let mut decoding = engine(|config, tiers| {
            config.seed = 1;
            tiers.write_output = write_output;
        });
        decoding.submit_with(Ms::ZERO, request(1, 0, 128, 129), &mut shared).unwrap();
        let (now, steps) = run(&mut decoding, Ms::ZERO, &mut shared);
        assert_eq!(shared.keys().count(), pages, "what a prefill engine finds for the next turn");
        // The next turn goes to another engine.
        let mut prompt: Vec<u32> = (0..128).collect();
        prompt.extend(steps.iter().flat_map(|step| &step.tokens).map(|out| out.token));
        let mut prefilling = engine(|config, tiers| {
            config.seed = 2;
            tiers.prefetch = PrefetchPolicy::WaitComplete;
            tiers.prefetch_min = 64;
        });
        let now = now + Ms(1000.0);
        prefilling.submit_with(now, SimRequest::new(RequestId(2), prompt, 1), &mut shared).unwrap();
        assert_eq!(cached(&run(&mut prefilling, now, &mut shared).1), [pages * 64]);
    }
}

#[test]
fn a_page_is_announced_to_the_fleet_once_however_many_engines_write_it() {
    let mut shared = storage();
    for seed in 0..3 {
        let mut engine = engine(|config, _| config.seed = seed);
        let late = Ms(1e6 * f64::from(u32::try_from(seed).unwrap()));
        engine.submit(late, request(1, 0, 640, 1)).unwrap();
        let (_, steps) = run(&mut engine, late, &mut shared);
        assert_eq!(told(&steps, Tier::External), (0, 0), "never by an engine");
        assert_eq!(told(&steps, Tier::Host).0, 10);
    }
    assert_eq!(shared.take_events().len(), 10);
}

#[test]
fn an_engine_can_have_shared_storage_for_itself() {
    let mut engine = engine(|config, tiers| {
        config.blocks = 15;
        tiers.host_pages = 10;
        tiers.own_shared_pages = 100;
        tiers.prefetch = PrefetchPolicy::WaitComplete;
    });
    let mut now = Ms::ZERO;
    let mut found = Vec::new();
    for (id, first) in [(1, 0), (2, 100_000), (3, 0)] {
        engine.submit(now, request(id, first, 640, 1)).unwrap();
        let mut steps = Vec::new();
        while let Some(step) = engine.step(now) {
            now += step.duration;
            steps.push(step);
        }
        now += Ms(100.0);
        found.extend(cached(&steps));
    }
    assert_eq!(found, [0, 0, 576]);
}

#[test]
fn vllms_pool_has_tiers_below_it_as_well() {
    let mut shared = storage();
    let mut engine = engine(|config, _| {
        config.profile = Profile::Vllm;
        config.blocks = 15;
    });
    let mut found = Vec::new();
    for (id, first) in [(1, 0), (2, 100_000), (3, 0)] {
        let now = Ms(f64::from(u32::try_from(id).unwrap()) * 100.0);
        engine.submit_with(now, request(id, first, 640, 1), &mut shared).unwrap();
        found.extend(cached(&run(&mut engine, now, &mut shared).1));
    }
    assert_eq!(found, [0, 0, 576]);
}

#[test]
fn a_prompt_that_may_be_cached_to_its_last_token_asks_nothing_more_of_the_tiers() {
    let mut shared = storage();
    let mut engine = engine(|config, _| {
        config.profile = Profile::Vllm;
        config.reuse.last_token = false;
    });
    for id in 1..=2 {
        engine.submit_with(Ms::ZERO, request(id, 0, 640, 1), &mut shared).unwrap();
        let found = cached(&run(&mut engine, Ms::ZERO, &mut shared).1);
        assert_eq!(found, [if id == 1 { 0 } else { 639 }], "one token is computed all the same");
    }
}
