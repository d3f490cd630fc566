//! What holds for every policy: its terms make its cost, explaining it changes nothing, shadows do not act, sessions stay.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a small world may panic, and needs some origin of time"
)]

#[path = "policies/again.rs"]
mod again;
#[path = "policies/beginnings.rs"]
mod beginnings;
#[path = "policies/copies.rs"]
mod copies;
#[path = "policies/last.rs"]
mod last;
#[path = "histories/last_sent.rs"]
mod last_sent;
#[path = "policies/leavers.rs"]
mod leavers;
#[path = "policies/queues.rs"]
mod queues;
#[path = "policies/sessions.rs"]
mod sessions;
#[path = "policies/several.rs"]
mod several;
#[path = "policies/shadows.rs"]
mod shadows;
#[path = "policies/turns.rs"]
mod turns;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use warmpath_core::admission::OnAllBusy;
use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root};
use warmpath_core::cost::terms::combined;
use warmpath_core::cost::{Candidate, Cost, NoChoice, Standing, Term};
use warmpath_core::history::Known;
use warmpath_core::ids::{Rank, RequestKey, Roll, SequenceHash, Slot, WorkerId};
use warmpath_core::namespace::Namespace;
use warmpath_core::observe::{Enrolled, Event, Observation};
use warmpath_core::overlap::{Overlaps, PrefixIndex, TierBlocks};
use warmpath_core::policy::{Policy, PolicyName, Weights};
use warmpath_core::scheduler::{DecidedBy, Explanation, PlaceError, Placement, Scheduler, Scratch};
use warmpath_core::shape::{AffinityKey, Opening, Prompt, Request, Shape};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::{BlockSize, Blocks, Tier, Tokens, Units};
use warmpath_core::workers::{Limits, Pool, Role, Target, WorkerTable};

const WORKERS: u16 = 4;

fn size() -> BlockSize {
    BlockSize::new(4).unwrap()
}

/// Each worker holds so many leading blocks of every prompt, in this tier.
struct Holds(Vec<(u32, Tier)>);

impl PrefixIndex for Holds {
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        for tier in Tier::ALL {
            let of_tier = |slot: &usize| self.0[*slot].1 == tier;
            for block in 0..u32::try_from(prompt.len()).unwrap() {
                let holders = (0..self.0.len()).filter(of_tier).filter(|slot| self.0[*slot].0 > block);
                let holders: SlotSet = holders.map(|slot| Slot(u16::try_from(slot).unwrap())).collect();
                if !holders.is_empty() {
                    overlaps.push(Blocks(1), tier, &holders);
                }
            }
        }
    }
}

struct World {
    scheduler: Scheduler,
    workers: WorkerTable,
    index: Holds,
    scratch: Scratch,
    start: Instant,
    /// That of the next request.
    key: RequestKey,
}

impl World {
    fn new(policy: PolicyName) -> Self {
        Self::of(Self::scheduler(policy))
    }

    fn scheduler(policy: PolicyName) -> Scheduler {
        let at_work = |name| Policy::new(name, &Weights::default());
        Scheduler::new(at_work(policy), at_work(PolicyName::LeastRequests), OnAllBusy::Error)
            .with_in_flight_credit(Duration::from_secs(30))
    }

    fn of(scheduler: Scheduler) -> Self {
        Self::with_workers(scheduler, WORKERS)
    }

    fn with_workers(scheduler: Scheduler, workers: u16) -> Self {
        let targets = (0..workers).map(|slot| Target {
            slot: Slot(slot),
            worker: WorkerId::from(format!("w{slot}").as_str()),
            rank: Rank(0),
            role: Role::Both,
            limits: Limits { blocks: Some(Blocks(1000)), sequences: 64 },
            available: true,
            ramp: None,
            account: Arc::default(),
            trust: Arc::default(),
        });
        let slots = (0..workers).map(Slot).collect();
        let pool = Pool { model: "m".into(), aliases: Vec::new(), block_size: size(), targets: slots };
        Self {
            scheduler,
            workers: WorkerTable::new(targets.collect(), vec![pool]),
            index: Holds(vec![(0, Tier::Device); usize::from(workers)]),
            scratch: Scratch::new(7),
            start: Instant::now(),
            key: RequestKey(1),
        }
    }

    fn with<T>(
        &mut self,
        tokens: &[u32],
        session: Option<u64>,
        act: impl FnOnce(&Scheduler, Instant, &Request<'_>, &Holds, (&WorkerTable, &Pool), &mut Scratch) -> T,
    ) -> T {
        let shape = Shape::of(Tokens(u32::try_from(tokens.len()).unwrap()), size());
        self.with_all(&[tokens], Shape { affinity: session.map(AffinityKey), ..shape }, act)
    }

    fn with_all<T>(
        &mut self,
        prompts: &[&[u32]],
        shape: Shape,
        act: impl FnOnce(&Scheduler, Instant, &Request<'_>, &Holds, (&WorkerTable, &Pool), &mut Scratch) -> T,
    ) -> T {
        let root = Root::new(&Namespace::plain("m", size()), DEFAULT_ROOT_SEED);
        let prompts: Vec<_> = prompts.iter().map(|tokens| Prompt::of(root, tokens)).collect();
        let avoid = SlotSet::new();
        let request = Request { key: self.key, shape, prompts: &prompts, texts: &[], avoid: &avoid };
        let pool = self.workers.pool("m").unwrap();
        act(&self.scheduler, self.start, &request, &self.index, (&self.workers, pool), &mut self.scratch)
    }

    fn try_place(&mut self, tokens: &[u32], session: Option<u64>) -> Result<Placement, PlaceError> {
        self.with(tokens, session, |scheduler, now, request, index, fleet, scratch| {
            scheduler.place(now, request, index, fleet, scratch)
        })
    }

    fn place(&mut self, tokens: &[u32], session: Option<u64>) -> Placement {
        self.try_place(tokens, session).unwrap()
    }

    /// Gives a worker so many slots, and blocks without end.
    fn limit(&mut self, slot: Slot, sequences: u32) {
        let pools = self.workers.pools().to_vec();
        let targets = self.workers.iter().cloned().map(|target| {
            let limits = Limits { blocks: Some(Blocks(1_000_000)), sequences };
            if target.slot == slot { Target { limits, ..target } } else { target }
        });
        self.workers = WorkerTable::new(targets.collect(), pools);
    }

    fn tell(&self, slot: Slot, event: Event) {
        self.scheduler.observe(&Observation { at: self.start, request: RequestKey(1), slot, event });
    }

    fn explain(&mut self, tokens: &[u32], session: Option<u64>) -> Explanation {
        self.with(tokens, session, |scheduler, now, request, index, fleet, scratch| {
            scheduler.explain(now, request, index, fleet, scratch).unwrap()
        })
    }
}

fn prompt(number: u32, blocks: u32) -> Vec<u32> {
    (0..blocks * 4).map(|token| token ^ (number << 16)).collect()
}

prop_compose! {
    fn candidates()(
        loads in prop::collection::vec((0..1000_u32, 0..64_u32, 0..20_000_u32, 0..64_u32, 0..3_u8), 1..12),
        prompt in 1..2_000_u32,
    ) -> (u32, Vec<Candidate>) {
        let fleet = loads.into_iter().zip(0..).map(|((blocks, requests, prefill, overlap, standing), slot)| {
            let cached = (overlap * 16).min(prompt);
            Candidate {
                slot: Slot(slot),
                standing: [Standing::Open, Standing::Full, Standing::Out][usize::from(standing)],
                total_is_learned: false,
                overlap: TierBlocks::device(Blocks(overlap)),
                cached_tokens: Tokens(cached),
                cached_on_device: Tokens(cached / 2),
                cached_below: Tokens(0),
                new_tokens: Tokens(prompt - cached),
                active_blocks: Blocks(blocks),
                added_blocks: Blocks(prompt.div_ceil(16) - overlap.min(prompt.div_ceil(16))),
                total_blocks: Blocks(1000),
                active_slots: requests,
                total_slots: 64,
                given_slots: 64,
                requests,
                waiting: requests / 3,
                prefill_tokens: Tokens(prefill),
                known: Known { matched: Units(cached), asked: Units(prompt), size: Units(prefill) },
            }
        });
        (prompt, fleet.collect())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the fleet, the terms of each candidate are its cost, and there are as many costs as candidates.
    #[test]
    fn the_terms_of_every_policy_make_its_cost((prompt, fleet) in candidates(), key in any::<u64>()) {
        let now = Instant::now();
        let opening = Some(Opening(key));
        let shape = Shape { opening, ..Shape::of(Tokens(prompt), BlockSize::new(16).unwrap()) };
        let ids: Vec<_> = (0..fleet.len()).map(|slot| WorkerId::from(format!("w{slot}").as_str())).collect();
        for name in PolicyName::ALL {
            let policy = Policy::new(name, &Weights::default());
            if let Some(enrol) = &policy.enrol {
                let targets = ids.iter().zip(&fleet);
                let mut targets =
                    targets.map(|(worker, at)| Enrolled { slot: at.slot, worker, rank: Rank(0) });
                enrol.enrol(Roll(1), &mut targets);
            }
            if let Some(learn) = &policy.learn {
                for candidate in &fleet {
                    let (overlap, new_tokens) = (candidate.overlap, candidate.prefill_tokens);
                    let event = Event::Placed { shape, overlap, new_tokens };
                    learn.observe(&Observation { at: now, request: RequestKey(1), slot: candidate.slot, event });
                }
            }
            let mut costs = Vec::new();
            let scored = policy.cost.score(now, &shape, &fleet, &mut costs);
            prop_assert!(matches!(scored, Ok(()) | Err(NoChoice::AllZero)));
            prop_assert_eq!(costs.len(), fleet.len());
            let mut terms: Vec<Vec<Term>> = vec![Vec::new(); fleet.len()];
            policy.cost.explain(now, &shape, &fleet, &mut |at, term| terms[at].push(term));
            for ((cost, terms), candidate) in costs.iter().zip(&terms).zip(&fleet) {
                let made = combined(terms);
                prop_assert!((made - cost.0).abs() <= 1e-9 * cost.0.abs().max(1.0), "{}: {} is not {}", name, made, cost.0);
                prop_assert!(cost.0.is_finite() && policy.cost.prompt_worth(&shape, candidate) >= 0.0);
            }
        }
    }
}

/// Random policies included: what was explained is what happens next, and nothing was reserved meanwhile.
#[test]
fn what_is_explained_is_what_happens_next() {
    for name in PolicyName::ALL {
        let mut world = World::new(name);
        world.index.0[2] = (3, Tier::Device);
        let mut held = Vec::new();
        for number in 0..20 {
            let tokens = prompt(number % 5, 4);
            let load: Vec<_> = world.workers.iter().map(|target| target.account.read()).collect();
            let explained = world.explain(&tokens, None);
            assert_eq!(explained, world.explain(&tokens, None), "{name}");
            assert!(world.workers.iter().map(|target| target.account.read()).eq(load), "{name}");
            let placed = world.place(&tokens, None);
            assert_eq!((explained.chosen, explained.decided_by), (placed.target.slot, placed.decided_by), "{name}");
            let costs: Vec<_> = explained.considered.iter().filter_map(|considered| considered.cost).collect();
            assert_eq!(costs, world.scratch.costs(), "{name}");
            held.push(placed.reservation);
        }
    }
}

/// Explanations use a caller's buffers: what it keeps of its own decisions it keeps afterwards, too.
#[test]
fn an_explanation_leaves_what_its_caller_keeps() {
    for (keeps, scratch) in [(true, Scratch::new(7).aloud()), (false, Scratch::new(7))] {
        let mut world = World { scratch, ..World::new(PolicyName::Predicted) };
        assert!(world.explain(&prompt(1, 4), None).considered.iter().all(|considered| !considered.terms.is_empty()));
        let _held = world.place(&prompt(1, 4), None);
        assert_eq!(!world.scratch.terms().is_empty(), keeps);
    }
}

/// Who writes a decision down keeps the reasons of all where they are few, and else those of two, however many there were.
#[test]
fn what_is_kept_says_why_of_the_chosen_one_and_the_next_and_of_all_of_a_few() {
    for (name, workers, told) in [PolicyName::Predicted, PolicyName::Preble]
        .into_iter()
        .flat_map(|name| [(4, 4), (16, 16), (17, 2), (100, 2)].map(|(workers, told)| (name, workers, told)))
    {
        let world = World::with_workers(World::scheduler(name), workers);
        let mut world = World { scratch: Scratch::new(7).aloud(), ..world };
        world.index.0[2] = (3, Tier::Device);
        let placed = world.place(&prompt(1, 4), None);
        let places: BTreeSet<usize> = world.scratch.terms().iter().map(|(at, _)| *at).collect();
        assert_eq!(places.len(), told, "{name}: {places:?}");
        assert!(places.contains(&placed.target.slot.index()), "{name}");
        for at in places {
            let terms: Vec<_> = world.scratch.terms().iter().filter(|term| term.0 == at).map(|term| term.1).collect();
            assert!((combined(&terms) - world.scratch.costs()[at].0).abs() < 1e-9, "{name}: {terms:?}");
        }
    }
}

#[test]
fn an_explanation_names_what_decided() {
    let mut world = World::new(PolicyName::Kv);
    world.index.0[1] = (3, Tier::Device);
    let Explanation { decided_by, policy, chosen, considered } = world.explain(&prompt(1, 4), None);
    assert_eq!((decided_by, policy, chosen), (DecidedBy::Policy, PolicyName::Kv, Slot(1)));
    let terms: Vec<_> = considered[1].terms.iter().map(|term| (term.name, term.unit.label(), term.value)).collect();
    // 4 of 16 tokens are missing: 0.7 × 0.25.
    assert_eq!(terms, [("load", "share", 0.0), ("missing", "share", 0.7 * 0.25), ("slots", "share", 0.0)]);
    assert_eq!((considered[1].candidate.overlap.total(), considered[1].cost), (Blocks(3), Some(Cost(0.7 * 0.25))));
    let mut world = World::new(PolicyName::Logit);
    let explained = world.explain(&prompt(1, 4), None);
    assert_eq!(
        (explained.decided_by, explained.policy),
        (DecidedBy::Fallback(NoChoice::AllZero), PolicyName::LeastRequests)
    );
    assert_eq!(explained.considered[0].terms[0].name, "requests");
}

/// What `blocks` counts as added is what the account grows by, whatever is in flight.
#[test]
fn r181_blocks_added_are_what_the_account_grows_by() {
    let mut world = World::new(PolicyName::Blocks);
    let mut held = Vec::new();
    for (number, blocks) in [(1, 8), (1, 8), (1, 5), (2, 7), (1, 9), (2, 1), (3, 3)] {
        let mut tokens = prompt(number, blocks);
        tokens.push(99);
        let explained = world.explain(&tokens, None);
        let added: Vec<_> = explained.considered.iter().map(|at| at.candidate.added_blocks.0).collect();
        let before = world.workers.get(explained.chosen).unwrap().account.read().active_blocks.0;
        let placed = world.place(&tokens, None);
        assert_eq!(placed.target.account.read().active_blocks.0 - before, added[explained.chosen.index()]);
        held.push(placed.reservation);
    }
    // Two prompts that share all but their tails are in flight together somewhere.
    assert!(world.workers.iter().any(|target| target.account.read().active_blocks.0 >= 8));
}

/// for the policies that look at caches, blocks in a shared store are worth more than nothing and less than as many
/// on the device.
#[test]
fn r133_a_faster_tier_costs_less_under_every_policy_that_looks_at_caches() {
    for name in [PolicyName::Kv, PolicyName::Logit, PolicyName::Blocks, PolicyName::Product] {
        let mut world = World::new(name);
        world.index.0 = vec![(16, Tier::Device), (16, Tier::External), (0, Tier::Device), (16, Tier::Host)];
        let costs: Vec<f64> =
            world.explain(&prompt(1, 20), None).considered.iter().map(|at| at.cost.unwrap().0).collect();
        assert!(costs[0] < costs[3] && costs[3] < costs[1] && costs[1] < costs[2], "{name}: {costs:?}");
    }
}

/// A burst of one new prompt is computed once or twice, not everywhere, by whoever looks at what is in flight.
#[test]
fn prompts_in_flight_count_as_cached_under_every_policy_that_looks_at_caches() {
    let looking = [PolicyName::Kv, PolicyName::Logit, PolicyName::Product, PolicyName::Affinity, PolicyName::Aibrix];
    for name in looking.into_iter().chain([PolicyName::Preble, PolicyName::Blocks]) {
        let mut world = World::new(name);
        let first = world.place(&prompt(1, 40), None);
        let explained = world.explain(&prompt(1, 40), None);
        let own = &explained.considered[first.target.slot.index()].candidate;
        assert_eq!((own.cached_tokens, own.new_tokens), (Tokens(156), Tokens(4)), "{name}");
    }
}

#[test]
fn chwbl_sends_equal_beginnings_to_one_worker_and_is_not_moved_by_caches() {
    let mut world = World::new(PolicyName::Chwbl);
    let beginning = |own: u32| -> Vec<u32> { [1, 2, 3, 4, own, own, own, own].into() };
    let first = world.place(&beginning(7), None).target.slot;
    world.index.0[usize::from((first.0 + 1) % WORKERS)] = (2, Tier::Device);
    for own in 8..40 {
        assert_eq!(world.place(&beginning(own), None).target.slot, first);
    }
    let others: std::collections::HashSet<_> =
        (0..40).map(|number| world.place(&prompt(number, 2), None).target.slot).collect();
    assert_eq!(others.len(), usize::from(WORKERS));
    // A prompt that fills no block has a beginning, too.
    let short = world.place(&[5, 6], None).target.slot;
    assert!((0..5).all(|_| world.place(&[5, 6], None).target.slot == short));
}

#[test]
fn a_failed_placement_leaves_no_choice_of_shadows_behind() {
    let shadow = Policy::new(PolicyName::RoundRobin, &Weights::default());
    let mut world = World::of(World::scheduler(PolicyName::Kv).with_shadows(vec![shadow]));
    drop(world.place(&prompt(1, 4), None));
    assert_eq!(world.scratch.shadows().len(), 1);
    world.workers = WorkerTable::new(Vec::new(), world.workers.pools().to_vec());
    assert_eq!(world.try_place(&prompt(1, 4), None).unwrap_err(), PlaceError::NoWorker);
    assert!(world.scratch.shadows().is_empty());
}
