//! The paths of the data port: those that are passed through, those that are not, and how.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::bad_input::refusal;
use crate::fleet::{TestFleet, fleet};
use crate::scripted::{Scripted, Step, end, head, piece, whole};

const JSON: &str = r#" {"input" : ["é\u00e9"], "model":"m", "x":{"model":"other","n":1e400} }"#;

async fn behind_one(worker: &Scripted) -> TestFleet {
    fleet().engines(0).stranger(worker.address).start().await
}

#[tokio::test]
async fn what_only_engines_understand_reaches_one_as_it_came() {
    let worker = Scripted::start(vec![whole("200 OK", "{\"odd\" : 1.10}")]).await;
    let fleet = behind_one(&worker).await;
    for path in [
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/rerank",
        "/v1/score",
        "/v1/audio/speech",
        "/v1/audio/any/thing.else",
        "/tokenize?a=%2e%2e&b",
        "/detokenize",
        "/generate",
    ] {
        let request =
            fleet.client.post(fleet.url(path)).header("x-custom", "1").header("x-tenant-id", "forged").body(JSON);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(answer.headers()["content-type"], "application/json");
        assert_eq!(
            (&answer.headers()["x-warmpath-decision"], &answer.headers()["x-warmpath-worker"]),
            (&"load".parse().unwrap(), &"stranger-1".parse().unwrap())
        );
        let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        assert_eq!(answer.text().await.unwrap(), "{\"odd\" : 1.10}");
        let seen = worker.seen().pop().unwrap();
        assert!(seen.head.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{}", seen.head);
        assert_eq!(String::from_utf8(seen.body.clone()).unwrap(), JSON);
        assert_eq!((seen.header("x-custom"), seen.header("x-tenant-id")), (vec!["1"], vec![]));
        assert_eq!(seen.header("x-request-id"), [id]);
    }
    assert_eq!(fleet.app.in_flight(), 0);
    fleet.until_metric("warmpath_requests_total", "outcome=\"ok\"", 11.0).await;
    assert_eq!(fleet.metric("warmpath_time_to_first_token_seconds_count", "").await, 0.0, "nobody's first token");
}

/// A policy that goes by prompts has nothing to go by; one that does not look at them needs nothing.
#[tokio::test]
async fn every_policy_that_goes_by_prompts_passes_them_by_load() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    for (policy, decided_by) in
        [("approx_tree", "load"), ("approx_lru", "load"), ("logit", "load"), ("round_robin", "policy")]
    {
        let fleet = fleet().engines(0).stranger(worker.address).policy(policy).start().await;
        for _ in 0..3 {
            let answer = fleet.post_bytes("/v1/embeddings", JSON.as_bytes().to_vec()).await;
            assert_eq!((answer.status, &answer.headers["x-warmpath-decision"]), (200, &decided_by.parse().unwrap()));
        }
    }
}

#[tokio::test]
async fn the_list_of_paths_is_configured() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let yaml = format!(
        "listen: {{data: '127.0.0.1:0', admin: '127.0.0.1:0', passthrough: [/v1/classify, /v2/*]}}\n\
         models: [{{name: m}}]\nworkers: [{{id: a, url: 'http://{}', model: m}}]\n",
        worker.address
    );
    let app = crate::fleet::gateway(&yaml, None).await;
    let client = reqwest::Client::new();
    for (path, status) in [("/v1/classify", 200), ("/v2/a/b", 200), ("/v2/", 404), ("/v1/embeddings", 404)] {
        let answer = client.post(format!("http://{}{path}", app.data_address())).body(JSON).send().await.unwrap();
        assert_eq!(answer.status(), status, "{path}");
    }
}

/// By what vLLM and SGLang are steered, and what else they tell.
const CONTROL: &str = "reset_prefix_cache reset_mm_cache sleep wake_up is_sleeping collective_rpc server_info pause resume \
    scale_elastic_ep v1/load_lora_adapter v1/unload_lora_adapter start_profile stop_profile update_weights flush_cache \
    update_weights_from_disk update_weights_from_tensor update_weights_from_distributed init_weights_update_group \
    release_memory_occupation resume_memory_occupation pause_generation continue_generation abort_request \
    set_internal_state get_server_info get_model_info slow_down load_lora_adapter unload_lora_adapter metrics health \
    health_generate load version docs openapi.json invocations v1/models/load v1/files";

/// What a path can hide behind, for readers that clean paths up.
const DISGUISES: &str = "// /./ /../ /%2e/ /%2e%2e/ /%2F /v1/audio/../../ /v1/audio/%2e%2e/%2e%2e/ /v1/audio/..%2f..%2f \
    /v1/audio/%2E%2E%2F%2e%2e/ /v1/audio/..\\..\\ /v1/audio// /v1/audio/%252e%252e/ /v1/audio/;/ \
    /v1/audio/x/../../../ /v1/embeddings/../../ /v1/embeddings/ /v1/completions/../../ /v1/models/../../ /v1// /V1/AUDIO/";

#[tokio::test]
async fn control_paths_of_engines_never_go_through_under_any_disguise() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = behind_one(&worker).await;
    let mut targets: Vec<String> = CONTROL.split(' ').map(|path| format!("/{path}")).collect();
    for path in ["sleep", "reset_prefix_cache"] {
        targets.extend(DISGUISES.split(' ').map(|disguise| format!("{disguise}{path}")));
        targets.extend([
            format!("/{}", path.to_uppercase()),
            format!("/{path}/"),
            format!("/{path}%00"),
            format!("/%{:02x}{}", path.as_bytes()[0], &path[1..]),
            format!("http://{}/{path}", worker.address),
        ]);
    }
    assert_eq!(targets.len(), 41 + 2 * (21 + 5));
    for target in targets {
        let length = JSON.len();
        let head = format!("POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\nconnection: close");
        let text = raw(&fleet, &format!("{head}\r\n\r\n{JSON}")).await;
        let status = text.split(' ').nth(1).unwrap_or_else(|| panic!("{target}: {text:?}"));
        // A path below /v1/models is a model's name, and is only read.
        let expected: &[&str] = if target.starts_with("/v1/models/") { &["405"] } else { &["404", "400"] };
        assert!(expected.contains(&status), "{target}: {text}");
        if status == "404" {
            let body: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
            assert_eq!(body["error"]["type"], "invalid_request_error", "{target}");
        }
    }
    assert_eq!(worker.seen().len(), 0);
}

/// The answer to exactly these bytes.
async fn raw(fleet: &TestFleet, request: &str) -> String {
    let mut stream = TcpStream::connect(fleet.app.data_address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    let reading = timeout(Duration::from_secs(5), stream.read_to_end(&mut text)).await;
    reading.expect("it closes the connection").unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn methods_that_make_sense_pass_and_the_others_are_405_with_what_is_allowed() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = behind_one(&worker).await;
    for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        let answer = fleet.client.request(method.clone(), fleet.url("/v1/audio/voices")).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{method}");
        assert!(worker.seen().pop().unwrap().head.starts_with(&format!("{method} /v1/audio/voices ")));
    }
    let odd = Method::from_bytes(b"BREW").unwrap();
    for (method, path, allow) in [
        (Method::OPTIONS, "/v1/embeddings", "GET, HEAD, POST, PUT, PATCH, DELETE"),
        (Method::TRACE, "/v1/audio/speech", "GET, HEAD, POST, PUT, PATCH, DELETE"),
        (odd, "/generate", "GET, HEAD, POST, PUT, PATCH, DELETE"),
        (Method::GET, "/v1/completions", "POST"),
        (Method::DELETE, "/v1/chat/completions", "POST"),
        (Method::POST, "/v1/models", "GET, HEAD"),
        (Method::DELETE, "/v1/models/m", "GET, HEAD"),
    ] {
        let answer = fleet.client.request(method.clone(), fleet.url(path)).send().await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), answer.headers()["allow"].to_str().unwrap()),
            (405, allow),
            "{method} {path}"
        );
        assert!(answer.headers().contains_key("x-request-id"));
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["message"], "method not allowed");
    }
    assert_eq!(worker.seen().len(), 5);
}

/// `HEAD` shows no body: that there is none is not said of it.
#[tokio::test]
async fn a_head_without_a_length_stays_without() {
    let worker = Scripted::start(vec![Step::Send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec())]);
    let worker = worker.await;
    let fleet = behind_one(&worker).await;
    let asked = async |method| {
        let answer = fleet.client.request(method, fleet.url("/v1/audio/voices")).send().await.unwrap();
        let length = answer.headers().get("content-length").map(|length| length.to_str().unwrap().to_owned());
        (answer.status().as_u16(), length)
    };
    assert_eq!(asked(Method::HEAD).await, (200, None));
    worker.plays(vec![Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n".to_vec())]);
    assert_eq!(asked(Method::HEAD).await, (200, Some("7".to_owned())));
    worker.plays(vec![Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec())]);
    assert_eq!(asked(Method::GET).await, (200, Some("0".to_owned())));
    let models = fleet.client.head(fleet.url("/v1/models")).send().await.unwrap();
    assert_ne!(models.headers()["content-length"], "0");
}

/// Other APIs' streams do not end with `[DONE]`.
#[tokio::test]
async fn a_stream_of_another_api_passes_as_it_comes_and_ends_as_it_ends() {
    let (first, rest) =
        ("event: message_start\ndata: {}\n\n", "event: message_stop\r\ndata: {\"choices\":[],\"usage\":{}}\r\n\r\n");
    let worker = Scripted::start(vec![head(), piece(first), Step::Await, piece(rest), end()]).await;
    let fleet = fleet().engines(0).stranger(worker.address).config("usage: always").start().await;
    let body = r#"{"model":"m","stream":true}"#;
    let mut answer = fleet.client.post(fleet.url("/v1/messages")).body(body).send().await.unwrap();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), first);
    assert_eq!(fleet.app.in_flight(), 1);
    worker.go();
    assert_eq!(answer.bytes().await.unwrap(), rest);
    fleet.until_metric("warmpath_requests_total", "outcome=\"ok\"", 1.0).await;
    assert_eq!((worker.seen()[0].body.as_slice(), fleet.app.in_flight()), (body.as_bytes(), 0));
    worker.plays(vec![head(), piece(first), Step::Close]);
    let answer = fleet.client.post(fleet.url("/v1/messages")).body(body).send().await.unwrap();
    assert!(answer.bytes().await.is_err(), "a cut stream does not look whole");
}

/// Speech is heard before it has all been made.
#[tokio::test]
async fn sound_is_relayed_as_it_comes() {
    let head =
        Step::Send(b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n".to_vec());
    let worker = Scripted::start(vec![head, piece("ID3"), Step::Await, piece("rest"), end()]).await;
    let fleet = behind_one(&worker).await;
    let mut answer = fleet.client.post(fleet.url("/v1/audio/speech")).body(JSON).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "audio/mpeg");
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "ID3");
    worker.go();
    assert_eq!(answer.bytes().await.unwrap(), "rest");
}

#[tokio::test]
async fn what_is_passed_through_weighs_on_its_worker_until_it_ends() {
    let worker = Scripted::start(vec![Step::Await, whole("200 OK", "{}")]).await;
    let fleet = behind_one(&worker).await;
    let sending = fleet.post_bytes("/v1/embeddings", JSON.as_bytes().to_vec());
    let watching = async {
        worker.asked(1).await;
        assert_eq!(fleet.app.in_flight(), 1);
        let tokens = f64::from(u32::try_from(JSON.len() / 4).unwrap());
        assert_eq!(fleet.metric("warmpath_prefill_tokens_in_flight", "stranger-1").await, tokens);
        worker.go();
    };
    let (answer, ()) = tokio::join!(sending, watching);
    assert_eq!((answer.status, fleet.app.in_flight()), (200, 0));
    assert_eq!(fleet.metric("warmpath_prefill_tokens_in_flight", "stranger-1").await, 0.0);
}

/// A photograph is one or two thousand tokens, not the half a million that its base64 would be as text.
#[tokio::test]
async fn images_in_json_weigh_what_they_cost() {
    let photo = "iVBORw0KGgoAAA+/".repeat(100_000);
    let image = json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{photo}")}});
    let body = json!({"model": "m", "messages": [{"role": "user", "content": [image]}]});
    for path in ["/v1/responses", "/v1/chat/completions"] {
        let worker = Scripted::start(vec![Step::Await, whole("200 OK", "{}")]).await;
        let fleet = behind_one(&worker).await;
        let sending = fleet.post(path, &body);
        let watching = async {
            worker.asked(1).await;
            let weight = fleet.metric("warmpath_prefill_tokens_in_flight", "stranger-1").await;
            assert!((3_000.0..3_500.0).contains(&weight), "{path}: {weight}");
            let (_, workers) = fleet.admin("/api/v1/workers").await;
            let workers: Value = serde_json::from_str(&workers).unwrap();
            assert_eq!(workers["workers"][0]["kv_load"], 0.0, "{path}: nothing is learned of a guess");
            worker.go();
        };
        let (answer, ()) = tokio::join!(sending, watching);
        assert_eq!(answer.status, 200, "{path}");
    }
}

#[tokio::test]
async fn another_worker_takes_over_before_the_answer_has_begun_and_a_400_is_the_engines_word() {
    let (busy, free) = (
        Scripted::start(vec![whole("503 Service Unavailable", "{}")]).await,
        Scripted::start(vec![whole("200 OK", "{}")]).await,
    );
    let fleet = fleet().engines(0).stranger(busy.address).stranger(free.address).policy("round_robin").start().await;
    for _ in 0..4 {
        let answer = fleet.post_bytes("/v1/rerank", JSON.as_bytes().to_vec()).await;
        assert_eq!((answer.status, answer.worker.as_str()), (200, "stranger-2"));
    }
    free.plays(vec![whole("400 Bad Request", "{\"error\":{}}")]);
    busy.plays(vec![whole("400 Bad Request", "{\"error\":{}}")]);
    let asked = free.seen().len() + busy.seen().len();
    let answer = fleet.post_bytes("/v1/rerank", JSON.as_bytes().to_vec()).await;
    assert_eq!((answer.status, answer.body), (400, json!({"error": {}})));
    assert_eq!(free.seen().len() + busy.seen().len(), asked + 1);
}

#[tokio::test]
async fn the_model_says_where_it_goes_be_it_in_json_or_in_a_form() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = fleet().engines(0).stranger(worker.address).second_model().start().await;
    let form = |fields: &str| {
        format!(
            "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n{fields}--b--\r\n"
        )
    };
    let field = |model: &str| format!("--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n");
    for (content_type, body, status, param) in [
        ("application/json", r#"{"model":"alias/of-m"}"#.to_owned(), 200, None),
        ("application/json", r#"{"model":"m2"}"#.to_owned(), 503, None),
        ("application/json", r#"{"model":"m3"}"#.to_owned(), 404, Some("model")),
        ("application/json", "{}".to_owned(), 400, Some("model")),
        ("application/json", "[]".to_owned(), 400, Some("model")),
        ("application/json", "{".to_owned(), 400, None),
        ("application/json", r#"{"model":"m","model":"m2"}"#.to_owned(), 400, None),
        ("multipart/form-data; boundary=b", form(&field("m")), 200, None),
        ("multipart/form-data; boundary=b", form(&field("m2")), 503, None),
        ("multipart/form-data; boundary=b", form(&field("m3")), 404, Some("model")),
        ("multipart/form-data; boundary=b", form(""), 400, Some("model")),
        ("multipart/form-data; boundary=b", form(&(field("m") + &field("m2"))), 400, Some("model")),
        ("audio/wav", "RIFF".to_owned(), 400, Some("model")),
    ] {
        let request = fleet.client.post(fleet.url("/v1/audio/transcriptions")).header("content-type", content_type);
        let answer = request.body(body.clone()).send().await.unwrap();
        assert_eq!(answer.status(), status, "{content_type}: {body}");
        if status == 200 {
            assert_eq!(worker.seen().pop().unwrap().body, body.as_bytes());
            continue;
        }
        let said: Value = answer.json().await.unwrap();
        assert_eq!(said["error"]["param"].as_str(), param, "{body}");
    }
    assert_eq!(worker.seen().len(), 2);
    let single = behind_one(&worker).await;
    for body in ["", "RIFF", "{}", "[1]"] {
        assert_eq!(single.post_bytes("/v1/audio/x", body.as_bytes().to_vec()).await.status, 200, "{body}");
    }
}

#[tokio::test]
async fn what_is_passed_through_is_held_to_the_limits() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = fleet().engines(0).stranger(worker.address).config("limits: {body_bytes: 1KiB}").start().await;
    let answer = fleet.post_bytes("/v1/audio/transcriptions", vec![b'x'; 1025]).await;
    assert_eq!(refusal(&answer), (413, "invalid_request_error", None, None));
    assert_eq!(fleet.post_bytes("/v1/audio/transcriptions", vec![b'x'; 1024]).await.status, 200);
    for deep in [r#"{"x":@}"#, "@"].map(|body| body.replace('@', &("[".repeat(100) + &"]".repeat(100)))) {
        let answer = fleet.post_bytes("/v1/embeddings", deep.into()).await;
        assert_eq!(refusal(&answer), (400, "invalid_request_error", None, None));
    }
    assert_eq!(worker.seen().len(), 1);
}
