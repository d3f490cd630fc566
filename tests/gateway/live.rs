//! `warmpath replay --live`: a trace against a gateway that serves.

use std::process::{Command, Output};

use serde_json::Value;

use crate::fleet::fleet;

const TRACE: &str = "generate:multi-turn?sessions=4&turns=3&system=4&user=2&answer=1&block=4";

async fn replay(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command.args(["replay", "--trace", TRACE, "--vocabulary", "250", "--speed", "100"]).args(args);
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
    let url = fleet.url("");
    let said = replay(&["--live", &url, "--model", "other", "--requests", "2"]).await;
    let error = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        said.status.code() == Some(1) && error.contains("serves m, alias/of-m, not `other`: name one with --model"),
        "{error}"
    );
}
