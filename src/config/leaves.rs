//! A configuration as a list of single values, each with its name, and where it was said.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::Config;
use super::document::{Content, Node, Scalar, Value as Yaml};
use super::inputs::FLAG;
use super::place::Place;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "origin")]
pub enum Origin {
    /// Nobody said it.
    Default,
    /// The file.
    File {
        /// Where in it.
        line: u32,
        /// Where in the line.
        column: u32,
        /// What is written there, where that refers to something else.
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<String>,
    },
    /// An environment variable that overrides the file.
    Environment {
        /// Its name.
        variable: String,
    },
    /// The command line, which overrides both.
    Flag {
        /// The flag and its key.
        flag: String,
    },
}

/// One value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Leaf {
    /// Its name: `section.key`; entries of lists by their id or name, `workers[w1].url`.
    pub key: String,
    /// What counts. Secrets are not shown.
    pub value: Value,
    /// Who says so.
    #[serde(flatten)]
    pub origin: Origin,
}

/// Where the values of a document were written, by their numbered names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// Those of this document, whose file is `source`.
    pub(super) fn of(root: &Node, source: &str) -> Self {
        let mut origins = Self::default();
        origins.note(root, "", source);
        origins
    }

    /// Where this value was written, in `source` or outside it; none where nobody said it.
    pub(super) fn place(&self, key: &str, source: &str) -> Option<Place> {
        match self.0.get(key)? {
            Origin::Default => None,
            Origin::File { line, column, .. } => Some(Place { source: source.into(), line: *line, column: *column }),
            Origin::Environment { variable: outside } | Origin::Flag { flag: outside } => {
                Some(Place::start(outside.as_str()))
            }
        }
    }

    fn note(&mut self, node: &Node, path: &str, source: &str) {
        match &node.content {
            // What has no value keeps its default.
            Content::Scalar(Scalar { value: Yaml::Nothing, .. }) => {}
            Content::Scalar(_) => {
                self.0.insert(path.to_owned(), origin(node, source));
            }
            Content::List(list) => {
                self.0.insert(path.to_owned(), origin(node, source));
                for (at, item) in list.items.iter().enumerate() {
                    self.note(item, &format!("{path}.{at}"), source);
                }
            }
            Content::Map(map) => {
                for entry in &map.entries {
                    let below = if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
                    self.note(&entry.node, &below, source);
                }
            }
        }
    }
}

fn origin(node: &Node, source: &str) -> Origin {
    let Place { source: written, line, column } = &node.place;
    if &**written == source {
        Origin::File { line: *line, column: *column, from: node.origin.clone() }
    } else if written.starts_with(FLAG) {
        Origin::Flag { flag: written.to_string() }
    } else {
        Origin::Environment { variable: written.to_string() }
    }
}

/// Every value of `config`, in the order of its sections.
pub fn leaves(config: &Config, origins: &Origins) -> Vec<Leaf> {
    let value = serde_json::to_value(config).unwrap_or_default();
    let mut found = Vec::new();
    collect(&value, ("", ""), origins, &mut found);
    found
}

fn collect(value: &Value, (shown, numbered): (&str, &str), origins: &Origins, found: &mut Vec<Leaf>) {
    let joined = |path: &str, key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                collect(value, (&joined(shown, key), &joined(numbered, key)), origins, found);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for (at, item) in items.iter().enumerate() {
                let name = ["id", "name"].iter().find_map(|key| item.get(key)?.as_str());
                let name = name.map_or_else(|| at.to_string(), str::to_owned);
                collect(item, (&format!("{shown}[{name}]"), &joined(numbered, &at.to_string())), origins, found);
            }
        }
        value => {
            let origin = origins.0.get(numbered).cloned().unwrap_or(Origin::Default);
            found.push(Leaf { key: shown.to_owned(), value: value.clone(), origin });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Environment, Reading};

    #[test]
    fn every_value_knows_who_said_it() {
        let text = "models: [{name: m}]\nworkers:\n- {id: a, url: 'http://a:1', model: m, api_key: '${env:KEY}'}\n\
                    usage: always\nlisten: {data: }\n";
        let environment: Environment =
            [("KEY", "hidden"), ("WARMPATH__ROUTING__KV__ALPHA", "0.5")].into_iter().collect();
        let reading = Reading::of_text("f.yaml", text.to_owned(), Path::new(""), &environment);
        let leaves = leaves(reading.config.as_ref().unwrap(), &reading.origins);
        let leaf = |key: &str| leaves.iter().find(|leaf| leaf.key == key).unwrap().clone();
        let file = |line, column, from: Option<&str>| Origin::File { line, column, from: from.map(str::to_owned) };
        assert_eq!((leaf("usage").value, leaf("usage").origin), ("always".into(), file(4, 8, None)));
        assert_eq!(leaf("listen.data").origin, Origin::Default);
        let alpha = leaf("routing.kv.alpha");
        let variable = "WARMPATH__ROUTING__KV__ALPHA".to_owned();
        assert_eq!((alpha.value, alpha.origin), (0.5.into(), Origin::Environment { variable }));
        let key = leaf("workers[a].api_key");
        assert_eq!((key.value, key.origin), ("[secret]".into(), file(3, 49, Some("${env:KEY}"))));
        assert_eq!(leaf("workers[a].max_num_seqs").origin, Origin::Default);
        assert_eq!(leaf("workers[a].url").origin, file(3, 16, None));
        assert!(!serde_json::to_string(&leaves).unwrap().contains("hidden"));
    }
}
