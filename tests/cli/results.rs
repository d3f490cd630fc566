//! What commands make of a trace, and where it goes.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Configuration, GOOD, stderr, stdout, warmpath};

/// As the router's `record` writes it: 40 requests that share 128 tokens, in blocks of 16.
fn recorded() -> Configuration {
    let line = |request: u32| {
        let blocks: Vec<String> = (0..8).chain([100 + request]).map(|block| block.to_string()).collect();
        format!(
            "{{\"timestamp\":{},\"input_length\":144,\"output_length\":4,\"hash_ids\":[{}],\"block_size\":16,\"model\":\"m\"}}\n",
            1000 * request,
            blocks.join(",")
        )
    };
    Configuration::new("recorded", &(0..40).map(line).collect::<String>())
}

#[test]
fn plan_reads_what_the_router_records_as_replay_does() {
    let (trace, good) = (recorded(), Configuration::new("plan-recorded", GOOD));
    let one = ["--trace", trace.path(), "--workers", "1", "--json"];
    let document = |args: &[&str]| {
        let output = warmpath(args);
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""), "{args:?}");
        serde_json::from_str::<Value>(stdout(&output)).unwrap()
    };
    let planned = document(&[&["plan", good.path(), good.path()][..], &one].concat());
    let replayed = document(&[&["replay"][..], &one].concat());
    let rate = planned["replayed"]["old"]["hit_rate"].as_f64().unwrap();
    assert!(rate > 0.8, "{rate}");
    assert_eq!(replayed["rows"][0]["hit_rate"].as_f64(), Some(rate));
    let made = ["--trace", "generate:few-shot?tasks=2&requests=20", "--workers", "1", "--json"];
    let planned = document(&[&["plan", good.path(), good.path()][..], &made].concat());
    assert!(planned["replayed"]["old"]["hit_rate"].as_f64().unwrap() > 0.5, "{planned}");
}

#[test]
fn a_converted_trace_whose_reader_goes_is_no_failure() {
    let trace = "generate:few-shot?tasks=50&requests=100";
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    let piped = command.args(["trace", "convert", "--trace", trace]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
}
