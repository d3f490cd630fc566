//! A warm placement allocates nothing: neither the gate nor the policy and the reasons it tells, nor its shadows, its sessions or
//! its history, nor the index, nor the ledger. And what is kept of requests takes no more memory than it says.
#![expect(unsafe_code, reason = "a counting allocator can only be written so")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use serde_json::json;
use warmpath::error::GatewayError;
use warmpath::openai::{Endpoint, RequestView};
use warmpath::queue::{Asking, Gate, GateSettings, Placing, Seats};
use warmpath::shutdown::Tasks;
use warmpath::telemetry::metrics::Metrics;
use warmpath::tokenize::{TokenizeLimits, TokenizeShared, TokenizerHandle};
use warmpath_core::admission::OnAllBusy;
use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, hash_blocks};
use warmpath_core::cost::Weight;
use warmpath_core::ids::{EngineHash, Rank, RequestKey, SequenceHash, Slot, WorkerId};
use warmpath_core::ledger::{Account, InFlight, Reservation, Said, Share, Size};
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::{Overlaps, PrefixIndex, TierBlocks};
use warmpath_core::overlay::Overlay;
use warmpath_core::policy::{Policy, PolicyName, Weights};
use warmpath_core::queue::{Choice, Rules};
use warmpath_core::scheduler::{Placement, Scheduler, Scratch};
use warmpath_core::session::{SessionRule, Sessions};
use warmpath_core::shape::{AffinityKey, Class, Prompt, Request, Shape};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::trust::Answered;
use warmpath_core::units::{BlockSize, Blocks, Tier, Tokens};
use warmpath_core::workers::{Limits, Pool, Role, Target, WorkerTable};
use warmpath_indexer::approx::{ApproxLimits, ApproxLru, LruLimits, history_of};
use warmpath_indexer::concurrent::{Chains, ConcurrentIndex};
use warmpath_indexer::event::{Attention, CacheEvent, Content, Stored};
use warmpath_indexer::index::Writer;
use warmpath_indexer::view::ViewSettings;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// Bytes that this thread took and did not give back.
    static TAKEN: Cell<isize> = const { Cell::new(0) };
}

fn take(bytes: usize) {
    TAKEN.with(|taken| taken.set(taken.get().wrapping_add_unsigned(bytes)));
}

fn give_back(bytes: usize) {
    TAKEN.with(|taken| taken.set(taken.get().wrapping_sub_unsigned(bytes)));
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting touches no allocated memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        take(layout.size());
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn workers(count: u16, size: BlockSize) -> WorkerTable {
    let targets = (0..count).map(|slot| Target {
        slot: Slot(slot),
        worker: WorkerId::from(format!("w{slot}").as_str()),
        rank: Rank(0),
        role: Role::Both,
        limits: Limits { blocks: Some(Blocks(100_000)), sequences: 256 },
        available: true,
        ramp: None,
        account: Arc::default(),
        trust: Arc::default(),
    });
    let slots = (0..count).map(Slot).collect();
    let pool = Pool { model: "m".into(), aliases: Vec::new(), block_size: size, targets: slots };
    WorkerTable::new(targets.collect(), vec![pool])
}

fn pool() -> Namespace {
    Namespace::plain("m", BlockSize::new(16).expect("not 0"))
}

fn writer(index: &Arc<ConcurrentIndex>, slot: u16) -> Writer<Chains> {
    index.writer(Slot(slot), &ViewSettings { pool: pool(), seed: DEFAULT_ROOT_SEED, blocks: 0 })
}

/// The blocks of `tokens` are stored.
fn store(writer: &Writer<Chains>, tokens: &[u32], tier: Tier) {
    let names = (1..=u64::try_from(tokens.len() / 16).expect("64 bits")).map(EngineHash).collect();
    let event = Stored {
        hashes: names,
        parent: None,
        content: Content::Tokens(tokens.to_vec()),
        block_size: Some(16),
        tier,
        group: None,
        attention: Attention::Unstated,
        adapter: None,
        salt: None,
        media: Vec::new(),
        cut: 0,
    };
    writer.apply(&[CacheEvent::from(event)]);
}

/// A gate at which nobody waits.
fn gate() -> Arc<Gate> {
    let rules = Rules { waiting: 9, of_tenant: 9, weights: [NonZeroU32::MIN; 3] };
    let settings = GateSettings { queues: true, rules, timeout: Duration::from_secs(1) };
    Gate::new(settings, &Seats::new(9), Metrics::new("w").model(0, "m"), Tasks::new())
}

/// A placement on its way through a gate.
struct Trying<F>(F);

impl<F: FnMut() -> Placement> Placing for Trying<F> {
    type Placed = Placement;

    fn place(&mut self) -> Result<(Placement, Tokens), GatewayError> {
        Ok(((self.0)(), Tokens(1)))
    }

    fn choice(&self) -> Choice {
        Choice::ANY
    }

    fn next_growth(&self, _now: Instant) -> Option<Instant> {
        None
    }
}

/// Some are known by what they were sent, some have others' load.
fn season(workers: &WorkerTable, size: BlockSize) {
    for slot in [0, 7, 63] {
        let target = workers.get(Slot(slot)).expect("one of 64");
        let (sent, block_size) = (Instant::now(), size);
        let (prompt, promised, counted) = (Tokens(100), Tokens(0), Some(Tokens(101)));
        let answered = Answered { sent, sender: None, prompt, promised, counted, reported: None, block_size };
        (0..32).for_each(|_| target.trust.answered(sent, &answered));
        assert!(target.trust.falls_back());
        let said = Said { running: 9, waiting: 9, blocks: Some(Blocks(9)) };
        (0..2).for_each(|_| target.account.report(sent, said, InFlight::default()));
    }
}

#[test]
fn a_warm_placement_allocates_nothing() {
    let size = BlockSize::new(16).unwrap();
    let workers = workers(64, size);
    let root = Root::new(&pool(), DEFAULT_ROOT_SEED);
    let tokens: Vec<u32> = (0..4096).collect();
    let mut hashes = Vec::new();
    hash_blocks(&root, &tokens, &[], &mut hashes);
    season(&workers, size);
    let index = Arc::new(ConcurrentIndex::new(10_000));
    for slot in 0..64 {
        let held = usize::from(slot) + 1;
        store(&writer(&index, slot), &tokens[..held * 16], Tier::Device);
    }
    let weights = Weights::default();
    let shadows = [PolicyName::Blocks, PolicyName::Chwbl, PolicyName::Preble, PolicyName::Random];
    let rule = SessionRule {
        weight: Weight::try_from(0.1).expect("a weight"),
        ttl: Duration::from_secs(60),
        sessions_max: 1000,
    };
    for policy in PolicyName::ALL {
        let fallback = Policy::new(PolicyName::LeastRequests, &weights);
        let history = history_of(policy, &ApproxLimits::default());
        let policy_at_work = Policy::new(policy, &weights).with_history(history);
        let gate = gate();
        let scheduler = Scheduler::new(policy_at_work, fallback, OnAllBusy::Queue)
            .with_release(gate.clone())
            .with_in_flight_credit(Duration::from_secs(30))
            .with_shadows(shadows.map(|name| Policy::new(name, &weights)).into())
            .with_sessions(Sessions::new(rule))
            .with_sent(Arc::new(ApproxLru::new(LruLimits::default())));
        let mut scratch = Scratch::new(1).aloud();
        let prompts = [Prompt::of(root, &tokens)];
        let shape = Shape { affinity: Some(AffinityKey(7)), ..Shape::of(Tokens(4096), size) };
        let avoid = SlotSet::new();
        let request = Request { key: RequestKey(1), shape, prompts: &prompts, texts: &[], avoid: &avoid };
        let pool = workers.pool("m").unwrap();
        // A thousand a second: what is remembered for a time takes as much room as ever so many came in it.
        let mut now = Instant::now();
        let mut place = |scratch: &mut Scratch| {
            now += Duration::from_millis(1);
            let place = || scheduler.place(now, &request, &*index, (&workers, pool), scratch).unwrap();
            let deadline = Instant::now() + Duration::from_secs(9);
            let asking = Asking { arrived: Instant::now(), class: Class(0), tenant: None, deadline, returned: false };
            drop(gate.admit(&asking, &mut Trying(place)).now_or_never().expect("nobody waits").unwrap());
        };
        // Every worker's account has to be warm, and some policies choose at random.
        (0..2_000).for_each(|_| place(&mut scratch));
        let before = ALLOCATIONS.with(Cell::get);
        (0..100).for_each(|_| place(&mut scratch));
        assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0, "{policy}");
    }
}

/// Prompts that fork, in flight together on 300 workers, come and go without an allocation.
#[test]
fn a_warm_ledger_allocates_nothing_whatever_is_in_flight() {
    let overlay = Arc::new(Overlay::new(Duration::from_secs(30)));
    let now = Instant::now();
    let trunk: Vec<SequenceHash> = (0..3_000).map(SequenceHash).collect();
    let prompts: Vec<Vec<SequenceHash>> = (1..=300_u64)
        .map(|number| {
            let own = (0..10).map(|block| SequenceHash(number * 100_000 + block));
            trunk[..usize::try_from(number * 10).unwrap()].iter().copied().chain(own).collect()
        })
        .collect();
    let accounts: Vec<Arc<Account>> = (0..300).map(|_| Arc::default()).collect();
    let size = BlockSize::new(16).unwrap();
    let share = Share {
        sequences: 1,
        new_tokens: Tokens(9),
        prompts: NonZeroU32::MIN,
        full: Blocks(0),
        tail: Blocks(1),
        room: Tokens(7),
        block_size: size,
        size: Size::Known,
    };
    let mut held = vec![TierBlocks::default(); 300];
    let mut stays: VecDeque<Reservation> = VecDeque::with_capacity(64);
    let mut round = || {
        for ((prompt, account), slot) in prompts.iter().zip(&accounts).zip(0..) {
            if stays.len() == 64 {
                stays.pop_front();
            }
            overlay.raise(now, prompt, Blocks(5_000), &mut held);
            let stay = overlay.enter(now, Slot(slot), std::iter::once(prompt.as_slice()));
            let mut reservation = account.reserve(share, stay);
            if slot % 2 == 0 {
                reservation.first_token(now);
            }
            stays.push_back(reservation);
        }
    };
    (0..20).for_each(|_| round());
    let before = ALLOCATIONS.with(Cell::get);
    (0..5).for_each(|_| round());
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
}

/// Sets of more than 128 slots have memory of their own, and so have blocks in several tiers.
#[test]
fn a_warm_look_up_allocates_nothing_whatever_the_slots_and_tiers() {
    let index = Arc::new(ConcurrentIndex::new(1_000_000));
    let tokens: Vec<u32> = (0..32_000).collect();
    let mut blocks = Vec::new();
    hash_blocks(&Root::new(&pool(), DEFAULT_ROOT_SEED), &tokens, &[], &mut blocks);
    for slot in 0..700 {
        let held = (usize::from(slot) * 2 + 600) * 16;
        let writer = writer(&index, slot);
        store(&writer, &tokens[..held], Tier::Device);
        if slot % 100 == 7 {
            store(&writer, &tokens[..held.min(900 * 16)], Tier::Host);
        }
    }
    let mut overlaps = Overlaps::default();
    index.match_prefix(&blocks, &mut overlaps);
    assert_eq!(overlaps.best(), Some((Slot(699), Blocks(1_998))));
    let before = ALLOCATIONS.with(Cell::get);
    (0..100).for_each(|_| index.match_prefix(&blocks, &mut overlaps));
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
}

/// Tables of a few entries are larger than what is counted of each entry of a full one.
const TABLES: usize = 4096;

/// Chats that `message` makes, each another one, are asked for. Returns what is on the heap since, and what the caches say.
fn kept_of(message: impl Fn(usize) -> String) -> (usize, usize) {
    let far = usize::MAX / 4;
    let limits = TokenizeLimits {
        cache_bytes: 4 << 30,
        inline_body_max: far,
        inline_part_max: far,
        inline_time_max: Duration::from_secs(600),
        ..TokenizeLimits::default()
    };
    let shared = Arc::new(TokenizeShared::new(limits));
    let handle = TokenizerHandle::ready(warmpath::tokenize::bytes::model(), Arc::clone(&shared));
    let root = Root::new(&pool(), DEFAULT_ROOT_SEED);
    let ask = |number: usize| {
        let body = Bytes::from(format!(r#"{{"model":"m","messages":[{}]}}"#, message(number)));
        let mut view = RequestView::parse(Endpoint::Chat, &body, 4096).expect("a chat");
        let prompts = handle.prompts(&body, &mut view, &root).now_or_never().expect("it is done here");
        assert_eq!(prompts.count(), Some(1), "{prompts:?}");
    };
    // What is made once.
    ask(0);
    let (before, said) = (TAKEN.with(Cell::get), shared.cache_bytes());
    (1..=8).for_each(ask);
    (usize::try_from(TAKEN.with(Cell::get) - before).expect("something is kept"), shared.cache_bytes() - said)
}

#[test]
fn what_is_kept_of_messages_takes_no_more_than_it_says() {
    let calls = |arguments: String| {
        move |number: usize| {
            let name = format!("f{number}");
            let call = json!({"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}});
            json!({"role": "assistant", "content": null, "tool_calls": [call]}).to_string()
        }
    };
    let list = |piece: &str| calls(format!("{{\"a\":[{}]}}", vec![piece; 3000].join(",")));
    let parts = |number: usize| {
        let content = vec![json!({"type": "text", "text": "b".repeat(200)}); 500];
        json!({"role": "user", "name": format!("n{number}"), "content": content}).to_string()
    };
    let empty = |number: usize| {
        let calls = vec![json!({"function": {"name": "f"}}); 1000];
        json!({"role": "assistant", "name": format!("n{number}"), "tool_calls": calls, "reasoning": "r"}).to_string()
    };
    let text = |number: usize| json!({"role": "user", "content": format!("{number}, {{[").repeat(10_000)}).to_string();
    let keys = (0..3000).map(|key| format!("\"{key}\":1")).collect::<Vec<_>>().join(",");
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(50), "]".repeat(50));
    let shapes: [(&str, &dyn Fn(usize) -> String); 9] = [
        ("empty maps", &list("{}")),
        ("small maps", &list("{\"a\":1}")),
        ("small lists", &list("[1]")),
        ("numbers", &list("1")),
        ("texts", &list("\"a text that finds no room in a value\"")),
        ("one large map", &calls(format!("{{{keys}}}"))),
        ("many calls", &empty),
        ("parts", &parts),
        ("a text", &text),
    ];
    for (name, message) in shapes {
        let (taken, said) = kept_of(message);
        println!("{name}: {taken} bytes are taken, {said} are said");
        assert!(taken <= said + TABLES, "{name}: {taken} bytes are taken, {said} are said");
        assert!(said <= taken * 3, "{name}: {taken} bytes are taken, {said} are said");
    }
    let (taken, said) = kept_of(calls(deep));
    assert!(taken <= said + TABLES, "{taken} bytes are taken, {said} are said");
}
