//! What a placement and its end cost, by the prompt's length, the number of workers, and what is in flight with the same
//! system prompt. Prints a table; `--threads N` lets N threads place at once.
//!
//! With `--policies [WORKERS]` instead, for each policy: a placement where the index answers at once; one without overlaps, so
//! candidates, cost, pick and reservation alone; and cost and pick alone.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::as_conversions,
    reason = "a benchmark may panic, and needs a clock"
)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use warmpath_core::admission::OnAllBusy;
use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root};
use warmpath_core::ids::{Rank, RequestKey, SequenceHash, Slot, WorkerId};
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::policy::{Policy, PolicyName, Weights};
use warmpath_core::scheduler::{Placement, Scheduler, Scratch};
use warmpath_core::shape::{Opening, Prompt, Request, Shape};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::{BlockSize, Blocks, Tier, Tokens};
use warmpath_core::workers::{Limits, Pool, Role, Target, WorkerTable};

/// Blocks of the system prompt that all share.
const SYSTEM: u32 = 128;

struct Empty;

/// Quarters of the fleet hold more and more of every prompt.
struct Quarters(Vec<SlotSet>);

impl Quarters {
    fn new(workers: u16) -> Self {
        Self((0..4).map(|quarter| (workers * quarter / 4..workers).map(Slot).collect()).collect())
    }
}

impl PrefixIndex for Quarters {
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        let len = Blocks(u32::try_from(prompt.len() / 5).unwrap());
        overlaps.clear();
        self.0.iter().for_each(|holders| overlaps.push(len, Tier::Device, holders));
    }
}

impl PrefixIndex for Empty {
    fn match_prefix(&self, _: &[SequenceHash], overlaps: &mut Overlaps) {
        overlaps.clear();
    }
}

struct World {
    scheduler: Scheduler,
    workers: WorkerTable,
    root: Root,
    size: BlockSize,
}

impl World {
    fn new(workers: u16, name: PolicyName) -> Self {
        let size = BlockSize::new(16).unwrap();
        let weights = Weights::default();
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
        let pool = Pool {
            model: "m".into(),
            aliases: Vec::new(),
            block_size: size,
            targets: (0..workers).map(Slot).collect(),
        };
        let policy = |name| Policy::new(name, &weights);
        // Spread over all workers, as a fleet under load is.
        let scheduler = Scheduler::new(policy(name), policy(PolicyName::LeastRequests), OnAllBusy::LeastLoaded)
            .with_in_flight_credit(Duration::from_secs(3_600));
        Self {
            scheduler,
            workers: WorkerTable::new(targets.collect(), vec![pool]),
            root: Root::new(&Namespace::plain("m", size), DEFAULT_ROOT_SEED),
            size,
        }
    }

    fn place(&self, tokens: &[u32], scratch: &mut Scratch) -> Placement {
        let prompts = [Prompt::of(self.root, tokens)];
        let shape = Shape::of(Tokens(u32::try_from(tokens.len()).unwrap()), self.size);
        let avoid = SlotSet::new();
        // Every prompt ends with a token of its own.
        let key = RequestKey(tokens.last().copied().map_or(0, u64::from));
        let request = Request { key, shape, prompts: &prompts, texts: &[], avoid: &avoid };
        let pool = self.workers.pool("m").unwrap();
        self.scheduler.place(Instant::now(), &request, &Empty, (&self.workers, pool), scratch).unwrap()
    }
}

/// The system prompt and `blocks` minus that many blocks of its own.
fn prompt(number: u32, blocks: u32) -> Vec<u32> {
    let system = SYSTEM.min(blocks / 2) * 16;
    (0..system).chain((0..blocks * 16 - system).map(|token| token ^ (number << 20))).collect()
}

fn percentile(sorted: &[Duration], share: f64) -> f64 {
    let place = ((sorted.len() - 1) as f64 * share) as usize;
    sorted[place].as_secs_f64() * 1e6
}

fn run(blocks: u32, workers: u16, in_flight: u32, threads: u32) {
    let world = World::new(workers, PolicyName::LeastRequests);
    let mut scratch = Scratch::new(1);
    // What is in flight is short beyond the system prompt, so that 4 000 fit into any memory.
    let _held: Vec<_> = (0..in_flight).map(|at| world.place(&prompt(at + 1_000, 256), &mut scratch)).collect();
    let times = Mutex::new((Vec::new(), Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (world, times) = (&world, &times);
            scope.spawn(move || {
                let mut scratch = Scratch::new(u64::from(thread));
                let tokens: Vec<_> = (0..4).map(|at| prompt(thread * 8 + at, blocks)).collect();
                let (mut placing, mut ending) = (Vec::new(), Vec::new());
                for round in 0..2_000_usize {
                    let start = Instant::now();
                    let placement = world.place(&tokens[round % 4], &mut scratch);
                    let placed = Instant::now();
                    drop(placement);
                    if round >= 200 {
                        placing.push(placed - start);
                        ending.push(placed.elapsed());
                    }
                }
                let mut times = times.lock().unwrap();
                times.0.extend(placing);
                times.1.extend(ending);
            });
        }
    });
    let (mut placing, mut ending) = times.into_inner().unwrap();
    placing.sort_unstable();
    ending.sort_unstable();
    println!(
        "{blocks:>6} {workers:>7} {in_flight:>9} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
        percentile(&placing, 0.5),
        percentile(&placing, 0.99),
        percentile(&ending, 0.5),
        percentile(&ending, 0.99),
    );
}

/// What a decision costs under each policy: 512 blocks, four requests in flight on each worker.
fn policies(workers: u16) {
    println!(
        "policy               place p50       p99 no overlap p50       p99   cost+pick p50       p99   (microseconds, {workers} workers)"
    );
    for name in PolicyName::ALL {
        let world = World::new(workers, name);
        let (index, mut scratch) = (Quarters::new(workers), Scratch::new(1));
        let tokens: Vec<_> = (0..4 * u32::from(workers)).map(|at| prompt(at, 32)).collect();
        let _held: Vec<_> = tokens.iter().map(|tokens| world.place(tokens, &mut scratch)).collect();
        let mut hashes = Vec::new();
        Prompt::of(world.root, &prompt(9, 512)).hash_into(&mut hashes);
        let prompts = [Prompt::hashed(world.root, &hashes, Tokens(8_200))];
        let (shape, avoid) = (Shape::of(Tokens(8_200), world.size), SlotSet::new());
        let request = Request { key: RequestKey(1), shape, prompts: &prompts, texts: &[], avoid: &avoid };
        let pool = world.workers.pool("m").unwrap();
        let (mut placing, mut listing, mut deciding) = (Vec::new(), Vec::new(), Vec::new());
        let short = [Prompt::hashed(world.root, &[], Tokens(15))];
        let mut brief = Request { prompts: &short, ..request.clone() };
        brief.shape.prompt = Tokens(15);
        let (mut costs, mut rng) = (Vec::new(), StdRng::seed_from_u64(1));
        let policy = world.scheduler.policy();
        for round in 0..3_000 {
            let start = Instant::now();
            let placed = world.scheduler.place(start, &request, &index, (&world.workers, pool), &mut scratch);
            let taken = start.elapsed();
            drop(placed);
            let start = Instant::now();
            costs.clear();
            let _ = policy.cost.score(
                start,
                &Shape { opening: Some(Opening(hashes[0].0)), ..shape },
                scratch.candidates(),
                &mut costs,
            );
            std::hint::black_box(policy.choose(None, scratch.candidates(), &costs, &mut rng));
            let decided = start.elapsed();
            let start = Instant::now();
            let placed = world.scheduler.place(start, &brief, &Empty, (&world.workers, pool), &mut scratch);
            let listed = start.elapsed();
            drop(placed);
            if round >= 500 {
                placing.push(taken);
                listing.push(listed);
                deciding.push(decided);
            }
        }
        print!("{:<15}", name.as_str());
        for times in [&mut placing, &mut listing, &mut deciding] {
            times.sort_unstable();
            print!(" {:>15.1} {:>9.1}", percentile(times, 0.5), percentile(times, 0.99));
        }
        println!();
    }
}

fn main() {
    if let Some(at) = std::env::args().position(|argument| argument == "--policies") {
        policies(std::env::args().nth(at + 1).map_or(500, |workers| workers.parse().unwrap()));
        return;
    }
    let mut arguments = std::env::args().skip_while(|argument| argument != "--threads").skip(1);
    let threads = arguments.next().map_or(1, |threads| threads.parse().unwrap());
    println!("blocks workers in flight  place p50       p99   end p50       p99   (microseconds, {threads} threads)");
    for blocks in [512, 2_048, 6_250] {
        for workers in [8, 64, 512] {
            for in_flight in [0, 100, 4_000] {
                run(blocks, workers, in_flight, threads);
            }
        }
    }
}
