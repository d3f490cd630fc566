//! Between understanding a request and sending it: a worker, at once or when it is the request's turn.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::time::Instant;

use futures_util::FutureExt;
use warmpath_core::admission;
use warmpath_core::queue::Choice;
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::Tokens;

use super::forward::Understood;
use super::gateway::Gateway;
use super::place::{Placed, avoided, place};
use crate::error::GatewayError;
use crate::queue::{Asking, Placing};
use crate::telemetry::access::Access;

impl Gateway {
    /// A worker for the request, other than those in `avoid`, which have failed it; whether it has `returned` from one. Waits
    /// while all are full, if the configuration says so; dropping the future gives up the place in the queue. Reserves nothing
    /// before it returns.
    pub(super) async fn admit(
        &self,
        request: &Understood,
        avoid: &SlotSet,
        returned: bool,
    ) -> Result<Placed, GatewayError> {
        let asking = Asking {
            arrived: request.arrived,
            class: request.shape.class,
            tenant: request.shape.tenant,
            deadline: request.deadline,
            returned,
        };
        let mut trying = Trying { gateway: self, request, avoid };
        let mut admitted = pin!(request.pool.gate.admit(&asking, &mut trying));
        if let Some(at_once) = admitted.as_mut().now_or_never() {
            return at_once;
        }
        let _waiting = request.access.as_deref().map(Access::waits);
        admitted.await
    }
}

/// All but these, whatever keeps a request from them: of those that wait for a hundred adapters of one worker, one finds
/// room for all, or none.
fn all_but(avoid: &SlotSet) -> Choice {
    if avoid.is_empty() {
        return Choice::ANY;
    }
    let mut hasher = DefaultHasher::new();
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

    fn choice(&self) -> Choice {
        if self.request.adapter.is_none() && self.request.alias.is_none() {
            return all_but(self.avoid);
        }
        let mut lacking = SlotSet::new();
        all_but(avoided(self.request, self.avoid, &self.gateway.fleet.roster(), &mut lacking))
    }

    fn next_growth(&self, now: Instant) -> Option<Instant> {
        let roster = self.gateway.fleet.roster();
        let table = roster.table();
        admission::next_growth(now, (table, table.pool(&self.request.pool.model)?))
    }
}

#[cfg(test)]
mod tests {
    use warmpath_core::ids::Slot;

    use super::*;

    #[test]
    fn those_that_may_go_to_the_same_workers_have_one_choice() {
        let but = |slots: &[u16]| all_but(&slots.iter().copied().map(Slot).collect());
        assert_eq!((but(&[]), but(&[1, 2])), (Choice::ANY, but(&[2, 1])));
        assert!(but(&[1]) != but(&[2]) && but(&[1]) != but(&[1, 2]) && but(&[1]) != Choice::ANY);
    }
}
