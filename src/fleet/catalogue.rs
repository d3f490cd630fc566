//! What can be asked for: the configured models and their aliases, and the adapters that workers name.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use serde_json::{Map, Value};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::workers::Pool;

use super::lacking::Wanted;
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
                let roster = self.roster();
                let offers =
                    roster.workers().filter_map(|worker| Some((worker.model.clone(), worker.offer.load_full()?)));
                let offers: Vec<_> = offers.collect();
                kept.current.store(Arc::new(Catalogue::of(roster.table().pools(), &offers)));
            }
        }
        kept.current.load_full()
    }

    /// The ranks of a worker said what they serve. Returns whether that is new. Whoever waits for an adapter may find it
    /// there now, or has to learn that nobody has it any more.
    pub fn offered(&self, ranks: &[Arc<Worker>], offer: Offer) -> bool {
        let said = |worker: &Arc<Worker>| worker.offer.load().as_ref().is_some_and(|before| before.is_like(&offer));
        if ranks.iter().all(said) {
            return false;
        }
        let offer = Arc::new(offer);
        for worker in ranks {
            worker.offer.store(Some(Arc::clone(&offer)));
        }
        // They serve one model, all of them.
        let Some(model) = ranks.first().map(|worker| &worker.model) else { return true };
        {
            let _one_at_a_time = self.lock();
            self.publish_in(model, self.roster.load().heard());
        }
        self.catalogue.outdate();
        if let Some(pool) = self.pool(model) {
            pool.gate.regroup();
        }
        true
    }
}

impl Roster {
    /// Adds to `avoid` the targets of `pool` that do not have `adapter`, as far as they have said. O(targets) for the first who
    /// asks after somebody has said something new, else of the words of a set.
    pub fn avoid_without(&self, adapter: &str, pool: &Pool, avoid: &mut SlotSet) {
        self.lacking().add_to(avoid, (Wanted::Adapter, &pool.model, adapter), || self.without_adapter(adapter, pool));
    }

    /// Adds to `avoid` the targets of `pool` that go by other names than this alias of their model, where one goes by it.
    /// Engines that were told no alias may serve any name: where nobody says this one, and of who has said nothing yet,
    /// nothing is concluded. As cheap.
    pub fn avoid_unnamed(&self, alias: &str, pool: &Pool, avoid: &mut SlotSet) {
        self.lacking().add_to(avoid, (Wanted::Alias, &pool.model, alias), || self.unnamed(alias, pool));
    }

    fn without_adapter(&self, adapter: &str, pool: &Pool) -> SlotSet {
        let mut without = SlotSet::new();
        for slot in &pool.targets {
            let offer = self.worker(*slot).and_then(|worker| worker.offer.load_full());
            if !offer.is_some_and(|offer| offer.has_adapter(adapter)) {
                without.insert(*slot);
            }
        }
        without
    }

    fn unnamed(&self, alias: &str, pool: &Pool) -> SlotSet {
        let (mut others, mut is_named) = (SlotSet::new(), false);
        for slot in &pool.targets {
            let offer = self.worker(*slot).and_then(|worker| worker.offer.load_full());
            match offer.map(|offer| offer.has_name(alias)) {
                Some(true) => is_named = true,
                Some(false) => {
                    others.insert(*slot);
                }
                None => {}
            }
        }
        if is_named { others } else { SlotSet::new() }
    }
}

impl Catalogue {
    /// Of these pools, and of what their workers offer: each with the model of its pool, the first workers first.
    fn of(pools: &[Pool], offers: &[(Arc<str>, Arc<Offer>)]) -> Self {
        let mut catalogue = Self::default();
        let mut said: HashMap<(&str, &str), Said<'_>, foldhash::fast::RandomState> = HashMap::default();
        let mut adapters: HashMap<&str, BTreeSet<&Arc<str>>, foldhash::fast::RandomState> = HashMap::default();
        for (model, offer) in offers {
            for card in offer.cards() {
                said.entry((&**model, &*card.id)).or_default().add(card);
            }
            adapters.entry(model).or_default().extend(offer.adapters().map(|card| &card.id));
        }
        for pool in pools {
            let own = said.get(&(&*pool.model, &*pool.model));
            for id in std::iter::once(&pool.model).chain(&pool.aliases) {
                let card = said.get(&(&*pool.model, &**id)).or(own).copied().unwrap_or_default();
                catalogue.add(Entry::new(id, pool, false, card));
            }
        }
        for pool in pools {
            for id in adapters.remove(&*pool.model).unwrap_or_default() {
                let card = said.get(&(&*pool.model, &**id)).copied().unwrap_or_default();
                catalogue.add(Entry::new(id, pool, true, card));
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
    fn new(id: &Arc<str>, pool: &Pool, is_adapter: bool, said: Said<'_>) -> Self {
        let json = said.entry(id, &pool.model);
        Self { id: Arc::clone(id), model: Arc::clone(&pool.model), is_adapter, json }
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

#[cfg(test)]
mod tests {
    use serde_json::json;
    use warmpath_core::units::BlockSize;

    use super::*;

    fn pool(model: &str, aliases: &[&str]) -> Pool {
        let aliases = aliases.iter().map(|alias| (*alias).into()).collect();
        Pool { model: model.into(), aliases, block_size: BlockSize::new(16).unwrap(), targets: Vec::new() }
    }

    fn catalogue(pools: &[Pool], offers: &[(&str, Value)]) -> Catalogue {
        let read = |cards: &Value| Offer::read(json!({"data": cards}).to_string().as_bytes(), 100).unwrap();
        let offers: Vec<_> = offers.iter().map(|(model, cards)| ((*model).into(), Arc::new(read(cards)))).collect();
        Catalogue::of(pools, &offers)
    }

    fn ids(catalogue: &Catalogue) -> Vec<(&str, &str, bool)> {
        catalogue.entries().iter().map(|entry| (&*entry.id, &*entry.model, entry.is_adapter)).collect()
    }

    #[test]
    fn what_is_configured_is_listed_though_no_worker_has_answered() {
        let catalogue = catalogue(&[pool("m", &["alias/of-m"]), pool("n", &[])], &[]);
        assert_eq!(ids(&catalogue), [("m", "m", false), ("alias/of-m", "m", false), ("n", "n", false)]);
        let alias = json!({"id": "alias/of-m", "object": "model", "created": 0, "owned_by": "warmpath", "root": "m",
            "parent": null});
        assert_eq!(catalogue.entry("alias/of-m").unwrap().json.to_string(), alias.to_string());
        assert!(catalogue.entry("x").is_none());
    }

    #[test]
    fn what_workers_say_of_a_model_is_shown_with_the_shortest_of_their_longest_contexts() {
        let card = |longest: u32, owner: &str| {
            let root = "/m";
            json!([{"id": "m", "created": 7, "owned_by": owner, "root": root, "max_model_len": longest, "vendor": [1]}])
        };
        let offers = [("m", card(8192, "vllm")), ("m", json!([])), ("m", card(4096, "other"))];
        let catalogue = catalogue(&[pool("m", &["a"])], &offers);
        for id in ["m", "a"] {
            let expected = json!({"id": id, "object": "model", "created": 7, "owned_by": "vllm", "root": "/m",
                "parent": null, "max_model_len": 4096, "vendor": [1]});
            assert_eq!(catalogue.entry(id).unwrap().json, expected);
        }
    }

    #[test]
    fn adapters_of_all_workers_come_behind_the_models_and_take_no_configured_name() {
        let pools = [pool("m", &["taken"]), pool("n", &[])];
        let below = |parent: &str, ids: &[&str]| {
            Value::from(ids.iter().map(|id| json!({"id": id, "parent": parent})).collect::<Vec<_>>())
        };
        let offers = [
            ("n", below("n", &["both", "c"])),
            ("m", below("m", &["b", "taken", "n"])),
            ("m", below("m-base", &["a", "b", "both"])),
        ];
        let catalogue = catalogue(&pools, &offers);
        let expected =
            [("m", false), ("taken", false), ("n", false), ("a", true), ("b", true), ("both", true), ("c", true)];
        let listed: Vec<_> = ids(&catalogue).into_iter().map(|(id, _, is_adapter)| (id, is_adapter)).collect();
        assert_eq!(listed, expected);
        let adapter = |name: &str| catalogue.adapter(name).map(|entry| (&*entry.id, &*entry.model));
        assert_eq!(
            (adapter("a"), adapter("both"), adapter("c")),
            (Some(("a", "m")), Some(("both", "m")), Some(("c", "n")))
        );
        assert_eq!(
            (adapter("m:a"), adapter("taken:a"), adapter("n:c")),
            (Some(("a", "m")), Some(("a", "m")), Some(("c", "n")))
        );
        assert_eq!(
            (adapter("n:a"), adapter("m:x"), adapter("a:a"), adapter("m"), adapter("x")),
            (None, None, None, None, None)
        );
        let json = &catalogue.entry("a").unwrap().json;
        assert_eq!((&json["parent"], &json["root"]), (&json!("m-base"), &json!("m")));
    }
}
