//! One run: engines, router and trace, and what happens one after the other.

use std::collections::VecDeque;

use warmpath_core::ids::Slot;
use warmpath_core::observe::{Side, Usage};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::Tokens;

use super::agenda::{Agenda, Happening, Message};
use super::audit::Audit;
use super::member::{Ending, Member, Storage};
use super::outcome::{Failure, Outcome, RequestOutcome, Sample};
use super::prepared::{Prepared, seed_of};
use super::router::Router;
use super::seen::Seen;
use super::{EventWay, Reports, Scenario, ScenarioError};
use crate::cache::Profile;
use crate::clock::Ms;
use crate::request::{RequestId, SimRequest, TokenOut};
use crate::scheduler::Step;
use restart::Restart;
pub(super) use restart::Stage;

mod reading;
mod restart;

/// Samples between the first arrival and the last.
const SAMPLES: f64 = 400.0;

pub(super) struct World<'a> {
    prepared: &'a Prepared,
    scenario: &'a Scenario,
    ended: &'a dyn Fn(),
    agenda: Agenda,
    now: Ms,
    router: Router,
    members: Vec<Member>,
    storage: Option<Storage>,
    audit: Option<Audit>,
    /// The worker that dies and comes back, where one does.
    restart: Option<Restart>,
    /// Requests that have not ended, those that have not arrived among them.
    left: usize,
    /// Requests that have been sent and have not ended.
    in_flight: usize,
    /// Requests that wait at their clients, in order of arrival.
    held: VecDeque<usize>,
    /// When each request was given to the worker that it is on.
    given: Vec<Ms>,
    /// When each request's last token came.
    last_token: Vec<Ms>,
    sample_every: Ms,
    sample: Sample,
    outcome: Outcome,
}

impl<'a> World<'a> {
    pub(super) fn new(
        prepared: &'a Prepared,
        scenario: &'a Scenario,
        ended: &'a dyn Fn(),
    ) -> Result<Self, ScenarioError> {
        let router = Router::new(scenario, prepared);
        let members = (0..scenario.workers).map(|slot| Member::new(scenario, Slot(slot), &router.index));
        let members = members.collect::<Result<Vec<_>, _>>()?;
        let audit = scenario.check.then(|| Audit::new(scenario));
        let request = |number: usize| {
            let (input_tokens, _) = prepared.lengths(number);
            RequestOutcome { input_tokens, ..RequestOutcome::default() }
        };
        let requests = (0..prepared.len()).map(request).collect();
        Ok(Self {
            storage: Storage::new(scenario, &router.index),
            prepared,
            scenario,
            ended,
            agenda: Agenda::default(),
            now: Ms::ZERO,
            router,
            audit,
            restart: scenario.conditions.restart.map(Restart::new),
            left: prepared.len(),
            in_flight: 0,
            held: VecDeque::new(),
            given: vec![Ms::ZERO; prepared.len()],
            last_token: vec![Ms::ZERO; prepared.len()],
            sample_every: Ms((prepared.span().0 / scenario.speed / SAMPLES).max(1.0)),
            sample: Sample::default(),
            outcome: Outcome { requests, ..Outcome::default() },
            members,
        })
    }

    pub(super) fn run(mut self) -> Result<Outcome, ScenarioError> {
        if !self.prepared.is_empty() {
            let first = self.arrival(0);
            self.agenda.enter(first, Happening::Arrival(0));
            self.agenda.enter(first, Happening::Sample);
            if let Reports::Every(period) = self.scenario.reports {
                self.agenda.enter(first + period, Happening::Report);
            }
            self.await_death();
        }
        while let Some((at, happening)) = self.agenda.next() {
            self.now = at;
            match happening {
                Happening::Arrival(number) => self.arrive(number),
                Happening::Sent(number) => self.send(number),
                Happening::Token(worker, token) => self.token(worker, token),
                Happening::Start(worker) => self.start(worker)?,
                Happening::End(worker) => self.end(worker)?,
                Happening::Events(worker, message) => self.receive(worker, message)?,
                Happening::Storage(message) => self.hear_of_storage(message)?,
                Happening::Restart(stage) => self.restart(stage)?,
                Happening::Report => self.report(),
                Happening::Sample => self.look(),
            }
        }
        if let Some(audit) = &self.audit {
            // A worker that has sent nothing since it came back is known by its metrics alone, which are read again one day.
            self.members.iter_mut().for_each(|member| member.hearing.process_seen());
            let caches = (self.members.as_slice(), self.storage.as_ref());
            audit.at_rest(self.prepared, self.scenario.by_tokens(), caches, &self.router, &self.outcome);
        }
        self.outcome.preemptions +=
            self.members.iter().map(|member| member.engine.stats().totals.preemptions).sum::<usize>();
        self.outcome.decided = std::mem::take(&mut self.router.decided);
        self.outcome.busy = self.members.iter().map(|member| member.busy).collect();
        Ok(self.outcome)
    }

    fn arrival(&self, number: usize) -> Ms {
        Ms((self.prepared.arrival(number) - self.prepared.arrival(0)).0 / self.scenario.speed)
    }

    fn arrive(&mut self, number: usize) {
        if number + 1 < self.prepared.len() {
            let next = self.arrival(number + 1);
            self.agenda.enter(next, Happening::Arrival(number + 1));
        }
        if self.scenario.conditions.clients.is_some_and(|most| self.in_flight >= most) {
            self.held.push_back(number);
        } else {
            self.send(number);
        }
    }

    /// A request is sent, now.
    fn send(&mut self, number: usize) {
        self.in_flight += 1;
        if self.scenario.reports == Reports::Fresh {
            self.report_all();
        }
        self.outcome.requests[number].arrived = self.now;
        self.attempt(number, &SlotSet::new());
    }

    /// A request is given to a worker that has not failed it.
    fn attempt(&mut self, number: usize, avoid: &SlotSet) {
        let (_, output) = self.prepared.lengths(number);
        let text = self.prepared.text(number, self.scenario.by_tokens());
        let seen = Seen::new(self.prepared, self.scenario, number, &text);
        let expected = self.scenario.conditions.output_known.then_some(Tokens(output));
        let asked = (seen.prompt(), expected, self.prepared.session(number));
        let placed = self.router.place(self.now, number, asked, avoid);
        drop(seen);
        let Ok(placed) = placed else { return self.close(number, Some(Failure::NoWorker)) };
        if let Some(audit) = &mut self.audit {
            audit.placed(number, placed);
        }
        let record = &mut self.outcome.requests[number];
        record.worker = Some(placed.slot.0);
        record.predicted_tokens = placed.promised.0;
        self.given[number] = self.now;
        if self.is_down(placed.slot) {
            return self.go_elsewhere(number, placed.slot);
        }
        let id = RequestId(seed_of(number));
        let max_tokens = usize::try_from(output).unwrap_or(usize::MAX);
        let request = SimRequest { seed: id.0, ..SimRequest::new(id, text, max_tokens) };
        let worker = placed.slot.index();
        let engine = &mut self.members[worker].engine;
        let submitted = match &mut self.storage {
            Some(storage) => engine.submit_with(self.now, request, &mut storage.tier),
            None => engine.submit(self.now, request),
        };
        if submitted.is_err() {
            self.router.failed(self.now, number, Side::Client);
            self.close(number, Some(Failure::Refused));
        } else if self.members[worker].step.is_none() {
            self.agenda.enter(self.now, Happening::Start(worker));
        }
    }

    /// A request has ended, one way or another: answered whole, unless something is why not.
    fn close(&mut self, number: usize, failure: Option<Failure>) {
        let record = &mut self.outcome.requests[number];
        (record.completed, record.failure) = (failure.is_none(), failure);
        self.left -= 1;
        self.in_flight -= 1;
        if let Some(next) = self.held.pop_front() {
            self.agenda.enter(self.now, Happening::Sent(next));
        }
        self.outcome.end = self.now;
        if let Some(audit) = &mut self.audit {
            audit.closed(number);
        }
        (self.ended)();
    }

    fn start(&mut self, worker: usize) -> Result<(), ScenarioError> {
        let member = &mut self.members[worker];
        if member.step.is_some() {
            return Ok(());
        }
        let step = match &mut self.storage {
            Some(storage) => member.engine.step_with(self.now, &mut storage.tier),
            None => member.engine.step(self.now),
        };
        let Some(Step { duration, tokens, events }) = step else { return Ok(()) };
        let duration = if worker == 0 { Ms(duration.0 * self.scenario.slow) } else { duration };
        if let Some(audit) = &mut self.audit {
            audit.step(worker, &member.engine, &events);
        }
        member.busy += duration;
        let ends = self.now + duration;
        let mut message = None;
        match self.scenario.events {
            EventWay::AfterStep(_) => message = member.hearing.message(ends, events)?,
            EventWay::AtOnce => {
                if let Some(message) = member.hearing.message(ends, events)? {
                    member.hearing.receive(message, self.router.at(self.now))?;
                }
            }
            EventWay::Singly(delay) => {
                // SGLang's cache has a page when it is computed, not when it is scheduled.
                let is_known_late = self.scenario.engine.profile == Profile::SglangRadix;
                let known = if is_known_late { ends } else { self.now };
                for event in events {
                    let message = member.hearing.message(known, vec![event])?;
                    let way = message.map(|message| Happening::Events(worker, message));
                    way.into_iter().for_each(|way| self.agenda.enter(known + delay, way));
                }
            }
        }
        member.step = Some(Ending { at: ends, tokens, message });
        self.agenda.enter(ends, Happening::End(worker));
        self.storage_speaks()
    }

    /// Storage tells by itself what engines have just written there, whenever their steps end: in order.
    fn storage_speaks(&mut self) -> Result<(), ScenarioError> {
        let Some(storage) = &mut self.storage else { return Ok(()) };
        let events = storage.tier.take_events();
        let Some(message) = storage.hearing.message(self.now, events)? else { return Ok(()) };
        match self.scenario.events {
            EventWay::AfterStep(delay) | EventWay::Singly(delay) if delay > Ms::ZERO => {
                self.agenda.enter(self.now + delay, Happening::Storage(message));
                Ok(())
            }
            EventWay::AfterStep(_) | EventWay::Singly(_) | EventWay::AtOnce => self.hear_of_storage(message),
        }
    }

    fn hear_of_storage(&mut self, message: Message) -> Result<(), ScenarioError> {
        let now = self.router.at(self.now);
        self.storage.as_mut().map_or(Ok(()), |storage| storage.hearing.receive(message, now))
    }

    fn end(&mut self, worker: usize) -> Result<(), ScenarioError> {
        // Where there is another step, or none, the process that began this one has died.
        let step = self.members[worker].step.take_if(|step| step.at.0.total_cmp(&self.now.0).is_eq());
        let Some(Ending { tokens, message, .. }) = step else { return Ok(()) };
        match (message, self.scenario.events) {
            (Some(message), EventWay::AfterStep(delay)) if delay > Ms::ZERO => {
                self.agenda.enter(self.now + delay, Happening::Events(worker, message));
            }
            (Some(message), _) => self.receive(worker, message)?,
            (None, _) => {}
        }
        for token in tokens {
            let travel = self.travel(token);
            if travel > Ms::ZERO {
                self.agenda.enter(self.now + travel, Happening::Token(worker, token));
            } else {
                self.token(worker, token);
            }
        }
        if let Some(audit) = &mut self.audit {
            audit.ledger(self.prepared, &self.router, &self.outcome);
        }
        // Not at once: what arrives at this moment is admitted with the next step.
        self.agenda.enter(self.now, Happening::Start(worker));
        Ok(())
    }

    /// How much later a token comes than its engine is done with it.
    fn travel(&self, token: TokenOut) -> Ms {
        let number = usize::try_from(token.id.0).unwrap_or(usize::MAX);
        let input = self.outcome.requests.get(number).map_or(0, |request| request.input_tokens);
        Ms(self.scenario.conditions.kv_transfer.0 * f64::from(input))
    }

    fn receive(&mut self, worker: usize, message: Message) -> Result<(), ScenarioError> {
        let now = self.router.at(self.now);
        self.members[worker].hearing.receive(message, now)
    }

    fn token(&mut self, worker: usize, token: TokenOut) {
        let Ok(number) = usize::try_from(token.id.0) else { return };
        let slot = Slot(u16::try_from(worker).unwrap_or(u16::MAX));
        if !self.router.is_on(number, slot) {
            // It was still travelling when its worker died.
            return;
        }
        self.router.token(self.now, number);
        let record = &mut self.outcome.requests[number];
        record.output_tokens += 1;
        if let Some(first) = token.first {
            record.ttft = self.now - record.arrived;
            record.queued = self.given[number] - record.arrived + first.queued;
            record.cached_tokens = u32::try_from(first.cached_tokens).unwrap_or(u32::MAX);
            self.sample.input_tokens += u64::from(record.input_tokens);
            self.sample.cached_tokens += u64::from(record.cached_tokens);
        } else {
            let gap = single(self.now - self.last_token[number]);
            self.outcome.gaps.push((u32::try_from(number).unwrap_or(u32::MAX), gap));
        }
        self.last_token[number] = self.now;
        if token.finished.is_some() {
            // Nothing else ends an answer before its length: no token stops it.
            let is_whole = record.output_tokens == self.prepared.lengths(number).1;
            record.e2e = self.now - record.arrived;
            let usage = Usage {
                prompt: Some(Tokens(record.input_tokens)),
                cached: Some(Tokens(record.cached_tokens)),
                completion: Some(Tokens(record.output_tokens)),
            };
            let heard = self.members[worker].hearing.heard();
            self.router.finished(self.now, number, usage, heard);
            self.close(number, (!is_whole).then_some(Failure::CutShort));
        }
    }
}

/// A span as it is kept by the million.
#[expect(clippy::as_conversions, reason = "a ten-millionth of a gap is less than anybody measures")]
fn single(span: Ms) -> f32 {
    span.0 as f32
}
