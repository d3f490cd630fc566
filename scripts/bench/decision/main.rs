//! Measures what a decision costs, stage by stage. So far: from a parsed request to the hashes of its blocks.
//!
//! `scripts/bench.sh decision [--json FILE] [--tokenizer FOLDER] [--rounds N]`; the folder is Qwen3's by default, as
//! `scripts/fetch-tokenizer.sh` fetches it.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a program for measuring may panic and prints")]

mod tokenise;

use std::path::PathBuf;

use serde_json::{Value, json};

use tokenise::{Row, Texts};

/// Tokens of the prompts, about.
const LENGTHS: [usize; 3] = [1_000, 10_000, 100_000];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |flag: &str| arguments.get(arguments.iter().position(|argument| argument == flag)? + 1).cloned();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = value("--tokenizer").map_or_else(|| root.join(".cache/tokenizers/qwen3"), PathBuf::from);
    let rounds: usize = value("--rounds").map_or(100, |rounds| rounds.parse().unwrap());
    let texts = Texts::read(&root, &folder);
    println!(
        "{:<9} {:<10} {:<10} {:>8} {:>10} {:>10} {:>10}",
        "stage", "form", "state", "tokens", "p50 us", "p99 us", "cpu us"
    );
    let mut rows: Vec<Row> = Vec::new();
    for tokens in LENGTHS {
        for row in texts.measure(tokens, rounds) {
            println!(
                "{:<9} {:<10} {:<10} {:>8} {:>10.1} {:>10.1} {:>10.1}",
                row.stage, row.form, row.state, row.tokens, row.p50_us, row.p99_us, row.cpu_us
            );
            rows.push(row);
        }
    }
    if let Some(file) = value("--json") {
        let rows: Vec<Value> = rows.iter().map(Row::json).collect();
        let report = json!({ "bench": "decision", "rounds": rounds, "rows": rows });
        std::fs::write(&file, format!("{report:#}\n")).unwrap();
        println!("written to {file}");
    }
}
