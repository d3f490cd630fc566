//! Measures what engines without events cost: `cargo run --release -p warmpath-indexer --example approx_bench`.
//!
//! Prompts of 8 192 tokens; each worker has been sent 500 of them that share a system prompt of 1 024 tokens, and goes on
//! being sent prompts of three kinds: wholly new behind the system prompt, a conversation continued by 512 tokens, and one
//! that is repeated.

use std::hint::black_box;
use std::time::{Duration, Instant};

use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, hash_blocks};
use warmpath_core::history::{Asked, History, Known};
use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::namespace::Namespace;
use warmpath_core::shape::Prompt;
use warmpath_core::units::BlockSize;
use warmpath_indexer::approx::{ApproxLru, ApproxTree, LruLimits, TreeLimits};

const TOKENS: usize = 8_192;
const SYSTEM: usize = 1_024;
const MORE: usize = 512;
const KNOWN_PROMPTS: u32 = 500;
const ROUNDS: u32 = 400;

#[expect(clippy::disallowed_methods, reason = "measuring is the only thing that this program is for")]
fn now() -> Instant {
    Instant::now()
}

/// A prompt of its own behind the system prompt that all share.
fn tokens(number: u32, len: usize) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..).take(SYSTEM).collect();
    let mut state = number;
    tokens.resize_with(len, || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 15
    });
    tokens
}

struct Bench {
    root: Root,
    now: Instant,
    hashes: Vec<SequenceHash>,
}

impl Bench {
    /// Time of `ask` alone, the prompt's blocks already hashed.
    fn timed(&mut self, tokens: &[u32], ask: impl FnOnce(Instant, Asked<'_>)) -> Duration {
        self.hashes.clear();
        hash_blocks(&self.root, tokens, &[], &mut self.hashes);
        let prompts = [Prompt::of(self.root, tokens)];
        let start = now();
        ask(self.now, Asked::new(&prompts, &self.hashes));
        start.elapsed()
    }

    fn measure(&mut self, name: &str, workers: u16, history: &dyn History) {
        for slot in (0..workers).map(Slot) {
            for number in 0..KNOWN_PROMPTS / u32::from(workers).min(8) {
                self.timed(&tokens(number * u32::from(workers) + u32::from(slot.0), TOKENS), |at, asked| {
                    history.learn(at, slot, asked);
                });
            }
        }
        let mut known = vec![Known::default(); usize::from(workers)];
        let [mut new, mut longer, mut again, mut recall] = [const { Vec::new() }; 4];
        for number in 0..ROUNDS {
            let slot = Slot(u16::try_from(number).unwrap_or(0) % workers);
            let whole = tokens(1_000_000 + number, TOKENS + MORE);
            new.push(self.timed(&whole[..TOKENS], |at, asked| history.learn(at, slot, asked)));
            longer.push(self.timed(&whole, |at, asked| history.learn(at, slot, asked)));
            again.push(self.timed(&whole, |at, asked| history.learn(at, slot, asked)));
            recall.push(self.timed(&whole, |_, asked| history.recall(asked, black_box(&mut known))));
        }
        for (what, mut times) in [("new", new), ("continued", longer), ("again", again), ("recall", recall)] {
            times.sort_unstable();
            let at = |share: usize| times[times.len() * share / 100].as_secs_f64() * 1e6;
            println!("{name:<12} {workers:>3} workers  {what:<10} p50 {:>8.2} us  p99 {:>8.2} us", at(50), at(99));
        }
    }
}

fn main() {
    let size = BlockSize::new(16).expect("16 is not 0");
    let root = Root::new(&Namespace::plain("m", size), DEFAULT_ROOT_SEED);
    let mut bench = Bench { root, now: now(), hashes: Vec::new() };
    for workers in [1, 8, 64] {
        bench.measure("approx_tree", workers, &ApproxTree::new(TreeLimits::default()));
        bench.measure("approx_lru", workers, &ApproxLru::new(LruLimits::default()));
    }
}
