//! What workers will hold that no event tells of yet: the prompts that were sent to them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::ids::{SequenceHash, Slot};
use crate::overlap::TierBlocks;
use crate::units::Blocks;

mod flights;
mod tree;

use flights::{Flights, Line};
use tree::Tree;

/// How long after its first token a prompt still counts. An engine announces blocks when it schedules them, which is
/// before the first token leaves it, so that only the events' own way has to be bridged.
const EVENTS_LAG: Duration = Duration::from_millis(100);

/// The prompts in flight of one pool, by worker: for the ledger, how many blocks they are, each counted once for a
/// worker; for placements, what they add to the index.
///
/// A prompt *counts as cached* where it was sent, from that instant until 100 ms after its first token; without one, for
/// `index.in_flight_credit`; and never longer than its request, nor after [`Overlay::withdraw`]. Until its first token
/// the worker has yet to compute it, so that whoever follows finds it there, whatever has been evicted before; after it
/// the events know better.
///
/// Blocks that prompts share are kept once, in a tree behind one lock. Holds are short: a look-up compares a hash or two
/// for each fork on its way, an entry copies what is new. Everything is bounded by the prompts in flight.
pub struct Overlay {
    /// In nanoseconds.
    credit: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tree: Tree,
    flights: Flights,
}

impl State {
    /// Ends the credits whose time is over.
    fn expire(&mut self, now: Instant) {
        for line in Line::ALL {
            while let Some(flight) = self.flights.overdue(line, now) {
                self.tree.uncredit(flight.node, flight.slot);
            }
        }
    }
}

impl Overlay {
    /// Nothing in flight. Without a first token a prompt counts as cached for `credit`; with zero, none ever does.
    pub fn new(credit: Duration) -> Self {
        let overlay = Self { credit: AtomicU64::new(0), state: Mutex::default() };
        overlay.set_credit(credit);
        overlay
    }

    /// From now on prompts count as cached for `credit`; those in flight keep what they have.
    pub fn set_credit(&self, credit: Duration) {
        self.credit.store(u64::try_from(credit.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long prompts count as cached.
    pub fn credit(&self) -> Duration {
        Duration::from_nanos(self.credit.load(Ordering::Relaxed))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held, so a poisoned lock still guards whole data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises each worker's overlap with `prompt` in `held[slot]` by what prompts in flight there have in common with it, at
    /// most `cap`: that counts as on the device, whatever the index has below. Slots beyond `held` are left out.
    /// O(forks × (log blocks + slots / 64) + workers).
    pub fn raise(&self, now: Instant, prompt: &[SequenceHash], cap: Blocks, held: &mut [TierBlocks]) {
        if self.credit().is_zero() || prompt.is_empty() {
            return;
        }
        let mut state = self.state();
        state.expire(now);
        state.tree.credits(prompt, |slot, blocks| {
            let blocks = Blocks(blocks).min(cap);
            if let Some(held) = held.get_mut(slot.index()) {
                held.lead(blocks);
            }
        });
    }

    /// Sets for each worker how many leading blocks of `prompt` are in flight there, whether they count as cached or not;
    /// leaves the others. Slots beyond `shared` are left out. O(workers that share a block, for each fork).
    pub fn in_flight(&self, prompt: &[SequenceHash], shared: &mut [u32]) {
        self.state().tree.shared(prompt, |slot, blocks| {
            if let Some(shared) = shared.get_mut(slot.index()) {
                *shared = blocks;
            }
        });
    }

    /// A request with these prompts goes to `slot`. O(blocks) at the speed of copying them; allocates nothing once warm.
    pub fn enter<'p>(
        self: &Arc<Self>,
        now: Instant,
        slot: Slot,
        prompts: impl Iterator<Item = &'p [SequenceHash]>,
    ) -> Stay {
        let until = now.checked_add(self.credit()).unwrap_or(now);
        let credited = until > now;
        let (mut first, mut blocks) = (None, 0);
        let mut state = self.state();
        for prompt in prompts.filter(|prompt| !prompt.is_empty()) {
            let (node, new) = state.tree.enter(prompt, slot, credited);
            let flight = state.flights.add(node, slot, first, now);
            if credited {
                state.flights.line_up(flight, Line::Unanswered, until);
            }
            first = Some(flight);
            blocks += new;
        }
        drop(state);
        Stay { overlay: Arc::clone(self), first, blocks: Blocks(blocks) }
    }

    /// Nothing in flight at `slot` counts as cached any more: the worker has restarted or is gone. The prompts still
    /// count as in flight until their requests end. O(prompts in flight).
    pub fn withdraw(&self, slot: Slot) {
        let mut state = self.state();
        let State { tree, flights } = &mut *state;
        let there: Vec<usize> = flights.numbers_at(slot).collect();
        for number in there {
            if flights.unline(number).is_some()
                && let Some(flight) = flights.get(number)
            {
                tree.uncredit(flight.node, slot);
            }
        }
    }

    /// Blocks that count as cached at `slot` because they are in flight, each once.
    pub fn credited(&self, now: Instant, slot: Slot) -> Blocks {
        let mut state = self.state();
        state.expire(now);
        Blocks(state.tree.credited(slot))
    }
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} prompts in flight", self.state().flights.len())
    }
}

/// The prompts of one request, in flight on one worker. Whoever has it takes care that it leaves.
#[derive(Debug)]
pub struct Stay {
    overlay: Arc<Overlay>,
    first: Option<usize>,
    blocks: Blocks,
}

impl Stay {
    /// Blocks that were not in flight at the worker before.
    pub(crate) fn new_blocks(&self) -> Blocks {
        self.blocks
    }

    /// The request has its first token.
    pub(crate) fn first_token(&self, now: Instant) {
        if self.first.is_none() || self.overlay.credit().is_zero() {
            return;
        }
        let ends = now.checked_add(EVENTS_LAG).unwrap_or(now);
        let mut state = self.overlay.state();
        state.expire(now);
        let mut next = self.first;
        while let Some(number) = next {
            if state.flights.unline(number).is_some() {
                state.flights.line_up(number, Line::Answered, ends);
            }
            next = state.flights.get(number).and_then(|flight| flight.sibling);
        }
    }

    /// The request has ended. Returns how many blocks are not in flight at the worker any more.
    pub(crate) fn leave(&mut self) -> Blocks {
        let mut freed = 0;
        let Some(first) = self.first.take() else { return Blocks(0) };
        let mut state = self.overlay.state();
        let mut next = Some(first);
        while let Some(flight) = next.and_then(|number| state.flights.take(number)) {
            freed += state.tree.leave(flight.node, flight.slot, flight.line.is_some());
            next = flight.sibling;
        }
        Blocks(freed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::units::Tier;

    const CREDIT: Duration = Duration::from_secs(30);
    const SLOTS: [u16; 3] = [0, 1, 200];

    #[expect(clippy::disallowed_methods, reason = "an origin for a pure function")]
    fn origin() -> Instant {
        Instant::now()
    }

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    /// A hash for each place, which names all before it.
    fn chain(names: &[u8]) -> Vec<SequenceHash> {
        let mut hash = 1_u64;
        let mut follow = |name: &u8| {
            hash =
                (hash ^ u64::from(*name)).wrapping_add(0x5bf0_3635).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            SequenceHash(hash)
        };
        names.iter().map(&mut follow).collect()
    }

    fn held(overlay: &Overlay, now: Instant, prompt: &[SequenceHash]) -> [u32; 3] {
        let mut held = [TierBlocks::default(); 201];
        overlay.raise(now, prompt, Blocks(u32::MAX), &mut held);
        SLOTS.map(|slot| held[usize::from(slot)].total().0)
    }

    fn enter(overlay: &Arc<Overlay>, now: Instant, slot: u16, prompt: &[SequenceHash]) -> Stay {
        overlay.enter(now, Slot(slot), std::iter::once(prompt))
    }

    #[test]
    fn a_prompt_counts_where_it_was_sent_until_its_first_token_and_the_way_of_events() {
        let (overlay, now) = (Arc::new(Overlay::new(CREDIT)), origin());
        let prompt = chain(&[1, 2, 3, 4]);
        let mut stay = enter(&overlay, now, 1, &prompt);
        assert_eq!((stay.new_blocks(), overlay.credited(now, Slot(1))), (Blocks(4), Blocks(4)));
        assert_eq!(held(&overlay, now, &prompt), [0, 4, 0]);
        assert_eq!(held(&overlay, now, &chain(&[1, 2, 9, 4, 5, 6])), [0, 2, 0]);
        assert_eq!(held(&overlay, now, &chain(&[9, 2, 3, 4])), [0, 0, 0]);
        stay.first_token(after(now, 500));
        assert_eq!(held(&overlay, after(now, 599), &prompt), [0, 4, 0]);
        assert_eq!(held(&overlay, after(now, 600), &prompt), [0, 0, 0]);
        assert_eq!((overlay.credited(after(now, 600), Slot(1)), stay.leave()), (Blocks(0), Blocks(4)));
    }

    #[test]
    fn without_a_first_token_it_counts_until_its_deadline() {
        let (overlay, now) = (Arc::new(Overlay::new(CREDIT)), origin());
        let prompt = chain(&[1, 2]);
        let mut stay = enter(&overlay, now, 0, &prompt);
        assert_eq!(held(&overlay, after(now, 29_999), &prompt), [2, 0, 0]);
        assert_eq!(held(&overlay, after(now, 30_000), &prompt), [0, 0, 0]);
        stay.first_token(after(now, 30_001));
        assert_eq!((held(&overlay, after(now, 30_001), &prompt), stay.leave()), ([0, 0, 0], Blocks(2)));
    }

    #[test]
    fn a_first_token_after_the_deadline_brings_no_credit_back() {
        let (overlay, now) = (Arc::new(Overlay::new(CREDIT)), origin());
        let mut stay = enter(&overlay, now, 0, &chain(&[1, 2]));
        stay.first_token(after(now, 30_001));
        assert_eq!(overlay.credited(after(now, 30_001), Slot(0)), Blocks(0));
        assert_eq!(stay.leave(), Blocks(2));
    }

    #[test]
    fn a_request_that_ends_takes_its_credit_along_and_leaves_that_of_others() {
        let (overlay, now) = (Arc::new(Overlay::new(CREDIT)), origin());
        let (long, short) = (chain(&[1, 2, 3, 4]), chain(&[1, 2, 7]));
        let mut first = enter(&overlay, now, 0, &long);
        let mut second = enter(&overlay, now, 0, &short);
        assert_eq!((second.new_blocks(), overlay.credited(now, Slot(0))), (Blocks(1), Blocks(5)));
        assert_eq!(first.leave(), Blocks(2));
        assert_eq!((held(&overlay, now, &long), held(&overlay, now, &short)), ([2, 0, 0], [3, 0, 0]));
        assert_eq!((second.leave(), overlay.credited(now, Slot(0))), (Blocks(3), Blocks(0)));
    }

    #[test]
    fn a_worker_that_restarts_loses_the_credit_and_the_ledger_nothing() {
        let (overlay, now) = (Arc::new(Overlay::new(CREDIT)), origin());
        let prompt = chain(&[1, 2, 3]);
        let mut stays = [enter(&overlay, now, 0, &prompt), enter(&overlay, now, 1, &prompt)];
        overlay.withdraw(Slot(0));
        assert_eq!(held(&overlay, now, &prompt), [0, 3, 0]);
        stays[0].first_token(now);
        assert_eq!(held(&overlay, now, &prompt), [0, 3, 0]);
        assert_eq!(stays.each_mut().map(Stay::leave), [Blocks(3), Blocks(3)]);
    }

    #[test]
    fn what_is_in_flight_lies_on_the_device_and_the_cap_holds() {
        let (overlay, now) = (Arc::new(Overlay::new(CREDIT)), origin());
        let prompt = chain(&[1, 2, 3, 4]);
        let _stays = SLOTS.map(|slot| enter(&overlay, now, slot, &prompt[..3]));
        let tiers = |blocks: [u32; 4]| {
            let mut tiers = TierBlocks::default();
            Tier::ALL.into_iter().zip(blocks).for_each(|(tier, blocks)| tiers.add(tier, Blocks(blocks)));
            tiers
        };
        for (index, cap, expected) in [
            ([1, 0, 0, 0], 3, [3, 0, 0, 0]),
            ([0, 0, 0, 0], 2, [2, 0, 0, 0]),
            ([1, 2, 0, 0], 3, [3, 0, 0, 0]),
            ([0, 0, 3, 0], 3, [3, 0, 0, 0]),
            ([0, 0, 0, 2], 3, [3, 0, 0, 0]),
            ([1, 1, 1, 1], 3, [3, 0, 0, 1]),
            ([1, 1, 1, 1], 2, [2, 0, 1, 1]),
            ([4, 0, 0, 0], 3, [4, 0, 0, 0]),
        ] {
            let mut held = [tiers(index); 2];
            overlay.raise(now, &prompt, Blocks(cap), &mut held);
            assert_eq!(held, [tiers(expected); 2], "{index:?}, at most {cap}");
        }
    }

    #[test]
    fn several_prompts_of_a_request_come_and_go_together() {
        let (overlay, now) = (Arc::new(Overlay::new(CREDIT)), origin());
        let prompts = [chain(&[1, 2, 3]), chain(&[1, 2]), Vec::new(), chain(&[5])];
        let mut stay = overlay.enter(now, Slot(0), prompts.iter().map(Vec::as_slice));
        assert_eq!((stay.new_blocks(), held(&overlay, now, &prompts[0])), (Blocks(4), [3, 0, 0]));
        stay.first_token(now);
        assert_eq!(held(&overlay, after(now, 100), &prompts[0]), [0, 0, 0]);
        assert_eq!((stay.leave(), stay.leave()), (Blocks(4), Blocks(0)));
        assert_eq!(overlay.state().flights.len(), 0);
    }

    #[test]
    fn with_no_credit_blocks_are_counted_all_the_same() {
        let (overlay, now) = (Arc::new(Overlay::new(Duration::ZERO)), origin());
        let prompt = chain(&[1, 2]);
        let mut stay = enter(&overlay, now, 0, &prompt);
        stay.first_token(now);
        assert_eq!((held(&overlay, now, &prompt), stay.leave()), ([0, 0, 0], Blocks(2)));
    }

    /// What the overlay must do, said plainly.
    #[derive(Default)]
    struct Model(Vec<Placed>);

    struct Placed {
        stay: Stay,
        slot: u16,
        prompt: Vec<SequenceHash>,
        answered: bool,
        until: Option<Instant>,
    }

    impl Placed {
        fn counts(&self, now: Instant) -> bool {
            self.until.is_some_and(|until| until > now)
        }
    }

    impl Model {
        fn at(&self, slot: u16) -> impl Iterator<Item = &Placed> {
            self.0.iter().filter(move |placed| placed.slot == slot)
        }

        fn held(&self, now: Instant, prompt: &[SequenceHash]) -> [u32; 3] {
            let common = |held: &[SequenceHash]| held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
            SLOTS.map(|slot| {
                let there = self.at(slot).filter(|placed| placed.counts(now));
                u32::try_from(there.map(|placed| common(&placed.prompt)).max().unwrap_or(0)).unwrap()
            })
        }

        /// Distinct blocks of all that is in flight at each slot, and of those that count as cached.
        fn blocks(&self, now: Instant) -> ([usize; 3], [usize; 3]) {
            let distinct =
                |placed: Vec<&Placed>| placed.iter().flat_map(|placed| &placed.prompt).collect::<HashSet<_>>().len();
            let all = SLOTS.map(|slot| distinct(self.at(slot).collect()));
            let credited = SLOTS.map(|slot| distinct(self.at(slot).filter(|placed| placed.counts(now)).collect()));
            (all, credited)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Whatever is placed, answered, finished, given up, forgotten or overdue in whatever order, the overlay says
        /// what the model says, is never larger than what is in flight, and ends empty.
        #[test]
        fn the_overlay_is_what_is_in_flight(
            steps in prop::collection::vec(
                (0..8_u8, any::<prop::sample::Index>(), prop::collection::vec(0..2_u8, 1..12), 0..20_000_u64),
                1..80,
            ),
        ) {
            let (overlay, mut now) = (Arc::new(Overlay::new(CREDIT)), origin());
            let mut model = Model::default();
            let mut counted = [0_u32; 3];
            for (kind, which, names, ms) in steps {
                let prompt = chain(&names);
                let place = which.index(SLOTS.len());
                match kind {
                    0..=2 => {
                        let stay = enter(&overlay, now, SLOTS[place], &prompt);
                        counted[place] += stay.new_blocks().0;
                        let (slot, prompt, until) = (SLOTS[place], prompt.clone(), Some(now + CREDIT));
                        model.0.push(Placed { stay, slot, prompt, answered: false, until });
                    }
                    3 | 4 if !model.0.is_empty() => {
                        let which = which.index(model.0.len());
                        let placed = &mut model.0[which];
                        // The ledger tells of a first token once.
                        if !std::mem::replace(&mut placed.answered, true) {
                            placed.stay.first_token(now);
                            placed.until = placed.until.filter(|until| *until > now).map(|_| now + EVENTS_LAG);
                        }
                    }
                    5 if !model.0.is_empty() => {
                        let mut placed = model.0.swap_remove(which.index(model.0.len()));
                        counted[SLOTS.iter().position(|at| *at == placed.slot).unwrap()] -= placed.stay.leave().0;
                    }
                    6 => now += Duration::from_millis(if ms % 2 == 0 { ms } else { ms % 130 }),
                    7 if ms < 4_000 => {
                        overlay.withdraw(Slot(SLOTS[place]));
                        let there = model.0.iter_mut().filter(|placed| placed.slot == SLOTS[place]);
                        there.for_each(|placed| placed.until = None);
                    }
                    _ => {}
                }
                prop_assert_eq!(held(&overlay, now, &prompt), model.held(now, &prompt));
                let (all, credited) = model.blocks(now);
                prop_assert_eq!(counted.map(|blocks| usize::try_from(blocks).unwrap()), all);
                let seen = SLOTS.map(|slot| usize::try_from(overlay.credited(now, Slot(slot)).0).unwrap());
                prop_assert_eq!(seen, credited);
                overlay.state().tree.check(model.0.len());
                let waiting = model.0.iter().filter(|placed| placed.counts(now)).count();
                prop_assert_eq!(overlay.state().flights.waiting(), waiting);
            }
            for mut placed in model.0 {
                placed.stay.leave();
            }
            overlay.state().tree.check(0);
            let state = overlay.state();
            prop_assert_eq!(state.flights.len(), 0);
            prop_assert_eq!(state.flights.waiting(), 0);
        }
    }
}
