//! A policy: a cost function, how its costs become a choice, and what it learns.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cost::CostFunction;
use crate::cost::baselines::{LeastRequests, Random, RoundRobin};
use crate::cost::kv::{Kv, KvWeights};
use crate::cost::logit::{Logit, LogitWeights};
use crate::observe::Learn;
use crate::pick::Pick;

/// The policies by name, as YAML and the commands spell them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    /// Lowest sum of load deviation, missing prefill and queue depth.
    #[default]
    Kv,
    /// Highest cached share minus use and queue.
    Logit,
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
    /// Fewest in flight.
    LeastRequests,
    /// The one with fewer in flight of two drawn at random.
    PowerOfTwo,
}

impl PolicyName {
    /// Every policy.
    pub const ALL: [PolicyName; 6] = [
        PolicyName::Kv,
        PolicyName::Logit,
        PolicyName::RoundRobin,
        PolicyName::Random,
        PolicyName::LeastRequests,
        PolicyName::PowerOfTwo,
    ];

    /// The name as YAML spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyName::Kv => "kv",
            PolicyName::Logit => "logit",
            PolicyName::RoundRobin => "round_robin",
            PolicyName::Random => "random",
            PolicyName::LeastRequests => "least_requests",
            PolicyName::PowerOfTwo => "power_of_two",
        }
    }

    /// Whether it chooses without looking at caches. Such a policy always has a choice, and so can be a fallback.
    pub fn is_baseline(self) -> bool {
        !matches!(self, PolicyName::Kv | PolicyName::Logit)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The weights of every policy that has some.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weights {
    /// Of `kv`.
    pub kv: KvWeights,
    /// Of `logit`.
    pub logit: LogitWeights,
}

/// A policy at work in one pool.
pub struct Policy {
    /// Its name.
    pub name: PolicyName,
    /// What candidates cost.
    pub cost: Arc<dyn CostFunction>,
    /// How costs become a choice.
    pub pick: Pick,
    /// What it learns; most learn nothing.
    pub learn: Option<Arc<dyn Learn>>,
}

impl Policy {
    /// The policy of this name, with fresh state.
    pub fn new(name: PolicyName, weights: &Weights) -> Self {
        let (cost, pick): (Arc<dyn CostFunction>, Pick) = match name {
            PolicyName::Kv => (Arc::new(Kv(weights.kv)), Pick::CheapestLowestSlot),
            PolicyName::Logit => (Arc::new(Logit(weights.logit)), Pick::CheapestAtRandom),
            PolicyName::Random => (Arc::new(Random), Pick::CheapestAtRandom),
            PolicyName::LeastRequests => (Arc::new(LeastRequests), Pick::CheapestLowestSlot),
            PolicyName::PowerOfTwo => (Arc::new(LeastRequests), Pick::CheaperOfTwo),
            PolicyName::RoundRobin => {
                let round = Arc::new(RoundRobin::default());
                let cost = Arc::clone(&round);
                return Self { name, cost, pick: Pick::CheapestLowestSlot, learn: Some(round) };
            }
        };
        Self { name, cost, pick, learn: None }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policy({})", self.name)
    }
}
