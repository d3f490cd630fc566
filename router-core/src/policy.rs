//! A policy: a cost function, how its costs become a choice, and what it learns.

use std::fmt;
use std::sync::Arc;

use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::cost::affinity::{Affinity, AffinityRule};
use crate::cost::aibrix::{Aibrix, AibrixRule};
use crate::cost::approx_lru::{ApproxLru, LruWeights};
use crate::cost::approx_tree::{ApproxTree, TreeRule};
use crate::cost::baselines::{LeastRequests, Random, RoundRobin};
use crate::cost::blocks::{BlockSum, BlocksWeights};
use crate::cost::chwbl::{Chwbl, ChwblRule};
use crate::cost::kv::{Kv, KvWeights};
use crate::cost::logit::{Logit, LogitWeights};
use crate::cost::preble::{Preble, PrebleWeights};
use crate::cost::predicted::Predicted;
use crate::cost::product::Product;
use crate::cost::{Among, Candidate, Cost, CostFunction, Needs};
use crate::history::History;
use crate::ids::SequenceHash;
use crate::observe::{Enrol, Event, Learn, Observation, Side};
use crate::pick::Pick;
use crate::shape::Shape;

/// The policies by name, as YAML and the commands spell them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    /// Lowest sum of load deviation, missing prefill and queue depth.
    #[default]
    Kv,
    /// Highest cached share minus use and queue.
    Logit,
    /// Lowest sum of blocks to be computed and blocks in use.
    Blocks,
    /// Lowest product of tokens to be computed and requests in flight.
    Product,
    /// Least to compute among those that hold nearly all of the prompt.
    Affinity,
    /// By consistent hashing of the prompt's beginning, with bounded loads.
    Chwbl,
    /// The longest match where it pays, else what was sent the least lately.
    Preble,
    /// The longest match among those that are not busier than usual.
    Aibrix,
    /// The soonest first token that is predicted, with what that takes from others.
    Predicted,
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
    pub const ALL: [PolicyName; 15] = [
        PolicyName::Kv,
        PolicyName::Logit,
        PolicyName::Blocks,
        PolicyName::Product,
        PolicyName::Affinity,
        PolicyName::Chwbl,
        PolicyName::Preble,
        PolicyName::Aibrix,
        PolicyName::Predicted,
        PolicyName::ApproxTree,
        PolicyName::ApproxLru,
        PolicyName::RoundRobin,
        PolicyName::Random,
        PolicyName::LeastRequests,
        PolicyName::PowerOfTwo,
    ];

    /// Among whom it chooses.
    pub fn among(self) -> Among {
        if self == Self::Predicted { Among::OpenAndFull } else { Among::Open }
    }

    /// The name as YAML spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyName::Kv => "kv",
            PolicyName::Logit => "logit",
            PolicyName::Blocks => "blocks",
            PolicyName::Product => "product",
            PolicyName::Affinity => "affinity",
            PolicyName::Chwbl => "chwbl",
            PolicyName::Preble => "preble",
            PolicyName::Aibrix => "aibrix",
            PolicyName::Predicted => "predicted",
            PolicyName::ApproxTree => "approx_tree",
            PolicyName::ApproxLru => "approx_lru",
            PolicyName::RoundRobin => "round_robin",
            PolicyName::Random => "random",
            PolicyName::LeastRequests => "least_requests",
            PolicyName::PowerOfTwo => "power_of_two",
        }
    }

    /// Whether it learns: then what it chooses hangs on what it has seen, beside what it is asked.
    pub fn learns(self) -> bool {
        matches!(self, PolicyName::Preble | PolicyName::Predicted | PolicyName::RoundRobin)
    }

    /// Whether it goes by what workers were sent before.
    pub fn goes_by_history(self) -> bool {
        matches!(self, PolicyName::ApproxTree | PolicyName::ApproxLru)
    }

    /// Whether it has weights, so that a configuration can change what candidates cost.
    pub fn has_weights(self) -> bool {
        !self.is_baseline() && !matches!(self, PolicyName::Predicted | PolicyName::Product)
    }

    /// Whether it chooses without looking at caches. Such a policy always has a choice, and so can be a fallback.
    pub fn is_baseline(self) -> bool {
        matches!(self, PolicyName::RoundRobin | PolicyName::Random | PolicyName::LeastRequests | PolicyName::PowerOfTwo)
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
    /// Of `blocks`.
    pub blocks: BlocksWeights,
    /// Of `affinity`.
    pub affinity: AffinityRule,
    /// Of `chwbl`.
    pub chwbl: ChwblRule,
    /// Of `preble`.
    pub preble: PrebleWeights,
    /// Of `aibrix`.
    pub aibrix: AibrixRule,
    /// Of `approx_tree`.
    pub approx_tree: TreeRule,
    /// Of `approx_lru`.
    pub approx_lru: LruWeights,
}

/// A policy at work in one pool. A clone shares what it has learned.
#[derive(Clone)]
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
    /// What goes by the targets' names; most go by none.
    pub enrol: Option<Arc<dyn Enrol>>,
    /// What it looks at that others do not.
    pub needs: Needs,
}

/// What `predicted` hears: of who fails by nobody's fault but its own that it is withdrawn, before that it has failed.
struct Withdrawing(Arc<Predicted>);

impl Learn for Withdrawing {
    fn observe(&self, observation: &Observation) {
        if let Event::Failed { side: Side::Client | Side::Router } = observation.event {
            self.0.withdraw(observation);
        }
        self.0.observe(observation);
    }

    fn trunk(&self, path: &[SequenceHash]) -> Option<usize> {
        self.0.trunk(path)
    }

    fn before(&self, path: &[SequenceHash]) -> Option<usize> {
        self.0.before(path)
    }
}

impl Policy {
    /// The policy of this name, with fresh state. One that goes by history is given it by
    /// [`with_history`](Self::with_history); without, all workers are alike to it.
    pub fn new(name: PolicyName, weights: &Weights) -> Self {
        let plain = |cost: Arc<dyn CostFunction>, pick| {
            let needs = Needs::default();
            Self { name, cost, pick, learn: None, history: None, enrol: None, needs }
        };
        match name {
            PolicyName::Kv => plain(Arc::new(Kv(weights.kv)), Pick::CheapestLowestSlot),
            PolicyName::Logit => plain(Arc::new(Logit(weights.logit)), Pick::CheapestAtRandom),
            PolicyName::Blocks => {
                let policy = plain(Arc::new(BlockSum(weights.blocks)), Pick::Softmax(weights.blocks.temperature));
                Self { needs: Needs { added_blocks: true, ..Needs::default() }, ..policy }
            }
            PolicyName::Product => plain(Arc::new(Product), Pick::CheapestAtRandom),
            PolicyName::Affinity => plain(Arc::new(Affinity(weights.affinity)), Pick::CheapestAtRandom),
            PolicyName::Chwbl => {
                let chwbl = Arc::new(Chwbl::new(weights.chwbl));
                let policy = plain(chwbl.clone(), Pick::CheapestLowestSlot);
                Self {
                    enrol: Some(chwbl),
                    needs: Needs { opening: Some(weights.chwbl.prefix_characters), ..Needs::default() },
                    ..policy
                }
            }
            PolicyName::Preble => {
                let preble = Arc::new(Preble::new(weights.preble));
                let policy = plain(preble.clone(), Pick::CheapestLowestSlot);
                Self { learn: Some(preble.clone()), enrol: Some(preble), ..policy }
            }
            PolicyName::Aibrix => plain(Arc::new(Aibrix(weights.aibrix)), Pick::CheapestAtRandom),
            PolicyName::Predicted => {
                let predicted = Arc::new(Predicted::default());
                let policy = plain(predicted.clone(), Pick::CheapestFewestRequests);
                let needs = Needs { added_blocks: true, fork: true, ..Needs::default() };
                let learn = Arc::new(Withdrawing(predicted.clone()));
                Self { learn: Some(learn), enrol: Some(predicted), needs, ..policy }
            }
            PolicyName::ApproxTree => plain(Arc::new(ApproxTree(weights.approx_tree)), Pick::CheapestLowestSlot),
            PolicyName::ApproxLru => plain(Arc::new(ApproxLru(weights.approx_lru)), Pick::CheapestFewestRequests),
            PolicyName::Random => plain(Arc::new(Random), Pick::CheapestAtRandom),
            PolicyName::LeastRequests => plain(Arc::new(LeastRequests), Pick::CheapestLowestSlot),
            PolicyName::PowerOfTwo => plain(Arc::new(LeastRequests), Pick::CheaperOfTwo),
            PolicyName::RoundRobin => {
                let round = Arc::new(RoundRobin::default());
                let policy = plain(round.clone(), Pick::CheapestLowestSlot);
                Self { learn: Some(round), ..policy }
            }
        }
    }

    /// The place of the chosen candidate by these costs; none when it can choose none of them. `kept` is one that has a claim
    /// already.
    pub fn choose(
        &self,
        kept: Option<usize>,
        candidates: &[Candidate],
        costs: &[Cost],
        rng: &mut impl Rng,
    ) -> Option<usize> {
        self.pick.choose_beside(kept, self.name.among(), candidates, costs, rng)
    }

    /// Whether it can place a request of which no token ids are known, only perhaps its characters: baselines never look
    /// at them.
    pub fn goes_without_tokens(&self, has_texts: bool, shape: &Shape) -> bool {
        self.name.is_baseline()
            || (self.history.is_some() && has_texts)
            || (self.needs.opening.is_some() && shape.opening.is_some())
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
