//! How one worker's view is kept whole: what to do about gaps, reconnections, restarts and what cannot be read. Nothing
//! here knows a bus, a clock or an index; the task that owns the repair does what it says.

mod doubt;
mod replay;
mod step;

use std::time::Instant;

use warmpath_core::trust::ViewState;

use crate::feed::{Action, Began, Patience, Position, Stamp, Verdict, WorkerFeed};
use doubt::{BACK_OFF, FRESH, back_off};
use replay::{Asked, Bare};
pub use step::{Ask, AskId, Cold, Emptied, Outcome, Repaired, ReplayEnd, Step};

/// What a source can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// How long batches may overtake each other on its path.
    pub patience: Patience,
    /// Whether it answers [`Ask::Replay`].
    pub replays: bool,
    /// Whether it answers [`Ask::Snapshot`].
    pub snapshots: bool,
}

/// A view that something is thought to be missing in.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    since: Instant,
    /// Whether replays cannot help: what is missing is gone.
    gone: bool,
    /// Whether nothing is: the view began empty, and a snapshot would fill it.
    better: bool,
    /// Whether the next replay is to begin at the beginning: one from where the view ends found nothing.
    from_start: bool,
    /// Whether it is to begin at the oldest batch that is remembered, to see whether the process is still the same.
    orphaned: bool,
    /// Batches that were sent again because of it.
    replayed: u64,
    /// How it would end now.
    outcome: Outcome,
}

/// A snapshot that was asked for.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    id: AskId,
    /// When the source was heard last.
    heard: Instant,
    /// Whether a part of it has come: the view is not what it was.
    begun: bool,
    /// Whether it was taken before the path was made anew: what was missed then may not be in it.
    outrun: bool,
}

/// Keeps one (worker, rank)'s view whole.
///
/// 1. Batches are handed out in order, each at most once; never while a snapshot is being put in.
/// 2. While anything is thought to be missing the view is `Suspect`. It is `Current` only if everything that is known to
///    have been said is in it, `Unproven` if only the next batch can tell that, and `Cold` if it began empty in the middle,
///    or was filled from a view that did.
/// 3. A restart, whoever tells it, empties the view at once.
/// 4. One replay and one snapshot are waited for at most. An answer to a question that no longer matters is dropped, however
///    late it comes and whatever else is on its way.
/// 5. What waits is bounded, in batches and in bytes; so is how long anything is tried.
pub struct Repair<T> {
    abilities: Abilities,
    feed: WorkerFeed<T>,
    doubt: Option<Doubt>,
    cold: Option<Cold>,
    asked: Option<Asked>,
    /// What it brought that only its end can place.
    bare: Bare<T>,
    /// The last question's name.
    last_id: AskId,
    snapshot: Option<Awaited>,
    /// No snapshot is asked for before.
    snapshot_retry: Option<Instant>,
    snapshot_failures: u32,
    retry: Option<Instant>,
    failures: u32,
    /// Where the last replay broke off that brought nothing new.
    stopped_at: Option<u64>,
    /// Live messages in a row that could not be read.
    unreadable: u32,
    quarantine: Option<Instant>,
    /// The path was made anew, and only the next batch can tell whether any was missed.
    unproven: bool,
    /// Up to this number a batch may still show that another process took over while the path was gone.
    fresh: Option<u64>,
    /// How often orphans were a reason to ask, and when they may be again.
    orphaned: (u32, Option<Instant>),
    process_start: Option<f64>,
    told: ViewState,
    /// A repair that is over and was not told yet.
    over: Option<Repaired>,
    actions: Vec<Action<T>>,
}

impl<T> Repair<T> {
    /// Of a view that is empty, over a source that has said nothing.
    pub fn new(abilities: Abilities) -> Self {
        Self {
            abilities,
            feed: WorkerFeed::new(abilities.patience),
            doubt: None,
            cold: None,
            asked: None,
            bare: Bare::default(),
            last_id: AskId::default(),
            snapshot: None,
            snapshot_retry: None,
            snapshot_failures: 0,
            retry: None,
            failures: 0,
            stopped_at: None,
            unreadable: 0,
            quarantine: None,
            unproven: false,
            fresh: None,
            orphaned: (0, None),
            process_start: None,
            told: ViewState::Current,
            over: None,
            actions: Vec::new(),
        }
    }

    /// Begins again with an empty view, over the same source: what was known is not to be trusted, for the task that kept it
    /// has failed. Answers to earlier questions do not matter any more.
    pub fn start_over(&mut self, now: Instant, steps: &mut Vec<Step<T>>) {
        let Self { abilities, last_id, process_start, told, .. } = *self;
        *self = Self { last_id, process_start, told, ..Self::new(abilities) };
        if let Some(at) = process_start {
            self.feed.note_process(at, false);
        }
        self.connected(now, steps);
    }

    /// From now on the source sends batches again, or not.
    pub fn set_replays(&mut self, replays: bool) {
        self.abilities.replays = replays;
    }

    /// How far the view can be believed.
    pub fn view(&self) -> ViewState {
        match (self.doubt, self.cold) {
            (Some(_), _) => ViewState::Suspect,
            (None, Some(_)) => ViewState::Cold,
            (None, None) if self.unproven => ViewState::Unproven,
            (None, None) => ViewState::Current,
        }
    }

    /// The order of what is heard, to look at.
    pub fn feed(&self) -> &WorkerFeed<T> {
        &self.feed
    }

    /// Why the view began empty in the middle, if it did.
    pub fn cold(&self) -> Option<Cold> {
        self.cold
    }

    /// Where the view began: what whoever goes on from it needs to know.
    pub fn began(&self) -> Began {
        if self.cold.is_some() { Began::InTheMiddle } else { Began::AtStart }
    }

    /// Goes on behind a view that was put in from elsewhere, as at a start. Returns whether it fits. It is unproven until the
    /// path tells: nobody can be asked before there is one, and an engine may have done anything in the meantime. One that
    /// began in the middle stays cold.
    pub fn resume(&mut self, (position, began): (Position, Began), now: Instant, steps: &mut Vec<Step<T>>) -> bool {
        let resumed = self.feed.resume(position, &mut self.actions);
        if resumed {
            self.unproven = true;
            self.cold = (began == Began::InTheMiddle).then_some(Cold::HistoryGone);
            self.finish(now, steps);
        }
        resumed
    }

    /// The path was made, or made again: what was sent in the meantime may be missing.
    pub fn connected(&mut self, now: Instant, steps: &mut Vec<Step<T>>) {
        self.failures = 0;
        self.retry = None;
        self.snapshot_retry = None;
        if self.quarantine.is_none() {
            if self.can_fetch() {
                self.suspect(now);
                self.void();
                if let Some(awaited) = &mut self.snapshot {
                    awaited.outrun = true;
                }
                if let Some(doubt) = &mut self.doubt {
                    doubt.better = false;
                    doubt.gone |= self.abilities.snapshots && self.cold.is_some();
                }
            } else {
                self.unproven = self.feed.is_started();
                self.fresh = self.unproven.then(|| self.feed.next_seq().saturating_add(FRESH));
            }
        }
        self.finish(now, steps);
    }

    /// A batch of so many bytes, as the engine sends it. `orphan` tells whether it hangs below a block that the view does
    /// not hold; it is asked only where nothing better tells a restart.
    pub fn live(
        &mut self,
        stamp: Stamp,
        sized: (T, usize),
        orphan: impl FnOnce(&T) -> bool,
        now: Instant,
        steps: &mut Vec<Step<T>>,
    ) {
        if self.quarantine.is_some() {
            return;
        }
        self.unreadable = 0;
        match self.feed.push(stamp, sized, orphan, now, &mut self.actions) {
            Verdict::Restart => self.restarted(now),
            Verdict::Apply => self.unproven = false,
            Verdict::Gap { .. } => self.gap(now),
            Verdict::Full if self.retry.is_some() => self.lose(Cold::Overflow, now),
            Verdict::Full | Verdict::Hold | Verdict::Duplicate => {}
        }
        self.finish(now, steps);
    }

    /// Whether this snapshot is waited for; what comes of any other one is nothing to the view.
    pub fn awaits_snapshot(&self, id: AskId) -> bool {
        self.snapshot.is_some_and(|awaited| awaited.id == id)
    }

    /// Whether a part of this snapshot is to be put in; the first one takes the place of what was in the view.
    pub fn takes_snapshot(&mut self, id: AskId, now: Instant) -> bool {
        let awaited = self.snapshot.as_mut().filter(|awaited| awaited.id == id);
        awaited.is_some_and(|awaited| {
            *awaited = Awaited { heard: now, begun: true, ..*awaited };
            true
        })
    }

    /// This snapshot was put in, and tells how far it goes and where it began.
    pub fn restored(
        &mut self,
        id: AskId,
        (position, began): (Position, Began),
        now: Instant,
        steps: &mut Vec<Step<T>>,
    ) {
        let Some(awaited) = self.snapshot.filter(|awaited| awaited.id == id) else { return };
        if !self.feed.resume(position, &mut self.actions) {
            return self.not_restored(id, now, steps);
        }
        self.snapshot = None;
        self.snapshot_failures = 0;
        self.snapshot_retry = Some(now + BACK_OFF).filter(|_| !awaited.outrun);
        self.cold = (began == Began::InTheMiddle).then_some(Cold::Inherited);
        if let Some(doubt) = &mut self.doubt {
            (doubt.gone, doubt.outcome) = (false, Outcome::Snapshot);
        }
        self.feed.go_on(&mut self.actions);
        if !awaited.outrun && (self.feed.is_complete() || !self.abilities.replays) {
            self.settle(now);
        } else {
            self.feed.pause();
        }
        self.finish(now, steps);
    }

    /// There is no such snapshot, or it cannot be believed: the view is as it was if no part of it has come, else empty.
    pub fn not_restored(&mut self, id: AskId, now: Instant, steps: &mut Vec<Step<T>>) {
        let Some(awaited) = self.snapshot.take_if(|awaited| awaited.id == id) else { return };
        if awaited.outrun && !awaited.begun {
            // It failed with the path of its time; by the new one it is asked for anew.
            return self.finish(now, steps);
        }
        self.snapshot_failures += 1;
        self.snapshot_retry = Some(now + back_off(self.snapshot_failures));
        if awaited.begun {
            self.lose(Cold::HistoryGone, now);
        } else if self.doubt.take_if(|doubt| doubt.better).is_some() {
            // It has all that came since it began.
            self.failures = 0;
            self.feed.go_on(&mut self.actions);
            if !self.feed.is_complete() {
                self.gap(now);
            }
        } else if self.abilities.replays {
            if let Some(doubt) = &mut self.doubt {
                doubt.gone = false;
            }
        } else {
            // Where what came meanwhile follows what was applied, nothing was missed.
            let before = self.feed.next_seq();
            self.feed.go_on(&mut self.actions);
            if self.feed.is_complete() {
                self.settle(now);
                self.unproven = self.feed.is_started() && self.feed.next_seq() == before;
            } else {
                self.lose(Cold::HistoryGone, now);
            }
        }
        self.finish(now, steps);
    }
}

#[cfg(test)]
mod tests;
