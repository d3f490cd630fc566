//! The commands that try things in virtual time, as a user has them: the real binary on a real trace.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "simulate/endings.rs"]
mod endings;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The Mooncake conversation trace.
const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/traces/mooncake-conversation.jsonl.gz");

fn warmpath(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command.args(args).stdin(Stdio::null()).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// What a command that succeeds prints.
fn printed(args: &[&str]) -> String {
    let output = warmpath(args);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{args:?}");
    text(&output.stdout).to_owned()
}

/// Its JSON without what is different each time.
fn document(args: &[&str]) -> Value {
    let mut document: Value = serde_json::from_str(&printed(args)).expect("one JSON document and nothing else");
    for row in document.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
        row.as_object_mut().unwrap().remove("wall_s").expect("every row says how long it took");
    }
    document
}

/// A file that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("warmpath-simulate-{}-{name}", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("`{field}` is a number in {value}"))
}

#[test]
fn a_trace_replays_alike_in_every_form_that_tells_as_much() {
    let first = ["--trace", TRACE, "--requests", "80"];
    let own = Scratch::new("own.jsonl");
    std::fs::write(&own.0, printed(&[&["trace", "convert"][..], &first].concat())).unwrap();
    let of = |trace: &[&str]| document(&[&["replay", "--policy", "kv,round_robin", "--json"][..], trace].concat());
    let from_mooncake = of(&first);
    assert_eq!(from_mooncake, of(&["--trace", own.path()]));
    assert_eq!(from_mooncake["rows"][0]["completed"], 80);
    std::fs::write(&own.0, "nonsense\n".to_owned() + &std::fs::read_to_string(&own.0).unwrap()).unwrap();
    let lenient = ["replay", "--policy", "kv,round_robin", "--json", "--format", "warmpath", "--lenient", "--trace"];
    let output = warmpath(&[&lenient[..], &[own.path()]].concat());
    assert_eq!(text(&output.stderr), format!("warmpath: {}: 1 lines passed over\n", own.path()));
}

/// Ten trees of which each has one root and two leaves: with room for all, the blocks that a prompt shares hit.
#[test]
fn a_made_up_trace_hits_what_it_is_made_to_hit() {
    let trace = "generate:multi-turn?sessions=10&turns=3&block=64&rate=1";
    let rows = document(&["replay", "--json", "--trace", trace, "--workers", "1", "--cache-blocks", "20000"]);
    let row = &rows["rows"][0];
    assert_eq!((&row["requests"], &row["completed"]), (&30.into(), &30.into()));
    assert_eq!(row["hit_rate"], row["reachable_hit_rate"]);
    let output = warmpath(&["replay", "--trace", trace, "--block-size", "16"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn every_engine_and_tier_keeps_what_must_hold() {
    let replay = |options: &[&str]| {
        let base = ["replay", "--json", "--check", "--trace", TRACE, "--requests", "200", "--speed", "20"];
        let size = ["--workers", "3", "--cache-blocks", "300"];
        let document = document(&[&base[..], &size, options].concat());
        let row = document["rows"][0].clone();
        assert_eq!(row["completed"], 200, "{options:?}");
        number(&row, "hit_rate")
    };
    let alone = ["vllm", "nano", "sglang-radix"].map(|profile| replay(&["--profile", profile]));
    assert!(alone.iter().all(|rate| *rate > 0.03), "{alone:?}");
    let tiers = ["--host-blocks", "3000", "--storage-blocks", "30000", "--prefetch", "wait_complete"];
    for (profile, alone) in [("vllm", alone[0]), ("sglang-radix", alone[2])] {
        let below = replay(&[&["--profile", profile][..], &tiers].concat());
        assert!(below > alone, "{profile}: {below} with tiers, {alone} without");
    }
    let output = warmpath(&["replay", "--trace", TRACE, "--requests", "5", "--profile", "nano", "--host-blocks", "10"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("the profile `nano` has no tiers below its cache"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn what_must_hold_holds_where_a_worker_never_speaks_again_and_where_prefixes_go_first() {
    for options in [
        &["--requests", "300", "--restart", "600"][..],
        &[
            "--requests",
            "80",
            "--skip",
            "2048",
            "--policy",
            "affinity",
            "--speed",
            "0.3",
            "--restart",
            "1",
            "--event-delay",
            "5000",
        ],
        &["--requests", "400", "--cache-blocks", "300", "--host-blocks", "300", "--write-policy", "write_back"],
    ] {
        let without = if options.contains(&"--host-blocks") { &["--without", "reverse-append"][..] } else { &[] };
        let output = warmpath(&[&["replay", "--check", "--trace", TRACE][..], options, without].concat());
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{options:?}");
    }
}

#[test]
fn what_must_hold_holds_where_promises_are_in_doubt() {
    for options in [["--event-delay", "25000"], ["--misread", "0.5"]] {
        let base = ["replay", "--check", "--trace", TRACE, "--requests", "1500", "--speed", "4", "--workers", "4"];
        let output = warmpath(&[&base[..], &options].concat());
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{options:?}");
    }
    // So late that what was sent counts instead.
    let made = ["--trace", "generate:multi-turn?sessions=12&turns=4&block=16&rate=3", "--event-delay", "60000"];
    printed(&[&["replay", "--check", "--workers", "3", "--policy", "kv,round_robin"][..], &made].concat());
}

/// Two requests half a century apart, and one whose answer is far longer than the trace.
#[test]
fn neither_a_pause_nor_an_answer_without_end_costs_what_it_lasts() {
    let file = Scratch::new("odd.jsonl");
    let line = |at: u64, output: u32| {
        format!("{{\"timestamp\":{at},\"input_length\":600,\"output_length\":{output},\"hash_ids\":[1]}}\n")
    };
    std::fs::write(&file.0, line(0, 3) + &line(1_700_000_000_000, 3)).unwrap();
    let rows = document(&["replay", "--json", "--trace", file.path()]);
    assert_eq!(rows["rows"][0]["completed"], 2);
    std::fs::write(&file.0, line(0, 20_000)).unwrap();
    let page = Scratch::new("odd.html");
    let rows = document(&["replay", "--json", "--trace", file.path(), "--html", page.path()]);
    assert!(number(&rows["rows"][0]["e2e_ms"], "mean") > 100_000.0, "{rows}");
}

#[test]
fn what_is_passed_over_goes_by_arrival_and_not_by_lines() {
    let file = Scratch::new("late.jsonl");
    let line = |(at, input): (u64, u32)| {
        format!("{{\"timestamp\":{at},\"input_length\":{input},\"output_length\":1,\"hash_ids\":[{input}]}}\n")
    };
    std::fs::write(&file.0, [(9, 300), (5, 200), (0, 100)].map(line).concat()).unwrap();
    let told = printed(&["trace", "convert", "--trace", file.path(), "--skip", "1", "--requests", "1"]);
    assert!(told.contains("\"input_length\":200") && told.lines().count() == 1, "{told}");
    for command in ["replay", "tune", "trace convert"] {
        let help = printed(&[&command.split(' ').collect::<Vec<_>>()[..], &["--help"]].concat());
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("Pass over so many requests, those that arrived first"), "{command}: {help}");
        assert!(!help.contains("first so many lines"), "{command}: {help}");
    }
}

#[test]
fn a_block_size_that_leaves_blocks_without_a_name_is_doubted() {
    let output = warmpath(&["trace", "stat", "--trace", TRACE, "--requests", "300", "--block-size", "16"]);
    let said = "300 of 300 prompts have whole blocks of 16 tokens that no id names, and that count as their own";
    assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn ids_for_more_blocks_than_prompts_fill_are_doubted() {
    let output = warmpath(&["trace", "stat", "--trace", TRACE, "--requests", "300", "--block-size", "8192"]);
    let said = " of 300 prompts have more ids than blocks of 8192 tokens: is --block-size right?";
    assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
    let output = warmpath(&["trace", "stat", "--trace", TRACE]);
    assert_eq!(text(&output.stderr), "", "where they fit nothing is said");
}

#[test]
fn tuning_shows_what_was_held_back_and_writes_a_configuration_that_can_be_followed() {
    let (file, page) = (Scratch::new("tuned.yaml"), Scratch::new("tuned.html"));
    let base = ["tune", "--trace", TRACE, "--requests", "240", "--speed", "8,16", "--workers", "3"];
    let size = ["--cache-blocks", "600", "--timing", "polynomial", "--trials", "10"];
    let options = [&base[..], &size].concat();
    let run = |more: &[&str]| {
        let mut document = document(&[&options[..], more].concat());
        document.as_object_mut().unwrap().remove("wall_s").expect("it says how long it took");
        document
    };
    let found = run(&["--json", "--out", file.path(), "--html", page.path()]);
    assert_eq!(found, run(&["--json", "--jobs", "1"]), "whatever runs side by side");
    assert_eq!((&found["tuned_requests"], &found["held_back_requests"]), (&168.into(), &72.into()));
    assert_eq!(found["cells"].as_array().unwrap().len(), 2);
    for contender in ["start", "found"] {
        for part in ["tuned", "held_back"] {
            assert!(number(&found[contender][part]["all"], "ttft_mean_ms") > 0.0, "{contender} {part}");
            assert_eq!(found[contender][part]["cells"].as_array().unwrap().len(), 2);
        }
    }
    let of = |contender: &str, part: &str| number(&found[contender][part]["all"], "ttft_mean_ms");
    assert!(of("found", "tuned") <= of("start", "tuned"), "the start is among what is tried");
    let change = of("found", "held_back") / of("start", "held_back") - 1.0;
    assert!((number(&found, "change_held_back") - change).abs() < 1e-9, "{}", found["change_held_back"]);
    let changes: Vec<f64> =
        found["changes_held_back"].as_array().unwrap().iter().map(|of| of.as_f64().unwrap()).collect();
    let mean = changes.iter().map(|change| change.ln_1p()).sum::<f64>() / 8.0;
    assert!(changes.len() == 8 && (mean.exp_m1() - change).abs() < 1e-9, "{changes:?}");
    let better = -mean > 2.5 * number(&found, "error_held_back");
    assert_eq!(found["verdict"] == "better", better, "{}", found["verdict"]);
    let shown = if better { "found" } else { "start" };
    let yaml = std::fs::read_to_string(&file.0).unwrap();
    for (name, value) in found[shown]["weights"].as_object().unwrap() {
        let (_, key) = name.split_once('.').unwrap();
        assert!(yaml.contains(&format!("    {key}: {value}\n")), "{name} in {yaml}");
    }
    let small = ["replay", "--trace", TRACE, "--requests", "20", "--config", file.path()];
    printed(&small);
    let fleet = "models: [{name: m}]\nworkers: [{id: w, url: 'http://127.0.0.1:9', model: m}]\n";
    std::fs::write(&file.0, yaml + fleet).unwrap();
    let checked = warmpath(&["check", file.path()]);
    assert!(text(&checked.stdout).contains("policy kv"), "a part of a configuration");
    assert!(std::fs::read_to_string(&page.0).unwrap().ends_with("</main></body></html>\n"));
    let table = printed(&options);
    assert!(table.contains("tuned on, 168 requests") && table.contains("held back, 72 requests"), "{table}");
    assert!(table.ends_with(found["yaml"].as_str().unwrap()), "{table}");
}

/// Seven tenths of the requests share long beginnings and come faster than they are served; the others are short and share
/// nothing. Whoever keeps equal beginnings together gains by the former and loses by the latter.
#[test]
fn a_queue_of_the_tuned_part_is_no_gain_on_what_is_held_back() {
    let gaps = [3, 7, 1, 160, 4, 2, 11, 30, 97, 45, 80, 100];
    let (mut at, mut chance) = (0, 1);
    let line = |number: u64| {
        at += gaps[usize::try_from(number % 12).unwrap()];
        chance = chance * 48_271 % 2_147_483_647;
        let is_held_back = number >= 350;
        let shared = (0..if is_held_back { 0 } else { 24 }).map(|block| 1000 * (chance % 24) + block);
        let own = (0..if is_held_back { 3 } else { 1 }).map(|block| 1_000_000 + 10 * number + block);
        let ids: Vec<u64> = shared.chain(own).collect();
        let input = 512 * ids.len() - 256;
        format!("{{\"timestamp\":{at},\"input_length\":{input},\"output_length\":40,\"hash_ids\":{ids:?}}}\n")
    };
    let trace = Scratch::new("queue.jsonl");
    std::fs::write(&trace.0, (0..500).map(line).collect::<String>()).unwrap();
    let base = ["tune", "--json", "--trace", trace.path(), "--policy", "chwbl", "--trials", "12"];
    let found = document(&[&base[..], &["--cache-blocks", "256"]].concat());
    assert!(number(&found, "change_tuned") < -0.9, "there is a queue: {}", found["change_tuned"]);
    let change = number(&found, "change_held_back");
    assert!((0.1..0.3).contains(&change), "without one there is more to wait for: {change}");
    assert_eq!(found["verdict"], "not_confirmed");
}

#[test]
fn what_other_chances_take_back_is_no_gain() {
    let base = ["tune", "--json", "--trace", TRACE, "--requests", "300", "--policy", "logit", "--aim", "p99-ttft"];
    let found = document(&[&base[..], &["--trials", "8"]].concat());
    let changes: Vec<f64> =
        found["changes_held_back"].as_array().unwrap().iter().map(|of| of.as_f64().unwrap()).collect();
    assert!(changes.iter().any(|change| *change < 0.0) && changes.iter().any(|change| *change > 0.0), "{changes:?}");
    assert!(number(&found, "change_tuned") < -0.3, "{}", found["change_tuned"]);
    assert!(
        found["verdict"] != "better" && found["yaml"].as_str().unwrap().contains("usage: 1"),
        "{}",
        found["verdict"]
    );
}

#[test]
fn what_cannot_be_tuned_is_said() {
    let output = warmpath(&["tune", "--trace", TRACE, "--requests", "20", "--policy", "round_robin"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""));
    assert!(text(&output.stderr).contains(": the policy `round_robin` has no weights to tune"));
    let output = warmpath(&["tune", "--trace", TRACE, "--requests", "20", "--hold-back", "1"]);
    assert!(text(&output.stderr).contains("'1' for '--hold-back <SHARE>': must be above 0 and below 1\n"));
}

#[test]
fn as_much_is_held_back_as_was_asked_for() {
    let base = ["tune", "--json", "--trace", TRACE, "--requests", "10", "--trials", "1", "--hold-back"];
    for (share, tuned, held_back) in [("0.8", 2, 8), ("0.9", 1, 9), ("0.01", 9, 1)] {
        let found = document(&[&base[..], &[share]].concat());
        let parts = (&found["tuned_requests"], &found["held_back_requests"]);
        assert_eq!(parts, (&tuned.into(), &held_back.into()), "{share}");
    }
}

/// The mean of some figures, and two hit rates, of an independent simulator with the same parameters, on the whole trace.
/// Ours differ by at most 3 %.
#[test]
fn round_robin_comes_near_an_independent_simulator() {
    let engine = ["--timing", "polynomial", "--block-size", "512", "--cache-blocks", "2048", "--max-num-seqs", "256"];
    let row = |workers: &str, speed: &str| {
        let base =
            ["replay", "--json", "--trace", TRACE, "--policy", "round_robin", "--max-num-batched-tokens", "8192"];
        let document = document(&[&base[..], &engine, &["--workers", workers, "--speed", speed]].concat());
        assert_eq!(document["rows"][0]["completed"], 12_031);
        document["rows"][0].clone()
    };
    let near = |row: &Value, expected: &[(&str, f64)]| {
        for (figure, theirs) in expected {
            let ours = if *figure == "hit_rate" { number(row, figure) } else { number(&row[figure], "mean") };
            assert!((ours / theirs - 1.0).abs() < 0.03, "{figure}: {ours}, theirs {theirs}");
        }
    };
    near(&row("4", "1"), &[("hit_rate", 0.083), ("ttft_ms", 515.0)]);
    let fast = [("hit_rate", 0.081), ("ttft_ms", 475.0), ("itl_ms", 25.8), ("e2e_ms", 9302.0)];
    near(&row("8", "4"), &fast);
}

#[test]
fn an_ablation_has_a_row_for_each_effect_that_the_scenario_has() {
    let base = ["replay", "--json", "--ablate", "--trace", TRACE, "--requests", "60", "--speed", "8"];
    let left_out = |options: &[&str]| -> Vec<String> {
        let document = document(&[&base[..], options].concat());
        let rows = document["rows"].as_array().unwrap().iter().skip(1);
        rows.map(|row| row["ablation"]["without"].as_str().unwrap().to_owned()).collect()
    };
    let usual = left_out(&[]);
    assert_eq!((usual.len(), &usual[0][..]), (14, "event-delay"));
    let conditions =
        ["--jitter", "0.1", "--kv-transfer", "3", "--misread", "0.1", "--warm-up", "0.2", "--host-blocks", "5"];
    let all = left_out(&conditions);
    for name in ["jitter", "kv-transfer", "tokenisation", "warm-up", "tiers"] {
        assert!(all.iter().any(|other| other == name) && !usual.iter().any(|other| other == name), "{name}");
    }
    assert_eq!(all.len(), 19);
    assert_eq!(left_out(&["--clients", "3"]).len(), 13, "a loop that is closed has no other");
    let wrong = warmpath(&["replay", "--trace", TRACE, "--misread", "1.5"]);
    assert!(text(&wrong.stderr).contains("'1.5' for '--misread <SHARE>': must be from 0 to 1\n"));
    let wrong = warmpath(&["replay", "--trace", TRACE, "--gpu-memory-utilization", "0.9", "--timing", "polynomial"]);
    assert!(text(&wrong.stderr).contains("--timing roofline"), "{}", text(&wrong.stderr));
}

/// All prompts begin with the same 8 192 tokens. Whoever sends them where these lie and leaves the others idle lets first
/// tokens wait three times as long.
#[test]
fn one_hot_prefix_leaves_nobody_idle() {
    let trace = "generate:few-shot?tasks=1&requests=1500&system=0&shots=512&question=8&block=16&output=100&rate=40";
    let fleet = ["--block-size", "16", "--workers", "4", "--cache-blocks", "8192"];
    let asked = ["replay", "--trace", trace, "--policy", "predicted,least_requests", "--json"];
    let told = document(&[&asked[..], &fleet[..]].concat());
    let ttft = |row: usize| told["rows"][row]["ttft_ms"]["mean"].as_f64().unwrap();
    assert!(ttft(0) <= ttft(1), "{} ms, {} ms in turn", ttft(0), ttft(1));
    let by_worker = told["rows"][0]["requests_by_worker"].as_array().unwrap();
    assert!(by_worker.iter().all(|requests| requests.as_u64().unwrap() > 1500 / 8), "{by_worker:?}");
}
