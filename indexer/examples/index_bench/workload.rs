//! The requests that fill an index: whose they are, and of which blocks they are made.

use std::sync::Arc;

use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, step};
use warmpath_core::ids::{BlockHash, SequenceHash, Slot};
use warmpath_core::namespace::Namespace;
use warmpath_core::units::BlockSize;

use crate::draws::{Counter, index, splitmix64, wide};
use crate::trace::Trace;

/// Tokens in a block.
pub(crate) const BLOCK_TOKENS: u32 = 16;
/// Blocks that one id of 512 tokens stands for.
const ID_BLOCKS: u32 = 32;
/// Requests in a hundred that go to a random worker.
const RANDOM_PERCENT: u64 = 20;
/// The tree's parts: a system prompt for all, groups of which a worker serves an eighth, private tails.
const SYSTEM: u32 = 8;
const GROUP: u32 = 120;
const GROUPS: u64 = 64;
const TAILS: [u32; 4] = [384, 1920, 448, 128];

/// The namespace in which everything is measured.
pub(crate) fn namespace() -> Namespace {
    Namespace::plain("bench", BlockSize::new(BLOCK_TOKENS).expect("not 0"))
}

/// The root of [`namespace`].
pub(crate) fn root() -> Root {
    Root::new(&namespace(), DEFAULT_ROOT_SEED)
}

/// Blocks that always come together. A piece is named by its first number, and that name stands for all before it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Block `j` has the local hash splitmix64(first + j).
    pub(crate) first: u64,
    /// How many blocks it has.
    pub(crate) blocks: u32,
}

impl Piece {
    /// The local hashes of its blocks.
    pub(crate) fn locals(self) -> impl Iterator<Item = BlockHash> {
        (0..u64::from(self.blocks)).map(move |block| BlockHash(splitmix64(self.first.wrapping_add(block))))
    }
}

/// A block by itself and together with all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its own content.
    pub(crate) local: BlockHash,
    /// Its content and that of all blocks before it.
    pub(crate) sequence: SequenceHash,
}

/// Continues the chain below `above` by `locals`.
pub(crate) fn chain(above: SequenceHash, locals: impl Iterator<Item = BlockHash>) -> impl Iterator<Item = Block> {
    locals.scan(above, |sequence, local| {
        *sequence = step(*sequence, local);
        Some(Block { local, sequence: *sequence })
    })
}

/// All blocks of `pieces`, from the root on.
pub(crate) fn blocks_of(pieces: &[Piece]) -> impl Iterator<Item = Block> + '_ {
    chain(root().sequence, pieces.iter().flat_map(|piece| piece.locals()))
}

/// How many blocks they are.
pub(crate) fn length(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| index(piece.blocks)).sum()
}

/// A prompt on its way to a worker.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Where it goes.
    pub(crate) slot: Slot,
    /// What it is made of.
    pub(crate) pieces: Arc<[Piece]>,
}

/// Which requests are fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// T: the Mooncake conversation trace.
    Trace,
    /// R: a synthetic tree of long shared chains.
    Tree,
}

impl Workload {
    /// Its letter on the command line and in reports.
    pub(crate) fn letter(self) -> &'static str {
        match self {
            Self::Trace => "T",
            Self::Tree => "R",
        }
    }

    /// The workload of that letter.
    pub(crate) fn of_letter(letter: &str) -> Option<Self> {
        [Self::Trace, Self::Tree].into_iter().find(|workload| workload.letter().eq_ignore_ascii_case(letter))
    }

    /// Requests without end.
    pub(crate) fn requests<'a>(self, trace: &'a Trace, workers: u16) -> Box<dyn Iterator<Item = Request> + 'a> {
        match self {
            Self::Trace => Box::new(conversations(trace, workers)),
            Self::Tree => Box::new(tree(workers)),
        }
    }
}

/// The trace, again and again, every id but 0 raised by 2^32 with each pass. In 80 of 100 cases the second id names the
/// worker, so that a conversation stays where it began.
fn conversations(trace: &Trace, workers: u16) -> impl Iterator<Item = Request> + '_ {
    let mut draws = Counter::started_at(42);
    let passes = (0_u64..).flat_map(|pass| trace.requests().iter().map(move |ids| (pass, ids)));
    passes.map(move |(pass, ids)| {
        let raised = |id: u64| if id == 0 { 0 } else { id.wrapping_add(pass << 32) };
        let workers = u64::from(workers);
        let drawn = if draws.draw() % 100 < RANDOM_PERCENT {
            draws.draw() % workers
        } else {
            splitmix64(raised(ids.get(1).copied().unwrap_or(0)) ^ 0xABCD) % workers
        };
        let piece = |&id: &u64| Piece { first: raised(id).wrapping_mul(u64::from(ID_BLOCKS)), blocks: ID_BLOCKS };
        Request { slot: slot(drawn), pieces: ids.iter().map(piece).collect() }
    })
}

/// Workers in turn; each request is the system prompt, one of the worker's groups and a tail of its own.
fn tree(workers: u16) -> impl Iterator<Item = Request> {
    (0_u64..).map(move |number| {
        let worker = number % u64::from(workers);
        let turn = number / u64::from(workers);
        let group = (worker + turn % (GROUPS / 8) * 8) % GROUPS;
        let tails = (0..wide(TAILS.len())).zip(TAILS);
        let tail = tails.filter(|(at, _)| *at == turn % wide(TAILS.len())).map(|(_, tail)| tail).sum();
        let piece = |name: u64, blocks: u32| Piece { first: name << 20, blocks };
        let pieces = [piece(1, SYSTEM), piece(100 + group, GROUP), piece(1_000_000 + number, tail)];
        Request { slot: slot(worker), pieces: pieces.into() }
    })
}

fn slot(number: u64) -> Slot {
    Slot(u16::try_from(number).expect("below the number of workers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Trace {
        Trace::of(vec![vec![0, 1, 2], vec![0, 3], vec![0, 1, 4]])
    }

    #[test]
    fn an_id_becomes_32_blocks_with_the_hashes_of_its_numbers() {
        let requests: Vec<Request> = Workload::Trace.requests(&small(), 8).take(1).collect();
        assert_eq!(requests[0].pieces[2], Piece { first: 64, blocks: 32 });
        let locals: Vec<BlockHash> = requests[0].pieces[2].locals().collect();
        assert_eq!((locals[0], locals[31], locals.len()), (BlockHash(splitmix64(64)), BlockHash(splitmix64(95)), 32));
    }

    #[test]
    fn a_second_pass_raises_every_id_but_0() {
        let requests: Vec<Request> = Workload::Trace.requests(&small(), 8).take(6).collect();
        let firsts: Vec<u64> = requests[5].pieces.iter().map(|piece| piece.first).collect();
        assert_eq!(firsts, [0, (1 << 37) + 32, (1 << 37) + 128]);
    }

    #[test]
    fn the_tree_gives_each_worker_its_groups_in_turn() {
        let requests: Vec<Request> = Workload::Tree.requests(&small(), 8).take(17).collect();
        let names = |at: usize| requests[at].pieces.iter().map(|piece| (piece.first >> 20, piece.blocks));
        assert!(names(0).eq([(1, 8), (100, 120), (1_000_000, 384)]));
        assert!(names(8).eq([(1, 8), (108, 120), (1_000_008, 1920)]));
        assert!(names(16).eq([(1, 8), (116, 120), (1_000_016, 448)]));
        assert_eq!(requests[9].slot, Slot(1));
    }
}
