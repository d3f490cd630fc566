//! The gateway's own limit: how many requests are in flight at once, over all models.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Gate;

/// Counts what is in flight, and lets models whose requests wait for that alone take turns.
#[derive(Debug)]
pub struct Seats {
    limit: u32,
    taken: AtomicU32,
    /// Gates that found no seat since they were last told of one.
    hungry: AtomicUsize,
    /// In the order in which they are told next.
    gates: Mutex<VecDeque<Weak<Gate>>>,
}

impl Seats {
    /// So many seats. Placements that run at one instant may each take the last one: as many too many as there are threads.
    pub fn new(limit: u32) -> Arc<Self> {
        Arc::new(Self { limit, taken: AtomicU32::new(0), hungry: AtomicUsize::new(0), gates: Mutex::default() })
    }

    pub(super) fn join(&self, gate: &Arc<Gate>) {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner).push_back(Arc::downgrade(gate));
    }

    /// Whether there is a free seat for the gate that this is the mark of. If not, the gate will be told of the next.
    pub(super) fn is_free_for(&self, mark: &AtomicBool) -> bool {
        if self.is_free() {
            return true;
        }
        if !mark.swap(true, Ordering::SeqCst) {
            self.hungry.fetch_add(1, Ordering::SeqCst);
        }
        // One that was given back before the mark was made is seen here, every later one is offered.
        self.is_free()
    }

    fn is_free(&self) -> bool {
        self.taken.load(Ordering::SeqCst) < self.limit
    }

    pub(super) fn take(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
        self.offer();
    }

    /// Requests in flight.
    #[cfg(test)]
    pub(super) fn taken(&self) -> u32 {
        self.taken.load(Ordering::SeqCst)
    }

    /// Tells one gate of a free seat, if there is one and a gate that wants it. Whoever is told and cannot use it offers it
    /// again. O(models) then, else a reading.
    pub(super) fn offer(&self) {
        while self.hungry.load(Ordering::SeqCst) > 0 && self.is_free() {
            let Some(gate) = self.next() else { return };
            self.hungry.fetch_sub(1, Ordering::SeqCst);
            gate.room();
            // A gate at which nobody waits has forgotten its mark, or somebody is just entering and will see the opening.
            if gate.has_waiting() {
                return;
            }
        }
    }

    /// The next gate with a mark, which it loses.
    fn next(&self) -> Option<Arc<Gate>> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        let marked = |gate: &Weak<Gate>| gate.upgrade().filter(|gate| gate.hungry.swap(false, Ordering::SeqCst));
        let (place, gate) = gates.iter().enumerate().find_map(|(place, gate)| Some((place, marked(gate)?)))?;
        gates.rotate_left(place + 1);
        Some(gate)
    }
}
