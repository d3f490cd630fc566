//! How far what is known of a target's cache can be believed.
//!
//! Four questions are asked, each of the last 32 answers to it: does the engine count the tokens of prompts as the router
//! does; does it find in its cache what the view promises, not much less and not much more; do its events come while
//! requests finish; are they of the configured block size? Up to 8 bad verdicts mean nothing. From there on a promised
//! block is worth a 16th less for each, and from 24 on nothing. Good verdicts push bad ones out, a restart forgets them. What
//! only one of several senders finds takes nothing from what the others are promised.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::units::BlockSize;

mod evidence;
mod reason;
mod verdicts;
mod window;

use evidence::Evidence;
pub use evidence::{Answered, EventsHeard, PrefixCounters, Totals};
pub use reason::Reason;

/// How true a target's view is to its engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ViewState {
    /// All events up to now are in it, as far as anybody can tell. So it is where nothing tells events.
    #[default]
    Current,
    /// Something is missing and being fetched.
    Suspect,
    /// Something may be missing, nobody can be asked, and the next event will tell.
    Unproven,
    /// What is missing is gone for good: it began empty, and fills by new events.
    Cold,
}

impl ViewState {
    /// All of them, in the order of their numbers.
    const ALL: [Self; 4] = [Self::Current, Self::Suspect, Self::Unproven, Self::Cold];

    /// Its name. Whether what is missing is being fetched, the reasons tell.
    pub fn as_str(self) -> &'static str {
        match self {
            ViewState::Current => "current",
            ViewState::Suspect | ViewState::Unproven => "suspect",
            ViewState::Cold => "cold",
        }
    }

    /// Whether something may be missing in it of which it is not known yet that it is gone.
    pub fn is_doubted(self) -> bool {
        matches!(self, ViewState::Suspect | ViewState::Unproven)
    }
}

/// What a block is worth that a suspect view promises.
const SUSPECT: f64 = 0.5;

/// What is believed of one target; shared by whoever learns of it and whoever decides.
#[derive(Debug)]
pub struct Trust {
    /// The bits of what a promise is worth. Written with the evidence locked, as are the next three.
    weight: AtomicU64,
    /// The bits of what the evidence leaves of a promise.
    believed: AtomicU64,
    falls_back: AtomicBool,
    view: AtomicU8,
    evidence: Mutex<Evidence>,
}

/// What is believed of one target, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// How true the view is.
    pub view: ViewState,
    /// What a promised block is worth.
    pub weight: f64,
    /// Whether what the router sent counts in the view's place.
    pub falls_back: bool,
    /// Why it is worth less, or is complemented.
    pub reasons: Vec<Reason>,
    /// Sums over the requests that were compared.
    pub totals: Totals,
    /// Time since an event was heard; none where none ever was.
    pub last_event: Option<Duration>,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            weight: AtomicU64::new(1.0_f64.to_bits()),
            believed: AtomicU64::new(1.0_f64.to_bits()),
            falls_back: AtomicBool::new(false),
            view: AtomicU8::new(0),
            evidence: Mutex::default(),
        }
    }
}

impl Trust {
    /// Trust in a target that tells events: they may be silent for `silence` while requests finish that must have made
    /// some.
    pub fn expecting_events(silence: Duration) -> Self {
        Self { evidence: Mutex::new(Evidence::expecting_events(silence)), ..Self::default() }
    }

    /// How true the view is.
    pub fn view(&self) -> ViewState {
        let number = usize::from(self.view.load(Ordering::Relaxed));
        ViewState::ALL.get(number).copied().unwrap_or_default()
    }

    /// Takes note of how true the view is now.
    pub fn set_view(&self, view: ViewState) {
        let number = match view {
            ViewState::Current => 0,
            ViewState::Suspect => 1,
            ViewState::Unproven => 2,
            ViewState::Cold => 3,
        };
        let _evidence = self.evidence();
        self.view.store(number, Ordering::Relaxed);
        self.weigh();
    }

    /// What a block that the view promises is worth, from 0 to 1. Cheap: asked for every candidate of every request.
    pub fn weight(&self) -> f64 {
        f64::from_bits(self.weight.load(Ordering::Relaxed))
    }

    /// Whether what the router has sent there counts where the view does not.
    pub fn falls_back(&self) -> bool {
        self.falls_back.load(Ordering::Relaxed)
    }

    /// A request was answered.
    pub fn answered(&self, now: Instant, answered: &Answered) {
        let mut evidence = self.evidence();
        evidence.answered(now, answered);
        self.conclude(now, &evidence);
    }

    /// What the events have come to by now. To be told from time to time, also while nothing changes.
    pub fn heard(&self, now: Instant, heard: EventsHeard) {
        let mut evidence = self.evidence();
        evidence.heard(now, heard);
        self.conclude(now, &evidence);
    }

    /// The engine's own totals: a coarser measure, for engines whose usage does not tell what was cached.
    pub fn counters(&self, now: Instant, counters: PrefixCounters, block_size: BlockSize) {
        let mut evidence = self.evidence();
        evidence.counters(now, counters, block_size);
        self.conclude(now, &evidence);
    }

    /// Another process answers from now on: what was seen was of the old one.
    pub fn restarted(&self, now: Instant) {
        let mut evidence = self.evidence();
        evidence.restarted();
        self.conclude(now, &evidence);
    }

    /// What is believed and why. `sizes` are the block size that the engine says it has, and the configured one.
    pub fn report(&self, now: Instant, sizes: (Option<u32>, BlockSize)) -> Report {
        let view = self.view();
        let mut reasons = Vec::new();
        match view {
            ViewState::Suspect => reasons.push(Reason::Repairing),
            ViewState::Unproven => reasons.push(Reason::Unproven),
            ViewState::Current | ViewState::Cold => {}
        }
        let evidence = self.evidence();
        self.conclude(now, &evidence);
        evidence.reasons(now, sizes, &mut reasons);
        let last_event = evidence.last_event().map(|at| now.saturating_duration_since(at));
        Report {
            view,
            weight: self.weight(),
            falls_back: self.falls_back(),
            reasons,
            totals: evidence.totals,
            last_event,
        }
    }

    fn conclude(&self, now: Instant, evidence: &Evidence) {
        self.believed.store(evidence.weight(now).to_bits(), Ordering::Relaxed);
        self.falls_back.store(evidence.falls_back(now), Ordering::Relaxed);
        self.weigh();
    }

    fn weigh(&self) {
        let believed = f64::from_bits(self.believed.load(Ordering::Relaxed));
        let weight = match self.view() {
            // A cold view promises only what it has heard since: that is true.
            ViewState::Current | ViewState::Cold => believed,
            ViewState::Suspect | ViewState::Unproven => believed * SUSPECT,
        };
        self.weight.store(weight.to_bits(), Ordering::Relaxed);
    }

    fn evidence(&self) -> MutexGuard<'_, Evidence> {
        // Nothing panics while the lock is held, so a poisoned lock still guards whole data.
        self.evidence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::Tokens;

    #[expect(clippy::disallowed_methods, reason = "an origin for a pure function")]
    fn origin() -> Instant {
        Instant::now()
    }

    fn size() -> BlockSize {
        BlockSize::new(16).unwrap()
    }

    fn answer(sent: Instant, promised: u32, reported: Option<u32>) -> Answered {
        Answered {
            sent,
            sender: None,
            prompt: Tokens(600),
            promised: Tokens(promised),
            counted: Some(Tokens(600)),
            reported: reported.map(Tokens),
            block_size: size(),
        }
    }

    fn telling() -> Trust {
        Trust::expecting_events(Duration::from_secs(30))
    }

    fn reasons(trust: &Trust, now: Instant) -> Vec<String> {
        trust.report(now, (Some(32), size())).reasons.iter().map(Reason::to_string).collect()
    }

    #[test]
    fn a_view_is_believed_until_something_is_missing() {
        let trust = Trust::default();
        assert_eq!((trust.view(), trust.weight()), (ViewState::Current, 1.0));
        for (view, weight, reason) in [
            (ViewState::Suspect, 0.5, vec!["events are missing and being fetched"]),
            (
                ViewState::Unproven,
                0.5,
                vec!["nothing was heard over the present connection yet: the next event tells whether any is missing"],
            ),
            (ViewState::Cold, 1.0, vec![]),
            (ViewState::Current, 1.0, vec![]),
        ] {
            trust.set_view(view);
            assert_eq!((trust.view(), trust.weight()), (view, weight));
            assert_eq!(reasons(&trust, origin()), reason);
        }
    }

    #[test]
    fn other_token_counts_take_the_weight_away_bit_by_bit_and_equal_ones_give_it_back() {
        let (trust, now) = (Trust::default(), origin());
        let other = Answered { counted: Some(Tokens(607)), ..answer(now, 0, Some(0)) };
        (0..8).for_each(|_| trust.answered(now, &other));
        assert_eq!((trust.weight(), reasons(&trust, now)), (1.0, vec![]));
        (0..8).for_each(|_| trust.answered(now, &other));
        assert_eq!((trust.weight(), trust.falls_back()), (0.5, false));
        (0..8).for_each(|_| trust.answered(now, &other));
        assert_eq!((trust.weight(), trust.falls_back()), (0.0, true));
        assert_eq!(reasons(&trust, now), ["token counts differ by 7: chat template?"]);
        (0..24).for_each(|_| trust.answered(now, &answer(now, 0, Some(0))));
        assert_eq!((trust.weight(), trust.falls_back(), reasons(&trust, now)), (1.0, false, vec![]));
    }

    #[test]
    fn promises_that_are_not_kept_are_not_believed_and_what_was_sent_neither() {
        let (trust, now) = (telling(), origin());
        (0..24).for_each(|_| trust.answered(now, &answer(now, 512, Some(0))));
        assert_eq!((trust.weight(), trust.falls_back()), (0.0, false));
        let expected = "promises 512 cached tokens, the engine reports 0: prefix caching off, or removals lost?";
        assert_eq!(reasons(&trust, now), [expected]);
        let totals = trust.report(now, (None, size())).totals;
        assert_eq!(totals, Totals { compared: 24, promised: 24 * 512, reported: 0 });
        trust.restarted(now);
        assert_eq!((trust.weight(), reasons(&trust, now)), (1.0, vec![]));
    }

    /// What a view promises is true when engines find more: it is complemented, not doubted.
    #[test]
    fn engines_that_find_more_than_promised_are_known_by_what_was_sent_to_them() {
        let (trust, now) = (telling(), origin());
        (0..24).for_each(|_| trust.answered(now, &answer(now, 0, Some(512))));
        assert_eq!((trust.weight(), trust.falls_back()), (1.0, true));
        assert_eq!(reasons(&trust, now), ["promises 0 cached tokens, the engine reports 512: events lost?"]);
    }

    #[test]
    fn an_eviction_or_an_event_under_way_is_no_mismatch() {
        let (trust, now) = (telling(), origin());
        for (promised, reported) in [(512, 384), (384, 512), (16, 0), (0, 16), (0, 0)] {
            (0..32).for_each(|_| trust.answered(now, &answer(now, promised, Some(reported))));
            assert_eq!((trust.weight(), trust.falls_back()), (1.0, false), "{promised} {reported}");
        }
    }

    #[test]
    fn silence_counts_only_while_requests_finish_that_must_have_made_events() {
        let now = origin();
        let after = |seconds| now + Duration::from_secs(seconds);
        let trust = Trust::expecting_events(Duration::from_secs(30));
        let heard = |total| EventsHeard { total, wrong_size: 0 };
        (0..10).for_each(|_| trust.answered(now, &answer(now, 592, Some(592))));
        trust.heard(after(100), heard(0));
        assert_eq!(trust.weight(), 1.0, "fully cached prompts make no events");
        (0..3).for_each(|_| trust.answered(after(100), &answer(after(100), 0, Some(0))));
        trust.heard(after(200), heard(0));
        assert_eq!(trust.weight(), 1.0, "three may be a coincidence");
        trust.answered(after(200), &answer(after(200), 0, Some(0)));
        assert_eq!((trust.weight(), trust.falls_back()), (0.0, true));
        assert_eq!(reasons(&trust, after(200)), ["no events for 100 s although requests finish"]);
        trust.heard(after(201), heard(1));
        assert_eq!((trust.weight(), trust.falls_back(), reasons(&trust, after(201))), (1.0, false, vec![]));
        assert_eq!(trust.report(after(203), (None, size())).last_event, Some(Duration::from_secs(2)));
        // Their events were heard while they ran.
        (0..9).for_each(|_| trust.answered(after(202), &answer(after(201), 0, Some(0))));
        trust.heard(after(300), heard(1));
        assert_eq!(trust.weight(), 1.0);
    }

    #[test]
    fn silence_weighs_gradually_and_never_where_no_events_are_expected() {
        let now = origin();
        let trust = Trust::expecting_events(Duration::from_secs(30));
        let without = Trust::default();
        for trust in [&trust, &without] {
            (0..4).for_each(|_| trust.answered(now, &answer(now, 0, Some(0))));
        }
        let at = |trust: &Trust, ms: u64| {
            trust.heard(now + Duration::from_millis(ms), EventsHeard::default());
            trust.weight()
        };
        assert_eq!([14_000, 15_000, 22_500, 30_000].map(|ms| at(&trust, ms)), [1.0, 1.0, 0.5, 0.0]);
        assert_eq!(at(&without, 60_000), 1.0);
    }

    #[test]
    fn events_of_another_block_size_are_told_from_a_few_strays() {
        let (trust, now) = (Trust::default(), origin());
        trust.heard(now, EventsHeard { total: 0, wrong_size: 7 });
        assert_eq!((trust.weight(), trust.falls_back()), (1.0, false));
        trust.heard(now, EventsHeard { total: 0, wrong_size: 8 });
        assert_eq!((trust.weight(), trust.falls_back()), (0.0, true));
        assert_eq!(reasons(&trust, now), ["events carry block size 32, configured 16"]);
        trust.heard(now, EventsHeard { total: 24, wrong_size: 8 });
        assert_eq!((trust.weight(), trust.falls_back()), (0.75, false));
        trust.heard(now, EventsHeard { total: 20_000, wrong_size: 8 });
        assert_eq!((trust.weight(), reasons(&trust, now)), (1.0, vec![]));
    }

    #[test]
    fn the_engines_totals_are_compared_where_they_tie_with_what_was_answered() {
        let (trust, now) = (telling(), origin());
        let counters = |queries, hits| PrefixCounters { queries, hits };
        trust.counters(now, counters(1_000, 100), size());
        let mut told = counters(1_000, 100);
        for _ in 0..24 {
            trust.answered(now, &answer(now, 512, None));
            told.queries += 600;
            trust.counters(now, told, size());
        }
        assert_eq!(trust.weight(), 0.0);
        // Others' requests are among these: nothing can be said.
        for _ in 0..64 {
            trust.answered(now, &answer(now, 512, None));
            told = counters(told.queries + 700, told.hits + 512);
            trust.counters(now, told, size());
        }
        assert_eq!(trust.weight(), 0.0);
        for _ in 0..40 {
            trust.answered(now, &answer(now, 512, None));
            told = counters(told.queries + 600, told.hits + 512);
            trust.counters(now, told, size());
        }
        assert_eq!(trust.weight(), 1.0);
        // A restart counts from 0 again.
        trust.counters(now, counters(0, 0), size());
        assert_eq!(trust.weight(), 1.0);
    }

    proptest! {
        /// Whatever is told, a weight is from 0 to 1; and 32 good answers in a row heal every doubt about answers.
        #[test]
        fn every_doubt_can_be_healed(
            told in prop::collection::vec((0..5_u8, any::<u32>(), any::<u32>(), 0..10_000_u64), 0..200),
        ) {
            let (trust, mut now) = (Trust::expecting_events(Duration::from_secs(30)), origin());
            let mut heard = EventsHeard::default();
            for (kind, a, b, ms) in told {
                now += Duration::from_millis(ms);
                match kind {
                    0 => trust.answered(now, &Answered { prompt: Tokens(a), ..answer(now, b, Some(a)) }),
                    1 => trust.answered(now, &Answered { counted: Some(Tokens(a)), ..answer(now, b, None) }),
                    2 => {
                        heard = EventsHeard { total: u64::from(a), wrong_size: u64::from(b) };
                        trust.heard(now, heard);
                    }
                    3 => trust.counters(now, PrefixCounters { queries: u64::from(a), hits: u64::from(b) }, size()),
                    _ => trust.set_view(if a % 2 == 0 { ViewState::Suspect } else { ViewState::Cold }),
                }
                prop_assert!((0.0..=1.0).contains(&trust.weight()));
                prop_assert!(trust.report(now, (Some(a), size())).reasons.len() <= Reason::LABELS.len());
            }
            trust.set_view(ViewState::Current);
            for _ in 0..32 {
                heard.total += 4_096;
                trust.heard(now, heard);
                trust.answered(now, &answer(now, 512, Some(512)));
            }
            prop_assert_eq!((trust.weight(), trust.falls_back()), (1.0, false));
        }
    }
}
