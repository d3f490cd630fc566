//! How long requests took: what clients are told, and what is measured.

use std::time::Duration;

use reqwest::Response;

use crate::fleet::{TestFleet, fleet};
use crate::scripted::{Scripted, Step, good_stream, whole};

const TIMED: &str = "warmpath_request_duration_seconds_count";

fn asking(fleet: &TestFleet) -> reqwest::RequestBuilder {
    let body = r#"{"model": "m", "prompt": "x", "stream": true}"#;
    fleet.client.post(fleet.url("/v1/completions")).body(body)
}

fn told(answer: &Response) -> Vec<String> {
    let all = answer.headers().get_all("server-timing").iter();
    all.map(|value| value.to_str().unwrap().to_owned()).collect()
}

/// Names and milliseconds of a header.
fn parts(told: &str) -> Vec<(&str, f64)> {
    let parts = told.split(", ").map(|part| part.split_once(";dur=").expect("a name and a duration"));
    parts.map(|(name, span)| (name, span.parse().expect("a number"))).collect()
}

#[tokio::test]
async fn clients_are_told_where_the_time_went() {
    let worker = Scripted::start(good_stream()).await;
    let settings = "events: none, max_num_seqs: 1";
    let fleet = fleet().engines(0).stranger_with(worker.address, settings).start().await;
    worker.checked().await;
    let answer = asking(&fleet).send().await.unwrap();
    let of_one = told(&answer);
    assert_eq!(of_one.len(), 1, "{of_one:?}");
    assert!(parts(&of_one[0]).iter().map(|(name, _)| *name).eq(["route", "worker"]), "{of_one:?}");
    answer.bytes().await.unwrap();
    // The second waits for the first, and its worker thinks about it.
    worker.plays([vec![Step::Await], good_stream()].concat());
    let first = asking(&fleet).send();
    let second = async {
        worker.asked(2).await;
        let second = asking(&fleet).send();
        let later = async {
            fleet.until_metric("warmpath_queue_length", "class=\"normal\"", 1.0).await;
            tokio::time::sleep(Duration::from_millis(60)).await;
            worker.go();
            worker.asked(3).await;
            tokio::time::sleep(Duration::from_millis(30)).await;
            worker.go();
        };
        tokio::join!(second, later).0
    };
    let drained = async { first.await.unwrap().bytes().await.unwrap() };
    let (_, second) = tokio::join!(drained, second);
    let of_second = told(&second.unwrap());
    let [("queue", queue), ("route", route), ("worker", took)] = parts(&of_second[0])[..] else {
        panic!("{of_second:?}")
    };
    assert!(queue >= 50.0 && took >= 25.0 && route < queue, "{of_second:?}");
}

#[tokio::test]
async fn what_the_worker_tells_of_its_time_stays_and_who_was_not_placed_is_told_nothing() {
    let text = "HTTP/1.1 400 Bad Request\r\nserver-timing: tokens;dur=3\r\ncontent-length: 2\r\n\r\n{}";
    let worker = Scripted::start(vec![Step::Send(text.into())]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    worker.checked().await;
    let refused = asking(&fleet).send().await.unwrap();
    assert_eq!(refused.status(), 400);
    let of_both = told(&refused);
    assert_eq!((of_both.len(), of_both[0].as_str()), (2, "tokens;dur=3"));
    assert!(of_both[1].starts_with("route;dur="), "{of_both:?}");
    let unknown = fleet.post_bytes("/v1/completions", br#"{"model": "none", "prompt": "x"}"#.to_vec()).await;
    assert_eq!((unknown.status, unknown.headers.get("server-timing")), (404, None));
}

/// Those that fail are the slowest ones.
#[tokio::test]
async fn every_request_for_a_model_is_timed_once_whatever_becomes_of_it() {
    let worker = Scripted::start(good_stream()).await;
    let patience = "timeouts: {health_interval: 1h, total: 400ms}\nretries: {attempts: 0}";
    let healthy = "health: {request_failures: 1000}";
    let fleet = fleet().engines(0).stranger(worker.address).config(patience).config(healthy).start().await;
    worker.checked().await;
    let mut count = 0.0;
    for (script, outcome) in [
        (good_stream(), "ok"),
        (vec![whole("400 Bad Request", "{}")], "worker_refused"),
        (vec![whole("500 Internal Server Error", "{}")], "worker_error"),
        (vec![Step::Hold], "deadline"),
        (vec![Step::Hold], "client_left"),
        (vec![Step::Close], "upstream_error"),
    ] {
        worker.plays(script);
        let wait = Duration::from_millis(if outcome == "client_left" { 100 } else { 5_000 });
        let asked = tokio::time::timeout(wait, async { asking(&fleet).send().await.unwrap().bytes().await }).await;
        assert_eq!(asked.is_err(), outcome == "client_left", "{outcome}");
        fleet.until_metric("warmpath_requests_total", &format!("outcome=\"{outcome}\""), 1.0).await;
        count += 1.0;
        assert_eq!(fleet.metric(TIMED, "").await, count, "{outcome}");
    }
    let sum = fleet.metric("warmpath_request_duration_seconds_sum", "").await;
    assert!(sum > 0.45, "the slow ones are in it: {sum}");
}
