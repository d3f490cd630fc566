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
    let mut sums = check(&fed, plan, |set| set.filled, faults);
    let mut churn = Value::Null;
    if !plan.turns.is_empty() {
        let taken = fed.feed(32, tiered(tiers, plan.turns.iter().flat_map(turned)));
        churn = taken.told("large stores and single removals");
        churn["block_operations_per_s"] = json!(rate(taken.blocks, taken.time));
        rows.push(bytes(&fed, before, plan.entries_turned, "after turnover"));
        sums = check(&fed, plan, |set| set.turned, faults);
    }
    json!({ "tiers": if tiers { 2 } else { 1 }, "bytes": rows, "turnover": churn, "sums": sums })
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

/// Compares all sums with the reference; both.
pub(crate) fn check<S: Subject>(
    fed: &Fed<S>,
    plan: &Plan,
    expected: fn(&QuerySet) -> u64,
    faults: &mut Vec<String>,
) -> Value {
    let tokens = Tokens::new(0);
    let mut rows = Vec::new();
    for set in &plan.query_sets {
        let sum = checksum(&fed.index, &Asked::new(set), plan.workers, Form::Given, &tokens);
        let (queries, exact) = (set.queries.len(), expected(set));
        if sum != exact && S::EXACT {
            let blocks = set.blocks;
            faults.push(format!("{}: {queries} prompts of {blocks} blocks sum to {sum}, exact is {exact}", S::NAME));
        }
        rows.push(json!({ "blocks": set.blocks, "queries": queries, "sum": sum, "exact": exact }));
    }
    json!(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Trace;
    use crate::warmpath::Warmpath;
    use crate::workload::Workload;

    #[test]
    fn an_answer_that_differs_from_the_reference_is_a_fault() {
        let trace = Trace::of(vec![vec![0, 1, 2, 3], vec![0, 1, 5, 6], vec![0, 7, 8, 9]]);
        let plan = Plan::new(Workload::Trace, &trace, 8, 384, 2000);
        let faults = |moves: Box<dyn Iterator<Item = Move> + '_>, expected: fn(&QuerySet) -> u64| {
            let mut fed = Fed::<Warmpath>::empty(&plan, true);
            fed.feed(1, moves);
            let mut faults = Vec::new();
            check(&fed, &plan, expected, &mut faults);
            faults.len()
        };
        let turns = || plan.turns.iter().flat_map(turned);
        assert_eq!(faults(Box::new(filling(&plan)), |set| set.filled), 0);
        assert_eq!(faults(Box::new(filling(&plan).skip(1)), |set| set.filled), 1);
        assert_eq!(faults(Box::new(filling(&plan).chain(turns())), |set| set.turned), 0);
        assert_eq!(faults(Box::new(in_both_tiers(filling(&plan).chain(turns()))), |set| set.turned), 0);
        assert_eq!(faults(Box::new(filling(&plan)), |set| set.turned), 1);
    }
}
