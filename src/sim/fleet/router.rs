//! The router of a simulated fleet: the real scheduler and the real index, told what a gateway tells them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_core::admission::OnAllBusy;
use warmpath_core::cost::load_balance_score;
use warmpath_core::ids::{Rank, RequestKey, Slot, WorkerId};
use warmpath_core::ledger::{InFlight, Reservation, Said};
use warmpath_core::observe::{Event, Observation, Side, Usage};
use warmpath_core::scheduler::{PlaceError, Scheduler, Scratch};
use warmpath_core::shape::{Prompt, Request, Shape};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::trust::{Answered, EventsHeard, Trust};
use warmpath_core::units::{Blocks, Tokens};
use warmpath_core::workers::{Limits, Pool, Role, Target, WorkerTable};
use warmpath_indexer::concurrent::ConcurrentIndex;

use super::prepared::{MODEL, Prepared, seed_of};
use super::{RouterSettings, Scenario};
use crate::sim::{EngineStats, Ms};

/// Scheduler, ledger, index and trust as a gateway has them, at virtual time.
pub(super) struct Router {
    /// Any instant: only differences matter.
    base: Instant,
    scheduler: Scheduler,
    table: WorkerTable,
    pool: Pool,
    pub(super) index: Arc<ConcurrentIndex>,
    scratch: Scratch,
    /// By number of the request.
    flights: Vec<Option<Flight>>,
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
}

impl Router {
    /// A router that knows all workers, and nothing of their caches.
    pub(super) fn new(scenario: &Scenario, prepared: &Prepared) -> Self {
        let RouterSettings { policy, routing, in_flight_credit, half_life, index_entries } = &scenario.router;
        let mut routing = routing.clone();
        routing.shadow.clear();
        routing.on_all_busy = OnAllBusy::LeastLoaded;
        let slots = (0..scenario.workers).map(Slot);
        let limits = Limits {
            blocks: Some(Blocks(scenario.engine.usable_blocks())),
            sequences: u32::try_from(scenario.engine.max_num_seqs).unwrap_or(u32::MAX),
        };
        let target = |slot: Slot| Target {
            slot,
            worker: WorkerId::from(format!("worker-{}", slot.0 + 1).as_str()),
            rank: Rank(0),
            role: Role::Both,
            limits,
            available: true,
            ramp: None,
            account: Arc::default(),
            trust: Arc::new(Trust::expecting_events(routing.trust.event_silence.get())),
        };
        let pool = Pool {
            model: MODEL.into(),
            aliases: Vec::new(),
            block_size: prepared.block_size(),
            targets: slots.clone().collect(),
        };
        Self {
            base: Instant::now(),
            scheduler: routing.scheduler(*policy, *in_flight_credit, *half_life),
            table: WorkerTable::new(slots.map(target).collect(), vec![pool.clone()]),
            pool,
            index: Arc::new(ConcurrentIndex::new(*index_entries)),
            scratch: Scratch::new(scenario.seed),
            flights: (0..prepared.len()).map(|_| None).collect(),
        }
    }

    /// A moment of virtual time.
    pub(super) fn at(&self, now: Ms) -> Instant {
        self.base + Duration::from_secs_f64((now.0 / 1e3).max(0.0))
    }

    /// Places a request, as the gateway does on its way to a worker.
    pub(super) fn place(
        &mut self,
        now: Ms,
        number: usize,
        prompt: Prompt<'_>,
        output: Tokens,
    ) -> Result<Placed, PlaceError> {
        let now = self.at(now);
        let shape = Shape { expected_output: Some(output), ..Shape::of(prompt.len(), self.pool.block_size) };
        let key = RequestKey(seed_of(number));
        let request = Request { key, shape, prompts: &[prompt], texts: &[], avoid: &SlotSet::new() };
        let fleet = (&self.table, &self.pool);
        let placement = self.scheduler.place(now, &request, &*self.index, fleet, &mut self.scratch)?;
        let placed = Placed { slot: placement.target.slot, promised: placement.overlap_tokens };
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
        let at = self.at(now);
        let Some(flight) = &mut self.flights[number] else { return };
        let first = !std::mem::replace(&mut flight.started, true);
        if first {
            flight.reservation.first_token(at);
        }
        flight.reservation.generated(Tokens(1));
        let slot = flight.slot;
        let observe = |event| {
            self.scheduler.observe(&Observation { at, request: RequestKey(seed_of(number)), slot, event });
        };
        if first {
            observe(Event::FirstToken);
        }
        observe(Event::Progress { tokens: Tokens(1) });
    }

    /// A request ended as it should. `heard` is what its engine's events have come to.
    pub(super) fn finished(&mut self, now: Ms, number: usize, usage: Usage, heard: EventsHeard) {
        let at = self.at(now);
        let Some(Flight { reservation, slot, sent, prompt, promised, .. }) = self.flights[number].take() else {
            return;
        };
        drop(reservation);
        if let Some(target) = self.table.get(slot) {
            target.trust.heard(at, heard);
            let block_size = self.pool.block_size;
            let answered =
                Answered { sent, prompt, promised, counted: usage.prompt, reported: usage.cached, block_size };
            target.trust.answered(at, &answered);
        }
        let request = RequestKey(seed_of(number));
        self.scheduler.observe(&Observation { at, request, slot, event: Event::Finished { usage } });
    }

    /// An engine refused a request, for it could never run there.
    pub(super) fn refused(&mut self, now: Ms, number: usize) {
        let at = self.at(now);
        let Some(Flight { reservation, slot, .. }) = self.flights[number].take() else { return };
        drop(reservation);
        let (request, event) = (RequestKey(seed_of(number)), Event::Failed { side: Side::Client });
        self.scheduler.observe(&Observation { at, request, slot, event });
    }

    /// An engine's metrics were read.
    pub(super) fn report(&self, now: Ms, slot: Slot, stats: &EngineStats, heard: EventsHeard) {
        let Some(target) = self.table.get(slot) else { return };
        let (now, own) = (self.at(now), target.account.read());
        target.trust.heard(now, heard);
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let blocks = target.limits.blocks.map(|_| Blocks(count(stats.kv_blocks)));
        let said = Said { running: count(stats.running), waiting: count(stats.waiting), blocks };
        target.account.report(now, said, own);
    }

    /// What is in flight on a worker, and what its engine is believed to have beyond.
    pub(super) fn in_flight(&self, slot: Slot) -> InFlight {
        self.table.get(slot).map(|target| target.account.read()).unwrap_or_default()
    }

    /// How uneven the workers' KV load is.
    pub(super) fn balance(&self) -> f64 {
        let load = |target: &Target| {
            let total = target.limits.blocks.map_or(1, |blocks| blocks.0.max(1));
            f64::from(target.account.read().active_blocks.0) / f64::from(total)
        };
        load_balance_score(self.table.iter().map(load).collect::<Vec<_>>().into_iter())
    }
}
