//! A history for tests of what is asked of one and told to it.

use std::sync::Mutex;
use std::time::Instant;

use warmpath_core::history::{Asked, History, Known, Measured};
use warmpath_core::ids::Slot;
use warmpath_core::units::Units;

/// Remembers the last request of each of `WORKERS`: all units match if it is the same, else none.
pub(crate) struct LastSent<const WORKERS: usize>(Mutex<[Vec<u32>; WORKERS]>);

impl<const WORKERS: usize> LastSent<WORKERS> {
    /// Nobody was sent anything.
    pub(crate) fn new() -> Self {
        Self(Mutex::new([const { Vec::new() }; WORKERS]))
    }

    fn units(asked: Asked<'_>) -> Vec<u32> {
        asked.each().flat_map(|(prompt, _)| prompt.ids().to_vec()).collect()
    }
}

impl<const WORKERS: usize> History for LastSent<WORKERS> {
    fn recall(&self, asked: Asked<'_>, known: &mut [Known]) {
        let (units, count) = (Self::units(asked), |units: &[u32]| Units(u32::try_from(units.len()).unwrap()));
        for (sent, known) in self.0.lock().unwrap().iter().zip(known) {
            let matched = if *sent == units { count(&units) } else { Units(0) };
            *known = Known { matched, asked: count(&units), size: count(sent) };
        }
    }

    fn learn(&self, _now: Instant, slot: Slot, asked: Asked<'_>) {
        self.0.lock().unwrap()[slot.index()] = Self::units(asked);
    }

    fn forget(&self, slot: Slot) {
        self.0.lock().unwrap()[slot.index()].clear();
    }

    fn measure(&self, _slot: Slot) -> Measured {
        Measured::default()
    }
}
