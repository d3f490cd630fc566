//! The whole synchronous path from a prompt to a reserved worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::admission::{self, OnAllBusy};
use crate::cost::{Needs, NoChoice, Standing, TierWeights};
use crate::history::History;
use crate::ids::Slot;
use crate::ledger::{Release, Reservation, Share, Size};
use crate::observe::{Event, Learn, Observation};
use crate::overlap::{PrefixIndex, TierBlocks, new_tokens};
use crate::overlay::Overlay;
use crate::policy::Policy;
use crate::session::Sessions;
use crate::shape::{Prompt, Request, Shape};
use crate::units::{Blocks, Tokens};
use crate::workers::{Pool, Target, WorkerTable};

mod decide;
mod explain;
mod scratch;
mod sent;
mod shadow;
mod successor;
mod survey;

pub use decide::{Kept, Question};
pub use explain::{Considered, Explanation, SESSION};
pub use scratch::Scratch;
use sent::Sent;
pub use shadow::ShadowChoice;
pub use successor::Keeps;
use survey::{asked, tokens_of};

/// Places the requests of one pool.
#[derive(Debug)]
pub struct Scheduler {
    policy: Policy,
    fallback: Policy,
    shadows: Vec<Policy>,
    sessions: Option<Arc<Sessions>>,
    needs: Needs,
    on_all_busy: OnAllBusy,
    overlay: Arc<Overlay>,
    sent: Sent,
    tiers: TierWeights,
    half_life: Duration,
    release: Option<Arc<dyn Release>>,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

impl DecidedBy {
    /// In one word, as clients and operators are told.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Fallback(_) => "fallback",
            Self::Load => "load",
            Self::LeastLoaded => "least_loaded",
        }
    }
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
            needs: policy.needs.or(fallback.needs),
            policy,
            fallback,
            shadows: Vec::new(),
            sessions: None,
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

    /// Asks these policies, too, whenever the pool's has decided, and lets them learn from what it does; see
    /// [`Scratch::shadows`].
    pub fn with_shadows(self, shadows: Vec<Policy>) -> Self {
        let needs = shadows.iter().fold(self.needs, |needs, shadow| needs.or(shadow.needs));
        Self { shadows, needs, ..self }
    }

    /// Prefers, under any policy, the worker that had a session's last request.
    pub fn with_sessions(self, sessions: Sessions) -> Self {
        Self { sessions: Some(Arc::new(sessions)), ..self }
    }

    /// What the last worker of a session is worth; none where sessions are not told apart.
    pub fn session_weight(&self) -> Option<f64> {
        self.sessions.as_ref().map(|sessions| sessions.weight())
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
        scratch.shadows.clear();
        self.refuse_early(now, request, (workers, pool))?;
        let question = self.ask(now, request, index, (workers, pool), (self.needs, scratch));
        let (chosen, decided_by) = self.decide(now, &question, scratch)?;
        if !self.shadows.is_empty() || scratch.terms.is_some() {
            scratch.vary_chance();
        }
        if decided_by == DecidedBy::Policy
            && !self.shadows.is_empty()
            && let Some((_, chance)) = scratch.asked.clone()
        {
            self.ask_shadows(now, (request, &question, &chance), (chosen, workers.slots()), scratch);
        }
        let candidate = scratch.candidates[chosen];
        let target = workers.get(candidate.slot).ok_or(PlaceError::NoWorker)?.clone();
        let share = share(request, candidate.new_tokens);
        let mut start = 0;
        let prompts = scratch.ends.iter().map(|&end| &scratch.hashes[std::mem::replace(&mut start, end)..end]);
        let reservation = target.account.reserve(share, self.overlay.enter(now, candidate.slot, prompts));
        let reservation = reservation.telling(self.release.clone());
        for history in self.histories() {
            history.learn(now, candidate.slot, asked(request, &scratch.hashes, &scratch.text_hashes));
        }
        if target.trust.falls_back() {
            self.sent.learn(now, candidate.slot, request, &scratch.hashes);
        }
        let overlap_tokens = candidate.overlap.total().tokens(request.shape.block_size);
        let placement = Placement {
            overlap: candidate.overlap,
            overlap_tokens,
            new_tokens: new_tokens(tokens_of(request), overlap_tokens),
            target,
            decided_by,
            reservation,
        };
        // What its view promises is expected as far as it is believed, or who lies would seem to have little to do.
        let new_tokens = candidate.to_compute(question.shape.prompt);
        let event = Event::Placed { shape: question.shape, overlap: candidate.overlap, new_tokens };
        self.observe(&Observation { at: now, request: request.key, slot: candidate.slot, event });
        Ok(placement)
    }

    /// Looks at the request and the fleet: what is left is to decide.
    fn ask(
        &self,
        now: Instant,
        request: &Request<'_>,
        index: &dyn PrefixIndex,
        fleet: (&WorkerTable, &Pool),
        (needs, scratch): (Needs, &mut Scratch),
    ) -> Question {
        let shape = self.survey(now, request, index, fleet, (needs, scratch));
        let kept = self.kept(now, &shape, &scratch.candidates);
        let question = Question::of(request, shape, needs.added_blocks, kept);
        scratch.asked = Some((question, scratch.rng.clone()));
        question
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
            Standing::Full | Standing::HeldBack => Err(PlaceError::AllBusy),
            Standing::Out => Err(PlaceError::NoWorker),
        }
    }

    /// The worker's cache is gone: it failed, left or restarted.
    pub fn forget(&self, slot: Slot) {
        self.histories().for_each(|history| history.forget(slot));
        if let Some(sessions) = &self.sessions {
            sessions.forget(slot);
        }
        self.sent.forget(slot);
    }

    /// Tells the policies what happened to a request. Of one that is [`Shape::unread`] there is nothing to be told but that it
    /// was placed, which placing does by itself; policies that go by prompts do not hear of it.
    pub fn observe(&self, observation: &Observation) {
        let is_unread = matches!(observation.event, Event::Placed { shape, .. } if shape.unread);
        // Who goes by no prompt, and takes turns, does so whatever is asked for.
        let hears = |policy: &&Policy| !is_unread || policy.name.is_baseline();
        let policies = [&self.policy, &self.fallback].into_iter().chain(&self.shadows).filter(hears);
        policies.filter_map(|policy| policy.learn.as_ref()).for_each(|learn| learn.observe(observation));
        if let Some(sessions) = &self.sessions {
            sessions.observe(observation);
        }
    }

    fn histories(&self) -> impl Iterator<Item = &Arc<dyn History>> {
        self.shadows.iter().chain([&self.policy]).filter_map(|policy| policy.history.as_ref())
    }

    /// What happens to a request while every worker is full.
    pub fn on_all_busy(&self) -> OnAllBusy {
        self.on_all_busy
    }

    /// The prompts in flight.
    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// What its policies look at, besides what is always told.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// The policy that decides where the pool's does not.
    pub fn fallback(&self) -> &Policy {
        &self.fallback
    }

    /// The pool's policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }
}

/// How long what engines say of their load takes to count half, unless it is set: a few scrapes.
const HALF_LIFE: Duration = Duration::from_secs(5);

/// The request's share of a worker on which `new_tokens` are missing.
fn share(request: &Request<'_>, new_tokens: Tokens) -> Share {
    let Shape { prompt, prompts, block_size, sequences, .. } = request.shape;
    let is_read = !request.prompts.is_empty() && !request.prompts.iter().any(Prompt::is_unread);
    let size = if is_read { Size::Known } else { Size::Guessed };
    let full = request.prompts.iter().map(Prompt::full_blocks).sum::<usize>();
    let full = Blocks(u32::try_from(full).unwrap_or(u32::MAX));
    let mut share = Share { sequences, new_tokens, prompts, full, tail: Blocks(0), room: Tokens(0), block_size, size };
    let mut book = |tokens: Tokens, hashed: usize| {
        let Tail { blocks, room } = Tail::of(request, tokens, hashed);
        share.tail.0 = share.tail.0.saturating_add(blocks.0);
        share.room.0 = share.room.0.saturating_add(room.0);
    };
    if request.prompts.is_empty() {
        book(prompt, 0);
    }
    request.prompts.iter().for_each(|prompt| book(prompt.len(), prompt.full_blocks()));
    share
}

/// What is behind the hashed blocks of a prompt, which are counted where they are shared.
struct Tail {
    blocks: Blocks,
    /// Tokens that its last blocks still take.
    room: Tokens,
}

impl Tail {
    /// Of a prompt of `request`, of which so many blocks are hashed; of one that was not read, none is. All sequences of a
    /// prompt share its full blocks, and each goes on in a block of its own where the last one is not full.
    fn of(request: &Request<'_>, tokens: Tokens, hashed: usize) -> Self {
        let Shape { block_size, sequences, .. } = request.shape;
        let prompts = u32::try_from(request.prompts.len()).unwrap_or(u32::MAX).max(1);
        let each = (sequences / prompts).max(1);
        let occupied = tokens.blocks_occupied(block_size);
        let room = occupied.tokens(block_size).saturating_sub(tokens);
        let further = if room > Tokens(0) { each - 1 } else { 0 };
        let open = occupied.0.saturating_sub(u32::try_from(hashed).unwrap_or(u32::MAX));
        Self { blocks: Blocks(open.saturating_add(further)), room: Tokens(room.0.saturating_mul(each)) }
    }
}
