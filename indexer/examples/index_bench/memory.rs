//! Bytes an entry: as the index counts them, and as the process grows. Each measurement needs a process of its own,
//! since memory that was freed once is not given back.

use serde_json::{Value, json};

use crate::apply::{Fed, filling};
use crate::clock::rate;
use crate::draws::{real, wide};
use crate::feed::{LARGE, Move, in_both_tiers, stores, turned};
use crate::look_up::{Asked, Form, Tokens, checksum};
use crate::plan::{Plan, QuerySet};
use crate::subject::Subject;

/// Resident bytes of this process; none where the system does not tell.
pub(crate) fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Fills an index, then turns its content over; bytes an entry after each, and what is wrong with its answers.
pub(crate) fn measure<S: Subject>(plan: &Plan, tiers: bool, faults: &mut Vec<String>) -> Value {
    // What making events ready takes is taken once before the first reading.
    drop(plan.loads.first().map(|load| stores(load, LARGE).map(S::event).collect::<Vec<_>>()));
    let before = resident();
    let mut fed = Fed::<S>::empty(plan, true);
    fed.feed(1, tiered(tiers, filling(plan)));
    let mut rows = vec![bytes(&fed, before, plan.entries, "fresh")];
    check(&fed, plan, |set| set.filled, faults);
    let mut churn = Value::Null;
    if !plan.turns.is_empty() {
        let taken = fed.feed(32, tiered(tiers, plan.turns.iter().flat_map(turned)));
        churn = taken.told("large stores and single removals");
        churn["block_operations_per_s"] = json!(rate(taken.blocks, taken.time));
        rows.push(bytes(&fed, before, plan.entries_turned, "after turnover"));
        check(&fed, plan, |set| set.turned, faults);
    }
    json!({ "tiers": if tiers { 2 } else { 1 }, "bytes": rows, "turnover": churn })
}

fn tiered<'a>(tiers: bool, moves: impl Iterator<Item = Move> + 'a) -> Box<dyn Iterator<Item = Move> + 'a> {
    if tiers { Box::new(in_both_tiers(moves)) } else { Box::new(moves) }
}

fn bytes<S: Subject>(fed: &Fed<S>, before: Option<u64>, entries: usize, when: &str) -> Value {
    let each = |bytes: u64| real(bytes) / real(wide(entries.max(1)));
    let grown = before.zip(resident()).map(|(before, now)| each(now.saturating_sub(before)));
    let counted = fed.index.counted_bytes().map(|bytes| each(wide(bytes)));
    json!({ "when": when, "entries": entries, "counted_per_entry": counted, "resident_per_entry": grown })
}

/// Compares all sums with the reference.
pub(crate) fn check<S: Subject>(fed: &Fed<S>, plan: &Plan, expected: fn(&QuerySet) -> u64, faults: &mut Vec<String>) {
    let tokens = Tokens::new(0);
    for set in &plan.query_sets {
        let sum = checksum(&fed.index, &Asked::new(set), plan.workers, Form::Given, &tokens);
        if sum != expected(set) && S::EXACT {
            faults.push(format!(
                "{}: the overlaps of {} prompts of {} blocks sum to {sum}, exact is {}",
                S::NAME,
                set.queries.len(),
                set.blocks,
                expected(set)
            ));
        }
    }
}
