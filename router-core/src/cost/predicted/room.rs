//! How long a request waits for a slot and for blocks.

use super::Predicted;
use crate::cost::{Candidate, ratio};
use crate::observe::Observation;

/// ms until there is a slot and blocks for the request, where `until_gone` tells when a share of those in flight has given
/// theirs back. None for blocks where the size of the cache is not known. An engine takes a prompt as soon as its blocks are
/// there, whatever tokens will take that are still to come.
#[inline]
pub(super) fn until_room(candidate: &Candidate, until_gone: impl Fn(f64) -> f64) -> f64 {
    if has_room(candidate) { 0.0 } else { until_gone(missing_share(candidate)) }
}

impl Predicted {
    /// A request is about to fail that nobody wants any more, or that no engine takes: see [`Rates::withdraw`].
    ///
    /// [`Rates::withdraw`]: crate::rates::Rates::withdraw
    pub fn withdraw(&self, observation: &Observation) {
        self.rates.withdraw(observation.at, observation.request);
    }
}

/// Whether there is a slot and blocks for it.
#[inline(always)]
pub(super) fn has_room(candidate: &Candidate) -> bool {
    let has_slot = candidate.active_slots < candidate.total_slots || candidate.total_slots == 0;
    has_slot & (wanted(candidate) <= candidate.total_blocks.0 || candidate.total_is_learned)
}

/// Blocks in use, if it is sent there.
#[inline(always)]
fn wanted(candidate: &Candidate) -> u32 {
    candidate.active_blocks.0.saturating_add(candidate.added_blocks.0)
}

/// The share of slots or blocks in use that has to be given back first.
#[inline(never)]
fn missing_share(candidate: &Candidate) -> f64 {
    let slots =
        ratio(candidate.active_slots.saturating_add(1).saturating_sub(candidate.total_slots), candidate.total_slots);
    let total = if candidate.total_is_learned { 0 } else { candidate.total_blocks.0 };
    slots.max(ratio(wanted(candidate).saturating_sub(total), total))
}
