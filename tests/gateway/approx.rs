//! The policies for engines that publish no events: the gateway goes by what it has sent.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fleet::{TestFleet, fleet};

const STORY: &str = "Once upon a time there was a router that had never heard of any event.";

impl TestFleet {
    async fn of_worker(&self, metric: &str, number: u32) -> f64 {
        self.metric(metric, &format!("worker=\"engine-{number}\"")).await
    }

    /// A stream that goes on until it is dropped.
    async fn endless(&self) -> reqwest::Response {
        let body = json!({"model": "m", "prompt": "go on", "max_tokens": 2000, "stream": true});
        let request = self.client.post(self.url("/v1/completions")).body(body.to_string());
        request.send().await.unwrap()
    }
}

/// no events, no tokenizer, and yet one prompt has one worker, whose cache it hits.
#[tokio::test]
async fn a_text_that_comes_again_goes_where_it_went() {
    let fleet = fleet().policy("approx_tree").tokenizer("null").without_events().start().await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(fleet.complete(json!(STORY)).await);
    }
    assert!(answers.iter().all(|answer| answer.worker == "engine-1"), "{answers:?}");
    assert!(answers.iter().all(|answer| answer.headers["x-warmpath-decision"] == "policy"));
    assert_eq!([answers[0].cached(), answers[1].cached(), answers[2].cached()], [0, 68, 68]);
    let both = async |metric: &str| [fleet.of_worker(metric, 1).await, fleet.of_worker(metric, 2).await];
    assert_eq!(both("warmpath_placed_requests_total").await, [3.0, 0.0]);
    assert_eq!(both("warmpath_history_units").await, [70.0, 0.0]);
    fleet.eventually("nothing is in flight", async |_| both("warmpath_in_flight_requests").await == [0.0, 0.0]).await;
    assert!((fleet.metric("warmpath_untokenized_total", "no_tokenizer").await - 3.0).abs() < 1e-9);
}

#[tokio::test]
async fn texts_that_share_nothing_spread_by_the_size_of_trees() {
    let fleet = fleet().policy("approx_tree").tokenizer("null").without_events().start().await;
    let mut workers = Vec::new();
    for first in ["a", "b", "c", "d"] {
        workers.push(fleet.complete(json!(first.repeat(60))).await.worker);
    }
    assert_eq!(workers, ["engine-1", "engine-2", "engine-1", "engine-2"]);
    // Each goes back to where it was, in any order; more than half is enough.
    for (first, number) in [("d", 2), ("a", 1), ("b", 2), ("c", 1)] {
        let answer = fleet.complete(json!(format!("{}{}", first.repeat(60), "x".repeat(50)))).await;
        assert_eq!(answer.worker, format!("engine-{number}"), "{first}");
    }
}

#[tokio::test]
async fn token_ids_and_salts_are_told_apart() {
    let fleet = fleet().policy("approx_tree").tokenizer("null").without_events().start().await;
    let ids: Vec<u32> = (97..137).collect();
    let salted = |salt: &str| json!({"model": "m", "prompt": ids.clone(), "max_tokens": 2, "cache_salt": salt});
    let text: String = ids.iter().map(|id| char::from_u32(*id).unwrap()).collect();
    // Equal numbers, yet four different prompts: each goes to the smaller tree.
    let mut workers = vec![fleet.complete(json!(ids)).await.worker, fleet.complete(json!(text)).await.worker];
    for salt in ["a", "b"] {
        workers.push(fleet.post("/v1/completions", &salted(salt)).await.worker);
    }
    assert_eq!(workers, ["engine-1", "engine-2", "engine-1", "engine-2"]);
    assert_eq!(fleet.post("/v1/completions", &salted("b")).await.worker, "engine-2");
    assert_eq!(fleet.complete(json!(ids)).await.worker, "engine-1");
}

/// A conversation begins where there is room, and stays there when the first worker has room again.
async fn keeps_its_worker(tokenizer: &'static str) {
    let fleet = fleet().policy("approx_lru").tokenizer(tokenizer).without_events().start().await;
    let busy = fleet.endless().await;
    assert_eq!(busy.headers()["x-warmpath-worker"], "engine-1");
    let mut messages: Vec<Value> = vec![json!({"role": "user", "content": STORY})];
    for turn in 0..4 {
        let chat = json!({"model": "m", "messages": messages, "max_tokens": 4});
        let answer = fleet.post("/v1/chat/completions", &chat).await;
        assert_eq!((answer.status, answer.worker.as_str()), (200, "engine-2"), "turn {turn}");
        assert_eq!(answer.cached() > 0, turn > 0, "turn {turn}");
        messages.push(answer.body["choices"][0]["message"].clone());
        messages.push(json!({"role": "user", "content": format!("And then, in chapter {turn}?")}));
    }
    drop(busy);
    fleet.eventually("engine-1 is idle", async |fleet| fleet.app.in_flight() == 0).await;
    let chat = json!({"model": "m", "messages": messages, "max_tokens": 4});
    assert_eq!(fleet.post("/v1/chat/completions", &chat).await.worker, "engine-2");
    assert_eq!(fleet.complete(json!("something else entirely, but long enough")).await.worker, "engine-1");
}

///
#[tokio::test]
async fn a_conversation_keeps_its_worker_without_a_tokenizer() {
    keeps_its_worker("null").await;
}

///
#[tokio::test]
async fn a_conversation_keeps_its_worker_with_a_tokenizer() {
    keeps_its_worker("bytes").await;
}

#[tokio::test]
async fn what_a_dead_worker_was_sent_is_forgotten() {
    let builder = fleet().policy("approx_tree").tokenizer("null").without_events();
    let mut fleet = builder.config("timeouts: {health_interval: 10ms}").start().await;
    fleet.complete(json!(STORY)).await;
    assert_eq!(fleet.of_worker("warmpath_history_units", 1).await, 70.0);
    std::mem::take(&mut fleet.tasks).drain(Duration::ZERO).await;
    let forgotten = async |fleet: &TestFleet| {
        fleet.of_worker("warmpath_worker_up", 1).await == 0.0
            && fleet.of_worker("warmpath_history_units", 1).await == 0.0
    };
    fleet.eventually("engine-1 is down and forgotten", forgotten).await;
}

/// What is made of a history changes, and what bounds it does not: nothing is forgotten.
#[tokio::test]
async fn other_weights_forget_nothing_of_what_was_sent() {
    let fleet = fleet().policy("approx_tree").tokenizer("null").without_events().start().await;
    fleet.complete(json!(STORY)).await;
    let file = fleet.following("approx").await;
    let set = |rule: &str| {
        fleet.yaml.replace("policy: approx_tree", &format!("policy: approx_tree, approx_tree: {{{rule}}}"))
    };
    let units = async || fleet.of_worker("warmpath_history_units", 1).await;
    for (rule, left) in [("cache_threshold: 0.3", 70.0), ("cache_threshold: 0.3, max_tree_size: 1000", 0.0)] {
        assert_ne!(set(rule), fleet.yaml);
        file.write(set(rule).as_bytes());
        let (status, told) = fleet.reload().await;
        assert_eq!((status, units().await), (200, left), "{rule}: {told}");
    }
}
