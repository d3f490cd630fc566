//! What became of a trace in a simulated fleet.

use rand::rngs::Xoshiro256PlusPlus;
use warmpath_core::scheduler::{Explanation, Question};

use crate::clock::Ms;

/// Everything that a report is made of. The same for equal scenarios.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The requests in order of arrival.
    pub requests: Vec<RequestOutcome>,
    /// Gaps between the tokens of a request, in ms, each with its request's number, in order of time.
    pub gaps: Vec<(u32, f32)>,
    /// The fleet from time to time.
    pub samples: Vec<Sample>,
    /// When the last request ended.
    pub end: Ms,
    /// Times that a request lost its blocks to another.
    pub preemptions: usize,
    /// Time that each worker spent in steps.
    pub busy: Vec<Ms>,
    /// The decisions that were to be told, in order of time.
    pub decided: Vec<Decided>,
}

/// Where a request was sent, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// Its number, from 0.
    pub request: usize,
    /// When.
    pub at: Ms,
    /// Workers that had failed it already.
    pub avoided: u32,
    /// All candidates, and what each costs.
    pub explanation: Explanation,
    /// What was asked, and with which chance.
    pub asked: (Question, Xoshiro256PlusPlus),
}

/// What became of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestOutcome {
    /// When it arrived.
    pub arrived: Ms,
    /// The number of the worker that it went to, from 0; none where no worker took it.
    pub worker: Option<u16>,
    /// Whether it was answered whole.
    pub completed: bool,
    /// Why not, where it has ended and was not.
    pub failure: Option<Failure>,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Of these, found in the engine's cache.
    pub cached_tokens: u32,
    /// The same as the router predicted it.
    pub predicted_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// From its arrival to the step that admitted it.
    pub queued: Ms,
    /// From its arrival to its first token.
    pub ttft: Ms,
    /// From its arrival to its last token.
    pub e2e: Ms,
}

/// Why a request was not answered whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Failure {
    /// Its prompt is empty, or longer than an engine's cache.
    #[error("refused")]
    Refused,
    /// Prompt and answer filled its engine's cache before the answer was as long as it was asked for.
    #[error("cut short by the size of the cache")]
    CutShort,
    /// Its worker died when its first token had come.
    #[error("lost with a worker")]
    WorkerDied,
    /// There was no worker that had not failed it.
    #[error("without a worker")]
    NoWorker,
}

/// The fleet at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// When.
    pub at: Ms,
    /// Deviation of the workers' KV load over its mean, by the router's account.
    pub balance: f64,
    /// Requests that wait, by worker.
    pub waiting: Vec<u32>,
    /// Requests that run, by worker.
    pub running: Vec<u32>,
    /// Prompt tokens of the requests with a first token so far.
    pub input_tokens: u64,
    /// Of these, found in caches.
    pub cached_tokens: u64,
}
