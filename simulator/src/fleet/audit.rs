//! What must hold in a simulated fleet. Checked on demand; a breach is a fault of the simulation, and panics.

use std::collections::HashSet;

use warmpath_core::ids::{EngineHash, SequenceHash, Slot};
use warmpath_core::overlap::{Overlaps, PrefixIndex, TierBlocks};
use warmpath_core::units::{Blocks, Tokens};

use super::member::{Member, Storage};
use super::outcome::Outcome;
use super::prepared::Prepared;
use super::router::{Belief, Placed, Router};
use super::{Conditions, Scenario, seen};
use crate::blocks::BlockEvent;
use crate::check::Replica;
use crate::scheduler::Engine;

/// What has been seen so far.
#[derive(Debug)]
pub(super) struct Audit {
    replicas: Vec<Replica>,
    /// Requests in flight, with the worker and the tokens that were promised.
    in_flight: Vec<(usize, Placed)>,
    closed: HashSet<usize>,
    /// Whether there are tiers below the engines' caches: what lies there saves a part of a prefill only.
    tiers: bool,
    /// Whether what stands behind a block may come to the host when that block is gone from everywhere, so that the index
    /// cannot know it: where prefixes are let go first.
    loses_prefixes: bool,
    conditions: (Conditions, u64),
}

impl Audit {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let replicas = (0..scenario.workers).map(|_| Replica::default()).collect();
        Self {
            replicas,
            in_flight: Vec::new(),
            closed: HashSet::new(),
            tiers: scenario.engine.tiers.is_some(),
            loses_prefixes: scenario.engine.tiers.is_some() && !scenario.engine.reuse.reverse_append,
            conditions: (scenario.conditions, scenario.seed),
        }
    }

    pub(super) fn placed(&mut self, number: usize, placed: Placed) {
        self.in_flight.push((number, placed));
    }

    /// A request ends once.
    pub(super) fn closed(&mut self, number: usize) {
        assert!(self.closed.insert(number), "request {number} ended twice");
        self.in_flight.retain(|(other, _)| *other != number);
    }

    /// An attempt ended with its worker; another may follow.
    pub(super) fn failed(&mut self, number: usize) {
        self.in_flight.retain(|(other, _)| *other != number);
    }

    /// A worker begins again, empty.
    pub(super) fn restarted(&mut self, worker: usize) {
        self.replicas[worker] = Replica::default();
    }

    /// The engine's pool and what its events tell.
    pub(super) fn step(&mut self, worker: usize, engine: &Engine, events: &[BlockEvent]) {
        engine.check(&mut self.replicas[worker], events);
    }

    /// The ledger of each router says what it has in flight.
    pub(super) fn ledger(&self, prepared: &Prepared, router: &Router, outcome: &Outcome) {
        let places = (0..router.replicas()).flat_map(|of| (0..self.replicas.len()).map(move |slot| (of, slot)));
        for (of, slot) in places {
            let is_here = move |number, placed: &Placed| placed.slot.index() == slot && router.replica_of(number) == of;
            let here = || self.in_flight.iter().filter(move |(number, placed)| is_here(*number, placed));
            let prefilling = || here().filter(|(number, _)| outcome.requests[*number].output_tokens == 0);
            let own = router.in_flight(of, Slot(u16::try_from(slot).expect("fewer than 65 536 workers")));
            let requests = (here().count(), prefilling().count());
            assert_eq!((size(own.requests), size(own.before_first_token)), requests, "requests at worker {slot}");
            let new = |number: usize, cached: Tokens| prepared.lengths(number).0 - cached.0;
            let most_cached = |number: usize, placed: &Placed| match placed.belief {
                Belief::Whole | Belief::Part => placed.promised,
                Belief::Sent => placed.promised.max(Tokens(prepared.lengths(number).0 / 2)),
            };
            let least_cached = |placed: &Placed| match placed.belief {
                Belief::Whole if !self.tiers => placed.promised,
                Belief::Whole | Belief::Part | Belief::Sent => Tokens(0),
            };
            let least = prefilling().map(|(number, placed)| new(*number, most_cached(*number, placed))).sum::<u32>();
            let most = prefilling().map(|(number, placed)| new(*number, least_cached(placed))).sum::<u32>();
            let prefill = own.prefill_tokens.0;
            assert!((least..=most).contains(&prefill), "prefill at worker {slot}: {prefill}, not {least} to {most}");
            let (conditions, seed) = &self.conditions;
            let named = |number| seen::blocks(prepared, (conditions, *seed), number).into_owned();
            let shared: HashSet<SequenceHash> = here().flat_map(|(number, _)| named(*number)).collect();
            let private = |(number, _): &(usize, Placed)| {
                let (input, block) = (prepared.lengths(*number).0, prepared.block_size().get());
                (input + outcome.requests[*number].output_tokens).div_ceil(block) - input / block
            };
            let blocks = size(here().map(private).sum::<u32>()) + shared.len();
            assert_eq!(size(own.active_blocks.0), blocks, "blocks at worker {slot}");
        }
    }

    /// When all has ended and every event has come, nothing is in flight, every request has ended, and the index says of
    /// every prompt and worker what could be found there: on the device, in the host's memory or in storage that is shared.
    pub(super) fn at_rest(
        &self,
        prepared: &Prepared,
        by_tokens: bool,
        (members, storage): (&[Member], Option<&Storage>),
        router: &Router,
        outcome: &Outcome,
    ) {
        assert_eq!((self.closed.len(), self.in_flight.len()), (outcome.requests.len(), 0), "requests that ended");
        let names = |member: &Member| -> HashSet<EngineHash> {
            let device = member.engine.cached().map(|(name, _)| name);
            device.chain(member.engine.cached_in_host()).collect()
        };
        let cached: Vec<HashSet<EngineHash>> = members.iter().map(names).collect();
        for (member, cached) in members.iter().zip(&cached).filter(|_| !self.loses_prefixes) {
            assert_eq!(
                (member.hearing.writer.entries(), member.hearing.orphans),
                (cached.len(), 0),
                "blocks in the index"
            );
        }
        // A page that storage keeps behind one that it let go is of no use, and unknown to the index for good.
        let orphans = members.iter().map(|member| member.hearing.orphans);
        let lost = storage.map_or(0, |storage| storage.hearing.orphans) + orphans.sum::<usize>();
        let shared: HashSet<EngineHash> = storage.map(|storage| storage.tier.keys().collect()).unwrap_or_default();
        let (mut overlaps, mut held) = (Overlaps::default(), vec![TierBlocks::default(); members.len()]);
        for number in 0..prepared.len() {
            let text = prepared.text(number, by_tokens);
            overlaps.clear();
            router.index.match_prefix(&prepared.sequences_of(number, &text), &mut overlaps);
            overlaps.expand(Blocks(u32::MAX), &mut held);
            for (worker, cached) in cached.iter().enumerate() {
                let (names, keys) = members[worker].engine.names_of(text.clone());
                let is_there = |place: &usize| cached.contains(&names[*place]) || shared.contains(&keys[*place]);
                let found = (0..names.len()).take_while(is_there).count();
                let told = size(held[worker].total().0);
                assert!(
                    told == found || (told < found && lost > 0),
                    "request {number} at worker {worker}: {told}, {found}"
                );
            }
        }
    }
}

fn size(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
