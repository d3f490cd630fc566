//! `routing`: which worker a request goes to.

use serde::{Deserialize, Serialize};
use warmpath_core::cost::{KvWeights, LogitWeights};

/// The policy, its weights, and what happens when it has no answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Routing {
    /// How a worker is chosen.
    pub policy: Policy,
    /// How a worker is chosen for a request whose token ids are unknown, and where `policy` prefers none.
    pub fallback: Baseline,
    /// What happens to a request while every worker computes as many as it can.
    pub on_all_busy: OnAllBusy,
    /// Makes every random choice repeatable; `None`: the operating system's chance. Replicas with equal seeds choose
    /// alike and so crowd the same workers.
    pub seed: Option<u64>,
    /// Weights of the policy `kv`.
    pub kv: KvWeights,
    /// Weights of the policy `logit`.
    pub logit: LogitWeights,
}

/// How a worker is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The least cost of load, prefill that the cache does not save, and occupied slots.
    #[default]
    Kv,
    /// The most of cached prompt against cache usage and waiting requests.
    Logit,
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
    /// The one with the fewest requests in flight.
    LeastRequests,
    /// The one with fewer requests of two drawn at random.
    PowerOfTwo,
}

/// A policy that needs neither tokens nor events, and so always has an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Baseline {
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
    /// The one with the fewest requests in flight.
    #[default]
    LeastRequests,
    /// The one with fewer requests of two drawn at random.
    PowerOfTwo,
}

/// What happens to a request while every worker is busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnAllBusy {
    /// The least loaded worker gets it nevertheless, and queues it itself.
    #[default]
    LeastLoaded,
    /// The client gets 503 with `Retry-After`.
    Error,
}

impl Policy {
    /// The name in a configuration, in metrics and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::Logit => "logit",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::LeastRequests => "least_requests",
            Self::PowerOfTwo => "power_of_two",
        }
    }
}

impl From<Baseline> for Policy {
    fn from(baseline: Baseline) -> Self {
        match baseline {
            Baseline::RoundRobin => Self::RoundRobin,
            Baseline::Random => Self::Random,
            Baseline::LeastRequests => Self::LeastRequests,
            Baseline::PowerOfTwo => Self::PowerOfTwo,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_written_by_its_name() {
        use Policy::{Kv, LeastRequests, Logit, PowerOfTwo, Random, RoundRobin};
        for policy in [Kv, Logit, RoundRobin, Random, LeastRequests, PowerOfTwo] {
            assert_eq!(serde_json::to_value(policy).unwrap(), policy.name());
        }
        use Baseline as B;
        for baseline in [B::RoundRobin, B::Random, B::LeastRequests, B::PowerOfTwo] {
            assert_eq!(serde_json::to_value(baseline).unwrap(), Policy::from(baseline).name());
        }
    }
}
