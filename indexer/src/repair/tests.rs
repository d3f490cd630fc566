use std::time::{Duration, Instant};

use super::*;
use crate::feed::HoldMax;

mod bare;
mod cold;
mod restarts;

const REPLAYS: Abilities = Abilities { patience: Patience::NONE, replays: true, snapshots: false };
const BOTH: Abilities = Abilities { snapshots: true, ..REPLAYS };
const NEITHER: Abilities = Abilities { replays: false, ..REPLAYS };

use Step::{Apply, Clear, View};
use ViewState::{Current, Suspect, Unproven};

/// Asks for a snapshot.
fn fetched() -> Step<u64> {
    Step::Ask(Ask::Snapshot { id: AskId::default() })
}

/// Asks for all from this number on.
fn again(from: u64) -> Step<u64> {
    Step::Ask(Ask::Replay { id: AskId::default(), from })
}

/// A repair whose items are their own numbers, and a clock that the test moves. Time stamps are numbers plus 100 a life.
struct Bench {
    repair: Repair<u64>,
    now: Instant,
    epoch: Option<u64>,
    life: f64,
    /// The names of the last questions, for a replay and for a snapshot, which steps do not show here.
    asked: AskId,
    awaited: AskId,
}

impl Bench {
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning")]
    fn new(abilities: Abilities) -> Self {
        Self {
            repair: Repair::new(abilities),
            now: Instant::now(),
            epoch: None,
            life: 0.0,
            asked: AskId::default(),
            awaited: AskId::default(),
        }
    }

    /// One that has heard so many batches.
    fn of(abilities: Abilities, batches: u64) -> Self {
        let mut bench = Self::new(abilities);
        for seq in 0..batches {
            assert_eq!(bench.live(seq), vec![Apply(seq)]);
        }
        bench
    }

    fn hear(&mut self, hear: impl FnOnce(&mut Repair<u64>, Instant, &mut Vec<Step<u64>>)) -> Vec<Step<u64>> {
        let mut steps = Vec::new();
        hear(&mut self.repair, self.now, &mut steps);
        steps.retain(|step| !matches!(step, Step::Repaired(_)));
        for step in &mut steps {
            match step {
                Step::Ask(Ask::Replay { id, .. }) => self.asked = std::mem::take(id),
                Step::Ask(Ask::Snapshot { id }) => self.awaited = std::mem::take(id),
                _ => {}
            }
        }
        steps
    }

    fn stamp(&self, seq: u64) -> Stamp {
        let ts = f64::from(u32::try_from(seq).unwrap()) + 100.0 * self.life;
        Stamp { seq, epoch: self.epoch, ts: Some(ts) }
    }

    fn live(&mut self, seq: u64) -> Vec<Step<u64>> {
        let stamp = self.stamp(seq);
        self.hear(|repair, now, steps| repair.live(stamp, (seq, 10), |_| false, now, steps))
    }

    fn replayed(&mut self, seq: u64) -> Vec<Step<u64>> {
        self.replayed_to(self.asked, seq)
    }

    fn replayed_to(&mut self, asked: AskId, seq: u64) -> Vec<Step<u64>> {
        let stamp = self.stamp(seq);
        self.hear(|repair, now, steps| repair.replayed(asked, stamp, (seq, 10), now, steps))
    }

    fn ended(&mut self) -> Vec<Step<u64>> {
        self.ended_to(self.asked)
    }

    fn cut_short(&mut self) -> Vec<Step<u64>> {
        let asked = self.asked;
        self.hear(|repair, now, steps| repair.replay_ended((asked, ReplayEnd::CutShort), now, steps))
    }

    fn ended_to(&mut self, asked: AskId) -> Vec<Step<u64>> {
        self.hear(|repair, now, steps| repair.replay_ended((asked, ReplayEnd::Whole), now, steps))
    }

    fn restored(&mut self, position: Position) -> Vec<Step<u64>> {
        self.restored_from((position, Began::AtStart))
    }

    fn restored_from(&mut self, snapshot: (Position, Began)) -> Vec<Step<u64>> {
        let awaited = self.awaited;
        self.hear(|repair, now, steps| repair.restored(awaited, snapshot, now, steps))
    }

    fn not_restored(&mut self) -> Vec<Step<u64>> {
        let awaited = self.awaited;
        self.hear(|repair, now, steps| repair.not_restored(awaited, now, steps))
    }

    fn process_started(&mut self, at: f64) -> Vec<Step<u64>> {
        self.hear(|repair, now, steps| repair.process_started(at, now, steps))
    }

    fn connected(&mut self) -> Vec<Step<u64>> {
        self.hear(Repair::connected)
    }

    fn unreadable(&mut self, seq: u64, replayed: bool) -> Vec<Step<u64>> {
        let replayed = replayed.then_some(self.asked);
        self.hear(|repair, now, steps| repair.unreadable(Some(seq), replayed, now, steps))
    }

    fn after(&mut self, wait_s: u64) -> Vec<Step<u64>> {
        self.now += Duration::from_secs(wait_s);
        self.hear(Repair::tick)
    }
}

#[test]
fn r23_a_gap_is_filled_in_order_beside_live_batches() {
    let mut bench = Bench::of(REPLAYS, 3);
    // One batch more than is missing: it shows that the process is the same.
    assert_eq!(bench.live(5), vec![again(2), View(Suspect)]);
    assert_eq!(bench.live(6), vec![]);
    assert_eq!((bench.replayed(2), bench.replayed(3)), (vec![], vec![Apply(3)]));
    assert_eq!(bench.replayed(4), vec![Apply(4), Apply(5), Apply(6)]);
    assert_eq!(bench.replayed(5), vec![]);
    assert_eq!(bench.ended(), vec![View(Current)]);
    assert_eq!(bench.live(7), vec![Apply(7)]);
}

#[test]
fn an_answer_that_begins_too_late_empties_the_view_and_says_so() {
    let mut bench = Bench::of(REPLAYS, 3);
    bench.live(9);
    let lost = Clear(Emptied::Lost(4, Cold::HistoryGone));
    assert_eq!(bench.replayed(7), vec![lost, Apply(7)]);
    assert_eq!(bench.replayed(8), vec![Apply(8), Apply(9)]);
    assert_eq!(bench.ended(), vec![View(ViewState::Cold)]);
    assert_eq!(bench.repair.cold(), Some(Cold::HistoryGone));
}

#[test]
fn where_there_is_a_snapshot_it_is_asked_for_and_gone_on_from() {
    let mut bench = Bench::of(BOTH, 3);
    bench.live(9);
    assert_eq!(bench.replayed(7), vec![fetched()]);
    assert_eq!((bench.replayed(8), bench.ended()), (vec![], vec![]));
    assert_eq!(bench.live(10), vec![]);
    assert!(bench.repair.takes_snapshot(bench.awaited, bench.now));
    let position = Position { epoch: None, next: 9, newest: Some(8.0) };
    let steps = bench.restored(position);
    assert_eq!(steps, vec![Apply(9), Apply(10), View(Current)]);
    assert!(!bench.repair.takes_snapshot(bench.awaited, bench.now));
}

#[test]
fn without_a_snapshot_the_replay_is_asked_for_again_and_taken_as_it_is() {
    let mut bench = Bench::of(BOTH, 3);
    bench.live(9);
    assert_eq!(bench.replayed(7), vec![fetched()]);
    bench.ended();
    assert_eq!(bench.not_restored(), vec![again(2)]);
    assert_eq!(bench.replayed(7), vec![Clear(Emptied::Lost(4, Cold::HistoryGone)), Apply(7)]);
    assert_eq!(bench.replayed(8), vec![Apply(8), Apply(9)]);
    assert_eq!(bench.ended(), vec![View(ViewState::Cold)]);
    // A cold view is not the end of it.
    assert_eq!(bench.after(1), vec![fetched(), View(Suspect)]);
}

#[test]
fn without_a_snapshot_what_came_meanwhile_shows_whether_any_is_missing() {
    let abilities = Abilities { replays: false, ..BOTH };
    for (heard, next) in [(0, 0), (3, 3)] {
        let mut bench = Bench::of(abilities, heard);
        assert_eq!(bench.connected(), vec![fetched(), View(Suspect)]);
        assert_eq!((bench.live(next), bench.live(next + 1)), (vec![], vec![]));
        assert_eq!(bench.not_restored(), vec![Apply(next), Apply(next + 1), View(Current)]);
    }
    let mut bench = Bench::of(abilities, 3);
    bench.connected();
    assert_eq!((bench.live(3), bench.live(5)), (vec![], vec![]));
    let lost = Clear(Emptied::Lost(1, Cold::HistoryGone));
    assert_eq!(bench.not_restored(), vec![Apply(3), lost, Apply(5), View(ViewState::Cold)]);
}

/// What was missed while the path was gone may be younger than the snapshot, and what failed with it is no failure now.
#[test]
fn a_snapshot_of_before_a_reconnection_is_asked_for_again_behind_it() {
    let abilities = Abilities { replays: false, ..BOTH };
    for comes in [false, true] {
        let mut bench = Bench::of(abilities, 3);
        assert_eq!(bench.connected(), vec![fetched(), View(Suspect)]);
        assert_eq!(bench.connected(), vec![]);
        let at = |next: u32| Position { epoch: None, next: u64::from(next), newest: Some(f64::from(next) - 1.0) };
        let again = if comes {
            assert!(bench.repair.takes_snapshot(bench.awaited, bench.now));
            bench.restored(at(5))
        } else {
            bench.not_restored()
        };
        assert_eq!(again, vec![fetched()]);
        assert_eq!(bench.restored(at(9)), vec![View(Current)]);
    }
}

#[test]
fn a_snapshot_that_comes_too_late_is_not_taken_for_the_next() {
    let mut bench = Bench::of(Abilities { replays: false, ..BOTH }, 3);
    bench.connected();
    let late = bench.awaited;
    assert_eq!(bench.after(10), vec![View(Unproven)]);
    assert_eq!(bench.connected(), vec![fetched(), View(Suspect)]);
    assert!(!bench.repair.takes_snapshot(late, bench.now) && bench.repair.awaits_snapshot(bench.awaited));
    assert_eq!(bench.hear(|repair, now, steps| repair.not_restored(late, now, steps)), vec![]);
    let position = Position { epoch: None, next: 9, newest: Some(8.0) };
    assert_eq!(bench.restored(position), vec![View(Current)]);
}

#[test]
fn what_fails_is_tried_again_ever_later_and_given_up_in_the_end() {
    let mut bench = Bench::of(REPLAYS, 3);
    bench.live(5);
    for wait_s in [1, 2, 4, 8] {
        // From the end of the view and from the beginning.
        assert_eq!(bench.ended(), vec![again(0)]);
        assert_eq!(bench.ended(), vec![]);
        assert_eq!(bench.after(wait_s - 1), vec![]);
        assert_eq!(bench.after(1), vec![again(2)]);
    }
    bench.ended();
    let lost = Clear(Emptied::Lost(2, Cold::Unanswered));
    assert_eq!(bench.ended(), vec![lost, Apply(5), View(ViewState::Cold)]);
    assert_eq!((BACK_OFF, back_off(5), back_off(6), back_off(99)), (s(1), s(16), s(30), s(30)));
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_reconnection_ends_the_wait_and_asks_before_the_view_is_believed() {
    let mut bench = Bench::of(REPLAYS, 3);
    assert_eq!(bench.connected(), vec![again(2), View(Suspect)]);
    assert_eq!((bench.ended(), bench.ended()), (vec![again(0)], vec![]));
    assert_eq!(bench.connected(), vec![again(2)]);
    assert_eq!((bench.replayed(2), bench.ended()), (vec![], vec![View(Current)]));
}

#[test]
fn a_source_that_falls_silent_is_asked_again() {
    let mut bench = Bench::of(REPLAYS, 3);
    bench.live(5);
    let mut given_up = vec![bench.asked];
    assert_eq!((bench.after(10), bench.after(1)), (vec![], vec![again(2)]));
    given_up.push(bench.asked);
    assert_eq!((bench.after(10), bench.after(2)), (vec![], vec![again(2)]));
    // What still comes of the first two says nothing about the third: neither where it begins nor that it ends.
    for asked in given_up {
        assert_eq!((bench.replayed_to(asked, 4), bench.ended_to(asked)), (vec![], vec![]));
    }
    for (seq, step) in [(2, vec![]), (3, vec![Apply(3)]), (4, vec![Apply(4), Apply(5)])] {
        assert_eq!(bench.replayed(seq), step);
    }
    assert_eq!(bench.ended(), vec![View(Current)]);
}

/// Histories hold for long what could not be read once.
#[test]
fn r28_a_worker_is_heard_again_though_its_history_still_has_the_nonsense() {
    let mut bench = Bench::of(REPLAYS, 3);
    for seq in 3..11 {
        bench.unreadable(seq, false);
    }
    bench.after(10);
    assert_eq!(bench.after(20), vec![again(0), View(Suspect)]);
    for seq in 0..3 {
        assert_eq!(bench.replayed(seq), vec![Apply(seq)]);
    }
    for seq in 3..11 {
        assert_eq!(bench.unreadable(seq, true), vec![Clear(Emptied::Lost(1, Cold::Unreadable))]);
    }
    assert_eq!(bench.replayed(11), vec![Apply(11)]);
    assert_eq!((bench.ended(), bench.live(12)), (vec![View(ViewState::Cold)], vec![Apply(12)]));
}

#[test]
fn r28_what_nobody_can_read_is_asked_for_once_and_then_given_up() {
    let mut bench = Bench::of(REPLAYS, 3);
    assert_eq!(bench.unreadable(3, false), vec![again(2), View(Suspect)]);
    bench.live(4);
    bench.replayed(2);
    assert_eq!(bench.unreadable(3, true), vec![Clear(Emptied::Lost(1, Cold::Unreadable))]);
    assert_eq!((bench.replayed(4), bench.ended()), (vec![Apply(4)], vec![View(ViewState::Cold)]));
}

#[test]
fn r28_a_worker_that_talks_nonsense_is_not_heard_for_a_while_and_then_repaired() {
    let mut bench = Bench::of(REPLAYS, 3);
    for seq in 3..10 {
        bench.unreadable(seq, false);
    }
    let steps = bench.unreadable(10, false);
    assert_eq!(steps, vec![Clear(Emptied::Lost(0, Cold::Unreadable)), View(ViewState::Cold)]);
    assert_eq!((bench.live(11), bench.replayed(2), bench.ended()), (vec![], vec![], vec![]));
    assert_eq!((bench.after(29), bench.live(12)), (vec![], vec![]));
    assert_eq!(bench.after(1), vec![again(0), View(Suspect)]);
    assert_eq!((bench.replayed(0), bench.replayed(1)), (vec![Apply(0)], vec![Apply(1)]));
}

#[test]
fn what_waits_is_bounded_and_what_found_no_room_is_fetched() {
    let mut bench = Bench::of(REPLAYS, 3);
    bench.repair.feed.set_hold_max(HoldMax { batches: 100, bytes: 25 });
    for seq in 4..20 {
        bench.live(seq);
    }
    assert_eq!(bench.repair.feed().held(), (2, 20));
    bench.replayed(2);
    assert_eq!(bench.replayed(3), vec![Apply(3), Apply(4), Apply(5)]);
    // There was more than that.
    assert_eq!(bench.ended(), vec![again(5)]);
    for seq in 5..20 {
        bench.replayed(seq);
    }
    assert_eq!(bench.ended(), vec![View(Current)]);
}

#[test]
fn without_any_way_back_a_gap_empties_the_view() {
    let mut bench = Bench::of(NEITHER, 3);
    let lost = Clear(Emptied::Lost(2, Cold::NoReplay));
    assert_eq!(bench.live(5), vec![lost, Apply(5), View(ViewState::Cold)]);
    bench.life = 1.0;
    assert_eq!(bench.live(0), vec![Clear(Emptied::Restarted), Apply(0), View(Current)]);
    // After a new connection the next batch tells.
    assert_eq!((bench.connected(), bench.live(1)), (vec![View(Unproven)], vec![Apply(1), View(Current)]));
}

/// What was written down an hour ago is not believed because nobody has spoken yet.
#[test]
fn a_view_from_before_the_start_is_unproven_until_the_path_has_told() {
    let position = Position { epoch: Some(7), next: 3, newest: Some(2.0) };
    let resumed = |abilities| {
        let mut bench = Bench::new(abilities);
        let mut fits = false;
        let steps = bench.hear(|repair, now, steps| fits = repair.resume((position, Began::AtStart), now, steps));
        assert_eq!((fits, steps), (true, vec![View(Unproven)]));
        assert_eq!(bench.after(3600), vec![]);
        bench
    };
    // By the stream: nothing came after it.
    let mut bench = resumed(BOTH);
    assert_eq!(bench.connected(), vec![again(3), View(Suspect)]);
    assert_eq!(bench.ended(), vec![View(Current)]);
    // By nobody: the next batch has to follow.
    let mut bench = resumed(Abilities { replays: false, ..BOTH });
    assert_eq!(bench.connected(), vec![fetched(), View(Suspect)]);
    assert_eq!(bench.not_restored(), vec![View(Unproven)]);
    let next = Stamp { seq: 3, epoch: Some(7), ts: Some(3.0) };
    let steps = bench.hear(|repair, now, steps| repair.live(next, (3, 10), |_| false, now, steps));
    assert_eq!(steps, vec![Apply(3), View(Current)]);
}
