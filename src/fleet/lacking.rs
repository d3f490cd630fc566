//! Who lacks what is asked for beside a model: found once, and kept for as long as all workers say the same.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use warmpath_core::slot_set::SlotSet;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wanted {
    /// An adapter of a model.
    Adapter,
    /// A model, by another name of it.
    Alias,
}

/// By the name that is asked for.
type Known = HashMap<Arc<str>, SlotSet, foldhash::fast::RandomState>;

/// The targets that lack a name. There are as many names as workers and the configuration have, since nobody asks for others.
#[derive(Debug, Default)]
pub(super) struct Lacking(RwLock<HashMap<(Wanted, Arc<str>), Known, foldhash::fast::RandomState>>);

impl Lacking {
    /// Adds those that lack what is `wanted` of this model by this name, which `find` finds.
    pub(super) fn add_to(
        &self,
        avoid: &mut SlotSet,
        (wanted, model, name): (Wanted, &Arc<str>, &str),
        find: impl FnOnce() -> SlotSet,
    ) {
        let of = (wanted, Arc::clone(model));
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(lacking) = known.get(&of).and_then(|names| names.get(name)) {
            avoid.union_with(lacking);
            return;
        }
        drop(known);
        let lacking = find();
        avoid.union_with(&lacking);
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(of).or_default().insert(name.into(), lacking);
    }
}

#[cfg(test)]
mod tests {
    use warmpath_core::ids::Slot;

    use super::*;

    #[test]
    fn who_lacks_a_name_is_found_once() {
        let (lacking, mut found) = (Lacking::default(), 0);
        let mut ask = |wanted, model: &str, name: &str, slot| {
            let mut avoid = SlotSet::new();
            avoid.insert(Slot(9));
            lacking.add_to(&mut avoid, (wanted, &model.into(), name), || {
                found += 1;
                let mut found = SlotSet::new();
                found.insert(Slot(slot));
                found
            });
            avoid.iter().map(|slot| slot.0).collect::<Vec<_>>()
        };
        let adapter =
            |ask: &mut dyn FnMut(Wanted, &str, &str, u16) -> Vec<u16>, slot| ask(Wanted::Adapter, "m", "a", slot);
        assert_eq!([1, 2, 3].map(|slot| adapter(&mut ask, slot)), [[1, 9]; 3]);
        assert_eq!(ask(Wanted::Alias, "m", "a", 4), [4, 9]);
        assert_eq!(ask(Wanted::Adapter, "n", "a", 5), [5, 9]);
        assert_eq!(ask(Wanted::Adapter, "m", "b", 6), [6, 9]);
        assert_eq!(adapter(&mut ask, 7), [1, 9]);
        assert_eq!(found, 4);
    }
}
