//! `/v1/models`: what is configured, and what workers say that they serve.

use serde_json::{Value, json};

use crate::bad_input::refusal;
use crate::fleet::{Answered, TestFleet, fleet};
use crate::scripted::{Scripted, whole};

/// What an engine answers that serves `m`, and these adapters.
pub(crate) fn serves(longest: u32, adapters: &[&str]) -> String {
    let base = json!({"id": "m", "object": "model", "created": 1_789_095_808, "owned_by": "vllm", "root": "/models/m",
        "parent": null, "max_model_len": longest, "permission": [{"id": "modelperm-1"}]});
    let adapter = |id: &&str| {
        json!({"id": id, "object": "model", "created": 1_789_095_809, "owned_by": "vllm", "root": format!("/loras/{id}"),
            "parent": "m", "permission": []})
    };
    let data: Vec<Value> = std::iter::once(base).chain(adapters.iter().map(adapter)).collect();
    json!({"object": "list", "data": data}).to_string()
}

async fn listed(fleet: &TestFleet) -> Vec<String> {
    let (status, text) = fleet.get(fleet.url("/v1/models")).await;
    assert_eq!(status, 200);
    let list: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(list["object"], "list");
    list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

pub(crate) async fn until_listed(fleet: &TestFleet, expected: &[&str]) {
    fleet.eventually(&format!("{expected:?} are listed"), async |fleet| listed(fleet).await == expected).await;
}

async fn one(fleet: &TestFleet, id: &str) -> Answered {
    let answer = fleet.client.get(fleet.url(&format!("/v1/models/{id}"))).send().await.unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    Answered { status, body: answer.json().await.unwrap(), worker: String::new(), predicted: None, headers }
}

#[tokio::test]
async fn what_workers_serve_is_merged_and_remembered_while_they_are_down() {
    let workers =
        [Scripted::start(vec![whole("200 OK", "{}")]).await, Scripted::start(vec![whole("200 OK", "{}")]).await];
    workers[0].offers(&serves(8192, &["sql", "org/law"]));
    workers[1].offers(&serves(4096, &["sql", "art"]));
    let config = "engines: {models_interval: 20ms}\ntimeouts: {health_interval: 20ms}";
    let builder = fleet().engines(0).stranger(workers[0].address).stranger(workers[1].address);
    let fleet = builder.second_model().config(config).start().await;
    let all = ["m", "alias/of-m", "m2", "art", "org/law", "sql"];
    until_listed(&fleet, &all).await;
    let model = |id: &str| {
        json!({"id": id, "object": "model", "created": 1_789_095_808, "owned_by": "vllm", "root": "/models/m", "parent": null,
            "max_model_len": 4096, "permission": [{"id": "modelperm-1"}]})
    };
    for id in ["m", "alias/of-m", "alias%2Fof-m"] {
        let answer = one(&fleet, id).await;
        assert_eq!((answer.status, answer.body), (200, model(&id.replace("%2F", "/"))));
        assert!(answer.headers.contains_key("x-request-id"));
    }
    let law = one(&fleet, "org/law").await.body;
    assert_eq!((&law["root"], &law["parent"]), (&json!("/loras/org/law"), &json!("m")));
    let m2 = json!({"id": "m2", "object": "model", "created": 0, "owned_by": "warmpath", "root": "m2", "parent": null});
    assert_eq!(one(&fleet, "m2").await.body, m2);
    for id in ["x", "%ff", "M", "m/", "m%00"] {
        let answer = one(&fleet, id).await;
        assert_eq!(refusal(&answer), (404, "invalid_request_error", Some("model"), Some("model_not_found")), "{id}");
    }
    for worker in &workers {
        worker.leave().await;
    }
    fleet
        .eventually("they are down", async |fleet| fleet.metric("warmpath_worker_up", "stranger-2").await == 0.0)
        .await;
    assert_eq!(listed(&fleet).await, all);
    let asked = fleet.post("/v1/completions", &json!({"model": "sql", "prompt": "x"})).await;
    assert_eq!(refusal(&asked), (503, "service_unavailable", None, Some("no_worker")));
}

#[tokio::test]
async fn adapters_come_and_go_with_what_a_worker_says_and_nonsense_changes_nothing() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let config = "engines: {models_interval: 20ms, adapters: 3}";
    let fleet =
        fleet().engines(0).stranger_with(worker.address, "events: none, dp_ranks: 2").config(config).start().await;
    assert_eq!(listed(&fleet).await, ["m", "alias/of-m"]);
    worker.offers(&serves(9, &["b", "a"]));
    until_listed(&fleet, &["m", "alias/of-m", "a", "b"]).await;
    worker.offers("<html>");
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(listed(&fleet).await, ["m", "alias/of-m", "a", "b"]);
    // Names that are configured are the models' own; of more adapters than may be the first are taken.
    worker.offers(&serves(9, &["alias/of-m", "d", "c", "b"]));
    until_listed(&fleet, &["m", "alias/of-m", "c", "d"]).await;
    worker.offers(&serves(9, &[]));
    until_listed(&fleet, &["m", "alias/of-m"]).await;
}
