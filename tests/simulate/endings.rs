//! What becomes of requests, and how that is told.

use serde_json::Value;

use super::{Scratch, TRACE, document, number, text, warmpath};

#[test]
fn requests_that_engines_cannot_take_are_counted_and_are_a_failure() {
    let config = Scratch::new("plain.yaml");
    std::fs::write(
        &config.0,
        "routing: {policy: kv}\nmodels: [{name: m}]\nworkers: [{id: w, url: 'http://h:1', model: m}]\n",
    )
    .unwrap();
    let trace = ["--trace", TRACE, "--requests", "300", "--cache-blocks", "2"];
    let said = "7 of 300 requests completed: 22 cut short by the size of the cache, 271 refused: engines take no prompt that \
                is empty or longer than their cache";
    for command in [&["plan", config.path(), config.path(), "--workers", "4"][..], &["replay"]] {
        let output = warmpath(&[command, &trace].concat());
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout).contains("completed            7 of 300     7 of 300"), command[0] == "plan");
    }
    let output = warmpath(&[&["replay", "--json"][..], &trace].concat());
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let whole = document(&["replay", "--json", "--trace", TRACE, "--requests", "300", "--cache-blocks", "2000"]);
    let reachable = |rows: &Value| number(&rows["rows"][0], "reachable_hit_rate");
    assert!(reachable(&rows) > 2.0 * reachable(&whole), "of the prompts that were taken: {rows}");
    let output = warmpath(&[&["tune", "--trials", "2"][..], &trace].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(" % of the requests completed: "), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("\ncompleted  "), "{}", text(&output.stdout));
}

/// Prompts that leave room for 68 tokens in the cache.
#[test]
fn an_answer_that_the_cache_cuts_short_is_not_completed() {
    let file = Scratch::new("long.jsonl");
    let line = |at: u64, output: u32| {
        let ids: Vec<String> = (0..2044).map(|block| (at * 10_000 + block).to_string()).collect();
        let ids = ids.join(",");
        format!(
            "{{\"timestamp\":{},\"input_length\":32700,\"output_length\":{output},\"hash_ids\":[{ids}],\"block_size\":16}}\n",
            at * 20_000
        )
    };
    std::fs::write(&file.0, line(0, 500) + &line(1, 68) + &line(2, 69)).unwrap();
    let rows = Scratch::new("long.csv");
    let said = "1 of 3 requests completed: 2 cut short by the size of the cache: engines take no prompt that is empty or \
                longer than their cache, and end an answer where prompt and answer fill it (--cache-blocks)\n";
    let output = warmpath(&["replay", "--json", "--trace", file.path(), "--csv", rows.path()]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), &*format!("warmpath: {said}")));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &told["rows"][0];
    assert_eq!((&row["completed"], &row["failures"]["cut short by the size of the cache"]), (&1.into(), &2.into()));
    let written = std::fs::read_to_string(&rows.0).unwrap();
    let ends: Vec<(&str, &str)> = written
        .lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            (fields[7], fields[11])
        })
        .collect();
    assert_eq!(ends, [("false", "68"), ("true", "68"), ("false", "68")]);
    let output = warmpath(&["tune", "--trials", "2", "--trace", file.path()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let rows = document(&["replay", "--json", "--trace", file.path(), "--cache-blocks", "2076"]);
    let row = &rows["rows"][0];
    assert_eq!((&row["completed"], &row["failures"]), (&3.into(), &Value::Null), "there is room for all");
}

/// The first worker dies while a request waits there, which is then given to another one.
#[test]
fn what_became_of_a_request_is_told_of_the_last_decision_on_it() {
    let rows = Scratch::new("moved.csv");
    let fleet = ["--workers", "3", "--policy", "kv", "--speed", "2", "--restart", "20", "--requests", "300"];
    let asked = ["--explain", "96", "--csv", rows.path(), "--json"];
    let document = document(&[&["replay", "--trace", TRACE][..], &fleet, &asked].concat());
    let decisions = document["rows"][0]["decisions"].as_array().unwrap();
    let told = |field: &str| -> Vec<Value> { decisions.iter().map(|made| made[field].clone()).collect() };
    assert_eq!(told("worker"), ["worker-1", "worker-2"]);
    assert_eq!(told("at_ms"), [16_500, 25_500]);
    assert_eq!(told("outcome"), ["failed", "answered"]);
    assert_eq!(told("avoided"), [0, 1]);
    assert_eq!(told("ttft_ms"), [Value::Null, 22_833.into()]);
    assert_eq!(told("reported_cached_tokens"), [Value::Null, 512.into()]);
    let text = std::fs::read_to_string(&rows.0).unwrap();
    let row: Vec<&str> = text.lines().nth(96).unwrap().split(',').collect();
    let (arrived, queued): (f64, f64) = (row[5].parse().unwrap(), row[12].parse().unwrap());
    assert_eq!((row[4], row[6], arrived, queued), ("96", "2", 16_500.0, 16_274.734), "7 274.734 ms since it was moved");
}
