//! What waits on a worker, as it is noted when it changes.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use warmpath_core::ids::{RequestKey, Slot};
use warmpath_core::observe::{Event, Learn, Observation, Side};
use warmpath_core::overlap::TierBlocks;
use warmpath_core::rates::{Outlook, Rates, Work};
use warmpath_core::shape::Shape;
use warmpath_core::units::Tokens;

use super::size;

/// A request that is sent so many ms after the one before, and may be given up before its first token.
type Sent = (u64, u32, bool);

fn tell(rates: &Rates, at: Instant, request: u64, event: Event) {
    rates.observe(&Observation { at, request: RequestKey(request), slot: Slot(0), event });
}

/// A worker that was sent these: of those that are given up, nothing, or all, to be taken back at the end.
fn sent(start: Instant, queue: &[Sent], gives_up: bool) -> (Rates, Instant) {
    let (rates, mut now) = (Rates::default(), start);
    for (request, (gap, tokens, is_given_up)) in (0..).zip(queue) {
        now += Duration::from_millis(*gap);
        let shape = Shape::of(Tokens(*tokens), size());
        if gives_up || !is_given_up {
            let event = Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(*tokens) };
            tell(&rates, now, request, event);
        }
    }
    for (request, _) in (0..).zip(queue).filter(|(_, (.., is_given_up))| gives_up && *is_given_up) {
        tell(&rates, now, request, Event::Failed { side: Side::Client });
    }
    (rates, now)
}

fn outlook(rates: &Rates, at: Instant, tokens: u32, waiting: usize) -> Outlook {
    let work = Work::cold(&Shape::of(Tokens(tokens), size()));
    let (reading, waiting) = (rates.read(at), f64::from(u32::try_from(waiting).unwrap()));
    reading.of_workers(Slot(0)).seen().outlook(&reading.amount(&work), waiting)
}

/// No sum of up to 63 such prompts fills a step to its last token, where rounding would tell who is in it.
fn tokens() -> impl Strategy<Value = u32> {
    (0_u32..180).prop_map(|many| 64 * many + 1)
}

proptest! {
    /// Whoever is given up leaves the queue as if it had never come: who waits, for how long, and who shares a step.
    #[test]
    fn a_queue_is_what_has_come_and_not_gone(
        first in tokens(),
        others in prop::collection::vec((0_u64..30, tokens(), any::<bool>()), 0..40),
        asked in (0_u64..100, 1_u32..20_000),
    ) {
        let queue: Vec<Sent> = std::iter::once((0, first, false)).chain(others).collect();
        let waiting = queue.iter().filter(|(.., is_given_up)| !is_given_up).count();
        let start = Instant::now();
        let [given_up, never_came] = [true, false].map(|gives_up| {
            let (rates, now) = sent(start, &queue, gives_up);
            outlook(&rates, now + Duration::from_millis(asked.0), asked.1, waiting)
        });
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (1.0 + b.abs());
        prop_assert!(close(given_up.wait, never_came.wait), "{given_up:?} {never_came:?}");
        prop_assert!(close(given_up.own, never_came.own) && close(given_up.more, never_came.more));
        prop_assert!(close(given_up.step, never_came.step), "{given_up:?} {never_came:?}");
    }
}
