//! Whose sessions go on at a worker: how many there are, how often they come, and what coming there saves them.

use std::collections::{HashMap, VecDeque};

use super::ages::{AGES, Ages};
use super::mean::Mean;
use super::reading::Flow;
use crate::ids::{SequenceHash, Slot};
use crate::real::larger;
use crate::shape::Turn;

/// Prompts that somebody may go on with and that are remembered: the oldest are forgotten for new ones.
const OPEN_MAX: usize = 131_072;

/// Blocks before a fork among which the end of the prompt before is looked for: an answer of a thousand tokens in the smallest
/// blocks that engines use by themselves.
const ANSWER_BLOCKS: usize = 64;

/// Those who go on with one prompt within so many ms come at once, as thoughts do that part there: they are no session, and how
/// many come does not show in how many prompts there are.
const BURST_MS: f64 = 20.0;

/// Those who went on of whom the mean is that it saved.
const SAVED: f64 = 16.0;

/// The prompts that came last, by their ends, and where they were sent. Whoever holds many of which somebody goes on soon has
/// many regulars, and that is known better than by how often they came: of eight sessions one visit in a second tells less than
/// that there are eight. Times are in ms. O(1) for each prompt, amortised; memory for [`OPEN_MAX`] of them.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    open: HashMap<SequenceHash, Open, foldhash::fast::RandomState>,
    /// All of an age, the oldest first; some of them are not open any more.
    by_age: [VecDeque<Opened>; AGES],
    /// When somebody went on with which: more may come at once.
    left: VecDeque<(f64, SequenceHash)>,
    ages: Ages,
    /// How many in a ms go on with one of each age, when that was reckoned last, and how many have gone on since.
    per_ms: [f64; AGES],
    since: usize,
    slots: Vec<Held>,
    next: u64,
}

/// A prompt that came.
#[derive(Clone, Copy, Debug)]
struct Open {
    number: u64,
    slot: Slot,
    came: f64,
    age: usize,
    stage: Stage,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Nobody went on with it so far.
    Waits,
    /// Somebody did, there, whom that saved so many ms.
    WentOn { saved: f64 },
    /// Somebody did elsewhere, or several did at once.
    Parted,
}

/// The same in the order of age.
#[derive(Clone, Copy, Debug)]
struct Opened {
    end: SequenceHash,
    number: u64,
    came: f64,
}

/// Those that one worker was sent.
#[derive(Debug)]
struct Held {
    of_age: [u32; AGES],
    /// How many in a ms go on with these.
    per_ms: f64,
    saved: Mean,
}

impl Default for Held {
    fn default() -> Self {
        Self { of_age: [0; AGES], per_ms: 0.0, saved: Mean::new(1.0 / SAVED) }
    }
}

impl Sessions {
    /// Somebody came, whom that saved so many ms. `other` is told of all that do not go on with a session where it is: slot and
    /// what was saved.
    pub(super) fn come(
        &mut self,
        now: f64,
        (slot, saved): (Slot, f64),
        turn: Option<Turn>,
        mut other: impl FnMut(Slot, f64),
    ) {
        self.pass(now);
        let before = turn.and_then(|turn| turn.before);
        if !before.is_some_and(|before| self.goes_on(now, before, (slot, saved), &mut other)) {
            other(slot, saved);
        }
        turn.into_iter().for_each(|turn| self.open(now, turn.end, slot));
    }

    /// Of the prompt in whose `path` these blocks are, the place of the end of the one that it goes on with.
    pub(super) fn before(&self, path: &[SequenceHash]) -> Option<usize> {
        let from = path.len().saturating_sub(ANSWER_BLOCKS);
        (from..path.len()).rev().find(|at| self.open.contains_key(&path[*at]))
    }

    /// Those who go on at a worker.
    #[inline]
    pub(super) fn at(&self, slot: Slot) -> Flow {
        self.slots
            .get(slot.index())
            .map_or(Flow::default(), |held| Flow { per_ms: larger(held.per_ms, 0.0), saved: held.saved.get() })
    }

    /// Another worker has the slot. O(prompts).
    pub(super) fn forget(&mut self, slot: Slot) {
        self.open.retain(|_, open| open.slot != slot);
        self.slots.get_mut(slot.index()).into_iter().for_each(|held| *held = Held::default());
    }

    /// Whether it is a session that goes on there, as far as is known.
    fn goes_on(
        &mut self,
        now: f64,
        before: SequenceHash,
        (slot, saved): (Slot, f64),
        other: &mut impl FnMut(Slot, f64),
    ) -> bool {
        let Some(open) = self.open.get_mut(&before) else { return false };
        let is_there = open.slot == slot;
        let stage = if is_there && open.stage == Stage::Waits { Stage::WentOn { saved } } else { Stage::Parted };
        let Open { slot: home, age, came, stage: was, .. } = *open;
        open.stage = stage;
        match was {
            Stage::Waits => {
                self.leave(home, age);
                self.ages.waited(age, now - came);
                self.left.push_back((now, before));
            }
            // Who came first is one of several.
            Stage::WentOn { saved } => {
                self.ages.take_back(age);
                other(home, saved);
            }
            Stage::Parted => {}
        }
        if is_there && was == Stage::Waits {
            self.ages.went_on(age);
            self.slots[slot.index()].saved.add(saved);
            self.since += 1;
        }
        is_there && was == Stage::Waits
    }

    /// A prompt came that somebody may go on with.
    fn open(&mut self, now: f64, end: SequenceHash, slot: Slot) {
        while self.open.len() >= OPEN_MAX && self.forget_oldest() {}
        if self.slots.len() <= slot.index() {
            self.slots.resize_with(slot.index() + 1, Held::default);
        }
        self.next += 1;
        let open = Open { number: self.next, slot, came: now, age: 0, stage: Stage::Waits };
        if let Some(Open { slot, came, age, stage: Stage::Waits, .. }) = self.open.insert(end, open) {
            self.leave(slot, age);
            self.ages.waited(age, now - came);
        }
        self.enter(slot, 0);
        self.by_age[0].push_back(Opened { end, number: self.next, came: now });
    }

    /// Time has passed: prompts are older, and whoever went on with one went on alone.
    fn pass(&mut self, now: f64) {
        while let Some((_, end)) = self.left.pop_front_if(|(at, _)| now - *at > BURST_MS) {
            if self.open.get(&end).is_some_and(|open| open.stage != Stage::Waits) {
                self.open.remove(&end);
            }
        }
        for age in 0..AGES {
            let until = self.ages.end(age);
            while let Some(opened) = self.by_age[age].pop_front_if(|opened| opened.came + until <= now) {
                self.grow(age, opened);
            }
        }
        // What it costs for all workers is spread over those who went on.
        if self.since > self.slots.len() / 8 {
            (self.since, self.per_ms) = (0, self.ages.per_ms());
            for held in &mut self.slots {
                held.per_ms =
                    held.of_age.iter().zip(self.per_ms).map(|(count, per_ms)| f64::from(*count) * per_ms).sum();
            }
        }
    }

    /// One has been of this age for as long as that lasts.
    fn grow(&mut self, age: usize, opened: Opened) {
        let open = self.open.get_mut(&opened.end).filter(|open| open.is(opened.number));
        let Some(Open { slot, age: older, .. }) = open else { return };
        *older = age + 1;
        let slot = *slot;
        self.ages.waited(age, self.ages.end(age));
        self.leave(slot, age);
        match self.by_age.get_mut(age + 1) {
            Some(next) => {
                next.push_back(opened);
                self.enter(slot, age + 1);
            }
            None => drop(self.open.remove(&opened.end)),
        }
    }

    /// Whether there was one.
    fn forget_oldest(&mut self) -> bool {
        let oldest = self.by_age.iter_mut().rev().find_map(VecDeque::pop_front);
        let Some(Opened { end, number, .. }) = oldest else { return false };
        if let Some(Open { slot, age, .. }) = self.open.get(&end).copied().filter(|open| open.is(number)) {
            self.leave(slot, age);
            self.open.remove(&end);
        }
        true
    }

    fn enter(&mut self, slot: Slot, age: usize) {
        let held = &mut self.slots[slot.index()];
        held.of_age[age] += 1;
        held.per_ms += self.per_ms[age];
    }

    fn leave(&mut self, slot: Slot, age: usize) {
        let held = &mut self.slots[slot.index()];
        held.of_age[age] -= 1;
        held.per_ms -= self.per_ms[age];
    }
}

impl Open {
    /// Whether it is that one, and nobody went on with it.
    fn is(&self, number: u64) -> bool {
        self.number == number && self.stage == Stage::Waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: Slot = Slot(1);

    /// Who counts as one that goes on with no session: the slots, in order.
    fn come(sessions: &mut Sessions, now: f64, slot: Slot, (end, before): (u64, Option<u64>)) -> Vec<Slot> {
        let mut others = Vec::new();
        let turn = Turn { end: SequenceHash(end), before: before.map(SequenceHash) };
        sessions.come(now, (slot, 40.0), Some(turn), |slot, _| others.push(slot));
        others
    }

    /// So many sessions at one worker that go on after 100 ms on average, as by chance; and what was told of them on the way.
    fn went_on(count: u32) -> (Sessions, Vec<f64>) {
        let gap = |session: u32, turn: u32| {
            let share = f64::from((session * 31 + turn * 37) % 100) / 100.0 + 0.005;
            -100.0 * (1.0 - share).ln()
        };
        let mut turns = Vec::new();
        for session in 0..count {
            let mut now = 0.0;
            for turn in 0..300 {
                now += gap(session, turn);
                let end = |turn: u32| u64::from(session * 1_000 + turn);
                turns.push((now, (end(turn), turn.checked_sub(1).map(end))));
            }
        }
        turns.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut sessions = Sessions::default();
        let told = turns.into_iter().map(|(now, turn)| {
            come(&mut sessions, now, HOME, turn);
            sessions.at(HOME).per_ms
        });
        let told = told.collect();
        (sessions, told)
    }

    #[test]
    fn as_many_come_as_there_are_sessions() {
        for count in [1, 4, 16] {
            let (sessions, told) = went_on(count);
            let late = &told[told.len() / 2..told.len() * 9 / 10];
            let mean = late.iter().sum::<f64>() / f64::from(u32::try_from(late.len()).unwrap());
            assert!((mean * 100.0 / f64::from(count) - 1.0).abs() < 0.15, "{count}: {mean}");
            // By the visits of sixteen it would differ by a quarter from one to the next dozen.
            let furthest = late.iter().map(|rate| (rate / mean - 1.0).abs()).fold(0.0, f64::max);
            assert!(count < 16 || furthest < 0.2, "{count}: {furthest}");
            assert_eq!((sessions.at(HOME).saved, sessions.at(Slot(0))), (40.0, Flow::default()));
        }
    }

    #[test]
    fn a_session_that_stays_away_is_believed_less_and_less() {
        let mut sessions = went_on(4).0;
        let mut last = f64::INFINITY;
        for now in [32_000.0, 33_000.0, 60_000.0, 1e6, 2e6] {
            sessions.pass(now);
            let per_ms = sessions.at(HOME).per_ms;
            assert!(per_ms <= last, "{now}: {per_ms} after {last}");
            last = per_ms;
        }
        assert!(last < 1e-12 && sessions.open.is_empty(), "{last}, {} are open", sessions.open.len());
        assert!(sessions.by_age.iter().all(VecDeque::is_empty));
    }

    #[test]
    fn a_prompt_goes_on_with_the_last_whose_end_is_in_it() {
        let mut sessions = Sessions::default();
        come(&mut sessions, 0.0, HOME, (7, None));
        come(&mut sessions, 1.0, HOME, (3, None));
        let path: Vec<_> = (0..100).map(SequenceHash).collect();
        let before = |blocks: usize| sessions.before(&path[..blocks]);
        assert_eq!(
            [0, 3, 4, 7, 8, 67, 71, 72].map(before),
            [None, None, Some(3), Some(3), Some(7), Some(7), Some(7), None]
        );
    }

    #[test]
    fn who_goes_on_elsewhere_or_with_others_at_once_is_no_session() {
        let mut sessions = Sessions::default();
        let mut came = |now, slot, end, before| come(&mut sessions, now, slot, (end, before));
        // The first of anything is another, who goes on there is not.
        assert_eq!(came(0.0, HOME, 1, None), [HOME]);
        assert_eq!(came(100.0, HOME, 2, Some(1)), []);
        // Elsewhere.
        assert_eq!(came(200.0, Slot(0), 3, Some(2)), [Slot(0)]);
        // Three at once: with the second the first is known for one of several.
        assert_eq!(came(300.0, Slot(0), 4, Some(3)), []);
        assert_eq!(came(310.0, HOME, 5, Some(3)), [Slot(0), HOME]);
        assert_eq!(came(315.0, HOME, 6, Some(3)), [HOME]);
        // What they went on with is closed once nobody comes with them any more.
        assert_eq!(came(400.0, HOME, 7, Some(3)), [HOME]);
        assert_eq!(sessions.open.len(), 4, "4 to 7");
        // Of all that were seen one went on.
        assert!((sessions.ages.per_ms().iter().sum::<f64>() * 200.0 - 1.0).abs() < 0.5);
    }

    #[test]
    fn thoughts_that_part_at_once_make_no_regulars() {
        let mut sessions = Sessions::default();
        for tree in 0..100_u32 {
            let (now, end) = (f64::from(tree) * 1_000.0, u64::from(tree) * 10);
            come(&mut sessions, now, HOME, (end, None));
            (1..4).for_each(|thought| drop(come(&mut sessions, now + 500.0, HOME, (end + thought, Some(end)))));
        }
        assert_eq!(sessions.at(HOME).per_ms, 0.0);
    }

    #[test]
    fn a_slot_that_another_has_holds_nothing() {
        let mut sessions = went_on(4).0;
        assert!(sessions.at(HOME).per_ms > 0.0);
        sessions.forget(HOME);
        assert_eq!(sessions.at(HOME), Flow::default());
        // What was open does not come back with age, and who goes on with it is another.
        assert_eq!(come(&mut sessions, 32_000.0, HOME, (9_000, Some(299))), [HOME]);
        sessions.pass(1e7);
        assert_eq!((sessions.at(HOME).per_ms, sessions.open.len()), (0.0, 0));
    }

    #[test]
    fn the_oldest_are_forgotten_for_new_ones() {
        let mut sessions = Sessions::default();
        let most = u64::try_from(OPEN_MAX).unwrap();
        (0..most + 1_000).for_each(|end| {
            drop(come(&mut sessions, 0.001 * f64::from(u32::try_from(end).unwrap()), HOME, (end, None)))
        });
        let has = |end| sessions.open.contains_key(&SequenceHash(end));
        assert_eq!((sessions.open.len(), has(999), has(1_000)), (OPEN_MAX, false, true));
        let count: u32 = sessions.slots[HOME.index()].of_age.iter().sum();
        assert_eq!(u64::from(count), most);
    }

    #[test]
    fn the_same_prompt_again_is_open_once() {
        let mut sessions = Sessions::default();
        (0..8).for_each(|_| drop(come(&mut sessions, 5.0, HOME, (1, None))));
        assert_eq!(sessions.slots[HOME.index()].of_age[0], 1);
        sessions.pass(1e7);
        assert_eq!(sessions.slots[HOME.index()].of_age, [0; AGES]);
    }
}
