//! The whole synchronous path from a prompt to a reserved worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::admission::{self, OnAllBusy};
use crate::cost::{Candidate, NoChoice, Standing, TierWeights};
use crate::history::{Asked, History, Known};
use crate::ids::{SequenceHash, Slot};
use crate::ledger::{Release, Reservation, Share};
use crate::observe::{Event, Observation};
use crate::overlap::{PrefixIndex, TierBlocks, new_tokens};
use crate::overlay::Overlay;
use crate::policy::Policy;
use crate::shape::{Prompt, Request, Shape};
use crate::units::{BlockSize, Blocks, Tokens};
use crate::workers::{Pool, Target, WorkerTable};

mod scratch;
mod sent;

pub use scratch::Scratch;
use sent::Sent;

/// Places the requests of one pool.
#[derive(Debug)]
pub struct Scheduler {
    policy: Policy,
    fallback: Policy,
    on_all_busy: OnAllBusy,
    overlay: Arc<Overlay>,
    sent: Sent,
    tiers: TierWeights,
    half_life: Duration,
    release: Option<Arc<dyn Release>>,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// The pool's policy.
    Policy,
    /// The fallback policy, since the pool's had no choice.
    Fallback(NoChoice),
    /// The fallback policy, since the prompt's tokens are unknown.
    Load,
    /// Every worker was full; the least loaded one was taken.
    LeastLoaded,
}

/// A decision, and the worker's share that goes with it.
#[derive(Debug)]
pub struct Placement {
    /// Where to send the request.
    pub target: Target,
    /// What the index and what is in flight promise it there, over all prompts.
    pub overlap: TierBlocks,
    /// The same in tokens: what the engine should report as cached.
    pub overlap_tokens: Tokens,
    /// Tokens that the worker will have to compute.
    pub new_tokens: Tokens,
    /// Who decided.
    pub decided_by: DecidedBy,
    /// The worker's share; dropping it gives the share back.
    pub reservation: Reservation,
}

/// Why a request was not placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// No worker that serves the pool is up, or each has failed this request already.
    #[error("no worker is available")]
    NoWorker,
    /// Each is at its limit; a retry may help.
    #[error("all workers are busy")]
    AllBusy,
}

impl Scheduler {
    /// A scheduler with fresh policies, for which only what the index tells is cached.
    pub fn new(policy: Policy, fallback: Policy, on_all_busy: OnAllBusy) -> Self {
        Self {
            policy,
            fallback,
            on_all_busy,
            overlay: Arc::new(Overlay::new(Duration::ZERO)),
            sent: Sent::default(),
            tiers: TierWeights::default(),
            half_life: HALF_LIFE,
            release: None,
        }
    }

    /// Lets prompts in flight count as cached where they were sent, for `credit` at most while they have no first token:
    /// so that a burst of one new prefix goes to one worker.
    pub fn with_in_flight_credit(self, credit: Duration) -> Self {
        Self { overlay: Arc::new(Overlay::new(credit)), ..self }
    }

    /// Weighs cached blocks by these instead of the defaults.
    pub fn with_tiers(self, tiers: TierWeights) -> Self {
        Self { tiers, ..self }
    }

    /// Lets what engines say of their load count half after `half_life`, instead of five seconds.
    pub fn with_half_life(self, half_life: Duration) -> Self {
        Self { half_life, ..self }
    }

    /// Tells `release` of every reservation, when it is made and when it is given back.
    pub fn with_release(self, release: Arc<dyn Release>) -> Self {
        Self { release: Some(release), ..self }
    }

    /// Remembers in `history` what is sent to targets whose view does not tell what they hold, and goes by that.
    pub fn with_sent(self, history: Arc<dyn History>) -> Self {
        Self { sent: Sent::new(history), ..self }
    }

    /// Chooses a worker of `pool` and reserves its share. O(blocks + workers); waits for nothing but the short lock of the
    /// prompts in flight, and the policy's history where it has one; allocates nothing once `scratch` is warm and the
    /// history knows the prompt. Two placements that race may read one load.
    ///
    /// # Errors
    /// [`PlaceError::NoWorker`]: none is up. [`PlaceError::AllBusy`]: each is at its limit, a retry may help.
    pub fn place(
        &self,
        now: Instant,
        request: &Request<'_>,
        index: &dyn PrefixIndex,
        (workers, pool): (&WorkerTable, &Pool),
        scratch: &mut Scratch,
    ) -> Result<Placement, PlaceError> {
        self.refuse_early(now, request, (workers, pool))?;
        find_overlaps(now, request, (index, &self.overlay), workers.slots(), scratch);
        self.recall(request, workers.slots(), scratch);
        self.list_candidates(now, request, (workers, pool), scratch);
        self.sent.correct(request, (workers, pool), scratch);
        let (chosen, decided_by) = self.decide(now, request, scratch)?;
        let candidate = scratch.candidates[chosen];
        let target = workers.get(candidate.slot).ok_or(PlaceError::NoWorker)?.clone();
        let share = share(request, candidate.new_tokens);
        let mut start = 0;
        let prompts = scratch.ends.iter().map(|&end| &scratch.hashes[std::mem::replace(&mut start, end)..end]);
        let reservation = target.account.reserve(share, self.overlay.enter(now, candidate.slot, prompts));
        let reservation = reservation.telling(self.release.clone());
        if let Some(history) = &self.policy.history {
            history.learn(now, candidate.slot, asked(request, &scratch.hashes, &scratch.text_hashes));
        }
        if target.trust.falls_back() {
            self.sent.learn(now, candidate.slot, request, &scratch.hashes);
        }
        let new_tokens = scratch.uncached[candidate.slot.index()];
        let placement = Placement {
            overlap: candidate.overlap,
            overlap_tokens: candidate.overlap.total().tokens(request.shape.block_size),
            new_tokens,
            target,
            decided_by,
            reservation,
        };
        let event =
            Event::Placed { shape: request.shape, overlap: placement.overlap, new_tokens: placement.new_tokens };
        self.observe(&Observation { at: now, request: request.key, slot: candidate.slot, event });
        Ok(placement)
    }

    /// Whoever has to wait asks again and again: it should not cost a look-up each time.
    fn refuse_early(
        &self,
        now: Instant,
        request: &Request<'_>,
        fleet: (&WorkerTable, &Pool),
    ) -> Result<(), PlaceError> {
        if self.on_all_busy == OnAllBusy::LeastLoaded {
            return Ok(());
        }
        match admission::prospect(now, fleet, request.avoid) {
            Standing::Open => Ok(()),
            Standing::Full => Err(PlaceError::AllBusy),
            Standing::Out => Err(PlaceError::NoWorker),
        }
    }

    /// Fills `known` by slot where the policy goes by history.
    fn recall(&self, request: &Request<'_>, slots: usize, scratch: &mut Scratch) {
        let Scratch { hashes, text_hashes, known, .. } = scratch;
        known.clear();
        text_hashes.clear();
        let Some(history) = &self.policy.history else { return };
        if request.prompts.is_empty() {
            for text in request.texts {
                text.hash_into(text_hashes);
            }
        }
        known.resize(slots, Known::default());
        history.recall(asked(request, hashes, text_hashes), known);
    }

    /// The worker's cache is gone: it failed, left or restarted.
    pub fn forget(&self, slot: Slot) {
        if let Some(history) = &self.policy.history {
            history.forget(slot);
        }
        self.sent.forget(slot);
    }

    /// Tells the policies what happened to a request.
    pub fn observe(&self, observation: &Observation) {
        for learn in [&self.policy.learn, &self.fallback.learn].into_iter().flatten() {
            learn.observe(observation);
        }
    }

    /// What happens to a request while every worker is full.
    pub fn on_all_busy(&self) -> OnAllBusy {
        self.on_all_busy
    }

    /// The prompts in flight.
    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// The pool's policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The one place where promises are weighted and own account and engines' reports meet. Whether a target has room is
    /// said by the own account alone: a stale report never keeps a request back.
    fn list_candidates(
        &self,
        now: Instant,
        request: &Request<'_>,
        (workers, pool): (&WorkerTable, &Pool),
        scratch: &mut Scratch,
    ) {
        scratch.candidates.clear();
        for target in pool.targets.iter().filter_map(|slot| workers.get(*slot)) {
            let load = target.account.read();
            let beyond = target.account.beyond(now, self.half_life);
            let place = target.slot.index();
            let overlap = scratch.held[place];
            let promised = overlap.total().tokens(request.shape.block_size);
            let cached_tokens = self.tiers.believed(overlap, promised, target.trust.weight());
            let doubted = promised.saturating_sub(cached_tokens);
            let waiting = load.before_first_token.max(load.sequences.saturating_sub(target.limits.sequences));
            scratch.candidates.push(Candidate {
                slot: target.slot,
                standing: admission::standing(now, target, &load, request.avoid),
                overlap,
                cached_tokens,
                new_tokens: scratch.uncached[place].saturating_add(doubted),
                active_blocks: Blocks(load.active_blocks.0.saturating_add(beyond.blocks.0)),
                total_blocks: admission::total_blocks(target, &load),
                active_slots: load.sequences.saturating_add(beyond.sequences),
                total_slots: target.limits.sequences,
                requests: load.requests.saturating_add(beyond.sequences),
                waiting: waiting.saturating_add(beyond.waiting),
                prefill_tokens: load.prefill_tokens,
                known: scratch.known.get(place).copied().unwrap_or_default(),
            });
        }
    }

    fn decide(
        &self,
        now: Instant,
        request: &Request<'_>,
        scratch: &mut Scratch,
    ) -> Result<(usize, DecidedBy), PlaceError> {
        let Scratch { candidates, costs, rng, .. } = scratch;
        let has = |standing| candidates.iter().any(|candidate: &Candidate| candidate.standing == standing);
        costs.clear();
        if !has(Standing::Open) {
            if self.on_all_busy != OnAllBusy::LeastLoaded && has(Standing::Full) {
                return Err(PlaceError::AllBusy);
            }
            let chosen = admission::least_loaded(candidates).ok_or(PlaceError::NoWorker)?;
            return Ok((chosen, DecidedBy::LeastLoaded));
        }
        let by_text = self.policy.history.is_some() && !request.texts.is_empty();
        let decided_by = if request.prompts.is_empty() && !by_text {
            DecidedBy::Load
        } else {
            match self.policy.cost.score(now, &request.shape, candidates, costs) {
                Ok(()) => DecidedBy::Policy,
                Err(reason) => DecidedBy::Fallback(reason),
            }
        };
        let mut pick = self.policy.pick;
        if decided_by != DecidedBy::Policy {
            costs.clear();
            pick = self.fallback.pick;
            self.fallback.cost.score(now, &request.shape, candidates, costs).or(Err(PlaceError::NoWorker))?;
        }
        let chosen = pick.choose(candidates, costs, rng).ok_or(PlaceError::NoWorker)?;
        Ok((chosen, decided_by))
    }
}

/// How long what engines say of their load takes to count half, unless it is set: a few scrapes.
const HALF_LIFE: Duration = Duration::from_secs(5);

/// Fills `held` and `uncached` by slot, summed over the prompts, and `hashes` with the blocks of all of them. The cap
/// of what an engine can reuse is applied here and nowhere else.
fn find_overlaps(
    now: Instant,
    request: &Request<'_>,
    (index, overlay): (&dyn PrefixIndex, &Overlay),
    slots: usize,
    scratch: &mut Scratch,
) {
    let Scratch { hashes, ends, overlaps, held, uncached, prompt_held, taken, .. } = scratch;
    hashes.clear();
    ends.clear();
    held.clear();
    held.resize(slots, TierBlocks::default());
    uncached.clear();
    uncached.resize(slots, Tokens(0));
    for prompt in request.prompts {
        let start = hashes.len();
        prompt.hash_into(hashes);
        ends.push(hashes.len());
        overlaps.clear();
        index.match_prefix(&hashes[start..], overlaps);
        let size = prompt.root.block_size();
        let tokens = prompt.len();
        prompt_held.clear();
        prompt_held.resize(slots, TierBlocks::default());
        let cap = tokens.reusable_blocks(size);
        overlaps.expand(cap, prompt_held, taken);
        overlay.raise(now, &hashes[start..], cap, prompt_held);
        for ((held, uncached), of_prompt) in held.iter_mut().zip(uncached.iter_mut()).zip(prompt_held.iter()) {
            held.add_all(*of_prompt);
            *uncached = uncached.saturating_add(new_tokens(tokens, of_prompt.total().tokens(size)));
        }
    }
    if request.prompts.is_empty() {
        uncached.fill(request.shape.prompt);
    }
}

/// The request as a history sees it: by its token ids where they are known, else by its texts.
fn asked<'a>(request: &'a Request<'a>, hashes: &'a [SequenceHash], text_hashes: &'a [SequenceHash]) -> Asked<'a> {
    if request.prompts.is_empty() {
        Asked::new(request.texts, text_hashes)
    } else {
        Asked::new(request.prompts, hashes)
    }
}

/// The request's share of a worker on which `new_tokens` are missing.
fn share(request: &Request<'_>, new_tokens: Tokens) -> Share {
    let Shape { prompt, block_size, sequences, .. } = request.shape;
    // Blocks that are hashed are counted where they are shared; of a prompt that was not read, none is.
    let open = |prompt: &Prompt<'_>, size: BlockSize| {
        let hashed = u32::try_from(prompt.full_blocks()).unwrap_or(u32::MAX);
        prompt.len().blocks_occupied(size).0.saturating_sub(hashed)
    };
    let (tail, room) = match request.prompts {
        [] => (prompt.blocks_occupied(block_size).0, free_room(prompt, block_size)),
        [only] => (open(only, block_size), free_room(only.len(), block_size)),
        several => {
            let tails = several.iter().map(|prompt| open(prompt, block_size));
            (tails.fold(0, u32::saturating_add), Tokens(0))
        }
    };
    Share { sequences, new_tokens, tail: Blocks(tail), room, block_size }
}

/// Tokens that the last, partly filled block still takes.
fn free_room(tokens: Tokens, size: BlockSize) -> Tokens {
    tokens.blocks_occupied(size).tokens(size).saturating_sub(tokens)
}
