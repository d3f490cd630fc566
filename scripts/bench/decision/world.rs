//! A fleet with caches, an index of them, and requests in flight.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_core::admission::OnAllBusy;
use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root};
use warmpath_core::count::real_len;
use warmpath_core::ids::{BlockHash, EngineHash, Rank, RequestKey, Slot, WorkerId};
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::PrefixIndex;
use warmpath_core::policy::{Policy, PolicyName, Weights};
use warmpath_core::scheduler::{Placement, Scheduler, Scratch};
use warmpath_core::shape::{Prompt, Request, Shape};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::{BlockSize, Blocks, Tier, Tokens};
use warmpath_core::workers::{Limits, Pool, Role, Target, WorkerTable};
use warmpath_indexer::concurrent::{Chains, ConcurrentIndex};
use warmpath_indexer::event::{Attention, Content, Stored};
use warmpath_indexer::index::Writer;
use warmpath_indexer::view::ViewSettings;

use crate::bodies::MODEL;
use crate::draws::{Draws, splitmix64};

/// Tokens in a block.
pub(super) const BLOCK: u32 = 16;
/// Different prompts of each length.
pub(super) const PROMPTS: usize = 8;
/// Blocks of the system prompt that all share and every worker holds.
const SYSTEM: usize = 32;
/// Blocks of an event.
const EVENT: usize = 512;
/// Blocks of a prompt that nobody asks for again.
const OTHER: usize = 256;
/// Workers that hold most of a prompt, and workers that hold half of it.
const HOLDERS: u16 = 3;
const HALF_HOLDERS: u16 = 5;

/// A fleet.
pub(super) struct World {
    pub(super) index: Arc<ConcurrentIndex>,
    pub(super) scheduler: Scheduler,
    pub(super) root: Root,
    /// For each length, prompts of which the index knows all but the last tenth.
    pub(super) prompts: Vec<Vec<Vec<u32>>>,
    table: WorkerTable,
    size: BlockSize,
    _in_flight: Vec<Placement>,
}

impl World {
    /// A fleet of `workers` that hold about `entries` blocks together, prompts of these lengths among them.
    pub(super) fn new(workers: u16, entries: usize, lengths: &[usize]) -> Self {
        let size = BlockSize::new(BLOCK).expect("a block has tokens");
        let pool = Namespace::plain(MODEL, size);
        let root = Root::new(&pool, DEFAULT_ROOT_SEED);
        let policy = |name| Policy::new(name, &Weights::default());
        let scheduler =
            Scheduler::new(policy(PolicyName::Kv), policy(PolicyName::LeastRequests), OnAllBusy::LeastLoaded)
                .with_in_flight_credit(Duration::from_secs(3_600));
        let index = Arc::new(ConcurrentIndex::new(2 * entries));
        let prompts = prompts(lengths);
        let mut caches = Caches::new(&index, &pool, root, workers);
        caches.fill(&prompts, entries);
        let table = table(workers, size);
        let mut world = Self { index, scheduler, root, prompts, table, size, _in_flight: Vec::new() };
        let mut scratch = Scratch::new(1);
        let mut draws = Draws::started_at(9);
        for _ in 0..2 * workers {
            let own: Vec<u32> = system().chain((0..512).map(|_| draws.token())).collect();
            let placement = world.place(&[Prompt::of(root, &own)], &mut scratch);
            world._in_flight.push(placement);
        }
        world
    }

    /// How many blocks the index has, over all workers.
    pub(super) fn entries(&self) -> f64 {
        real_len(self.index.len())
    }

    /// How many workers there are.
    pub(super) fn workers(&self) -> usize {
        self.table.slots()
    }

    /// What the scheduler is told of a prompt.
    pub(super) fn shape(&self, prompts: &[Prompt<'_>]) -> Shape {
        let tokens = prompts.iter().map(|prompt| prompt.len().0).fold(0, u32::saturating_add);
        Shape::of(Tokens(tokens), self.size)
    }

    /// Places a request as a gateway does.
    pub(super) fn place(&self, prompts: &[Prompt<'_>], scratch: &mut Scratch) -> Placement {
        self.place_under(&self.scheduler, (1, prompts), &*self.index, scratch)
    }

    /// Places a request of this name under another scheduler, where this index says who holds what.
    pub(super) fn place_under(
        &self,
        scheduler: &Scheduler,
        (key, prompts): (u64, &[Prompt<'_>]),
        index: &dyn PrefixIndex,
        scratch: &mut Scratch,
    ) -> Placement {
        let avoid = SlotSet::new();
        let shape = self.shape(prompts);
        let request = Request { key: RequestKey(key), shape, prompts, texts: &[], avoid: &avoid };
        let pool = self.table.pool(MODEL).expect("the pool is there");
        let placed = scheduler.place(Instant::now(), &request, index, (&self.table, pool), scratch);
        placed.expect("every worker has room")
    }
}

fn system() -> impl Iterator<Item = u32> {
    let mut draws = Draws::started_at(7);
    (0..SYSTEM * 16).map(move |_| draws.token())
}

fn prompts(lengths: &[usize]) -> Vec<Vec<Vec<u32>>> {
    let mut draws = Draws::started_at(8);
    let mut prompt = |length: usize| system().chain((0..).map(|_| draws.token())).take(length).collect();
    lengths.iter().map(|&length| (0..PROMPTS).map(|_| prompt(length)).collect()).collect()
}

fn table(workers: u16, size: BlockSize) -> WorkerTable {
    let targets = (0..workers).map(|slot| Target {
        slot: Slot(slot),
        worker: WorkerId::from(format!("w{slot}").as_str()),
        rank: Rank(0),
        role: Role::Both,
        limits: Limits { blocks: Some(Blocks(1_000_000)), sequences: 10_000 },
        available: true,
        ramp: None,
        account: Arc::default(),
        trust: Arc::default(),
    });
    let pool =
        Pool { model: MODEL.into(), aliases: Vec::new(), block_size: size, targets: (0..workers).map(Slot).collect() };
    WorkerTable::new(targets.collect(), vec![pool])
}

/// What the workers hold, while the index is told of it.
struct Caches<'a> {
    index: &'a ConcurrentIndex,
    root: Root,
    writers: Vec<Writer<Chains>>,
}

impl<'a> Caches<'a> {
    fn new(index: &'a Arc<ConcurrentIndex>, pool: &Namespace, root: Root, workers: u16) -> Self {
        let settings = ViewSettings { pool: pool.clone(), seed: DEFAULT_ROOT_SEED, blocks: 0 };
        let writers = (0..workers).map(|slot| index.writer(Slot(slot), &settings)).collect();
        Self { index, root, writers }
    }

    fn fill(&mut self, prompts: &[Vec<Vec<u32>>], entries: usize) {
        let system: Vec<BlockHash> = self.blocks(&system().collect::<Vec<_>>());
        let workers = u16::try_from(self.writers.len()).expect("counted by 16 bits");
        (0..workers).for_each(|worker| self.store(worker, 0, &[], &system));
        for (number, tokens) in (1_u64..).zip(prompts.iter().flatten()) {
            let blocks = self.blocks(tokens);
            let (_, own) = blocks.split_at(SYSTEM);
            let first = u16::try_from(splitmix64(number) % u64::from(workers)).expect("a remainder by 16 bits");
            for at in 0..(HOLDERS + HALF_HOLDERS).min(workers) {
                let known = if at < HOLDERS { own.len() * 9 / 10 } else { own.len() / 2 };
                self.store((first + at) % workers, number, &system, &own[..known]);
            }
        }
        let others = (1_000_u64..).zip((0..workers).cycle());
        for (number, worker) in others {
            let missing = entries.saturating_sub(self.index.len());
            if missing == 0 {
                return;
            }
            let mut draws = Draws::started_at(number);
            let own: Vec<BlockHash> = (0..OTHER.min(missing)).map(|_| BlockHash(draws.draw())).collect();
            self.store(worker, number, &system, &own);
        }
    }

    fn blocks(&self, tokens: &[u32]) -> Vec<BlockHash> {
        tokens.chunks_exact(16).map(|block| self.root.block_hash(block)).collect()
    }

    /// A worker stores the blocks of prompt `number` behind those that it has.
    fn store(&mut self, worker: u16, number: u64, behind: &[BlockHash], blocks: &[BlockHash]) {
        let name = |prompt: u64, at: usize| {
            let at = u64::try_from(at).expect("64 bits hold a place");
            EngineHash(splitmix64(splitmix64(prompt << 24 | at) ^ u64::from(worker)))
        };
        let mut parent = (!behind.is_empty()).then(|| name(0, behind.len() - 1));
        for (event, blocks) in blocks.chunks(EVENT).enumerate() {
            let start = event * EVENT;
            let stored = Stored {
                hashes: (start..start + blocks.len()).map(|at| name(number, at)).collect(),
                parent,
                content: Content::Hashes(blocks.to_vec()),
                block_size: Some(BLOCK),
                tier: Tier::Device,
                group: None,
                attention: Attention::Unstated,
                adapter: None,
                salt: None,
                media: Vec::new(),
                cut: 0,
            };
            self.writers[usize::from(worker)].apply(&[stored.into()]);
            parent = Some(name(number, start + blocks.len() - 1));
        }
    }
}
