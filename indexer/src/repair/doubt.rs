//! What goes on while a view is suspect: what is asked next, when it is tried again, and when it is given up.

use std::time::{Duration, Instant};

use super::{Ask, AskId, Asked, Awaited, Cold, Doubt, Emptied, Outcome, Repair, Repaired, Step};
use crate::feed::Action;

/// The first wait after a failed attempt; each further one is twice as long.
pub(super) const BACK_OFF: Duration = Duration::from_secs(1);
/// The longest.
const BACK_OFF_MAX: Duration = Duration::from_secs(30);
/// Attempts that fail before what is missing is given up: half a minute.
const FAILURES_MAX: u32 = 5;
/// How long a source may be silent before an answer counts as failed.
const SILENCE: Duration = Duration::from_secs(10);
/// Live messages in a row that cannot be read before a worker's events are not listened to for a while.
const UNREADABLE_MAX: u32 = 8;
/// That while.
const QUARANTINE: Duration = Duration::from_secs(30);
/// Start times of one process differ by less, in seconds: they are reckoned from the time since boot, which is told in whole ones.
const SAME_START: f64 = 1.1;

/// Batches behind a reconnection in which orphans show that the process is another one, where nobody can be asked.
pub(super) const FRESH: u64 = 64;

pub(super) fn back_off(failures: u32) -> Duration {
    let doubled = failures.saturating_sub(1).min(5);
    BACK_OFF.saturating_mul(1 << doubled).min(BACK_OFF_MAX)
}

impl<T> Repair<T> {
    pub(super) fn can_fetch(&self) -> bool {
        self.abilities.replays || self.abilities.snapshots
    }

    pub(super) fn snapshot_can_be_asked(&self, now: Instant) -> bool {
        self.abilities.snapshots && self.snapshot_retry.is_none_or(|retry| retry <= now)
    }

    /// From now on something may be missing.
    pub(super) fn suspect(&mut self, now: Instant) {
        self.doubt.get_or_insert(Doubt {
            since: now,
            gone: false,
            better: false,
            from_start: false,
            orphaned: false,
            replayed: 0,
            outcome: Outcome::Whole,
        });
        self.unproven = false;
        self.feed.pause();
    }

    /// Whatever the replay that is on its way brings, it is not what is wanted now.
    pub(super) fn void(&mut self) {
        if let Some(asked) = &mut self.asked {
            asked.void = true;
        }
    }

    /// The feed found that the process began anew: the view is empty, and so was the cache.
    pub(super) fn restarted(&mut self, now: Instant) {
        (self.doubt, self.cold, self.snapshot, self.retry) = (None, None, None, None);
        (self.unproven, self.failures, self.process_start) = (false, 0, None);
        (self.fresh, self.orphaned) = (None, (0, None));
        self.void();
        if !self.feed.is_complete() && self.can_fetch() {
            self.suspect(now);
        }
    }

    pub(super) fn gap(&mut self, now: Instant) {
        if self.can_fetch() {
            self.suspect(now);
        } else {
            self.lose(Cold::NoReplay, now);
        }
    }

    /// What is missing is gone for good, as far as the path of the batches goes.
    pub(super) fn lose(&mut self, why: Cold, now: Instant) {
        if self.snapshot_can_be_asked(now) {
            self.suspect(now);
            self.void();
            if let Some(doubt) = &mut self.doubt {
                doubt.gone = true;
            }
            self.retry = None;
            return;
        }
        let to = self.feed.gap_end();
        self.pass_to(to, why);
        self.void();
        self.retry = None;
        self.snapshot = None;
        self.over(now);
        self.feed.go_on(&mut self.actions);
    }

    /// Gives up what comes before number `to`.
    pub(super) fn pass_to(&mut self, to: u64, why: Cold) {
        self.cold = Some(why);
        self.unproven = false;
        self.feed.pass_to(to, &mut self.actions);
        if let Some(doubt) = &mut self.doubt {
            doubt.outcome = Outcome::Cleared(why);
        }
    }

    /// The doubt is over; a source may be asked at once when the next one comes.
    fn over(&mut self, now: Instant) {
        let Some(doubt) = self.doubt.take() else { return };
        let took = now.saturating_duration_since(doubt.since);
        let Doubt { outcome, replayed, .. } = doubt;
        self.over = Some(Repaired { outcome, replayed, failures: self.failures, took });
    }

    /// Nothing is missing any more.
    pub(super) fn settle(&mut self, now: Instant) {
        self.over(now);
        self.failures = 0;
        self.retry = None;
        self.feed.go_on(&mut self.actions);
    }

    pub(super) fn failed(&mut self, now: Instant) {
        self.failures += 1;
        if let Some(doubt) = &mut self.doubt {
            doubt.from_start = false;
        }
        if self.failures >= FAILURES_MAX {
            self.lose(Cold::Unanswered, now);
        } else {
            self.retry = Some(now + back_off(self.failures));
        }
    }

    /// Ends every input: asks for what is wanted now, and hands on what is to be done.
    pub(super) fn finish(&mut self, now: Instant, steps: &mut Vec<Step<T>>) {
        let ask = self.next_ask(now);
        for action in self.actions.drain(..) {
            steps.push(match action {
                Action::Apply(item) => Step::Apply(item),
                Action::Restarted => Step::Clear(Emptied::Restarted),
                Action::Lost(missing) => {
                    let missing = missing.end.saturating_sub(missing.start);
                    Step::Clear(Emptied::Lost(missing, self.cold.unwrap_or(Cold::NoReplay)))
                }
            });
        }
        steps.extend(self.over.take().map(Step::Repaired));
        steps.extend(ask.map(Step::Ask));
        let view = self.view();
        if view != self.told {
            self.told = view;
            steps.push(Step::View(view));
        }
    }

    fn next_ask(&mut self, now: Instant) -> Option<Ask> {
        let doubt = self.doubt?;
        if self.snapshot.is_some() || self.retry.is_some_and(|retry| retry > now) {
            return None;
        }
        self.retry = None;
        if doubt.gone || !self.abilities.replays {
            if !self.snapshot_can_be_asked(now) {
                self.lose(Cold::NoReplay, now);
                return None;
            }
            let id = self.new_id();
            self.snapshot = Some(Awaited { id, heard: now, begun: false, outrun: false });
            return Some(Ask::Snapshot { id });
        }
        if self.asked.is_some() {
            return None;
        }
        let next = self.feed.next_seq();
        let need = if self.feed.has_epoch() { next } else { next.saturating_sub(1) };
        let oldest = self.feed.oldest_known().filter(|_| doubt.orphaned).unwrap_or(need);
        let from = if doubt.from_start { 0 } else { oldest.min(need) };
        let id = self.new_id();
        let (reached, outdated, void) = (false, false, false);
        self.bare.clear();
        self.asked =
            Some(Asked { id, from, need, next_before: next, heard: now, reached, outdated, highest: None, void });
        Some(Ask::Replay { id, from })
    }

    fn new_id(&mut self) -> AskId {
        self.last_id = self.last_id.next();
        self.last_id
    }

    /// Time has passed; called by the [`deadline`](Self::deadline).
    pub fn tick(&mut self, now: Instant, steps: &mut Vec<Step<T>>) {
        if self.quarantine.is_some_and(|until| until <= now) {
            self.quarantine = None;
            return self.connected(now, steps);
        }
        if let Some(awaited) = self.snapshot.filter(|awaited| awaited.heard + SILENCE <= now) {
            self.not_restored(awaited.id, now, steps);
        }
        if let Some(asked) = self.asked.filter(|asked| asked.heard + SILENCE <= now) {
            self.asked = None;
            if !asked.void && self.doubt.is_some_and(|doubt| !doubt.gone) {
                self.failed(now);
            }
        }
        while self.feed.overdue(now).is_some() {
            self.gap(now);
        }
        if self.wants_better(now) {
            self.suspect(now);
            if let Some(doubt) = &mut self.doubt {
                (doubt.gone, doubt.better) = (true, true);
            }
        }
        self.finish(now, steps);
    }

    /// Whether a view that began empty may be filled by a snapshot now.
    fn wants_better(&self, now: Instant) -> bool {
        self.may_be_better() && self.quarantine.is_none() && self.snapshot_can_be_asked(now)
    }

    fn may_be_better(&self) -> bool {
        self.cold.is_some_and(Cold::may_be_filled) && self.doubt.is_none()
    }

    /// When [`tick`](Self::tick) has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let better = self.snapshot_retry.filter(|_| self.may_be_better());
        let waits = [
            self.quarantine,
            self.snapshot.map(|awaited| awaited.heard + SILENCE),
            self.asked.map(|asked| asked.heard + SILENCE),
            self.retry,
            self.feed.deadline(),
            better.filter(|_| self.abilities.snapshots && self.quarantine.is_none()),
        ];
        waits.into_iter().flatten().min()
    }

    /// A batch of this number, in this life, cannot be read; `replayed` names the question if it was asked for. What has
    /// no number is no part of the stream, whoever sent it.
    pub fn unreadable(&mut self, seq: Option<u64>, replayed: Option<AskId>, now: Instant, steps: &mut Vec<Step<T>>) {
        let Some(seq) = seq.filter(|_| self.quarantine.is_none()) else { return };
        match replayed {
            // It says nothing of what the worker says now: a history keeps for long what was wrong once.
            Some(id) => self.unreadable_again(id, seq, now),
            None => self.unreadable_live(seq, now, steps),
        }
        self.finish(now, steps);
    }

    fn unreadable_live(&mut self, seq: u64, now: Instant, steps: &mut Vec<Step<T>>) {
        self.unreadable += 1;
        let next = self.feed.next_seq();
        if self.unreadable >= UNREADABLE_MAX {
            self.shut_out(now, steps);
        } else if seq >= next {
            self.feed.note_seen(seq);
            if self.can_fetch() {
                self.suspect(now);
            } else if seq == next {
                self.pass_to(seq.saturating_add(1), Cold::Unreadable);
            }
        }
    }

    /// What was sent again cannot be read either: nobody will ever know what it said.
    fn unreadable_again(&mut self, id: AskId, seq: u64, now: Instant) {
        let Some(mut asked) = self.asked.filter(|asked| asked.id == id && !asked.void) else { return };
        asked.heard = now;
        // Without epochs a number alone is no proof of the process: its time could not be read either.
        asked.reached |= seq <= asked.need && (self.feed.has_epoch() || asked.next_before == 0);
        asked.highest = asked.highest.max(Some(seq));
        self.asked = Some(asked);
        if seq == self.feed.next_seq() && asked.reached {
            if self.snapshot_can_be_asked(now) {
                self.lose(Cold::Unreadable, now);
            } else {
                self.pass_to(seq.saturating_add(1), Cold::Unreadable);
            }
        }
    }

    /// Blocks were stored below others that the view should have had. An engine's restart shows in that where its numbers
    /// go on just where they ended before: whoever can be asked is, for batches that were applied, whose times tell. Where
    /// nobody can, orphans mean so only right behind a reconnection. At other times there are many reasons, such as a parent
    /// that was rejected or a copy that was not counted, and the view that would be given up is worth more than the doubt.
    /// So it is in a view that began in the middle; and epochs tell of restarts themselves.
    pub fn orphaned(&mut self, now: Instant, steps: &mut Vec<Step<T>>) {
        let (times, not_before) = self.orphaned;
        if self.feed.has_epoch() || self.cold.is_some() || self.doubt.is_some() || self.quarantine.is_some() {
            return;
        }
        if !self.can_fetch() {
            if self.fresh.take().is_some_and(|until| self.feed.next_seq() <= until) {
                self.lose(Cold::NoReplay, now);
            }
        } else if self.abilities.replays
            && self.feed.oldest_known().is_some()
            && not_before.is_none_or(|not_before| not_before <= now)
        {
            self.orphaned = (times.saturating_add(1), Some(now + back_off(times.saturating_add(1))));
            self.suspect(now);
            if let Some(doubt) = &mut self.doubt {
                doubt.orphaned = true;
            }
        }
        self.finish(now, steps);
    }

    /// The view was emptied, for a batch that was applied took blocks away and nobody knows which.
    pub fn emptied(&mut self, now: Instant, steps: &mut Vec<Step<T>>) {
        self.cold = Some(Cold::Unreadable);
        if let Some(doubt) = &mut self.doubt {
            doubt.outcome = Outcome::Cleared(Cold::Unreadable);
        }
        self.finish(now, steps);
    }

    /// Too much cannot be read: nothing of this worker is believed for a while, then all is asked for again.
    fn shut_out(&mut self, now: Instant, steps: &mut Vec<Step<T>>) {
        self.begin_anew(now);
        (self.doubt, self.cold, self.unreadable) = (None, Some(Cold::Unreadable), 0);
        self.quarantine = Some(now + QUARANTINE);
        steps.push(Step::Clear(Emptied::Lost(0, Cold::Unreadable)));
    }

    pub(super) fn begin_anew(&mut self, now: Instant) {
        self.feed.begin_anew();
        self.restarted(now);
        if self.can_fetch() {
            self.suspect(now);
        }
    }

    /// Somebody else saw when the engine's process started, in seconds by its own clock. What was applied is of another one if
    /// it is from before that, whatever the events say; where no time tells, if another start was told before, and so it is
    /// where the clock was set back.
    pub fn process_started(&mut self, at: f64, now: Instant, steps: &mut Vec<Step<T>>) {
        let known = self.process_start;
        if known.is_none_or(|known| (known - at).abs() >= SAME_START) {
            let is_older = self.feed.note_process(at, known.is_some_and(|known| at > known));
            if is_older.unwrap_or(known.is_some()) || known.is_some_and(|known| at < known) {
                self.begin_anew(now);
                steps.push(Step::Clear(Emptied::Restarted));
            }
            self.process_start = Some(at);
        }
        self.finish(now, steps);
    }
}
