//! The command line.

use std::path::PathBuf;

use crate::case::{Case, Part};
use crate::workload::Workload;

/// Where the trace lies, seen from the root of the repository.
const TRACE: &str = "tests/data/traces/mooncake-conversation.jsonl.gz";

/// What `--help` says.
pub(crate) const HELP: &str = "\
Measures prefix indexes: how long a look-up takes, how fast events are applied, how soon they are seen, bytes an entry.

    scripts/bench.sh index [--quick] [--json FILE] [--workload T,R] [--workers 8,64,512] [--entries 1000000,10000000]
    scripts/bench.sh index --peers [the same]     beside other projects' indexes, with ratios

  --json FILE      writes everything that was measured; the table on standard output is an extract
  --quick          1 000 000 entries, 64 workers, workload T, fewer repetitions: under a minute for one index
  --workload T,R   T: the Mooncake conversation trace; R: a synthetic tree of long shared chains (1 000 000 entries)
  --workers LIST   how many workers share the entries
  --entries LIST   (worker, block) pairs
  --only NAME,..   only these indexes
  --part NAME,..   only these parts: speed, memory, memory-tiers
  --trace FILE     another copy of the trace

How to read it. A block has 16 tokens. `p50` and `p99` are over groups of 8 look-ups timed as one, divided by 8, since
reading the clock costs about as much as a look-up; the 99th percentile of groups is not that of single calls. `single`
times each call by itself, the clock's own cost included (printed first). `cold`: 48 MB were touched between look-ups.
`beside a writer`: another thread removes and stores blocks one by one, 32 events a call, without rest. Apply rates count
until the last event is applied; events are made ready before; `of processor` is what all threads ran meanwhile, which
tells what a busy machine hides. `visible`: from the call of `apply` until a look-up on
another thread finds the block, 100 000 events/s offered by the clock. Bytes: as the index counts them, and as the
process grows (each in a process of its own), first filled, then after as many blocks again were stored and removed.
Every set of look-ups must sum to the exact overlaps, or the run fails with exit code 1.
";

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arguments {
    Help,
    /// Measure these cases, each in a process of its own.
    All(All),
    /// Measure one part of one case here, and print it as JSON.
    One {
        case: Case,
        part: Part,
        name: String,
        trace: PathBuf,
    },
}

/// A whole run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct All {
    pub(crate) cases: Vec<Case>,
    pub(crate) parts: Vec<Part>,
    pub(crate) only: Vec<String>,
    pub(crate) trace: PathBuf,
    pub(crate) json: Option<PathBuf>,
    pub(crate) quick: bool,
}

#[derive(Default)]
struct Given {
    quick: bool,
    child: bool,
    json: Option<PathBuf>,
    trace: Option<PathBuf>,
    workloads: Option<Vec<Workload>>,
    workers: Option<Vec<u16>>,
    entries: Option<Vec<usize>>,
    parts: Option<Vec<Part>>,
    only: Vec<String>,
}

impl Arguments {
    /// Reads the command line without the program's name.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = arguments;
        let mut given = Given::default();
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
            match name.as_str() {
                "--help" | "-h" => return Ok(Self::Help),
                "--quick" => given.quick = true,
                "--child" => given.child = true,
                "--json" => given.json = Some(value()?.into()),
                "--trace" => given.trace = Some(value()?.into()),
                "--workload" => given.workloads = Some(list(&name, &value()?, Workload::of_letter)?),
                "--workers" => {
                    let some = |text: &str| text.parse().ok().filter(|count| (8..=512).contains(count));
                    given.workers = Some(list(&name, &value()?, some)?);
                }
                "--entries" => {
                    let some = |text: &str| text.replace('_', "").parse().ok().filter(|count| *count >= 1000);
                    given.entries = Some(list(&name, &value()?, some)?);
                }
                "--part" => {
                    let some = |text: &str| Part::ALL.into_iter().find(|part| part.name() == text);
                    given.parts = Some(list(&name, &value()?, some)?);
                }
                "--only" => given.only = value()?.split(',').map(str::to_owned).collect(),
                _ => return Err(format!("unknown argument `{name}`; --help tells what there is")),
            }
        }
        given.meaning()
    }
}

fn list<T>(name: &str, text: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    let parse = |item: &str| parse(item).ok_or(format!("{name}: `{item}` is not possible; --help tells what is"));
    text.split(',').map(parse).collect()
}

impl Given {
    fn meaning(self) -> Result<Arguments, String> {
        let quick = self.quick;
        let asked = self.entries.is_some();
        let workloads =
            self.workloads.unwrap_or(if quick { vec![Workload::Trace] } else { vec![Workload::Trace, Workload::Tree] });
        let workers = self.workers.unwrap_or(if quick { vec![64] } else { vec![8, 64, 512] });
        let entries = self.entries.unwrap_or(if quick { vec![1_000_000] } else { vec![1_000_000, 10_000_000] });
        let mut cases = Vec::new();
        for &workload in &workloads {
            // The tree is there to compare with older figures: one size says what it can say.
            let sizes = if workload == Workload::Tree && !asked { &entries[..1] } else { &entries[..] };
            for &entries in sizes {
                cases.extend(workers.iter().map(|&workers| Case { workload, workers, entries, quick }));
            }
        }
        let parts = self.parts.unwrap_or(Part::ALL.to_vec());
        let trace = self.trace.unwrap_or_else(|| TRACE.into());
        if !self.child {
            return Ok(Arguments::All(All { cases, parts, only: self.only, trace, json: self.json, quick }));
        }
        match (cases.as_slice(), parts.as_slice(), self.only.as_slice()) {
            (&[case], &[part], [name]) => Ok(Arguments::One { case, part, name: name.clone(), trace }),
            _ => Err("--child measures one part of one case of one index".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn a_full_run_has_nine_cases_and_a_quick_one_a_single_case() {
        let count = |line| match parse(line) {
            Ok(Arguments::All(all)) => all.cases.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(count(""), 9);
        assert_eq!(count("--quick"), 1);
        assert_eq!(count("--workload r --entries 1000000,10_000_000"), 6);
        assert_eq!(count("--workers 8 --workload t"), 2);
    }

    #[test]
    fn what_is_not_possible_is_named() {
        assert_eq!(parse("--workers 8,9999").unwrap_err(), "--workers: `9999` is not possible; --help tells what is");
        assert_eq!(parse("--fast").unwrap_err(), "unknown argument `--fast`; --help tells what there is");
        assert_eq!(parse("--json").unwrap_err(), "--json needs a value");
    }

    #[test]
    fn a_process_of_its_own_measures_one_part() {
        let one = parse("--child --quick --workload T --workers 8 --entries 1000 --part memory --only warmpath");
        let case = Case { workload: Workload::Trace, workers: 8, entries: 1000, quick: true };
        let (name, trace) = ("warmpath".to_owned(), TRACE.into());
        assert_eq!(one, Ok(Arguments::One { case, part: Part::Memory, name, trace }));
    }
}
