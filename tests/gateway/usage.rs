//! What is learned of streams: with `usage: always` from a chunk that the client does not see, else from the engine's own
//! counters.

use serde_json::json;

use crate::fleet::{TestFleet, fleet};
use crate::scripted::{Scripted, Step, end, event, head, piece};

const USAGE: &str = "data: {\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,\
    \"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

async fn stream(fleet: &TestFleet, options: &str) -> Vec<u8> {
    let body = format!("{{\"model\": \"m\", \"prompt\": \"x\", \"stream\": true{options}}}");
    let answer = fleet.client.post(fleet.url("/v1/completions")).body(body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.bytes().await.unwrap().to_vec()
}

/// Prompt tokens as they were reported: each prompt has one.
async fn reported(fleet: &TestFleet) -> f64 {
    fleet.metric("warmpath_prompt_tokens_reported_total", "").await
}

/// R15.
#[tokio::test]
async fn wherever_the_stream_is_cut_the_client_sees_all_but_the_chunk_and_its_usage_counts() {
    let before = ": ping\r\n\r\ndata: {\"choices\":[{\"text\":\"é🦀\"}],\"usage\":null}\r\n\r\n";
    let bytes = [before, USAGE, DONE].concat().into_bytes();
    let expected = [before, DONE].concat().into_bytes();
    let worker = Scripted::start(Vec::new()).await;
    let fleet = fleet().engines(0).stranger(worker.address).config("usage: always").start().await;
    for cut in 1..bytes.len() {
        worker.plays(vec![head(), piece(&bytes[..cut]), piece(&bytes[cut..]), end()]);
        assert_eq!(stream(&fleet, "").await, expected, "cut at {cut}");
    }
    worker.plays([vec![head()], bytes.chunks(1).map(piece).collect(), vec![end()]].concat());
    assert_eq!(stream(&fleet, "").await, expected);
    let answers = f64::from(u32::try_from(bytes.len()).unwrap());
    fleet.until_metric("warmpath_requests_total", "outcome=\"ok\"", answers).await;
    assert_eq!(reported(&fleet).await, answers);
    assert_eq!(fleet.app.in_flight(), 0);
}

#[tokio::test]
async fn who_asks_for_usage_gets_it() {
    let whole = event("a") + USAGE + DONE;
    let worker = Scripted::start(vec![head(), piece(&whole), end()]).await;
    let always = fleet().engines(0).stranger(worker.address).config("usage: always").start().await;
    let asked = r#", "stream_options": {"include_usage": true}"#;
    assert_eq!(stream(&always, asked).await, whole.as_bytes());
    assert_eq!(stream(&always, "").await, (event("a") + DONE).as_bytes());
    // Each chunk would tell: such a wish is left alone.
    let every_chunk = r#", "stream_options": {"continuous_usage_stats": true}"#;
    assert_eq!(stream(&always, every_chunk).await, whole.as_bytes());
    assert!(worker.seen().pop().unwrap().body.ends_with((every_chunk[2..].to_owned() + "}").as_bytes()));
    let as_asked = fleet().engines(0).stranger(worker.address).start().await;
    assert_eq!(stream(&as_asked, "").await, whole.as_bytes());
}

/// Engines take words for booleans.
#[tokio::test]
async fn a_stream_that_is_asked_for_by_a_word_is_one() {
    let whole = event("a") + USAGE + DONE;
    let worker = Scripted::start(vec![head(), piece(&whole), end()]).await;
    let fleet = fleet().engines(0).stranger(worker.address).config("usage: always").start().await;
    for (rest, expected) in [
        (r#""stream":"yes"}"#, event("a") + DONE),
        (r#""stream":1,"stream_options":{"include_usage":"on"}}"#, whole.clone()),
    ] {
        let body = format!(r#"{{"model":"m","prompt":"x","max_tokens":"16",{rest}"#);
        let answer = fleet.client.post(fleet.url("/v1/completions")).body(body).send().await.unwrap();
        assert_eq!(answer.text().await.unwrap(), expected, "{rest}");
        assert!(worker.seen().pop().unwrap().body.ends_with(rest.as_bytes()));
    }
}

/// The error comes behind the last whole event, and the body is cut.
#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_error_all_the_same() {
    let script = vec![head(), piece(event("a") + "data: {\"choices\":[{\"te"), Step::Close];
    let worker = Scripted::start(script).await;
    let fleet = fleet().engines(0).stranger(worker.address).config("usage: always").start().await;
    let body = r#"{"model": "m", "prompt": "x", "stream": true}"#;
    let mut answer = fleet.client.post(fleet.url("/v1/completions")).body(body).send().await.unwrap();
    let mut seen = Vec::new();
    let broke = loop {
        match answer.chunk().await {
            Ok(Some(chunk)) => seen.extend_from_slice(&chunk),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    let seen = String::from_utf8(seen).unwrap();
    let rest = seen.strip_prefix(&event("a")).unwrap_or_else(|| panic!("{seen}"));
    assert!(rest.trim_start().starts_with("data: {\"error\":"), "{rest}");
    assert!(rest.contains("upstream_broken") && broke);
}

#[tokio::test]
async fn simulated_engines_tell_of_every_stream() {
    let fleet = fleet().engines(1).config("usage: always").start().await;
    let prompt: Vec<u32> = (100..140).collect();
    let body = json!({"model": "m", "prompt": prompt, "max_tokens": 2, "stream": true}).to_string();
    for round in 1..=3 {
        let answer = fleet.client.post(fleet.url("/v1/completions")).body(body.clone()).send().await.unwrap();
        let text = answer.text().await.unwrap();
        assert!(text.ends_with(DONE) && !text.contains("usage"), "{text}");
        fleet.until_metric("warmpath_predictions_total", "result=\"exact\"", f64::from(round)).await;
        fleet.until_metric("warmpath_index_blocks", "engine-1", 10.0).await;
    }
    assert_eq!(fleet.metric("warmpath_cached_tokens_total", "source=\"reported\"").await, 72.0);
}

/// Bodies pass as they came, and the engine's counters tell what its answers do not.
#[tokio::test]
async fn trust_goes_by_the_engines_counters_where_streams_do_not_tell() {
    let worker = Scripted::start(vec![head(), piece(event("a") + DONE), end()]).await;
    let config = "engines: {metrics_interval: 20ms}";
    let fleet = fleet().engines(0).stranger_with(worker.address, "events: local").config(config).start().await;
    let says = |queries: u32, hits: u32| {
        worker.says(Some(&format!(
            "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n\
             vllm:prefix_cache_queries_total {queries}\nvllm:prefix_cache_hits_total {hits}\n"
        )));
    };
    let scrapes = async || fleet.metric("warmpath_engine_scrapes_total", "stranger-1\",outcome=\"ok").await;
    let read = async || {
        let before = scrapes().await;
        fleet.eventually("its counters are read", async |_| scrapes().await >= before + 2.0).await;
    };
    says(0, 0);
    read().await;
    let body = json!({"model": "m", "prompt": (0..40).collect::<Vec<u32>>(), "stream": true}).to_string();
    for round in 1..=9 {
        let answer = fleet.client.post(fleet.url("/v1/completions")).body(body.clone()).send().await.unwrap();
        assert_eq!(answer.bytes().await.unwrap(), (event("a") + DONE).as_bytes());
        // Nothing was promised: a find of 36 tokens each time is more than was known.
        says(40 * round, 36 * round);
        read().await;
    }
    assert!(worker.seen().iter().all(|seen| seen.body == body.as_bytes()));
    let (_, text) = fleet.admin("/api/v1/workers").await;
    let known: serde_json::Value = serde_json::from_str(&text).unwrap();
    let reason = "promises 0 cached tokens, the engine reports 36: events lost?";
    assert_eq!(known["workers"][0]["reasons"], json!([reason]));
}
