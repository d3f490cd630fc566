//! How a process that began anew is told from the one before.

use super::*;

#[test]
fn r24_a_process_that_took_over_unseen_is_found_by_the_batch_that_both_have() {
    let mut bench = Bench::of(REPLAYS, 3);
    bench.connected();
    bench.life = 1.0;
    assert_eq!(bench.live(3), vec![]);
    assert_eq!(bench.replayed(2), vec![Clear(Emptied::Restarted)]);
    assert_eq!(bench.ended(), vec![again(0)]);
    assert_eq!((bench.replayed(0), bench.replayed(1)), (vec![Apply(0)], vec![Apply(1), Apply(2), Apply(3)]));
    assert_eq!(bench.ended(), vec![View(Current)]);
    // What is left of the dead process is not believed.
    bench.life = 0.0;
    assert_eq!(bench.live(4), vec![]);
}

#[test]
fn r24_a_first_batch_that_is_newer_is_no_duplicate() {
    let mut bench = Bench::of(REPLAYS, 1);
    bench.life = 1.0;
    assert_eq!(bench.live(0), vec![Clear(Emptied::Restarted), Apply(0)]);
    assert_eq!((bench.live(0), bench.live(1)), (vec![], vec![Apply(1)]));
}

#[test]
fn r24_another_process_start_empties_the_view_whatever_the_clock_says() {
    let mut bench = Bench::of(REPLAYS, 3);
    assert_eq!(bench.hear(|repair, now, steps| repair.process_started(50.0, now, steps)), vec![]);
    assert_eq!(bench.hear(|repair, now, steps| repair.process_started(50.4, now, steps)), vec![]);
    let steps = bench.hear(|repair, now, steps| repair.process_started(20.0, now, steps));
    assert_eq!(steps, vec![Clear(Emptied::Restarted), again(0), View(Suspect)]);
}

#[test]
fn r24_a_process_whose_clock_was_set_back_is_found_by_how_far_it_has_come() {
    let mut bench = Bench::of(REPLAYS, 9);
    assert_eq!(bench.connected(), vec![again(8), View(Suspect)]);
    assert_eq!(bench.ended(), vec![again(0)]);
    bench.life = -1.0;
    for seq in 0..5 {
        assert_eq!(bench.replayed(seq), vec![]);
    }
    assert_eq!(bench.ended(), vec![Clear(Emptied::Restarted), again(0)]);
    for seq in 0..5 {
        assert_eq!(bench.replayed(seq), vec![Apply(seq)]);
    }
    assert_eq!((bench.ended(), bench.live(5)), (vec![View(Current)], vec![Apply(5)]));
}

#[test]
fn an_answer_that_was_cut_short_tells_nothing_of_how_far_its_process_has_come() {
    let mut bench = Bench::of(REPLAYS, 9);
    bench.connected();
    bench.ended();
    for seq in 0..5 {
        bench.replayed(seq);
    }
    assert_eq!(bench.cut_short(), vec![View(Current)]);
    // Nor does one that goes as far as the view, though its last cannot be read.
    bench.connected();
    bench.ended();
    bench.replayed(7);
    bench.unreadable(8, true);
    assert_eq!(bench.ended(), vec![View(Current)]);
}
