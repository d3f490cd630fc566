//! What workers were sent, for engines that publish no events: the memories behind the policies `approx_tree` and
//! `approx_lru`. Both are learned from requests alone, so no traffic but the requests themselves is needed, and both are
//! bounded for each worker.

use std::sync::Arc;

use warmpath_core::history::History;
use warmpath_core::policy::PolicyName;

pub mod lru;
pub mod radix;
mod recency;
pub mod tree;

pub use lru::{ApproxLru, LruLimits};
pub use tree::{ApproxTree, TreeLimits};

/// Bounds of the memories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApproxLimits {
    /// Of `approx_tree`.
    pub tree: TreeLimits,
    /// Of `approx_lru`.
    pub lru: LruLimits,
}

/// A fresh memory for `policy`; none for policies that need none.
pub fn history_of(policy: PolicyName, limits: &ApproxLimits) -> Option<Arc<dyn History>> {
    match policy {
        PolicyName::ApproxTree => Some(Arc::new(ApproxTree::new(limits.tree))),
        PolicyName::ApproxLru => Some(Arc::new(ApproxLru::new(limits.lru))),
        _ => None,
    }
}
