//! A day of churn, compressed: engines whose caches together are larger than the index may be. Its memory must stay where
//! it is. In a release build 50 million blocks are stored and removed, in a debug build one million.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::VecDeque;
use std::sync::Arc;

use warmpath_core::blocks::DEFAULT_ROOT_SEED;
use warmpath_core::ids::{BlockHash, EngineHash, Slot};
use warmpath_core::namespace::Namespace;
use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::concurrent::{Chains, ConcurrentIndex};
use warmpath_indexer::event::{Attention, CacheEvent, Content, Removed, Stored};
use warmpath_indexer::index::Writer;
use warmpath_indexer::view::ViewSettings;

const WORKERS: u16 = 16;
const BOUND: usize = 400_000;
/// Blocks of an engine's cache: a quarter more than its share of the bound.
const CACHE: usize = BOUND / 16 * 5 / 4;
const BLOCK_EVENTS: usize = if cfg!(debug_assertions) { 1_000_000 } else { 50_000_000 };

/// An engine that stores conversations and evicts the oldest of them, the last block first.
struct Engine {
    writer: Writer<Chains>,
    conversations: VecDeque<Vec<EngineHash>>,
    held: usize,
}

/// Numbers that are the same everywhere (SplitMix64).
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn stored(names: &[EngineHash], parent: Option<EngineHash>) -> CacheEvent {
    CacheEvent::from(Stored {
        hashes: names.to_vec(),
        parent,
        content: Content::Hashes(names.iter().map(|name| BlockHash(name.0 >> 1)).collect()),
        block_size: None,
        tier: Tier::Device,
        group: None,
        attention: Attention::Unstated,
        adapter: None,
        salt: None,
        media: Vec::new(),
        cut: 0,
    })
}

fn removed(name: EngineHash) -> CacheEvent {
    let hashes = std::iter::once(name).collect();
    CacheEvent::Removed(Removed { hashes, tier: Tier::Device, group: None, remaining_copy_counts: None })
}

impl Engine {
    /// One conversation more, a large part at once and the rest block by block, as prefill and decode do; and room for it.
    /// Returns the blocks that were stored and removed.
    fn step(&mut self, state: &mut u64) -> usize {
        let len = 64 + usize::try_from(draw(state) % 448).unwrap();
        let names: Vec<EngineHash> = (0..len).map(|_| EngineHash(draw(state))).collect();
        let mut blocks = len;
        while self.held + len > CACHE {
            let gone = self.conversations.pop_front().unwrap();
            self.held -= gone.len();
            blocks += gone.len();
            let events: Vec<CacheEvent> = gone.into_iter().rev().map(removed).collect();
            for events in events.chunks(32) {
                self.writer.apply(events);
            }
        }
        let (prefill, decode) = names.split_at(len - len / 8);
        self.writer.apply(&[stored(prefill, None)]);
        let mut last = prefill.last().copied();
        for name in decode {
            self.writer.apply(&[stored(&[*name], last)]);
            last = Some(*name);
        }
        self.held += len;
        self.conversations.push_back(names);
        blocks
    }
}

/// Pages that this process has in memory.
fn resident_pages() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn r27_memory_stays_where_it_is_through_a_day_of_churn() {
    let index = Arc::new(ConcurrentIndex::new(BOUND));
    let pool = Namespace::plain("m", BlockSize::new(16).unwrap());
    let settings = ViewSettings { pool, seed: DEFAULT_ROOT_SEED, blocks: 0 };
    let engine = |slot| Engine { writer: index.writer(Slot(slot), &settings), conversations: VecDeque::new(), held: 0 };
    let mut engines: Vec<Engine> = (0..WORKERS).map(engine).collect();
    let (mut done, mut resident, mut counted) = (0, Vec::new(), Vec::new());
    let state = &mut 7;
    while done < BLOCK_EVENTS {
        let next = usize::try_from(draw(state) % u64::from(WORKERS)).unwrap();
        let before = done;
        done += engines[next].step(state);
        assert!(index.len() <= BOUND, "{} entries", index.len());
        // Twenty times, once everything is full: it is after a quarter of the steps at the latest.
        let measured = |done: usize| done * 40 / BLOCK_EVENTS;
        if measured(done) > measured(before) && measured(done) > 20 {
            resident.push(resident_pages());
            counted.push(index.bytes() / index.len());
        }
    }
    let (least, most) = (*resident.iter().min().unwrap(), *resident.iter().max().unwrap());
    println!("{least} to {most} pages resident; {counted:?} bytes an entry; {} let go", index.shed());
    assert!(resident.len() >= 19 && most - least <= (most + least) / 20, "{resident:?} pages");
    assert!(index.shed() > 100_000 && counted.iter().all(|&bytes| bytes <= 32), "{counted:?} bytes an entry");
    for engine in &engines {
        engine.writer.forget();
    }
    assert!(index.is_empty() && index.bytes() < 600_000, "{} bytes are left", index.bytes());
}
