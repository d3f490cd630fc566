//! The command as a user has it: the real binary, its output and its exit codes.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "cli/misuse.rs"]
mod misuse;
#[path = "cli/results.rs"]
mod results;
#[path = "cli/warnings.rs"]
mod warnings;

use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

fn warmpath(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command.args(args).stdin(Stdio::null()).output().expect("the binary runs")
}

fn with_input(args: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    let piped = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the binary runs");
    child.stdin.take().unwrap().write_all(input.as_ref()).unwrap();
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// A file that goes with the test.
struct Configuration(PathBuf);

impl Configuration {
    fn new(name: &str, text: &str) -> Self {
        // Tests run side by side, and some make theirs by the same name.
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("warmpath-cli-{}-{made}-{name}.yaml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const GOOD: &str = "models: [{name: m}]\nworkers: [{id: w, url: 'http://127.0.0.1:9', model: m}]\n";
const BAD: &str = "models: [{name: m}]\nrouting:\n  kv: {alpha: -2}\nworkers: [{id: w, url: 'http://127.0.0.1:9', model: m, colour: red}]\n";

#[test]
fn every_command_tells_its_options() {
    for (args, expected) in [
        (&["--help"][..], &["demo", "serve", "mock-engine", "bridge", "check", "doctor", "events", "--version"][..]),
        (
            &["demo", "--help"],
            &["--bus", "--keep", "--json", "--workers", "--requests", "--speed", "--cache-blocks", "--seed"],
        ),
        (&["serve", "--help"], &["--config"]),
        (&["check", "--help"], &["<FILE>"]),
        (
            &["bridge", "--help"],
            &[
                "--engine",
                "--worker",
                "--model",
                "--zmq",
                "--zmq-replay",
                "--nats",
                "--nats-creds",
                "--nats-nkey",
                "--nats-ca",
            ],
        ),
        (&["top", "--help"], &["--admin", "--token", "--interval", "--once", "--json"]),
        (&["worker", "--help"], &["drain", "undrain", "eject", "reset-breaker", "reset-cache", "Exit codes"]),
        (&["worker", "drain", "--help"], &["<ID>", "--wait", "--admin", "--token", "--json"]),
        (&["events", "--help"], &["decode"]),
        (&["events", "decode", "--help"], &["--format", "msgpack", "json"]),
        (
            &["mock-engine", "--help"],
            &[
                "--listen",
                "--worker",
                "--model",
                "--bus",
                "--prefix",
                "--encoding",
                "--block-size",
                "--blocks",
                "--max-num-seqs",
                "--max-num-batched-tokens",
                "--max-model-len",
                "--timing",
                "--speedup",
                "--tokenizer",
                "--seed",
                "/generate",
                "/faults",
            ],
        ),
    ] {
        let output = warmpath(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        for option in expected {
            assert!(stdout(&output).contains(option), "{args:?} does not tell {option}");
        }
    }
}

#[test]
fn the_version_is_the_packages() {
    let expected = concat!("warmpath ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(stdout(&warmpath(&["--version"])), expected);
}

#[test]
fn wrong_use_exits_with_2() {
    for args in [
        &[][..],
        &["serve"],
        &["bridge"],
        &["doctor"],
        &["doctor", "--config", "a.yaml", "--skip", "nonsense"],
        &["nonsense"],
        &["demo", "--workers", "0"],
        &["events", "decode", "--format", "xml"],
        &["check"],
    ] {
        let output = warmpath(args);
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{args:?}");
        assert!(stderr(&output).contains("Usage:") || stderr(&output).contains("--help"), "{args:?}");
    }
}

#[test]
fn check_exits_with_0_1_or_2() {
    let good = Configuration::new("good", GOOD);
    let output = warmpath(&["check", good.path()]);
    let expected = format!("{}: valid: 1 model, 1 worker, policy kv\n", good.path());
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), expected.as_str()));

    let bad = Configuration::new("bad", BAD);
    let output = warmpath(&["check", bad.path()]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
    let places: Vec<&str> = stderr(&output).lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(places, [format!("{}:3:15", bad.path()), format!("{}:4:56", bad.path())], "{}", stderr(&output));

    let output = warmpath(&["check", "no/such/file.yaml"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""));
    assert!(stderr(&output).starts_with("no/such/file.yaml: cannot be read: "), "{}", stderr(&output));
}

#[test]
fn serve_refuses_what_check_refuses() {
    let bad = Configuration::new("serve", BAD);
    let output = warmpath(&["serve", "--config", bad.path()]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
    assert_eq!(stderr(&output), stderr(&warmpath(&["check", bad.path()])));
    assert_eq!(warmpath(&["serve", "--config", "no/such/file.yaml"]).status.code(), Some(2));
}

#[test]
fn the_doctors_help_names_every_check_option_and_exit_code() {
    let output = warmpath(&["doctor", "--help"]);
    let options = ["--config", "--worker", "--skip", "--timeout", "--json", "Exit codes:", "\"verdict\""];
    let checks = ["reachable", "model", "version", "block_size", "events", "tokens", "replay", "prediction"];
    for word in options.iter().chain(&checks) {
        assert!(stdout(&output).contains(word), "it does not tell {word}");
    }
}

#[test]
fn the_doctor_exits_with_0_1_or_2() {
    let nowhere = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = format!("models: [{{name: m}}]\nworkers: [{{id: w, url: 'http://{nowhere}', model: m}}]\n");
    let config = Configuration::new("doctor", &text);
    let output = warmpath(&["doctor", "--config", config.path(), "--timeout", "2"]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), ""));
    let lines: Vec<&str> = stdout(&output).lines().collect();
    let finding =
        format!("FAILED   w  reachable   http://{nowhere}/health: Connection refused (os error 111); remedy: ");
    assert!(lines[0].starts_with(&finding), "{}", lines[0]);
    assert_eq!((lines.len(), lines[8]), (9, "1 worker: 0 ok, 1 failed, 7 skipped"));
    let output = warmpath(&["doctor", "--config", config.path(), "--timeout", "2", "--json"]);
    let document: Value = serde_json::from_str(stdout(&output)).expect("one JSON document and nothing else");
    let counts = ["ok", "failed", "skipped"].map(|name| document[name].as_u64().unwrap());
    assert_eq!((output.status.code(), counts), (Some(1), [0, 1, 7]));
    assert_eq!(document["workers"][0]["checks"][0]["verdict"], "failed");
    let output = warmpath(&["doctor", "--config", config.path(), "--skip", "reachable", "--timeout", "2"]);
    let expected = "warmpath: nothing could be examined\n";
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), expected), "{}", stdout(&output));

    let output = warmpath(&["doctor", "--config", config.path(), "--worker", "x"]);
    let expected = "warmpath: the configuration has no worker `x` (known: w)\n";
    assert_eq!((output.status.code(), stdout(&output), stderr(&output)), (Some(2), "", expected));
    let bad = Configuration::new("doctor-bad", BAD);
    let output = warmpath(&["doctor", "--config", bad.path()]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), stderr(&warmpath(&["check", bad.path()]))));
    assert_eq!(warmpath(&["doctor", "--config", "no/such/file.yaml"]).status.code(), Some(2));
}

#[test]
fn a_port_in_use_is_said_clearly() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let config = Configuration::new("port", &format!("listen: {{data: '{address}', admin: '127.0.0.1:0'}}\n{GOOD}"));
    let output = warmpath(&["serve", "--config", config.path()]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
    let expected = format!("warmpath: the router could not start: cannot listen on {address}: Address already in use");
    assert!(stderr(&output).starts_with(&expected), "{}", stderr(&output));
    let output = warmpath(&["mock-engine", "--listen", &address.to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!("warmpath: the engine could not start: cannot listen on {address}: Address already in use");
    assert!(stderr(&output).starts_with(&expected), "{}", stderr(&output));
}

#[test]
fn events_are_decoded_line_by_line() {
    let msgpack = "93cb3ff80000000000009183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fa66d656469756da343505501\n\n\
        92cb3ff80000000000009191a3466f6f\nnot hexadecimal\n92cb3ff8000000000000\n";
    let output = with_input(&["events", "decode", "--format", "msgpack"], msgpack);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    let expected = concat!(
        r#"{"ts":1.5,"dp_rank":1,"events":[{"kind":"removed","tier":"host","dp_rank":1,"group":null,"engine_hashes":[1736447835066146335],"parent":null,"token_ids":[],"block_size":null,"namespace":{"adapter":null,"salt":null}}],"rejected":[],"rejected_unlisted":0}"#,
        "\n",
        r#"{"ts":1.5,"dp_rank":null,"events":[],"rejected":[{"index":0,"at":11,"reason":"unknown event `Foo` at byte 11 (known: BlockStored, BlockRemoved, AllBlocksCleared)"}],"rejected_unlisted":0}"#,
        "\n",
        r#"{"error":"not a hexadecimal digit at byte 0"}"#,
        "\n",
        r#"{"error":"message ends at byte 10, inside `events`"}"#,
        "\n",
    );
    assert_eq!(stdout(&output), expected);

    let json = "{\"worker_id\":1,\"event\":{\"event_id\":9,\"data\":\"cleared\"}}\n{\"worker_id\"\n";
    let output = with_input(&["events", "decode", "--format", "json"], json);
    assert_eq!(output.status.code(), Some(0));
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (lines.len(), &lines[0]["worker_id"], &lines[0]["events"][0]["kind"]),
        (2, &"1".into(), &"cleared".into())
    );
    assert!(lines[1]["error"].is_string(), "{}", lines[1]);

    let mixed = [&b"\xff\xfe\n{\"worker_id\":\"\xff\"}\n"[..], json.as_bytes()].concat();
    for format in ["msgpack", "json"] {
        let output = with_input(&["events", "decode", "--format", format], &mixed);
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""), "{format}");
        let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() == 4 && lines[..2].iter().all(|line| line["error"].is_string()), "{lines:?}");
    }
}

#[test]
fn the_demo_counts_the_engines_that_had_nothing_to_do() {
    let output = warmpath(&["demo", "--policy", "kv", "--requests", "3", "--workers", "6", "--json"]);
    let document: Value = serde_json::from_str(stdout(&output)).unwrap();
    let row = &document["rows"][0];
    let counts: Vec<f64> = row["requests_by_worker"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    let most = counts.iter().copied().fold(0.0, f64::max);
    assert_eq!((counts.len(), counts.iter().sum::<f64>()), (6, 3.0), "{row}");
    assert_eq!(row["requests_max_over_mean"].as_f64(), Some(most * 6.0 / 3.0), "{row}");
}

#[test]
fn the_demo_shows_the_policies_that_are_named_as_json() {
    let options = ["--policy", "round_robin,predicted", "--requests", "40", "--speed", "2000", "--json"];
    let output = warmpath(&[&["demo"][..], &options].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: Value = serde_json::from_str(stdout(&output)).expect("one JSON document and nothing else");
    let rows = document["rows"].as_array().unwrap();
    let policies: Vec<&Value> = rows.iter().map(|row| &row["policy"]).collect();
    assert_eq!(policies, ["round_robin", "predicted"]);
    for row in rows {
        assert_eq!(
            (&row["requests"], &row["completed"], &row["workers"]),
            (&40.into(), &40.into(), &4.into()),
            "{row}"
        );
        let by_worker = row["requests_by_worker"].as_array().unwrap();
        assert_eq!(by_worker.iter().map(|count| count.as_u64().unwrap()).sum::<u64>(), 40);
        let (input, cached) = (row["input_tokens"].as_u64().unwrap(), row["cached_tokens"].as_u64().unwrap());
        assert!(cached < input && row["predicted_cached_tokens"].as_u64().unwrap() < input, "{row}");
        assert!(row["predicted_exact_requests"].as_u64().unwrap() <= 40, "{row}");
        for distribution in ["ttft_ms", "itl_ms", "e2e_ms"] {
            for figure in ["mean", "p50", "p99"] {
                assert!(row[distribution][figure].as_f64().unwrap() > 0.0, "{distribution}.{figure} of {row}");
            }
        }
    }
    assert_eq!(rows[0]["input_tokens"], rows[1]["input_tokens"]);
}

#[test]
fn schema_prints_json_or_the_reference_and_config_show_who_said_what() {
    let output = warmpath(&["schema"]);
    let schema: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(schema["properties"]["listen"]["properties"]["data"]["default"], "127.0.0.1:8080");
    assert!(stdout(&warmpath(&["schema", "--markdown"])).starts_with("# Configuration\n"));
    let good = Configuration::new("shown", GOOD);
    let output = warmpath(&["config", "show", good.path(), "--json"]);
    let shown: Value = serde_json::from_str(stdout(&output)).unwrap();
    let values = shown["values"].as_array().unwrap();
    let of = |key: &str| values.iter().find(|value| value["key"] == key).unwrap();
    assert_eq!((&of("workers[w].url")["origin"], &of("workers[w].url")["line"]), (&"file".into(), &2.into()));
    assert_eq!((&of("usage")["origin"], &of("usage")["value"]), (&"default".into(), &"as_asked".into()));
    let output = warmpath(&[
        "config",
        "show",
        good.path(),
        "--set",
        "--override",
        "usage=always",
        "--override",
        "log.level=warn",
    ]);
    let shown = stdout(&output);
    assert!(shown.contains("\"always\"") && shown.ends_with("--override usage\n"), "{shown}");
    let output = warmpath(&["check", good.path(), "--override", "routing.polcy=kv"]);
    assert_eq!(stderr(&output), "--override routing.polcy:1:1: unknown key `polcy`, did you mean `policy`?\n");
    let output = warmpath(&["check", good.path(), "--override", "usage"]);
    assert!(stderr(&output).contains("say KEY=VALUE, such as routing.policy=kv"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(2));
    let bad = Configuration::new("unshown", BAD);
    let output = warmpath(&["config", "show", bad.path()]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
    assert_eq!(stderr(&output).lines().count(), 2);
    assert_eq!(warmpath(&["config", "show", "/no/such/file.yaml"]).status.code(), Some(2));
}

#[test]
fn plan_tells_what_changes_and_what_it_does_to_a_trace() {
    let (old, new) = (
        Configuration::new("old", GOOD),
        Configuration::new("new", &format!("{GOOD}routing: {{policy: round_robin}}\nindex: {{seed: 7}}\n")),
    );
    let output = warmpath(&["plan", old.path(), new.path()]);
    let expected = "~ routing.policy  live     \"kv\" -> \"round_robin\"\n~ index.seed      restart  1337 -> 7\n\
                    2 changes, 1 of them need a restart\n";
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), expected));
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/traces/mooncake-conversation.jsonl.gz");
    let args = ["plan", old.path(), new.path(), "--trace", trace, "--requests", "1000", "--workers", "4", "--json"];
    let plan: Value = serde_json::from_str(stdout(&warmpath(&args))).unwrap();
    assert_eq!((&plan["needs_restart"], plan["changes"].as_array().map(Vec::len)), (&true.into(), Some(2)));
    let rate = |which: &str| plan["replayed"][which]["hit_rate"].as_f64().unwrap();
    assert!(rate("old") > rate("new"), "{} {}", rate("old"), rate("new"));
    assert_eq!(warmpath(&["plan", old.path(), "/no/such/file.yaml"]).status.code(), Some(2));
    let bad = Configuration::new("plan-bad", BAD);
    assert_eq!(warmpath(&["plan", old.path(), bad.path()]).status.code(), Some(1));
}
