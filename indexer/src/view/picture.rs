//! A view at one moment, and the order in which its blocks can be told.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use foldhash::fast::RandomState;
use warmpath_core::ids::{EngineHash, SequenceHash};

use super::copies::Copies;
use super::{EngineView, Keeper};
use crate::snapshot::{BRIDGES_MAX, Groups, Parent, Record};
use crate::store::{BlockStore, Origin, Place, Tiers};

/// Blocks that are copied for each name, unless more lie before those that the worker holds.
const BLOCKS_A_NAME: usize = 2;

/// A copy of what a view knows, of 16 bytes a name and 8 a block: all that takes the view's lock. Everything else is worked
/// out while its records are asked for.
pub(crate) struct Picture {
    pub(crate) groups: Groups,
    pool: SequenceHash,
    /// By place; what was told is marked so.
    entries: Vec<Entry>,
    copies: HashMap<EngineHash, Copies, RandomState>,
    /// By number.
    chains: Vec<Stretch>,
    blocks: Vec<SequenceHash>,
    /// The chains that follow a block.
    below: HashMap<SequenceHash, Vec<usize>, RandomState>,
    /// Chains whose turn comes, each with the block that it follows, which lies in a chain before.
    turns: VecDeque<(usize, Option<(usize, usize)>)>,
    /// The chain whose turn it is.
    turn: Option<Turn>,
    bridges: Vec<SequenceHash>,
    told: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    name: EngineHash,
    place: u32,
    tiers: Tiers,
    told: bool,
}

/// One chain.
struct Stretch {
    number: u32,
    origin: Origin,
    /// The offset of the first block.
    base: usize,
    /// Where its blocks are in `blocks`.
    blocks: Range<usize>,
    /// Where its names are in `entries`.
    entries: Range<usize>,
    /// The block that it follows: its chain, and its place in `blocks`. Known when its turn comes.
    above: Option<(usize, usize)>,
}

struct Turn {
    chain: usize,
    /// The entry that comes next.
    next: usize,
}

impl EngineView {
    /// What the view knows now. O(names).
    pub(crate) fn picture<S: BlockStore>(&self, keeper: &Keeper<'_, S>) -> Picture {
        let entries = self.names.iter().map(|(name, known)| Entry {
            name,
            place: known.place.packed(),
            tiers: known.tiers,
            told: false,
        });
        let mut entries_of_all = Vec::with_capacity(self.names.len());
        entries_of_all.extend(entries);
        let mut picture = Picture {
            groups: Groups { plain: self.group, told: self.groups.clone(), zero_is_a_name: self.zero_is_a_name },
            pool: self.pool(),
            entries: entries_of_all,
            copies: self.copies.clone(),
            chains: Vec::new(),
            blocks: Vec::new(),
            below: HashMap::default(),
            turns: VecDeque::new(),
            turn: None,
            bridges: Vec::new(),
            told: 0,
        };
        for (number, end) in self.names.ends() {
            let from = picture.blocks.len();
            let Some((origin, base)) = keeper.store.blocks_of(number, &mut picture.blocks) else { continue };
            // What others hold behind the last block here only matters where it leads to blocks behind a hole.
            if picture.blocks.len() > picture.entries.len() * BLOCKS_A_NAME {
                picture.blocks.truncate(from + end + 1 - base);
            }
            let blocks = from..picture.blocks.len();
            picture.chains.push(Stretch { number, origin, base, blocks, entries: 0..0, above: None });
        }
        picture
    }
}

impl Picture {
    /// The pool's root, without adapter and salt.
    pub(crate) fn pool(&self) -> SequenceHash {
        self.pool
    }

    /// How many names there are.
    pub(crate) fn names(&self) -> usize {
        self.entries.len()
    }

    /// How many have been told.
    pub(crate) fn told(&self) -> usize {
        self.told
    }

    /// Puts things in order, once before the first record. O(n log n).
    pub(crate) fn arrange(&mut self) {
        self.entries.sort_unstable_by_key(|entry| (entry.place, entry.name));
        let mut from = 0;
        for (at, chain) in self.chains.iter_mut().enumerate() {
            from += self.entries[from..].partition_point(|entry| Place::unpacked(entry.place).chain < chain.number);
            let names =
                self.entries[from..].partition_point(|entry| Place::unpacked(entry.place).chain == chain.number);
            chain.entries = from..from + names;
            match chain.origin {
                Origin::Root(_) => self.turns.push_back((at, None)),
                Origin::Block(block) => self.below.entry(block).or_default().push(at),
            }
        }
    }

    /// The next record, behind that of its parent; none when all were told that can be. O(1), but for bridges.
    ///
    /// A name cannot be told where nobody here knows what comes before its block: the worker holds nothing of the chain
    /// there, or it lies more than [`BRIDGES_MAX`] blocks behind the last that it holds.
    pub(crate) fn next(&mut self) -> Option<Record<'_>> {
        let (at, parent) = self.next_entry()?;
        self.told += 1;
        let entry = &mut self.entries[at];
        entry.told = true;
        let Entry { name, place, tiers, .. } = *entry;
        let turn = self.turn.as_ref().expect("an entry is of the chain whose turn it is");
        let chain = &self.chains[turn.chain];
        let hash = self.blocks[chain.blocks.start + Place::unpacked(place).offset - chain.base];
        let copies = self.copies.get(&name).map_or(&[][..], Copies::all);
        Some(Record { parent, bridges: &self.bridges, hash, name, tiers, copies })
    }

    /// The next entry that can be told, and its parent; what lies between is put into `bridges`.
    fn next_entry(&mut self) -> Option<(usize, Parent)> {
        loop {
            let Some(turn) = &mut self.turn else {
                self.begin_turn()?;
                continue;
            };
            if turn.next == self.chains[turn.chain].entries.end {
                self.turn = None;
                continue;
            }
            let (chain, at) = (turn.chain, turn.next);
            turn.next += 1;
            let place = Place::unpacked(self.entries[at].place);
            let block = self.chains[chain].blocks.start + place.offset - self.chains[chain].base;
            if let Some(parent) = self.parent(chain, block) {
                return Some((at, parent));
            }
        }
    }

    /// Takes up the next chain, and notes those that follow one of its blocks.
    fn begin_turn(&mut self) -> Option<()> {
        let (chain, above) = self.turns.pop_front()?;
        let stretch = &mut self.chains[chain];
        stretch.above = above;
        for block in stretch.blocks.clone() {
            for below in self.below.remove(&self.blocks[block]).into_iter().flatten() {
                self.turns.push_back((below, Some((chain, block))));
            }
        }
        self.turn = Some(Turn { chain, next: self.chains[chain].entries.start });
        Some(())
    }

    /// What a block follows; puts the blocks in between, which are not held, into `bridges`. None where the way up is too
    /// long, or ends at a name that could not be told.
    fn parent(&mut self, mut chain: usize, mut block: usize) -> Option<Parent> {
        self.bridges.clear();
        loop {
            let stretch = &self.chains[chain];
            if block > stretch.blocks.start {
                block -= 1;
            } else {
                match (stretch.above, stretch.origin) {
                    (Some(above), _) => (chain, block) = above,
                    (None, Origin::Root(root)) => {
                        self.bridges.reverse();
                        return Some(Parent::Root(root));
                    }
                    (None, Origin::Block(_)) => return None,
                }
            }
            if let Some(held) = self.name_of(chain, block) {
                self.bridges.reverse();
                return held.told.then_some(Parent::Block(held.name));
            }
            if self.bridges.len() == BRIDGES_MAX {
                return None;
            }
            self.bridges.push(self.blocks[block]);
        }
    }

    /// The last name of a block, where it has one.
    fn name_of(&self, chain: usize, block: usize) -> Option<Entry> {
        let stretch = &self.chains[chain];
        let offset = stretch.base + block - stretch.blocks.start;
        let entries = &self.entries[stretch.entries.clone()];
        let behind = entries.partition_point(|entry| Place::unpacked(entry.place).offset <= offset);
        let entry = entries[..behind].last()?;
        (Place::unpacked(entry.place).offset == offset).then_some(*entry)
    }
}
