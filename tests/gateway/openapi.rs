//! `docs/openapi.json`, held to the routes of the code and to what a running router answers.

use std::collections::BTreeSet;

use reqwest::{Method, Response};
use serde_json::{Value, json};
use warmpath::config::Listen;
use warmpath::http::{admin, routes};

use crate::fleet::{TestFleet, fleet};

const DATA: &str = "http://127.0.0.1:8080";
const ADMIN: &str = "http://127.0.0.1:9090";

struct Document(Value);

/// One path and method of it.
struct Operation<'a> {
    path: &'a str,
    method: Method,
    is_admin: bool,
    told: &'a Value,
}

impl Document {
    fn read() -> Self {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json")).unwrap();
        Self(serde_json::from_str(&text).unwrap())
    }

    /// What a reference stands for; anything else is itself.
    fn found<'a>(&'a self, value: &'a Value) -> &'a Value {
        let Some(reference) = value["$ref"].as_str() else { return value };
        let found = self.0.pointer(reference.strip_prefix('#').unwrap());
        found.unwrap_or_else(|| panic!("there is no {reference}"))
    }

    fn operations(&self) -> Vec<Operation<'_>> {
        let paths = self.0["paths"].as_object().unwrap().iter();
        paths
            .flat_map(|(path, item)| {
                let is_admin = item["servers"][0]["url"] == ADMIN;
                assert!(is_admin || item["servers"][0]["url"] == DATA, "{path} is on no port");
                let methods =
                    item.as_object().unwrap().iter().filter(|(key, _)| ["get", "post"].contains(&key.as_str()));
                methods.map(move |(method, told)| Operation {
                    path,
                    method: method.to_uppercase().parse().unwrap(),
                    is_admin,
                    told,
                })
            })
            .collect()
    }

    /// What is wrong with `value` by `schema`: types, names and choices, as far as the document uses them. A name that is
    /// not documented is wrong, too, unless others are allowed.
    fn faults(&self, schema: &Value, value: &Value, at: &str) -> Vec<String> {
        let schema = self.found(schema);
        if let Some(choices) = schema["anyOf"].as_array() {
            let mut faults: Vec<_> = choices.iter().map(|choice| self.faults(choice, value, at)).collect();
            faults.sort_by_key(Vec::len);
            return faults.swap_remove(0);
        }
        let types = match &schema["type"] {
            Value::Null => return Vec::new(),
            Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
            one => vec![one.as_str().unwrap()],
        };
        if !types.iter().any(|kind| is_of(kind, value)) {
            return vec![format!("{at}: {value} is none of {types:?}")];
        }
        let mut faults = Vec::new();
        if schema["enum"].as_array().is_some_and(|choices| !choices.contains(value)) {
            faults.push(format!("{at}: {value} is none of {}", schema["enum"]));
        }
        for (place, item) in value.as_array().into_iter().flatten().enumerate() {
            faults.extend(self.faults(&schema["items"], item, &format!("{at}[{place}]")));
        }
        let Some(fields) = value.as_object() else { return faults };
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let missing = required.filter(|name| !fields.contains_key(*name));
        faults.extend(missing.map(|name| format!("{at}: `{name}` is missing")));
        for (name, field) in fields {
            let at = format!("{at}.{name}");
            match (&schema["properties"][name], &schema["additionalProperties"]) {
                (Value::Null, Value::Null) => faults.push(format!("{at} is not documented")),
                (Value::Null, Value::Bool(_)) => {}
                (Value::Null, others) => faults.extend(self.faults(others, field, &at)),
                (told, _) => faults.extend(self.faults(told, field, &at)),
            }
        }
        faults
    }

    /// Holds an answer to what is said of this operation: its status, the type of its content, its headers, its body.
    async fn judge(&self, operation: &Operation<'_>, response: Response) -> Vec<String> {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let at = format!("{} {}: {status}", operation.method, operation.path);
        let body = response.bytes().await.unwrap();
        let responses = &operation.told["responses"];
        let told = responses.get(status.to_string()).or_else(|| responses.get("default"));
        let Some(told) = told.map(|told| self.found(told)) else { return vec![format!("{at} is not documented")] };
        let mut faults = Vec::new();
        for name in self.0["components"]["headers"].as_object().unwrap().keys() {
            let Some(value) = headers.get(name).map(|value| value.to_str().unwrap()) else { continue };
            let schema = &self.found(&told["headers"][name])["schema"];
            let value = value.parse::<u64>().map_or_else(|_| value.into(), Value::from);
            if schema.is_null() {
                faults.push(format!("{at}: the header {name} is not documented"));
            } else if schema["type"] == "integer" || schema["enum"].is_array() {
                faults.extend(self.faults(schema, &value, &format!("{at}: {name}")));
            }
        }
        let kind = headers.get("content-type").map_or("", |kind| kind.to_str().unwrap());
        let kind = kind.split(';').next().unwrap();
        let content = told["content"].get(kind).or_else(|| told["content"].get("*/*"));
        match content {
            None => faults.push(format!("{at}: {kind} is not documented")),
            Some(content) if kind == "application/json" => {
                let value = serde_json::from_slice(&body).unwrap();
                faults.extend(self.faults(&content["schema"], &value, &at));
            }
            Some(_) => {}
        }
        faults
    }
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type is called {other}"),
    }
}

/// A path of the router's as OpenAPI writes it.
fn as_documented(path: &str) -> String {
    let path = path.replace("{*", "{");
    path.strip_suffix('*').map_or(path.clone(), |folder| format!("{folder}{{path}}"))
}

impl TestFleet {
    async fn ask(&self, is_admin: bool, method: &Method, path: &str, body: &'static str) -> Response {
        let address = if is_admin { self.app.admin_address() } else { self.app.data_address() };
        let request = self.client.request(method.clone(), format!("http://{address}{path}"));
        let request =
            if body.is_empty() { request } else { request.header("content-type", "application/json").body(body) };
        request.send().await.unwrap()
    }
}

#[test]
fn every_path_of_the_code_is_documented_and_no_other() {
    let document = Document::read();
    assert_eq!(document.0["info"]["version"], env!("CARGO_PKG_VERSION"));
    let passed = Listen::default().passthrough.into_iter().map(String::from);
    let data: BTreeSet<String> =
        routes::paths().map(str::to_owned).chain(passed).map(|path| as_documented(&path)).collect();
    let admin: BTreeSet<String> = admin::paths().map(as_documented).collect();
    let documented = |is_admin| -> BTreeSet<String> {
        let operations = document.operations().into_iter().filter(|operation| operation.is_admin == is_admin);
        operations.map(|operation| operation.path.to_owned()).collect()
    };
    assert_eq!((documented(false), documented(true)), (data, admin));
}

/// Everything that is referred to is there, and everything that is there is referred to.
#[test]
fn the_document_is_whole() {
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| references(value, found));
            }
            _ => {}
        }
    }
    let document = Document::read();
    let mut found = BTreeSet::new();
    references(&document.0, &mut found);
    let parts = ["parameters", "headers", "responses", "schemas"].iter().flat_map(|part| {
        let names = document.0["components"][part].as_object().unwrap().keys();
        names.map(move |name| format!("#/components/{part}/{name}"))
    });
    assert_eq!(found, parts.collect());
    let operations = document.operations();
    let names: BTreeSet<_> = operations.iter().map(|operation| operation.told["operationId"].as_str()).collect();
    assert!(names.len() == operations.len() && !names.contains(&None), "operations have names of their own");
    for Operation { path, told, .. } in &operations {
        let given = told["parameters"].as_array().into_iter().flatten().map(|given| document.found(given));
        let given: BTreeSet<_> =
            given.filter(|given| given["in"] == "path").map(|given| given["name"].as_str().unwrap()).collect();
        let named: BTreeSet<_> = path.split('{').skip(1).map(|rest| rest.split_once('}').unwrap().0).collect();
        assert_eq!(given, named, "{path}");
    }
}

/// The documented methods are there, others are not; who has no token is told so where the document says it.
#[tokio::test]
async fn methods_and_tokens_are_as_documented() {
    let document = Document::read();
    let (open, guarded) =
        (fleet().engines(1).start().await, fleet().engines(1).listen("admin_token: secret").start().await);
    assert_eq!(open.complete(json!("x")).await.status, 200);
    for operation in document.operations() {
        let path = operation.path.replace("{path}", "speech");
        let path = if path.contains("/decisions/") { path.replace("{id}", "1") } else { path.replace("{id}", "m") };
        let path = path.replace("/m/{action}", "/engine-1/reset_breaker");
        let answer = open.ask(operation.is_admin, &operation.method, &path, NOTHING).await;
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        let is_unknown = status == 404 && text.contains("unknown path");
        assert!(status != 405 && !is_unknown, "{path}: {status} {text}");
        let is_passed = operation.told["operationId"].as_str().unwrap().starts_with("pass_");
        if !is_passed {
            let other = if operation.method == Method::GET { Method::POST } else { Method::GET };
            assert_eq!(open.ask(operation.is_admin, &other, &path, NOTHING).await.status(), 405, "{other} {path}");
        }
        if operation.is_admin {
            let answer = guarded.ask(true, &operation.method, &path, NOTHING).await;
            let is_asked = answer.status() == 401;
            assert_eq!(is_asked, operation.told["security"].is_array(), "{path}: {}", answer.status());
            let faults = document.judge(&operation, answer).await;
            assert!(faults.is_empty(), "{faults:?}");
        }
    }
}

/// What an operation is asked: a body, a stream, a chat, or nothing but its path.
const COMPLETION: &str = r#"{"model": "m", "prompt": "a prompt that is longer than a block of tokens", "max_tokens": 2, "prompt_cache_key": "s"}"#;
const STREAM: &str = r#"{"model": "m", "prompt": "a prompt", "max_tokens": 2, "stream": true}"#;
const CHAT: &str = r#"{"model": "m", "messages": [{"role": "user", "content": "a prompt"}], "max_tokens": 2}"#;
const NATIVE: &str = r#"{"text": "a prompt", "sampling_params": {"max_new_tokens": 2}}"#;
const STRANGE: &str = r#"{"model": "none", "prompt": "x"}"#;
const EMPTY: &str = r#"{"model": "m"}"#;
const NOTHING: &str = "";

/// A decision that was made beside the session's last worker.
const SECOND_OF_A_SESSION: &str = "/api/v1/decisions/2";

/// Operations, addresses, what is asked there, and the status of the answer, in this order.
const ASKED: &[(&str, &str, &str, u16)] = &[
    ("complete", "/v1/completions", COMPLETION, 200),
    ("complete", "/v1/completions", STREAM, 200),
    ("complete", "/v1/completions", STRANGE, 404),
    ("complete", "/v1/completions", EMPTY, 400),
    ("chat", "/v1/chat/completions", CHAT, 200),
    ("models", "/v1/models", NOTHING, 200),
    ("model", "/v1/models/m", NOTHING, 200),
    ("model", "/v1/models/a/b", NOTHING, 404),
    ("pass_tokenize", "/tokenize", COMPLETION, 200),
    ("pass_generate", "/generate", NATIVE, 200),
    ("page", "/", NOTHING, 200),
    ("live", "/livez", NOTHING, 200),
    ("ready", "/readyz", NOTHING, 200),
    ("health", "/healthz", NOTHING, 200),
    ("metrics", "/metrics", NOTHING, 200),
    ("workers", "/api/v1/workers", NOTHING, 200),
    ("decisions", "/api/v1/decisions?limit=3&worker=engine-1", NOTHING, 200),
    ("decisions", "/api/v1/decisions", NOTHING, 200),
    ("decisions", "/api/v1/decisions?limit=many", NOTHING, 400),
    ("decision", "/api/v1/decisions/1", NOTHING, 200),
    ("decision", SECOND_OF_A_SESSION, NOTHING, 200),
    ("decision", "/api/v1/decisions/1?by=number", NOTHING, 200),
    ("decision", "/api/v1/decisions/none", NOTHING, 404),
    ("decision", "/api/v1/decisions/none?by=number", NOTHING, 404),
    ("decision", "/api/v1/decisions/1?by=chance", NOTHING, 400),
    ("explain", "/api/v1/explain", CHAT, 200),
    ("explain", "/api/v1/explain", STRANGE, 404),
    ("history", "/api/v1/history?step_ms=1000&points=3", NOTHING, 200),
    ("history", "/api/v1/history?x=1", NOTHING, 400),
    ("index", "/api/v1/index", NOTHING, 200),
    ("bus", "/api/v1/bus", NOTHING, 200),
    ("config", "/api/v1/config", NOTHING, 200),
    ("act", "/api/v1/workers/engine-1/drain", NOTHING, 200),
    ("act", "/api/v1/workers/engine-1/drain", NOTHING, 409),
    ("act", "/api/v1/workers/engine-2/eject", NOTHING, 200),
    ("ready", "/readyz", NOTHING, 503),
    ("health", "/healthz", NOTHING, 200),
    ("complete", "/v1/completions", COMPLETION, 503),
    ("act", "/api/v1/workers/engine-1/undrain", NOTHING, 200),
    ("act", "/api/v1/workers/engine-1/reset_cache", NOTHING, 200),
    ("act", "/api/v1/workers/engine-1/reset_breaker", NOTHING, 200),
    ("act", "/api/v1/workers/nobody/drain", NOTHING, 404),
    ("act", "/api/v1/workers/engine-1/sell", NOTHING, 404),
];

/// Every operation is asked, with what it is for and with what it refuses, and answers as is documented.
#[tokio::test]
async fn real_answers_are_as_documented() {
    let document = Document::read();
    let config = "routing: {shadow: [approx_tree], sessions: {weight: 0.2}}\nengines: {metrics_interval: 100ms}";
    let fleet = fleet().engines(2).config(config).start().await;
    for _ in 0..2 {
        assert_eq!(fleet.post_bytes("/v1/completions", COMPLETION.into()).await.status, 200);
    }
    fleet.until_metric("warmpath_engine_scrapes_total", "outcome=\"", 1.0).await;

    let (mut faults, mut asked) = (Vec::new(), BTreeSet::from(["reload"]));
    let operations = document.operations();
    let named = |name| operations.iter().find(|operation| operation.told["operationId"] == name).unwrap();
    for (name, path, body, status) in ASKED {
        let operation = named(*name);
        let answer = fleet.ask(operation.is_admin, &operation.method, path, body).await;
        assert_eq!(answer.status(), *status, "{path}");
        asked.insert(name);
        faults.extend(document.judge(operation, answer).await);
    }
    let second: Value = fleet.ask(true, &Method::GET, SECOND_OF_A_SESSION, NOTHING).await.json().await.unwrap();
    assert!(second["question"]["kept"].is_object(), "{second}");
    let answer = fleet.ask(true, &Method::POST, "/api/v1/reload", NOTHING).await;
    faults.extend(document.judge(named("reload"), answer).await);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let names = operations.iter().filter_map(|operation| operation.told["operationId"].as_str());
    let unasked: Vec<_> = names.filter(|name| !asked.contains(name) && !name.starts_with("pass_")).collect();
    assert!(unasked.is_empty(), "nobody has asked {unasked:?}");
}
