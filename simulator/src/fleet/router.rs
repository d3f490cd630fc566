//! The router of a simulated fleet: the real scheduler and the real index, told what a gateway tells them. Of several
//! routers each has a scheduler and accounts of its own; their indexes hear the same and would be equal, so there is one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_core::cost::load_balance_score;
use warmpath_core::ids::{Rank, RequestKey, Slot, WorkerId};
use warmpath_core::ledger::{InFlight, Reservation, Said};
use warmpath_core::observe::{Event, Observation, Side, Usage};
use warmpath_core::scheduler::{PlaceError, Scheduler, Scratch};
use warmpath_core::shape::{AffinityKey, Objectives, Prompt, Request, Shape};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::trust::{Answered, EventsHeard, Trust};
use warmpath_core::units::{Blocks, Tokens};
use warmpath_core::workers::{Limits, Pool, Ramp, Role, Target, WorkerTable};
use warmpath_indexer::concurrent::ConcurrentIndex;

use super::outcome::Decided;
use super::prepared::{MODEL, Prepared, seed_of};
use super::{Breaker, RouterSettings, Scenario};
use crate::clock::Ms;
use crate::stats::EngineStats;

/// Scheduler, ledger, index and trust as a gateway has them, at virtual time.
pub(super) struct Router {
    /// Any instant: only differences matter.
    base: Instant,
    objectives: Objectives,
    /// To which requests go in turn.
    replicas: Vec<Replica>,
    pool: Pool,
    pub(super) index: Arc<ConcurrentIndex>,
    /// By number of the request.
    flights: Vec<Option<Flight>>,
    /// Whose decisions are told.
    explained: Vec<usize>,
    pub(super) decided: Vec<Decided>,
}

/// What each of several routers has for itself.
struct Replica {
    scheduler: Scheduler,
    table: WorkerTable,
    scratch: Scratch,
}

impl Replica {
    /// One that knows all workers, and nothing of their caches.
    fn new(scenario: &Scenario, pool: &Pool, seed: u64) -> Self {
        let RouterSettings { policy, routing, in_flight_credit, half_life, .. } = &scenario.router;
        let limits = Limits {
            blocks: Some(Blocks(scenario.engine.usable_blocks())),
            sequences: u32::try_from(scenario.engine.max_num_seqs).unwrap_or(u32::MAX),
        };
        let target = |slot: &Slot| Target {
            slot: *slot,
            worker: WorkerId::from(format!("worker-{}", slot.0 + 1).as_str()),
            rank: Rank(0),
            role: Role::Both,
            limits,
            available: true,
            ramp: None,
            account: Arc::default(),
            trust: Arc::new(Trust::expecting_events(routing.event_silence())),
        };
        Self {
            scheduler: routing.scheduler(*policy, *in_flight_credit, *half_life),
            table: WorkerTable::new(pool.targets.iter().map(target).collect(), vec![pool.clone()]),
            scratch: Scratch::new(seed),
        }
    }

    fn tell(&self, at: Instant, number: usize, slot: Slot, event: Event) {
        self.scheduler.observe(&Observation { at, request: RequestKey(seed_of(number)), slot, event });
    }
}

/// One request between its placement and its end.
struct Flight {
    reservation: Reservation,
    slot: Slot,
    sent: Instant,
    prompt: Tokens,
    promised: Tokens,
    started: bool,
}

/// Where a request went, and what was promised of it there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) slot: Slot,
    pub(super) promised: Tokens,
    pub(super) belief: Belief,
}

/// How much of a promise counts as cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Belief {
    /// All of it.
    Whole,
    /// As much as its worker's view is worth.
    Part,
    /// The same, or half of what was sent there where that is more: the view does not tell what is there.
    Sent,
}

impl Belief {
    /// In what a worker of which this is believed promises.
    pub(super) fn of(trust: &Trust) -> Self {
        match trust.falls_back() {
            true => Self::Sent,
            false if trust.weight() >= 1.0 => Self::Whole,
            false => Self::Part,
        }
    }
}

impl Router {
    /// A router that knows all workers, and nothing of their caches.
    pub(super) fn new(scenario: &Scenario, prepared: &Prepared) -> Self {
        let pool = Pool {
            model: MODEL.into(),
            aliases: Vec::new(),
            block_size: prepared.block_size(),
            targets: (0..scenario.workers).map(Slot).collect(),
        };
        let replica = |number: u16| Replica::new(scenario, &pool, scenario.seed.wrapping_add(u64::from(number) << 32));
        Self {
            base: Instant::now(),
            objectives: scenario.router.routing.objectives(),
            replicas: (0..scenario.conditions.routers.max(1)).map(replica).collect(),
            pool,
            index: Arc::new(ConcurrentIndex::new(scenario.router.index_entries)),
            flights: (0..prepared.len()).map(|_| None).collect(),
            explained: scenario.explained.clone(),
            decided: Vec::new(),
        }
    }

    /// How many routers there are.
    pub(super) fn replicas(&self) -> usize {
        self.replicas.len()
    }

    /// Which of them a request goes to.
    pub(super) fn replica_of(&self, number: usize) -> usize {
        number % self.replicas.len()
    }

    /// A moment of virtual time.
    pub(super) fn at(&self, now: Ms) -> Instant {
        self.base + Duration::from_secs_f64((now.0 / 1e3).max(0.0))
    }

    /// Places a request, as the gateway does on its way to a worker; never on those that have failed it.
    pub(super) fn place(
        &mut self,
        now: Ms,
        number: usize,
        (prompt, expected_output, affinity): (Prompt<'_>, Option<Tokens>, Option<AffinityKey>),
        avoid: &SlotSet,
    ) -> Result<Placed, PlaceError> {
        let (at, now) = (now, self.at(now));
        let objectives = self.objectives;
        let shape = Shape { expected_output, affinity, objectives, ..Shape::of(prompt.len(), self.pool.block_size) };
        let key = RequestKey(seed_of(number));
        let request = Request { key, shape, prompts: &[prompt], texts: &[], avoid };
        let replica = self.replica_of(number);
        let Replica { scheduler, table, scratch } = &mut self.replicas[replica];
        let fleet = (&*table, &self.pool);
        let is_told = self.explained.binary_search(&number).is_ok();
        let told = is_told.then(|| scheduler.explain(now, &request, &*self.index, fleet, scratch)).transpose()?;
        let placement = scheduler.place(now, &request, &*self.index, fleet, scratch)?;
        if let (Some(explanation), Some(asked)) = (told, scratch.asked()) {
            let avoided = u32::try_from(avoid.len()).unwrap_or(u32::MAX);
            self.decided.push(Decided { request: number, at, avoided, explanation, asked: asked.clone() });
        }
        let belief = Belief::of(&placement.target.trust);
        let placed = Placed { slot: placement.target.slot, promised: placement.overlap_tokens, belief };
        self.flights[number] = Some(Flight {
            reservation: placement.reservation,
            slot: placed.slot,
            sent: now,
            prompt: prompt.len(),
            promised: placed.promised,
            started: false,
        });
        Ok(placed)
    }

    /// A token came: the first one ends the prefill, and each fills blocks.
    pub(super) fn token(&mut self, now: Ms, number: usize) {
        let (at, replica) = (self.at(now), self.replica_of(number));
        let Some(flight) = &mut self.flights[number] else { return };
        let first = !std::mem::replace(&mut flight.started, true);
        if first {
            flight.reservation.first_token(at);
        }
        flight.reservation.generated(Tokens(1));
        let (slot, replica) = (flight.slot, &self.replicas[replica]);
        if first {
            replica.tell(at, number, slot, Event::FirstToken);
        }
        replica.tell(at, number, slot, Event::Progress { tokens: Tokens(1) });
    }

    /// A request ended as it should. `heard` is what its engine's events have come to.
    pub(super) fn finished(&mut self, now: Ms, number: usize, usage: Usage, heard: EventsHeard) {
        let at = self.at(now);
        let Some(Flight { reservation, slot, sent, prompt, promised, .. }) = self.flights[number].take() else {
            return;
        };
        drop(reservation);
        let replica = &self.replicas[self.replica_of(number)];
        if let Some(target) = replica.table.get(slot) {
            target.trust.heard(at, heard);
            let block_size = self.pool.block_size;
            let answered = Answered {
                sent,
                sender: None,
                prompt,
                promised,
                counted: usage.prompt,
                reported: usage.cached,
                block_size,
            };
            target.trust.answered(at, &answered);
        }
        replica.tell(at, number, slot, Event::Finished { usage });
    }

    /// A request ended otherwise, through this side's fault.
    pub(super) fn failed(&mut self, now: Ms, number: usize, side: Side) {
        let at = self.at(now);
        let Some(Flight { reservation, slot, .. }) = self.flights[number].take() else { return };
        drop(reservation);
        self.replicas[self.replica_of(number)].tell(at, number, slot, Event::Failed { side });
    }

    /// Whether a request is in flight on a worker.
    pub(super) fn is_on(&self, number: usize, slot: Slot) -> bool {
        self.flights[number].as_ref().is_some_and(|flight| flight.slot == slot)
    }

    /// The requests in flight on a worker, each with whether its first token has come. O(requests).
    pub(super) fn requests_on(&self, slot: Slot) -> Vec<(usize, bool)> {
        let flights = self.flights.iter().enumerate();
        let there = flights.filter_map(|(number, flight)| Some((number, flight.as_ref()?)));
        there.filter(|(_, flight)| flight.slot == slot).map(|(number, flight)| (number, flight.started)).collect()
    }

    /// Whether a worker may be chosen from now on; one that comes back is given little at first. What was remembered of
    /// one that fails is forgotten.
    pub(super) fn set_available(&mut self, now: Ms, slot: Slot, available: bool, breaker: &Breaker) {
        let since = self.at(now);
        let ramp = Ramp { since, over: breaker.ramp, from: breaker.ramp_from };
        for Replica { scheduler, table, .. } in &mut self.replicas {
            let changed = table.iter().cloned().map(|target| match target.slot == slot {
                true => Target { available, ramp: available.then_some(ramp), ..target },
                false => target,
            });
            *table = WorkerTable::new(changed.collect(), vec![self.pool.clone()]);
            if !available {
                scheduler.forget(slot);
            }
        }
    }

    /// An engine's metrics were read.
    pub(super) fn report(&self, now: Ms, slot: Slot, stats: &EngineStats, heard: EventsHeard) {
        let now = self.at(now);
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        for target in self.replicas.iter().filter_map(|replica| replica.table.get(slot)) {
            let own = target.account.read();
            target.trust.heard(now, heard);
            let blocks = target.limits.blocks.map(|_| Blocks(count(stats.kv_blocks)));
            let said = Said { running: count(stats.levels.running), waiting: count(stats.levels.waiting), blocks };
            target.account.report(now, said, own);
        }
    }

    /// What one of the routers has in flight on a worker, and what its engine is believed to have beyond.
    pub(super) fn in_flight(&self, replica: usize, slot: Slot) -> InFlight {
        self.replicas[replica].table.get(slot).map(|target| target.account.read()).unwrap_or_default()
    }

    /// How uneven the workers' KV load is, by the accounts of all routers together.
    pub(super) fn balance(&self) -> f64 {
        let load = |slot: &Slot| {
            let targets = || self.replicas.iter().filter_map(|replica| replica.table.get(*slot));
            let total = targets().find_map(|target| target.limits.blocks).map_or(1, |blocks| blocks.0.max(1));
            let active: u32 = targets().map(|target| target.account.read().active_blocks.0).sum();
            f64::from(active) / f64::from(total)
        };
        load_balance_score(self.pool.targets.iter().map(load).collect::<Vec<_>>().into_iter())
    }
}
