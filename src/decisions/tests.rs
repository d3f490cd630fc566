use std::time::Instant;

use warmpath_core::admission::OnAllBusy;
use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root};
use warmpath_core::ids::{RequestKey, SequenceHash};
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::policy::{Policy, Weights};
use warmpath_core::scheduler::{Kept, Scheduler};
use warmpath_core::shape::{Objectives, Prompt, Request, Shape};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::{BlockSize, Blocks, Tier};
use warmpath_core::workers::{Limits, Role, Target};

use super::told::{CostsFrom, Told, ToldCandidate};
use super::*;

mod last_minutes;

/// Slot 1 holds two blocks of every prompt.
struct Held;

impl PrefixIndex for Held {
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        let mut workers = SlotSet::new();
        workers.insert(Slot(1));
        let blocks = u32::try_from(prompt.len().min(2)).unwrap();
        overlaps.push(Blocks(blocks), Tier::Device, &workers);
    }
}

struct World {
    scheduler: Scheduler,
    table: WorkerTable,
    decisions: Decisions,
    scratch: Scratch,
}

fn scheduler(policy: PolicyName) -> Scheduler {
    let named = |name| Policy::new(name, &Weights::default());
    Scheduler::new(named(policy), named(PolicyName::LeastRequests), OnAllBusy::LeastLoaded)
}

impl World {
    fn new(policy: PolicyName, workers: u16, decisions: Decisions) -> Self {
        let target = |slot| Target {
            slot: Slot(slot),
            worker: WorkerId::from(format!("w{slot}").as_str()),
            rank: Rank(0),
            role: Role::Both,
            limits: Limits { blocks: Some(Blocks(1000)), sequences: 64 },
            available: true,
            ramp: None,
            account: Arc::default(),
            trust: Arc::default(),
        };
        let pool = Pool {
            model: "m".into(),
            aliases: Vec::new(),
            block_size: BlockSize::new(4).unwrap(),
            targets: (0..workers).map(Slot).collect(),
        };
        let table = WorkerTable::new((0..workers).map(target).collect(), vec![pool]);
        Self { scheduler: scheduler(policy), table, decisions, scratch: Scratch::new(3).aloud() }
    }

    fn decide(&mut self, request: &str) -> Option<Arc<Decision>> {
        self.decide_on(request, &(0..16).collect::<Vec<u32>>())
    }

    fn decide_on(&mut self, request: &str, tokens: &[u32]) -> Option<Arc<Decision>> {
        let root = Root::new(&Namespace::plain("m", BlockSize::new(4).unwrap()), DEFAULT_ROOT_SEED);
        self.decide_for(request, Prompt::of(root, tokens))
    }

    fn decide_for(&mut self, request: &str, prompt: Prompt<'_>) -> Option<Arc<Decision>> {
        self.decide_between(request, Shape::of(prompt.len(), prompt.root.block_size()), &[prompt])
    }

    /// Of a request whose tokens are guessed.
    fn decide_unread(&mut self, request: &str) -> Option<Arc<Decision>> {
        self.decide_between(request, Shape::of(Tokens(1_000), BlockSize::new(4).unwrap()), &[])
    }

    fn decide_between(&mut self, request: &str, shape: Shape, prompts: &[Prompt<'_>]) -> Option<Arc<Decision>> {
        let avoid = SlotSet::new();
        let asked = Request { key: RequestKey(1), shape, prompts, texts: &[], avoid: &avoid };
        let fleet = (&self.table, self.table.pool("m").unwrap());
        let placement = self.scheduler.place(Instant::now(), &asked, &Held, fleet, &mut self.scratch).unwrap();
        self.decisions.record(&Made {
            request: request.as_bytes(),
            avoided: 0,
            placement: &placement,
            policy: self.scheduler.policy().name,
            fleet,
            scratch: &self.scratch,
        })
    }
}

fn all() -> Filter {
    Filter { limit: usize::MAX, ..Filter::default() }
}

fn numbers(found: &[Arc<Decision>]) -> Vec<u64> {
    found.iter().map(|decision| decision.number).collect()
}

#[test]
fn the_last_ones_are_kept_and_found_newest_first() {
    let mut world = World::new(PolicyName::Kv, 2, Decisions::new(100, 1 << 20));
    for number in 1..=250 {
        assert_eq!(world.decide(&format!("r-{number}")).unwrap().number, number);
    }
    let decisions = &world.decisions;
    assert_eq!((decisions.last(), decisions.find(&all()).len()), (250, 100));
    assert_eq!(numbers(&decisions.find(&Filter { limit: 3, ..all() })), [250, 249, 248]);
    assert!(decisions.find(&Filter { limit: 0, ..all() }).is_empty());
    assert_eq!(numbers(&decisions.find(&Filter { after: 247, ..all() })), [250, 249, 248]);
    let part = |part: &str| Filter { request: Some(part.to_owned()), ..all() };
    assert_eq!(numbers(&decisions.find(&part("-17"))), [179, 178, 177, 176, 175, 174, 173, 172, 171, 170]);
    let of = |worker: &str| Filter { worker: Some(worker.to_owned()), ..all() };
    assert_eq!((decisions.find(&of("w1")).len(), decisions.find(&of("w0")).len()), (100, 0));
    let other = Filter { model: Some("other".to_owned()), ..all() };
    assert!(decisions.find(&other).is_empty());
    assert_eq!(decisions.get("151").unwrap().number, 151);
    assert_eq!(decisions.get("r-250").unwrap().number, 250);
    assert!(decisions.get("150").is_none() && decisions.get("r-25").is_none() && decisions.get("").is_none());
    // A request whose client calls it by a number is not another one's that has this number.
    world.decide("200").unwrap();
    let decisions = &world.decisions;
    assert_eq!((decisions.get("200").unwrap().number, decisions.numbered(200).unwrap().number), (251, 200));
}

#[test]
fn memory_bounds_a_large_fleet_and_nothing_is_kept_where_nothing_may_be() {
    let each = size_of::<Candidate>() + size_of::<Cost>();
    let mut world = World::new(PolicyName::Kv, 10, Decisions::new(100, 35 * each));
    for _ in 0..9 {
        world.decide("r").unwrap();
    }
    assert_eq!(numbers(&world.decisions.find(&all())), [9, 8, 7]);
    // Terms that are kept count, too: ten of each of ten candidates, which are few.
    let terms = 100 * size_of::<(usize, Term)>();
    let mut world = World::new(PolicyName::Predicted, 10, Decisions::new(100, 3 * (10 * each + terms)));
    for _ in 0..9 {
        world.decide("r").unwrap();
    }
    assert_eq!(numbers(&world.decisions.find(&all())), [9, 8, 7]);
    assert!(World::new(PolicyName::Kv, 2, Decisions::new(0, 1 << 20)).decide("r").is_none());
    assert!(World::new(PolicyName::Kv, 2, Decisions::new(5, each)).decide("r").is_none());
    assert!(each <= 112, "the configuration's comment says about 100 bytes: {each}");
    let with_terms = each + 10 * size_of::<(usize, Term)>();
    assert!((450..=550).contains(&with_terms), "and 500 with terms: {with_terms}");
}

#[test]
fn what_somebody_still_reads_is_not_written_over() {
    let mut world = World::new(PolicyName::Kv, 2, Decisions::new(1, 1 << 20));
    let first = world.decide("first").unwrap();
    world.decide("second").unwrap();
    assert_eq!((first.number, &*first.request_id()), (1, "first"));
    first.course.first_token(Duration::from_millis(34));
    first.course.ended(Standing::Answered, Some(Tokens(8)));
    let told = first.row(&world.scheduler);
    assert_eq!(
        (told.outcome, told.ttft_ms, told.reported_cached_tokens),
        (Some(Standing::Answered), Some(34), Some(8))
    );
    let fresh = world.decisions.get("second").unwrap().row(&world.scheduler);
    assert_eq!((fresh.outcome, fresh.ttft_ms, fresh.reported_cached_tokens), (Some(Standing::UnderWay), None, None));
}

/// 16 tokens, 8 of them at w1: 0.7 × (1 − 0.5) less to be computed, and nothing else differs.
#[test]
fn a_decision_tells_every_term_and_why() {
    let mut world = World::new(PolicyName::Kv, 3, Decisions::new(10, 1 << 20));
    let decision = world.decide("r").unwrap();
    let told = decision.told(&world.scheduler);
    assert!(told.reproduced);
    assert_eq!((told.row.worker.as_str(), told.row.unit.as_deref(), told.row.cost), ("w1", Some("share"), Some(0.35)));
    assert_eq!(told.row.why, "0.35 share cheaper than w0: missing 0.35 instead of 0.7");
    assert_eq!((told.row.overlap_tokens, told.row.best_overlap_tokens, told.row.new_tokens), (8, 8, 8));
    let terms: Vec<_> = told.considered[0].terms.iter().map(|term| (term.name.as_str(), term.value)).collect();
    assert_eq!(terms, [("load", 0.0), ("missing", 0.7), ("slots", 0.0)]);
    let text = serde_json::to_string(&told).unwrap();
    assert_eq!(serde_json::from_str::<Told>(&text).unwrap(), told);
    // The scheduler of another policy knows nothing of these costs.
    let other = decision.told(&scheduler(PolicyName::Product));
    assert!(!other.reproduced && other.considered.iter().all(|candidate| candidate.terms.is_empty()));
    assert_eq!((other.row.worker.as_str(), other.row.cost), ("w1", Some(0.35)));
    assert_eq!(other.row.why, "0.35 cheaper than w0", "nor of their unit");
}

/// Of the chosen one and of the next, as they were then: the policy has learned since, from this very decision.
#[test]
fn what_a_policy_that_learns_went_by_is_kept() {
    let mut world = World::new(PolicyName::Predicted, 5, Decisions::new(10, 1 << 20));
    let decisions: Vec<_> = (0..6).map(|number| world.decide(&number.to_string()).unwrap()).collect();
    for decision in decisions {
        let told = decision.told(&world.scheduler);
        assert_eq!(told.row.unit.as_deref(), Some("ms"), "{}", told.row.why);
        let sum = |at: &ToldCandidate| at.terms.iter().map(|term| term.value).sum::<f64>();
        let explained: Vec<_> = told.considered.iter().filter(|at| !at.terms.is_empty()).collect();
        assert!(explained.len() >= 2 && explained.iter().any(|at| at.chosen), "{}", told.row.number);
        assert!(explained.iter().all(|at| at.cost.is_some_and(|cost| (sum(at) - cost).abs() < 1e-9)));
    }
}

#[test]
fn a_decision_that_was_told_is_made_again_from_its_json() {
    for name in PolicyName::ALL {
        let mut world = World::new(name, 5, Decisions::new(10, 1 << 20));
        for number in 0..20 {
            let told = world.decide(&number.to_string()).unwrap().told(&world.scheduler);
            let text = serde_json::to_string(&told).unwrap();
            let read: Told = serde_json::from_str(&text).unwrap();
            let again = read.under(&scheduler(name), Objectives::default()).unwrap();
            assert_eq!(world.scheduler.policy().learn.is_some(), name.learns(), "{name}");
            let from = match name {
                PolicyName::Predicted | PolicyName::RoundRobin => CostsFrom::Record,
                PolicyName::Preble => CostsFrom::Assumptions,
                _ => CostsFrom::Candidates,
            };
            assert_eq!(again.costs, from, "{name}");
            if from != CostsFrom::Assumptions {
                assert!(told.reproduced || name.learns(), "{name}");
                // What is made anew is exact; what is only read has been through decimals.
                let was = if from == CostsFrom::Record { &read } else { &told };
                let again = again.told;
                assert_eq!((&again.row.worker, &again.considered), (&was.row.worker, &was.considered), "{name}");
            }
            let elsewhere = read.under(&scheduler(PolicyName::LeastRequests), Objectives::default()).unwrap();
            assert_eq!((elsewhere.told.row.worker.as_str(), elsewhere.told.row.number), ("w0", told.row.number));
            assert_eq!(elsewhere.costs, CostsFrom::Candidates);
        }
    }
}

#[test]
fn what_begins_without_memory_in_the_place_of_another_is_said_to() {
    let mut world = World::new(PolicyName::Kv, 3, Decisions::new(10, 1 << 20));
    let told = world.decide("r").unwrap().told(&world.scheduler);
    for name in PolicyName::ALL {
        let goes_by_memory = name.learns() || name.goes_by_history();
        let from = match name {
            // How it begins and what it would add, nobody asked.
            PolicyName::Chwbl | PolicyName::Blocks | PolicyName::Predicted => CostsFrom::Unread,
            _ if goes_by_memory => CostsFrom::Assumptions,
            _ => CostsFrom::Candidates,
        };
        assert_eq!(told.under(&scheduler(name), Objectives::default()).unwrap().costs, from, "{name}");
    }
}

#[test]
fn what_was_recorded_is_no_answer_where_the_promises_or_the_sessions_worth_are_others() {
    let mut world = World::new(PolicyName::Predicted, 3, Decisions::new(10, 1 << 20));
    let mut told = world.decide("r").unwrap().told(&world.scheduler);
    let scheduler = scheduler(PolicyName::Predicted);
    let costs = |told: &Told, objectives| told.under(&scheduler, objectives).unwrap().costs;
    let promised = Objectives { ttft: Some(std::time::Duration::from_millis(5)), itl: None };
    assert_eq!(costs(&told, Objectives::default()), CostsFrom::Record);
    assert_eq!(costs(&told, promised), CostsFrom::Assumptions);
    told.question.kept = Some(Kept { at: 0, weight: 1.0 });
    assert_eq!(costs(&told, Objectives::default()), CostsFrom::Assumptions, "sessions count for nothing there");
}

#[test]
fn of_a_prompt_that_was_not_read_only_who_goes_without_it_can_tell() {
    let mut world = World::new(PolicyName::LeastRequests, 3, Decisions::new(10, 1 << 20));
    let size = BlockSize::new(4).unwrap();
    let root = Root::new(&Namespace::plain("m", size), DEFAULT_ROOT_SEED);
    let told = world.decide_for("r", Prompt::unread(root, Tokens(16))).unwrap().told(&world.scheduler);
    let read: Told = serde_json::from_str(&serde_json::to_string(&told).unwrap()).unwrap();
    assert!(read.question.unread && read.row.prompt_tokens == 16);
    for name in PolicyName::ALL.into_iter().filter(|name| *name != PolicyName::RoundRobin) {
        let from = if name.is_baseline() { CostsFrom::Candidates } else { CostsFrom::Unread };
        assert_eq!(read.under(&scheduler(name), Objectives::default()).unwrap().costs, from, "{name}");
    }
}

#[test]
fn a_beginning_of_another_length_is_not_the_one_that_is_asked_for() {
    let mut world = World::new(PolicyName::Chwbl, 3, Decisions::new(10, 1 << 20));
    let mut told = world.decide("r").unwrap().told(&world.scheduler);
    let costs = |told: &Told| told.under(&scheduler(PolicyName::Chwbl), Objectives::default()).unwrap().costs;
    assert_eq!(costs(&told), CostsFrom::Candidates, "a first block is the same under any");
    for (characters, from) in [(100, CostsFrom::Candidates), (99, CostsFrom::Unread)] {
        told.question.shape.opening_characters = std::num::NonZeroU32::new(characters);
        assert_eq!(costs(&told), from, "{characters}");
    }
}
