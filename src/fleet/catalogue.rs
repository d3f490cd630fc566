//! What can be asked for: the configured models and their aliases, and the adapters that workers name.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use serde_json::{Map, Value};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::workers::Pool;

use super::offer::{Card, Offer};
use super::roster::Roster;
use super::{Fleet, Worker};

/// Who made a model that nobody else claims.
const OWNER: &str = "warmpath";

/// The models of all workers as clients see them. Who is down is still counted, with what it last said.
#[derive(Debug, Default)]
pub struct Catalogue {
    entries: Vec<Entry>,
    by_id: HashMap<Arc<str>, usize, foldhash::fast::RandomState>,
}

/// One model, alias or adapter.
#[derive(Debug)]
pub struct Entry {
    /// What clients call it.
    pub id: Arc<str>,
    /// The model whose pool serves it.
    pub model: Arc<str>,
    /// Whether it is an adapter.
    pub is_adapter: bool,
    /// As `/v1/models` shows it.
    pub json: Value,
}

/// A catalogue that is made anew when somebody looks, after something has changed.
#[derive(Default)]
pub(super) struct Kept {
    current: ArcSwap<Catalogue>,
    stale: AtomicBool,
    making: Mutex<()>,
}

impl Kept {
    pub(super) fn outdate(&self) {
        self.stale.store(true, Ordering::Release);
    }
}

impl Fleet {
    /// What can be asked for now. O(entries of all workers) after a change, else nothing.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        let kept = &self.catalogue;
        if kept.stale.load(Ordering::Acquire) {
            let _one_at_a_time = kept.making.lock().unwrap_or_else(PoisonError::into_inner);
            // Before looking, so that what changes meanwhile is looked at again.
            if kept.stale.swap(false, Ordering::AcqRel) {
                kept.current.store(Arc::new(Catalogue::of(&self.roster())));
            }
        }
        kept.current.load_full()
    }

    /// The ranks of a worker said what they serve. Returns whether that is new.
    pub fn offered(&self, ranks: &[Arc<Worker>], offer: Offer) -> bool {
        let said = |worker: &Arc<Worker>| worker.offer.load().as_ref().is_some_and(|before| before.is_like(&offer));
        if ranks.iter().all(said) {
            return false;
        }
        let offer = Arc::new(offer);
        for worker in ranks {
            worker.offer.store(Some(Arc::clone(&offer)));
        }
        self.catalogue.outdate();
        true
    }
}

impl Roster {
    /// Adds to `avoid` the targets of `pool` that do not have `adapter`, as far as they have said. O(targets).
    pub fn avoid_without(&self, adapter: &str, pool: &Pool, avoid: &mut SlotSet) {
        for slot in &pool.targets {
            let offer = self.worker(*slot).and_then(|worker| worker.offer.load_full());
            if !offer.is_some_and(|offer| offer.has_adapter(adapter)) {
                avoid.insert(*slot);
            }
        }
    }
}

impl Catalogue {
    fn of(roster: &Roster) -> Self {
        let mut catalogue = Self::default();
        let offers: Vec<(&Worker, Arc<Offer>)> =
            roster.workers().filter_map(|worker| Some((&**worker, worker.offer.load_full()?))).collect();
        let mut said: HashMap<(&str, &str), Said<'_>, foldhash::fast::RandomState> = HashMap::default();
        for (worker, offer) in &offers {
            for card in offer.cards() {
                said.entry((&*worker.model, &*card.id)).or_default().add(card);
            }
        }
        for pool in roster.table().pools() {
            let own = said.get(&(&*pool.model, &*pool.model));
            for id in std::iter::once(&pool.model).chain(&pool.aliases) {
                let card = said.get(&(&*pool.model, &**id)).or(own).copied().unwrap_or_default();
                catalogue.add(Entry { json: card.entry(id, &pool.model), ..Entry::of(id, pool, false) });
            }
        }
        for pool in roster.table().pools() {
            let of_pool = offers.iter().filter(|(worker, _)| worker.model == pool.model);
            let named: BTreeMap<&Arc<str>, ()> =
                of_pool.flat_map(|(_, offer)| offer.adapters()).map(|card| (&card.id, ())).collect();
            for id in named.into_keys() {
                let card = said.get(&(&*pool.model, &**id)).copied().unwrap_or_default();
                catalogue.add(Entry { json: card.entry(id, &pool.model), ..Entry::of(id, pool, true) });
            }
        }
        catalogue
    }

    /// The first who has a name keeps it: what is configured comes first.
    fn add(&mut self, entry: Entry) {
        let place = self.entries.len();
        if let std::collections::hash_map::Entry::Vacant(free) = self.by_id.entry(Arc::clone(&entry.id)) {
            free.insert(place);
            self.entries.push(entry);
        }
    }

    /// Every entry: models and aliases in the configuration's order, then adapters by name.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry of this name.
    pub fn entry(&self, id: &str) -> Option<&Entry> {
        self.entries.get(*self.by_id.get(id)?)
    }

    /// The adapter of this name, also where its model is named before it, as SGLang has it: `model:adapter`.
    pub fn adapter(&self, name: &str) -> Option<&Entry> {
        let named = |name: &str| self.entry(name).filter(|entry| entry.is_adapter);
        named(name).or_else(|| {
            let (model, adapter) = name.split_once(':')?;
            let below = self.entry(model).filter(|entry| !entry.is_adapter)?;
            named(adapter).filter(|entry| entry.model == below.model)
        })
    }
}

impl Entry {
    fn of(id: &Arc<str>, pool: &Pool, is_adapter: bool) -> Self {
        Self { id: Arc::clone(id), model: Arc::clone(&pool.model), is_adapter, json: Value::Null }
    }
}

/// What the workers of one model say of one name: the first of them, but for the shortest of their longest contexts, since
/// a request may go to any.
#[derive(Clone, Copy, Default)]
struct Said<'a> {
    card: Option<&'a Card>,
    longest: Option<u64>,
}

impl<'a> Said<'a> {
    fn add(&mut self, card: &'a Card) {
        self.card = self.card.or(Some(card));
        self.longest = self.longest.into_iter().chain(card.longest).min();
    }

    /// The entry for `id`, with all that OpenAI's clients expect and all that the engine says beyond it.
    fn entry(self, id: &str, model: &str) -> Value {
        let said = self.card.and_then(|card| serde_json::from_str(&card.json).ok());
        let mut said: Map<String, Value> = said.unwrap_or_default();
        let mut entry = Map::new();
        entry.insert("id".to_owned(), id.into());
        let defaults: [(&str, Value); 5] = [
            ("object", "model".into()),
            ("created", 0.into()),
            ("owned_by", OWNER.into()),
            ("root", model.into()),
            ("parent", Value::Null),
        ];
        for (key, default) in defaults {
            entry.insert(key.to_owned(), said.shift_remove(key).filter(|value| !value.is_null()).unwrap_or(default));
        }
        if let Some(longest) = self.longest {
            said.insert("max_model_len".to_owned(), longest.into());
        }
        said.shift_remove("id");
        entry.extend(said);
        Value::Object(entry)
    }
}
