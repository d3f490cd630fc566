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

/// Its first batches were missed, as many as the one before had said: only what hangs below them shows it.
#[test]
fn r24_orphans_show_a_process_that_goes_on_where_the_one_before_ended() {
    let orphaned = |bench: &mut Bench| bench.hear(Repair::orphaned);
    let mut bench = Bench::of(REPLAYS, 3);
    bench.life = 1.0;
    assert_eq!((bench.live(3), bench.live(4)), (vec![Apply(3)], vec![Apply(4)]));
    assert_eq!((orphaned(&mut bench), orphaned(&mut bench)), (vec![again(0), View(Suspect)], vec![]));
    assert_eq!(bench.replayed(0), vec![Clear(Emptied::Restarted), Apply(0)]);
    for seq in 1..5 {
        assert_eq!(bench.replayed(seq), vec![Apply(seq)]);
    }
    assert_eq!((bench.ended(), bench.live(5)), (vec![View(Current)], vec![Apply(5)]));
}

/// Orphans have other reasons too: the view stays, and nobody is asked again and again.
#[test]
fn orphans_of_the_same_process_are_asked_about_ever_less_often() {
    let mut bench = Bench::of(REPLAYS, 100);
    for wait_s in [1, 2, 4, 8, 16, 30, 30] {
        assert_eq!(bench.hear(Repair::orphaned), vec![again(36), View(Suspect)]);
        assert_eq!((36..100).map(|seq| bench.replayed(seq).len()).sum::<usize>(), 0);
        assert_eq!(bench.ended(), vec![View(Current)]);
        bench.after(wait_s - 1);
        assert_eq!(bench.hear(Repair::orphaned), vec![]);
        bench.after(1);
    }
}

#[test]
fn where_nobody_can_be_asked_orphans_count_only_behind_a_reconnection() {
    let mut bench = Bench::of(NEITHER, 3);
    assert_eq!(bench.hear(Repair::orphaned), vec![]);
    bench.connected();
    assert_eq!(bench.live(3), vec![Apply(3), View(Current)]);
    let lost = Clear(Emptied::Lost(0, Cold::NoReplay));
    assert_eq!(bench.hear(Repair::orphaned), vec![lost, View(ViewState::Cold)]);
    // A view that began in the middle has orphans for good reason.
    assert_eq!((bench.connected(), bench.live(4).len(), bench.hear(Repair::orphaned)), (vec![], 1, vec![]));
    let mut bench = Bench::of(NEITHER, 3);
    bench.connected();
    for seq in 3..70 {
        bench.live(seq);
    }
    assert_eq!(bench.hear(Repair::orphaned), vec![]);
}

/// What both have cannot be read, so that nothing tells whose it is: more is asked for.
#[test]
fn r24_a_batch_that_cannot_be_read_does_not_prove_the_process() {
    let mut bench = Bench::of(REPLAYS, 3);
    bench.connected();
    bench.life = 1.0;
    assert_eq!((bench.unreadable(2, true), bench.unreadable(3, true)), (vec![], vec![]));
    assert_eq!(bench.replayed(4), vec![Clear(Emptied::Lost(1, Cold::HistoryGone)), Apply(4)]);
    assert_eq!(bench.ended(), vec![View(ViewState::Cold)]);
    // With nothing applied yet there is nothing to prove.
    let mut bench = Bench::new(REPLAYS);
    bench.connected();
    assert_eq!(bench.unreadable(0, true), vec![Clear(Emptied::Lost(1, Cold::Unreadable))]);
}

/// As many lives of a hundred seconds as make a wall clock's time.
const NOW: f64 = 2e7;

#[test]
fn r24_another_process_start_empties_the_view_whatever_the_clock_says() {
    for life in [0.0, NOW] {
        let mut bench = Bench { life, ..Bench::new(REPLAYS) };
        bench.live(0);
        let before = 100.0 * life - 50.0;
        assert_eq!((bench.process_started(before), bench.process_started(before + 0.4)), (vec![], vec![]));
        let steps = bench.process_started(before - 30.0);
        assert_eq!(steps, vec![Clear(Emptied::Restarted), again(0), View(Suspect)]);
    }
}

#[test]
fn r24_the_history_of_a_dead_process_does_not_come_back() {
    let mut bench = Bench { life: NOW, epoch: Some(1), ..Bench::new(REPLAYS) };
    for seq in 0..3 {
        assert_eq!(bench.live(seq), vec![Apply(seq)]);
    }
    assert_eq!(bench.process_started(2e9 - 50.0), vec![]);
    // Its metrics tell of a new process that has said nothing yet.
    assert_eq!(bench.process_started(2e9 + 50.0), vec![Clear(Emptied::Restarted), again(0), View(Suspect)]);
    for seq in 0..3 {
        assert_eq!(bench.replayed(seq), vec![]);
    }
    assert_eq!(bench.ended(), vec![View(Current)]);
    (bench.epoch, bench.life) = (Some(2), NOW + 1.0);
    assert_eq!(bench.live(0), vec![Clear(Emptied::Restarted), Apply(0)]);
    assert_eq!(bench.live(1), vec![Apply(1)]);
    // It is told of the one after that all the same, though no other batch has come in between.
    assert_eq!(bench.process_started(2e9 + 150.0), vec![Clear(Emptied::Restarted), again(0), View(Suspect)]);
    assert_eq!((bench.replayed(0), bench.ended()), (vec![], vec![View(Current)]));
}

/// A bus that was slow brings a last batch of the dead process, behind which its history looks incomplete.
#[test]
fn r24_a_late_batch_of_a_dead_process_does_not_bring_back_its_history() {
    let mut bench = Bench { life: NOW, epoch: Some(1), ..Bench::new(REPLAYS) };
    bench.live(0);
    assert_eq!(bench.process_started(2e9 - 50.0), vec![]);
    assert_eq!(bench.process_started(2e9 + 50.0), vec![Clear(Emptied::Restarted), again(0), View(Suspect)]);
    assert_eq!((bench.live(3), bench.replayed(0), bench.replayed(3)), (vec![], vec![], vec![]));
    assert_eq!((bench.ended(), bench.after(2), bench.live(4)), (vec![View(Current)], vec![], vec![]));
    (bench.epoch, bench.life) = (Some(2), NOW + 1.0);
    assert_eq!(bench.live(0), vec![Clear(Emptied::Restarted), Apply(0)]);
}

#[test]
fn r24_a_life_that_began_and_ended_unseen_is_passed_over() {
    let mut bench = Bench { life: NOW, epoch: Some(1), ..Bench::new(REPLAYS) };
    bench.live(0);
    assert_eq!(bench.process_started(2e9 - 50.0), vec![]);
    assert_eq!(bench.process_started(2e9 + 250.0), vec![Clear(Emptied::Restarted), again(0), View(Suspect)]);
    assert_eq!(bench.replayed(0), vec![]);
    (bench.epoch, bench.life) = (Some(2), NOW + 1.0);
    assert_eq!((bench.replayed(0), bench.replayed(1), bench.ended()), (vec![], vec![], vec![View(Current)]));
    // The one that lives.
    (bench.epoch, bench.life) = (Some(3), NOW + 3.0);
    assert_eq!(bench.live(0), vec![Clear(Emptied::Restarted), Apply(0)]);
}

#[test]
fn r24_a_restart_that_the_events_told_first_is_not_told_again() {
    let mut bench = Bench { life: NOW, ..Bench::new(REPLAYS) };
    assert_eq!((bench.live(0), bench.live(1)), (vec![Apply(0)], vec![Apply(1)]));
    assert_eq!(bench.process_started(2e9 - 50.0), vec![]);
    bench.life = NOW + 1.0;
    assert_eq!(bench.live(0), vec![Clear(Emptied::Restarted), Apply(0)]);
    assert_eq!((bench.process_started(2e9 + 50.0), bench.live(1)), (vec![], vec![Apply(1)]));
}

#[test]
fn r24_who_begins_behind_a_restart_believes_nothing_from_before_it() {
    // What was replayed before the start was known is of another process.
    let mut bench = Bench { life: NOW, ..Bench::new(REPLAYS) };
    bench.live(0);
    assert_eq!(bench.process_started(2e9 + 50.0), vec![Clear(Emptied::Restarted), again(0), View(Suspect)]);
    // Nor is what the run before left.
    let mut bench = Bench::new(REPLAYS);
    assert_eq!(bench.process_started(2e9 + 50.0), vec![]);
    let left = |newest| Position { epoch: None, next: 3, newest: Some(2e9 + newest) };
    let resumes =
        |bench: &mut Bench, newest| bench.repair.resume((left(newest), Began::AtStart), bench.now, &mut Vec::new());
    assert_eq!((resumes(&mut bench, 2.0), resumes(&mut bench, 60.0)), (false, true));
}

/// A clock that is set back while the process lives costs a second question.
#[test]
fn r24_a_history_that_only_seems_to_be_from_before_is_believed_when_it_is_asked_for_again() {
    let mut bench = Bench { life: NOW, ..Bench::new(REPLAYS) };
    assert_eq!((bench.process_started(2e9 + 50.0), bench.connected()), (vec![], vec![again(0), View(Suspect)]));
    // Live batches are not judged by it.
    assert_eq!((bench.live(3), bench.replayed(0)), (vec![], vec![]));
    assert_eq!(bench.ended(), vec![]);
    assert_eq!(bench.after(1), vec![again(0)]);
    assert_eq!((bench.replayed(0), bench.replayed(1)), (vec![Apply(0)], vec![Apply(1)]));
    assert_eq!(bench.replayed(2), vec![Apply(2), Apply(3)]);
    assert_eq!(bench.ended(), vec![View(Current)]);
}

/// Only then can the numbers tell: what was applied is beyond all that the new process has said.
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
    assert_eq!((bench.cut_short(), bench.after(1)), (vec![], vec![again(8)]));
    bench.replayed(8);
    assert_eq!(bench.ended(), vec![View(Current)]);
    // Nor does one that goes as far as the view, though its last cannot be read.
    bench.connected();
    bench.ended();
    bench.replayed(7);
    bench.unreadable(8, true);
    assert_eq!(bench.ended(), vec![View(Current)]);
}

/// What came live tells nothing of what an idle engine said before: it may have taken away again what is told here.
#[test]
fn an_answer_that_breaks_off_half_way_is_asked_on_behind_what_came() {
    let mut bench = Bench::new(REPLAYS);
    bench.epoch = None;
    assert_eq!(bench.connected(), vec![again(0), View(Suspect)]);
    assert_eq!((bench.replayed(0), bench.cut_short()), (vec![Apply(0)], vec![again(0)]));
    // The same batch, and the same silence: it is waited for a second, then two.
    assert_eq!((bench.replayed(0), bench.cut_short()), (vec![], vec![]));
    assert_eq!(bench.after(1), vec![again(0)]);
    assert_eq!((bench.replayed(0), bench.replayed(1)), (vec![], vec![Apply(1)]));
    assert_eq!(bench.ended(), vec![View(Current)]);
}

/// An engine that is idle may hold much, though it cannot be asked at first.
#[test]
fn a_view_of_which_nothing_was_heard_is_asked_for_until_there_is_an_answer() {
    let mut bench = Bench::new(REPLAYS);
    assert_eq!(bench.connected(), vec![again(0), View(Suspect)]);
    assert_eq!((bench.cut_short(), bench.after(1)), (vec![], vec![again(0)]));
    // Silence, and then an answer that breaks off: that is the first time.
    assert_eq!((bench.cut_short(), bench.after(2)), (vec![], vec![again(0)]));
    assert_eq!((bench.replayed(0), bench.cut_short()), (vec![Apply(0)], vec![again(0)]));
    assert_eq!((bench.replayed(0), bench.replayed(1), bench.ended()), (vec![], vec![Apply(1)], vec![View(Current)]));
    // Who never answers has nothing that is known.
    let mut bench = Bench::new(REPLAYS);
    bench.connected();
    for wait in [1, 2, 4, 8] {
        assert_eq!((bench.cut_short(), bench.after(wait)), (vec![], vec![again(0)]));
    }
    assert_eq!(bench.cut_short().last(), Some(&View(ViewState::Cold)));
}

/// One that never says where its answers end would otherwise lose a view that has all of it.
#[test]
fn an_answer_that_breaks_off_at_one_place_again_and_again_is_all_there_is() {
    let mut bench = Bench::new(REPLAYS);
    bench.connected();
    assert_eq!((bench.replayed(0), bench.cut_short()), (vec![Apply(0)], vec![again(0)]));
    assert_eq!((bench.replayed(0), bench.cut_short()), (vec![], vec![]));
    assert_eq!((bench.after(1), bench.replayed(0)), (vec![again(0)], vec![]));
    assert_eq!(bench.cut_short(), vec![View(Unproven)]);
    assert_eq!(bench.live(1), vec![Apply(1), View(Current)]);
}
