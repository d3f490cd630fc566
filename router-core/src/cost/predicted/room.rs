//! How long a request waits for a slot and for blocks.

use crate::cost::Candidate;

/// ms until there is a slot and blocks for the request, where `until_gone` tells when a share of those in flight has given
/// theirs back. None for blocks where the size of the cache is not known. An engine takes a prompt as soon as its blocks are
/// there, whatever tokens will take that are still to come.
#[inline]
pub(super) fn until_room(candidate: &Candidate, until_gone: impl Fn(f64) -> f64) -> f64 {
    let has_slot = candidate.active_slots < candidate.total_slots || candidate.total_slots == 0;
    let missing = missing_blocks(candidate);
    if has_slot && missing <= 0.0 { 0.0 } else { until_gone(missing_share(candidate, missing)) }
}

#[inline]
fn missing_blocks(candidate: &Candidate) -> f64 {
    let wanted = f64::from(candidate.active_blocks.0) + f64::from(candidate.added_blocks.0);
    if candidate.total_is_learned { 0.0 } else { wanted - f64::from(candidate.total_blocks.0) }
}

/// The share of slots or blocks in use that has to be given back first.
#[inline(never)]
fn missing_share(candidate: &Candidate, missing_blocks: f64) -> f64 {
    let share = |missing: f64, total: f64| if total > 0.0 && missing > 0.0 { missing / total } else { 0.0 };
    let (taken, slots) = (f64::from(candidate.active_slots), f64::from(candidate.total_slots));
    share(taken + 1.0 - slots, slots).max(share(missing_blocks, f64::from(candidate.total_blocks.0)))
}
