//! Counters that differ in one label: a reason, an outcome. Registering a series costs a microsecond, so each is kept.

use std::sync::{Arc, PoisonError, RwLock};

use metrics::{Counter, Label};

use super::{Definition, Registry};

/// One counter for each value of a label, made when the value first occurs. Values are names of the code, so they are few.
#[derive(Clone)]
pub(super) struct Reasons(Arc<Inner>);

struct Inner {
    registry: Arc<Registry>,
    definition: &'static Definition,
    label: &'static str,
    /// Labels that all of them have.
    common: Vec<Label>,
    seen: RwLock<Vec<(&'static str, Counter)>>,
}

impl Reasons {
    /// None yet, of `definition`, told apart by `label`.
    pub(super) fn new(
        registry: &Arc<Registry>,
        definition: &'static Definition,
        label: &'static str,
        common: Vec<Label>,
    ) -> Self {
        Self(Arc::new(Inner { registry: Arc::clone(registry), definition, label, common, seen: RwLock::default() }))
    }

    /// One more for this reason. O(reasons).
    pub(super) fn count(&self, reason: &'static str) {
        self.add(reason, 1);
    }

    /// So many more for this reason. O(reasons).
    pub(super) fn add(&self, reason: &'static str, count: u64) {
        let known = |seen: &[(&'static str, Counter)]| {
            seen.iter().find(|(name, _)| *name == reason).map(|(_, counter)| counter.increment(count))
        };
        if known(&self.0.seen.read().unwrap_or_else(PoisonError::into_inner)).is_none() {
            let counter = self.0.register(reason);
            counter.increment(count);
            // Two threads may come here with one reason: both handles lead to the same series.
            self.0.seen.write().unwrap_or_else(PoisonError::into_inner).push((reason, counter));
        }
    }
}

impl Inner {
    fn register(&self, reason: &'static str) -> Counter {
        let labels = self.common.iter().cloned().chain([Label::new(self.label, reason)]).collect();
        self.registry.counter(self.definition, labels)
    }
}
