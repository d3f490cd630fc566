//! Named values as templates see them: messages, and the variables of a template.
//!
//! To compare some short names costs a fraction of hashing one, and templates read each message a dozen times.

use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object};

/// A map of few names, which all differ, in order.
#[derive(Debug)]
pub(super) struct Record(pub(super) Vec<(&'static str, Value)>);

/// The variables of one rendering.
#[derive(Debug)]
pub(super) struct Variables {
    /// The request's own: they win.
    pub(super) own: Vec<(&'static str, Value)>,
    /// What its `chat_template_kwargs` set, as many as it likes.
    pub(super) given: Option<Value>,
    /// What there is without either: the tokenizer's tokens.
    pub(super) defaults: Arc<[(&'static str, Value)]>,
}

fn find(named: &[(&'static str, Value)], wanted: &str) -> Option<Value> {
    named.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.clone())
}

impl From<Record> for Value {
    fn from(record: Record) -> Self {
        Value::from_object(record)
    }
}

impl Object for Record {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        find(&self.0, key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.iter().map(|(name, _)| Value::from(*name)).collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }
}

impl Object for Variables {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        let given = || self.given.as_ref()?.get_attr(key).ok().filter(|value| !value.is_undefined());
        find(&self.own, key).or_else(given).or_else(|| find(&self.defaults, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_map_to_templates() {
        let pairs = vec![("role", Value::from("user")), ("content", Value::from("x"))];
        let (record, map) = (Value::from(Record(pairs.clone())), Value::from_pairs(pairs));
        assert!(record == map);
        let environment = minijinja::Environment::new();
        let source = "{{ m }} {{ m|length }} {{ m is mapping }} {{ m.role }}{{ m['content'] }} {{ 'role' in m }} \
            {{ m.name is defined }} {% for key, value in m|items %}{{ key }}={{ value }} {% endfor %}{{ m|tojson }}";
        let rendered = |m: &Value| environment.render_str(source, Value::from_pairs([("m", m.clone())])).unwrap();
        assert_eq!(rendered(&record), rendered(&map));
    }
}
