//! The configuration: one YAML file in which every key has a default.
//!
//! A value that does not fit fails while it is parsed, so a [`Config`] that was loaded needs no second look. All faults
//! are reported at once, each with its place. Nothing else in Warmpath reads files or the environment to configure
//! itself. `config/warmpath.yaml` has every key with its default and a reason.

mod address;
mod bounds;
mod check;
mod decisions;
mod decode;
mod discovery;
mod document;
mod endpoint;
mod engines;
mod events;
mod fault;
mod fleet;
mod inputs;
mod kubernetes;
mod leaves;
mod listen;
mod live;
mod objectives;
mod passthrough;
mod place;
mod quantity;
mod queue;
mod reading;
mod record;
mod reference;
mod remarks;
mod routing;
mod schema;
mod secrecy;
mod sessions;
mod shape;
mod simulated;
mod tls;
mod tokenize;
mod tracing;
mod upstream_tls;
mod zmq;
mod zmq_rules;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use address::{BaseUrl, NatsUrl, Secret, checked_authority};
pub use bounds::{Health, Limits, Retries, Timeouts};
pub use decisions::Decisions;
pub use discovery::{Discovery, DnsSource, FileSource, NatsSource, Records};
pub use endpoint::ZmqEndpoint;
pub use engines::{Engines, MetricNames};
pub use events::{Events, Index, JetStream, Nats, subject_prefix};
pub use fault::Fault;
pub use fleet::{DP_RANKS_MAX, EventSource, Model, TemplateVariables, TokenizerSource, Worker};
pub use inputs::{Environment, Override};
pub use kubernetes::{KubernetesSource, Port};
pub use leaves::{Leaf, Origin, Origins, leaves};
pub use listen::{Listen, Log, LogFormat, LogLevel, Metrics};
pub use live::{Change, adopted, changes, is_live};
pub use objectives::{ClassObjectives, Promised};
pub use passthrough::PassedPath;
pub use place::{Place, Spanned};
pub use quantity::{Allowance, ByteSize, Period};
pub use queue::{ClassWeights, HeaderField, Queue};
pub use reading::Reading;
pub use record::RecordSize;
pub use reference::reference;
pub use routing::{ApproxLru, ApproxTree, Baseline, Predict, Routing, Trust};
pub use schema::schema;
pub use sessions::{SessionField, Sessions};
pub use tls::Tls;
pub use tokenize::Tokenize;
pub use tracing::{OtlpUrl, SentHeaders, Tracing};
pub use upstream_tls::UpstreamTls;
pub use zmq::Zmq;

/// Everything that can be configured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where Warmpath is reached.
    pub listen: Listen,
    /// What is served.
    pub models: Vec<Model>,
    /// Who serves it.
    pub workers: Vec<Worker>,
    /// Where further workers come from.
    pub discovery: Discovery,
    /// Which worker a request goes to.
    pub routing: Routing,
    /// Who waits while every worker is full.
    pub queue: Queue,
    /// How the engines' KV-cache events arrive.
    pub events: Events,
    /// What is remembered of them.
    pub index: Index,
    /// What engines say of their load.
    pub engines: Engines,
    /// What finding a prompt's tokens may cost.
    pub tokenize: Tokenize,
    /// How workers with an `https` url are spoken to.
    pub upstream_tls: UpstreamTls,
    /// Bounds on what clients may send.
    pub limits: Limits,
    /// Bounds on waiting.
    pub timeouts: Timeouts,
    /// How workers are taken out and brought back.
    pub health: Health,
    /// What is tried again.
    pub retries: Retries,
    /// What is kept of the last decisions.
    pub decisions: Decisions,
    /// How metrics are named.
    pub metrics: Metrics,
    /// What is logged and how.
    pub log: Log,
    /// Where spans of requests are sent.
    pub tracing: Tracing,
    /// When `/readyz` says yes.
    pub ready_when: ReadyWhen,
    /// When answers tell how many tokens they cost.
    pub usage: Usage,
    /// Where finished requests are recorded; none: they are not.
    #[serde(deserialize_with = "record::file")]
    pub record: Option<PathBuf>,
    /// The size of that file.
    pub record_size: RecordSize,
}

/// When the router counts as ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadyWhen {
    /// One healthy worker for each model.
    #[default]
    Any,
    /// Every worker is healthy.
    All,
}

/// When answers tell how many tokens they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Usage {
    /// Where the client asked for it: bodies are forwarded as they came.
    #[default]
    AsAsked,
    /// Of every stream the router learns it: bodies that do not ask for it get the wish, and the client does not see the
    /// answer to it.
    Always,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// It can, but not be followed. Displays as one line a fault.
    #[error("{}", .0.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n"))]
    Faulty(Vec<Fault>),
}

impl ConfigError {
    /// What a command exits with: 2 where there was nothing to read, 1 where there are faults.
    pub fn exit_code(&self) -> u8 {
        match self {
            ConfigError::Unreadable { .. } => 2,
            ConfigError::Faulty(_) => 1,
        }
    }
}

impl Config {
    /// Reads a file, with the overrides and secrets of this process's environment.
    ///
    /// # Errors
    /// The file cannot be read, or has faults: all of them.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_in(&Environment::of_process(), path)
    }

    /// Reads a file, with the overrides and secrets of this environment.
    ///
    /// # Errors
    /// The file cannot be read, or has faults: all of them.
    pub fn load_in(environment: &Environment, path: &Path) -> Result<Self, ConfigError> {
        Reading::of_file(path, environment)
            .map_err(|why| ConfigError::Unreadable { path: path.to_owned(), why })?
            .into_config()
    }

    /// Reads a file for its policies and their weights, such as what `tune` writes: nothing is said of a fleet that is missing.
    ///
    /// # Errors
    /// The file cannot be read, or has other faults: all of them.
    pub fn load_policies(path: &Path) -> Result<Self, ConfigError> {
        Reading::policies_of_file(path, &Environment::of_process())
            .map_err(|why| ConfigError::Unreadable { path: path.to_owned(), why })?
            .into_config()
    }

    /// Reads a text that a program made; `name` stands for its file in messages. The environment is left out.
    ///
    /// # Errors
    /// All its faults.
    pub fn parse(name: &str, text: String) -> Result<Self, ConfigError> {
        Reading::of_text(name, text, Path::new(""), &Environment::default()).into_config()
    }

    /// Reads a file with a list of workers, in the form of `workers` here and under the same rules: the list itself, or a
    /// section `workers`. Secrets in it come from the environment of this process.
    ///
    /// # Errors
    /// The file cannot be read, or has faults: all of them.
    pub fn load_workers(&self, path: &Path) -> Result<Vec<Worker>, ConfigError> {
        Reading::workers_of_file(path, self, &Environment::of_process())
            .map_err(|why| ConfigError::Unreadable { path: path.to_owned(), why })?
    }

    /// Where the events of `worker` come from.
    pub fn event_source(&self, worker: &Worker) -> EventSource {
        worker.event_source(self.events.nats.url.is_some())
    }

    /// Where rank 0 of `worker` publishes over ZeroMQ; none where it connects to us, and the ranks' ports follow. None,
    /// too, where the worker's host is no name or address.
    pub fn zmq_events(&self, worker: &Worker) -> Option<ZmqEndpoint> {
        match &worker.zmq_endpoint {
            Some(endpoint) => Some(endpoint.value.clone()),
            None if self.events.zmq.bind.is_some() => None,
            None => worker.zmq_at(self.events.zmq.port.value),
        }
    }

    /// Where rank 0 of `worker` replays, if it does.
    pub fn zmq_replay(&self, worker: &Worker) -> Option<ZmqEndpoint> {
        match (&worker.zmq_replay, &self.events.zmq.replay_port) {
            (Some(endpoint), _) => Some(endpoint.value.clone()),
            (None, port) => worker.zmq_at(port.as_ref()?.value),
        }
    }
}
