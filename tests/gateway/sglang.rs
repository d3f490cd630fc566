//! What SGLang reads of a request otherwise than vLLM does, as far as its `/v1/models` says that it is SGLang.

use serde_json::{Value, json};

use crate::fleet::{TestFleet, fleet};
use crate::models::serves;
use crate::scripted::{Scripted, whole};

const CHAT: &str = "/v1/chat/completions";

/// Two engines of this maker.
async fn made_by(maker: &str, policy: &'static str) -> ([Scripted; 2], TestFleet) {
    let workers =
        [Scripted::start(vec![whole("200 OK", "{}")]).await, Scripted::start(vec![whole("200 OK", "{}")]).await];
    workers.iter().for_each(|worker| worker.offers(&serves(4096, &[]).replace("vllm", maker)));
    let builder = fleet().engines(0).stranger(workers[0].address).stranger(workers[1].address).without_events();
    let fleet = builder.policy(policy).start().await;
    fleet
        .eventually("both have said whose they are", async |fleet| {
            let (_, models) = fleet.get(fleet.url("/v1/models/m")).await;
            let model: Value = serde_json::from_str(&models).unwrap();
            model["owned_by"] == maker
        })
        .await;
    (workers, fleet)
}

fn chat(tools: Value, choice: &Value) -> Value {
    let messages = [json!({"role": "user", "content": "x"})];
    json!({"model": "m", "messages": messages, "tools": tools, "tool_choice": choice})
}

/// How many chats were not rendered, of one without tools, and of one with such a choice among them.
async fn left_out(fleet: &TestFleet, choices: &[Value]) -> f64 {
    let before = fleet.metric("warmpath_untokenized_total", "reason=\"engine_rules\"").await;
    assert_eq!(fleet.post(CHAT, &chat(Value::Null, &Value::Null)).await.status, 200);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    for choice in choices {
        assert_eq!(fleet.post(CHAT, &chat(tools.clone(), choice)).await.status, 200);
    }
    fleet.metric("warmpath_untokenized_total", "reason=\"engine_rules\"").await - before
}

#[tokio::test]
async fn chats_that_sglang_renders_by_rules_of_its_own_go_by_load() {
    let named = json!({"type": "function", "function": {"name": "f"}});
    let (_sglang, fleet) = made_by("sglang", "kv").await;
    assert_eq!(left_out(&fleet, &["none".into()]).await, 0.0);
    assert_eq!(left_out(&fleet, &["auto".into(), "none".into(), named.clone()]).await, 2.0);
    let (_vllm, fleet) = made_by("vllm", "kv").await;
    assert_eq!(left_out(&fleet, &["auto".into(), "none".into(), named]).await, 0.0);
}

/// Tenants that it tells apart never share a prefix.
#[tokio::test]
async fn an_extra_key_keeps_prefixes_apart_where_it_does_so_in_the_engine() {
    for (maker, is_apart) in [("sglang", true), ("vllm", false)] {
        let (_workers, fleet) = made_by(maker, "approx_tree").await;
        let place = async |key: &str| {
            let body =
                json!({"model": "m", "prompt": (0..40).collect::<Vec<u32>>(), "extra_key": key, "cache_salt": ""});
            let answer = fleet.post("/v1/completions", &body).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            answer.worker
        };
        let [first, other] = [place("a").await, place("b").await];
        assert_eq!(first != other, is_apart, "{maker}");
        assert_eq!([place("a").await, place("b").await], [first, other], "{maker}");
    }
}
