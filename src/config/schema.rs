//! The JSON Schema for editors, and the reference: both from the types that are read, their defaults, and what the shipped
//! file says of each key.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::live::is_live;
use super::quantity::{SIZE_UNITS, TIME_UNITS};
use super::shape::{self, Form, Shape};
use super::{Config, remarks};

/// A fleet that says no more than it must.
const LEAST: &str = "models: [{name: m}]\nworkers: [{id: w, url: 'http://h:1', model: m}]\n";

/// What must be given, beyond which everything has a default; of workers see [`answerers`].
const REQUIRED: &[&str] = &[
    "models",
    "workers",
    "models[].name",
    "workers[].id",
    "workers[].url",
    "workers[].model",
    "engines.presets[].name",
    "engines.presets[].running",
    "engines.presets[].waiting",
    "engines.presets[].usage",
];

/// Text in the place of a number, a choice or the like: what it refers to is one. (Of a schema's keywords each is for one
/// type: a pattern is for text, bounds are for numbers.)
const REFERENCE: &str = r"\$\{(env|file):[^}]+\}";

/// All that is known of one key.
pub(super) struct Known {
    pub(super) key: String,
    pub(super) shape: Shape,
    /// None for what must be given.
    pub(super) default: Option<Value>,
    pub(super) remark: Option<String>,
    pub(super) live: bool,
}

/// The JSON Schema of a configuration file.
pub fn schema() -> Value {
    let defaults = defaults();
    let remarks = remarks::of_shipped();
    let mut schema = of_shape(&shape::of::<Config>(), "", Some(&defaults), &remarks);
    if let Value::Object(map) = &mut schema {
        let mut head = Map::new();
        head.insert("$schema".to_owned(), "https://json-schema.org/draft/2020-12/schema".into());
        head.insert("title".to_owned(), "Warmpath's configuration".into());
        head.insert("required".to_owned(), json!(["models"]));
        head.insert("anyOf".to_owned(), answerers());
        head.extend(std::mem::take(map));
        *map = head;
    }
    schema
}

/// Somebody must answer: workers of the file, or whoever is found.
fn answerers() -> Value {
    json!([{"required": ["workers"]}, {"required": ["discovery"]}])
}

/// Every key, sections included, in the order of the sections.
pub(super) fn known() -> Vec<Known> {
    let mut found = Vec::new();
    list(&shape::of::<Config>(), "", Some(&defaults()), &remarks::of_shipped(), &mut found);
    found
}

/// What counts where nothing is said; items of lists of the least fleet stand for any.
fn defaults() -> Value {
    let config =
        Config::parse("the least fleet", LEAST.to_owned()).expect("a fleet that says what it must has no fault");
    serde_json::to_value(config).unwrap_or_default()
}

fn list(shape: &Shape, key: &str, default: Option<&Value>, remarks: &BTreeMap<String, String>, found: &mut Vec<Known>) {
    if !key.is_empty() && !key.ends_with("[]") {
        let required = REQUIRED.contains(&key);
        found.push(Known {
            key: key.to_owned(),
            shape: shape.clone(),
            default: default.filter(|_| !required).cloned(),
            remark: remarks.get(key).cloned(),
            live: is_live(key),
        });
    }
    match &shape.form {
        Form::Section(keys) => {
            for (name, shape) in keys {
                list(shape, &below(key, name), default.and_then(|value| value.get(name)), remarks, found);
            }
        }
        Form::List(item) if matches!(item.form, Form::Section(_)) => {
            list(item, &format!("{key}[]"), default.and_then(|value| value.get(0)), remarks, found);
        }
        _ => {}
    }
}

fn below(key: &str, name: &str) -> String {
    if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") }
}

fn of_shape(shape: &Shape, key: &str, default: Option<&Value>, remarks: &BTreeMap<String, String>) -> Value {
    let mut schema = match &shape.form {
        Form::Section(keys) => section(keys, key, default, remarks),
        Form::List(item) => {
            let first = default.and_then(|value| value.get(0)).filter(|_| matches!(item.form, Form::Section(_)));
            json!({"type": "array", "items": of_shape(item, &format!("{key}[]"), first, remarks)})
        }
        Form::Named(value) => {
            json!({"type": "object", "additionalProperties": of_shape(value, &format!("{key}[]"), None, remarks)})
        }
        Form::Choice(names) => json!({"anyOf": [{"enum": names}, {"type": "string", "pattern": REFERENCE}]}),
        Form::Flag => json!({"type": ["boolean", "string"], "pattern": REFERENCE}),
        Form::Integer { least, most } => {
            let (at_least, at_most) = bounds(&shape.rules);
            let (least, most) = (bound(at_least.unwrap_or(*least)), bound(at_most.unwrap_or(*most)));
            json!({"type": ["integer", "string"], "minimum": least, "maximum": most, "pattern": REFERENCE})
        }
        Form::Number => {
            let (least, most) = bounds(&shape.rules);
            let words = [("minimum", least), ("maximum", most)].into_iter();
            let words = words.filter_map(|(word, number)| Some((word.to_owned(), bound(number?))));
            let mut schema = json!({"type": ["number", "string"], "pattern": REFERENCE});
            schema.as_object_mut().into_iter().for_each(|map| map.extend(words.clone()));
            schema
        }
        Form::Text => text(&shape.rules),
    };
    let Value::Object(map) = &mut schema else { return schema };
    // A key without a value counts as not given; in a list nothing is no choice.
    if shape.nullable || !matches!(shape.form, Form::Choice(_)) || !key.ends_with("[]") {
        let kinds = match map.remove("type") {
            Some(Value::Array(kinds)) => [kinds, vec!["null".into()]].concat(),
            Some(kind) => vec![kind, "null".into()],
            None => Vec::new(),
        };
        if !kinds.is_empty() {
            map.insert("type".to_owned(), kinds.into());
        }
        if let Some(Value::Array(ways)) = map.get_mut("anyOf") {
            ways.push(json!({"type": "null"}));
        }
    }
    let rules = shape.rules.iter().cloned();
    let words: Vec<String> = remarks.get(key).cloned().into_iter().chain(rules).collect();
    if !words.is_empty() {
        map.insert("description".to_owned(), words.join("\n").into());
    }
    let is_leaf = !matches!(shape.form, Form::Section(_));
    if is_leaf && !key.ends_with("[]") {
        if let Some(default) = default.filter(|_| !REQUIRED.contains(&key)) {
            map.insert("default".to_owned(), default.clone());
        }
        map.insert("x-reload".to_owned(), if is_live(key) { "live" } else { "restart" }.into());
    }
    schema
}

fn section(
    keys: &[(&'static str, Shape)],
    key: &str,
    default: Option<&Value>,
    remarks: &BTreeMap<String, String>,
) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, shape) in keys {
        let path = below(key, name);
        let value = default.and_then(|value| value.get(name));
        properties.insert((*name).to_owned(), of_shape(shape, &path, value, remarks));
        if REQUIRED.contains(&path.as_str()) && !key.is_empty() {
            required.push(*name);
        }
    }
    let mut schema = json!({"type": "object", "additionalProperties": false, "properties": properties});
    if let (false, Value::Object(map)) = (required.is_empty(), &mut schema) {
        map.insert("required".to_owned(), required.into());
    }
    schema
}

/// Text by what its rules say in words. What is asked for in others may look like a number: what YAML takes it for does not
/// matter.
fn text(rules: &[String]) -> Value {
    let is_asked_for =
        |what: &str| rules.iter().any(|rule| rule.strip_prefix("expected ").is_some_and(|rule| rule.starts_with(what)));
    let pattern = |units: &[(&str, u64)], may_lack: &str| {
        let units: Vec<&str> = units.iter().map(|(unit, _)| *unit).collect();
        format!(r"^[0-9]+\s*({}){may_lack}$|{REFERENCE}", units.join("|"))
    };
    if is_asked_for("a duration") {
        json!({"type": "string", "pattern": pattern(&TIME_UNITS, "")})
    } else if is_asked_for("a size") {
        json!({"type": ["integer", "string"], "minimum": 1, "pattern": pattern(&SIZE_UNITS, "?")})
    } else if ["a URL", "an address", "an endpoint", "a path"].into_iter().any(is_asked_for) {
        json!({"type": "string"})
    } else {
        json!({"type": ["string", "number", "boolean"]})
    }
}

/// The least and the most that rules tell of in words.
fn bounds(rules: &[String]) -> (Option<i128>, Option<i128>) {
    let behind = |words| rules.iter().find_map(|rule| rule.rsplit_once(words)?.1.parse().ok());
    match rules.iter().find_map(|rule| rule.rsplit_once(" from ")?.1.split_once(" to ")) {
        Some((least, most)) => (least.parse().ok(), most.parse().ok()),
        None => (behind(" at least "), behind(" at most ")),
    }
}

/// A bound as JSON has it; beyond 64 bits there is none.
fn bound(number: i128) -> Value {
    u64::try_from(number).map(Value::from).or_else(|_| i64::try_from(number).map(Value::from)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Reading;

    #[test]
    fn a_key_tells_its_type_its_default_its_reason_and_when_it_takes_effect() {
        let schema = schema();
        let alpha = &schema["properties"]["routing"]["properties"]["kv"]["properties"]["alpha"];
        assert_eq!(
            *alpha,
            json!({"type": ["number", "string", "null"], "minimum": 0, "maximum": 1, "pattern": REFERENCE, "default": 0.3, "x-reload": "live", "description":
                "While loads are balanced: low, so that cached prefixes decide.\na share must be from 0 to 1"})
        );
        let worker = &schema["properties"]["workers"]["items"];
        assert_eq!(worker["required"], json!(["id", "url", "model"]));
        assert_eq!(worker["properties"]["max_num_seqs"]["default"], 256);
        assert_eq!(worker["properties"]["capacity_blocks"]["minimum"], 1);
        assert_eq!(worker["additionalProperties"], false);
        let usage =
            json!([{"enum": ["as_asked", "always"]}, {"type": "string", "pattern": REFERENCE}, {"type": "null"}]);
        assert_eq!(schema["properties"]["usage"]["anyOf"], usage);
        let events = worker["properties"]["events"]["anyOf"].as_array().unwrap();
        assert_eq!(events.last(), Some(&json!({"type": "null"})));
        assert_eq!(schema["properties"]["listen"]["properties"]["data"]["x-reload"], "restart");
    }

    /// The least fleet with `value` at `key`, a section for each of its parts.
    fn with(key: &str, value: &Value) -> String {
        let steps: Vec<&str> = key.split('.').collect();
        format!("{LEAST}{}: {value}{}\n", steps.join(": {"), "}".repeat(steps.len() - 1))
    }

    #[test]
    fn bounds_are_those_of_reading() {
        let schema = schema();
        let mut bounds = 0;
        for Known { key, default, .. } in known().into_iter().filter(|known| !known.key.contains("[]")) {
            let told = schema.pointer(&format!("/properties/{}", key.replace('.', "/properties/"))).unwrap();
            let is_read = |value: &Value| Config::parse("f", with(&key, value)).is_ok();
            let beyond = |bound: &Value, step: i64| bound.as_i64().and_then(|bound| bound.checked_add(step));
            for beyond in [beyond(&told["minimum"], -1), beyond(&told["maximum"], 1)].into_iter().flatten() {
                assert!(default.as_ref().is_none_or(is_read) && !is_read(&beyond.into()), "{key}: {beyond}");
                bounds += 1;
            }
        }
        assert!(bounds > 100, "{bounds}");
    }

    #[test]
    fn text_that_says_how_much_is_told_apart_from_other_text() {
        let schema = schema();
        let at = |key: &str| schema.pointer(&format!("/properties/{}", key.replace('.', "/properties/"))).unwrap();
        let kinds = |key| at(key)["type"].as_array().unwrap().iter().filter_map(Value::as_str).collect::<Vec<_>>();
        assert_eq!(kinds("timeouts.connect"), ["string", "null"]);
        assert_eq!(at("timeouts.connect")["pattern"], format!(r"^[0-9]+\s*(h|m|s|ms)$|{REFERENCE}"));
        assert_eq!(kinds("limits.body_bytes"), ["integer", "string", "null"]);
        assert_eq!(at("limits.body_bytes")["pattern"], format!(r"^[0-9]+\s*(GiB|MiB|KiB|B)?$|{REFERENCE}"));
        assert_eq!((kinds("listen.data"), kinds("events.nats.url")), (vec!["string", "null"], vec!["string", "null"]));
        assert_eq!(kinds("events.nats.prefix"), ["string", "number", "boolean", "null"]);
        for (key, value) in
            [("timeouts.connect", json!(5)), ("limits.body_bytes", json!(true)), ("listen.data", json!(1))]
        {
            assert!(Config::parse("f", with(key, &value)).is_err(), "{key}");
        }
    }

    #[test]
    fn a_reference_stands_for_a_value_of_any_type() {
        let schema = schema();
        let text = "{models: [{name: m}], workers: [{id: w, url: 'http://h:1', model: m, max_num_seqs: '${env:N}'}],\n\
                    listen: {routing_headers: '${env:YES}'}, routing: {policy: '${env:POLICY}', kv: {alpha: '${env:HALF}'}}}";
        let variables = [("N", "64"), ("YES", "true"), ("POLICY", "logit"), ("HALF", "0.5")];
        let reading = Reading::of_text("f", text.to_owned(), Path::new(""), &variables.into_iter().collect());
        assert_eq!(reading.faults, []);
        for key in [
            "workers/items/properties/max_num_seqs",
            "listen/properties/routing_headers",
            "routing/properties/kv/properties/alpha",
        ] {
            let schema = schema.pointer(&format!("/properties/{key}")).unwrap();
            assert!(schema["type"].as_array().unwrap().contains(&"string".into()), "{key}");
            assert_eq!(schema["pattern"], REFERENCE, "{key}");
        }
    }

    /// What the schema asks for at the top is what reading asks for.
    #[test]
    fn workers_need_not_be_given_where_they_are_found() {
        assert_eq!((schema()["anyOf"].clone(), schema()["required"].clone()), (answerers(), json!(["models"])));
        let fine = |text: &str| Config::parse("f", text.to_owned()).is_ok();
        assert!(fine(LEAST) && fine("models: [{name: m}]\ndiscovery: {dns: {name: workers}}\n"));
        assert!(!fine("discovery: {file: {path: workers.yaml}}\n"));
        assert!(!fine("models: [{name: m}]\n") && !fine("workers: [{id: w, url: 'http://h:1', model: m}]\n"));
    }

    /// What the list of required keys says is what reading says.
    #[test]
    fn what_must_be_given_cannot_be_left_out_and_everything_else_can() {
        let full = "models: [{name: m}]\nworkers: [{id: w, url: 'http://h:1', model: m}]\n\
                    engines: {presets: [{name: n, running: r, waiting: w, usage: u}]}\n";
        assert!(Config::parse("f", full.to_owned()).is_ok());
        for (key, without) in [
            ("models[].name", full.replace("{name: m}", "{}")),
            ("workers[].id", full.replace("id: w, ", "")),
            ("workers[].url", full.replace("url: 'http://h:1', ", "")),
            ("workers[].model", full.replace(", model: m", "")),
            ("engines.presets[].name", full.replace("name: n, ", "")),
            ("engines.presets[].running", full.replace("running: r, ", "")),
            ("engines.presets[].waiting", full.replace("waiting: w, ", "")),
            ("engines.presets[].usage", full.replace(", usage: u", "")),
        ] {
            assert!(REQUIRED.contains(&key) && without != full);
            let message = Config::parse("f", without).unwrap_err().to_string();
            assert!(message.contains("is missing"), "{key}: {message}");
        }
    }
}
