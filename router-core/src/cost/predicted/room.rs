//! How long a request waits for a slot and for blocks.

use crate::cost::{Candidate, ratio};

/// ms until there is a slot and blocks for the request, where `until_gone` tells when a share of those in flight has given
/// theirs back. None for blocks where the size of the cache is not known. An engine takes a prompt as soon as its blocks are
/// there, whatever tokens will take that are still to come.
#[inline]
pub(super) fn until_room(candidate: &Candidate, until_gone: impl Fn(f64) -> f64) -> f64 {
    let has_slot = candidate.active_slots < candidate.total_slots || candidate.total_slots == 0;
    let wanted = candidate.active_blocks.0.saturating_add(candidate.added_blocks.0);
    let has_blocks = wanted <= candidate.total_blocks.0 || candidate.total_is_learned;
    if has_slot && has_blocks { 0.0 } else { until_gone(missing_share(candidate, wanted)) }
}

/// The share of slots or blocks in use that has to be given back first.
#[inline(never)]
fn missing_share(candidate: &Candidate, wanted: u32) -> f64 {
    let slots =
        ratio(candidate.active_slots.saturating_add(1).saturating_sub(candidate.total_slots), candidate.total_slots);
    let total = if candidate.total_is_learned { 0 } else { candidate.total_blocks.0 };
    slots.max(ratio(wanted.saturating_sub(total), total))
}
