//! What is known of a request and of every candidate for it, before anything is decided.

use std::cmp::Ordering;
use std::time::Instant;

use xxhash_rust::xxh64::xxh64;

use super::{Scheduler, Scratch, Tail};
use crate::admission;
use crate::cost::tiers::Believed;
use crate::cost::{Candidate, Needs, Standing};
use crate::history::{Asked, History, Known};
use crate::ids::{Roll, SequenceHash, Slot};
use crate::observe::{Enrolled, Learn};
use crate::overlap::{PrefixIndex, TierBlocks, new_tokens};
use crate::overlay::Overlay;
use crate::shape::{Fork, Opening, Prompt, Request, Shape, Turn};
use crate::slot_set::SlotSet;
use crate::units::{BlockSize, Blocks, Tokens};
use crate::workers::{Pool, Seat, Target, WorkerTable};

impl Scheduler {
    /// Lists the candidates in `scratch`, with what these needs ask for. Returns the request's shape, with all
    /// that policies look at.
    pub(super) fn survey(
        &self,
        now: Instant,
        request: &Request<'_>,
        index: &dyn PrefixIndex,
        (workers, pool): (&WorkerTable, &Pool),
        (needs, scratch): (Needs, &mut Scratch),
    ) -> Shape {
        find_overlaps(now, request, (index, &self.overlay), workers.slots(), scratch);
        scratch.added.clear();
        scratch.added.resize(workers.slots(), Blocks(0));
        if needs.added_blocks {
            find_added(request, &self.overlay, workers.slots(), scratch);
        }
        scratch.text_hashes.clear();
        if request.prompts.is_empty() && self.goes_by_history() {
            request.texts.iter().for_each(|text| text.hash_into(&mut scratch.text_hashes));
        }
        recall(self.policy.history.as_deref(), request, workers.slots(), scratch);
        self.list_candidates(now, request, (workers, pool), scratch);
        self.sent.correct(request, (workers, pool), scratch);
        let targets = pool.targets.iter().filter_map(|slot| workers.get(*slot));
        self.enrol(
            workers.roll(pool),
            targets.map(|target| Enrolled { slot: target.slot, worker: &target.worker, rank: target.rank }),
        );
        let opening =
            request.shape.opening.or_else(|| opening(request, &scratch.hashes).filter(|_| needs.opening.is_some()));
        let fork = if needs.fork { fork(scratch) } else { None };
        let trunk = fork.and_then(|fork| self.trunk(fork, &scratch.hashes));
        let turn = if needs.fork { self.turn(fork, scratch) } else { None };
        Shape { opening, fork, trunk, turn, ..request.shape }
    }

    /// The fork before this one, by the first policy that remembers such.
    fn trunk(&self, fork: Fork, hashes: &[SequenceHash]) -> Option<Fork> {
        let path = hashes.get(..usize::try_from(fork.blocks.0).ok()?)?;
        let at = self.learners().find_map(|learner| learner.trunk(path))?;
        Some(Fork { block: path[at], blocks: Blocks(u32::try_from(at + 1).ok()?), holders: 0 })
    }

    /// Where the one prompt ends, and the one that it goes on with, by the first policy that remembers such.
    fn turn(&self, fork: Option<Fork>, Scratch { hashes, ends, .. }: &Scratch) -> Option<Turn> {
        let (end, before_it) = hashes.split_last().filter(|_| ends.len() == 1)?;
        let held = usize::try_from(fork.map_or(0, |fork| fork.blocks.0)).ok()?;
        let path = &before_it[..held.min(before_it.len())];
        let before = self.learners().find_map(|learner| learner.before(path)).map(|at| path[at]);
        Some(Turn { end: *end, before })
    }

    fn learners(&self) -> impl Iterator<Item = &dyn Learn> {
        [&self.policy].into_iter().chain(&self.shadows).filter_map(|policy| policy.learn.as_deref())
    }

    /// Whether its policy or a shadow remembers what was sent: where token ids are unknown, characters tell it as much.
    pub fn goes_by_history(&self) -> bool {
        self.shadows.iter().chain([&self.policy]).any(|policy| policy.history.is_some())
    }

    /// Tells the policies that go by the targets' names who they are. Placing does so by itself.
    pub fn enrol<'a>(&self, roll: Roll, targets: impl Iterator<Item = Enrolled<'a>> + Clone) {
        let policies = self.shadows.iter().chain([&self.policy]);
        for enrol in policies.filter_map(|policy| policy.enrol.as_deref()) {
            enrol.enrol(roll, &mut targets.clone());
        }
    }

    /// The one place where own account and engines' reports meet. Whether a target has room is said by the own account
    /// alone: a stale report never keeps a request back.
    ///
    /// Every worker is gone over for every request, and only once where all is as it mostly is. What few need is noticed on
    /// the way and done behind it.
    fn list_candidates(
        &self,
        now: Instant,
        request: &Request<'_>,
        (workers, pool): (&WorkerTable, &Pool),
        scratch: &mut Scratch,
    ) {
        let Scratch { candidates, held, added, known, .. } = scratch;
        let (prompt, size) = (tokens_of(request), request.shape.block_size);
        let of_request = OfRequest { now, prompt, size, held, added };
        let (mut is_learned, mut is_beyond, mut is_below, mut least_trust) = (false, false, false, 1.0);
        let seats = workers.seats(pool);
        candidates.resize(seats.len(), nobody());
        for (candidate, seat) in candidates.iter_mut().zip(seats) {
            let held = of_request.write(seat, workers, candidate);
            is_beyond |= seat.account.has_beyond();
            is_learned |= seat.limits.blocks.is_none();
            is_below |= !held.is_on_device();
            // Where nothing is promised, there is nothing to doubt: most of a large fleet.
            if held != TierBlocks::default() && seat.trust.weight() < least_trust {
                least_trust = seat.trust.weight();
            }
        }
        let is_in_doubt = is_below || !self.tiers.is_sure(TierBlocks::default(), least_trust);
        if !known.is_empty() {
            candidates.iter_mut().for_each(|candidate| candidate.known = known[candidate.slot.index()]);
        }
        set_out(request.avoid, candidates);
        if is_beyond {
            self.add_beyond(now, workers, candidates);
        }
        if is_learned {
            share_learned_sizes(candidates);
        }
        if is_in_doubt {
            self.weigh_promises(workers, candidates);
        }
    }

    /// Adds what engines say that they have beyond what is in flight.
    fn add_beyond(&self, now: Instant, workers: &WorkerTable, candidates: &mut [Candidate]) {
        for candidate in candidates {
            let Some(target) = workers.get(candidate.slot) else { continue };
            let beyond = target.account.beyond(now, self.half_life);
            candidate.active_blocks.0 = candidate.active_blocks.0.saturating_add(beyond.blocks.0);
            candidate.active_slots = candidate.active_slots.saturating_add(beyond.sequences);
            candidate.requests = candidate.requests.saturating_add(beyond.sequences);
            candidate.waiting = candidate.waiting.saturating_add(beyond.waiting);
        }
    }

    /// Takes of what is promised as much as is believed: the rest will have to be computed.
    fn weigh_promises(&self, workers: &WorkerTable, candidates: &mut [Candidate]) {
        for candidate in candidates {
            let trust = workers.get(candidate.slot).map_or(0.0, |target| target.trust.weight());
            let promised = candidate.cached_tokens;
            let Believed { all, on_device, below } = self.tiers.believed(candidate.overlap, promised, trust);
            (candidate.cached_tokens, candidate.cached_on_device, candidate.cached_below) = (all, on_device, below);
            candidate.new_tokens = candidate.new_tokens.saturating_add(promised.saturating_sub(all));
        }
    }
}

/// What is known of a request for every slot, and of no target by itself.
struct OfRequest<'a> {
    now: Instant,
    prompt: Tokens,
    size: BlockSize,
    held: &'a [TierBlocks],
    added: &'a [Blocks],
}

impl OfRequest<'_> {
    /// Writes a target's figures over those of an earlier request, each as soon as it is known: put together first and moved
    /// then, they would pass through the stack, a quarter of the cheapest choice. All are named, so that none is left out.
    /// Returns what it holds.
    #[inline(always)]
    fn write(&self, seat: &Seat, workers: &WorkerTable, candidate: &mut Candidate) -> TierBlocks {
        let Candidate {
            slot,
            standing,
            total_is_learned,
            overlap,
            cached_tokens,
            cached_on_device,
            cached_below,
            new_tokens: to_compute,
            active_blocks,
            added_blocks,
            total_blocks,
            active_slots,
            total_slots,
            given_slots,
            requests,
            waiting,
            prefill_tokens,
            known,
        } = candidate;
        *slot = seat.slot;
        let (load, limits) = (seat.account.read(), &seat.limits);
        *prefill_tokens = load.prefill_tokens;
        *requests = load.requests;
        *active_blocks = load.active_blocks;
        *active_slots = load.sequences;
        *waiting = load.before_first_token.max(load.sequences.saturating_sub(limits.sequences));
        *total_slots = limits.sequences;
        *total_blocks = admission::total_blocks(limits, &load);
        *total_is_learned = limits.blocks.is_none();
        (*standing, *given_slots) = if seat.is_steady {
            (admission::steady_standing(limits, &load), limits.sequences)
        } else {
            self.unsteady(workers, seat.slot)
        };
        let place = seat.slot.index();
        let held = self.held[place];
        let promised = held.total().tokens(self.size);
        *overlap = held;
        *cached_tokens = promised;
        *cached_on_device = promised;
        *cached_below = Tokens(0);
        *to_compute = new_tokens(self.prompt, promised);
        *added_blocks = self.added[place];
        // Where there is a history, it is told behind it.
        *known = Known::default();
        held
    }

    #[inline(never)] // Few are out or have just come back; what they take would be in the way of all others.
    fn unsteady(&self, workers: &WorkerTable, slot: Slot) -> (Standing, u32) {
        let unsteady = |target: &Target| {
            let standing = admission::standing(self.now, target, &target.account.read());
            (standing, admission::sequences_at(self.now, target))
        };
        workers.get(slot).map_or((Standing::Out, 0), unsteady)
    }
}

/// A place in the list before a target's figures are written there.
fn nobody() -> Candidate {
    Candidate {
        slot: Slot(0),
        standing: Standing::Out,
        total_is_learned: false,
        overlap: TierBlocks::default(),
        cached_tokens: Tokens(0),
        cached_on_device: Tokens(0),
        cached_below: Tokens(0),
        new_tokens: Tokens(0),
        active_blocks: Blocks(0),
        added_blocks: Blocks(0),
        total_blocks: Blocks(0),
        active_slots: 0,
        total_slots: 0,
        given_slots: 0,
        requests: 0,
        waiting: 0,
        prefill_tokens: Tokens(0),
        known: Known::default(),
    }
}

/// Leaves those out whom a request avoids: hardly any avoids one.
fn set_out(avoid: &SlotSet, candidates: &mut [Candidate]) {
    for slot in avoid.iter() {
        if let Ok(at) = candidates.binary_search_by_key(&slot, |candidate| candidate.slot) {
            candidates[at].standing = Standing::Out;
        }
    }
}

/// Lets caches of which nobody tells the size be as large as the largest of the pool: each was seen to be as large as the
/// most that was in use there, which says little of one that has just come, and engines of one model are mostly alike. None
/// holds less than what is in flight.
fn share_learned_sizes(candidates: &mut [Candidate]) {
    let largest = candidates.iter().map(|candidate| candidate.total_blocks).max().unwrap_or_default();
    if largest == Blocks(0) {
        return;
    }
    let learned = || candidates.iter().filter(|candidate| candidate.total_is_learned);
    let most = learned().map(|candidate| candidate.active_blocks).max().unwrap_or_default();
    let learned = candidates.iter_mut().filter(|candidate| candidate.total_is_learned);
    learned.for_each(|candidate| candidate.total_blocks = largest.max(most));
}

/// Tokens of all prompts; what is said of them where they are not known.
pub(super) fn tokens_of(request: &Request<'_>) -> Tokens {
    if request.prompts.is_empty() {
        return request.shape.prompt;
    }
    request.prompts.iter().map(Prompt::len).fold(Tokens(0), Tokens::saturating_add)
}

/// Fills `known` by slot where there is a history.
pub(super) fn recall(history: Option<&dyn History>, request: &Request<'_>, slots: usize, scratch: &mut Scratch) {
    let Scratch { hashes, text_hashes, known, .. } = scratch;
    known.clear();
    let Some(history) = history else { return };
    known.resize(slots, Known::default());
    history.recall(asked(request, hashes, text_hashes), known);
}

/// The request as a history sees it: by its token ids where they are known, else by its texts.
pub(super) fn asked<'a>(
    request: &'a Request<'a>,
    hashes: &'a [SequenceHash],
    text_hashes: &'a [SequenceHash],
) -> Asked<'a> {
    if request.prompts.is_empty() {
        Asked::new(request.texts, text_hashes)
    } else {
        Asked::new(request.prompts, hashes)
    }
}

/// How a request begins of which only token ids are known: its first block, or all of a prompt that fills none.
pub(super) fn opening(request: &Request<'_>, hashes: &[SequenceHash]) -> Option<Opening> {
    let first = request.prompts.first()?;
    if first.full_blocks() > 0
        && let Some(hash) = hashes.first()
    {
        return Some(Opening(hash.0));
    }
    Some(Opening(xxh64(bytemuck::cast_slice(first.ids()), 0)))
}

/// The last block of the longest match; none where nothing matches, and of several prompts.
fn fork(Scratch { hashes, ends, candidates, .. }: &Scratch) -> Option<Fork> {
    let mut longest = (Blocks(0), 0_u32);
    for held in candidates.iter().map(|candidate| candidate.overlap.total()) {
        match held.cmp(&longest.0) {
            Ordering::Less => {}
            Ordering::Equal => longest.1 += 1,
            Ordering::Greater => longest = (held, 1),
        }
    }
    let (blocks, holders) = longest;
    let last = usize::try_from(blocks.0).ok()?.checked_sub(1).filter(|_| ends.len() == 1)?;
    Some(Fork { block: *hashes.get(last)?, blocks, holders })
}

/// Fills `held` by slot, summed over the prompts, and `hashes` with the blocks of all of them. The cap of what an engine can
/// reuse is applied here and nowhere else: no promise is for more than a prompt has.
fn find_overlaps(
    now: Instant,
    request: &Request<'_>,
    (index, overlay): (&dyn PrefixIndex, &Overlay),
    slots: usize,
    scratch: &mut Scratch,
) {
    let Scratch { hashes, ends, overlaps, held, prompt_held, .. } = scratch;
    hashes.clear();
    ends.clear();
    held.resize(slots, TierBlocks::default());
    if request.prompts.is_empty() {
        held.fill(TierBlocks::default());
    }
    for (nth, prompt) in request.prompts.iter().enumerate() {
        let start = hashes.len();
        prompt.hash_into(hashes);
        ends.push(hashes.len());
        overlaps.clear();
        index.match_prefix(&hashes[start..], overlaps);
        let cap = prompt.len().reusable_blocks(prompt.root.block_size());
        // Nearly every request is one prompt, whose blocks need not be added to those of others.
        let found: &mut Vec<TierBlocks> = if nth == 0 { held } else { prompt_held };
        found.resize(slots, TierBlocks::default());
        overlaps.expand(cap, found);
        overlay.raise(now, &hashes[start..], cap, found);
        if nth > 0 {
            held.iter_mut().zip(prompt_held.iter()).for_each(|(held, of_prompt)| held.add_all(*of_prompt));
        }
    }
}

/// Fills `added`, which is empty so far, by slot: what each account would grow by. What prompts of the request share is
/// counted once. O(prompts × (slots + blocks)), and sorts several prompts.
fn find_added(request: &Request<'_>, overlay: &Overlay, slots: usize, scratch: &mut Scratch) {
    let Scratch { hashes, ends, added, alike, shared, .. } = scratch;
    if request.prompts.is_empty() {
        added.fill(Tail::of(request, request.shape.prompt, 0).blocks);
    }
    alike.clear();
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let stretches = starts.zip(ends.iter()).map(|(start, &end)| start..end);
    let tails = request.prompts.iter().map(|prompt| Tail::of(request, prompt.len(), prompt.full_blocks()).blocks);
    alike.extend(stretches.zip(tails));
    if alike.len() > 1 {
        alike.sort_unstable_by(|(a, _), (b, _)| hashes[a.clone()].cmp(&hashes[b.clone()]));
    }
    let mut before: &[SequenceHash] = &[];
    for (stretch, tail) in alike.iter() {
        let prompt = &hashes[stretch.clone()];
        let again = before.iter().zip(prompt).take_while(|(before, now)| before == now).count();
        let [hashed, again] = [prompt.len(), again].map(|blocks| u32::try_from(blocks).unwrap_or(u32::MAX));
        shared.clear();
        shared.resize(slots, 0);
        overlay.in_flight(prompt, shared);
        for (added, shared) in added.iter_mut().zip(shared.iter()) {
            let new = hashed.saturating_sub(again.max(*shared));
            added.0 = added.0.saturating_add(new).saturating_add(tail.0);
        }
        before = prompt;
    }
}
