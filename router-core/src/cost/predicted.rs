//! The `predicted` policy: to where the first token is predicted soonest, with what that takes from others counted in.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::{Candidate, Cost, CostFunction, NoChoice, Term, Told, ratio};
use crate::ids::{Roll, SequenceHash};
use crate::observe::{Enrol, Enrolled, Learn, Observation};
use crate::rates::{Amount, Outlook, Rates, Reading, Returning, Seen, Work};
use crate::real::{Four, Number, larger};
use crate::shape::{Objectives, Shape};
use crate::units::{Blocks, Tier};
use copies::{Copies, First, Home};
use late::late;
use room::{has_room, until_room};
use soonest::Soonest;
use toll::Toll;
use worth::Worth;

mod copies;
mod late;
mod room;
mod soonest;
mod toll;
mod worth;

/// `wait + own + more·(busy·min(λ, 8λᵣ)·(wait + own/2) + min(full·κ/2·decoding, 20)) + min(more, saved)·λᵣ·(wait + own/2) +
/// last + step + behind + 10·late − copy` in ms, lowest wins; ours. Only what a request makes others wait multiplies; what it
/// waits itself hurts nobody else. All constants are learned ([`Rates`]).
///
/// - `wait` is what the engine has to do before it comes to the request, or until it has room for it, by how long those have
///   been there who keep it; `own` what it has to compute of it: together the request's time to first token. One that is full
///   can be chosen, too: to wait for room where a prefix is may take less than to compute it elsewhere. Each who comes there
///   while this one waits waits for one more to go: `behind`, together as long as it waits for room itself.
/// - Others lose `more` by it: what it adds to a step that there is anyway, for them or for the streams. Those who arrive there
///   before it is begun each lose that; those who come while it is computed lose what is left of it: half, on average. In a ms
///   these are `λ`, an equal share of all arrivals, but no more than eight times `λᵣ`, as many as came there last: a worker
///   that nobody goes to has nobody to make wait. They count as far as the fleet is `busy`: `ρ^(√(2(k + 1)) − 1)/(1 − ρ)`, as
///   queues grow before `k` workers with the share `ρ` of their time in which they compute prompts (Sakasegawa, 1977): they go
///   elsewhere while one of them has time, as one of many has for longer, and are some of many to be held up while none has. Or
///   as far as it is busy now, if that is more: the same of the share of workers that compute prompts, with this request on one
///   more, or those who come at once would take the last that have time, each for a little; but no more than `1/(1 − ρ)`, as
///   each who waits makes the next wait until the queue is empty again.
/// - Each of the `decoding` streams loses `more`, too, among them those ahead of the request that have their first tokens
///   before it is begun; a ms is worth less to them: `κ`, mean time to first token over mean time to the end, halved, since
///   they get a token with every step. They count as far as the fleet is `full`: `ρ/(1 − ρ)` of the larger of that `ρ` and the
///   share of its blocks or slots that are taken, since who decodes for longer keeps these from others, which makes no queue of
///   prompts longer: no more than twenty for each ms, as many as come before a fleet has caught up that is full to 0.95.
/// - The regulars, those `λᵣ` who come for what it holds, do not go elsewhere, whether the fleet is busy or not: each loses
///   `more`, or what it would have `saved` here, if that is less, since then it does go. Of these, sessions are known by how many
///   it holds, and by how many of others went on when they were as old; all others by how often they came.
/// - `last` is what those lose who come next, where this one takes the time of who would have some soonest, for what need not
///   be computed elsewhere: until another has time, or this one again, so `ν·(f′² − f²)/2`, where of all who come in a ms each
///   counts in `ν` by the share of it that has to be computed ([`Soonest`]).
/// - `copy` is what others gain who come for the same, where more of it is computed than the longest match leaves:
///   `min(n·missed, own − ownₕ)` beside the holder `h` that would answer soonest, where the request would wait longer than
///   here; at most the copy is free. Who parted `t` times from what is held where this one does will do so about as often
///   again; and `missed` is what each of them, with those who came at once with it, waited longer on average than with one
///   holder more, at any other worker. Of copies the share `s` is still there when the next comes: to be found `t` times, one
///   of `m + 1` has to stay while so many times as many come, so `n` is `t·s^(t·(m + 1))`, where `m` hold it. How many `pairs`
///   there are in the burst that follows is told by what followed the bursts of others: of two that go to the same holder one
///   waits for the other, so one holder more brings them `pairs·moreₕ·(1/m − 1/(m + 1))`, up to twice what the copy takes.
/// - `step` is what those lose whose first tokens come from the same step; `late` is by what it would break the limits that its
///   class was promised, if it was.
#[derive(Debug, Default)]
pub struct Predicted {
    rates: Rates,
    /// Reused from request to request.
    firsts: Mutex<Vec<First>>,
}

impl Predicted {
    fn judge<'a>(&'a self, now: Instant, shape: &'a Shape, candidates: &[Candidate]) -> Judge<'a> {
        Judge::now(self.rates.read(now), shape, candidates)
    }

    /// What each candidate costs, to `costs`, and what of that is told by beside whom it stands.
    fn weigh(&self, judge: &Judge<'_>, candidates: &[Candidate], costs: &mut Vec<Cost>) -> Beside {
        let start = costs.len();
        costs.resize(start + candidates.len(), Cost(0.0));
        let costs = &mut costs[start..];
        // Nothing panics while the lock is held.
        let mut firsts = self.firsts.lock().unwrap_or_else(PoisonError::into_inner);
        firsts.resize(candidates.len(), First::default());
        let (fours, others) = candidates.as_chunks();
        let mut tolls = costs.iter_mut().zip(&mut *firsts);
        for four in fours {
            judge.toll::<Four>(&four.each_ref()).tell(&mut tolls);
        }
        for other in others {
            judge.toll::<f64>(&other).tell(&mut tolls);
        }
        let last = Soonest::among(candidates, &firsts).lost(judge.reading.newcomers());
        last.iter().for_each(|(at, lost)| costs[*at].0 += lost);
        let copies = judge.copies(candidates, &firsts);
        if let Some(copies) = copies {
            let each = candidates.iter().zip(&mut *costs).zip(&*firsts);
            each.for_each(|((candidate, cost), first)| cost.0 += copies.cost(candidate, *first));
        }
        Beside { copies, last }
    }
}

/// What a candidate costs by beside whom it stands.
struct Beside {
    copies: Option<Copies>,
    /// The place of who has time soonest, and what those lose by the request there who come next.
    last: Option<(usize, f64)>,
}

/// What candidates are judged by, at one moment.
struct Judge<'a> {
    reading: Reading<'a>,
    shape: &'a Shape,
    worth: Worth,
    decode_ms: f64,
    is_promised: bool,
}

impl<'a> Judge<'a> {
    fn now(reading: Reading<'a>, shape: &'a Shape, candidates: &[Candidate]) -> Self {
        let (worth, decode_ms) = (Worth::now(&reading, candidates), reading.decode_ms());
        Self { reading, shape, worth, decode_ms, is_promised: shape.objectives != Objectives::default() }
    }

    /// What it costs at a candidate, or at each of some, but for copies.
    #[inline(always)]
    fn toll<N: Number>(&self, candidates: &N::Each<&Candidate>) -> Toll<N> {
        let is_usual = !N::any(candidates, |it| !it.overlap.is_on_device() || !has_room(it));
        if is_usual && let Some(seen) = self.reading.of_plain(N::map(candidates, |it| it.slot)) {
            let prompt = self.shape.prompt;
            let amount = Amount::on_device(prompt, N::count(candidates, |it| it.new_tokens.min(prompt).0));
            self.toll_of(&seen, candidates, &amount, N::all(0.0))
        } else {
            self.toll_of_any(candidates)
        }
    }

    /// The same where there may be something to fetch, to wait for, or to be told from the time.
    #[inline(never)] // What most have not would be in the way of all.
    fn toll_of_any<N: Number>(&self, candidates: &N::Each<&Candidate>) -> Toll<N> {
        let by_now = self.reading.of_workers(N::map(candidates, |it| it.slot));
        self.toll_of(&by_now.seen(), candidates, &self.amount(candidates), self.until_room(candidates))
    }

    #[inline(always)]
    fn toll_of<N: Number>(
        &self,
        seen: &Seen<'_, N>,
        candidates: &N::Each<&Candidate>,
        amount: &Amount<N>,
        room: N,
    ) -> Toll<N> {
        let waiting = N::count(candidates, |it| it.waiting);
        let Outlook { wait, own, more, step } = seen.outlook(amount, waiting);
        let outlook = Outlook { wait: larger(wait, room), own, more, step };
        // Those ahead of it have their first tokens by then, unless they are computed in the same step.
        let nobody = N::all(0.0);
        let ahead = step.if_positive(larger(waiting - seen.unheard(), nobody));
        let decoding = larger(N::count(candidates, |it| it.requests) - ahead, nobody);
        let toll = Toll { behind: room, ..Toll::of(outlook, decoding, seen.regulars(), self.worth) };
        if !self.is_promised {
            return toll;
        }
        Toll { late: late(self.shape, toll.wait + toll.own, (seen.gap(), self.decode_ms)), ..toll }
    }

    /// What there is to do. A promise is believed on every tier as far as on the device; what tiers are worth elsewhere does not
    /// matter here, since fetching has a rate of its own.
    fn amount<N: Number>(&self, candidates: &N::Each<&Candidate>) -> Amount<N> {
        let Shape { prompt, block_size, .. } = *self.shape;
        let amounts = N::map(candidates, |candidate: &Candidate| {
            if candidate.overlap.is_on_device() {
                return self.reading.amount(&Work::on_device(prompt, candidate.new_tokens));
            }
            let below = candidate.overlap.total().0 - candidate.overlap.get(Tier::Device).0;
            let trust = ratio(candidate.cached_below.0, Blocks(below).tokens(block_size).0).min(1.0);
            let work = Work::new(prompt, candidate.to_compute(prompt), candidate.overlap, trust, block_size);
            self.reading.amount(&work)
        });
        let fetching = N::any(&amounts, |it| it.fetching.is_some());
        Amount {
            tokens: N::of(&amounts, |it| it.tokens),
            pairs: N::of(&amounts, |it| it.pairs),
            fetching: fetching.then(|| N::of(&amounts, |it| it.fetching.unwrap_or(0.0))),
        }
    }

    #[inline(always)]
    fn until_room<N: Number>(&self, candidates: &N::Each<&Candidate>) -> N {
        if !N::any(candidates, |it| !has_room(it)) {
            return N::all(0.0);
        }
        N::of(candidates, |it| until_room(it, |share| self.reading.until_gone(it.slot, share)))
    }

    fn outlook(&self, candidate: &Candidate) -> Outlook {
        let by_now = self.reading.of_workers::<f64>(candidate.slot);
        by_now.seen().outlook(&self.amount(&candidate), f64::from(candidate.waiting))
    }

    /// None where nobody has anything of a copy.
    fn copies(&self, candidates: &[Candidate], firsts: &[First]) -> Option<Copies> {
        let returning = self.reading.returning(self.shape).filter(Returning::is_wished_for)?;
        let home = Home::among(candidates, firsts)?;
        let more = |home: &Candidate| self.outlook(home).more;
        Some(Copies::of(returning, home, more))
    }

    /// The terms of the candidate at place `at`.
    fn terms(&self, at: usize, candidate: &Candidate, beside: &Beside) -> [Term; 10] {
        let toll = self.toll::<f64>(&candidate);
        let copy = beside.copies.map_or(0.0, |copies| copies.cost(candidate, toll.first()));
        let last = beside.last.filter(|(place, _)| *place == at).map_or(0.0, |(_, lost)| lost);
        Toll { last, copy, ..toll }.terms()
    }
}

impl CostFunction for Predicted {
    fn score(
        &self,
        now: Instant,
        shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        self.weigh(&self.judge(now, shape, candidates), candidates, costs);
        Ok(())
    }

    fn explain(&self, now: Instant, shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        let judge = self.judge(now, shape, candidates);
        let beside = self.weigh(&judge, candidates, &mut Vec::new());
        for (at, candidate) in candidates.iter().enumerate() {
            judge.terms(at, candidate, &beside).into_iter().for_each(|term| tell(at, term));
        }
    }

    /// In one reading.
    fn score_aloud(
        &self,
        now: Instant,
        shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
        choose: &mut dyn FnMut(&mut [Cost]) -> Told,
        tell: &mut dyn FnMut(usize, Term),
    ) -> Result<(), NoChoice> {
        let first = costs.len();
        let judge = self.judge(now, shape, candidates);
        let beside = self.weigh(&judge, candidates, costs);
        let told = choose(&mut costs[first..]);
        told.each(candidates.len(), |at| {
            judge.terms(at, &candidates[at], &beside).into_iter().for_each(|term| tell(at, term));
        });
        Ok(())
    }

    /// The time to compute it at the fleet's rate.
    fn prompt_worth(&self, shape: &Shape, _candidate: &Candidate) -> f64 {
        self.rates.usual_ms(&Work::cold(shape))
    }
}

impl Learn for Predicted {
    fn observe(&self, observation: &Observation) {
        self.rates.observe(observation);
    }

    fn trunk(&self, path: &[SequenceHash]) -> Option<usize> {
        self.rates.trunk(path)
    }

    fn before(&self, path: &[SequenceHash]) -> Option<usize> {
        self.rates.before(path)
    }
}

impl Enrol for Predicted {
    fn enrol(&self, roll: Roll, targets: &mut dyn Iterator<Item = Enrolled<'_>>) {
        self.rates.enrol(roll, targets);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::small_worlds::{assert_costs, candidate, origin, shape};
    use super::super::{Standing, Unit};
    use super::*;
    use crate::cost::terms::combined;
    use crate::ids::{Rank, RequestKey, Slot, WorkerId};
    use crate::observe::{Event, Side, Usage};
    use crate::overlap::TierBlocks;
    use crate::shape::Fork;
    use crate::units::Tokens;

    /// A world in which nothing decodes and nobody waits, as far as candidates tell.
    fn idle(slot: u16, overlap: u32) -> Candidate {
        candidate(slot, (0, 1000), (0, 16), overlap)
    }

    fn costs(policy: &Predicted, now: Instant, candidates: &[Candidate]) -> Vec<Cost> {
        let mut costs = Vec::new();
        policy.score(now, &shape(256), candidates, &mut costs).unwrap();
        costs
    }

    fn tell(policy: &Predicted, at: Instant, key: u64, slot: u16, event: Event) {
        policy.observe(&Observation { at, request: RequestKey(key), slot: Slot(slot), event });
    }

    fn place(policy: &Predicted, at: Instant, key: u64, slot: u16, new_tokens: u32) {
        let shape = Shape::of(Tokens(new_tokens), crate::units::BlockSize::new(16).unwrap());
        let event = Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(new_tokens) };
        tell(policy, at, key, slot, event);
    }

    #[test]
    fn what_is_late_is_told_by_what_is_predicted() {
        let (policy, start) = (Predicted::default(), origin());
        // Five of 2 000 tokens wait at the holder, 20 + 300 ms; elsewhere all of the prompt has to be computed.
        (0..5).for_each(|key| place(&policy, start, key, 0, 2_000));
        let fleet = [Candidate { requests: 5, waiting: 5, new_tokens: Tokens(16), ..idle(0, 15) }, idle(1, 0)];
        let costs = |ttft| {
            let objectives = Objectives { ttft, itl: None };
            let mut costs = Vec::new();
            policy.score(start, &Shape { objectives, ..shape(256) }, &fleet, &mut costs).unwrap();
            costs
        };
        let (free, bound) = (costs(None), costs(Some(Duration::from_millis(200))));
        assert_eq!(bound[1], free[1], "in time");
        assert!((bound[0].0 - free[0].0 - 10.0 * (ttft(&policy, start, &fleet[0]) - 200.0)).abs() < 1e-9);
    }

    fn ttft(policy: &Predicted, now: Instant, candidate: &Candidate) -> f64 {
        let Outlook { wait, own, .. } = outlook(policy, now, candidate);
        wait + own
    }

    fn outlook(policy: &Predicted, now: Instant, candidate: &Candidate) -> Outlook {
        let shape = shape(256);
        let judge = policy.judge(now, &shape, &[*candidate]);
        judge.outlook(candidate)
    }

    #[test]
    fn what_others_lose_counts_as_far_as_the_fleet_is_busy_or_full() {
        let (policy, start) = (Predicted::default(), origin());
        // A request of 2 000 tokens, 80 ms by the prior, every 160 ms: each of two workers is busy a quarter of the time.
        for key in 0..5 {
            place(&policy, start + Duration::from_millis(160 * key), key, 0, 2_000);
        }
        tell(&policy, start + Duration::from_millis(700), 0, 0, Event::FirstToken);
        let reading = policy.rates.read(start + Duration::from_secs(35));
        let worth = |taken| {
            let candidate = Candidate { active_blocks: Blocks(taken), ..idle(0, 0) };
            Worth::now(&reading, &[candidate, candidate])
        };
        let close = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-12, "{value}, not {expected}");
        // Those who come later wait for what is computed, whatever is taken of the caches. Both workers have time, which with
        // this request makes one of three that has none: more than usually.
        let third = (1.0_f64 / 3.0).powf(6.0_f64.sqrt() - 1.0) * 1.5;
        for taken in [0, 800, 1_000] {
            close(worth(taken).busy * worth(taken).arrivals, 0.003_125 * third);
        }
        let computing = |some: &[u32]| {
            let fleet: Vec<_> = some.iter().map(|waiting| Candidate { waiting: *waiting, ..idle(0, 0) }).collect();
            Worth::now(&reading, &fleet).busy
        };
        // Where all others have none, or all, as if nobody could go elsewhere; three are busy a sixth of the time.
        let half = 0.5_f64.powf(8.0_f64.sqrt() - 1.0) * 2.0;
        let tenth = 0.1_f64.powf(20.0_f64.sqrt() - 1.0) / 0.9;
        [(&[0; 9][..], tenth), (&[0, 1, 0], half), (&[9, 1, 0], 1.2), (&[9, 1], 1.0 / 0.75)]
            .into_iter()
            .for_each(|(fleet, queued)| close(computing(fleet), queued));
        // Streams keep what is fuller from others: the cache, here. It is never taken to be fuller than it can be told.
        // The first token came after 700 ms, which is a fiftieth of the 35 s that the first request has taken so far.
        let stall = |share: f64| share / (1.0 - share) * 0.02 / 2.0;
        for (taken, share) in [(0, 0.25), (800, 0.8), (1_000, 0.95)] {
            close(worth(taken).stall, stall(share));
        }
    }

    #[test]
    fn at_first_the_longest_match_wins_by_the_prior() {
        // 20 ms and 30 ms a thousand tokens: 256, 128 and 16 of them.
        let fleet = [idle(0, 0), idle(1, 8), idle(2, 15)];
        assert_costs(&costs(&Predicted::default(), origin(), &fleet), &[27.68, 23.84, 20.48]);
    }

    #[test]
    fn a_queue_counts_until_it_should_be_done() {
        let (policy, start) = (Predicted::default(), origin());
        place(&policy, start, 1, 0, 1_000);
        let mut busy = idle(0, 0);
        (busy.requests, busy.waiting) = (1, 1);
        let cost = |ms| costs(&policy, start + Duration::from_millis(ms), &[busy, idle(1, 0)]);
        // 50 ms of work in the queue; as it has not begun, its first token waits for ours, too.
        assert_costs(&cost(0), &[77.68 + 7.68, 27.68]);
        assert_costs(&cost(30), &[47.68, 27.68]);
        assert_costs(&cost(50), &[27.68, 27.68]);
        // Twice the time without a token: the worker seems half as fast.
        assert_costs(&cost(100), &[27.68, 27.68]);
    }

    #[test]
    fn an_estimate_that_is_disproved_makes_the_worker_slow_at_once() {
        let (policy, start) = (Predicted::default(), origin());
        // A stream shows that first tokens come when they come.
        place(&policy, start, 1, 0, 1_000);
        tell(&policy, start + Duration::from_millis(50), 1, 0, Event::FirstToken);
        tell(&policy, start + Duration::from_millis(50), 1, 0, Event::Progress { tokens: Tokens(1) });
        tell(&policy, start + Duration::from_millis(50), 1, 0, Event::Finished { usage: Usage::default() });
        let later = start + Duration::from_secs(100);
        [2, 3].into_iter().for_each(|key| place(&policy, later, key, 0, 1_000));
        let mut busy = idle(0, 0);
        (busy.requests, busy.waiting) = (2, 2);
        let outlook = |ms| outlook(&policy, later + Duration::from_millis(ms), &busy);
        // One interval for both: 20 + 2·30, then 27.68 of its own.
        assert_eq!(outlook(0), Outlook { wait: 80.0, own: 27.68, more: 7.68, step: 2.0 * 7.68 });
        assert_eq!(outlook(40), Outlook { wait: 40.0, own: 27.68, more: 7.68, step: 0.0 });
        // The first alone would have taken 50, but its token comes with that of the other: after 100 everything takes a quarter
        // longer, and at most twice as long. What it takes beyond that is waited for, too: longer and longer.
        let slower = |wait, times| Outlook { wait, own: 27.68 * times, more: 7.68 * times, step: 0.0 };
        assert_eq!(outlook(60), slower(20.0, 1.0));
        assert_eq!(outlook(100), slower(0.0, 1.25));
        assert_eq!(outlook(200), slower(40.0, 2.0));
        assert_eq!(outlook(5_000), slower(4_840.0, 2.0));
    }

    #[test]
    fn where_answers_come_whole_silence_says_something_once_it_is_longer_than_they_take() {
        let (policy, start) = (Predicted::default(), origin());
        for slot in 0..2 {
            let whole = start + Duration::from_secs(2);
            place(&policy, start, u64::from(slot), slot, 1_000);
            tell(&policy, whole, u64::from(slot), slot, Event::FirstToken);
            tell(&policy, whole, u64::from(slot), slot, Event::Finished { usage: Usage::default() });
        }
        let later = start + Duration::from_secs(100);
        place(&policy, later, 3, 0, 1_000);
        let busy = Candidate { requests: 1, waiting: 1, ..idle(0, 0) };
        let wait = |ms| outlook(&policy, later + Duration::from_millis(ms), &busy).wait;
        // Two of 2 s, and the belief of 10 s, which weighs as much: 6 s.
        assert_eq!([0, 40, 2_000, 4_000, 20_000].map(wait), [50.0, 10.0, 0.0, 0.0, 8_000.0]);
    }

    #[test]
    fn answers_in_one_piece_are_decoded_once_their_prompts_must_be_computed() {
        let (policy, start) = (Predicted::default(), origin());
        let at = |ms| start + Duration::from_millis(ms);
        // A stream, which tells what first tokens are of the whole.
        place(&policy, start, 1, 1, 1_000);
        tell(&policy, at(100), 1, 1, Event::FirstToken);
        tell(&policy, at(1_000), 1, 1, Event::Finished { usage: Usage::default() });
        let whole = Shape { whole: true, ..Shape::of(Tokens(1_000), crate::units::BlockSize::new(16).unwrap()) };
        let event = Event::Placed { shape: whole, overlap: TierBlocks::default(), new_tokens: Tokens(1_000) };
        tell(&policy, at(2_000), 2, 0, event);
        let fleet = [Candidate { requests: 1, waiting: 1, ..candidate(0, (0, 1000), (8, 16), 0) }, idle(1, 0)];
        let seen = |ms| {
            let shape = shape(256);
            let judge = policy.judge(at(ms), &shape, &fleet);
            ((judge.worth.busy * 2.0).round(), judge.reading.of_workers::<f64>(fleet[0].slot).seen().unheard())
        };
        // One of two computes, and the request would be on the other: as if nobody could go elsewhere; then one of three.
        assert_eq!(seen(2_010), (2.0, 0.0));
        assert_eq!(seen(2_100), (1.0, 1.0));
    }

    #[test]
    fn who_is_ahead_decodes_by_then_unless_it_is_computed_in_the_same_step() {
        let (policy, start) = (Predicted::default(), origin());
        let at = |ms| start + Duration::from_millis(ms);
        place(&policy, start, 1, 1, 1_000);
        tell(&policy, at(100), 1, 1, Event::FirstToken);
        tell(&policy, at(1_000), 1, 1, Event::Finished { usage: Usage::default() });
        // One is being computed, and another will be in the next step.
        place(&policy, at(2_000), 2, 0, 1_000);
        place(&policy, at(2_010), 3, 0, 1_000);
        let fleet = |requests, waiting| [Candidate { requests, waiting, ..candidate(0, (0, 1000), (8, 16), 0) }];
        let stalls = |ms, fleet: &[Candidate]| {
            let (now, shape) = (at(ms), shape(256));
            let judge = policy.judge(now, &shape, fleet);
            judge.toll::<f64>(&&fleet[0]).stalls
        };
        let mates = stalls(2_020, &fleet(5, 2));
        assert!((mates - stalls(2_020, &fleet(3, 0))).abs() < 1e-9 && mates > 0.0, "{mates}");
        // Under way, it has its first token before anything that is sent now is computed.
        tell(&policy, at(2_030), 3, 0, Event::Failed { side: Side::Client });
        let ahead = stalls(2_030, &fleet(5, 1));
        assert!((ahead - stalls(2_030, &fleet(5, 0))).abs() < 1e-9 && ahead > mates, "{ahead}");
    }

    #[test]
    fn who_is_out_is_nobody_to_whom_others_could_go() {
        let (policy, start) = (Predicted::default(), origin());
        for key in 0..5 {
            place(&policy, start + Duration::from_millis(100 * key), key, 0, 1_000);
        }
        let reading = policy.rates.read(start);
        let out = Candidate { standing: Standing::Out, active_blocks: Blocks(1_000), ..idle(2, 0) };
        let fleets = [vec![idle(0, 0), idle(1, 0)], vec![idle(0, 0), idle(1, 0), out, out]];
        let [alone, beside] = fleets.map(|fleet| Worth::now(&reading, &fleet));
        assert_eq!(alone, beside);
    }

    #[test]
    fn a_size_that_was_only_learned_makes_nobody_full() {
        let learned = |total| Candidate {
            active_blocks: Blocks(69),
            added_blocks: Blocks(188),
            total_blocks: Blocks(total),
            total_is_learned: true,
            ..idle(0, 0)
        };
        assert!(until_room(&learned(69), |share| share * 5_000.0).abs() < f64::EPSILON);
        let policy = Predicted::default();
        let costs = costs(&policy, origin(), &[learned(69), learned(0), idle(2, 0)]);
        assert_costs(&costs, &[27.68; 3]);
    }

    #[test]
    fn a_cache_that_is_full_makes_wait_until_it_turns_over() {
        let fleet = |active, added| Candidate {
            active_blocks: Blocks(active),
            added_blocks: Blocks(added),
            ..candidate(0, (0, 1000), (0, 16), 0)
        };
        // 100 blocks too many of 1 000 are a tenth of what a request decodes for.
        let room = |active, added| until_room(&fleet(active, added), |share| share * 5_000.0);
        assert_eq!([room(900, 100), room(1_000, 100), room(1_050, 150)], [0.0, 500.0, 1_000.0]);
        let unknown = Candidate { total_blocks: Blocks(0), ..fleet(1_000, 100) };
        assert!(until_room(&unknown, |share| share * 5_000.0).abs() < f64::EPSILON);
    }

    #[test]
    fn who_is_full_makes_wait_until_somebody_has_ended_and_those_behind_as_long() {
        // Of 16 that decode for 8 s one ends every half second.
        let taken = |slots| Candidate { requests: slots, active_slots: slots, ..candidate(0, (0, 1000), (0, 16), 0) };
        let room = |slots| until_room(&taken(slots), |share| share * 8_000.0);
        assert_eq!([room(0), room(15), room(16), room(19)], [0.0, 0.0, 500.0, 2_000.0]);
        let unknown = Candidate { total_blocks: Blocks(0), total_is_learned: true, ..taken(16) };
        assert!((until_room(&unknown, |share| share * 8_000.0) - 500.0).abs() < 1e-9);

        let (policy, start) = (Predicted::default(), origin());
        place(&policy, start, 1, 1, 1_000);
        tell(&policy, start + Duration::from_millis(50), 1, 1, Event::FirstToken);
        let later = start + Duration::from_secs(16);
        tell(&policy, later, 1, 1, Event::Finished { usage: Usage::default() });
        // 12 s by one of 16 and the belief for 16 slots: the wait for one, and as much for those behind; then 4 of the prompt's
        // 16 blocks.
        let cost = |slots| costs(&policy, later, &[Candidate { standing: Standing::Full, ..held(taken(slots)) }])[0].0;
        let open = costs(&policy, later, &[held(taken(15))])[0].0;
        assert!((cost(16) - open - 2.0 * 12_000.0 / 16.0).abs() < 0.25 * open, "{} {open}", cost(16));
    }

    fn held(candidate: Candidate) -> Candidate {
        Candidate { overlap: TierBlocks::device(Blocks(12)), new_tokens: Tokens(64), ..candidate }
    }

    #[test]
    fn what_lies_below_the_device_costs_what_fetching_it_takes() {
        let mut held = TierBlocks::device(Blocks(4));
        held.add(Tier::Host, Blocks(8));
        let holder = Candidate {
            overlap: held,
            cached_tokens: Tokens(64 + 96),
            cached_on_device: Tokens(64),
            cached_below: Tokens(128),
            new_tokens: Tokens(96),
            ..idle(0, 0)
        };
        // 64 tokens are computed, 128 fetched at 8 ms a thousand; whatever a weight makes of them.
        assert_costs(&costs(&Predicted::default(), origin(), &[holder]), &[20.0 + 1.92 + 1.024]);
        let half =
            Candidate { cached_on_device: Tokens(32), cached_below: Tokens(64), new_tokens: Tokens(176), ..holder };
        let none =
            Candidate { cached_on_device: Tokens(0), cached_below: Tokens(0), new_tokens: Tokens(256), ..holder };
        // Nothing lies on the device, and nothing is believed.
        let mut below = TierBlocks::default();
        below.add(Tier::Host, Blocks(16));
        let distrusted = Candidate { overlap: below, ..none };
        let doubted = costs(&Predicted::default(), origin(), &[half, none, distrusted]);
        assert_costs(&doubted, &[20.0 + 4.8 + 0.512, 27.68, 27.68]);
        // What it was sent counts for half where its view tells nothing.
        let sent = Candidate { cached_tokens: Tokens(128), new_tokens: Tokens(128), ..none };
        assert_costs(&costs(&Predicted::default(), origin(), &[sent]), &[20.0 + 3.84]);
    }

    #[test]
    fn the_terms_add_up_to_the_cost() {
        let (policy, start) = (Predicted::default(), origin());
        let worker = WorkerId::from("w");
        let targets = [0, 1].map(|slot| Enrolled { slot: Slot(slot), worker: &worker, rank: Rank(u32::from(slot)) });
        policy.enrol(Roll(1), &mut targets.into_iter());
        for key in 0..8 {
            place(&policy, start + Duration::from_millis(40 * key), key, u16::try_from(key % 2).unwrap(), 2_000);
        }
        tell(&policy, start + Duration::from_millis(300), 0, 0, Event::FirstToken);
        tell(&policy, start + Duration::from_millis(310), 0, 0, Event::Finished { usage: Usage::default() });
        place(&policy, start + Duration::from_millis(315), 8, 0, 2_000);
        // Some came for what the first worker holds, and will be back.
        let overlap = TierBlocks::device(Blocks(100));
        let fork = Fork { block: SequenceHash(1), blocks: Blocks(8), holders: 1 };
        let again = |tokens| Shape { fork: Some(fork), ..shape(tokens) };
        let event = Event::Placed { shape: again(1_000), overlap, new_tokens: Tokens(400) };
        (0..6).for_each(|key| tell(&policy, start + Duration::from_millis(50 * key), 9 + key, 0, event));
        let mut fleet = [idle(0, 8), idle(1, 0)];
        (fleet[0].requests, fleet[0].waiting) = (6, 4);
        let now = start + Duration::from_millis(320);
        let mut terms = [Vec::new(), Vec::new()];
        policy.explain(now, &again(256), &fleet, &mut |at, term| terms[at].push(term));
        let mut costs = Vec::new();
        policy.score(now, &again(256), &fleet, &mut costs).unwrap();
        let told: Vec<f64> = terms.iter().map(|terms| combined(terms)).collect();
        assert_costs(&costs, &told);
        let names = terms.each_ref().map(|terms| terms.iter().map(|term| term.name).collect::<Vec<_>>());
        assert_eq!(
            names,
            [["wait", "own", "later", "last", "regulars", "stalls", "step", "behind", "late", "copy"]; 2]
        );
        assert!(terms.iter().flatten().all(|term| term.unit == Unit::Milliseconds));
        assert!(terms[0].iter().take(7).filter(|term| term.name != "last").all(|term| term.value > 0.0), "{terms:?}");
        // 128 tokens more than the holder has to compute, at 30 ms a thousand: what others wait there is more.
        assert!(terms[0][9].value == 0.0 && (terms[1][9].value + 3.84).abs() < 1e-9, "{terms:?}");
    }

    /// Workers that are idle, busy, full, foreign ones', with something to fetch or given to others, in every place of four.
    fn all_kinds(policy: &Predicted, start: Instant) -> Vec<Candidate> {
        let worker = WorkerId::from("w");
        let targets = (0..11).map(|slot| Enrolled { slot: Slot(slot), worker: &worker, rank: Rank(u32::from(slot)) });
        policy.enrol(Roll(1), &mut targets.into_iter());
        let mut fleet: Vec<_> = (0..11_u16).map(|slot| idle(slot, u32::from(slot))).collect();
        for key in 0..40 {
            let (at, slot) = (start + Duration::from_millis(9 * key), u16::try_from(key * 7 % 8).unwrap());
            place(policy, at, key, slot, 300 + 97 * u32::try_from(key).unwrap());
            if key % 3 == 0 {
                tell(policy, at + Duration::from_millis(5), key, slot, Event::FirstToken);
                tell(policy, at + Duration::from_millis(8), key, slot, Event::Progress { tokens: Tokens(3) });
            }
            let at = &mut fleet[usize::from(slot)];
            (at.requests, at.waiting) = (at.requests + 1, at.waiting + u32::from(key % 3 > 0));
        }
        (fleet[1].waiting, fleet[9].waiting) = (fleet[1].waiting + 2, 3);
        (fleet[2].active_slots, fleet[2].standing) = (16, Standing::Full);
        fleet[3].standing = Standing::Out;
        fleet[10].new_tokens = Tokens(0);
        fleet
    }

    /// That whoever stands beside it, a candidate costs what it costs.
    fn assert_alike(policy: &Predicted, now: Instant, shape: &Shape, fleet: &[Candidate]) {
        let judge = policy.judge(now, shape, fleet);
        let each: Vec<_> = fleet.iter().map(|candidate| judge.toll::<f64>(&candidate)).collect();
        for (at, four) in fleet.windows(4).enumerate() {
            let toll = judge.toll::<Four>(&[&four[0], &four[1], &four[2], &four[3]]);
            (0..4).for_each(|lane| assert_eq!(toll.one(lane), each[at + lane], "{lane} behind {at}"));
        }
    }

    #[test]
    fn four_at_once_cost_what_each_costs() {
        let (policy, start) = (Predicted::default(), origin());
        let at = |ms| start + Duration::from_millis(ms);
        let mut fleet = all_kinds(&policy, start);
        let objectives = Objectives { ttft: Some(Duration::from_millis(40)), itl: Some(Duration::from_millis(1)) };
        let promised = Shape { objectives, ..shape(256) };
        let assert_all_alike = |fleet: &[Candidate]| {
            for (shape, ms) in [(shape(256), 401), (promised, 900), (shape(2_000), 4_030)] {
                assert_alike(&policy, at(ms), &shape, fleet);
            }
        };
        assert_all_alike(&fleet);
        // One would have to fetch something.
        let mut below = TierBlocks::device(Blocks(2));
        below.add(Tier::Host, Blocks(6));
        fleet[5] = Candidate { overlap: below, cached_below: Tokens(80), ..idle(5, 2) };
        assert_all_alike(&fleet);
        // Two have something to fetch.
        let event = Event::Placed { shape: shape(256), overlap: below, new_tokens: Tokens(128) };
        [4, 6].into_iter().for_each(|slot| tell(&policy, at(400), 100 + u64::from(slot), slot, event));
        assert_all_alike(&fleet);
        // Answers in one piece, the first of which must be past its prompt.
        let whole = Shape { whole: true, ..shape(900) };
        let event = Event::Placed { shape: whole, overlap: TierBlocks::default(), new_tokens: Tokens(900) };
        (7..10).for_each(|slot| tell(&policy, at(800), 200 + u64::from(slot), slot, event));
        assert_all_alike(&fleet);
    }

    #[test]
    fn a_prompt_is_worth_what_computing_it_takes() {
        let worth = Predicted::default().prompt_worth(&shape(1_000), &idle(0, 0));
        assert!((worth - 50.0).abs() < 1e-12, "{worth}");
    }
}
