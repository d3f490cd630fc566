//! What a worker's own `/v1/models` names: its model, under one name or several, and its LoRA adapters.

use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::openai::Dialect;

/// The most of an engine's answer that is read: two thousand entries as vLLM writes them.
pub const ANSWER_MAX: usize = 1024 * 1024;

/// The longest entry that is kept; one of vLLM's has half a kilobyte.
const CARD_MAX: usize = 16 * 1024;

/// The longest name that is kept, of a model or an adapter.
const NAME_MAX: usize = 256;

/// Names of its own model that are kept of a worker.
const NAMES_MAX: usize = 64;

/// What one worker has said that it serves.
#[derive(Debug, Default)]
pub struct Offer {
    cards: Vec<Card>,
    names: HashSet<Arc<str>, foldhash::fast::RandomState>,
    adapters: HashSet<Arc<str>, foldhash::fast::RandomState>,
    dialect: Option<Dialect>,
}

/// One entry.
#[derive(Debug)]
pub struct Card {
    /// What clients call it.
    pub id: Arc<str>,
    /// What it is made of: a path or a name.
    pub root: Option<String>,
    /// Of an adapter, the model below it.
    pub parent: Option<String>,
    /// The longest context, in tokens.
    pub longest: Option<u64>,
    /// The whole entry, a JSON object.
    pub json: Box<str>,
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    data: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Fields {
    id: Arc<str>,
    root: Option<String>,
    parent: Option<String>,
    max_model_len: Option<u64>,
    owned_by: Option<String>,
}

impl Offer {
    /// Reads an engine's answer. An entry that makes no sense does not cost its neighbours; of adapters the first
    /// `adapters_max` count. None where it is no list of models.
    pub fn read(answer: &[u8], adapters_max: usize) -> Option<Self> {
        let List { data } = serde_json::from_slice(answer).ok()?;
        let mut offer = Self::default();
        let mut seen = HashSet::new();
        for raw in data.into_iter().filter(|raw| raw.get().len() <= CARD_MAX) {
            let Ok(Fields { id, root, parent, max_model_len, owned_by }) = serde_json::from_str(raw.get()) else {
                continue;
            };
            let parent = parent.filter(|parent| !parent.is_empty() && **parent != *id);
            if id.is_empty() || id.len() > NAME_MAX || id.chars().any(char::is_control) {
                continue;
            }
            let is_full =
                if parent.is_some() { offer.adapters.len() == adapters_max } else { offer.names.len() == NAMES_MAX };
            if is_full || !seen.insert(Arc::clone(&id)) {
                continue;
            }
            let kind = if parent.is_some() { &mut offer.adapters } else { &mut offer.names };
            kind.insert(Arc::clone(&id));
            offer.dialect = offer.dialect.or_else(|| Dialect::of_owner(owned_by.as_deref()?));
            offer.cards.push(Card { id, root, parent, longest: max_model_len, json: raw.get().into() });
        }
        Some(offer)
    }

    /// Its entries, as they stood.
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    /// How its engine reads requests, if it says whose it is.
    pub fn dialect(&self) -> Option<Dialect> {
        self.dialect
    }

    /// Whether its own model goes by this name.
    pub fn has_name(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Whether it has this adapter.
    pub fn has_adapter(&self, name: &str) -> bool {
        self.adapters.contains(name)
    }

    /// Its adapters.
    pub fn adapters(&self) -> impl Iterator<Item = &Card> {
        self.cards.iter().filter(|card| card.parent.is_some())
    }

    /// Whether `other` offers the same. Engines make up times and identifiers for each answer: those do not count.
    pub fn is_like(&self, other: &Self) -> bool {
        let key = |card: &Card| (card.id.clone(), card.root.clone(), card.parent.clone(), card.longest);
        let cards = self.cards.len() == other.cards.len() && self.cards.iter().map(key).eq(other.cards.iter().map(key));
        cards && self.dialect == other.dialect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As vLLM answers with `--served-model-name m m-alias --lora-modules sql=/loras/sql`.
    const VLLM: &str = r#"{"object":"list","data":[
        {"id":"m","object":"model","created":1789095808,"owned_by":"vllm","root":"/models/m","parent":null,
         "max_model_len":4096,"permission":[{"id":"modelperm-1","object":"model_permission"}]},
        {"id":"m-alias","object":"model","created":1789095808,"owned_by":"vllm","root":"/models/m","parent":null,
         "max_model_len":4096,"permission":[]},
        {"id":"sql","object":"model","created":1789095808,"owned_by":"vllm","root":"/loras/sql","parent":"m",
         "permission":[]}]}"#;

    fn ids(offer: &Offer) -> Vec<&str> {
        offer.cards().iter().map(|card| &*card.id).collect()
    }

    #[test]
    fn what_has_a_parent_is_an_adapter() {
        let offer = Offer::read(VLLM.as_bytes(), 10).unwrap();
        assert_eq!(ids(&offer), ["m", "m-alias", "sql"]);
        assert!(offer.has_adapter("sql") && !offer.has_adapter("m"));
        assert!(offer.has_name("m") && offer.has_name("m-alias") && !offer.has_name("sql"));
        let sql: Vec<_> = offer.adapters().collect();
        assert_eq!((sql.len(), sql[0].parent.as_deref(), sql[0].root.as_deref()), (1, Some("m"), Some("/loras/sql")));
        assert_eq!((offer.cards()[0].longest, sql[0].longest), (Some(4096), None));
        assert_eq!(offer.dialect(), Some(Dialect::Vllm));
        assert!(offer.cards()[0].json.contains("modelperm-1"));
    }

    #[test]
    fn another_time_and_other_permissions_make_no_other_offer() {
        let offer = Offer::read(VLLM.as_bytes(), 10).unwrap();
        let later = VLLM.replace("1789095808", "1789095900").replace("modelperm-1", "modelperm-2");
        assert!(offer.is_like(&Offer::read(later.as_bytes(), 10).unwrap()));
        for (old, new) in [
            ("\"sql\"", "\"law\""),
            ("4096", "8192"),
            ("/loras/sql", "/loras/2"),
            ("\"vllm\"", "\"sglang\""),
            ("\"parent\":\"m\"", "\"parent\":\"x\""),
        ] {
            assert!(!offer.is_like(&Offer::read(VLLM.replace(old, new).as_bytes(), 10).unwrap()), "{new}");
        }
    }

    #[test]
    fn a_bad_entry_does_not_cost_its_neighbours() {
        let long = "x".repeat(NAME_MAX + 1);
        let fat = "y".repeat(CARD_MAX);
        let answer = format!(
            r#"{{"data":[3,null,{{}},{{"id":7}},{{"id":""}},{{"id":"{long}"}},{{"id":"a\u0000"}},{{"id":"f","fat":"{fat}"}},
               {{"id":"m"}},{{"id":"m","parent":"x"}},{{"id":"l","parent":"m"}},{{"id":"l","parent":"n"}},{{"id":"s","parent":"s"}}]}}"#
        );
        let offer = Offer::read(answer.as_bytes(), 10).unwrap();
        assert_eq!(ids(&offer), ["m", "l", "s"]);
        assert_eq!(offer.adapters().count(), 1);
    }

    #[test]
    fn names_and_adapters_are_bounded() {
        let entries: Vec<String> =
            (0..200).map(|number| format!(r#"{{"id":"a{number}","parent":"m"}},{{"id":"m{number}"}}"#)).collect();
        let offer = Offer::read(format!(r#"{{"data":[{}]}}"#, entries.join(",")).as_bytes(), 100).unwrap();
        assert_eq!((offer.adapters().count(), offer.cards().len()), (100, 100 + NAMES_MAX));
    }

    #[test]
    fn what_is_no_list_is_none() {
        for answer in ["", "{}", "[]", r#"{"data":{}}"#, r#"{"data":[{]}"#, "<html>"] {
            assert!(Offer::read(answer.as_bytes(), 10).is_none(), "{answer}");
        }
        assert!(Offer::read(br#"{"data":[]}"#, 10).unwrap().cards().is_empty());
    }
}
