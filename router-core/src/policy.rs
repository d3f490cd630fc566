//! A policy: a cost function, how its costs become a choice, and what it learns.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cost::CostFunction;
use crate::cost::approx_lru::{ApproxLru, LruWeights};
use crate::cost::approx_tree::{ApproxTree, TreeRule};
use crate::cost::baselines::{LeastRequests, Random, RoundRobin};
use crate::cost::kv::{Kv, KvWeights};
use crate::cost::logit::{Logit, LogitWeights};
use crate::history::History;
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
    /// The one that was sent most of the prompt before, while the fleet is balanced.
    ApproxTree,
    /// Highest share of the prompt that was sent before, minus queue and use.
    ApproxLru,
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
    pub const ALL: [PolicyName; 8] = [
        PolicyName::Kv,
        PolicyName::Logit,
        PolicyName::ApproxTree,
        PolicyName::ApproxLru,
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
            PolicyName::ApproxTree => "approx_tree",
            PolicyName::ApproxLru => "approx_lru",
            PolicyName::RoundRobin => "round_robin",
            PolicyName::Random => "random",
            PolicyName::LeastRequests => "least_requests",
            PolicyName::PowerOfTwo => "power_of_two",
        }
    }

    /// Whether it chooses without looking at caches. Such a policy always has a choice, and so can be a fallback.
    pub fn is_baseline(self) -> bool {
        !matches!(self, PolicyName::Kv | PolicyName::Logit | PolicyName::ApproxTree | PolicyName::ApproxLru)
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
    /// Of `approx_tree`.
    pub approx_tree: TreeRule,
    /// Of `approx_lru`.
    pub approx_lru: LruWeights,
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
    /// What each worker was sent; only the approximate policies look at it.
    pub history: Option<Arc<dyn History>>,
}

impl Policy {
    /// The policy of this name, with fresh state. One that goes by history is given it by
    /// [`with_history`](Self::with_history); without, all workers are alike to it.
    pub fn new(name: PolicyName, weights: &Weights) -> Self {
        let (cost, pick): (Arc<dyn CostFunction>, Pick) = match name {
            PolicyName::Kv => (Arc::new(Kv(weights.kv)), Pick::CheapestLowestSlot),
            PolicyName::Logit => (Arc::new(Logit(weights.logit)), Pick::CheapestAtRandom),
            PolicyName::ApproxTree => (Arc::new(ApproxTree(weights.approx_tree)), Pick::CheapestLowestSlot),
            PolicyName::ApproxLru => (Arc::new(ApproxLru(weights.approx_lru)), Pick::CheapestFewestRequests),
            PolicyName::Random => (Arc::new(Random), Pick::CheapestAtRandom),
            PolicyName::LeastRequests => (Arc::new(LeastRequests), Pick::CheapestLowestSlot),
            PolicyName::PowerOfTwo => (Arc::new(LeastRequests), Pick::CheaperOfTwo),
            PolicyName::RoundRobin => {
                let round = Arc::new(RoundRobin::default());
                let cost = Arc::clone(&round);
                return Self { name, cost, pick: Pick::CheapestLowestSlot, learn: Some(round), history: None };
            }
        };
        Self { name, cost, pick, learn: None, history: None }
    }

    /// The same with a memory of what each worker was sent.
    pub fn with_history(mut self, history: Option<Arc<dyn History>>) -> Self {
        self.history = history;
        self
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policy({})", self.name)
    }
}
