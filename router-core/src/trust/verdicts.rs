//! The verdicts on one question, and how far they are one sender's alone.

use std::time::Instant;

use super::window::Window;
use crate::shape::TenantId;

/// Senders that are told apart; who was heard of least lately makes room for the next.
const SENDERS_MAX: usize = 8;

/// Verdicts of a sender before they speak for a target.
const SPEAKS: u32 = 8;

/// The last verdicts on one question, of all senders together and of each of the last eight. Requests that the router reads
/// otherwise than an engine does can be anybody's, by mistake or on purpose: who sends them may spoil what others are
/// promised no more than these find it spoiled.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdicts {
    all: Window,
    senders: Vec<Sender>,
}

#[derive(Clone, Copy, Debug)]
struct Sender {
    id: Option<TenantId>,
    verdicts: u32,
    window: Window,
}

impl Verdicts {
    /// Takes note of a verdict on a request of this sender; those who do not say who they are are one sender together.
    pub(super) fn push(&mut self, now: Instant, sender: Option<TenantId>, bad: bool) {
        self.all.push(now, bad);
        self.senders.retain(|it| it.window.is_evidence(now));
        let mut known = match self.senders.iter().position(|it| it.id == sender) {
            Some(at) => self.senders.remove(at),
            None => Sender { id: sender, verdicts: 0, window: Window::default() },
        };
        known.verdicts = known.verdicts.saturating_add(1);
        known.window.push(now, bad);
        if self.senders.len() == SENDERS_MAX {
            self.senders.remove(0);
        }
        self.senders.push(known);
    }

    /// Bad ones of the last 32, whosever.
    pub(super) fn bad(&self) -> u32 {
        self.all.bad()
    }

    /// What all together leave of a promise; or what each of those leaves on average who have eight verdicts or more, the worst
    /// one aside, if that is more.
    pub(super) fn weight(&self) -> f64 {
        let all = self.all.weight();
        if all >= 1.0 {
            return all;
        }
        let speak = || self.senders.iter().filter(|it| it.verdicts >= SPEAKS).map(|it| it.window.weight());
        let (sum, worst) = speak().fold((0.0, 1.0_f64), |(sum, worst), weight| (sum + weight, worst.min(weight)));
        let others = speak().skip(1).fold(0.0, |count, _| count + 1.0);
        if others > 0.0 { all.max((sum - worst) / others) } else { all }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an origin for a pure function")]
    fn origin() -> Instant {
        Instant::now()
    }

    /// The verdicts of so many rounds, in each of which every sender has one.
    fn rounds(count: u32, senders: &[(u32, bool)]) -> Verdicts {
        let (mut verdicts, now) = (Verdicts::default(), origin());
        for _ in 0..count {
            senders.iter().for_each(|(id, bad)| verdicts.push(now, Some(TenantId(*id)), *bad));
        }
        verdicts
    }

    #[test]
    fn one_sender_spoils_nothing_for_others() {
        let mut verdicts = rounds(8, &[(1, false)]);
        for _ in 0..200 {
            verdicts.push(origin(), Some(TenantId(2)), true);
        }
        assert_eq!((verdicts.bad(), verdicts.weight()), (32, 1.0));
    }

    #[test]
    fn what_two_find_is_believed_and_so_is_what_the_only_one_finds() {
        assert_eq!(rounds(24, &[(1, true)]).weight(), 0.0);
        assert_eq!(rounds(24, &[(1, true), (2, true)]).weight(), 0.0);
        // Two of three: half of what those two leave who are not the worst.
        assert_eq!(rounds(24, &[(1, true), (2, true), (3, false)]).weight(), 0.5);
        // Seven verdicts do not speak yet.
        let mut verdicts = rounds(7, &[(1, false)]);
        (0..32).for_each(|_| verdicts.push(origin(), None, true));
        assert_eq!(verdicts.weight(), 0.0);
    }

    #[test]
    fn eight_senders_are_told_apart_and_none_for_longer_than_it_is_evidence() {
        let mut verdicts = rounds(8, &[(1, false)]);
        let now = origin();
        (2..=8).for_each(|id| verdicts.push(now, Some(TenantId(id)), true));
        (0..32).for_each(|_| verdicts.push(now, Some(TenantId(8)), true));
        assert_eq!(verdicts.weight(), 1.0, "the eighth");
        verdicts.push(now, Some(TenantId(9)), true);
        assert_eq!((verdicts.senders.len(), verdicts.weight()), (8, 0.0), "the ninth took the place of the first");
        let mut verdicts = rounds(8, &[(1, false)]);
        (0..32).for_each(|_| verdicts.push(now + Duration::from_secs(601), None, true));
        assert_eq!((verdicts.senders.len(), verdicts.weight()), (1, 0.0));
    }
}
