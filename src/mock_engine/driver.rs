//! The engine in scaled real time: the only owner of the simulated engine, and the clock of its steps.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use warmpath_simulator::{Engine, EngineConfig, Ms, Refused, RequestId, SimRequest, Step, TokenOut};

use super::exposition::{Exposition, RankMetrics};
use super::wire::Wire;
use crate::events::publish::faults::EventFaults;
use crate::events::publish::zmq::ReplayFault;

/// Commands that wait for the end of a step.
const COMMANDS: usize = 8192;

/// Sequences that wait for their first step; real engines have no such bound, but run on machines of their own.
const WAITING_MAX: usize = 65_536;

/// What the HTTP side asks of the engine.
pub(super) enum Command {
    /// Queue a request; its tokens go to the sender.
    Submit(Box<Submission>),
    /// Its client has left.
    Abort(RequestId),
    /// Empty the cache. Answered with whether nothing ran.
    Reset(oneshot::Sender<bool>),
    /// Start anew with an empty cache, as a new process would: what runs is lost, batches count from 0.
    Restart(oneshot::Sender<()>),
    /// What goes wrong with events from now on.
    Fault(EventFaults, ReplayFault, oneshot::Sender<()>),
}

/// A request and where its tokens go.
pub(super) struct Submission {
    /// The request.
    pub request: SimRequest,
    /// As many as it may generate, so that nobody's slowness stops the engine.
    pub tokens: mpsc::Sender<TokenOut>,
    /// Whether it was queued.
    pub queued: oneshot::Sender<Result<(), NotQueued>>,
}

/// Why a request was not queued.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotQueued {
    /// It could never run.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Too many wait.
    #[error("{WAITING_MAX} sequences are waiting already")]
    Full,
    /// Nobody is there to run it.
    #[error("the engine is shutting down")]
    Gone,
}

/// The way to the engine.
pub(super) type Commands = mpsc::Sender<Command>;

/// A queue of commands.
pub(super) fn commands() -> (Commands, mpsc::Receiver<Command>) {
    mpsc::channel(COMMANDS)
}

/// Runs the engine until nobody can command it any more.
pub(super) struct Driver {
    engine: Engine,
    config: EngineConfig,
    commands: mpsc::Receiver<Command>,
    wire: Wire,
    exposition: Arc<Exposition>,
    rank: u32,
    /// The processes that there were before.
    lives: u64,
    metrics: RankMetrics,
    clients: HashMap<RequestId, mpsc::Sender<TokenOut>>,
    clock: Clock,
}

/// Virtual time that runs `speedup` times as fast as real time while the engine is idle, and by the lengths of its steps
/// while it is busy: a timer that fires late does not make the engine slower.
struct Clock {
    start: Instant,
    speedup: f64,
    now: Ms,
}

impl Clock {
    fn real(&self, virtual_time: Ms) -> Instant {
        self.start + Duration::from_secs_f64((virtual_time.0 / 1e3 / self.speedup).max(0.0))
    }

    fn catch_up(&mut self) {
        let elapsed = Ms(self.start.elapsed().as_secs_f64() * 1e3 * self.speedup);
        if elapsed > self.now {
            self.now = elapsed;
        }
    }
}

impl Driver {
    /// A driver of the `engine` of a rank, `speedup` times as fast as the engine would be.
    pub(super) fn new(
        (engine, config): (Engine, EngineConfig),
        commands: mpsc::Receiver<Command>,
        wire: Wire,
        (exposition, rank): (Arc<Exposition>, u32),
        speedup: f64,
    ) -> Self {
        let clock = Clock { start: Instant::now(), speedup, now: Ms::ZERO };
        let metrics = exposition.rank(rank, 0);
        Self { engine, config, commands, wire, exposition, rank, lives: 0, metrics, clients: HashMap::new(), clock }
    }

    /// Steps while there is work, and sleeps otherwise. What a step did is told when it has lasted as long as it does; until
    /// then, what it is busy with.
    pub(super) async fn run(mut self) {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.obey(command);
            }
            let Some(step) = self.engine.step(self.clock.now) else {
                self.metrics.ended(&self.engine.stats());
                let Some(command) = self.commands.recv().await else { return };
                self.clock.catch_up();
                self.obey(command);
                continue;
            };
            self.metrics.levels(&self.engine.scheduled());
            self.clock.now += step.duration;
            sleep_until(self.clock.real(self.clock.now)).await;
            self.metrics.ended(&self.engine.stats());
            self.finish(step);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => {
                let Submission { request, tokens, queued } = *submission;
                let id = request.id;
                let result = self.submit(request);
                if result.is_ok() {
                    self.metrics.arrived(id, self.clock.now);
                    self.clients.insert(id, tokens);
                }
                if queued.send(result).is_err() {
                    self.abort(id);
                }
            }
            Command::Abort(id) => self.abort(id),
            Command::Reset(answer) => {
                // Nobody may be waiting for the answer any more.
                let _ = answer.send(self.engine.clear().is_ok());
            }
            Command::Restart(answer) => {
                self.restart();
                let _ = answer.send(());
            }
            Command::Fault(events, replay, answer) => {
                self.wire.set_faults(events, replay);
                let _ = answer.send(());
            }
        }
    }

    fn restart(&mut self) {
        self.clients.clear();
        match Engine::new(self.config.clone()) {
            Ok(engine) => self.engine = engine,
            Err(error) => return tracing::error!(%error, "the engine could not start again"),
        }
        self.lives += 1;
        self.metrics = self.exposition.rank(self.rank, self.lives);
        self.wire.restart();
    }

    fn submit(&mut self, request: SimRequest) -> Result<(), NotQueued> {
        if self.engine.stats().levels.waiting >= WAITING_MAX {
            return Err(NotQueued::Full);
        }
        Ok(self.engine.submit(self.clock.now, request)?)
    }

    fn abort(&mut self, id: RequestId) {
        if self.clients.remove(&id).is_some() {
            self.metrics.left(id);
            self.engine.abort(id);
        }
    }

    fn finish(&mut self, step: Step) {
        self.wire.publish(&step.events);
        for token in step.tokens {
            self.metrics.token(&token, self.clock.now);
            let id = token.id;
            let finished = token.finished.is_some();
            let gone = self.clients.get(&id).is_some_and(|client| client.try_send(token).is_err());
            if finished {
                self.clients.remove(&id);
            } else if gone {
                self.abort(id);
            }
        }
    }
}
