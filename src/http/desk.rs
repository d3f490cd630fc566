//! Who serves the next request: a gateway that can be replaced while others serve theirs to the end.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::extract::FromRef;

use super::gateway::Gateway;

/// The gateway of the moment. Every request takes it once, when it comes, and keeps it.
#[derive(Clone)]
pub struct Desk(Arc<ArcSwap<Gateway>>);

impl Desk {
    /// A desk with this gateway.
    pub fn new(gateway: Gateway) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(gateway)))
    }

    /// Who serves now.
    pub fn gateway(&self) -> Arc<Gateway> {
        self.0.load_full()
    }

    /// Serves every request that comes from now on by `gateway`.
    pub fn replace(&self, gateway: Gateway) {
        self.0.store(Arc::new(gateway));
    }
}

impl FromRef<Desk> for Arc<Gateway> {
    fn from_ref(desk: &Desk) -> Self {
        desk.gateway()
    }
}
