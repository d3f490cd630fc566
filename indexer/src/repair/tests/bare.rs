//! Batches that tell neither epoch nor time, and sources that tell all that they have, whatever they are asked.

use super::*;

impl Bench {
    fn bare(&mut self, seq: u64) -> Vec<Step<u64>> {
        let stamp = Stamp { seq, epoch: None, ts: None };
        self.hear(|repair, now, steps| repair.live(stamp, (seq, 10), |_| false, now, steps))
    }

    /// Says what the answer leads to, batch by batch and at its end.
    fn answered(&mut self, seqs: impl IntoIterator<Item = u64>) -> Vec<Step<u64>> {
        let mut steps = Vec::new();
        for seq in seqs {
            let (asked, stamp) = (self.asked, Stamp { seq, epoch: None, ts: None });
            steps.extend(self.hear(|repair, now, steps| repair.replayed(asked, stamp, (seq, 10), now, steps)));
        }
        steps.extend(self.ended());
        steps
    }

    fn of_bare(abilities: Abilities, batches: u64) -> Self {
        let mut bench = Self::new(abilities);
        for seq in 0..batches {
            assert_eq!(bench.bare(seq), vec![Apply(seq)]);
        }
        bench
    }
}

#[test]
fn what_a_source_tells_from_its_beginning_is_no_restart() {
    let mut bench = Bench::of_bare(REPLAYS, 5);
    assert_eq!(bench.connected(), vec![again(4), View(Suspect)]);
    assert_eq!(bench.answered(0..5), vec![View(Current)]);
    assert_eq!(bench.repair.feed().counts().restarts, 0);
    assert_eq!(bench.bare(5), vec![Apply(5)]);
}

#[test]
fn a_batch_that_nobody_has_is_asked_for_ever_later_and_given_up() {
    let mut bench = Bench::of_bare(REPLAYS, 5);
    assert_eq!(bench.bare(6), vec![again(4), View(Suspect)]);
    for wait_s in [1, 2, 4, 8] {
        assert_eq!(bench.answered([0, 1, 2, 3, 4, 6]), vec![]);
        assert_eq!(bench.after(wait_s - 1), vec![]);
        assert_eq!(bench.after(1), vec![again(4)]);
    }
    let lost = Clear(Emptied::Lost(1, Cold::Unanswered));
    assert_eq!(bench.answered([0, 1, 2, 3, 4, 6]), vec![lost, Apply(6), View(ViewState::Cold)]);
    assert_eq!(bench.repair.feed().counts().restarts, 0);
}

#[test]
fn a_batch_that_comes_after_its_time_closes_the_gap() {
    let mut bench = Bench::of_bare(REPLAYS, 5);
    assert_eq!((bench.bare(6), bench.bare(5)), (vec![again(4), View(Suspect)], vec![]));
    assert_eq!(bench.answered([0, 1, 2, 3, 4, 6, 5]), vec![Apply(5), Apply(6), View(Current)]);
}

#[test]
fn a_dead_life_in_an_answer_fills_no_gap_of_the_next() {
    let mut bench = Bench::of_bare(REPLAYS, 5);
    assert_eq!(bench.bare(0), vec![Clear(Emptied::Restarted), Apply(0)]);
    assert_eq!((bench.bare(1), bench.bare(3)), (vec![Apply(1)], vec![again(1), View(Suspect)]));
    assert_eq!(bench.answered([0, 1, 2, 3, 4, 0, 1, 3]), vec![]);
    assert_eq!(bench.after(1), vec![again(1)]);
    // Its beginning is not needed to tell the two apart.
    assert_eq!(bench.answered([0, 1, 2, 3, 4, 1, 3]), vec![]);
    assert_eq!(bench.after(2), vec![again(1)]);
    assert_eq!(bench.answered([0, 1, 2, 3, 4, 0, 1, 2, 3]), vec![Apply(2), Apply(3), View(Current)]);
    assert_eq!(bench.repair.feed().counts().restarts, 1);
}

#[test]
fn an_answer_that_is_cut_short_may_be_of_a_dead_life() {
    let mut bench = Bench::of_bare(REPLAYS, 2);
    bench.bare(3);
    let (asked, stamp) = (bench.asked, Stamp { seq: 2, epoch: None, ts: None });
    assert_eq!(bench.hear(|repair, now, steps| repair.replayed(asked, stamp, (2, 10), now, steps)), vec![]);
    assert_eq!((bench.cut_short(), bench.repair.feed().next_seq()), (vec![again(0)], 2));
}

#[test]
fn an_answer_that_finds_no_room_is_asked_for_again_behind_what_did() {
    let mut bench = Bench::new(REPLAYS);
    assert_eq!(bench.connected(), vec![again(0), View(Suspect)]);
    // A third would be beyond the bytes.
    let large = HoldMax::DEFAULT.bytes / 2;
    for round in [vec![Apply(0), Apply(1), again(1)], vec![Apply(2), Apply(3), View(Current)]] {
        for seq in 0..4 {
            let (asked, stamp) = (bench.asked, Stamp { seq, epoch: None, ts: None });
            assert_eq!(
                bench.hear(|repair, now, steps| repair.replayed(asked, stamp, (seq, large), now, steps)),
                vec![]
            );
        }
        assert_eq!(bench.ended(), round);
    }
}

/// Batches of a few bytes take many times as much once they are read.
#[test]
fn an_answer_of_many_small_batches_waits_only_so_far() {
    let mut bench = Bench::new(REPLAYS);
    bench.connected();
    let most = u64::try_from(HoldMax::DEFAULT.batches).unwrap();
    for seq in 0..most + 10 {
        let (asked, stamp) = (bench.asked, Stamp { seq, epoch: None, ts: None });
        bench.hear(|repair, now, steps| repair.replayed(asked, stamp, (seq, 3), now, steps));
    }
    let steps = bench.ended();
    assert_eq!((steps.len(), steps.last()), (HoldMax::DEFAULT.batches + 1, Some(&again(most - 1))));
}
