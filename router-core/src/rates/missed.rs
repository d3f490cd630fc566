//! What those miss who come for what prompts have in common, for lack of copies of it.

use super::line::Line;
use super::view::View;
use super::work::Work;
use super::worker::Worker;
use crate::ids::Slot;
use crate::real::larger;
use crate::slot_set::SlotSet;

/// Workers that one is compared with: all of a small fleet, and of a large one as many as tell how busy it is.
const LOOKS_MAX: usize = 16;

/// ms that who is sent to a worker now waits longer there than elsewhere, if what it comes for were at one of the other workers
/// that are `present`, too: the mean over these, where no wait is saved at those that are busier. `whole` is as in
/// [`View::wait`]. O(1), and a bit for each slot.
pub(super) fn missed(
    now: f64,
    (workers, present): (&[Worker], &SlotSet),
    line: &Line,
    (slot, whole): (Slot, f64),
) -> f64 {
    let wait = |slot: Slot| {
        workers.get(slot.index()).map_or(0.0, |worker| {
            let row = worker.row_by(now, line);
            let view = View::<f64>::of(&row, line);
            view.wait(now, line, (0.0, &Work::default()), (whole, line.decode_ms(view.decoding()))).0
        })
    };
    let here = wait(slot);
    if here <= 0.0 {
        return 0.0;
    }
    let after = present.iter().skip_while(|other| *other <= slot);
    let before = present.iter().take_while(|other| *other < slot);
    let (mut others, mut spared) = (0.0, 0.0);
    for other in after.chain(before).take(LOOKS_MAX) {
        others += 1.0;
        spared += larger(here - wait(other), 0.0);
    }
    if others > 0.0 { spared / others } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::worker::Pending;
    use super::*;
    use crate::ids::RequestKey;

    /// Workers, each of which has so many thousands of tokens to compute.
    fn workers(queued: &[f64]) -> Vec<Worker> {
        let busy = |tokens: &f64| {
            let mut worker = Worker::default();
            let work = Work { tokens: *tokens, ..Work::default() };
            let pending = Pending { key: RequestKey(1), work, sent: 0.0, context: 0.0, whole: false };
            (*tokens > 0.0).then(|| worker.placed(0.0, pending));
            worker
        };
        queued.iter().map(busy).collect()
    }

    #[test]
    fn what_one_more_holder_would_spare_is_what_others_wait_less() {
        let line = Line::default();
        let ms = |tokens: f64| line.ms(&Work { tokens, ..Work::default() });
        let told = |queued: &[f64], slot| {
            let present = (0..queued.len()).map(|slot| Slot(u16::try_from(slot).unwrap())).collect();
            missed(0.0, (&workers(queued), &present), &line, (Slot(slot), 0.0))
        };
        let close = |told: f64, expected: f64| assert!((told - expected).abs() < 1e-6, "{told}, not {expected}");
        // Of three others, one is idle, one less busy and one busier.
        let fleet = [4.0, 0.0, 1.0, 9.0];
        close(told(&fleet, 0), (2.0 * ms(4.0) - ms(1.0)) / 3.0);
        close(told(&fleet, 3), (3.0 * ms(9.0) - ms(4.0) - ms(1.0)) / 3.0);
        // Nobody waits there, nobody is there, nobody else is there.
        assert_eq!([told(&fleet, 1), told(&fleet, 7), told(&[5.0], 0)], [0.0; 3]);
    }

    #[test]
    fn of_a_large_fleet_a_part_is_looked_at() {
        let line = Line::default();
        let mut queued = vec![1.0; 500];
        (queued[490], queued[100]) = (3.0, 0.0);
        let present = (0..500).map(Slot).collect();
        let told = missed(0.0, (&workers(&queued), &present), &line, (Slot(490), 0.0));
        let ms = |tokens: f64| line.ms(&Work { tokens, ..Work::default() });
        assert!((told - (ms(3.0) - ms(1.0))).abs() < 1e-6, "{told}");
    }

    #[test]
    fn slots_of_others_and_of_those_who_have_left_are_nowhere_to_go() {
        let line = Line::default();
        let present = [3, 5].map(Slot).into_iter().collect();
        let told = missed(0.0, (&workers(&[0.0, 0.0, 0.0, 2.0, 0.0, 2.0, 0.0]), &present), &line, (Slot(3), 0.0));
        assert_eq!(told, 0.0);
    }
}
