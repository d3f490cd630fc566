//! Workers that live and will not serve: they have too much to do, refuse the router, or say more than it reads.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::breaker::up;
use crate::chaos::{Saw, ask, before};
use crate::faulty::{Faulty, refusal, stream};
use crate::fleet::fleet;
use crate::retries::{good, in_turn, read, refused, retries, send};
use crate::scripted::{Scripted, Step, event, good_stream, head, piece, whole};

/// Two of four are full, and look as if they had least to do.
#[tokio::test]
async fn who_has_too_much_to_do_is_left_alone_while_others_serve() {
    let full = || {
        let head = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 30\r\ncontent-length: 0\r\n\r\n".to_vec();
        Scripted::start(vec![Step::Send(head)])
    };
    let workers = [full().await, full().await, good().await, good().await];
    let fleet = workers.iter().fold(fleet().engines(0), |fleet, worker| fleet.stranger(worker.address)).start().await;
    for _ in 0..20 {
        assert_eq!(read(send(&fleet).await).await, (event("a") + "data: [DONE]\n\n", true));
    }
    let asked: Vec<usize> = workers.iter().map(|worker| worker.seen().len()).collect();
    assert!(asked[0] + asked[1] < 20 && asked[2] + asked[3] == 20, "{asked:?}");
}

/// What every worker refuses may be one sender's own limit: it is told soon, and half of the workers go on for everybody.
#[tokio::test]
async fn what_all_workers_refuse_one_sender_keeps_nobody_else_waiting() {
    let limited = |prompt: &str, _| match prompt {
        "limited" => refusal("429 Too Many Requests", "retry-after: 30\r\n"),
        _ => stream(1),
    };
    let workers = futures_util::future::join_all((0..6).map(|_| Faulty::start(limited))).await;
    let fleet = before(&workers.iter().collect::<Vec<_>>()).start().await;
    let url = fleet.url("/v1/completions");
    let begin = Instant::now();
    for _ in 0..4 {
        assert_eq!(ask(&fleet.client, &url, "limited").await, Saw::Refused(429));
        assert_eq!(ask(&fleet.client, &url, "free").await, Saw::Whole);
    }
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    assert_eq!(workers.iter().map(|worker| worker.arrived("limited").len()).sum::<usize>(), 4 * 3);
}

/// To leave it alone would only make everybody wait.
#[tokio::test]
async fn the_only_worker_is_asked_though_it_had_too_much_to_do() {
    let busy = |_: &str, number| match number {
        0 => refusal("429 Too Many Requests", "retry-after: 30\r\n"),
        _ => stream(1),
    };
    let worker = Faulty::start(busy).await;
    let fleet = before(&[&worker]).start().await;
    let url = fleet.url("/v1/completions");
    let begin = Instant::now();
    assert_eq!(ask(&fleet.client, &url, "first").await, Saw::Refused(429));
    assert_eq!(ask(&fleet.client, &url, "second").await, Saw::Whole);
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
}

/// Two of four are left alone when the other two go.
#[tokio::test]
async fn who_had_too_much_to_do_is_asked_where_too_few_others_are_left() {
    let busy = |_: &str, number| match number {
        0 => refusal("429 Too Many Requests", "retry-after: 30\r\n"),
        _ => stream(1),
    };
    let (busy, good) = ([Faulty::start(busy).await, Faulty::start(busy).await], |_: &str, _| stream(1));
    let others = [Faulty::start(good).await, Faulty::start(good).await];
    let fleet = before(&[&busy[0], &busy[1], &others[0], &others[1]]).start().await;
    let url = fleet.url("/v1/completions");
    assert_eq!(ask(&fleet.client, &url, "first").await, Saw::Whole);
    assert_eq!([busy[0].count(), busy[1].count()], [1, 1]);
    let begin = Instant::now();
    for other in ["stranger-3", "stranger-4"] {
        assert_eq!(fleet.operate(other, "drain").await.0, 200);
    }
    assert_eq!(ask(&fleet.client, &url, "second").await, Saw::Whole);
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
}

/// It counts as full for as long as it says, and whoever waits for it is woken then.
#[tokio::test]
async fn who_had_too_much_to_do_is_asked_again_when_it_has_said() {
    let refusal = b"HTTP/1.1 429 Too Many Requests\r\nretry-after-ms: 150\r\ncontent-length: 0\r\n\r\n".to_vec();
    let worker = Scripted::start(vec![Step::Send(refusal)]).await;
    let full = Scripted::start(vec![head(), piece(event("a")), Step::Await]).await;
    let fleet = fleet().engines(0).policy("round_robin").stranger(worker.address);
    let fleet = fleet.stranger_with(full.address, "events: none, max_num_seqs: 1").start().await;
    let begin = Instant::now();
    let held = send(&fleet).await;
    assert_eq!(held.headers()["x-warmpath-worker"], "stranger-2");
    worker.plays(good_stream());
    assert_eq!(read(send(&fleet).await).await, (event("a") + "data: [DONE]\n\n", true));
    assert!(begin.elapsed() >= Duration::from_millis(150) && worker.seen().len() == 2);
    drop(held);
}

/// A plain answer whose head has `bytes` more than it needs.
fn with_head(bytes: usize) -> Vec<Step> {
    let head = format!("HTTP/1.1 200 OK\r\nx-large: {}\r\ncontent-length: 2\r\n\r\n{{}}", "x".repeat(bytes));
    vec![Step::Send(head.into())]
}

/// An engine may repeat what its client has sent, of which there may be 64 KiB.
#[tokio::test]
async fn a_worker_may_repeat_the_whole_head_of_a_request() {
    let worker = Scripted::start(with_head(64 << 10)).await;
    let fleet = in_turn(&[&worker]).start().await;
    let answer = fleet.complete(json!("x")).await;
    assert_eq!((answer.status, answer.headers["x-large"].len()), (200, 64 << 10));
}

/// Its client may have made it so large: no other worker is asked, and none is to blame, however many such there are.
#[tokio::test]
async fn an_answer_whose_head_is_too_large_is_502_once_and_blames_nobody() {
    let (worker, other) = (Scripted::start(with_head(90 << 10)).await, Scripted::start(with_head(90 << 10)).await);
    let one_strike = "health: {request_failures: 1}\ntimeouts: {health_interval: 1h}";
    let fleet = in_turn(&[&worker, &other]).config(one_strike).start().await;
    for number in 1..=4 {
        let answer = fleet.complete(json!("x")).await;
        let code = answer.body["error"]["code"].as_str();
        assert_eq!((answer.status, code), (502, Some("upstream_head_too_large")), "{answer:?}");
        assert_eq!(answer.headers["x-should-retry"], "false");
        assert_eq!(worker.seen().len() + other.seen().len(), number);
    }
    worker.plays(good_stream());
    other.plays(good_stream());
    assert_eq!(read(send(&fleet).await).await, (event("a") + "data: [DONE]\n\n", true));
}

/// Where the router shows a key of its own, no client can be blamed for it; nor for a model that the router has resolved.
#[tokio::test]
async fn a_worker_that_refuses_the_routers_key_or_its_model_is_replaced_and_told_of() {
    const NO_MODEL: &str = r#"{"error": {"message": "no", "type": "NotFoundError", "param": "model", "code": 404}}"#;
    for (status, body, reason, told, alone) in [
        ("401 Unauthorized", "{}", "denied", "refuses the router's key", (502, "upstream_failed")),
        ("404 Not Found", NO_MODEL, "model_not_served", "stranger-1", (404, "model_not_found")),
        (
            "404 Not Found",
            r#"{"error": {"code": "model_not_found"}}"#,
            "model_not_served",
            "stranger-1",
            (404, "model_not_found"),
        ),
    ] {
        let (bad, good) = (Scripted::start(vec![whole(status, body)]).await, good().await);
        let keyed = |workers: &[&Scripted]| {
            let fleet = fleet().engines(0).policy("round_robin").config("health: {request_failures: 2}");
            workers
                .iter()
                .fold(fleet, |fleet, worker| fleet.stranger_with(worker.address, "events: none, api_key: secret"))
        };
        let fleet = keyed(&[&bad, &good]).config("timeouts: {health_interval: 1h}").start().await;
        bad.checked().await;
        for _ in 0..6 {
            assert_eq!(read(send(&fleet).await).await, (event("a") + "data: [DONE]\n\n", true), "{reason}");
        }
        assert_eq!((bad.seen().len(), retries(&fleet, reason).await), (2, 2), "{reason}");
        let health = fleet.health().await;
        assert_eq!(health["status"], "degraded");
        assert!(health["degraded"].to_string().contains(told), "{health}");
        let fleet = keyed(&[&bad]).start().await;
        let answer = refused(&fleet).await;
        assert_eq!((answer.status, answer.body["error"]["code"].as_str()), (alone.0, Some(alone.1)), "{answer:?}");
    }
}

/// What a request may not do says nothing of the router's key.
#[tokio::test]
async fn what_is_forbidden_to_a_request_passes_as_it_came_and_counts_against_nobody() {
    const FORBIDDEN: &str = r#"{"error":{"code":"content_policy_violation","message":"no","param":"messages"}}"#;
    for path in ["/v1/completions", "/v1/embeddings"] {
        let (worker, other) = (Scripted::start(vec![whole("403 Forbidden", FORBIDDEN)]).await, good().await);
        let fleet = fleet().engines(0).policy("round_robin");
        let fleet = [&worker, &other]
            .into_iter()
            .fold(fleet, |fleet, worker| fleet.stranger_with(worker.address, "events: none, api_key: secret"));
        let config = "health: {request_failures: 1}\ntimeouts: {health_interval: 1h}";
        let fleet = fleet.config(config).start().await;
        worker.checked().await;
        let answer = fleet.post(path, &json!({"model": "m", "prompt": "x"})).await;
        assert_eq!((answer.status, answer.body.to_string().as_str()), (403, FORBIDDEN), "{path}");
        assert_eq!((other.seen().len(), retries(&fleet, "").await), (0, 0), "{path}");
        assert_eq!(fleet.health().await["status"], "ok", "{path}");
        assert!(up(&fleet, "stranger-1").await, "{path}");
    }
}

/// An alias is the router's word: that an engine does not know it says nothing of the engine.
#[tokio::test]
async fn a_worker_that_does_not_know_an_alias_goes_on_serving_its_model() {
    let unknown = r#"{"error": {"code": "model_not_found"}}"#;
    let worker = Scripted::start(vec![whole("404 Not Found", unknown)]).await;
    let fleet = fleet().engines(0).config("health: {request_failures: 2}\ntimeouts: {health_interval: 1h}");
    let fleet = fleet.stranger(worker.address).start().await;
    for _ in 0..6 {
        let body = r#"{"model": "alias/of-m", "prompt": "x", "max_tokens": 1}"#;
        assert_eq!(fleet.post_bytes("/v1/completions", body.into()).await.status, 404);
    }
    worker.plays(good_stream());
    assert_eq!(read(send(&fleet).await).await, (event("a") + "data: [DONE]\n\n", true));
    assert_eq!(fleet.health().await["status"], "ok");
}

/// What the router does not read may name any model, whose being unknown says nothing of the engine.
#[tokio::test]
async fn a_worker_that_does_not_know_a_model_the_router_has_not_read_goes_on_serving() {
    const UNKNOWN: &str = r#"{"error":{"message":"no","type":"NotFoundError","param":"model","code":404}}"#;
    let worker = Scripted::start(vec![whole("404 Not Found", UNKNOWN)]).await;
    let fleet = fleet().engines(0).config("health: {request_failures: 2}\ntimeouts: {health_interval: 1h}");
    let fleet = fleet.stranger(worker.address).start().await;
    let json = "\u{feff}{\"model\": \"nope\", \"input\": \"a\"}";
    let utf16: Vec<u8> = json.encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(fleet.post_bytes("/v1/embeddings", utf16).await.status, 400, "its depth is not seen");
    for body in [json.as_bytes().to_vec(), b"{}".to_vec(), b"RIFF".to_vec()] {
        for _ in 0..3 {
            let answer = fleet.post_bytes("/v1/embeddings", body.clone()).await;
            assert_eq!((answer.status, answer.body.to_string().as_str()), (404, UNKNOWN));
        }
    }
    let form = "--b\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--b--\r\n";
    for _ in 0..3 {
        let request = fleet.client.post(fleet.url("/v1/audio/transcriptions"));
        let request = request.header("content-type", "multipart/form-data; boundary=b").body(form);
        assert_eq!(request.send().await.unwrap().status(), 404);
    }
    assert_eq!(retries(&fleet, "model_not_served").await, 0);
    worker.plays(good_stream());
    assert_eq!(read(send(&fleet).await).await, (event("a") + "data: [DONE]\n\n", true));
    assert_eq!(fleet.health().await["status"], "ok");
}
