//! Token ids from engines: who is asked, and what each is shown.

use serde_json::json;

use crate::fleet::{TestFleet, fleet};
use crate::scripted::{Scripted, whole};

/// A worker that answers `/tokenize` as well as requests, each time with the same.
async fn worker() -> Scripted {
    let answer = r#"{"tokens":[1,2,3,4],"choices":[{"index":0,"text":"a","finish_reason":"length"}]}"#;
    Scripted::start(vec![whole("200 OK", answer)]).await
}

/// What it was shown whenever it was asked for ids.
fn keys(worker: &Scripted) -> Vec<String> {
    let seen = worker.seen();
    let asked = seen.iter().filter(|seen| seen.head.starts_with("POST /tokenize "));
    asked.map(|seen| seen.header("authorization").join(",")).collect()
}

async fn ask(fleet: &TestFleet, count: usize) {
    for _ in 0..count {
        assert_eq!(fleet.complete(json!("some text")).await.status, 200);
    }
}

#[tokio::test]
async fn each_engine_is_shown_its_own_key_and_who_is_off_duty_is_not_asked() {
    let (first, second) = (worker().await, worker().await);
    let fleet = fleet()
        .engines(0)
        .tokenizer("remote")
        .stranger_with(first.address, "events: none, api_key: secret")
        .stranger(second.address)
        .start()
        .await;
    let file = fleet.following("remote").await;
    ask(&fleet, 4).await;
    assert_eq!((keys(&first), keys(&second)), (vec!["Bearer secret".to_owned(); 2], vec![String::new(); 2]));
    assert_eq!(fleet.operate("stranger-2", "drain").await.0, 200);
    ask(&fleet, 3).await;
    assert_eq!((keys(&first).len(), keys(&second).len()), (5, 2));
    file.write(fleet.yaml.replace("api_key: secret", "api_key: rotated").as_bytes());
    assert_eq!(fleet.reload().await.0, 200);
    let rotated = async |fleet: &TestFleet| {
        ask(fleet, 1).await;
        keys(&first).last().unwrap() == "Bearer rotated"
    };
    fleet.eventually("the new key is shown", rotated).await;
    assert_eq!(fleet.metric("warmpath_untokenized_total", "").await, 0.0);
}

/// One that cannot do it costs a question, and no answer.
#[tokio::test]
async fn where_an_engine_has_no_tokenize_another_one_is_asked() {
    let (first, second) = (Scripted::start(vec![whole("404 Not Found", "{}")]).await, worker().await);
    let fleet = fleet()
        .engines(0)
        .tokenizer("remote")
        .config("retries: {attempts: 3}")
        .stranger(first.address)
        .stranger(second.address)
        .start()
        .await;
    for _ in 0..4 {
        fleet.complete(json!("some text")).await;
    }
    assert_eq!(keys(&second).len(), 4);
    assert_eq!(fleet.metric("warmpath_untokenized_total", "").await, 0.0);
}
