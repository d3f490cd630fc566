//! Times look-ups: one reader, two readers, beside a writer that never rests, and with cold caches; and checks every
//! answer against the reference.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use warmpath_core::ids::TokenId;

use crate::apply::{Fed, Round, Taken};
use crate::clock::{Times, nanoseconds, now, rate, timed};
use crate::draws::{Counter, index as count};
use crate::feed::{removals, stores};
use crate::plan::{Plan, QuerySet};
use crate::subject::Subject;
use crate::workload::BLOCK_TOKENS;

/// Look-ups that are timed as one, since reading the clock costs as much as a look-up.
const GROUP: usize = 8;
/// What is touched between two look-ups to make the caches cold.
const COLD_BYTES: usize = 48 << 20;
const LINE_BYTES: usize = 64;
/// Distinct beginnings of prompts among the tokens.
const STARTS: usize = 64;

/// In which form a prompt is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The hashes that the index takes are ready: sequence hashes for some, local hashes for others.
    Given,
    /// Local hashes are ready; what else the index needs is made of them.
    Local,
    /// Token ids: they are hashed, then looked up. (Tokens are random, and the look-up that follows uses hashes made
    /// before, so that it finds something: the time is that of both, the result of the hashing is thrown away.)
    Tokens,
}

impl Form {
    /// All of them.
    pub(crate) const ALL: [Form; 3] = [Form::Given, Form::Local, Form::Tokens];

    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Given => "hashes given",
            Self::Local => "from local hashes",
            Self::Tokens => "from tokens",
        }
    }

    fn ask<S: Subject>(self, index: &S, (query, len): (&S::Query, usize), tokens: &[TokenId], answer: &mut S::Answer) {
        match self {
            Self::Given => index.look_up(query, len, answer),
            Self::Local => index.look_up_local(query, answer),
            Self::Tokens => {
                index.hash(tokens, answer);
                black_box(&answer);
                index.look_up(query, len, answer);
            }
        }
    }
}

/// Prompts of one length, as an index takes them.
pub(crate) struct Asked<S: Subject> {
    blocks: usize,
    queries: Vec<S::Query>,
}

impl<S: Subject> Asked<S> {
    /// The prompts of `set`.
    pub(crate) fn new(set: &QuerySet) -> Self {
        Self { blocks: set.blocks, queries: set.queries.iter().map(|blocks| S::query(blocks)).collect() }
    }
}

/// Random token ids, from which every query takes as many as it needs.
pub(crate) struct Tokens(Vec<TokenId>);

impl Tokens {
    /// Tokens for queries of at most `blocks` blocks.
    pub(crate) fn new(blocks: usize) -> Self {
        let mut draws = Counter::started_at(1);
        let token = |_| TokenId::try_from(draws.draw() % 150_000).expect("small");
        Self((0..(blocks + STARTS) * block_tokens()).map(token).collect())
    }

    /// The tokens of the query of this number; none where there are not enough.
    pub(crate) fn of(&self, number: usize, blocks: usize) -> &[TokenId] {
        let from = number % STARTS * block_tokens();
        self.0.get(from..from + blocks * block_tokens()).unwrap_or_default()
    }
}

fn block_tokens() -> usize {
    count(BLOCK_TOKENS)
}

/// The sum of all overlaps of all workers over all queries.
pub(crate) fn checksum<S: Subject>(index: &S, set: &Asked<S>, workers: u16, form: Form, tokens: &Tokens) -> u64 {
    let mut answer = S::Answer::default();
    let ask = |(number, query): (usize, &S::Query)| {
        form.ask(index, (query, set.blocks), tokens.of(number, set.blocks), &mut answer);
        S::sum(&answer, workers)
    };
    set.queries.iter().enumerate().map(ask).sum()
}

/// Look-ups of one set, again and again for about `budget`, `group` at a time.
fn times<S: Subject>(
    index: &S,
    set: &Asked<S>,
    form: Form,
    tokens: &Tokens,
    group: usize,
    budget: Duration,
) -> (Times, f64) {
    let mut answer = S::Answer::default();
    let mut times = Times::default();
    let mut done = 0;
    let start = now();
    loop {
        for (number, queries) in set.queries.chunks_exact(group).enumerate() {
            let taken = timed(|| {
                for query in queries {
                    form.ask(index, (black_box(query), set.blocks), tokens.of(number, set.blocks), &mut answer);
                }
                black_box(&answer);
            });
            done += group;
            times.push(nanoseconds(taken) / f64::from(u32::try_from(group).expect("small")));
        }
        if start.elapsed() >= budget {
            return (times, rate(done, start.elapsed()));
        }
    }
}

fn told(blocks: usize, condition: &str, form: Form, times: Times) -> Value {
    let mut told = json!({ "blocks": blocks, "condition": condition, "form": form.name() });
    told["groups"] = times.told();
    told
}

/// One reader, in every form: groups of 8, and every call by itself.
pub(crate) fn one_reader<S: Subject>(index: &S, set: &Asked<S>, tokens: &Tokens, budget: Duration) -> Vec<Value> {
    let row = |form| {
        // What came before has filled the caches with something else.
        times(index, set, form, tokens, GROUP, budget / 8);
        let (groups, _) = times(index, set, form, tokens, GROUP, budget);
        let mut row = told(set.blocks, "one reader", form, groups);
        row["single"] = times(index, set, form, tokens, 1, budget).0.told();
        row
    };
    Form::ALL.into_iter().map(row).collect()
}

/// Two readers at once.
pub(crate) fn two_readers<S: Subject>(index: &S, set: &Asked<S>, tokens: &Tokens, budget: Duration) -> Value {
    let [groups, single] = [GROUP, 1].map(|group| {
        let read = || times(index, set, Form::Given, tokens, group, budget).0;
        std::thread::scope(|threads| {
            let other = threads.spawn(read);
            let mut both = read();
            both.append(other.join().expect("a reader does not panic"));
            both
        })
    });
    let mut row = told(set.blocks, "two readers", Form::Given, groups);
    row["single"] = single.told();
    row
}

/// One reader beside a writer that stores one block after the other and removes them again, 32 events a call, without
/// rest; the entries stay as many as they are.
pub(crate) fn beside_writer<S: Subject>(
    fed: &mut Fed<S>,
    plan: &Plan,
    set: &Asked<S>,
    tokens: &Tokens,
    budget: Duration,
) -> Value {
    let Fed { index, writers } = fed;
    let done = AtomicBool::new(false);
    let (row, written) = std::thread::scope(|threads| {
        let index = &*index;
        let writer = threads.spawn(|| write_until(&done, index, writers, plan));
        let (groups, _) = times(index, set, Form::Given, tokens, GROUP, budget);
        let mut row = told(set.blocks, "beside a writer", Form::Given, groups);
        let (single, look_ups_per_s) = times(index, set, Form::Given, tokens, 1, budget);
        row["single"] = single.told();
        row["look_ups_per_s"] = json!(look_ups_per_s);
        done.store(true, Ordering::Relaxed);
        (row, writer.join().expect("the writer does not panic"))
    });
    let mut row = row;
    row["writer_blocks_per_s"] = json!(rate(written.blocks, written.time));
    row
}

/// Removes the newest blocks and stores them again until told to end; ends with all stored.
fn write_until<S: Subject>(done: &AtomicBool, index: &S, writers: &mut [S::Writer], plan: &Plan) -> Taken {
    let newest: Vec<_> = plan.loads.iter().rev().filter(|load| load.to > load.from).take(8).collect();
    let mut written = Taken::default();
    let mut rounds: Vec<Round<S>> = Vec::new();
    while !done.load(Ordering::Relaxed) {
        // Making events ready would be a rest for the writer, so it is done once where an index leaves them whole.
        if rounds.is_empty() || S::USES_EVENTS_UP {
            let gone = newest.iter().flat_map(|load| removals(load));
            let back = newest.iter().rev().flat_map(|load| stores(load, 1));
            rounds = Round::all(32, gone.chain(back));
        }
        for round in &mut rounds {
            written.blocks += round.blocks();
            written.time += timed(|| {
                round.apply(index, writers);
                index.drain();
            });
        }
    }
    written
}

/// One reader that finds nothing in the processor's caches but the query itself.
pub(crate) fn cold<S: Subject>(index: &S, set: &Asked<S>, look_ups: usize) -> Value {
    let mut ballast = vec![0_u8; COLD_BYTES];
    let mut answer = S::Answer::default();
    let mut times = Times::default();
    for query in set.queries.iter().take(look_ups) {
        for line in ballast.chunks_mut(LINE_BYTES) {
            line[0] = line[0].wrapping_add(1);
        }
        black_box(&ballast);
        black_box(S::read(query));
        let taken = timed(|| index.look_up(black_box(query), set.blocks, &mut answer));
        times.push(nanoseconds(taken));
    }
    let mut row = json!({ "blocks": set.blocks, "condition": "cold", "form": Form::Given.name() });
    row["single"] = times.told();
    row
}

/// Tokens hashed a second, as prompts of 8 192 blocks, into the hashes that the look-up takes.
pub(crate) fn hashed_per_s<S: Subject>(index: &S, tokens: &Tokens, budget: Duration) -> f64 {
    let mut answer = S::Answer::default();
    let prompt = tokens.of(0, 8192);
    let mut hashed = 0;
    let start = now();
    loop {
        index.hash(black_box(prompt), &mut answer);
        black_box(&answer);
        hashed += prompt.len();
        if start.elapsed() >= budget {
            return rate(hashed, start.elapsed());
        }
    }
}
