//! A small world of engines, told twice: as events to the index under test, and as plain prefixes.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, hash_blocks};
use warmpath_core::ids::{EngineHash, Slot};
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::Overlaps;
use warmpath_core::overlap::PrefixIndex;
use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::event::{Attention, CacheEvent, Content, Removed, Stored};
use warmpath_indexer::index::{Index, Writer};
use warmpath_indexer::store::BlockStore;
use warmpath_indexer::view::{Applied, ViewSettings};

/// Slots of the engines: in one word and in several, and more than fit without an allocation.
const SLOTS: [Slot; 6] = [Slot(0), Slot(1), Slot(63), Slot(64), Slot(127), Slot(300)];
/// The longest prefix, in blocks.
const DEPTH: usize = 8;
/// Different blocks that may follow one.
const CONTENTS: u8 = 3;

/// Something that happens. `pick` chooses among what is there at the time.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A chain is stored: at the root if `below` is none.
    Store { worker: usize, tier: Tier, alias: bool, below: Option<usize>, blocks: Vec<u8> },
    /// A chain is stored below something that nobody has stored.
    Orphan { worker: usize, pick: usize, blocks: Vec<u8> },
    /// Copies are removed, perhaps in a tier where there are none.
    Remove { worker: usize, tier: Tier, picks: Vec<usize> },
    /// A removal of a block that nobody has stored.
    RemoveUnknown { worker: usize, pick: usize },
    /// The device tier is emptied.
    Clear { worker: usize },
    /// The worker is gone, and comes back empty.
    Forget { worker: usize },
    /// Somebody asks for a prompt: one that is held, cut to `keep` blocks and continued.
    Query { worker: usize, pick: usize, keep: usize, more: Vec<u8> },
}

/// An engine's name of a block: its whole prefix, and which of the two names that it may give.
type Name = (Vec<u8>, bool);

struct Engine<S> {
    writer: Writer<S>,
    /// The truth: copies by tier.
    held: BTreeMap<Name, [u32; 4]>,
}

/// What an index must do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Say what is true.
    Exact,
    /// Where it has no room: stay within its bound, and credit nobody with what he does not hold.
    NeverTooMuch,
}

pub(crate) struct World<S> {
    claim: Claim,
    index: Arc<Index<S>>,
    engines: Vec<Engine<S>>,
    root: Root,
    pub(crate) queries: usize,
    pub(crate) matched_blocks: usize,
}

impl<S: BlockStore> World<S> {
    pub(crate) fn new(index: Index<S>, claim: Claim) -> Self {
        let index = Arc::new(index);
        let pool = Namespace::plain("m", BlockSize::new(2).expect("not 0"));
        let root = Root::new(&pool, DEFAULT_ROOT_SEED);
        let settings = ViewSettings { pool, seed: DEFAULT_ROOT_SEED, blocks: 0 };
        let engine = |&slot: &Slot| Engine { writer: index.writer(slot, &settings), held: BTreeMap::new() };
        let engines = SLOTS.iter().map(engine).collect();
        Self { claim, index, engines, root, queries: 0, matched_blocks: 0 }
    }

    pub(crate) fn index(&self) -> &Index<S> {
        &self.index
    }

    pub(crate) fn take(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Store { worker, tier, alias, below, blocks } => self.store(*worker, *tier, *alias, *below, blocks),
            Step::Orphan { worker, pick, blocks } => {
                let parent = EngineHash(u64::try_from(*pick).expect("64 bits") | 1 << 63);
                let prefixes = prefixes(&[], blocks);
                let event = stored(*worker, &prefixes, false, Some(parent), Tier::Device);
                let applied = self.tell(*worker, event);
                let expected = Applied { orphans: prefixes.len(), ..Applied::default() };
                if applied == expected { Ok(()) } else { Err("an orphan was attached".into()) }
            }
            Step::Remove { worker, tier, picks } => self.remove(*worker, *tier, picks),
            Step::RemoveUnknown { worker, pick } => {
                let hash = EngineHash(u64::try_from(*pick).expect("64 bits") | 1 << 63);
                let applied = self.tell(*worker, removed(&[hash], Tier::Device));
                let expected = Applied { unknown: 1, ..Applied::default() };
                if applied == expected { Ok(()) } else { Err("an unknown block was removed".into()) }
            }
            Step::Clear { worker } => {
                for copies in self.engines[*worker].held.values_mut() {
                    copies[0] = 0;
                }
                self.engines[*worker].held.retain(|_, copies| *copies != [0; 4]);
                self.tell(*worker, CacheEvent::Cleared);
                self.check_size(*worker)
            }
            Step::Forget { worker } => {
                self.engines[*worker].held.clear();
                self.engines[*worker].writer.forget();
                self.check_size(*worker)
            }
            Step::Query { worker, pick, keep, more } => {
                let mut prompt = self.pick(*worker, *pick).map_or(Vec::new(), |(prefix, _)| prefix);
                prompt.truncate(*keep);
                prompt.extend(more);
                self.check(&prompt)
            }
        }
    }

    /// Every prefix that anybody holds, asked for with one block more.
    pub(crate) fn check_everything(&mut self) -> Result<(), String> {
        let held: Vec<Name> = self.engines.iter().flat_map(|engine| engine.held.keys().cloned()).collect();
        for (mut prompt, _) in held {
            prompt.push(0);
            self.check(&prompt)?;
        }
        (0..SLOTS.len()).try_for_each(|worker| self.check_size(worker))
    }

    fn pick(&self, worker: usize, pick: usize) -> Option<Name> {
        let held = &self.engines[worker].held;
        held.keys().nth(pick.checked_rem(held.len())?).cloned()
    }

    fn tell(&mut self, worker: usize, event: CacheEvent) -> Applied {
        self.engines[worker].writer.apply(&[event])
    }

    fn store(
        &mut self,
        worker: usize,
        tier: Tier,
        alias: bool,
        below: Option<usize>,
        blocks: &[u8],
    ) -> Result<(), String> {
        let parent = below.and_then(|pick| self.pick(worker, pick));
        let above = parent.as_ref().map_or(&[][..], |(prefix, _)| prefix);
        let chain = prefixes(above, blocks);
        if chain.is_empty() {
            return Ok(());
        }
        // Blocks at the root that are held already are reported again, unless there is only one.
        let mut reporting = parent.is_none() && chain.len() >= 2;
        for prefix in &chain {
            let copies = self.engines[worker].held.entry((prefix.clone(), alias)).or_default();
            let copies = &mut copies[tier.index()];
            reporting &= *copies > 0;
            if !reporting {
                *copies += 1;
            }
        }
        let parent = parent.map(|(prefix, alias)| name(worker, &prefix, alias));
        self.tell(worker, stored(worker, &chain, alias, parent, tier));
        self.check_size(worker)
    }

    fn remove(&mut self, worker: usize, tier: Tier, picks: &[usize]) -> Result<(), String> {
        let names: Vec<Name> = picks.iter().filter_map(|&pick| self.pick(worker, pick)).collect();
        for block in &names {
            let Some(copies) = self.engines[worker].held.get_mut(block) else { continue };
            copies[tier.index()] = copies[tier.index()].saturating_sub(1);
            if *copies == [0; 4] {
                self.engines[worker].held.remove(block);
            }
        }
        let hashes: Vec<EngineHash> = names.iter().map(|(prefix, alias)| name(worker, prefix, *alias)).collect();
        self.tell(worker, removed(&hashes, tier));
        self.check_size(worker)
    }

    /// The leading blocks of `prompt` that a worker truly holds, by fastest tier.
    fn truth(&self, worker: usize, prompt: &[u8]) -> [u32; 4] {
        let held = &self.engines[worker].held;
        let mut run = [0; 4];
        for end in 1..=prompt.len() {
            let tiers = |alias| held.get(&(prompt[..end].to_vec(), alias)).copied().unwrap_or_default();
            let (plain, other) = (tiers(false), tiers(true));
            match (0..4).find(|&tier| plain[tier] + other[tier] > 0) {
                Some(tier) => run[tier] += 1,
                None => break,
            }
        }
        run
    }

    fn check(&mut self, prompt: &[u8]) -> Result<(), String> {
        let mut hashes = Vec::new();
        hash_blocks(&self.root, &tokens(prompt), &[], &mut hashes);
        let mut overlaps = Overlaps::default();
        self.index.match_prefix(&hashes, &mut overlaps);
        let mut longest = 0;
        for (worker, &slot) in SLOTS.iter().enumerate() {
            let held = overlaps.of(slot);
            let (said, truth) = (Tier::ALL.map(|tier| held.get(tier).0), self.truth(worker, prompt));
            let wrong = match self.claim {
                Claim::Exact => said != truth,
                Claim::NeverTooMuch => said.iter().sum::<u32>() > truth.iter().sum(),
            };
            if wrong {
                return Err(format!("worker {worker} holds {truth:?} of {prompt:?}, the index says {said:?}"));
            }
            longest = longest.max(truth.iter().sum());
            self.matched_blocks += usize::try_from(truth.iter().sum::<u32>()).expect("small");
        }
        if overlaps.longest().0 > longest || self.claim == Claim::Exact && overlaps.longest().0 != longest {
            return Err(format!("somebody else is named: {:?} of {prompt:?}", overlaps.best()));
        }
        self.queries += 1;
        Ok(())
    }

    fn check_size(&self, worker: usize) -> Result<(), String> {
        if self.claim == Claim::NeverTooMuch {
            let (len, bound) = (self.index.len(), self.index.capacity());
            return if len <= bound { Ok(()) } else { Err(format!("{len} entries where {bound} are allowed")) };
        }
        let held = &self.engines[worker].held;
        let blocks =
            held.keys().filter(|(prefix, alias)| !alias || !held.contains_key(&(prefix.clone(), false))).count();
        let said = (self.engines[worker].writer.names(), self.index.entries(SLOTS[worker]));
        if said == (held.len(), blocks) {
            return Ok(());
        }
        Err(format!("worker {worker} has {} names of {blocks} blocks, the index says {said:?}", held.len()))
    }
}

/// The prefixes that end with each of `blocks` below `above`, none longer than [`DEPTH`].
fn prefixes(above: &[u8], blocks: &[u8]) -> Vec<Vec<u8>> {
    let chain = [above, blocks].concat();
    (above.len() + 1..=chain.len().min(DEPTH)).map(|end| chain[..end].to_vec()).collect()
}

/// A worker's own name of a block: equal content has different names on different workers.
fn name(worker: usize, prefix: &[u8], alias: bool) -> EngineHash {
    let digits = prefix.iter().fold(1_u64, |name, &block| name * u64::from(CONTENTS) + u64::from(block));
    let worker = u64::try_from(worker).expect("64 bits");
    EngineHash((digits * 2 + u64::from(alias)) * 8 + worker)
}

fn tokens(blocks: &[u8]) -> Vec<u32> {
    blocks.iter().flat_map(|&block| [u32::from(block), 7]).collect()
}

fn stored(worker: usize, chain: &[Vec<u8>], alias: bool, parent: Option<EngineHash>, tier: Tier) -> CacheEvent {
    let last: Vec<u8> = chain.iter().filter_map(|prefix| prefix.last().copied()).collect();
    CacheEvent::from(Stored {
        hashes: chain.iter().map(|prefix| name(worker, prefix, alias)).collect(),
        parent,
        content: Content::Tokens(tokens(&last)),
        block_size: Some(2),
        tier,
        group: Some(0),
        attention: Attention::Prefix,
        adapter: None,
        salt: None,
        media: Vec::new(),
        cut: 0,
    })
}

fn removed(hashes: &[EngineHash], tier: Tier) -> CacheEvent {
    let hashes = hashes.iter().copied().collect();
    CacheEvent::Removed(Removed { hashes, tier, group: Some(0), remaining_copy_counts: None })
}

/// A source of numbers that is the same for a seed everywhere (SplitMix64).
pub(crate) fn seeded(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 1).expect("63 bits") % below
    }
}

pub(crate) fn draw_step(random: &mut impl FnMut(usize) -> usize) -> Step {
    let worker = random(SLOTS.len());
    let pick = random(1 << 20);
    let tier = Tier::ALL[if random(2) == 0 { 0 } else { random(4) }];
    let mut blocks = |from: usize, to: usize| -> Vec<u8> {
        let count = from + random(to - from);
        (0..count).map(|_| u8::try_from(random(usize::from(CONTENTS))).expect("small")).collect()
    };
    let (chain, more) = (blocks(1, 6), blocks(0, 4));
    match random(1000) {
        0..350 => {
            let below = (random(3) > 0).then_some(pick);
            Step::Store { worker, tier, alias: random(8) == 0, below, blocks: chain }
        }
        350..380 => Step::Orphan { worker, pick, blocks: chain },
        380..720 => Step::Remove { worker, tier, picks: (0..1 + random(4)).map(|_| random(1 << 20)).collect() },
        720..740 => Step::RemoveUnknown { worker, pick },
        740..743 => Step::Clear { worker },
        743..746 => Step::Forget { worker },
        _ => Step::Query { worker, pick, keep: random(DEPTH + 1), more },
    }
}

/// The same steps for proptest, which shrinks the seed's list, not the steps.
pub(crate) fn any_step() -> impl Strategy<Value = Step> {
    any::<u64>().prop_map(|seed| draw_step(&mut seeded(seed))).no_shrink()
}
