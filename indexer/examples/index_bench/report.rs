//! What was measured, for people: an extract of the JSON as tables.

use serde_json::{Value, json};

use crate::case::Case;

/// Look-ups of which the ratio to the peers is printed.
const FORMS: [&str; 3] = ["hashes given", "from local hashes", "from tokens"];

/// Puts what a process measured into the row of its case and index.
pub(crate) fn merge(rows: &mut Vec<Value>, case: Case, name: &str, measured: Value) {
    let key = json!({
        "index": name, "workload": case.workload.letter(), "workers": case.workers, "entries": case.entries,
    });
    let same = |row: &Value| ["index", "workload", "workers", "entries"].iter().all(|field| row[field] == key[field]);
    let at = rows.iter().position(same).unwrap_or_else(|| {
        rows.push(key);
        rows.len() - 1
    });
    let Value::Object(fields) = measured else { return };
    for (field, value) in fields {
        match (rows[at].get_mut(&field), value) {
            (Some(Value::Array(known)), Value::Array(more)) => known.extend(more),
            (_, value) => rows[at][&field] = value,
        }
    }
}

/// What is wrong with a row's answers.
pub(crate) fn faults(row: &Value) -> impl Iterator<Item = &str> {
    list(row, "faults").iter().filter_map(Value::as_str)
}

/// What may explain the figures.
pub(crate) fn machine(clock_ns: f64) -> Value {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map(|text| text.trim_matches([' ', '\t', ':']));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Option<f64> = load.split(' ').next().and_then(|text| text.parse().ok());
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
    json!({ "processor": model, "cores": cores, "load_average_at_end": load, "clock_reading_ns": clock_ns })
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// A number with so many decimals, or a dash.
fn number(value: &Value, divisor: f64, decimals: usize) -> String {
    value.as_f64().map_or("-".into(), |number| format!("{:.decimals$}", number / divisor))
}

fn title(row: &Value) -> String {
    let text = |field: &str| row[field].as_str().unwrap_or_default();
    format!("{} · {} · {} entries · {} workers", text("index"), text("workload"), row["entries"], row["workers"])
}

/// Prints every row, and the ratios of the first index to the others.
pub(crate) fn print(rows: &[Value]) {
    for row in rows {
        println!("\n{}", title(row));
        print_look_ups(row);
        print_apply(row);
        print_memory(row);
    }
    print_ratios(rows);
}

fn print_look_ups(row: &Value) {
    if list(row, "look_ups").is_empty() {
        return;
    }
    println!("  look-up, µs                        blocks   p50 of 8   p99 of 8   single p50   single p99");
    for look_up in list(row, "look_ups") {
        let what = format!("{}, {}", text(&look_up["condition"]), text(&look_up["form"]));
        let micro = |group: &str, field: &str| number(&look_up[group][field], 1e3, 3);
        println!(
            "  {what:<34} {:>6} {:>10} {:>10} {:>12} {:>12}",
            look_up["blocks"].to_string(),
            micro("groups", "p50_ns"),
            micro("groups", "p99_ns"),
            micro("single", "p50_ns"),
            micro("single", "p99_ns")
        );
    }
    print_sums(row, "");
}

fn print_sums(value: &Value, when: &str) {
    for sums in list(value, "sums") {
        let same = if sums["sum"] == sums["exact"] { "exact".into() } else { format!("exact is {}", sums["exact"]) };
        let (queries, blocks, sum) = (&sums["queries"], &sums["blocks"], &sums["sum"]);
        println!("  sum of overlaps{when}, {queries} prompts of {blocks} blocks: {sum} ({same})");
    }
}

fn print_apply(row: &Value) {
    for applied in list(row, "apply") {
        println!(
            "  {:<34} {:>8} ns/block ({} of processor) {:>8} M blocks/s  ({} blocks an event)",
            text(&applied["what"]),
            number(&applied["ns_per_block"], 1.0, 1),
            number(&applied["processor_ns_per_block"], 1.0, 1),
            number(&applied["blocks_per_s"], 1e6, 2),
            number(&applied["blocks_per_event"], 1.0, 0)
        );
    }
    let busy = list(row, "look_ups").iter().filter(|look_up| look_up["condition"] == "beside a writer");
    for look_up in busy {
        println!(
            "  writer beside look-ups of {:>5} blocks {:>23} M blocks/s, {} M look-ups/s",
            look_up["blocks"].to_string(),
            number(&look_up["writer_blocks_per_s"], 1e6, 2),
            number(&look_up["look_ups_per_s"], 1e6, 2)
        );
    }
    if row["hashed_tokens_per_s"].is_number() {
        println!("  hashing {:>45} G tokens/s", number(&row["hashed_tokens_per_s"], 1e9, 2));
    }
    for visible in list(row, "visible") {
        println!(
            "  visible after, {} writers: p50 {} µs, p99 {} µs; both threads running: p50 {} µs, p99 {} µs ({} of {})",
            visible["writers"],
            number(&visible["all"]["p50_ns"], 1e3, 1),
            number(&visible["all"]["p99_ns"], 1e3, 1),
            number(&visible["undisturbed"]["p50_ns"], 1e3, 1),
            number(&visible["undisturbed"]["p99_ns"], 1e3, 1),
            visible["undisturbed"]["times"],
            visible["all"]["times"]
        );
        println!(
            "    {} of {} events/s, never seen: {}",
            number(&visible["achieved_per_s"], 1.0, 0),
            visible["offered_per_s"],
            visible["never_seen"]
        );
    }
}

fn print_memory(row: &Value) {
    for memory in list(row, "memory") {
        for bytes in list(memory, "bytes") {
            println!(
                "  bytes an entry, {} tier(s), {:<15} {:>7} counted {:>7} resident  ({} entries)",
                memory["tiers"],
                text(&bytes["when"]),
                number(&bytes["counted_per_entry"], 1.0, 1),
                number(&bytes["resident_per_entry"], 1.0, 1),
                bytes["entries"]
            );
        }
        if memory["turnover"].is_object() {
            let rate = number(&memory["turnover"]["block_operations_per_s"], 1e6, 2);
            println!("  turnover, {} tier(s): {rate} M block operations/s", memory["tiers"]);
            print_sums(memory, " after it");
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// One figure of a row by its name; the smaller, the better.
fn figures(row: &Value) -> Vec<(String, f64)> {
    let mut figures = Vec::new();
    let mut figure = |name: String, value: &Value| figures.extend(value.as_f64().map(|value| (name, value)));
    for look_up in list(row, "look_ups").iter().filter(|look_up| FORMS.contains(&text(&look_up["form"]))) {
        let name = format!("{} blocks, {}, {}", look_up["blocks"], text(&look_up["condition"]), text(&look_up["form"]));
        let group = if look_up["groups"].is_object() { "groups" } else { "single" };
        figure(format!("{name}: p50 ns"), &look_up[group]["p50_ns"]);
    }
    for applied in list(row, "apply") {
        figure(format!("{}: ns/block", text(&applied["what"])), &applied["ns_per_block"]);
        figure(format!("{}: processor ns/block", text(&applied["what"])), &applied["processor_ns_per_block"]);
    }
    for visible in list(row, "visible") {
        figure(format!("visible, {} writers: p50 ns", visible["writers"]), &visible["undisturbed"]["p50_ns"]);
    }
    for memory in list(row, "memory") {
        for bytes in list(memory, "bytes") {
            let name = format!("bytes an entry, {} tier(s), {}", memory["tiers"], text(&bytes["when"]));
            figure(name, &bytes["resident_per_entry"]);
        }
    }
    figures
}

/// For each case the first index's figures, the others', and first divided by other: below 1 the first is better.
fn print_ratios(rows: &[Value]) {
    let same =
        |one: &Value, other: &Value| ["workload", "workers", "entries"].iter().all(|field| one[field] == other[field]);
    for ours in rows.iter().filter(|row| row["index"] == rows[0]["index"]) {
        let theirs: Vec<&Value> = rows.iter().filter(|row| same(row, ours) && row["index"] != ours["index"]).collect();
        if theirs.is_empty() {
            continue;
        }
        println!("\nratios, {} : others (below 1 is better)", title(ours));
        for (name, figure) in figures(ours) {
            print!("  {name:<58} {figure:>12.1}");
            for other in &theirs {
                let matching = figures(other).into_iter().find(|(known, _)| *known == name);
                let told = matching.map_or("-".into(), |(_, other)| format!("{other:.1} ({:.2}×)", figure / other));
                print!("  {} {told:>20}", text(&other["index"]));
            }
            println!();
        }
    }
}
