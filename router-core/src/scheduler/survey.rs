//! What is known of a request and of every candidate for it, before anything is decided.

use std::time::Instant;

use xxhash_rust::xxh64::xxh64;

use super::{Scheduler, Scratch};
use crate::admission;
use crate::cost::Candidate;
use crate::cost::tiers::Believed;
use crate::history::{Asked, History, Known};
use crate::ids::{Roll, SequenceHash};
use crate::observe::Enrolled;
use crate::overlap::{PrefixIndex, TierBlocks, new_tokens};
use crate::overlay::Overlay;
use crate::shape::{Fork, Opening, Prompt, Request, Shape};
use crate::units::{Blocks, Tokens};
use crate::workers::{Pool, WorkerTable};

impl Scheduler {
    /// Lists the candidates in `scratch`. Returns the request's shape, with all that policies look at.
    pub(super) fn survey(
        &self,
        now: Instant,
        request: &Request<'_>,
        index: &dyn PrefixIndex,
        (workers, pool): (&WorkerTable, &Pool),
        scratch: &mut Scratch,
    ) -> Shape {
        find_overlaps(now, request, (index, &self.overlay), workers.slots(), scratch);
        if self.needs.added_blocks {
            find_added(request, &self.overlay, workers.slots(), scratch);
        }
        scratch.text_hashes.clear();
        if request.prompts.is_empty() && self.goes_by_history() {
            request.texts.iter().for_each(|text| text.hash_into(&mut scratch.text_hashes));
        }
        recall(self.policy.history.as_deref(), request, workers.slots(), scratch);
        self.list_candidates(now, request, (workers, pool), scratch);
        self.weigh_promises(request, workers, scratch);
        self.sent.correct(request, (workers, pool), scratch);
        let targets = pool.targets.iter().filter_map(|slot| workers.get(*slot));
        self.enrol(
            workers.roll(pool),
            targets.map(|target| Enrolled { slot: target.slot, worker: &target.worker, rank: target.rank }),
        );
        let opening = request
            .shape
            .opening
            .or_else(|| opening(request, &scratch.hashes).filter(|_| self.needs.opening.is_some()));
        let fork = if self.needs.fork { fork(scratch) } else { None };
        let trunk = fork.and_then(|fork| self.trunk(fork, &scratch.hashes));
        Shape { opening, fork, trunk, ..request.shape }
    }

    /// The fork before this one, by the first policy that remembers such.
    fn trunk(&self, fork: Fork, hashes: &[SequenceHash]) -> Option<Fork> {
        let path = hashes.get(..usize::try_from(fork.blocks.0).ok()?)?;
        let mut learners = [&self.policy].into_iter().chain(&self.shadows).filter_map(|policy| policy.learn.as_deref());
        let at = learners.find_map(|learner| learner.trunk(path))?;
        Some(Fork { block: path[at], blocks: Blocks(u32::try_from(at + 1).ok()?) })
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
    fn list_candidates(
        &self,
        now: Instant,
        request: &Request<'_>,
        (workers, pool): (&WorkerTable, &Pool),
        scratch: &mut Scratch,
    ) {
        let Scratch { candidates, held, added, known, .. } = scratch;
        let prompt_tokens = tokens_of(request);
        candidates.clear();
        candidates.extend(pool.targets.iter().filter_map(|slot| workers.get(*slot)).map(|target| {
            let load = target.account.read();
            let beyond = target.account.beyond(now, self.half_life);
            let place = target.slot.index();
            let waiting = load.before_first_token.max(load.sequences.saturating_sub(target.limits.sequences));
            Candidate {
                slot: target.slot,
                standing: admission::standing(now, target, &load, request.avoid),
                total_is_learned: target.limits.blocks.is_none(),
                overlap: held[place],
                cached_tokens: Tokens(0),
                cached_on_device: Tokens(0),
                cached_below: Tokens(0),
                new_tokens: prompt_tokens,
                active_blocks: Blocks(load.active_blocks.0.saturating_add(beyond.blocks.0)),
                added_blocks: if self.needs.added_blocks { added[place] } else { Blocks(0) },
                total_blocks: admission::total_blocks(target, &load),
                active_slots: load.sequences.saturating_add(beyond.sequences),
                total_slots: target.limits.sequences,
                requests: load.requests.saturating_add(beyond.sequences),
                waiting: waiting.saturating_add(beyond.waiting),
                prefill_tokens: load.prefill_tokens,
                known: known.get(place).copied().unwrap_or_default(),
            }
        }));
        share_learned_sizes(candidates);
    }

    /// Says of each candidate what of the prompt it need not compute: what is promised, as far as that is believed.
    fn weigh_promises(&self, request: &Request<'_>, workers: &WorkerTable, scratch: &mut Scratch) {
        let Scratch { candidates, uncached, .. } = scratch;
        let prompt_tokens = tokens_of(request);
        for candidate in candidates.iter_mut() {
            let uncached = uncached[candidate.slot.index()];
            // No promise is for more than a prompt has, so that what is not to be computed is promised.
            let promised = prompt_tokens.saturating_sub(uncached);
            // Where nothing is promised, there is nothing to doubt: most of a large fleet.
            if promised == Tokens(0) {
                candidate.new_tokens = uncached;
                continue;
            }
            let trust = workers.get(candidate.slot).map_or(0.0, |target| target.trust.weight());
            let Believed { all, on_device, below } = self.tiers.believed(candidate.overlap, promised, trust);
            (candidate.cached_tokens, candidate.cached_on_device, candidate.cached_below) = (all, on_device, below);
            let doubted = promised.saturating_sub(candidate.cached_tokens);
            candidate.new_tokens = uncached.saturating_add(doubted);
        }
    }
}

/// Lets caches of which nobody tells the size be as large as the largest of the pool: each was seen to be as large as the
/// most that was in use there, which says little of one that has just come, and engines of one model are mostly alike.
fn share_learned_sizes(candidates: &mut [Candidate]) {
    if candidates.iter().any(|candidate| candidate.total_is_learned) {
        let largest = candidates.iter().map(|candidate| candidate.total_blocks).max().unwrap_or_default();
        let learned = candidates.iter_mut().filter(|candidate| candidate.total_is_learned);
        learned.for_each(|candidate| candidate.total_blocks = largest);
    }
}

/// Tokens of all prompts.
fn tokens_of(request: &Request<'_>) -> Tokens {
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
fn opening(request: &Request<'_>, hashes: &[SequenceHash]) -> Option<Opening> {
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
    let blocks = candidates.iter().map(|candidate| candidate.overlap.total()).max().filter(|_| ends.len() == 1)?;
    let block = *hashes.get(usize::try_from(blocks.0).ok()?.checked_sub(1)?)?;
    Some(Fork { block, blocks })
}

/// Fills `held` and `uncached` by slot, summed over the prompts, and `hashes` with the blocks of all of them. The cap
/// of what an engine can reuse is applied here and nowhere else.
fn find_overlaps(
    now: Instant,
    request: &Request<'_>,
    (index, overlay): (&dyn PrefixIndex, &Overlay),
    slots: usize,
    scratch: &mut Scratch,
) {
    let Scratch { hashes, ends, overlaps, held, uncached, prompt_held, .. } = scratch;
    hashes.clear();
    ends.clear();
    held.resize(slots, TierBlocks::default());
    uncached.clear();
    if request.prompts.is_empty() {
        held.fill(TierBlocks::default());
        uncached.resize(slots, request.shape.prompt);
    }
    for (nth, prompt) in request.prompts.iter().enumerate() {
        let start = hashes.len();
        prompt.hash_into(hashes);
        ends.push(hashes.len());
        overlaps.clear();
        index.match_prefix(&hashes[start..], overlaps);
        let size = prompt.root.block_size();
        let tokens = prompt.len();
        let cap = tokens.reusable_blocks(size);
        // Nearly every request is one prompt, whose blocks need not be added to those of others.
        let found: &mut Vec<TierBlocks> = if nth == 0 { held } else { prompt_held };
        found.resize(slots, TierBlocks::default());
        overlaps.expand(cap, found);
        overlay.raise(now, &hashes[start..], cap, found);
        let missing = found.iter().map(|found| new_tokens(tokens, found.total().tokens(size)));
        if nth == 0 {
            uncached.extend(missing);
        } else {
            uncached
                .iter_mut()
                .zip(missing)
                .for_each(|(uncached, missing)| *uncached = uncached.saturating_add(missing));
            held.iter_mut().zip(prompt_held.iter()).for_each(|(held, of_prompt)| held.add_all(*of_prompt));
        }
    }
}

/// Fills `added` by slot: what each account would grow by, except that what the prompts of one request share is counted
/// for each of them.
fn find_added(request: &Request<'_>, overlay: &Overlay, slots: usize, scratch: &mut Scratch) {
    let Scratch { hashes, ends, added, shared, .. } = scratch;
    added.clear();
    added.resize(slots, Blocks(0));
    if request.prompts.is_empty() {
        added.fill(request.shape.prompt.blocks_occupied(request.shape.block_size));
    }
    let mut start = 0;
    for (prompt, &end) in request.prompts.iter().zip(ends.iter()) {
        let blocks = prompt.len().blocks_occupied(prompt.root.block_size()).0;
        shared.clear();
        shared.resize(slots, 0);
        overlay.in_flight(&hashes[start..end], shared);
        for (added, shared) in added.iter_mut().zip(shared.iter()) {
            added.0 = added.0.saturating_add(blocks.saturating_sub(*shared));
        }
        start = end;
    }
}
