//! A worker whose slots are all taken, over HTTP: who passes by it, and who waits there since that is sooner.

use reqwest::Response;
use serde_json::json;

use crate::fleet::{TestFleet, fleet};
use crate::scripted::{Scripted, Step, end, event, good_stream, head, piece};

/// A first token, then nothing until it is let go.
fn held() -> Vec<Step> {
    vec![head(), piece(event("a")), Step::Await, piece("data: [DONE]\n\n"), end()]
}

/// `shared` tokens that all such prompts begin with, and 64 of its own.
async fn ask(fleet: &TestFleet, shared: u32, own: u32) -> Response {
    let prompt: Vec<u32> = (1..=shared).chain(own..own + 64).collect();
    let body = json!({"model": "m", "prompt": prompt, "stream": true});
    fleet.client.post(fleet.url("/v1/completions")).json(&body).send().await.unwrap()
}

fn worker(response: &Response) -> String {
    assert_eq!(response.status(), 200);
    response.headers()["x-warmpath-worker"].to_str().unwrap().to_owned()
}

/// Two workers with a slot each. One answers a long prompt, and does not end; then comes one with the same beginning.
async fn both(policy: &'static str) -> [String; 2] {
    let workers = [Scripted::start(good_stream()).await, Scripted::start(good_stream()).await];
    let one = "events: none, max_num_seqs: 1, capacity_blocks: 100000";
    let builder = fleet().engines(0).policy(policy);
    let fleet = workers.iter().fold(builder, |builder, worker| builder.stranger_with(worker.address, one));
    let fleet = fleet.start().await;
    // Answers end at once here, and so a slot is soon free again: so many of them are believed.
    for own in 0..60 {
        ask(&fleet, 0, 1_000_000 + 1_000 * own).await.bytes().await.unwrap();
    }
    workers.iter().for_each(|worker| worker.plays(held()));
    let first = ask(&fleet, 40_000, 5_000_000).await;
    let second = ask(&fleet, 40_000, 6_000_000).await;
    let chosen = [worker(&first), worker(&second)];
    workers.iter().for_each(|worker| [(), ()].into_iter().for_each(|()| worker.go()));
    for response in [first, second] {
        assert!(response.text().await.unwrap().ends_with("data: [DONE]\n\n"));
    }
    chosen
}

#[tokio::test]
async fn predicted_waits_where_a_long_prefix_is_and_slots_turn_over_soon() {
    let [first, second] = both("predicted").await;
    assert_eq!(first, second);
}

///
#[tokio::test]
async fn others_pass_by_whoever_is_full() {
    for policy in ["kv", "product", "least_requests"] {
        let [first, second] = both(policy).await;
        assert_ne!(first, second, "{policy}");
    }
}
