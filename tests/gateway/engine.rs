//! The simulated engine by itself: what it answers, what it counts, and what it says of its cache.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use warmpath::events::Message;
use warmpath::events::local::LocalBus;
use warmpath::events::publish::Bus;
use warmpath::events::publish::faults::EventFaults;
use warmpath::mock_engine::{MockEngine, MockSettings};
use warmpath::shutdown::Tasks;
use warmpath_core::blocks::{Root, hash_blocks};
use warmpath_core::ids::Slot;
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::units::BlockSize;
use warmpath_indexer::codec::{
    decode,
    encode::{Form, HashForm},
};
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::event::CacheEvent;
use warmpath_indexer::view::ViewSettings;
use warmpath_simulator::{EngineConfig, Profile};

use crate::fleet::value_of;

mod metrics;
mod native;

/// One engine and its events.
struct Bench {
    url: String,
    client: reqwest::Client,
    events: Receiver<Message>,
    _tasks: Tasks,
}

struct Setup {
    blocks: u32,
    running: usize,
    timing: &'static str,
    form: Form,
    tokenizer: Option<PathBuf>,
    profile: Profile,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            blocks: 100,
            running: 64,
            timing: "linear:0.01,0.001",
            form: Form::Map,
            tokenizer: None,
            profile: Profile::Vllm,
        }
    }
}

impl Setup {
    async fn start(self) -> Bench {
        let (bus, tasks) = (LocalBus::new(), Tasks::new());
        let events = bus.subscribe("e", 0);
        let settings = MockSettings {
            listen: "127.0.0.1:0".parse().unwrap(),
            worker: "e".to_owned(),
            model: "m".to_owned(),
            engine: EngineConfig {
                profile: self.profile,
                block_size: BlockSize::new(4).unwrap(),
                blocks: self.blocks + 1,
                max_num_seqs: self.running,
                timing: self.timing.parse().unwrap(),
                vocabulary: 97..123,
                seed: 1,
                ..EngineConfig::default()
            },
            ranks: vec![Bus::Local(bus)],
            hashes: HashForm::Int,
            faults: EventFaults::default(),
            form: self.form,
            speedup: 1.0,
            tokenizer: self.tokenizer,
        };
        let engine = MockEngine::start(settings, &tasks).await.unwrap();
        Bench { url: format!("http://{}", engine.address), client: reqwest::Client::new(), events, _tasks: tasks }
    }
}

async fn bench() -> Bench {
    Setup::default().start().await
}

fn tokens(first: u32, count: u32) -> Value {
    (first..first + count).collect::<Vec<_>>().into()
}

impl Bench {
    async fn send(&self, path: &str, body: &Value) -> reqwest::Response {
        let body = serde_json::to_vec(body).unwrap();
        self.client.post(format!("{}{path}", self.url)).body(body).send().await.unwrap()
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.send(path, body).await;
        (response.status().as_u16(), response.json().await.unwrap_or(Value::Null))
    }

    async fn complete(&self, prompt: Value) -> Value {
        let (status, body) = self.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 3})).await;
        assert_eq!(status, 200, "{body}");
        body
    }

    /// The chunks of a streamed answer.
    async fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let response = self.send(path, body).await;
        assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
        let text = response.text().await.unwrap();
        let mut events: Vec<_> =
            text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let response = self.client.get(format!("{}{path}", self.url)).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    async fn metric(&self, name: &str) -> f64 {
        value_of(&self.get("/metrics").await.1, name, "model_name=\"m\"")
    }

    async fn until(&self, name: &str, value: f64) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.metric(name).await != value {
            assert!(Instant::now() < deadline, "{name} did not become {value}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_idle(&self) {
        self.until("vllm:num_requests_running", 0.0).await;
        self.until("vllm:num_requests_waiting", 0.0).await;
        assert_eq!(self.metric("vllm:kv_cache_usage_perc").await, 0.0);
    }

    fn said(&mut self) -> Vec<CacheEvent> {
        let messages: Vec<_> = std::iter::from_fn(|| self.events.try_recv().ok()).collect();
        messages.iter().flat_map(|message| decode(&message.payload).unwrap().events).collect()
    }
}

fn cached(body: &Value) -> u64 {
    body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[tokio::test]
async fn a_repeated_prompt_hits_all_its_blocks_but_the_last() {
    let bench = bench().await;
    let first = bench.complete(tokens(0, 40)).await;
    assert_eq!((&first["object"], &first["model"]), (&json!("text_completion"), &json!("m")));
    assert_eq!(first["choices"][0]["finish_reason"], "length");
    assert_eq!(first["choices"][0]["text"].as_str().unwrap().len(), 3);
    let usage = json!({"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43,
        "prompt_tokens_details": {"cached_tokens": 0}});
    assert_eq!(first["usage"], usage);
    assert_eq!(cached(&bench.complete(tokens(0, 40)).await), 36);
    assert_eq!(cached(&bench.complete(tokens(0, 41)).await), 40);
}

#[tokio::test]
async fn a_prompt_of_several_sequences_was_cached_once() {
    let bench = bench().await;
    bench.complete(tokens(0, 40)).await;
    let request = json!({"prompt": tokens(0, 40), "max_tokens": 2, "n": 3});
    let (status, body) = bench.post("/v1/completions", &request).await;
    assert_eq!((status, cached(&body)), (200, 36));
    let usage = [&body["usage"]["prompt_tokens"], &body["usage"]["completion_tokens"]];
    assert_eq!(usage, [&json!(40), &json!(6)]);
}

#[tokio::test]
async fn what_is_streamed_is_what_is_not() {
    for path in ["/v1/completions", "/v1/chat/completions"] {
        // A request's tokens follow from its number: the first of an engine is the first of another.
        let request = json!({"prompt": "hello", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5});
        let (_, whole) = bench().await.post(path, &request).await;
        let mut streamed = request.clone();
        streamed["stream"] = true.into();
        let plain = bench().await.stream(path, &streamed).await;
        streamed["stream_options"] = json!({"include_usage": true});
        let with_usage = bench().await.stream(path, &streamed).await;
        let text = |chunks: &[Value]| -> String {
            let choice = |chunk: &Value| {
                let choice = &chunk["choices"][0];
                choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or("").to_owned()
            };
            chunks.iter().map(choice).collect()
        };
        let choice = &whole["choices"][0];
        let expected = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
        assert_eq!((text(&plain).as_str(), plain.len()), (expected, 5), "{path}");
        assert_eq!(plain[4]["choices"][0]["finish_reason"], "length");
        assert!(plain.iter().all(|chunk| chunk.get("usage").is_none()));
        assert_eq!((text(&with_usage).as_str(), with_usage.len()), (expected, 6), "{path}");
        assert_eq!((&with_usage[5]["choices"], &with_usage[5]["usage"]), (&json!([]), &whole["usage"]));
    }
}

#[tokio::test]
async fn models_and_health_are_told() {
    let bench = bench().await;
    let models: Value = serde_json::from_str(&bench.get("/v1/models").await.1).unwrap();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("m"), &json!(400)));
    assert_eq!(bench.get("/health").await.0, 200);
}

#[tokio::test]
async fn text_and_chats_are_tokenized_as_they_are_answered() {
    let bench = bench().await;
    let (_, text) = bench.post("/tokenize", &json!({"model": "m", "prompt": "abc"})).await;
    assert_eq!(text, json!({"count": 3, "max_model_len": 400, "tokens": [97, 98, 99]}));
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
    let (_, tokens) = bench.post("/tokenize", &chat).await;
    let (_, answer) = bench.post("/v1/chat/completions", &chat).await;
    assert_eq!(tokens["count"], answer["usage"]["prompt_tokens"]);
}

#[tokio::test]
async fn a_reset_cache_misses_and_says_so() {
    let mut bench = bench().await;
    bench.complete(tokens(0, 40)).await;
    bench.until_idle().await;
    assert!(!bench.said().contains(&CacheEvent::Cleared));
    assert_eq!(bench.post("/reset_prefix_cache", &Value::Null).await.0, 200);
    assert_eq!(cached(&bench.complete(tokens(0, 40)).await), 0);
    let said = bench.said();
    assert_eq!(said[0], CacheEvent::Cleared);
    assert!(matches!(&said[1], CacheEvent::Stored(stored) if stored.hashes.len() == 10), "{said:?}");
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_with_the_reason() {
    let bench = bench().await;
    let path = "/v1/completions";
    let cases = [
        (json!({"prompt": tokens(0, 401)}), 400, "the prompt has 401 tokens and this engine can hold 400 at most"),
        (json!({"prompt": "a", "model": "other"}), 404, "The model `other` does not exist."),
        (
            json!({"prompt": vec!["a"; 33], "n": 128}),
            400,
            "prompts times `n` are 4224 sequences; one request may have 4096",
        ),
    ];
    for (body, status, message) in cases {
        let (found, answer) = bench.post(path, &body).await;
        assert_eq!(
            (found, &answer["error"]["message"], &answer["error"]["code"]),
            (status, &json!(message), &json!(status))
        );
    }
    bench.until_idle().await;
}

#[tokio::test]
async fn several_prompts_and_sequences_are_answered_in_one() {
    let bench = bench().await;
    let body = json!({"prompt": [tokens(0, 8), tokens(100, 8)], "n": 2, "max_tokens": 3});
    let (status, answer) = bench.post("/v1/completions", &body).await;
    let indices: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|choice| choice["index"].as_u64()).collect();
    assert_eq!((status, indices), (200, vec![Some(0), Some(1), Some(2), Some(3)]));
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(16), &json!(12)));
    assert_eq!(bench.metric("vllm:request_success_total").await, 4.0);
}

#[tokio::test]
async fn a_client_that_leaves_stops_the_engine() {
    let bench = Setup { timing: "linear:5,5", ..Setup::default() }.start().await;
    let body = json!({"prompt": tokens(0, 8), "max_tokens": 300, "stream": true});
    let mut response = bench.send("/v1/completions", &body).await;
    assert!(response.chunk().await.unwrap().is_some());
    assert_eq!(bench.metric("vllm:num_requests_running").await, 1.0);
    drop(response);
    bench.until_idle().await;
    assert_eq!(bench.metric("vllm:request_success_total").await, 0.0);
    assert!(bench.metric("vllm:generation_tokens_total").await < 300.0);
}

/// Every event decodes, in both forms, and what they add up to is what the engine hits: in a cache of 24 blocks under
/// prompts of up to 15, before each of 60 requests.
#[tokio::test]
async fn the_events_tell_exactly_what_the_next_request_hits() {
    for form in [Form::Map, Form::Array] {
        let mut bench = Setup { blocks: 24, form, ..Setup::default() }.start().await;
        let size = BlockSize::new(4).unwrap();
        let space = Namespace::plain("m", size);
        let root = Root::new(&space, 1337);
        let index = Arc::new(ConcurrentIndex::new(1000));
        let writer = index.writer(Slot(0), &ViewSettings { pool: space, seed: 1337, blocks: 24 });
        let (mut hits, mut evicted) = (0, 0);
        for number in 0..60_u32 {
            let first = (number / 2 % 5) * 1000;
            let prompt: Vec<u32> = (first..first + 21 + number * 13 % 40).collect();
            for event in bench.said() {
                let applied = writer.apply(&[event]);
                assert_eq!((applied.orphans, applied.unknown, applied.conflicts), (0, 0, 0));
                evicted += applied.removed;
            }
            let mut hashes = Vec::new();
            hash_blocks(&root, &prompt, &[], &mut hashes);
            let mut overlaps = Overlaps::default();
            index.match_prefix(&hashes, &mut overlaps);
            let run = usize::try_from(overlaps.longest().0).unwrap();
            let expected = run.min((prompt.len() - 1) / 4) * 4;
            let answer = bench.complete(prompt.into()).await;
            assert_eq!(cached(&answer), u64::try_from(expected).unwrap(), "request {number}");
            bench.until_idle().await;
            hits += expected;
        }
        assert!(hits > 0 && evicted > 0, "{hits} {evicted}");
    }
}

#[tokio::test]
async fn a_hugging_face_tokenizer_reads_text() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".cache/tokenizers/qwen3/tokenizer.json");
    assert!(file.exists(), "{} is missing: run scripts/fetch-tokenizer.sh", file.display());
    let bench = Setup { tokenizer: Some(file), ..Setup::default() }.start().await;
    let (_, tokens) = bench.post("/tokenize", &json!({"prompt": "Hello, world!"})).await;
    assert_eq!(tokens["tokens"], json!([9707, 11, 1879, 0]));
    let answer = bench.complete(json!("Hello, world!")).await;
    assert_eq!(answer["usage"]["prompt_tokens"], 4);
}

/// 65 536 sequences wait; the next request is told to come later, and those that run go on. The one that runs takes 40
/// seconds, in steps of 100 ms, so that the queue is full before it ends; requests are looked at between two steps, so all
/// are sent at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_said_to_be_full() {
    let bench = Setup { running: 1, timing: "linear:100,100", ..Setup::default() }.start().await;
    let long = json!({"prompt": "a", "max_tokens": 399, "stream": true});
    let mut running = bench.send("/v1/completions", &long).await;
    assert!(running.chunk().await.unwrap().is_some());
    let many = json!({"prompt": vec!["b"; 32], "n": 128, "max_tokens": 1, "stream": true});
    let waiting = join_all((0..16).map(|_| bench.send("/v1/completions", &many))).await;
    assert!(waiting.iter().all(|response| response.status() == 200));
    let (status, answer) = bench.post("/v1/completions", &json!({"prompt": "c"})).await;
    assert_eq!((status, &answer["error"]["message"]), (503, &json!("65536 sequences are waiting already")));
    assert!(running.chunk().await.unwrap().is_some());
}
