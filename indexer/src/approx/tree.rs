//! A radix tree for each worker: what `approx_tree` remembers.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use warmpath_core::history::{Asked, History, Known, Measured};
use warmpath_core::ids::Slot;
use warmpath_core::shape::Prompt;
use warmpath_core::units::Units;

use super::radix::RadixTree;

/// Bounds of each worker's tree. Defaults: SGLang's router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeLimits {
    /// Units that a sweep leaves. Between two sweeps a tree may grow by a quarter more, never further.
    pub units_max: NonZeroU32,
    /// Time between two sweeps.
    pub eviction_interval: Duration,
}

impl Default for TreeLimits {
    fn default() -> Self {
        Self { units_max: NonZeroU32::new(1 << 24).expect("2^24 is not 0"), eviction_interval: Duration::from_secs(60) }
    }
}

impl TreeLimits {
    /// A tree numbers its nodes in 32 bits, so no more than 2^29 units are kept whatever `units_max` says.
    fn swept(self) -> usize {
        usize::try_from(self.units_max.get().min(1 << 29)).unwrap_or(usize::MAX)
    }

    fn hard(self) -> usize {
        self.swept().saturating_add(self.swept() / 4)
    }
}

/// Each worker's prompts as a radix tree. A unit is a token or, where token ids are unknown, a character: four bytes of
/// memory either way, and exact, so that thresholds mean what they say for short prompts, too.
///
/// A worker's tree is written by the requests that go to it, each for the time of one insertion; looking waits for that
/// tree alone. Sweeps happen on the way, with the first request after they are due.
pub struct ApproxTree {
    limits: TreeLimits,
    /// Those that were sent something.
    workers: RwLock<BTreeMap<Slot, RwLock<Worker>>>,
}

#[derive(Default)]
struct Worker {
    tree: RadixTree,
    swept_at: Option<Instant>,
    measured: Measured,
}

impl Worker {
    fn learn(&mut self, now: Instant, asked: Asked<'_>, limits: TreeLimits) {
        for (prompt, _) in asked.each() {
            let units = units(prompt);
            self.tree.insert(prompt.root.sequence, &units[..units.len().min(limits.swept())]);
            self.measured.evicted += count(self.tree.evict(limits.hard()));
        }
        let swept_at = *self.swept_at.get_or_insert(now);
        if now.saturating_duration_since(swept_at) >= limits.eviction_interval {
            self.swept_at = Some(now);
            self.sweep(limits);
        }
    }

    fn sweep(&mut self, limits: TreeLimits) {
        let before = self.tree.units();
        let evicted = self.tree.evict(limits.swept());
        if evicted > 0 {
            self.measured.before_eviction = count(before);
            self.measured.after_eviction = count(before - evicted);
            self.measured.evicted += count(evicted);
        }
    }
}

impl ApproxTree {
    /// Empty trees for as many workers as will come.
    pub fn new(limits: TreeLimits) -> Self {
        Self { limits, workers: RwLock::default() }
    }

    fn with<T>(&self, slot: Slot, ask: impl FnOnce(&RwLock<Worker>) -> T) -> Option<T> {
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        workers.get(&slot).map(ask)
    }

    fn make_room(&self, slot: Slot) {
        let mut workers = self.workers.write().unwrap_or_else(PoisonError::into_inner);
        workers.entry(slot).or_default();
    }
}

impl History for ApproxTree {
    /// O(workers that were sent something + units matched, summed over these); allocates nothing.
    fn recall(&self, asked: Asked<'_>, known: &mut [Known]) {
        let all = asked.each().fold(0, |sum: usize, (prompt, _)| sum.saturating_add(units(prompt).len()));
        known.fill(Known { asked: to_units(all), ..Known::default() });
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        for (slot, worker) in &*workers {
            let Some(known) = known.get_mut(slot.index()) else { continue };
            let worker = worker.read().unwrap_or_else(PoisonError::into_inner);
            if worker.tree.units() == 0 {
                continue;
            }
            let matched = asked.each().map(|(prompt, _)| worker.tree.matched(prompt.root.sequence, units(prompt)));
            known.matched = to_units(matched.fold(0, usize::saturating_add));
            known.size = to_units(worker.tree.units());
        }
    }

    /// O(units), and O(nodes evicted) where there is something to evict.
    fn learn(&self, now: Instant, slot: Slot, asked: Asked<'_>) {
        let learn = |worker: &RwLock<Worker>| {
            worker.write().unwrap_or_else(PoisonError::into_inner).learn(now, asked, self.limits);
        };
        if self.with(slot, learn).is_none() {
            self.make_room(slot);
            self.with(slot, learn);
        }
    }

    fn forget(&self, slot: Slot) {
        let forgotten = self.with(slot, |worker| {
            let mut worker = worker.write().unwrap_or_else(PoisonError::into_inner);
            worker.measured = Measured::default();
            std::mem::take(&mut worker.tree)
        });
        // Not under the lock: a large tree takes a while to be freed.
        drop(forgotten);
    }

    fn measure(&self, slot: Slot) -> Measured {
        let measure = |worker: &RwLock<Worker>| {
            let worker = worker.read().unwrap_or_else(PoisonError::into_inner);
            Measured { units: count(worker.tree.units()), ..worker.measured }
        };
        self.with(slot, measure).unwrap_or_default()
    }
}

/// The units of a prompt up to its first medium: what stands for a medium tells nothing of which it is. None of a prompt
/// whose ids are not told.
fn units<'a>(prompt: &Prompt<'a>) -> &'a [u32] {
    let media = prompt.media.iter().filter_map(|medium| usize::try_from(medium.start.0).ok());
    let ids = prompt.ids();
    &ids[..media.min().unwrap_or(usize::MAX).min(ids.len())]
}

fn to_units(count: usize) -> Units {
    Units(u32::try_from(count).unwrap_or(u32::MAX))
}

fn count(units: usize) -> u64 {
    u64::try_from(units).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an origin: only differences matter")]
mod tests {
    use super::*;
    use warmpath_core::blocks::{DEFAULT_ROOT_SEED, MediaSpan, Root, media_hash};
    use warmpath_core::namespace::Namespace;
    use warmpath_core::units::{BlockSize, Tokens};

    fn root() -> Root {
        Root::new(&Namespace::plain("m", BlockSize::new(16).unwrap()), DEFAULT_ROOT_SEED)
    }

    fn limits(units_max: u32) -> TreeLimits {
        TreeLimits { units_max: NonZeroU32::new(units_max).unwrap(), ..TreeLimits::default() }
    }

    fn learn(history: &ApproxTree, now: Instant, slot: u16, tokens: &[u32]) {
        let prompts = [Prompt::of(root(), tokens)];
        history.learn(now, Slot(slot), Asked::new(&prompts, &[]));
    }

    fn recall(history: &ApproxTree, prompts: &[Prompt<'_>]) -> [(u32, u32, u32); 2] {
        let mut known = [Known { matched: Units(99), ..Known::default() }; 2];
        history.recall(Asked::new(prompts, &[]), &mut known);
        known.map(|known| (known.matched.0, known.asked.0, known.size.0))
    }

    fn ask(history: &ApproxTree, tokens: &[u32]) -> [(u32, u32, u32); 2] {
        recall(history, &[Prompt::of(root(), tokens)])
    }

    #[test]
    fn each_worker_is_known_by_what_it_was_sent() {
        let (history, now) = (ApproxTree::new(TreeLimits::default()), Instant::now());
        assert_eq!(ask(&history, &[1, 2]), [(0, 2, 0); 2]);
        learn(&history, now, 1, &[1, 2, 3]);
        assert_eq!(ask(&history, &[1, 2, 9, 9]), [(0, 4, 0), (2, 4, 3)]);
        learn(&history, now, 0, &[1]);
        assert_eq!(ask(&history, &[1, 2]), [(1, 2, 1), (2, 2, 3)]);
        history.forget(Slot(1));
        history.forget(Slot(77));
        assert_eq!(ask(&history, &[1, 2]), [(1, 2, 1), (0, 2, 0)]);
    }

    #[test]
    fn only_those_that_were_sent_something_are_looked_at() {
        let (history, now) = (ApproxTree::new(TreeLimits::default()), Instant::now());
        learn(&history, now, 4_000, &[1, 2, 3]);
        learn(&history, now, 1, &[1]);
        history.forget(Slot(77));
        assert_eq!(ask(&history, &[1, 2]), [(0, 2, 0), (1, 2, 1)]);
        let mut known = vec![Known::default(); 4_001];
        history.recall(Asked::new(&[Prompt::of(root(), &[1, 2])], &[]), &mut known);
        assert_eq!((known[4_000].matched.0, known[3_999].matched.0), (2, 0));
        assert_eq!(history.workers.read().unwrap().len(), 2);
    }

    #[test]
    fn several_prompts_are_summed_and_a_medium_ends_what_can_match() {
        let (history, now) = (ApproxTree::new(TreeLimits::default()), Instant::now());
        let media = [MediaSpan { start: Tokens(2), len: Tokens(1), hash: media_hash("img-1") }];
        let prompt = |tokens, media| Prompt { media, ..Prompt::of(root(), tokens) };
        let both = [prompt(&[1, 2, 3, 4], &media), prompt(&[5, 6], &[])];
        history.learn(now, Slot(0), Asked::new(&both, &[]));
        assert_eq!(recall(&history, &both), [(4, 4, 4), (0, 4, 0)]);
        assert_eq!(ask(&history, &[1, 2, 3, 4])[0], (2, 4, 4));
    }

    /// after 2^24 + 1 units and one sweep at most 2^24 are left, and the least recently used leaf went first.
    #[test]
    fn r044_a_sweep_leaves_the_bound_and_takes_the_oldest_leaf() {
        let (history, now) = (ApproxTree::new(TreeLimits::default()), Instant::now());
        let mut prompt = vec![0_u32; 1 << 20];
        learn(&history, now, 0, &[77]);
        for first in 0..16 {
            prompt[0] = first;
            learn(&history, now, 0, &prompt);
        }
        let measured = history.measure(Slot(0));
        assert_eq!((measured.units, measured.before_eviction), ((1 << 24) + 1, 0));
        // One more use of what is there already, a moment before and at the time of the sweep.
        learn(&history, now + Duration::from_millis(59_999), 0, &prompt);
        assert_eq!(history.measure(Slot(0)).units, (1 << 24) + 1);
        learn(&history, now + Duration::from_secs(60), 0, &prompt);
        let swept = Measured { units: 1 << 24, before_eviction: (1 << 24) + 1, after_eviction: 1 << 24, evicted: 1 };
        assert_eq!(history.measure(Slot(0)), swept);
        assert_eq!(ask(&history, &[77])[0].0, 0);
        prompt[0] = 0;
        assert_eq!(ask(&history, &prompt)[0].0, 1 << 20);
    }

    #[test]
    fn between_sweeps_a_tree_grows_by_a_quarter_at_most() {
        let (history, now) = (ApproxTree::new(limits(100)), Instant::now());
        for first in 0..50 {
            learn(&history, now, 0, &[first; 10]);
            assert!(history.measure(Slot(0)).units <= 125);
        }
        assert_eq!(history.measure(Slot(0)).units, 120);
        assert_eq!([37, 38].map(|first| ask(&history, &[first; 10])[0].0), [0, 10]);
        // A prompt that is longer than the whole tree is kept as far as it goes.
        learn(&history, now + Duration::from_secs(60), 0, &(1000..2000).collect::<Vec<_>>());
        assert_eq!(ask(&history, &(1000..2000).collect::<Vec<_>>())[0], (100, 1000, 100));
    }
}
