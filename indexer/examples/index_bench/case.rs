//! One case: one index, one workload, one size, one number of workers, in a process of its own.

use std::time::Duration;

use serde_json::{Value, json};

use crate::apply::{Fed, fill, one_by_one};
use crate::look_up::{Asked, Form, Tokens, beside_writer, checksum, cold, hashed_per_s, one_reader, two_readers};
use crate::memory;
use crate::plan::Plan;
use crate::subject::Subject;
use crate::trace::Trace;
use crate::visible;
use crate::workload::Workload;

/// What a process measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything that is a time.
    Speed,
    /// Bytes, where only the device tier is reported.
    Memory,
    /// Bytes, where every block is reported in the host's memory too.
    MemoryTiers,
}

impl Part {
    /// All of them.
    pub(crate) const ALL: [Part; 3] = [Part::Speed, Part::Memory, Part::MemoryTiers];

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Speed => "speed",
            Self::Memory => "memory",
            Self::MemoryTiers => "memory-tiers",
        }
    }
}

/// What to measure, of whatever index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) workload: Workload,
    pub(crate) workers: u16,
    pub(crate) entries: usize,
    pub(crate) quick: bool,
}

/// An index that can be measured, by its name.
#[derive(Clone, Copy)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    /// Whether it distinguishes tiers.
    pub(crate) tiers: bool,
    /// Measures a part of a case.
    pub(crate) measure: fn(Case, Part, &Trace) -> Value,
}

impl Contender {
    /// The contender `S`.
    pub(crate) fn of<S: Subject>() -> Self {
        Self { name: S::NAME, tiers: S::TIERS, measure: measure::<S> }
    }
}

fn measure<S: Subject>(case: Case, part: Part, trace: &Trace) -> Value {
    let turnover = match (part, case.quick) {
        (Part::Speed, _) => 0,
        (_, true) => 1_000_000,
        (_, false) => 10_000_000,
    };
    let plan = Plan::new(case.workload, trace, case.workers, case.entries, turnover);
    let mut faults = Vec::new();
    let mut row = match part {
        Part::Speed => speed::<S>(case, &plan, &mut faults),
        Part::Memory => json!({ "memory": [memory::measure::<S>(&plan, false, &mut faults)] }),
        Part::MemoryTiers => json!({ "memory": [memory::measure::<S>(&plan, true, &mut faults)] }),
    };
    row["faults"] = json!(faults);
    row
}

fn speed<S: Subject>(case: Case, plan: &Plan, faults: &mut Vec<String>) -> Value {
    let budget = Duration::from_millis(if case.quick { 80 } else { 250 });
    let repeat = if case.quick || plan.entries > 2_000_000 { 1 } else { 3 };
    let tokens = Tokens::new(8192);
    // Memory that the process takes from the system for the first time costs more: that is none of the two.
    drop(fill::<S>(plan, true, 1));
    let (grown, growing) = fill::<S>(plan, false, repeat);
    drop(grown);
    let (mut fed, sized) = fill::<S>(plan, true, repeat);
    let mut apply = vec![sized.told("large stores, tables sized"), growing.told("large stores, tables growing")];
    let hashed = hashed_per_s(&fed.index, &tokens, budget);
    let sums = sums(&fed, plan, &tokens, faults);
    let mut look_ups = Vec::new();
    let asked = plan.query_sets.iter().filter(|set| !set.queries.is_empty());
    let asked: Vec<Asked<S>> = asked.map(Asked::new).collect();
    for set in &asked {
        look_ups.extend(one_reader(&fed.index, set, &tokens, budget));
    }
    for set in &asked {
        look_ups.push(two_readers(&fed.index, set, &tokens, budget));
    }
    for set in &asked {
        look_ups.push(cold(&fed.index, set, if case.quick { 40 } else { 200 }));
    }
    for set in &asked {
        look_ups.push(beside_writer(&mut fed, plan, set, &tokens, budget));
    }
    apply.extend(one_by_one(plan, &mut fed));
    // All was stored again: the answers must be what they were.
    let again = memory::check(&fed, plan, |set| set.filled, faults);
    let seconds = Duration::from_secs(if case.quick { 1 } else { 3 });
    let visible = [1, 4].map(|threads| visible::measure(&mut fed, threads, seconds));
    json!({
        "hashed_tokens_per_s": hashed, "apply": apply, "sums": sums, "sums_at_end": again, "look_ups": look_ups, "visible": visible,
        "requests": plan.loads.len(),
    })
}

/// The sums of all overlaps in each form, beside the exact ones.
fn sums<S: Subject>(fed: &Fed<S>, plan: &Plan, tokens: &Tokens, faults: &mut Vec<String>) -> Vec<Value> {
    let mut rows = Vec::new();
    for set in &plan.query_sets {
        let asked = Asked::new(set);
        let sums = Form::ALL.map(|form| checksum(&fed.index, &asked, plan.workers, form, tokens));
        if S::EXACT && sums.iter().any(|&sum| sum != set.filled) {
            let (blocks, exact) = (set.blocks, set.filled);
            faults.push(format!("{}: prompts of {blocks} blocks sum to {sums:?}, exact is {exact}", S::NAME));
        }
        let queries = set.queries.len();
        rows.push(json!({ "blocks": set.blocks, "queries": queries, "sum": sums[0], "exact": set.filled }));
    }
    rows
}
