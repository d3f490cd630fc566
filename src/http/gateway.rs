//! What every handler of the data port shares.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use warmpath_core::ids::RequestKey;
use warmpath_core::overlap::PrefixIndex;
use warmpath_core::retry::RetryRules;
use warmpath_core::scheduler::Scratch;

use super::sender::Senders;
use crate::config::{ClassObjectives, PassedPath};
use crate::decisions::Decisions;
use crate::door::{Intake, IntakeFault, read_whole};
use crate::error::GatewayError;
use crate::fleet::Fleet;
use crate::room::Room;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::otlp::Exporter;
use crate::upstream::Upstream;
use crate::upstream::guard::Guard;
use crate::upstream::record::Recorder;

/// Scratch buffers that are kept; more requests than this are seldom placed at one instant.
const SCRATCHES: usize = 64;

/// Buffers that wait for a placement.
type Scratches = Vec<Box<Scratch>>;

/// One gateway at work.
pub struct Gateway {
    /// The workers.
    pub fleet: Arc<Fleet>,
    /// What they hold.
    pub index: Arc<dyn PrefixIndex>,
    /// The way to them.
    pub upstream: Upstream,
    /// What is measured.
    pub metrics: Metrics,
    /// How it behaves.
    pub behaviour: Behaviour,
    /// Requests that may have killed workers.
    pub guard: Arc<Guard>,
    /// What is written down of its decisions.
    pub decisions: Arc<Decisions>,
    /// Paths that are passed through, beside those with a handler of their own.
    pub passthrough: Vec<PassedPath>,
    room: Room,
    answers: Room,
    /// Who is told of finished requests, where they are recorded.
    pub recorder: Option<Recorder>,
    /// Who is told of every request that has ended, where spans are sent.
    pub exporter: Option<Exporter>,
    keys: Arc<AtomicU64>,
    scratches: Arc<Mutex<Scratches>>,
}

/// How a gateway behaves.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Bounds on a request's body.
    pub intake: Intake,
    /// Bytes of all requests' bodies at once.
    pub all_body_bytes: u64,
    /// Messages of a chat, or prompts of a completion.
    pub messages_max: usize,
    /// Time for a whole request, retries included.
    pub total_timeout: Duration,
    /// What is tried again.
    pub retries: RetryRules,
    /// How long a request under which two workers broke is refused.
    pub suspicion: Duration,
    /// Whether the prompts of requests are read: for their policy, or for what is predicted.
    pub reads_prompts: bool,
    /// Of how many characters the beginning of a text is made for who asks where no policy here looks at it.
    pub opening_characters: NonZeroU32,
    /// What the classes were promised.
    pub objectives: ClassObjectives,
    /// Seed of `index.seed`.
    pub index_seed: u64,
    /// Seed of chance in decisions.
    pub seed: u64,
    /// Whether answers carry `x-warmpath-*` headers.
    pub expose_decisions: bool,
    /// Whether each request is a line in the log.
    pub logs_access: bool,
    /// The share of the traces beginning here that is recorded.
    pub sample: f64,
    /// How senders and their urgency are known.
    pub senders: Senders,
    /// Whether streams whose clients do not ask for usage get the wish.
    pub asks_usage: bool,
}

impl Gateway {
    /// A gateway to `fleet`.
    pub fn new(
        fleet: Arc<Fleet>,
        index: Arc<dyn PrefixIndex>,
        upstream: Upstream,
        metrics: Metrics,
        behaviour: Behaviour,
    ) -> Self {
        let decisions = Arc::new(Decisions::new(0, 0));
        let guard = Arc::new(Guard::new(behaviour.suspicion));
        let (keys, scratches) = (Arc::default(), Arc::default());
        let [room, answers] = [(), ()].map(|()| Room::new(behaviour.all_body_bytes));
        let (passthrough, recorder, exporter) = (Vec::new(), None, None);
        Self {
            fleet,
            index,
            upstream,
            metrics,
            behaviour,
            guard,
            decisions,
            passthrough,
            recorder,
            exporter,
            room,
            answers,
            keys,
            scratches,
        }
    }

    /// The same, with these paths passed through.
    pub fn with_passthrough(self, passthrough: Vec<PassedPath>) -> Self {
        Self { passthrough, ..self }
    }

    /// The same, with decisions written down in `decisions`.
    pub fn with_decisions(self, decisions: Arc<Decisions>) -> Self {
        Self { decisions, ..self }
    }

    /// The same, with finished requests told to `recorder`.
    pub fn with_recorder(self, recorder: Option<Recorder>) -> Self {
        Self { recorder, ..self }
    }

    /// The same, with requests' spans told to `exporter`.
    pub fn with_exporter(self, exporter: Option<Exporter>) -> Self {
        Self { exporter, ..self }
    }

    /// Another one in its place, for the requests to come: the same fleet, counters and bounds, unless those are set
    /// otherwise.
    pub fn succeeding(&self, upstream: Upstream, behaviour: Behaviour, passthrough: Vec<PassedPath>) -> Self {
        let same_room = behaviour.all_body_bytes == self.behaviour.all_body_bytes;
        let room = |old: &Room| if same_room { old.clone() } else { Room::new(behaviour.all_body_bytes) };
        Self {
            fleet: Arc::clone(&self.fleet),
            index: Arc::clone(&self.index),
            upstream,
            metrics: self.metrics.clone(),
            guard: Arc::clone(&self.guard),
            decisions: Arc::clone(&self.decisions),
            passthrough,
            room: room(&self.room),
            answers: room(&self.answers),
            recorder: self.recorder.clone(),
            exporter: self.exporter.clone(),
            keys: Arc::clone(&self.keys),
            scratches: Arc::clone(&self.scratches),
            behaviour,
        }
    }

    /// A name for the next request.
    pub fn next_key(&self) -> RequestKey {
        RequestKey(self.keys.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs `place` with warm buffers of its own; nobody waits for another's placement.
    pub fn with_scratch<T>(&self, place: impl FnOnce(&mut Scratch) -> T) -> T {
        let pooled = self.scratches().pop();
        let mut scratch = pooled.unwrap_or_else(|| {
            // Equal seeds would make concurrent requests draw alike.
            let scratch = Scratch::new(self.behaviour.seed.wrapping_add(self.next_key().0));
            // Who writes nothing down needs no reasons.
            Box::new(if self.decisions.keeps_any() { scratch.aloud() } else { scratch })
        });
        let result = place(&mut scratch);
        let mut scratches = self.scratches();
        if scratches.len() < SCRATCHES {
            scratches.push(scratch);
        }
        result
    }

    fn scratches(&self) -> std::sync::MutexGuard<'_, Scratches> {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole body of a request that came at `since`, within its limits.
    ///
    /// # Errors
    /// When it is too large, too slow or broken, or there are too many others.
    pub async fn read_body(&self, body: Body, since: Instant) -> Result<Bytes, GatewayError> {
        read_whole(body, since.into(), &self.behaviour.intake, &self.room).await.map_err(|fault| match fault {
            IntakeFault::TooLarge => GatewayError::BodyTooLarge { limit: self.behaviour.intake.bytes_max },
            IntakeFault::NoRoom => GatewayError::NoRoom,
            IntakeFault::TooSlow => GatewayError::BodyTimeout,
            IntakeFault::Broken => GatewayError::Body,
        })
    }

    /// Room for bodies of all requests together.
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// Room for answers that are held back until they are whole, of all requests together.
    pub fn answers(&self) -> &Room {
        &self.answers
    }

    /// The answer to a request that never had a pool.
    pub fn refuse(&self, error: GatewayError) -> Response {
        self.metrics.refused(error.outcome());
        error.into_response()
    }
}
