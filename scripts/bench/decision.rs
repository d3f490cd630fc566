//! What a decision costs, step by step: token ids of a request, hashes of its blocks, the look-up, the score, and the whole;
//! and what each policy's choice does.

use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use warmpath::openai::Endpoint;
use warmpath::tokenize::Prompts;
use warmpath_core::blocks::hash_blocks;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::scheduler::Scratch;
use warmpath_core::shape::Prompt;

use crate::arguments::DecisionPlan;
use crate::bodies::chat_beginning;
use crate::corpus::Corpus;
use crate::draws::Draws;
use crate::figures::{Figure, Report};
use crate::times::Times;
use crate::tokens::Tokens;

mod policies;
mod world;

use world::{PROMPTS, World};

/// (Worker, block) pairs in the index.
const ENTRIES: usize = 1_000_000;
/// Prompts, in tokens.
const LENGTHS: [usize; 3] = [1_000, 10_000, 100_000];
const WORKERS: [u16; 3] = [8, 100, 500];
/// The fleet in front of which text is measured.
const TEXT_WORKERS: u16 = 100;
/// The fleet in front of which every policy is measured.
const POLICY_WORKERS: u16 = 500;
/// How often the reference is asked, which takes long.
const REFERENCE_TIMES: usize = 5;
/// Bytes of the text of a new turn.
const TURN_BYTES: usize = 700;

/// Measures all of it.
///
/// # Errors
/// When the tokenizer cannot be read, or the file of figures not be written.
pub(crate) fn run(plan: &DecisionPlan) -> anyhow::Result<bool> {
    let mut report = Report::new(json!({
        "bench": "decision", "quick": plan.quick, "index_entries": ENTRIES, "block_size": world::BLOCK,
        "clock": "each step is read by itself; a reading costs some 25 ns",
    }));
    let texts = Texts { corpus: Corpus::read(&plan.root, &mut |_| 0)?, tokens: Tokens::load(&plan.tokenizer)? };
    for &workers in &WORKERS {
        eprintln!("bench: filling an index for {workers} workers");
        let world = World::new(workers, ENTRIES, &LENGTHS);
        report.row(format!("index/{workers}_workers"), vec![Figure::once("entries", "pairs", world.entries())]);
        for (at, &length) in LENGTHS.iter().enumerate() {
            let times = if plan.quick { 200 } else { 3_000 };
            // The bound of the whole; users say that they would pay five times as much.
            let target = (workers == 100 && length == 100_000).then_some(1_000.0);
            steps(&mut report, &world, at, times, target);
        }
        if workers == POLICY_WORKERS {
            policies::measure(&mut report, &world, if plan.quick { 500 } else { 5_000 });
        }
        if workers == TEXT_WORKERS {
            texts.measure(&mut report, &world, plan.quick)?;
        }
    }
    report.finish(plan.json.as_deref())
}

/// Each step of a placement with token ids in hand, and the whole.
fn steps(report: &mut Report, world: &World, length: usize, times: usize, target: Option<f64>) {
    let mut scratch = Scratch::new(1);
    let (mut hashes, mut overlaps, mut costs) = (Vec::new(), Overlaps::default(), Vec::new());
    let mut rng = StdRng::seed_from_u64(1);
    let mut taken: [Times; 5] = Default::default();
    let warming = times / 10 + PROMPTS;
    for round in 0..times + warming {
        let tokens = &world.prompts[length][round % PROMPTS];
        let prompts = [Prompt::of(world.root, tokens)];
        let start = Instant::now();
        hashes.clear();
        hash_blocks(&world.root, tokens, &[], &mut hashes);
        let hashed = Instant::now();
        world.index.match_prefix(&hashes, &mut overlaps);
        let matched = Instant::now();
        let placement = world.place(&prompts, &mut scratch);
        let placed = Instant::now();
        drop(placement);
        let released = Instant::now();
        costs.clear();
        let policy = world.scheduler.policy();
        let scored = policy.cost.score(released, &world.shape(&prompts), scratch.candidates(), &mut costs);
        let chosen = scored.ok().and_then(|()| policy.choose(None, scratch.candidates(), &costs, &mut rng));
        let done = Instant::now();
        std::hint::black_box(chosen);
        if round == 0 && overlaps.longest().0 == 0 {
            report.fault(format!("nothing of a prompt of {} tokens is in the index", tokens.len()));
        }
        if round >= warming {
            let steps = [hashed - start, matched - hashed, done - released, placed - matched, released - placed];
            taken.iter_mut().zip(steps).for_each(|(times, step)| times.push(step));
        }
    }
    let [hash, look_up, score, place, release] = &mut taken;
    let figures = vec![
        Figure::once("hash_p50", "us", hash.percentile(50)),
        Figure::once("hash_p99", "us", hash.percentile(99)),
        Figure::once("match_p50", "us", look_up.percentile(50)),
        Figure::once("match_p99", "us", look_up.percentile(99)),
        Figure::once("score_p50", "us", score.percentile(50)),
        Figure::once("score_p99", "us", score.percentile(99)),
        Figure::once("place_p50", "us", place.percentile(50)),
        Figure::once("place_p99", "us", place.percentile(99)).target(target),
        Figure::once("release_p50", "us", release.percentile(50)),
    ];
    report.row(format!("place/{}_tokens/{}_workers", LENGTHS[length], world.workers()), figures);
}

/// Chats as clients write them.
struct Texts {
    corpus: Corpus,
    tokens: Tokens,
}

/// Times of one size of chat.
#[derive(Default)]
struct Taken {
    cold: Times,
    warm: Times,
    repeated: Times,
    reference: Times,
    /// From a text whose beginning was seen before to a worker.
    whole: Times,
    tokens: f64,
}

impl Texts {
    /// From text to the hashes of its blocks, and to a placement.
    fn measure(&self, report: &mut Report, world: &World, quick: bool) -> anyhow::Result<()> {
        let calibration = self.tokens.reference(Endpoint::Chat, &self.chat(32 << 10, &mut Draws::started_at(1), 1))?;
        let bytes_of = |tokens: usize| tokens * (32 << 10) / calibration.len();
        let sizes = [
            ("1000_tokens", bytes_of(1_000), None),
            ("10000_tokens", bytes_of(10_000), None),
            ("100000_tokens", bytes_of(100_000), None),
            ("chat_32_kib", 32 << 10, Some(100.0)),
            ("chat_128k_tokens", bytes_of(128 << 10), Some(1_000.0)),
        ];
        for (name, bytes, target) in sizes {
            let times = if quick { 10 } else { (100_000_000 / bytes).clamp(200, 2_000) };
            let Taken { mut cold, mut warm, mut repeated, mut reference, mut whole, tokens } =
                self.take(world, bytes, times)?;
            let figures = vec![
                Figure::once("prompt", "tokens", tokens),
                Figure::once("tokenise_cold_p50", "us", cold.percentile(50)),
                Figure::once("tokenise_cold_p99", "us", cold.percentile(99)),
                Figure::once("tokenise_warm_p50", "us", warm.percentile(50)),
                Figure::once("tokenise_warm_p99", "us", warm.percentile(99)),
                Figure::once("tokenise_repeated_p50", "us", repeated.percentile(50)),
                Figure::once("reference_p50", "us", reference.percentile(50)),
                Figure::once("warm_text_to_worker_p50", "us", whole.percentile(50)).target(target),
                Figure::once("warm_text_to_worker_p99", "us", whole.percentile(99)),
            ];
            report.row(format!("text/{name}/{TEXT_WORKERS}_workers"), figures);
        }
        Ok(())
    }

    /// Each round begins a chat that nobody has seen, goes on with a new turn, and says all of that once more.
    fn take(&self, world: &World, bytes: usize, times: usize) -> anyhow::Result<Taken> {
        let mut taken = Taken::default();
        let mut draws = Draws::started_at(2);
        let mut scratch = Scratch::new(1);
        for round in 0..times {
            let beginning = self.beginning(bytes, &mut draws);
            let (first, next) =
                (self.ended(&beginning, bytes, 2 * round), self.ended(&beginning, bytes, 2 * round + 1));
            taken.cold.push(self.tokenise(world, &first)?.0);
            let (tokenising, prompts) = self.tokenise(world, &next)?;
            let start = Instant::now();
            let placement = world.place(&prompts.below(world.root), &mut scratch);
            taken.whole.push(tokenising + start.elapsed());
            drop(placement);
            taken.warm.push(tokenising);
            taken.repeated.push(self.tokenise(world, &next)?.0);
            taken.tokens = f64::from(prompts.tokens().map_or(0, |tokens| tokens.0));
            if round < REFERENCE_TIMES {
                let start = Instant::now();
                std::hint::black_box(self.tokens.reference(Endpoint::Chat, &next)?);
                taken.reference.push(start.elapsed());
            }
        }
        Ok(taken)
    }

    /// A chat of about `bytes` up to its last turn.
    fn beginning(&self, bytes: usize, draws: &mut Draws) -> String {
        chat_beginning(&self.corpus, bytes.saturating_sub(TURN_BYTES).max(600), draws).0
    }

    /// The same with a last turn of its own.
    fn ended(&self, beginning: &str, bytes: usize, turn: usize) -> Bytes {
        let mut body = beginning.to_owned();
        let mut own = Draws::started_at(0x7_0000 + u64::try_from(turn).unwrap_or(0));
        self.corpus.message(&mut own, (TURN_BYTES - 100).min(bytes / 4), &mut body);
        body.push_str("\"}]}");
        body.into()
    }

    fn chat(&self, bytes: usize, draws: &mut Draws, turn: usize) -> Bytes {
        self.ended(&self.beginning(bytes, draws), bytes, turn)
    }

    fn tokenise(&self, world: &World, body: &Bytes) -> anyhow::Result<(Duration, Prompts)> {
        let start = Instant::now();
        let prompts = self.tokens.prompts(Endpoint::Chat, body, &world.root)?;
        Ok((start.elapsed(), prompts))
    }
}
