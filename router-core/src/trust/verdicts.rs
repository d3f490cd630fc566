//! The verdicts on one question, and how far they are one sender's alone.

use std::time::Instant;

use super::window::Window;
use crate::shape::TenantId;

/// Groups that tenants fall into by their numbers, which are drawn.
const OF_TENANTS: u32 = 15;

/// Those, and before them the one of all who do not say who they are.
const GROUPS: usize = 16;

/// Verdicts of a group before they speak for a target.
const SPEAKS: u8 = 8;

/// The last verdicts on one question, of all senders together and of each group. Requests that the router reads otherwise than
/// an engine does can be anybody's, by mistake or on purpose: who sends them may spoil what others are promised no more than
/// these find it spoiled.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdicts {
    all: Window,
    groups: [Group; GROUPS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Group {
    /// As many as speak at most.
    verdicts: u8,
    window: Window,
}

impl Verdicts {
    /// Takes note of a verdict on a request of this sender.
    pub(super) fn push(&mut self, now: Instant, sender: Option<TenantId>, bad: bool) {
        self.all.push(now, bad);
        for group in self.groups.iter_mut().filter(|group| !group.window.is_evidence(now)) {
            *group = Group::default();
        }
        let group = &mut self.groups[place(sender)];
        group.verdicts = (group.verdicts + 1).min(SPEAKS);
        group.window.push(now, bad);
    }

    /// Bad ones of the last 32, whosever.
    pub(super) fn bad(&self) -> u32 {
        self.all.bad()
    }

    /// What all together leave of a promise; or what each of those groups leaves on average that have eight verdicts or more, the
    /// worst one aside, if that is more.
    pub(super) fn weight(&self) -> f64 {
        let all = self.all.weight();
        if all >= 1.0 {
            return all;
        }
        let speak = || self.groups.iter().filter(|it| it.verdicts == SPEAKS).map(|it| it.window.weight());
        let (sum, worst) = speak().fold((0.0, 1.0_f64), |(sum, worst), weight| (sum + weight, worst.min(weight)));
        let others = speak().skip(1).fold(0.0, |count, _| count + 1.0);
        if others > 0.0 { all.max((sum - worst) / others) } else { all }
    }
}

/// The group that a sender belongs to.
fn place(sender: Option<TenantId>) -> usize {
    sender.map_or(0, |TenantId(id)| 1 + usize::try_from(id % OF_TENANTS).unwrap_or(0))
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
        // However many these are, and three of four verdicts its own.
        let (mut verdicts, now) = (Verdicts::default(), origin());
        for number in 0..8 * 14 {
            verdicts.push(now, Some(TenantId(number % 14)), false);
            (0..3).for_each(|_| verdicts.push(now, Some(TenantId(14)), true));
        }
        assert_eq!((verdicts.bad(), verdicts.weight()), (24, 1.0));
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
    fn a_group_is_told_apart_for_no_longer_than_it_is_evidence() {
        let mut verdicts = rounds(8, &[(1, false)]);
        (0..32).for_each(|_| verdicts.push(origin() + Duration::from_secs(601), None, true));
        assert_eq!(verdicts.weight(), 0.0);
        assert_eq!([None, Some(0), Some(14), Some(15)].map(|id| place(id.map(TenantId))), [0, 1, 15, 1]);
    }
}
