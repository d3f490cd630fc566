//! `routing`: which worker a request goes to.

use serde::{Deserialize, Deserializer, Serialize, de};
use warmpath_core::admission::OnAllBusy;
use warmpath_core::cost::kv::KvWeights;
use warmpath_core::cost::logit::LogitWeights;
use warmpath_core::policy::{PolicyName, Weights};

/// The policy, its weights, and what happens when it has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Routing {
    /// How a worker is chosen.
    pub policy: PolicyName,
    /// How a worker is chosen for a request whose token ids are unknown, and where `policy` prefers none. A baseline:
    /// it needs neither tokens nor events, and so always has an answer.
    #[serde(deserialize_with = "baseline")]
    pub fallback: PolicyName,
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

impl Routing {
    /// The weights of all policies.
    pub fn weights(&self) -> Weights {
        Weights { kv: self.kv, logit: self.logit }
    }
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            policy: PolicyName::Kv,
            fallback: PolicyName::LeastRequests,
            on_all_busy: OnAllBusy::LeastLoaded,
            seed: None,
            kv: KvWeights::default(),
            logit: LogitWeights::default(),
        }
    }
}

fn baseline<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PolicyName, D::Error> {
    let policy = PolicyName::deserialize(deserializer)?;
    if policy.is_baseline() {
        return Ok(policy);
    }
    let baselines = PolicyName::ALL.iter().filter(|policy| policy.is_baseline()).map(|policy| policy.as_str());
    let baselines = baselines.collect::<Vec<_>>().join(", ");
    Err(de::Error::custom(format_args!("`{policy}` may have no answer; a fallback is one of {baselines}")))
}
