//! Between understanding a request and sending it: a worker, at once or when it is the request's turn.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use warmpath_core::admission;
use warmpath_core::queue::Choice;
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::Tokens;

use super::forward::Understood;
use super::gateway::Gateway;
use super::place::{Placed, place};
use crate::error::GatewayError;
use crate::queue::{Asking, Placing};

impl Gateway {
    /// A worker for the request, other than those in `avoid`, which have failed it. Waits while all are full, if the
    /// configuration says so; dropping the future gives up the place in the queue. Reserves nothing before it returns.
    pub(super) async fn admit(&self, request: &Understood, avoid: &SlotSet) -> Result<Placed, GatewayError> {
        let asking = Asking {
            class: request.shape.class,
            tenant: request.shape.tenant,
            deadline: request.deadline,
            returned: !avoid.is_empty(),
            choice: choice(request, avoid),
        };
        request.pool.gate.admit(&asking, &mut Trying { gateway: self, request, avoid }).await
    }
}

/// Those that have its adapter and have not failed it.
fn choice(request: &Understood, avoid: &SlotSet) -> Choice {
    if request.adapter.is_none() && avoid.is_empty() {
        return Choice::ANY;
    }
    let mut hasher = DefaultHasher::new();
    request.adapter.hash(&mut hasher);
    avoid.iter().for_each(|slot| slot.hash(&mut hasher));
    Choice::some(hasher.finish())
}

struct Trying<'a> {
    gateway: &'a Gateway,
    request: &'a Understood,
    avoid: &'a SlotSet,
}

impl Placing for Trying<'_> {
    type Placed = Placed;

    fn place(&mut self) -> Result<(Self::Placed, Tokens), GatewayError> {
        let placed = place(self.gateway, self.request, self.avoid)?;
        let tokens = placed.placement.new_tokens;
        Ok((placed, tokens))
    }

    fn next_growth(&self, now: Instant) -> Option<Instant> {
        let roster = self.gateway.fleet.roster();
        let table = roster.table();
        admission::next_growth(now, (table, table.pool(&self.request.pool.model)?))
    }
}
