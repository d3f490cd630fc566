//! Views that began empty in the middle, and snapshots that nobody has.

use super::*;

const CORE: Abilities = Abilities { patience: Patience::NATS, replays: false, snapshots: true };

/// One that has lost what came before 10, and has 10 to 12.
fn cold(abilities: Abilities) -> Bench {
    let mut bench = Bench::new(abilities);
    for seq in 10..13 {
        bench.live(seq);
    }
    while bench.repair.view() != ViewState::Cold {
        bench.after(1);
        if bench.repair.awaits_snapshot(bench.awaited) {
            bench.not_restored();
        } else if bench.repair.view() == Suspect {
            for seq in 10..13 {
                bench.replayed(seq);
            }
            bench.ended();
        }
    }
    assert_eq!((bench.repair.feed().next_seq(), bench.repair.feed().held().0), (13, 0));
    bench
}

#[test]
fn a_snapshot_that_nobody_has_takes_nothing_from_a_cold_view() {
    for abilities in [CORE, BOTH] {
        let mut bench = cold(abilities);
        for seq in 13..20 {
            assert_eq!(bench.after(30), vec![fetched(), View(Suspect)]);
            assert_eq!(bench.live(seq), vec![]);
            assert_eq!(bench.not_restored(), vec![Apply(seq), View(ViewState::Cold)]);
        }
        assert_eq!(bench.live(20), vec![Apply(20)]);
        assert_eq!(bench.repair.feed().counts().gaps, 1);
    }
}

#[test]
fn what_is_lost_while_a_snapshot_is_waited_for_is_lost() {
    let mut bench = cold(CORE);
    assert_eq!(bench.after(30), vec![fetched(), View(Suspect)]);
    assert_eq!(bench.live(14), vec![]);
    let lost = Clear(Emptied::Lost(1, Cold::NoReplay));
    assert_eq!(bench.not_restored(), vec![lost, Apply(14), View(ViewState::Cold)]);
    let mut bench = cold(BOTH);
    bench.after(30);
    bench.live(14);
    assert_eq!(bench.not_restored(), vec![again(12)]);
}

#[test]
fn a_part_of_a_snapshot_is_no_view() {
    let mut bench = cold(CORE);
    bench.after(30);
    assert!(bench.repair.takes_snapshot(bench.awaited, bench.now));
    let lost = Clear(Emptied::Lost(0, Cold::HistoryGone));
    assert_eq!(bench.not_restored(), vec![lost, View(ViewState::Cold)]);
}

/// What was missed while the path was gone shows with the next batch.
#[test]
fn a_cold_view_outlives_a_reconnection() {
    let mut bench = cold(CORE);
    assert_eq!(bench.connected(), vec![fetched(), View(Suspect)]);
    assert_eq!(bench.not_restored(), vec![View(ViewState::Cold)]);
    assert_eq!(bench.live(13), vec![Apply(13)]);
}

/// Whoever keeps the engine's blocks has lost what was said before, too: what it has is better than nothing, and not all.
#[test]
fn a_snapshot_of_a_view_that_began_in_the_middle_leaves_the_view_cold() {
    for abilities in [CORE, BOTH] {
        let mut bench = cold(abilities);
        let at = |next: u32| Position { epoch: None, next: u64::from(next), newest: Some(f64::from(next) - 1.0) };
        assert_eq!(bench.after(30), vec![fetched(), View(Suspect)]);
        assert_eq!(bench.restored_from((at(13), Began::InTheMiddle)), vec![View(ViewState::Cold)]);
        assert_eq!((bench.repair.cold(), bench.repair.began()), (Some(Cold::Inherited), Began::InTheMiddle));
        // It would not be better the next time.
        assert_eq!((bench.repair.deadline(), bench.after(3600)), (None, vec![]));
        assert_eq!(bench.live(13), vec![Apply(13)]);
        // A new life has no such past.
        bench.life = 1.0;
        assert_eq!(bench.live(0), vec![Clear(Emptied::Restarted), Apply(0), View(Current)]);
        assert_eq!((bench.repair.cold(), bench.repair.began()), (None, Began::AtStart));
    }
    // Behind a path that was made anew, or a loss of our own, it is asked for again.
    let mut bench = cold(CORE);
    bench.after(30);
    bench.restored_from((Position { epoch: None, next: 13, newest: Some(12.0) }, Began::InTheMiddle));
    assert_eq!(bench.connected(), vec![fetched(), View(Suspect)]);
    let whole = Position { epoch: None, next: 14, newest: Some(13.0) };
    assert_eq!(bench.restored_from((whole, Began::AtStart)), vec![View(Current)]);
}

#[test]
fn a_view_that_was_cold_when_it_was_put_down_is_cold_when_it_is_taken_up() {
    let position = Position { epoch: Some(7), next: 3, newest: Some(2.0) };
    let mut bench = Bench { epoch: Some(7), ..Bench::new(REPLAYS) };
    let steps = bench.hear(|repair, now, steps| assert!(repair.resume((position, Began::InTheMiddle), now, steps)));
    assert_eq!((steps, bench.repair.began()), (vec![View(ViewState::Cold)], Began::InTheMiddle));
    assert_eq!(bench.connected(), vec![again(3), View(Suspect)]);
    assert_eq!(bench.replayed(3), vec![Apply(3)]);
    assert_eq!(bench.ended(), vec![View(ViewState::Cold)]);
    // Whoever has snapshots may have a better one.
    let mut bench = Bench { epoch: Some(7), ..Bench::new(BOTH) };
    bench.hear(|repair, now, steps| assert!(repair.resume((position, Began::InTheMiddle), now, steps)));
    assert_eq!(bench.connected(), vec![fetched(), View(Suspect)]);
    assert_eq!(bench.restored(Position { next: 4, ..position }), vec![View(Current)]);
}
