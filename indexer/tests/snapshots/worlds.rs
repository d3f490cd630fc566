//! Views of engines that do everything engines may do, restored beside others.

use std::sync::Arc;

use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, step};
use warmpath_core::ids::{BlockHash, EngineHash, SequenceHash, Slot};
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::event::{Attention, CacheEvent, Content, Removed, Stored};
use warmpath_indexer::feed::{Began, Position};
use warmpath_indexer::index::{Index, Restored, Writer};
use warmpath_indexer::snapshot::Mark;
use warmpath_indexer::store::BlockStore;
use warmpath_indexer::tree::PlainIndex;

use crate::paths::{removed, settings, stored};

pub(crate) const MARK: Mark = Mark {
    owner: 77,
    position: Position { epoch: Some(3), next: 1_000, newest: Some(12.5) },
    began: Began::InTheMiddle,
    taken_ms: 1_700_000_000_000,
};

const SLOTS: [Slot; 3] = [Slot(0), Slot(1), Slot(130)];
/// Blocks of the longest path: chains of the index are shorter.
const DEPTH: usize = 1400;

struct Draws(u64);

impl Draws {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 1).unwrap() % below
    }

    fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }

    /// Contents of a path in a tree that has two branches at every 61st block.
    fn path(&mut self, len: usize) -> Vec<u64> {
        let mut branches = 0;
        let mut follow = |place: usize| {
            if place.is_multiple_of(61) {
                branches = branches * 2 + u64::try_from(self.below(2)).unwrap();
            }
            u64::try_from(place).unwrap() << 32 | branches
        };
        (0..len).map(&mut follow).collect()
    }

    fn salt(&mut self) -> Option<Arc<str>> {
        self.one_in(8).then(|| "t".into())
    }

    /// What one engine does next.
    fn event(&mut self) -> Vec<CacheEvent> {
        let salt = self.salt();
        let longest = [6, 70, DEPTH][self.below(3)];
        let len = 1 + self.below(longest);
        let path = self.path(len);
        let hashes = hashes(&path, salt.as_ref());
        let alias = self.one_in(6);
        let names: Vec<EngineHash> = hashes.iter().map(|hash| name(*hash, alias)).collect();
        let from = [0, self.below(len)][self.below(2)];
        let tier = Tier::ALL[self.below(4) * self.below(2)];
        let group = [None, None, Some(0), Some(3), Some(5)][self.below(5)];
        let removed = |hashes: &[EngineHash], remaining_copy_counts| {
            CacheEvent::Removed(Removed {
                hashes: hashes.iter().copied().collect(),
                tier,
                group,
                remaining_copy_counts,
            })
        };
        let stored = |attention| Stored {
            hashes: names[from..].to_vec(),
            parent: from.checked_sub(1).map(|parent| names[parent]),
            content: Content::Hashes(path[from..].iter().copied().map(BlockHash).collect()),
            block_size: None,
            tier,
            group,
            attention,
            adapter: None,
            salt: salt.clone(),
            media: Vec::new(),
            cut: 0,
        };
        match self.below(20) {
            0..9 => vec![stored(Attention::Unstated).into()],
            9 => vec![stored([Attention::Prefix, Attention::Other][self.below(2)]).into()],
            10 => vec![Stored { content: Content::Nothing, ..stored(Attention::Unstated) }.into()],
            // A few blocks stored one by one, as while decoding.
            11 => {
                let one = |at: usize| Stored {
                    hashes: vec![names[at]],
                    parent: at.checked_sub(1).map(|parent| names[parent]),
                    content: Content::Hashes(vec![BlockHash(path[at])]),
                    ..stored(Attention::Unstated)
                };
                (from..len.min(from + 20)).map(|at| one(at).into()).collect()
            }
            12..15 => vec![removed(&names[from..], None)],
            15 => vec![removed(&names[from..from + 1], None)],
            16 => {
                let counts = (from..len).map(|_| u32::try_from(self.below(3)).unwrap()).collect();
                vec![removed(&names[from..], Some(counts))]
            }
            17 => names[from..].iter().rev().map(|name| removed(std::slice::from_ref(name), None)).collect(),
            18 if self.one_in(8) => vec![CacheEvent::Cleared],
            _ => vec![stored(Attention::Unstated).into()],
        }
    }
}

fn root(salt: Option<&Arc<str>>) -> Root {
    let pool = Namespace { salt: salt.cloned(), ..Namespace::plain("m", BlockSize::new(16).unwrap()) };
    Root::new(&pool, DEFAULT_ROOT_SEED)
}

fn hashes(path: &[u64], salt: Option<&Arc<str>>) -> Vec<SequenceHash> {
    let follow = |above: &mut SequenceHash, &content: &u64| {
        *above = step(*above, BlockHash(content));
        Some(*above)
    };
    path.iter().scan(root(salt).sequence, follow).collect()
}

/// One block has the name 0.
fn name(hash: SequenceHash, alias: bool) -> EngineHash {
    let zero = alias && hash == hashes(&[0], None)[0];
    EngineHash(if zero { 0 } else { hash.0.rotate_left(11) ^ u64::from(alias) })
}

fn totals(index: &impl PrefixIndex, prompt: &[SequenceHash]) -> Vec<[u32; 4]> {
    let mut overlaps = Overlaps::default();
    index.match_prefix(prompt, &mut overlaps);
    SLOTS.map(|slot| Tier::ALL.map(|tier| overlaps.of(slot).get(tier).0)).to_vec()
}

/// A writer's view as chunks, and how many names were left out.
pub(crate) fn chunks_of<S: BlockStore>(writer: &Writer<S>, chunk_bytes: usize) -> (Vec<Vec<u8>>, usize) {
    let mut snapshot = writer.snapshot(MARK, chunk_bytes);
    let chunks: Vec<Vec<u8>> = snapshot.by_ref().collect();
    let left_out = snapshot.left_out().expect("the last chunk was taken");
    assert_eq!(snapshot.names(), writer.names());
    (chunks, left_out)
}

pub(crate) fn restored<S: BlockStore>(writer: &Writer<S>, chunks: &[Vec<u8>]) -> Restored {
    let mut restore = writer.restore(MARK.owner);
    for chunk in chunks {
        restore.chunk(chunk).unwrap();
    }
    restore.finish().unwrap()
}

type Writers<S> = [Writer<S>; 3];

fn assert_equal<S: BlockStore>(seed: u64, one: &Index<S>, other: &Index<S>, draws: &mut Draws) {
    for _ in 0..40 {
        let (salt, len) = (draws.salt(), 1 + draws.below(DEPTH));
        let prompt = hashes(&draws.path(len), salt.as_ref());
        assert_eq!(totals(one, &prompt), totals(other, &prompt), "seed {seed}");
    }
}

/// Worlds that were restored whole, and those where something was left out.
#[derive(Default)]
struct Seen {
    whole: usize,
    parted: usize,
    names: usize,
}

/// One world lives in two indexes, the first worker in one of them only until its view is carried over. Then both are
/// told the same.
fn carry_over<S: BlockStore>(make: impl Fn() -> Index<S>, seed: u64, seen: &mut Seen) {
    let mut draws = Draws(seed);
    let (one, other) = (Arc::new(make()), Arc::new(make()));
    let writers = |index: &Arc<Index<S>>| -> Writers<S> { SLOTS.map(|slot| index.writer(slot, &settings())) };
    let (of_one, of_other) = (writers(&one), writers(&other));
    let steps = 1 + draws.below(60);
    for _ in 0..steps {
        let (worker, events) = (draws.below(3), draws.event());
        let applied = of_one[worker].apply(&events);
        if worker > 0 {
            assert_eq!(of_other[worker].apply(&events), applied);
        }
    }
    // What is there before a restoring does not stay.
    of_other[0].apply(&draws.event());
    let (chunks, left_out) = chunks_of(&of_one[0], [0, 100_000][draws.below(2)]);
    let told = restored(&of_other[0], &chunks);
    assert_eq!((told.position, told.taken_ms), (MARK.position, MARK.taken_ms));
    assert_eq!(told.names + left_out, of_one[0].names(), "seed {seed}");
    assert_eq!((told.left_out, told.over_limit), (u64::try_from(left_out).unwrap(), 0));
    assert_eq!(of_other[0].names(), told.names);
    seen.names += told.names;
    assert_equal(seed, &one, &other, &mut draws);
    if left_out > 0 {
        seen.parted += 1;
        return;
    }
    seen.whole += 1;
    assert_eq!(of_one[0].entries(), of_other[0].entries());
    for _ in 0..30 {
        let (worker, events) = (draws.below(3), draws.event());
        assert_eq!(of_one[worker].apply(&events), of_other[worker].apply(&events), "seed {seed}");
        assert_eq!(
            (of_one[worker].names(), of_one[worker].entries()),
            (of_other[worker].names(), of_other[worker].entries())
        );
    }
    assert_equal(seed, &one, &other, &mut draws);
    of_other.iter().for_each(Writer::forget);
    assert!(other.is_empty());
}

#[test]
fn a_restored_view_answers_questions_and_events_as_the_original() {
    let mut seen = Seen::default();
    (0..400).for_each(|seed| carry_over(|| ConcurrentIndex::new(1 << 20), seed, &mut seen));
    assert!(
        seen.whole > 200 && seen.parted > 0 && seen.names > 50_000,
        "{} {} {}",
        seen.whole,
        seen.parted,
        seen.names
    );
}

#[test]
fn so_it_does_in_the_plain_index() {
    let mut seen = Seen::default();
    (0..400).for_each(|seed| carry_over(|| PlainIndex::new(1 << 20), seed, &mut seen));
    assert!(seen.whole > 50 && seen.parted > 5 && seen.names > 50_000, "{} {} {}", seen.whole, seen.parted, seen.names);
}

/// What one index writes, the other reads.
#[test]
fn the_form_does_not_depend_on_the_index() {
    let path: Vec<u64> = (0..2000).collect();
    let (plain, chains) = (Arc::new(PlainIndex::new(1 << 20)), Arc::new(ConcurrentIndex::new(1 << 20)));
    let (from, to) = (plain.writer(SLOTS[0], &settings()), chains.writer(SLOTS[0], &settings()));
    from.apply(&[stored(&path, 0, Tier::Device), stored(&path[..900], 0, Tier::Host)]);
    restored(&to, &chunks_of(&from, 0).0);
    let prompt = hashes(&path, None);
    assert_eq!(totals(&*chains, &prompt)[0], [2000, 0, 0, 0]);
    let again = Arc::new(PlainIndex::new(1 << 20));
    let writer = again.writer(SLOTS[0], &settings());
    restored(&writer, &chunks_of(&to, 0).0);
    writer.apply(&[CacheEvent::Cleared]);
    assert_eq!((totals(&*again, &prompt)[0], writer.names()), ([0, 900, 0, 0], 900));
}

/// Holes of every size at the beginning, inside and across chains: what lies behind them is carried, is not found before
/// the hole is closed, and is found then.
#[test]
fn what_lies_behind_a_hole_is_there_when_it_is_closed() {
    let path: Vec<u64> = (0..1400).collect();
    for hole in [0..1, 0..300, 5..6, 100..400, 500..512, 500..600, 511..513, 512..513, 1399..1400] {
        let (one, other) = (Arc::new(ConcurrentIndex::new(1 << 20)), Arc::new(ConcurrentIndex::new(1 << 20)));
        let (from, to) = (one.writer(SLOTS[0], &settings()), other.writer(SLOTS[0], &settings()));
        // Another worker keeps the blocks of the hole where they are.
        one.writer(SLOTS[1], &settings()).apply(&[stored(&path, 0, Tier::Device)]);
        from.apply(&[stored(&path, 0, Tier::Device)]);
        from.apply(&removed(&path[..hole.end], hole.start, Tier::Device));
        let (chunks, left_out) = chunks_of(&from, 0);
        assert_eq!((left_out, restored(&to, &chunks).names), (0, 1400 - hole.len()), "{hole:?}");
        let prompt = hashes(&path, None);
        let found = |index: &ConcurrentIndex| usize::try_from(totals(index, &prompt)[0][0]).unwrap();
        assert_eq!((found(&one), found(&other)), (hole.start, hole.start));
        assert_eq!((to.entries(), other.len()), (1400 - hole.len(), 1400 - hole.len()));
        to.apply(&[stored(&path[..hole.end], hole.start, Tier::Device)]);
        assert_eq!(found(&other), 1400, "{hole:?}");
    }
}

#[test]
fn what_nobody_can_place_is_left_out_and_counted() {
    let path: Vec<u64> = (0..1400).collect();
    let (one, other) = (Arc::new(ConcurrentIndex::new(1 << 20)), Arc::new(ConcurrentIndex::new(1 << 20)));
    let (from, to) = (one.writer(SLOTS[0], &settings()), other.writer(SLOTS[0], &settings()));
    from.apply(&[stored(&path, 0, Tier::Device)]);
    from.apply(&removed(&path[..700], 300, Tier::Device));
    let (chunks, left_out) = chunks_of(&from, 0);
    // The second chain begins at 512 and lost its beginning: nobody knows what was there.
    assert_eq!(left_out, 700);
    assert_eq!((restored(&to, &chunks).names, to.entries()), (300, 300));
    assert!(to.is_partial(), "the engine holds more");
    assert_eq!(to.apply(&[stored(&path[..701], 700, Tier::Device)]).orphans, 1);
}

#[test]
fn a_view_changes_while_its_snapshot_is_written_and_the_snapshot_does_not() {
    let path: Vec<u64> = (0..20_000).collect();
    let (one, other) = (Arc::new(ConcurrentIndex::new(1 << 20)), Arc::new(ConcurrentIndex::new(1 << 20)));
    let (from, to) = (one.writer(SLOTS[0], &settings()), other.writer(SLOTS[0], &settings()));
    from.apply(&[stored(&path, 0, Tier::Device)]);
    let mut snapshot = from.snapshot(MARK, 0);
    let first = snapshot.next().unwrap();
    from.forget();
    let others: Vec<u64> = (50_000..90_000).collect();
    from.apply(&[stored(&others, 0, Tier::Device)]);
    let chunks: Vec<Vec<u8>> = std::iter::once(first).chain(snapshot).collect();
    assert!(chunks.len() > 5 && chunks.iter().all(|chunk| chunk.len() <= 32 << 10), "{} chunks", chunks.len());
    assert_eq!(restored(&to, &chunks).names, 20_000);
    assert_eq!(totals(&*other, &hashes(&path, None))[0], [20_000, 0, 0, 0]);
}

#[test]
fn a_full_index_takes_what_it_has_room_for() {
    let path: Vec<u64> = (0..5000).collect();
    let (one, other) = (Arc::new(ConcurrentIndex::new(1 << 20)), Arc::new(ConcurrentIndex::new(3000)));
    let (from, to) = (one.writer(SLOTS[0], &settings()), other.writer(SLOTS[0], &settings()));
    from.apply(&[stored(&path, 0, Tier::Device)]);
    let told = restored(&to, &chunks_of(&from, 0).0);
    assert!(to.is_partial(), "the engine holds more");
    let found = totals(&*other, &hashes(&path, None))[0][0];
    assert_eq!(told.names + told.over_limit, 5000);
    assert_eq!((other.len(), other.refused(), other.shed(), found), (3000, 2000, 0, 3000));
    // Beside others it takes its share, and they let go of what is above theirs.
    let beside = other.writer(SLOTS[1], &settings());
    to.forget();
    let more: Vec<u64> = (10_000..13_000).collect();
    beside.apply(&[stored(&more[..1000], 0, Tier::Device)]);
    beside.apply(&[stored(&more, 1000, Tier::Device)]);
    let told = restored(&to, &chunks_of(&from, 0).0);
    assert!((1500..=2048).contains(&told.names), "{} of {}", told.names, other.len());
    assert_eq!(told.names + beside.names(), 3000);
    assert_eq!(usize::try_from(totals(&*other, &hashes(&path, None))[0][0]).unwrap(), told.names);
}

#[test]
fn an_empty_view_is_one_chunk() {
    let index = Arc::new(ConcurrentIndex::new(10));
    let writer = index.writer(SLOTS[0], &settings());
    let (chunks, left_out) = chunks_of(&writer, 0);
    assert_eq!((chunks.len(), left_out, restored(&writer, &chunks).names), (1, 0, 0));
    assert!(!writer.is_partial());
}
