//! Why requests are given up before their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Their clients leave; or else the router has cut them off, because it stops. Whoever is dropped in the middle cannot tell
/// one from the other by itself.
#[derive(Clone, Debug, Default)]
pub struct Parting(Arc<AtomicBool>);

impl Parting {
    /// From now on it is the router.
    pub fn cut(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The word for it in `requests_total`.
    pub fn outcome(&self) -> &'static str {
        if self.0.load(Ordering::Relaxed) { "shutting_down" } else { "client_left" }
    }
}
