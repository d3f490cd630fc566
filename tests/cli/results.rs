//! What commands make of a trace, and where it goes.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::{Configuration, GOOD, stderr, stdout, warmpath, with_input};

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

/// The rows of two configurations, of which the second adds `limits` to both workers, and what was remarked.
fn planned(limits: [&str; 2], args: &[&str]) -> (Value, String) {
    let text = |limits: [&str; 2]| {
        let worker =
            |id: &str, limits: &str| format!("  - {{id: {id}, url: 'http://127.0.0.1:9', model: m{limits}}}\n");
        format!("models: [{{name: m}}]\nworkers:\n{}{}", worker("a", limits[0]), worker("b", limits[1]))
    };
    let (old, new) = (Configuration::new("plan-old", &text(["", ""])), Configuration::new("plan-new", &text(limits)));
    let output = warmpath(&[&["plan", old.path(), new.path(), "--json"][..], args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let mut replayed = serde_json::from_str::<Value>(stdout(&output)).unwrap()["replayed"].take();
    for which in ["old", "new"] {
        replayed[which].as_object_mut().unwrap().remove("wall_s");
    }
    (replayed, stderr(&output).replace(new.path(), "NEW"))
}

#[test]
fn plan_replays_with_the_limits_that_the_workers_have() {
    let made = ["--trace", "generate:few-shot?tasks=40&requests=300&block=32", "--seed", "1", "--speed", "50"];
    let timing = ["--timing", "polynomial"];
    let row = |limits: &[&str]| {
        let output = warmpath(&[&["replay", "--workers", "2", "--json"][..], &made, &timing, limits].concat());
        let mut row = serde_json::from_str::<Value>(stdout(&output)).unwrap()["rows"][0].take();
        row.as_object_mut().unwrap().remove("wall_s");
        row
    };
    let limits = ", max_num_seqs: 2, capacity_blocks: 500";
    let (replayed, remarked) = planned([limits, limits], &[&made[..], &timing].concat());
    let (old, new) = (row(&[]), row(&["--max-num-seqs", "2", "--cache-blocks", "250"]));
    assert_eq!((&replayed["old"], &replayed["new"], remarked.as_str()), (&old, &new, ""));
    assert!(old["hit_rate"].as_f64() > new["hit_rate"].as_f64(), "{old} {new}");
    assert!(old["ttft_ms"]["mean"].as_f64() < new["ttft_ms"]["mean"].as_f64(), "{old} {new}");
    let given = [&made[..], &timing, &["--cache-blocks", "400"]].concat();
    assert_eq!(planned([limits, limits], &given).0["new"], row(&["--max-num-seqs", "2", "--cache-blocks", "400"]));
    let (differing, remarked) = planned([limits, ", max_num_seqs: 3"], &[&made[..], &timing].concat());
    assert_eq!(differing["new"], new);
    let expected = "warmpath: NEW: workers differ in max_num_seqs: all are replayed with the smallest, 2\n\
                    warmpath: NEW: workers differ in capacity_blocks: all are replayed with the smallest, \
                    250 blocks of 32 tokens\n";
    assert_eq!(remarked, expected);
}

#[test]
fn plan_counts_the_workers_of_the_model_that_the_trace_names() {
    let config = Configuration::new(
        "models",
        "models: [{name: big, aliases: [m]}, {name: small}]\nworkers:\n\
         - {id: a, url: 'http://127.0.0.1:9', model: big, dp_ranks: 2}\n\
         - {id: b, url: 'http://127.0.0.1:9', model: small}\n- {id: c, url: 'http://127.0.0.1:9', model: small}\n",
    );
    let named = recorded();
    let text = std::fs::read_to_string(named.path()).unwrap();
    let unnamed = Configuration::new("unnamed", &text.replace(",\"model\":\"m\"", ""));
    let mixed = Configuration::new("mixed", &text.replacen("\"model\":\"m\"", "\"model\":\"small\"", 1));
    let plan = |trace: &Configuration, more: &[&str]| {
        warmpath(&[&["plan", config.path(), config.path(), "--json", "--trace", trace.path()][..], more].concat())
    };
    let workers = |output: Output| {
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
        serde_json::from_str::<Value>(stdout(&output)).unwrap()["replayed"]["old"]["workers"].as_u64().unwrap()
    };
    assert_eq!(workers(plan(&named, &[])), 2);
    for trace in [&unnamed, &mixed] {
        let output = plan(trace, &[]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("has several models, and not all requests"), "{}", stderr(&output));
        assert_eq!(workers(plan(trace, &["--workers", "3"])), 3);
    }
}

/// A trace for `m`, and workers that come by DNS.
#[test]
fn plan_asks_how_many_engines_there_are_where_nobody_lists_them() {
    let (trace, named) = (recorded(), "discovery: {dns: {name: engines.example, port: 8000, model: m}}\n");
    let models = "models: [{name: m}, {name: other}]\n";
    let listed = format!("{models}workers:\n- {{id: a, url: 'http://127.0.0.1:9', model: m}}\n");
    let (found, listed, both) = (
        Configuration::new("found", &format!("{models}{named}")),
        Configuration::new("listed", &listed),
        Configuration::new("both", &format!("{listed}{named}")),
    );
    let plan = |new: &Configuration, more: &[&str]| {
        warmpath(&[&["plan", listed.path(), new.path(), "--json", "--trace", trace.path()][..], more].concat())
    };
    let asked = plan(&found, &[]);
    let expected = format!(
        "warmpath: {}: lists no worker for the trace's model, and those that are discovered are not known here: say with \
         --workers how many engines serve it\n",
        found.path()
    );
    assert_eq!((asked.status.code(), stdout(&asked), stderr(&asked)), (Some(2), "", &*expected));
    let workers = |output: &Output| {
        let document: Value = serde_json::from_str(stdout(output)).unwrap();
        document["replayed"]["new"]["workers"].as_u64()
    };
    let told = plan(&found, &["--workers", "3"]);
    assert_eq!((told.status.code(), workers(&told), stderr(&told)), (Some(0), Some(3), ""));
    let some = plan(&both, &[]);
    let expected = format!(
        "warmpath: {}: workers that are discovered are left out: --workers says how many there are\n",
        both.path()
    );
    assert_eq!((some.status.code(), workers(&some), stderr(&some)), (Some(0), Some(1), &*expected));
}

#[test]
fn plan_replays_nothing_for_a_model_that_one_file_lacks() {
    let trace = recorded();
    let config =
        |model: &str| format!("models: [{model}]\nworkers: [{{id: a, url: 'http://127.0.0.1:9', model: n}}]\n");
    let (named, renamed) = (
        Configuration::new("named", &config("{name: n, aliases: [m]}")),
        Configuration::new("renamed", &config("{name: n}")),
    );
    for (old, new) in [(&named, &renamed), (&renamed, &named)] {
        for more in [&[][..], &["--workers", "3"]] {
            let args = ["plan", old.path(), new.path(), "--trace", trace.path()];
            let output = warmpath(&[&args[..], more].concat());
            let expected = format!(
                "warmpath: {}: has no model `m`, which the trace asks for and {} has: name it among the aliases of a \
                 model, or leave its requests out of the trace\n",
                renamed.path(),
                named.path()
            );
            assert_eq!((output.status.code(), stdout(&output), stderr(&output)), (Some(2), "", &*expected));
        }
    }
    // To neither it tells anything.
    let output = warmpath(&["plan", renamed.path(), renamed.path(), "--trace", trace.path()]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
}

#[test]
fn nothing_is_reused_across_models_or_instances() {
    let plain = |model: &str| {
        format!(
            "{{\"timestamp\":{model},\"input_length\":33,\"output_length\":1,\"hash_ids\":[1,2],\"block_size\":16,\
             \"model\":\"{model}\"}}\n"
        )
    };
    let tair = |instance: &str| {
        format!(
            "{{\"type\":\"request\",\"instance_id\":\"{instance}\",\"timestamp_us\":{instance}000,\"keys\":[1,2],\
             \"input_len\":128,\"output_len\":1}}\n"
        )
    };
    let forms: [fn(&str) -> String; 2] = [plain, tair];
    for line in forms {
        for (names, is_reused) in [(["1", "900"], false), (["1", "1"], true)] {
            let trace = Configuration::new("models-trace", &names.map(line).concat());
            let converted = warmpath(&["trace", "convert", "--trace", trace.path()]);
            for text in [std::fs::read(trace.path()).unwrap(), converted.stdout] {
                for command in [&["optimize", "--capacity-blocks", "10"][..], &["replay", "--workers", "1"]] {
                    let output = with_input(&[command, &["--json", "--trace", "-"]].concat(), &text);
                    let document: Value = serde_json::from_str(stdout(&output)).unwrap();
                    let rate = document["rows"][0]["hit_rate"].as_f64();
                    assert_eq!(rate > Some(0.0), is_reused, "{names:?} {command:?} {document}");
                }
            }
        }
    }
}

#[test]
fn replay_tells_why_a_request_went_where_it_went_and_no_figure_changes() {
    let trace = recorded();
    let asked = |more: &[&str]| {
        let some = ["replay", "--trace", trace.path(), "--workers", "3", "--policy", "predicted,kv,round_robin"];
        warmpath(&[&some[..], more].concat())
    };
    let rows = |more: &[&str]| -> Vec<Value> {
        let output = asked(&[&["--json"][..], more].concat());
        let mut document: Value = serde_json::from_str(stdout(&output)).unwrap();
        document["rows"].as_array_mut().unwrap().iter_mut().for_each(|row| {
            row.as_object_mut().unwrap().remove("wall_s");
        });
        document["rows"].as_array().unwrap().clone()
    };
    let (mut told, silent) = (rows(&["--explain", "40,3"]), rows(&[]));
    for row in &mut told {
        let Value::Array(decisions) = row.as_object_mut().unwrap().remove("decisions").unwrap() else {
            panic!("{row}")
        };
        let numbers: Vec<u64> = decisions.iter().filter_map(|made| made["number"].as_u64()).collect();
        assert_eq!(numbers, [3, 40], "{row}");
        for made in decisions {
            let considered = made["considered"].as_array().unwrap();
            assert_eq!(considered.len(), 3, "{made}");
            for candidate in considered {
                let terms = candidate["terms"].as_array().unwrap();
                let sum: f64 =
                    terms.iter().filter(|term| term["joins"] == "adds").filter_map(|term| term["value"].as_f64()).sum();
                let is_sum = terms.iter().all(|term| term["joins"] == "adds");
                let cost = candidate["cost"].as_f64().unwrap();
                assert!(!is_sum || (sum - cost).abs() < 1e-6 * cost.abs().max(1.0), "{candidate}");
            }
            let chosen: Vec<&Value> = considered.iter().filter(|candidate| candidate["chosen"] == true).collect();
            assert_eq!(chosen.len(), 1, "{made}");
            assert!(made["ttft_ms"].as_u64().is_some() && made["at_ms"].as_u64().is_some(), "{made}");
        }
    }
    assert_eq!(told, silent);
    let text = asked(&["--explain", "3"]);
    assert!(
        stdout(&text).contains("\npredicted, 3 workers, 1 times as fast: decision 3, request 3, model simulated\n"),
        "{}",
        stdout(&text)
    );
    let beyond = asked(&["--explain", "41"]);
    assert_eq!(
        (beyond.status.code(), stderr(&beyond)),
        (Some(2), "warmpath: --explain 41: the trace has 40 requests\n")
    );
}

/// Weights are named as the configuration names them, and are told nowhere else.
#[test]
fn help_names_every_key_of_the_documents_that_commands_print() {
    fn keys(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                found.push(key.clone());
                keys(value, found);
            }),
            Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
            _ => {}
        }
    }
    let trace = recorded();
    let of = |more: &[&'static str]| [&["--trace", trace.path()][..], more].concat();
    for (command, args) in [
        ("replay", of(&["--ablate"])),
        ("optimize", of(&["--bytes-per-token", "1000"])),
        ("tune", of(&["--trials", "1"])),
        ("calibrate", ["--prefill", "2048:70.7", "--decode", "8x1024:8.9"].to_vec()),
    ] {
        let output = warmpath(&[&[command, "--json"][..], &args].concat());
        let document = serde_json::from_str(stdout(&output)).unwrap();
        let (mut found, help) = (Vec::new(), warmpath(&[command, "--help"]));
        keys(&document, &mut found);
        let (_, told) = stdout(&help).split_once("--json: {").unwrap();
        assert!(found.len() > 10 || command == "calibrate", "{command}: {found:?}");
        for key in found.iter().filter(|key| !key.contains('.')) {
            assert!(told.contains(key.as_str()), "{command}: {key}");
        }
    }
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

#[test]
fn what_cannot_be_written_is_a_failure() {
    let (trace, good) = ("generate:few-shot?tasks=2&requests=4", Configuration::new("full", GOOD));
    for args in [
        &["replay", "--trace", trace, "--json"][..],
        &["optimize", "--trace", trace],
        &["check", good.path()],
        &["schema"],
        &["config", "show", good.path()],
        &["man"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_warmpath")).args(args).stdout(full).output().unwrap();
        let expected = "warmpath: cannot write to standard output: No space left on device (os error 28)\n";
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(stderr(&output).ends_with(expected), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn rows_for_standard_output_go_behind_what_is_there_and_leave_no_file_beside_it() {
    let (trace, file) = ("generate:few-shot?tasks=2&requests=4", Configuration::new("appended", "before\n"));
    for (command, first) in [("replay", "policy,workers,speed,"), ("optimize", "capacity_blocks,")] {
        std::fs::write(file.path(), "before\n").unwrap();
        let at_end = std::fs::OpenOptions::new().append(true).open(file.path()).unwrap();
        let mut asked = Command::new(env!("CARGO_BIN_EXE_warmpath"));
        asked.args([command, "--trace", trace, "--csv", "/dev/stdout"]).stdout(at_end).stderr(Stdio::piped());
        let output = asked.output().unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""), "{command}");
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.starts_with("before\n") && text.contains(&format!("\n{first}")), "{text}");
    }
    assert!(!std::path::Path::new("/dev/stdout.time.csv").exists());
}

#[test]
fn a_run_that_fails_leaves_no_file_that_it_has_made() {
    let page = std::env::temp_dir().join(format!("warmpath-cli-{}-none.html", std::process::id()));
    let output = warmpath(&["replay", "--trace", "no/file", "--html", page.to_str().unwrap()]);
    assert_eq!((output.status.code(), page.exists()), (Some(2), false));
}

#[test]
fn no_result_takes_the_place_of_what_is_read() {
    let (trace, good) = (recorded(), Configuration::new("read", GOOD));
    let (trace, good) = (trace.path(), good.path());
    let (of_trace, of_config) = (["--trace", trace], ["--trace", trace, "--config", good]);
    for (args, option, file) in [
        (&[&["replay"][..], &of_trace, &["--csv", trace]].concat(), "--trace", trace),
        (&[&["replay"][..], &of_config, &["--html", good]].concat(), "--config", good),
        (&[&["tune", "--trials", "1"][..], &of_config, &["--out", good]].concat(), "--config", good),
        (&[&["tune", "--trials", "1"][..], &of_config, &["--html", trace]].concat(), "--trace", trace),
        (&[&["optimize"][..], &of_trace, &["--csv", trace]].concat(), "--trace", trace),
        (&[&["optimize"][..], &of_trace, &["--html", trace]].concat(), "--trace", trace),
    ] {
        let before = std::fs::read_to_string(file).unwrap();
        let output = warmpath(args);
        let expected = format!("warmpath: cannot write {file}: it is the file that {option} reads\n");
        assert_eq!((output.status.code(), stdout(&output), stderr(&output)), (Some(2), "", &*expected), "{args:?}");
        assert_eq!(std::fs::read_to_string(file).unwrap(), before, "{args:?}");
    }
}

#[test]
fn a_trace_that_asks_for_nothing_has_no_figures() {
    for command in [&["optimize"][..], &["replay"], &["tune", "--policy", "kv"]] {
        let output = with_input(&[command, &["--trace", "-"]].concat(), "");
        let told = (output.status.code(), stdout(&output), stderr(&output));
        assert_eq!(told, (Some(1), "", "warmpath: - has no requests\n"), "{command:?}");
    }
}

#[test]
fn a_trace_that_ends_too_soon_is_an_unreadable_file() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/traces/mooncake-conversation.jsonl.gz");
    let whole = std::fs::read(trace).unwrap();
    let cut = std::env::temp_dir().join(format!("warmpath-cli-{}-cut.gz", std::process::id()));
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let output = warmpath(&["trace", "stat", "--trace", cut.to_str().unwrap()]);
    std::fs::remove_file(&cut).unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}
