//! The scheduler as its callers see it: who is chosen, what is promised, what is reserved.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a small world may panic, and needs some origin of time"
)]

#[path = "placing/full.rs"]
mod full;
#[path = "histories/last_sent.rs"]
mod last_sent;
#[path = "placing/listing.rs"]
mod listing;
#[path = "placing/sizes.rs"]
mod sizes;
#[path = "placing/trust.rs"]
mod trust;
#[path = "placing/unread.rs"]
mod unread;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use last_sent::LastSent;
use warmpath_core::admission::OnAllBusy;
use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root};
use warmpath_core::cost::NoChoice;
use warmpath_core::history::{Asked, History, Known, Measured};
use warmpath_core::ids::{Rank, RequestKey, SequenceHash, Slot, WorkerId};
use warmpath_core::ledger::{InFlight, Reservation};
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::policy::{Policy, PolicyName, Weights};
use warmpath_core::scheduler::{DecidedBy, PlaceError, Placement, Scheduler, Scratch};
use warmpath_core::shape::{Prompt, Request, Shape};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::{BlockSize, Blocks, Tier, Tokens, Units};
use warmpath_core::workers::{Limits, Pool, Role, Target, WorkerTable};

/// An index in which each worker holds so many leading blocks of every prompt.
struct Holds(Vec<u32>);

impl PrefixIndex for Holds {
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        let held = |slot: usize| self.0[slot].min(u32::try_from(prompt.len()).unwrap());
        for block in 0..u32::try_from(prompt.len()).unwrap() {
            let holders = (0..self.0.len()).filter(|slot| held(*slot) > block);
            let holders: SlotSet = holders.map(|slot| Slot(u16::try_from(slot).unwrap())).collect();
            overlaps.push(Blocks(1), Tier::Device, &holders);
        }
    }
}

struct World {
    scheduler: Scheduler,
    workers: WorkerTable,
    scratch: Scratch,
    index: Holds,
    avoid: SlotSet,
    asked: u64,
}

impl World {
    fn new(policy: PolicyName, workers: u16, limits: Limits) -> Self {
        let weights = Weights::default();
        let targets = (0..workers).map(|slot| Target {
            slot: Slot(slot),
            worker: WorkerId::from(format!("w{slot}").as_str()),
            rank: Rank(0),
            role: Role::Both,
            limits,
            available: true,
            ramp: None,
            account: Arc::default(),
            trust: Arc::default(),
        });
        let pool = Pool {
            model: "m".into(),
            aliases: vec!["alias".into()],
            block_size: BlockSize::new(4).unwrap(),
            targets: (0..workers).map(Slot).collect(),
        };
        Self {
            scheduler: Scheduler::new(
                Policy::new(policy, &weights),
                Policy::new(PolicyName::LeastRequests, &weights),
                OnAllBusy::Error,
            ),
            workers: WorkerTable::new(targets.collect(), vec![pool]),
            scratch: Scratch::new(7),
            index: Holds(vec![0; usize::from(workers)]),
            avoid: SlotSet::new(),
            asked: 0,
        }
    }

    fn place(&mut self, prompts: &[&[u32]]) -> Result<Placement, PlaceError> {
        let size = BlockSize::new(4).unwrap();
        let root = Root::new(&Namespace::plain("m", size), DEFAULT_ROOT_SEED);
        let prompts: Vec<_> = prompts.iter().map(|tokens| Prompt::of(root, tokens)).collect();
        let total: usize = prompts.iter().map(|prompt| prompt.ids().len()).sum();
        let mut shape = Shape::of(Tokens(u32::try_from(total).unwrap()), size);
        if prompts.is_empty() {
            shape.prompt = Tokens(10);
        }
        self.asked += 1;
        let request = Request { key: RequestKey(self.asked), shape, prompts: &prompts, texts: &[], avoid: &self.avoid };
        let pool = self.workers.pool("m").unwrap();
        self.scheduler.place(Instant::now(), &request, &self.index, (&self.workers, pool), &mut self.scratch)
    }

    fn places(&mut self, times: usize) -> (Vec<u16>, Vec<Reservation>) {
        let placements = (0..times).map(|_| self.place(&[&[1, 2, 3, 4, 5]]).unwrap());
        placements.map(|placement| (placement.target.slot.0, placement.reservation)).unzip()
    }
}

fn roomy() -> Limits {
    Limits { blocks: Some(Blocks(1000)), sequences: 16 }
}

#[test]
fn r002_round_robin_goes_round() {
    let mut world = World::new(PolicyName::RoundRobin, 3, roomy());
    assert_eq!(world.places(9).0, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

#[test]
fn r002_least_requests_takes_the_idle_one() {
    let mut world = World::new(PolicyName::LeastRequests, 3, roomy());
    let (slots, mut held) = world.places(4);
    assert_eq!(slots, [0, 1, 2, 0]);
    held.remove(1);
    assert_eq!(world.places(1).0, [1]);
}

#[test]
fn random_and_two_choices_reach_every_worker() {
    for policy in [PolicyName::Random, PolicyName::PowerOfTwo] {
        let mut seen = World::new(policy, 3, roomy()).places(16).0;
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [0, 1, 2], "{policy}");
    }
}

/// the worker that holds the prefix gets the request, 100 times of 100.
#[test]
fn r001_the_holder_wins() {
    let mut world = World::new(PolicyName::Kv, 2, roomy());
    world.index = Holds(vec![0, 1]);
    for _ in 0..100 {
        let placement = world.place(&[&[1, 2, 3, 4, 5, 6, 7, 8]]).unwrap();
        assert_eq!(placement.target.slot, Slot(1));
        assert_eq!((placement.overlap_tokens, placement.new_tokens), (Tokens(4), Tokens(4)));
        assert_eq!(placement.decided_by, DecidedBy::Policy);
    }
}

/// of a prompt of two whole blocks, both held, one is promised.
#[test]
fn the_promise_leaves_a_token_to_compute() {
    let mut world = World::new(PolicyName::Kv, 1, roomy());
    world.index = Holds(vec![2]);
    let placement = world.place(&[&[1, 2, 3, 4, 5, 6, 7, 8]]).unwrap();
    assert_eq!((placement.overlap_tokens, placement.new_tokens), (Tokens(4), Tokens(4)));
    assert_eq!(world.place(&[&[1, 2, 3, 4, 5, 6, 7, 8, 9]]).unwrap().overlap_tokens, Tokens(8));
}

#[test]
fn several_prompts_are_summed_each_under_its_own_cap() {
    let mut world = World::new(PolicyName::Kv, 1, roomy());
    world.index = Holds(vec![2]);
    let placement = world.place(&[&[1, 2, 3, 4, 5, 6, 7, 8], &[1, 2, 3, 4, 5]]).unwrap();
    assert_eq!((placement.overlap_tokens, placement.new_tokens), (Tokens(8), Tokens(5)));
    // Three distinct full blocks minus the shared first one, and one partly filled block.
    assert_eq!(placement.target.account.read().active_blocks, Blocks(3));
}

#[test]
fn a_prompt_without_tokens_goes_by_load() {
    let mut world = World::new(PolicyName::Kv, 2, roomy());
    let first = world.place(&[]).unwrap();
    assert_eq!((first.target.slot, first.decided_by, first.new_tokens), (Slot(0), DecidedBy::Load, Tokens(10)));
    assert_eq!(world.place(&[]).unwrap().target.slot, Slot(1));
}

/// Baselines look at no tokens: they do not need to be replaced where there are none.
#[test]
fn a_baseline_decides_without_tokens_too() {
    let mut world = World::new(PolicyName::RoundRobin, 3, roomy());
    let chosen: Vec<_> =
        (0..6).map(|_| world.place(&[]).unwrap()).map(|at| (at.target.slot.0, at.decided_by)).collect();
    assert_eq!(chosen, [0, 1, 2, 0, 1, 2].map(|slot| (slot, DecidedBy::Policy)));
}

///
#[test]
fn r014_no_choice_falls_back() {
    let mut world = World::new(PolicyName::Logit, 2, roomy());
    let placement = world.place(&[&[1, 2, 3, 4, 5]]).unwrap();
    assert_eq!(placement.decided_by, DecidedBy::Fallback(NoChoice::AllZero));
}

///
#[test]
fn r025_all_full_is_an_error_or_the_least_loaded() {
    let mut world = World::new(PolicyName::Kv, 2, Limits { blocks: None, sequences: 1 });
    let (_, _held) = world.places(2);
    assert_eq!(world.place(&[&[1]]).unwrap_err(), PlaceError::AllBusy);
    let weights = Weights::default();
    world.scheduler = Scheduler::new(
        Policy::new(PolicyName::Kv, &weights),
        Policy::new(PolicyName::RoundRobin, &weights),
        OnAllBusy::LeastLoaded,
    );
    assert_eq!(world.place(&[&[1]]).unwrap().decided_by, DecidedBy::LeastLoaded);
}

#[test]
fn a_worker_that_failed_the_request_is_not_asked_again() {
    let mut world = World::new(PolicyName::Kv, 2, roomy());
    world.index = Holds(vec![9, 0]);
    world.avoid.insert(Slot(0));
    assert_eq!(world.place(&[&[1, 2, 3, 4, 5]]).unwrap().target.slot, Slot(1));
    world.avoid.insert(Slot(1));
    assert_eq!(world.place(&[&[1, 2, 3, 4, 5]]).unwrap_err(), PlaceError::NoWorker);
}

#[test]
fn a_pool_is_found_by_alias_too() {
    let world = World::new(PolicyName::Kv, 1, roomy());
    assert_eq!(&*world.workers.pool("alias").unwrap().model, "m");
    assert!(world.workers.pool("other").is_none());
}

#[test]
fn equal_seeds_draw_equally() {
    let draw = || World::new(PolicyName::Random, 5, roomy()).places(20).0;
    assert_eq!(draw(), draw());
}

/// the index is asked once for each prompt, with its whole blocks only.
#[test]
fn r005_r007_the_index_is_asked_for_whole_blocks() {
    struct Asked(std::sync::Mutex<Vec<usize>>);
    impl PrefixIndex for Asked {
        fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
            self.0.lock().unwrap().push(prompt.len());
            overlaps.push(Blocks(2), Tier::Device, &[Slot(1)].into_iter().collect());
        }
    }
    let World { scheduler, workers, mut scratch, avoid, .. } = World::new(PolicyName::Kv, 2, roomy());
    let size = BlockSize::new(4).unwrap();
    let root = Root::new(&Namespace::plain("m", size), DEFAULT_ROOT_SEED);
    let tokens: Vec<u32> = (0..10).collect();
    let prompts = [Prompt::of(root, &tokens)];
    let request = Request {
        key: RequestKey(1),
        shape: Shape::of(Tokens(10), size),
        prompts: &prompts,
        texts: &[],
        avoid: &avoid,
    };
    let index = Asked(std::sync::Mutex::default());
    let pool = workers.pool("m").unwrap();
    let placement = scheduler.place(Instant::now(), &request, &index, (&workers, pool), &mut scratch).unwrap();
    assert_eq!(*index.0.lock().unwrap(), [2]);
    assert_eq!((placement.target.slot, placement.overlap.total()), (Slot(1), Blocks(2)));
}

/// Everything that a placement tells: the same whether the ids are told or only the blocks that they make.
#[test]
fn a_prompt_that_is_told_by_its_blocks_is_placed_as_by_its_ids() {
    let size = BlockSize::new(4).unwrap();
    let root = Root::new(&Namespace::plain("m", size), DEFAULT_ROOT_SEED);
    let tokens: Vec<u32> = (0..10).collect();
    let by_ids = Prompt::of(root, &tokens);
    let mut blocks = Vec::new();
    by_ids.hash_into(&mut blocks);
    let by_blocks = Prompt::hashed(root, &blocks, Tokens(10));
    let placed = [[by_ids, by_ids], [by_blocks, by_blocks]].map(|prompts| {
        let mut world = World::new(PolicyName::Kv, 2, roomy());
        world.index = Holds(vec![0, 1]);
        let World { scheduler, workers, scratch, index, avoid, .. } = &mut world;
        let shape = Shape::of(Tokens(20), size);
        let request = Request { key: RequestKey(1), shape, prompts: &prompts, texts: &[], avoid };
        let pool = workers.pool("m").unwrap();
        let placement = scheduler.place(Instant::now(), &request, index, (workers, pool), scratch).unwrap();
        let load = placement.target.account.read();
        let Placement { target, overlap, overlap_tokens, new_tokens, .. } = placement;
        (target.slot, overlap.total(), overlap_tokens, new_tokens, load.active_blocks, load.prefill_tokens)
    });
    assert_eq!(placed[0], placed[1]);
    assert_eq!((placed[0].0, placed[0].2, placed[0].3), (Slot(1), Tokens(8), Tokens(12)));
}

/// A history is asked before and told after each placement, in tokens or in characters; not asked, it is not told.
#[test]
fn r049_a_policy_with_a_history_follows_it_by_tokens_or_by_characters() {
    let mut world = World::new(PolicyName::ApproxTree, 2, roomy());
    let weights = Weights::default();
    world.scheduler = Scheduler::new(
        Policy::new(PolicyName::ApproxTree, &weights).with_history(Some(Arc::new(LastSent::<2>::new()))),
        Policy::new(PolicyName::LeastRequests, &weights),
        OnAllBusy::Error,
    );
    let size = BlockSize::new(4).unwrap();
    let root = Root::new(&Namespace::plain("m", size), DEFAULT_ROOT_SEED);
    let World { scheduler, workers, mut scratch, avoid, index, .. } = world;
    let mut place = |prompts: &[&[u32]], texts: &[&[u32]]| {
        let [prompts, texts] =
            [prompts, texts].map(|all| all.iter().map(|tokens| Prompt::of(root, tokens)).collect::<Vec<_>>());
        let shape = Shape::of(Tokens(8), size);
        let request = Request { key: RequestKey(1), shape, prompts: &prompts, texts: &texts, avoid: &avoid };
        let pool = workers.pool("m").unwrap();
        let placed = scheduler.place(Instant::now(), &request, &index, (&workers, pool), &mut scratch).unwrap();
        (placed.target.slot.0, placed.decided_by)
    };
    assert_eq!([(); 3].map(|()| place(&[&[1, 2, 3]], &[])), [(0, DecidedBy::Policy); 3]);
    assert_eq!([(); 3].map(|()| place(&[], &[&[4, 5], &[6]])), [(1, DecidedBy::Policy); 3]);
    // Token ids go before characters.
    assert_eq!(place(&[&[1, 2, 3]], &[&[4, 5, 6]]), (0, DecidedBy::Policy));
    assert_eq!(place(&[], &[]), (0, DecidedBy::Load));
    scheduler.forget(Slot(1));
    scheduler.forget(Slot(0));
    assert_eq!(place(&[], &[&[4, 5], &[6]]), (0, DecidedBy::Policy));
}

/// Where 100 requests with one new prefix of 64 blocks go that are placed before any event comes. Each has two blocks of
/// its own, the last one open, so that one worker with all of them has 264 blocks in flight.
fn burst(credit: Duration, limits: Limits) -> Vec<u16> {
    let mut world = World::new(PolicyName::Kv, 4, limits);
    world.scheduler = world.scheduler.with_in_flight_credit(credit);
    let mut held = Vec::new();
    for number in 0..100 {
        let mut tokens: Vec<u32> = (0..256).collect();
        tokens.extend([1_000 + number; 5]);
        held.push(world.place(&[&tokens]).unwrap());
    }
    let mut placed = vec![0; 4];
    held.iter().for_each(|placement| placed[placement.target.slot.index()] += 1);
    drop(held);
    for target in world.workers.iter() {
        assert_eq!(world.scheduler.overlay().credited(Instant::now(), target.slot), Blocks(0));
        let load = target.account.read();
        assert_eq!(load, InFlight { peak_blocks: load.peak_blocks, ..InFlight::default() });
    }
    placed
}

const CREDIT: Duration = Duration::from_secs(30);

#[test]
fn a_burst_of_one_new_prefix_goes_to_one_worker() {
    assert_eq!(burst(CREDIT, Limits { blocks: Some(Blocks(10_000)), sequences: 256 }), [100, 0, 0, 0]);
}

/// With n in flight at the first worker alone, of 500 blocks, it costs 0.7·(64 + 2n)/500 + 0.3·5/261 + 0.1·n/256 and
/// the second, but for the same average, 0.3: that is less from n = 65 on.
#[test]
fn a_burst_goes_to_the_next_worker_when_load_says_so() {
    assert_eq!(burst(CREDIT, Limits { blocks: Some(Blocks(500)), sequences: 256 }), [65, 35, 0, 0]);
    assert_eq!(burst(CREDIT, Limits { blocks: Some(Blocks(10_000)), sequences: 40 }), [40, 40, 20, 0]);
}

#[test]
fn without_credit_a_burst_scatters() {
    assert_eq!(burst(Duration::ZERO, Limits { blocks: Some(Blocks(10_000)), sequences: 256 }), [25, 25, 25, 25]);
}
