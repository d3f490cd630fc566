//! Among whom a request may choose: one that wants an adapter, or that some have failed, may not go where others may.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::Ticket;

/// The workers that a request may go to, by a hash of who they are. Where one request finds no room, another of the
/// same choice finds none either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Choice(u64);

impl Choice {
    /// Every worker: whoever may go to all and finds no room finds it for everybody.
    pub const ANY: Self = Self(0);

    /// Set where a request speaks for itself alone, so that no hash is the same.
    const ALONE: u64 = 1 << 63;

    /// Only some; which, is what the hash stands for.
    pub fn some(hash: u64) -> Self {
        Self((hash & !Self::ALONE).max(1))
    }

    /// Nobody knows whom this one may go to, nor whether another may go there.
    pub(super) fn alone(ticket: Ticket) -> Self {
        Self(ticket.0 | Self::ALONE)
    }
}

/// The choices that are passed over, until it begins anew.
#[derive(Debug, Default)]
pub struct PassedOver {
    choices: HashSet<Choice, foldhash::fast::RandomState>,
    round: u64,
}

impl PassedOver {
    /// One more is.
    pub fn add(&mut self, choice: Choice) {
        self.choices.insert(choice);
    }

    /// None is any more.
    pub fn clear(&mut self) {
        self.choices.clear();
        self.round += 1;
    }
}

/// Things in order, of which those of some choices can be passed over.
#[derive(Debug)]
pub(super) struct ByChoice<T> {
    things: BTreeMap<Choice, BTreeSet<T>>,
    /// The first of each choice.
    firsts: BTreeSet<(T, Choice)>,
    /// Those of them that were not seen to be passed over in this round: each is seen once, or those who have a choice of their
    /// own, one after the other, would look at all others every time.
    open: BTreeSet<(T, Choice)>,
    round: Option<u64>,
}

impl<T> Default for ByChoice<T> {
    fn default() -> Self {
        Self { things: BTreeMap::new(), firsts: BTreeSet::new(), open: BTreeSet::new(), round: None }
    }
}

impl<T: Copy + Ord> ByChoice<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.things.is_empty()
    }

    pub(super) fn insert(&mut self, choice: Choice, thing: T) {
        let things = self.things.entry(choice).or_default();
        let before = things.first().copied();
        things.insert(thing);
        let first = things.first().copied();
        self.note(choice, before, first);
    }

    /// Returns whether it was there.
    pub(super) fn remove(&mut self, choice: Choice, thing: T) -> bool {
        let Some(things) = self.things.get_mut(&choice) else { return false };
        let before = things.first().copied();
        let was_there = things.remove(&thing);
        let first = things.first().copied();
        if first.is_none() {
            self.things.remove(&choice);
        }
        self.note(choice, before, first);
        was_there
    }

    /// Another one may be the first of its choice; that this may be passed over is seen when it is looked at.
    fn note(&mut self, choice: Choice, before: Option<T>, first: Option<T>) {
        if before == first {
            return;
        }
        for firsts in [&mut self.firsts, &mut self.open] {
            if let Some(before) = before {
                firsts.remove(&(before, choice));
            }
            firsts.extend(first.map(|first| (first, choice)));
        }
    }

    /// The first one of all.
    pub(super) fn first(&self) -> Option<T> {
        self.firsts.first().map(|(thing, _)| *thing)
    }

    /// The first one that is of none of these choices. O(choices) once in a round, else of those that are new among them.
    pub(super) fn first_but(&mut self, passed_over: &PassedOver) -> Option<T> {
        if self.round != Some(passed_over.round) {
            self.round = Some(passed_over.round);
            self.open.clone_from(&self.firsts);
        }
        while let Some((thing, choice)) = self.open.first().copied() {
            if !passed_over.choices.contains(&choice) {
                return Some(thing);
            }
            self.open.pop_first();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

    use super::*;

    thread_local!(static COMPARED: Cell<usize> = const { Cell::new(0) });

    /// Counts how often one is compared with another.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Counted(u32);

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARED.with(|compared| compared.set(compared.get() + 1));
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    #[test]
    fn a_round_of_turns_looks_at_each_choice_a_few_times() {
        const WAITING: u32 = 1_000;
        let (mut things, mut passed_over) = (ByChoice::default(), PassedOver::default());
        let choice = |thing: u32| Choice::some(u64::from(thing) + 1);
        (0..WAITING).for_each(|thing| things.insert(choice(thing), Counted(thing)));
        passed_over.clear();
        let before = COMPARED.with(Cell::get);
        for turn in 0..WAITING {
            let Counted(thing) = things.first_but(&passed_over).unwrap();
            assert_eq!(thing, turn);
            passed_over.add(choice(thing));
            passed_over.add(choice(thing));
        }
        assert_eq!(things.first_but(&passed_over), None);
        let compared = COMPARED.with(Cell::get) - before;
        assert!(compared < 40_000, "{compared}");
        passed_over.clear();
        assert_eq!(things.first_but(&passed_over), Some(Counted(0)));
    }

    #[test]
    fn what_comes_and_goes_within_a_round_is_passed_over_by_its_choice() {
        let (mut things, mut passed_over) = (ByChoice::default(), PassedOver::default());
        let [one, two, three] = [1, 2, 3].map(Choice::some);
        [(one, 5), (one, 7), (two, 6), (two, 9)].into_iter().for_each(|(choice, thing)| things.insert(choice, thing));
        passed_over.add(one);
        assert_eq!((things.first(), things.first_but(&passed_over)), (Some(5), Some(6)));
        // Before the first of a choice that is passed over, of one that is not, and of one that is new.
        things.insert(one, 1);
        assert_eq!((things.first(), things.first_but(&passed_over)), (Some(1), Some(6)));
        things.insert(two, 2);
        assert_eq!(things.first_but(&passed_over), Some(2));
        assert!(things.remove(two, 2) && things.remove(two, 6) && !things.remove(two, 6) && !things.remove(three, 6));
        things.insert(three, 8);
        assert_eq!(things.first_but(&passed_over), Some(8));
        assert!(things.remove(three, 8));
        assert_eq!(things.first_but(&passed_over), Some(9));
        passed_over.add(two);
        assert_eq!(things.first_but(&passed_over), None);
        passed_over.clear();
        assert_eq!(things.first_but(&passed_over), Some(1));
        [1, 5, 7].into_iter().for_each(|thing| assert!(things.remove(one, thing)));
        assert!(things.remove(two, 9) && things.is_empty());
        assert_eq!((things.first(), things.first_but(&passed_over)), (None, None));
    }
}
