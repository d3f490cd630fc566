//! `warmpath replay --live`: a trace against a gateway that serves.

use std::process::{Command, Output};

use serde_json::Value;

use crate::fleet::fleet;
use crate::scripted::{Scripted, Step, event, whole};

/// Of an answer that ends with its connection.
const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

const TRACE: &str = "generate:multi-turn?sessions=4&turns=3&system=4&user=2&answer=1&block=4";

async fn replay(args: &[&str]) -> Output {
    sent(&[&["--trace", TRACE, "--speed", "100"], args].concat()).await
}

async fn sent(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command.args(["replay", "--vocabulary", "250"]).args(args);
    tokio::task::spawn_blocking(move || command.output().expect("the binary runs")).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_sent_to_a_gateway_and_what_became_of_it_is_told() {
    let fleet = fleet().engines(2).policy("kv").start().await;
    let url = fleet.url("");
    let said = replay(&["--live", url.trim_end_matches('/'), "--model", "m", "--requests", "11", "--json"]).await;
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let told: Value = serde_json::from_slice(&said.stdout).unwrap();
    let row = &told["rows"][0];
    let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
    assert_eq!(
        (row["policy"].as_str(), row["requests"].as_u64(), row["completed"].as_u64()),
        (Some("live"), Some(11), Some(11))
    );
    assert_eq!(number("input_tokens"), fleet.metric("warmpath_prompt_tokens_total", "").await);
    assert!(number("hit_rate") > 0.0 && number("hit_rate") <= number("reachable_hit_rate"), "{row}");
    assert!(row["ttft_ms"]["p50"].as_f64() > Some(0.0) && row["lag_ms"]["p99"].as_f64() >= Some(0.0), "{row}");
    let by_worker: u64 = row["requests_by_worker"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
    assert_eq!(by_worker, 11);
    assert!(number("predicted_cached_tokens") <= number("cached_tokens"), "{row}");
    // Who did not answer at all is not known, nor is the gateway's seed.
    let unknown = ["requests_max_over_mean", "new_tokens_max_over_mean", "load_balance_score", "seed"];
    assert!(unknown.iter().all(|figure| row.get(figure).is_none()), "{row}");
}

/// As of a gateway that is none of ours.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_gateway_does_not_tell_is_left_out() {
    let stream = format!("{}{}data: [DONE]\n\n", HEAD, event("a"));
    let gateway = Scripted::start(vec![Step::Send(stream.into_bytes()), Step::Close]).await;
    let url = format!("http://{}", gateway.address);
    let said = replay(&["--live", &url, "--model", "m", "--requests", "3", "--json"]).await;
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let told: Value = serde_json::from_slice(&said.stdout).unwrap();
    let row = &told["rows"][0];
    assert_eq!((&row["completed"], &row["requests_by_worker"]), (&Value::from(3), &Value::Array(vec![])), "{row}");
    let unknown = ["predicted_cached_tokens", "predicted_exact_requests", "hit_rate", "cached_tokens"];
    assert!(unknown.iter().all(|key| row.get(key).is_none()), "{row}");
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(error.contains("the hit rate is not known: start vLLM with --enable-prompt-tokens-details"), "{error}");
}

/// As `record` writes them: of a prompt only full blocks have a name.
#[tokio::test(flavor = "multi_thread")]
async fn prompts_of_a_recorded_trace_are_sent_with_all_their_tokens() {
    let fleet = fleet().engines(1).start().await;
    let path = std::env::temp_dir().join(format!("warmpath-live-{}.jsonl", std::process::id()));
    let line = |(length, ids): (u32, &str)| {
        format!(
            "{{\"timestamp\":0,\"input_length\":{length},\"output_length\":1,\"hash_ids\":[{ids}],\"block_size\":16}}\n"
        )
    };
    let lines = [(2, ""), (33, "1,2"), (66, "1,2,3,4")].map(line).concat();
    std::fs::write(&path, lines).unwrap();
    let url = fleet.url("");
    let live = ["--live", url.trim_end_matches('/'), "--model", "m", "--json", "--trace", path.to_str().unwrap()];
    let said = sent(&live).await;
    std::fs::remove_file(&path).unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let told: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(told["rows"][0]["input_tokens"], 2 + 33 + 66, "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_fail_are_counted_by_why_they_did_and_a_silence_ends() {
    let begun = Step::Send(format!("{}{}", HEAD, event("a")).into_bytes());
    for (script, failure) in [
        (vec![Step::Hold], "silent for too long"),
        (vec![begun.clone(), Step::Hold], "silent for too long"),
        (vec![begun, Step::Close], "cut short"),
        (vec![Step::Close], "without an answer"),
        (vec![whole("500 Internal Server Error", "{}")], "with status 500"),
    ] {
        let gateway = Scripted::start(script).await;
        let url = format!("http://{}", gateway.address);
        let said = replay(&["--live", &url, "--model", "m", "--requests", "3", "--timeout", "0.3", "--json"]).await;
        let error = String::from_utf8_lossy(&said.stderr).into_owned();
        let expected = format!("warmpath: 0 of 3 requests completed: 3 {failure}\n");
        assert_eq!((said.status.code(), error), (Some(1), expected));
        let told: Value = serde_json::from_slice(&said.stdout).unwrap();
        assert_eq!(told["rows"][0]["failures"], serde_json::json!({failure: 3}), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_not_there_and_a_model_that_it_has_not_are_named() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let said = replay(&["--live", &url, "--model", "m", "--requests", "2"]).await;
    let error = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.code() == Some(1) && error.contains(&format!("no gateway answers at {url}")), "{error}");
    let fleet = fleet().engines(1).start().await;
    for url in [fleet.url("/v1"), format!("http://{}", fleet.app.admin_address())] {
        let said = replay(&["--live", &url, "--model", "m", "--requests", "2"]).await;
        let error = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(
            said.status.code() == Some(1) && error.contains("has no /v1/models: give the address before"),
            "{error}"
        );
    }
    let url = fleet.url("");
    let said = replay(&["--live", &url, "--model", "other", "--requests", "2"]).await;
    let error = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        said.status.code() == Some(1) && error.contains("serves m, alias/of-m, not `other`: name one with --model"),
        "{error}"
    );
}
