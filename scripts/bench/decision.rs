//! What a decision costs, step by step: token ids of a request, hashes of its blocks, the look-up, the score, and the whole.

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use warmpath::openai::Endpoint;
use warmpath_core::blocks::hash_blocks;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::scheduler::Scratch;

use crate::arguments::DecisionPlan;
use crate::bodies::chat_beginning;
use crate::corpus::Corpus;
use crate::draws::Draws;
use crate::figures::{Figure, Report};
use crate::times::Times;
use crate::tokens::Tokens;

mod world;

use world::{PROMPTS, World};

/// (Worker, block) pairs in the index.
const ENTRIES: usize = 1_000_000;
/// Prompts, in tokens.
const LENGTHS: [usize; 3] = [1_000, 10_000, 100_000];
const WORKERS: [u16; 3] = [8, 100, 500];
/// The fleet in front of which text is measured.
const TEXT_WORKERS: u16 = 100;
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
        let start = Instant::now();
        hashes.clear();
        hash_blocks(&world.root, tokens, &[], &mut hashes);
        let hashed = Instant::now();
        world.index.match_prefix(&hashes, &mut overlaps);
        let matched = Instant::now();
        let placement = world.place(tokens, &mut scratch);
        let placed = Instant::now();
        drop(placement);
        let released = Instant::now();
        costs.clear();
        let policy = world.scheduler.policy();
        let scored = policy.cost.score(released, &world.shape(tokens), scratch.candidates(), &mut costs);
        let chosen = scored.ok().and_then(|()| policy.pick.choose(scratch.candidates(), &costs, &mut rng));
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

impl Texts {
    /// From text to token ids, and to a placement.
    fn measure(&self, report: &mut Report, world: &World, quick: bool) -> anyhow::Result<()> {
        let calibration =
            self.tokens.of(Endpoint::Chat, self.chat(32 << 10, &mut Draws::started_at(1), 1).as_bytes())?;
        let bytes_of = |tokens: usize| tokens * (32 << 10) / calibration.len();
        let sizes = [
            ("1000_tokens", bytes_of(1_000), None),
            ("10000_tokens", bytes_of(10_000), None),
            ("100000_tokens", bytes_of(100_000), None),
            ("chat_32_kib", 32 << 10, Some(100.0)),
            ("chat_128k_tokens", bytes_of(128 << 10), Some(1_000.0)),
        ];
        for (name, bytes, target) in sizes {
            let times = if quick { 3 } else { (20_000_000 / bytes).clamp(30, 1_000) };
            let mut cold = Times::default();
            let mut draws = Draws::started_at(2);
            let mut length = 0;
            for turn in 0..times {
                let body = self.chat(bytes, &mut draws, turn);
                cold.push(self.tokenise(&body)?.0);
            }
            let (mut warm, mut whole) = (Times::default(), Times::default());
            let mut scratch = Scratch::new(1);
            for turn in 0..times + 2 {
                let body = self.chat(bytes, &mut Draws::started_at(3), turn);
                let (tokenising, ids) = self.tokenise(&body)?;
                let start = Instant::now();
                let placement = world.place(&ids, &mut scratch);
                let placing = start.elapsed();
                drop(placement);
                length = ids.len();
                // The first ones are not warm yet.
                if turn >= 2 {
                    warm.push(tokenising);
                    whole.push(tokenising + placing);
                }
            }
            let tokens = warmpath::real::real_len(length);
            let figures = vec![
                Figure::once("prompt", "tokens", tokens),
                Figure::once("tokenise_cold_p50", "us", cold.percentile(50)),
                Figure::once("tokenise_cold_p99", "us", cold.percentile(99)),
                Figure::once("tokenise_warm_p50", "us", warm.percentile(50)),
                Figure::once("tokenise_warm_p99", "us", warm.percentile(99)),
                Figure::once("warm_text_to_worker_p50", "us", whole.percentile(50)).target(target),
                Figure::once("warm_text_to_worker_p99", "us", whole.percentile(99)),
            ];
            report.row(format!("text/{name}/{TEXT_WORKERS}_workers"), figures);
        }
        Ok(())
    }

    /// A chat of about `bytes` that ends with a turn of its own.
    fn chat(&self, bytes: usize, draws: &mut Draws, turn: usize) -> String {
        let (mut body, _) = chat_beginning(&self.corpus, bytes.saturating_sub(TURN_BYTES).max(600), draws);
        let mut own = Draws::started_at(0x7_0000 + u64::try_from(turn).unwrap_or(0));
        self.corpus.message(&mut own, (TURN_BYTES - 100).min(bytes / 4), &mut body);
        body.push_str("\"}]}");
        body
    }

    fn tokenise(&self, body: &str) -> anyhow::Result<(Duration, Vec<u32>)> {
        let start = Instant::now();
        let ids = self.tokens.of(Endpoint::Chat, body.as_bytes())?;
        Ok((start.elapsed(), ids))
    }
}
