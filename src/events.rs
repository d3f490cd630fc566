//! Events of the workers' caches: one task for each (worker, rank), which receives, decodes, orders and applies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use warmpath_core::count::real_len;
use warmpath_core::trust::{Trust, ViewState};
use warmpath_indexer::codec::{decode, decode_json};
use warmpath_indexer::concurrent::Chains;
use warmpath_indexer::event::EventBatch;
use warmpath_indexer::feed::Stamp;
use warmpath_indexer::index::Writer;
use warmpath_indexer::repair::{Emptied, Repair, Repaired, Step};

use crate::aside::aside;
use crate::fleet::engine::Process;
use crate::fleet::{PoolState, Worker};
use crate::shutdown::Lasting;
use applying::Lot;
use refusals::{Refusal, Refusals};
use restore::Restoring;
use snapshots::{SnapshotFolder, Warming};

mod applying;
pub mod course;
pub mod local;
pub mod nats;
pub mod publish;
mod refusals;
mod restore;
pub mod snapshots;
pub mod source;
pub mod subject;
pub mod wiring;
pub mod zmq;
pub mod zmtp;

pub use source::{Abilities, Ask, AskId, Heard, Message, ReplayEnd, Source};

/// Keeps the index true to one (worker, rank).
pub struct EventTask {
    worker: Arc<Worker>,
    pool: Arc<PoolState>,
    trust: Arc<Trust>,
    index: Writer<Chains>,
    source: Source,
    repair: Repair<EventBatch>,
    steps: Vec<Step<EventBatch>>,
    /// The parts of a snapshot that have come so far.
    restoring: Restoring,
    /// Where the view outlives the router.
    kept: Option<SnapshotFolder>,
    /// That it is still to be read from there.
    warming: Option<Warming>,
    /// Whether the view is that of the run before, so far as no event says otherwise.
    restored: bool,
    /// Whether a batch came without a number: nothing would tell what was missed while no router ran.
    unnumbered: bool,
    /// Whether a batch told its life and its number: from then on, what does not is of somebody else.
    numbered: bool,
    /// Whether what comes is what the bus kept from before anybody listened, up to the next connection.
    is_late: bool,
    /// Whether what came last was asked for.
    is_asked_for: bool,
    refusals: Refusals,
    /// Whether it is being worked on; if so when work begins, it has panicked.
    at_work: bool,
    /// Whether the view lags behind the order of batches: what was handed out is still being taken in.
    is_torn: bool,
}

impl Lasting for EventTask {
    async fn work(&mut self) {
        if std::mem::replace(&mut self.at_work, true) {
            self.recover(Instant::now());
        }
        self.follow().await;
    }
}

impl EventTask {
    /// A task that knows nothing yet.
    pub fn new(
        (worker, pool, trust): (Arc<Worker>, Arc<PoolState>, Arc<Trust>),
        index: Writer<Chains>,
        source: Source,
    ) -> Self {
        let restoring = Restoring::new(worker.id.as_str(), worker.rank.unwrap_or_default().0);
        let repair = Repair::new(source.abilities);
        Self {
            worker,
            pool,
            trust,
            index,
            source,
            repair,
            steps: Vec::new(),
            restoring,
            kept: None,
            warming: None,
            restored: false,
            unnumbered: false,
            is_late: false,
            is_asked_for: false,
            numbered: false,
            refusals: Refusals::default(),
            at_work: false,
            is_torn: false,
        }
    }

    /// The task begins with what the run before left in `folder`, and leaves there what it knows at its end.
    #[must_use]
    pub fn kept_in(self, folder: &SnapshotFolder) -> Self {
        Self { kept: Some(folder.clone()), warming: Some(folder.warming()), ..self }
    }

    /// Works until the bus is closed, or until there is a time in `stop`: what is to be done after that ends by then.
    pub async fn run(self, mut stop: watch::Receiver<Option<Instant>>) {
        let restarts = self.pool.metrics.restarts("events");
        let Some(mut task) = self.warmed().await else { return };
        let stopped = async {
            let until = stop.wait_for(Option::is_some).await.ok().and_then(|until| *until);
            // Without a time nobody asked for an end.
            if until.is_none() {
                std::future::pending::<()>().await;
            }
            until
        };
        let until = tokio::select! {
            () = restarts.outlive(&mut task) => None,
            until = stopped => until,
        };
        if let (Some(until), Some(folder)) = (until, task.kept.take()) {
            let turn = folder.turn().await;
            let writing = tokio::task::spawn_blocking(move || {
                task.put_down(&folder, until);
                drop(turn);
            });
            if let Err(error) = writing.await {
                tracing::error!(%error, "a snapshot was not written");
            }
        }
    }

    /// What a panic has left of order and view is not trusted: both begin again, and what was missed is asked for.
    fn recover(&mut self, now: Instant) {
        self.steps.clear();
        self.restoring.give_up();
        self.index.forget();
        self.repair.start_over(now, &mut self.steps);
    }

    async fn follow(&mut self) {
        let mut process = self.worker.engine.process();
        // What was told before anybody listened.
        self.note_process(*process.borrow_and_update());
        // That, and what a view that was restored wants to ask for.
        self.act().await;
        let worker = Arc::clone(&self.worker);
        loop {
            let deadline = self.repair.deadline();
            let overdue = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                heard = self.source.heard.recv() => match heard {
                    Some(heard) => self.hear(&heard, Instant::now()).await,
                    None => return,
                },
                () = overdue => self.repair.tick(Instant::now(), &mut self.steps),
                Ok(()) = process.changed() => self.note_process(*process.borrow_and_update()),
                () = worker.view_reset.notified() => self.index.forget(),
            }
            self.act().await;
        }
    }

    /// The engine's own metrics tell of a restart even where its events do not.
    fn note_process(&mut self, process: Option<Process>) {
        if let Some(process) = process {
            let at = Duration::from_millis(process.start_ms).as_secs_f64();
            self.repair.process_started(at, Instant::now(), &mut self.steps);
        }
    }

    async fn hear(&mut self, heard: &Heard, now: Instant) {
        match heard {
            Heard::Connected => {
                self.is_late = false;
                self.repair.connected(now, &mut self.steps);
            }
            Heard::Dropped(batches) => {
                self.worker.metrics.events("queue_full", *batches);
                self.repair.connected(now, &mut self.steps);
            }
            Heard::History(there) => {
                self.is_late = *there;
                self.repair.set_replays(*there && self.source.abilities.replays);
            }
            Heard::Live(message) => self.receive(message, None, now).await,
            Heard::Replayed(id, message) => self.receive(message, Some(*id), now).await,
            Heard::ReplayEnded(id, end) => self.repair.replay_ended((*id, *end), now, &mut self.steps),
            Heard::SnapshotChunk(id, part) => {
                if self.repair.takes_snapshot(*id, now) && !self.restoring.part(part.clone()) {
                    self.repair.not_restored(*id, now, &mut self.steps);
                }
            }
            Heard::SnapshotEnded(id) if self.repair.awaits_snapshot(*id) => {
                let filled = self.restoring.end(&self.index).await;
                let now = Instant::now();
                match filled {
                    Some(filled) => self.repair.restored(*id, filled, now, &mut self.steps),
                    None => self.repair.not_restored(*id, now, &mut self.steps),
                }
            }
            Heard::SnapshotEnded(_) => {}
        }
    }

    async fn receive(&mut self, message: &Message, replayed: Option<AskId>, now: Instant) {
        #[cfg(test)]
        tests::buggify(message);
        let (stamp, batch) = match self.read(message).await {
            Ok(read) => read,
            Err(refusal) => {
                self.worker.metrics.events(refusal.outcome(), 1);
                self.source.course.refused(now, &refusal.to_string());
                self.tell_refusal(&refusal);
                if matches!(refusal, Refusal::Undecodable(_)) {
                    self.repair.unreadable(message.seq, replayed, now, &mut self.steps);
                }
                return;
            }
        };
        self.note_numbering(message);
        self.numbered |= message.is_numbered();
        self.source.course.accepted();
        self.note_rejected(&batch, now);
        let duplicates = self.repair.feed().counts().duplicates;
        let sized = (batch, message.payload.len());
        self.is_asked_for = replayed.is_some();
        if let Some(id) = replayed {
            self.worker.metrics.events("replayed", 1);
            self.repair.replayed(id, stamp, sized, now, &mut self.steps);
        } else {
            let index = &self.index;
            let orphan = |batch: &EventBatch| batch.events.iter().any(|event| index.is_orphan(event));
            self.repair.live(stamp, sized, orphan, now, &mut self.steps);
        }
        self.worker.metrics.events("duplicate", self.repair.feed().counts().duplicates - duplicates);
    }

    /// JSON begins with a brace, which begins no msgpack batch.
    async fn read(&self, message: &Message) -> Result<(Stamp, EventBatch), Refusal> {
        if message.payload.first() == Some(&b'{') {
            let event = decoded(message, decode_json).await.map_err(Refusal::Undecodable)?;
            if event.worker_id != self.worker.id {
                return Err(Refusal::OtherWorker(event.worker_id.as_str().chars().take(64).collect()));
            }
            self.check_rank(&event.batch)?;
            self.check_numbering(message)?;
            let stamp = Stamp { seq: event.event_id, epoch: None, ts: None };
            return Ok((stamp, event.batch));
        }
        let batch = decoded(message, decode).await.map_err(Refusal::Undecodable)?;
        self.check_rank(&batch)?;
        self.check_numbering(message)?;
        // A bus that numbers nothing is taken to lose nothing.
        let seq = message.seq.unwrap_or_else(|| self.repair.feed().next_seq());
        Ok((Stamp { seq, epoch: message.epoch, ts: batch.ts }, batch))
    }

    fn check_rank(&self, batch: &EventBatch) -> Result<(), Refusal> {
        let is = self.worker.rank.unwrap_or_default();
        match batch.dp_rank {
            Some(says) if says != is.0 => Err(Refusal::OtherRank { says, is }),
            _ => Ok(()),
        }
    }

    /// Between numbered batches, one without would take the place of the next.
    fn check_numbering(&self, message: &Message) -> Result<(), Refusal> {
        if self.numbered && !message.is_numbered() { Err(Refusal::Unnumbered) } else { Ok(()) }
    }

    /// A bus that numbers nothing cannot tell what it lost while nobody listened.
    fn note_numbering(&mut self, message: &Message) {
        if message.seq.is_some() || message.payload.first() == Some(&b'{') || self.unnumbered {
            return;
        }
        self.unnumbered = true;
        if self.restored {
            tracing::warn!(worker = %self.worker.id, "events carry no numbers; starting from an empty view");
            self.index.forget();
        }
    }

    /// Those events of a batch that could not be understood.
    fn note_rejected(&mut self, batch: &EventBatch, now: Instant) {
        let count = u64::try_from(batch.rejected_total()).unwrap_or(u64::MAX);
        self.worker.metrics.events("rejected", count);
        for rejected in &batch.rejected {
            let refusal = Refusal::Rejected(rejected.clone());
            self.source.course.trouble(now, &refusal.to_string());
            self.tell_refusal(&refusal);
        }
    }

    fn tell_refusal(&mut self, refusal: &Refusal) {
        if let Some(count) = self.refusals.count(refusal) {
            tracing::warn!(worker = self.worker.place(), count, why = %refusal, "events refused");
        }
    }

    /// Does what the repair says, and what it says to what comes of that.
    async fn act(&mut self) {
        self.is_torn = true;
        let mut lot = Lot::default();
        while !self.steps.is_empty() {
            let mut steps = std::mem::take(&mut self.steps);
            for step in steps.drain(..) {
                self.take(step, &mut lot).await;
            }
            if self.steps.is_empty() {
                self.steps = steps;
            }
        }
        self.is_torn = false;
        let held = self.repair.feed().held().0;
        self.worker.metrics.events_held.set(real_len(held));
        self.source.course.holds(held);
    }

    async fn take(&mut self, step: Step<EventBatch>, lot: &mut Lot) {
        match step {
            Step::Apply(batch) => self.apply(&batch, lot).await,
            Step::Clear(why) => {
                lot.add_walk().await;
                self.clear(why);
            }
            Step::Ask(ask) => self.ask(ask),
            Step::View(view) => {
                self.trust.set_view(view);
                self.worker.metrics.suspect.set(if view.is_doubted() { 1.0 } else { 0.0 });
                self.worker.metrics.cold.set(if view == ViewState::Cold { 1.0 } else { 0.0 });
            }
            Step::Repaired(repaired) => self.tell(&repaired),
        }
    }

    fn clear(&mut self, why: Emptied) {
        self.restoring.give_up();
        match why {
            Emptied::Lost(missing, reason) => {
                self.worker.metrics.event_gaps.increment(1);
                self.source.course.lost(missing);
                if self.index.names() > 0 {
                    let reason = reason.name();
                    tracing::warn!(worker = %self.worker.id, missing, reason, "events lost; starting from an empty view");
                }
            }
            Emptied::Restarted => {
                self.worker.metrics.event_restarts.increment(1);
                tracing::info!(worker = %self.worker.id, "the engine restarted");
                // What was being computed there is gone too.
                self.pool.scheduler.overlay().withdraw(self.worker.slot);
            }
        }
        self.index.forget();
    }

    /// A source that has no time to be asked is taken not to answer: it is asked again later.
    fn ask(&self, ask: Ask) {
        if let Err(error) = self.source.asks.try_send(ask) {
            tracing::debug!(worker = %self.worker.id, %error, "the event source cannot be asked");
        }
    }

    fn tell(&self, repaired: &Repaired) {
        let outcome = repaired.outcome.name();
        self.worker.metrics.repair(outcome);
        let (replayed, failures) = (repaired.replayed, repaired.failures);
        let took_ms = u64::try_from(repaired.took.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(worker = %self.worker.id, outcome, replayed, failures, took_ms, "view repaired");
    }
}

/// What `decode` makes of a message.
async fn decoded<R: Send + 'static>(message: &Message, decode: fn(&[u8]) -> R) -> R {
    let payload = message.payload.clone();
    aside(payload.len(), move || decode(&payload)).await
}

#[cfg(test)]
mod tests {
    use warmpath_core::ids::Slot;
    use warmpath_core::namespace::Namespace;
    use warmpath_core::units::BlockSize;
    use warmpath_core::workers::{Limits, Role};
    use warmpath_indexer::concurrent::ConcurrentIndex;
    use warmpath_indexer::feed::Patience;
    use warmpath_indexer::view::ViewSettings;

    use super::source::{Line, source};
    use super::*;
    use crate::fleet::health::Health;
    use crate::fleet::{Contract, Newcomer};
    use crate::link::{ClientTls, HEAD_MAX, LinkLimits, Links};
    use crate::shutdown::Tasks;
    use crate::telemetry::metrics::Metrics;

    const POISON: &[u8] = b"poison";

    /// A message that is made to kill whoever reads it.
    pub(super) fn buggify(message: &Message) {
        assert_ne!(message.payload, POISON, "on purpose");
    }

    fn worker() -> Arc<Worker> {
        let second = Duration::from_secs(1);
        let links = Links::new(
            LinkLimits { connect: second, idle: second, head: HEAD_MAX },
            ClientTls::default(),
            Tasks::new(),
        );
        let link = links.link(&http::uri::Scheme::HTTP, &"127.0.0.1:1".parse().unwrap()).unwrap();
        Arc::new(Worker::new(
            Slot(0),
            &Newcomer {
                id: "w".into(),
                rank: None,
                tells_rank: false,
                model: "m".into(),
                link: Arc::clone(&link),
                control: link,
                metrics: Metrics::new("w").worker("w", None),
                contract: Contract {
                    authorization: None,
                    limits: Limits { blocks: None, sequences: 1 },
                    role: Role::default(),
                },
                health: Health::presumed(),
                silence: None,
            },
        ))
    }

    /// Batch `seq` stores block `seq` behind the one before it.
    fn stored(seq: u64) -> Message {
        let parent = if seq == 0 { "null".to_owned() } else { (seq - 1).to_string() };
        let payload = format!(
            r#"{{"worker_id":"w","event":{{"event_id":{seq},"data":{{"stored":{{"parent_hash":{parent},
                "blocks":[{{"block_hash":{seq},"tokens_hash":{}}}]}}}}}}}}"#,
            seq + 1_000
        );
        Message { payload: payload.into(), seq: Some(seq), epoch: None }
    }

    /// The engine's end: answers every replay with all that was sent.
    async fn answer(line: Line, sent: u64) {
        while let Some(Ask::Replay { id, from }) = line.asked.recv().await {
            for seq in from..sent {
                line.tell.send(Heard::Replayed(id, stored(seq))).await.unwrap();
            }
            line.tell.send(Heard::ReplayEnded(id, ReplayEnd::Whole)).await.unwrap();
        }
    }

    /// An event task at work, and what is seen of it.
    struct Listening {
        tasks: Tasks,
        line: Line,
        index: Arc<ConcurrentIndex>,
        trust: Arc<Trust>,
        _stop: watch::Sender<Option<Instant>>,
    }

    fn listening(replays: bool) -> Listening {
        let pool = Arc::new(PoolState::listening("m", BlockSize::new(4).unwrap()));
        let index = Arc::new(ConcurrentIndex::new(100));
        let namespace = Namespace::plain("m", BlockSize::new(4).unwrap());
        let writer = index.writer(Slot(0), &ViewSettings { pool: namespace, seed: 1, blocks: 0 });
        let (source, line) = source(Abilities { patience: Patience::NONE, replays, snapshots: false }, 64);
        let (tasks, trust) = (Tasks::new(), Arc::<Trust>::default());
        let (stop, stopped) = watch::channel(None);
        tasks.spawn(EventTask::new((worker(), pool, Arc::clone(&trust)), writer, source).run(stopped));
        Listening { tasks, line, index, trust, _stop: stop }
    }

    /// What a worker's view has after each of these, and how far it is believed, where nobody can be asked for anything.
    async fn heard_alone(heard: impl IntoIterator<Item = Heard>) -> Vec<(usize, ViewState)> {
        let Listening { line, index, trust, .. } = &listening(false);
        let mut known = Vec::new();
        for heard in heard {
            line.tell.send(heard).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            known.push((index.entries(Slot(0)), trust.view()));
        }
        known
    }

    #[tokio::test(start_paused = true)]
    async fn r28_a_removal_that_cannot_be_read_leaves_nothing_to_be_matched() {
        let cleared = |seq: u64, tier: &str| {
            let text =
                format!(r#"{{"worker_id":"w","storage_tier":"{tier}","event":{{"event_id":{seq},"data":"cleared"}}}}"#);
            Heard::Live(Message { payload: text.into(), seq: Some(seq), epoch: None })
        };
        let known = heard_alone([Heard::Live(stored(0)), cleared(1, "tape"), cleared(2, "disk")]).await;
        assert_eq!(known, [(1, ViewState::Current), (1, ViewState::Current), (0, ViewState::Cold)]);
    }

    /// Batch 1 was not missed, and yet what it hangs below was: another process said it.
    #[tokio::test(start_paused = true)]
    async fn r24_an_orphan_right_behind_a_reconnection_empties_the_view() {
        let text = String::from_utf8(stored(8).payload.to_vec()).unwrap().replace("\"event_id\":8", "\"event_id\":1");
        let orphan = Message { payload: text.into(), seq: Some(1), epoch: None };
        let known = heard_alone([Heard::Live(stored(0)), Heard::Connected, Heard::Live(orphan)]).await;
        assert_eq!(known, [(1, ViewState::Current), (1, ViewState::Unproven), (0, ViewState::Cold)]);
    }

    #[tokio::test(start_paused = true)]
    async fn r34_an_event_task_that_panics_begins_again_and_knows_all_again() {
        let Listening { tasks, line, index, trust, .. } = &listening(true);
        tasks.spawn(answer(line.clone(), 3));
        let settle = || tokio::time::sleep(Duration::from_secs(1));
        line.tell.send(Heard::Connected).await.unwrap();
        settle().await;
        assert_eq!((index.entries(Slot(0)), trust.view()), (3, ViewState::Current));
        let poison = Message { payload: POISON.into(), seq: Some(3), epoch: None };
        line.tell.send(Heard::Live(poison)).await.unwrap();
        settle().await;
        assert_eq!((index.entries(Slot(0)), trust.view()), (3, ViewState::Current), "a second later all is there");
        line.tell.send(Heard::Live(stored(3))).await.unwrap();
        settle().await;
        assert_eq!(index.entries(Slot(0)), 4);
        assert_eq!(tasks.len(), 2);
    }
}
