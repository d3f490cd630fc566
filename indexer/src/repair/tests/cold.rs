//! Views that began empty in the middle, and snapshots that nobody has.

use super::*;

const CORE: Means = Means { patience: Patience::NATS, replays: false, snapshots: true };

/// One that has lost what came before 10, and has 10 to 12.
fn cold(means: Means) -> Bench {
    let mut bench = Bench::new(means);
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
    for means in [CORE, BOTH] {
        let mut bench = cold(means);
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
