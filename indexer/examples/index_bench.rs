//! Measures the prefix indexes side by side on a synthetic tree: a system prompt that every worker holds, groups that an
//! eighth of them hold, and private tails. `--json` prints JSON; `--entries N` sets the size (default 1 000 000).
//!
//! `cargo run --release -p warmpath-indexer --example index_bench`

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warmpath_core::blocks::step;
use warmpath_core::ids::{BlockHash, SequenceHash, Slot};
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::units::Tier;
use warmpath_indexer::change::{Change, IndexWriter};
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::tree::SharedTree;

const SYSTEM: usize = 8;
const GROUP: usize = 120;
const GROUPS: u64 = 64;
/// Lengths of private tails, in turn.
const TAILS: [usize; 4] = [384, 1920, 448, 128];
const EVENT: usize = 128;
const LENGTHS: [usize; 3] = [128, 512, 2048];
const WORKERS: [u16; 3] = [8, 64, 512];
/// Look-ups that are timed as one, since reading the clock costs as much as a look-up.
const TIMED: u32 = 8;

/// What is measured.
trait Subject: PrefixIndex + IndexWriter {
    const NAME: &'static str;
    fn create(entries: usize) -> Self;
    fn counted_bytes(&self) -> Option<usize>;
}

impl Subject for ConcurrentIndex {
    const NAME: &'static str = "ConcurrentIndex";
    fn create(entries: usize) -> Self {
        Self::new(entries)
    }
    fn counted_bytes(&self) -> Option<usize> {
        Some(self.bytes())
    }
}

impl Subject for SharedTree {
    const NAME: &'static str = "SharedTree";
    fn create(_: usize) -> Self {
        Self::new()
    }
    fn counted_bytes(&self) -> Option<usize> {
        None
    }
}

/// A conversation on one worker: all its blocks, and how many of them are new to the worker.
struct Conversation {
    slot: Slot,
    blocks: Vec<SequenceHash>,
    known: usize,
}

fn follow(chain: &mut Vec<SequenceHash>, name: u64, len: usize) {
    for block in 0..u64::try_from(len).expect("64 bits") {
        let last = chain.last().copied().unwrap_or(SequenceHash(1));
        chain.push(step(last, BlockHash(name << 20 | block)));
    }
}

/// Conversations in the order in which they come, workers in turn, until there are about `entries` entries.
fn workload(workers: u16, entries: usize) -> Vec<Conversation> {
    let mut conversations = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut stored = 0;
    for number in 0_u64.. {
        if stored >= entries {
            break;
        }
        let slot = Slot(u16::try_from(number % u64::from(workers)).expect("below u16"));
        // A worker serves an eighth of the groups.
        let turn = number / u64::from(workers);
        let group = (u64::from(slot.0) + turn % (GROUPS / 8) * 8) % GROUPS;
        let mut blocks = Vec::new();
        follow(&mut blocks, 1, SYSTEM);
        follow(&mut blocks, 100 + group, GROUP);
        let tail = TAILS[usize::try_from(turn).expect("64 bits") % TAILS.len()];
        follow(&mut blocks, 1_000_000 + number, tail);
        let known = match (seen.insert((slot, None)), seen.insert((slot, Some(group)))) {
            (true, _) => 0,
            (false, true) => SYSTEM,
            (false, false) => SYSTEM + GROUP,
        };
        stored += blocks.len() - known;
        conversations.push(Conversation { slot, blocks, known });
    }
    conversations
}

#[expect(clippy::disallowed_methods, reason = "measuring is the only thing that this program is for")]
fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn real(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Changes by event: the new blocks of each conversation, at most `event` at a time.
fn events(conversations: &[Conversation], event: usize) -> Vec<(Slot, Vec<Change>)> {
    let of = |conversation: &Conversation| {
        let parent = conversation.known.checked_sub(1).map(|above| conversation.blocks[above]);
        let changes: Vec<Change> =
            Change::stores(parent, &conversation.blocks[conversation.known..], Tier::Device).collect();
        let slot = conversation.slot;
        changes.chunks(event).map(move |changes| (slot, changes.to_vec())).collect::<Vec<_>>()
    };
    conversations.iter().flat_map(of).collect()
}

/// Makes all changes; nanoseconds a change.
fn apply_all(index: &impl IndexWriter, events: &[(Slot, Vec<Change>)]) -> f64 {
    let changes: usize = events.iter().map(|(_, changes)| changes.len()).sum();
    let taken = timed(|| events.iter().for_each(|(slot, changes)| index.apply(*slot, changes)));
    taken.as_secs_f64() * 1e9 / real(changes)
}

/// Median and 99th percentile in nanoseconds over groups of look-ups, and the sum of all longest runs.
fn look_ups(index: &impl PrefixIndex, queries: &[&[SequenceHash]]) -> (f64, f64, u64) {
    let mut overlaps = Overlaps::default();
    let mut sum = 0;
    for query in queries {
        index.match_prefix(query, &mut overlaps);
        sum += u64::from(overlaps.longest().0);
    }
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..20 {
        for group in queries.chunks_exact(usize::try_from(TIMED).expect("small")) {
            let taken = timed(|| {
                for query in group {
                    index.match_prefix(black_box(query), &mut overlaps);
                }
                black_box(&overlaps);
            });
            times.push(taken.as_secs_f64() * 1e9 / f64::from(TIMED));
        }
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() * 99 / 100], sum)
}

fn measure<S: Subject>(workers: u16, conversations: &[Conversation]) -> Value {
    let large = events(conversations, EVENT);
    let entries: usize = large.iter().map(|(_, changes)| changes.len()).sum();
    let index = S::create(entries);
    let large_ns = apply_all(&index, &large);
    drop(large);
    let held: usize = (0..workers).map(|slot| index.entries(Slot(slot))).sum();
    assert_eq!(held, entries, "every entry is held");
    let bytes = index.counted_bytes().map(|bytes| real(bytes) / real(entries));
    let mut by_length = Vec::new();
    for len in LENGTHS {
        let long = conversations.iter().filter(|conversation| conversation.blocks.len() >= len);
        let queries: Vec<&[SequenceHash]> = long.take(512).map(|conversation| &conversation.blocks[..len]).collect();
        let (p50, p99, sum) = look_ups(&index, &queries);
        by_length.push(json!({ "blocks": len, "p50_ns": p50, "p99_ns": p99, "sum": sum }));
    }
    let remove = |hash: &SequenceHash| vec![Change::Remove { hash: *hash, tier: Tier::Device }];
    let newest_first = conversations.iter().rev().flat_map(|conversation| {
        conversation.blocks[conversation.known..].iter().rev().map(|hash| (conversation.slot, remove(hash)))
    });
    let removals: Vec<(Slot, Vec<Change>)> = newest_first.collect();
    let removal_ns = apply_all(&index, &removals);
    drop(removals);
    assert!((0..workers).all(|slot| index.entries(Slot(slot)) == 0), "nothing is held");
    let left = index.counted_bytes();
    let single_ns = apply_all(&S::create(entries), &events(conversations, 1));
    json!({
        "index": S::NAME, "workers": workers, "entries": entries, "bytes_per_entry": bytes,
        "bytes_when_emptied": left, "store_128_ns": large_ns, "store_1_ns": single_ns,
        "removals_per_second": 1e9 / removal_ns, "look_ups": by_length,
    })
}

fn print_table(rows: &[Value]) {
    println!(
        "{:<16} {:>7} {:>9} {:>7} {:>9} {:>8} {:>11}  look-up p50 ns of {LENGTHS:?} blocks",
        "index", "workers", "entries", "B/entry", "ns/block", "ns/one", "removals/s"
    );
    for row in rows {
        let number = |name: &str| row[name].as_f64().map_or("-".to_owned(), |number| format!("{number:.1}"));
        let look_ups = row["look_ups"].as_array().into_iter().flatten();
        let look_ups: Vec<String> =
            look_ups.map(|row| format!("{:>8.0}", row["p50_ns"].as_f64().unwrap_or(f64::NAN))).collect();
        println!(
            "{:<16} {:>7} {:>9} {:>7} {:>9} {:>8} {:>11.0}  {}",
            row["index"].as_str().unwrap_or_default(),
            row["workers"],
            row["entries"],
            number("bytes_per_entry"),
            number("store_128_ns"),
            number("store_1_ns"),
            row["removals_per_second"].as_f64().unwrap_or(f64::NAN),
            look_ups.join(" ")
        );
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let entries = arguments.iter().position(|argument| argument == "--entries");
    let entries = entries.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(1_000_000);
    let mut rows = Vec::new();
    for workers in WORKERS {
        let conversations = workload(workers, entries);
        rows.push(measure::<ConcurrentIndex>(workers, &conversations));
        rows.push(measure::<SharedTree>(workers, &conversations));
        let sums = |row: &Value| -> Vec<u64> {
            let rows = row["look_ups"].as_array().into_iter().flatten();
            rows.filter_map(|row| row["sum"].as_u64()).collect()
        };
        assert_eq!(sums(&rows[rows.len() - 2]), sums(&rows[rows.len() - 1]), "both are exact");
    }
    if arguments.iter().any(|argument| argument == "--json") {
        println!("{}", json!({ "rows": rows }));
    } else {
        print_table(&rows);
    }
}
