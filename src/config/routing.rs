//! `routing`: which worker a request goes to.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, de};
use warmpath_core::admission::OnAllBusy;
use warmpath_core::cost::affinity::AffinityRule;
use warmpath_core::cost::aibrix::AibrixRule;
use warmpath_core::cost::approx_lru::LruWeights;
use warmpath_core::cost::approx_tree::TreeRule;
use warmpath_core::cost::blocks::BlocksWeights;
use warmpath_core::cost::chwbl::ChwblRule;
use warmpath_core::cost::kv::KvWeights;
use warmpath_core::cost::logit::LogitWeights;
use warmpath_core::cost::preble::PrebleWeights;
use warmpath_core::cost::{Share, TierWeights, Weight};
use warmpath_core::policy::{Policy, PolicyName, Weights};
use warmpath_core::scheduler::Scheduler;
use warmpath_indexer::approx::{self, ApproxLimits, LruLimits, TreeLimits, history_of};

use super::objectives::ClassObjectives;
use super::quantity::Period;
use super::sessions::Sessions;

/// The policy, its weights, and what happens when it has no answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Routing {
    /// How a worker is chosen.
    pub policy: PolicyName,
    /// How a worker is chosen for a request whose token ids are unknown, unless `policy` goes by characters, and where
    /// `policy` prefers none.
    pub fallback: Baseline,
    /// When it is predicted what a worker has cached of a prompt.
    pub predict: Predict,
    /// Policies that are asked beside `policy` and not followed; each once.
    #[serde(deserialize_with = "shadows")]
    pub shadow: Vec<PolicyName>,
    /// What happens to a request while every worker computes as many as it can.
    pub on_all_busy: OnAllBusy,
    /// Makes every random choice repeatable; `None`: the operating system's chance. Replicas with equal seeds choose
    /// alike and so crowd the same workers.
    pub seed: Option<u64>,
    /// What a cached block is worth by the tier in which it lies.
    pub tiers: TierWeights,
    /// When a worker's view is doubted.
    pub trust: Trust,
    /// Requests that belong together.
    pub sessions: Sessions,
    /// What the classes were promised.
    pub objectives: ClassObjectives,
    /// Weights of the policy `kv`.
    pub kv: KvWeights,
    /// Weights of the policy `logit`.
    pub logit: LogitWeights,
    /// Weights of the policy `blocks`.
    pub blocks: BlocksWeights,
    /// Thresholds of the policy `affinity`.
    pub affinity: AffinityRule,
    /// Settings of the policy `chwbl`.
    pub chwbl: ChwblRule,
    /// Weights of the policy `preble`.
    pub preble: PrebleWeights,
    /// Threshold of the policy `aibrix`.
    pub aibrix: AibrixRule,
    /// Thresholds and bounds of the policy `approx_tree`.
    pub approx_tree: ApproxTree,
    /// Weights and bounds of the policy `approx_lru`.
    pub approx_lru: ApproxLru,
}

/// A policy that needs neither tokens nor events, and so always has an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Baseline {
    /// See [`PolicyName::RoundRobin`].
    RoundRobin,
    /// See [`PolicyName::Random`].
    Random,
    /// See [`PolicyName::LeastRequests`].
    LeastRequests,
    /// See [`PolicyName::PowerOfTwo`].
    PowerOfTwo,
}

impl From<Baseline> for PolicyName {
    fn from(baseline: Baseline) -> Self {
        match baseline {
            Baseline::RoundRobin => Self::RoundRobin,
            Baseline::Random => Self::Random,
            Baseline::LeastRequests => Self::LeastRequests,
            Baseline::PowerOfTwo => Self::PowerOfTwo,
        }
    }
}

/// When it is predicted what workers have cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Predict {
    /// For policies that go by it.
    #[default]
    Needed,
    /// Under baselines, too, which do not look at it: at the cost of reading, tokenising and looking up every prompt.
    Always,
}

/// When a worker's view is doubted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Trust {
    /// How long events may be silent while requests finish that must have made some.
    pub event_silence: Period,
}

impl Default for Trust {
    fn default() -> Self {
        Self { event_silence: Period::seconds(30) }
    }
}

/// The policy `approx_tree`. Defaults: SGLang's router.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApproxTree {
    /// The share of a prompt above which it follows its prefix.
    pub cache_threshold: Share,
    /// The fleet is imbalanced only if the most and the least requests in flight differ by more than this …
    pub balance_abs_threshold: u32,
    /// … and the most are more than the least, multiplied by this.
    pub balance_rel_threshold: Weight,
    /// Time between two sweeps of a worker's tree.
    pub eviction_interval: Period,
    /// Tokens or characters that a sweep leaves of a worker's tree.
    #[serde(deserialize_with = "tree_size")]
    pub max_tree_size: NonZeroU32,
}

/// The policy `approx_lru`. Defaults: the endpoint picker of the Gateway API inference extension.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApproxLru {
    /// Weight of the share of a prompt's blocks that the worker was sent before.
    pub prefix: Weight,
    /// Weight of waiting requests.
    pub queue: Weight,
    /// Weight of the share of the KV cache that is in use.
    pub usage: Weight,
    /// Waiting requests more than the least that count as a full queue, at least.
    pub queue_span: NonZeroU32,
    /// Leading blocks of a prompt that are looked at.
    pub match_blocks_max: NonZeroU32,
    /// Blocks that are remembered of each worker.
    pub capacity_blocks: NonZeroU32,
}

impl Routing {
    /// The weights of all policies.
    pub fn weights(&self) -> Weights {
        let ApproxTree { cache_threshold, balance_abs_threshold, balance_rel_threshold, .. } = self.approx_tree;
        let ApproxLru { prefix, queue, usage, queue_span, .. } = self.approx_lru;
        Weights {
            kv: self.kv,
            logit: self.logit,
            blocks: self.blocks,
            affinity: self.affinity,
            chwbl: self.chwbl,
            preble: self.preble,
            aibrix: self.aibrix,
            approx_tree: TreeRule { cache_threshold, balance_abs_threshold, balance_rel_threshold },
            approx_lru: LruWeights { prefix, queue, usage, queue_span },
        }
    }

    /// The bounds of what the approximate policies remember.
    pub fn approx_limits(&self) -> ApproxLimits {
        let ApproxTree { max_tree_size, eviction_interval, .. } = self.approx_tree;
        let ApproxLru { match_blocks_max, capacity_blocks, .. } = self.approx_lru;
        ApproxLimits {
            tree: TreeLimits { units_max: max_tree_size, eviction_interval: eviction_interval.get() },
            lru: LruLimits { match_blocks_max, capacity_blocks },
        }
    }

    /// Whether `policy` is set as it is in `other`: its section, the one of its name, is the same.
    pub fn sets_alike(&self, other: &Routing, policy: PolicyName) -> bool {
        let section = |routing| serde_json::to_value(routing).ok()?.get(policy.as_str()).cloned();
        section(self) == section(other)
    }

    /// A scheduler by `policy`, with fresh state. Prompts in flight count as cached for `in_flight_credit`, what engines say
    /// of their load counts half after `half_life`.
    pub fn scheduler(&self, policy: PolicyName, in_flight_credit: Duration, half_life: Duration) -> Scheduler {
        let weights = self.weights();
        let policy_named = |name| Policy::new(name, &weights).with_history(history_of(name, &self.approx_limits()));
        let active = policy_named(policy);
        let shadows: Vec<Policy> = self.shadow.iter().map(|name| policy_named(*name)).collect();
        let scheduler = Scheduler::new(active, policy_named(self.fallback.into()), self.on_all_busy)
            .with_shadows(shadows)
            .with_in_flight_credit(in_flight_credit)
            .with_tiers(self.tiers)
            .with_half_life(half_life)
            .with_sent(Arc::new(approx::ApproxLru::new(self.approx_limits().lru)));
        match self.sessions.rule() {
            Some(rule) => scheduler.with_sessions(warmpath_core::session::Sessions::new(rule)),
            None => scheduler,
        }
    }
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            policy: PolicyName::Kv,
            fallback: Baseline::LeastRequests,
            predict: Predict::default(),
            shadow: Vec::new(),
            on_all_busy: OnAllBusy::Queue,
            seed: None,
            tiers: TierWeights::default(),
            trust: Trust::default(),
            sessions: Sessions::default(),
            objectives: ClassObjectives::default(),
            kv: KvWeights::default(),
            logit: LogitWeights::default(),
            blocks: BlocksWeights::default(),
            affinity: AffinityRule::default(),
            chwbl: ChwblRule::default(),
            preble: PrebleWeights::default(),
            aibrix: AibrixRule::default(),
            approx_tree: ApproxTree::default(),
            approx_lru: ApproxLru::default(),
        }
    }
}

impl Default for ApproxTree {
    fn default() -> Self {
        let TreeRule { cache_threshold, balance_abs_threshold, balance_rel_threshold } = TreeRule::default();
        Self {
            cache_threshold,
            balance_abs_threshold,
            balance_rel_threshold,
            eviction_interval: Period::seconds(60),
            max_tree_size: TreeLimits::default().units_max,
        }
    }
}

impl Default for ApproxLru {
    fn default() -> Self {
        let LruWeights { prefix, queue, usage, queue_span } = LruWeights::default();
        let LruLimits { match_blocks_max, capacity_blocks } = LruLimits::default();
        Self { prefix, queue, usage, queue_span, match_blocks_max, capacity_blocks }
    }
}

/// A tree of more takes tens of gigabytes.
const TREE_SIZE_MAX: u32 = 1 << 29;

fn tree_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NonZeroU32, D::Error> {
    let size = NonZeroU32::deserialize(deserializer)?;
    if size.get() <= TREE_SIZE_MAX {
        Ok(size)
    } else {
        Err(de::Error::custom(format_args!("must be at most {TREE_SIZE_MAX}, got {size}")))
    }
}

fn shadows<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PolicyName>, D::Error> {
    let shadows = Vec::<PolicyName>::deserialize(deserializer)?;
    match shadows.iter().enumerate().find(|(at, shadow)| shadows[..*at].contains(shadow)) {
        Some((_, twice)) => Err(de::Error::custom(format_args!("`{twice}` is there twice"))),
        None => Ok(shadows),
    }
}
