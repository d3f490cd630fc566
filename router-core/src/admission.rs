//! Whether a target has room, and what happens when none has.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cost::{Candidate, Standing};
use crate::ledger::InFlight;
use crate::slot_set::SlotSet;
use crate::units::Blocks;
use crate::workers::{Limits, Pool, Ramp, Target, WorkerTable};

/// What to do with a request while every worker is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnAllBusy {
    /// Let it wait until one has room: see [`queue`](crate::queue).
    #[default]
    Queue,
    /// Send it where least is in flight: the engine queues it.
    LeastLoaded,
    /// Refuse it; the client is told to retry.
    Error,
}

/// Blocks of the target's cache: the configured or reported number, else the most seen in use, or what is in flight while that
/// is more; 0 where nothing was seen yet.
pub fn total_blocks(limits: &Limits, load: &InFlight) -> Blocks {
    let InFlight { peak_blocks: peak, active_blocks: active, .. } = *load;
    limits.blocks.unwrap_or(if peak == Blocks(0) { peak } else { peak.max(active) })
}

/// Sequences that `target` is given at once: its limit, less while it has not been back for long, none before that.
#[inline]
pub fn sequences_at(now: Instant, target: &Target) -> u32 {
    target.ramp.map_or(target.limits.sequences, |ramp| ramped(now, ramp, target.limits.sequences))
}

fn ramped(now: Instant, ramp: Ramp, limit: u32) -> u32 {
    if now < ramp.since {
        return 0;
    }
    let (elapsed, over) = (now.saturating_duration_since(ramp.since).as_millis(), ramp.over.as_millis());
    if elapsed >= over || ramp.from >= limit {
        return limit;
    }
    let grown = u128::from(limit - ramp.from) * elapsed / over;
    u32::try_from(grown).map_or(limit, |grown| ramp.from.saturating_add(grown).min(limit))
}

/// Whether `target` can be chosen, by those who do not avoid it. A learned block count never makes it full: it is a lower bound.
pub fn standing(now: Instant, target: &Target, load: &InFlight) -> Standing {
    let given = sequences_at(now, target);
    if !target.available {
        Standing::Out
    } else if load.sequences >= given && given < target.limits.sequences {
        // Whoever is given less than its limit is not full: nothing would wait for room there.
        Standing::HeldBack
    } else {
        steady_standing(&target.limits, load)
    }
}

/// The same of one that can be chosen and of which nothing is held back.
#[inline(always)] // Asked of every worker for every request; a call costs as much as the answer.
pub fn steady_standing(limits: &Limits, load: &InFlight) -> Standing {
    let is_full = load.sequences >= limits.sequences || limits.blocks.is_some_and(|total| load.active_blocks >= total);
    if is_full { Standing::Full } else { Standing::Open }
}

/// The best that a target of `pool` can offer: a worker, a wait, or nothing. O(workers), and 1 where the first has room.
pub fn prospect(now: Instant, (workers, pool): (&WorkerTable, &Pool), avoid: &SlotSet) -> Standing {
    let mut best = Standing::Out;
    let slots = pool.targets.iter().filter(|slot| !avoid.contains(**slot));
    for target in slots.filter_map(|slot| workers.get(*slot)) {
        match standing(now, target, &target.account.read()) {
            Standing::Open => return Standing::Open,
            Standing::Full | Standing::HeldBack => best = Standing::Full,
            Standing::Out => {}
        }
    }
    best
}

/// When the next target of `pool` that came back is given one more sequence; none while none is held back. O(workers).
pub fn next_growth(now: Instant, (workers, pool): (&WorkerTable, &Pool)) -> Option<Instant> {
    let targets = pool.targets.iter().filter_map(|slot| workers.get(*slot)).filter(|target| target.available);
    targets.filter_map(|target| growth(now, target)).min()
}

fn growth(now: Instant, target: &Target) -> Option<Instant> {
    let (ramp, limit) = (target.ramp?, target.limits.sequences);
    let given = sequences_at(now, target);
    if given >= limit {
        return None;
    }
    if now < ramp.since && ramp.from > 0 {
        return Some(ramp.since);
    }
    // The first moment at which `sequences_at` is one more, rounded up to the millisecond in which it reckons.
    let share = u128::from((given + 1).saturating_sub(ramp.from)) * ramp.over.as_millis();
    let millis = share.div_ceil(u128::from(limit - ramp.from));
    Some(ramp.since + Duration::from_millis(u64::try_from(millis).ok()?))
}

/// The candidate with the least in flight where none has room, by the fuller of the slots that it is given for now and its
/// blocks; the lowest slot among equals. Whoever is given none is left alone while anybody else is there. None when every
/// candidate is out.
pub fn least_loaded(candidates: &[Candidate]) -> Option<usize> {
    let full = candidates.iter().enumerate().filter(|(_, candidate)| candidate.standing != Standing::Out);
    // By shares of what they are given, whoever comes back gets no more than its part of what is too much for all.
    let rests = |candidate: &Candidate| candidate.given_slots == 0;
    full.min_by(|(_, a), (_, b)| {
        let by_rest = rests(a).cmp(&rests(b));
        by_rest.then(a.fullness().total_cmp(&b.fullness())).then(a.slot.cmp(&b.slot))
    })
    .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cost::small_worlds::candidate;
    use crate::ids::{Rank, Slot, WorkerId};
    use crate::workers::{Limits, Ramp, Role};

    #[expect(clippy::disallowed_methods, reason = "an origin for a pure function")]
    fn now() -> Instant {
        Instant::now()
    }

    fn target(blocks: Option<u32>) -> Target {
        Target {
            slot: Slot(0),
            worker: WorkerId::from("w"),
            rank: Rank(0),
            role: Role::Both,
            limits: Limits { blocks: blocks.map(Blocks), sequences: 16 },
            available: true,
            ramp: None,
            account: Arc::default(),
            trust: Arc::default(),
        }
    }

    fn load(active_blocks: u32, sequences: u32) -> InFlight {
        InFlight { active_blocks: Blocks(active_blocks), sequences, peak_blocks: Blocks(1000), ..InFlight::default() }
    }

    #[test]
    fn r021_full_slots_or_full_blocks_skip_a_worker() {
        assert_eq!(standing(now(), &target(Some(1000)), &load(1000, 0)), Standing::Full);
        assert_eq!(standing(now(), &target(Some(1000)), &load(400, 16)), Standing::Full);
        assert_eq!(standing(now(), &target(Some(1000)), &load(400, 4)), Standing::Open);
    }

    #[test]
    fn a_learned_block_count_is_a_load_but_never_a_limit() {
        assert_eq!(total_blocks(&target(None).limits, &load(500, 0)), Blocks(1000));
        assert_eq!(standing(now(), &target(None), &load(1000, 0)), Standing::Open);
    }

    #[test]
    fn a_target_that_failed_the_request_is_out() {
        let pool = Pool {
            model: "m".into(),
            aliases: Vec::new(),
            block_size: crate::units::BlockSize::new(16).unwrap(),
            targets: vec![Slot(0)],
        };
        let table = WorkerTable::new(vec![target(None)], vec![pool]);
        let prospect = |avoid: &[Slot]| prospect(now(), (&table, &table.pools()[0]), &avoid.iter().copied().collect());
        assert_eq!((prospect(&[]), prospect(&[Slot(1)])), (Standing::Open, Standing::Open));
        assert_eq!(prospect(&[Slot(0)]), Standing::Out);
    }

    #[test]
    fn a_target_that_came_back_is_given_more_and_more() {
        let since = now();
        let ramp = Ramp { since, over: Duration::from_secs(30), from: 4 };
        let target = Target { ramp: Some(ramp), ..target(None) };
        for (seconds, sequences) in [(0, 4), (1, 4), (5, 6), (15, 10), (29, 15), (30, 16), (3600, 16)] {
            let at = since + Duration::from_secs(seconds);
            assert_eq!(sequences_at(at, &target), sequences, "after {seconds} s");
            let expected = if sequences < 16 { Standing::HeldBack } else { Standing::Full };
            assert_eq!(standing(at, &target, &load(0, sequences)), expected);
            assert_eq!(standing(at, &target, &load(0, sequences - 1)), Standing::Open);
        }
    }

    #[test]
    fn the_next_growth_is_the_first_moment_at_which_more_is_given() {
        let since = now();
        let ramp = Some(Ramp { since, over: Duration::from_secs(30), from: 4 });
        let table = |ramp, available| {
            let target = Target { ramp, available, ..target(None) };
            let pool = Pool {
                model: "m".into(),
                aliases: Vec::new(),
                block_size: crate::units::BlockSize::new(4).unwrap(),
                targets: vec![Slot(0)],
            };
            WorkerTable::new(vec![target], vec![pool])
        };
        let next = |table: &WorkerTable, at| next_growth(at, (table, &table.pools()[0]));
        let growing = table(ramp, true);
        let target = growing.get(Slot(0)).unwrap();
        let (mut at, mut given) = (since, 4);
        while let Some(then) = next(&growing, at) {
            assert_eq!(sequences_at(then - Duration::from_millis(1), target), given);
            given += 1;
            assert_eq!(sequences_at(then, target), given);
            at = then;
        }
        assert_eq!((given, at), (16, since + Duration::from_secs(30)));
        assert_eq!((next(&table(None, true), since), next(&table(ramp, false), since)), (None, None));
    }

    /// However few it takes at once: the first is not held back for a share of the ramp.
    #[test]
    fn a_target_that_rests_is_given_nothing_and_then_what_its_ramp_begins_with() {
        let since = now() + Duration::from_secs(5);
        let resting = |from, sequences| {
            let ramp = Some(Ramp { since, over: Duration::from_secs(30), from });
            Target { ramp, limits: Limits { blocks: None, sequences }, ..target(None) }
        };
        for (from, limit, first, full) in [(1, 2, 1, 30), (1, 1, 1, 0), (4, 2, 2, 0), (0, 2, 0, 30)] {
            let target = resting(from, limit);
            let at = |seconds| sequences_at(since + Duration::from_secs(seconds), &target);
            assert_eq!((sequences_at(now(), &target), at(0), at(full)), (0, first, limit), "{from} of {limit}");
        }
        let after = |at, from, limit| growth(at, &resting(from, limit)).map(|at| at - since);
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!([after(now(), 1, 2), after(now(), 4, 2), after(now(), 0, 2)], [seconds(0), seconds(0), seconds(15)]);
        assert_eq!((after(since, 1, 2), after(since, 4, 2)), (seconds(30), None));
    }

    #[test]
    fn a_pools_prospect_is_its_best_targets() {
        let pool = Pool {
            model: "m".into(),
            aliases: Vec::new(),
            block_size: crate::units::BlockSize::new(4).unwrap(),
            targets: vec![Slot(0), Slot(1)],
        };
        let full = Target { limits: Limits { blocks: None, sequences: 0 }, ..target(None) };
        let open = Target { slot: Slot(1), ..target(None) };
        let table = WorkerTable::new(vec![full, open], vec![pool]);
        let avoiding = |slots: &[u16]| {
            let avoid = slots.iter().copied().map(Slot).collect();
            prospect(now(), (&table, &table.pools()[0]), &avoid)
        };
        assert_eq!([avoiding(&[]), avoiding(&[1]), avoiding(&[0, 1])], [Standing::Open, Standing::Full, Standing::Out]);
    }

    #[test]
    fn a_ramp_never_gives_more_than_the_limit() {
        let since = now();
        let ramp = |from, over| Target { ramp: Some(Ramp { since, over, from }), ..target(None) };
        assert_eq!(sequences_at(since, &ramp(100, Duration::from_secs(30))), 16);
        assert_eq!(sequences_at(since, &ramp(1, Duration::ZERO)), 16);
    }

    #[test]
    fn the_least_loaded_of_the_full_is_found_by_its_fuller_side() {
        let fleet = [
            candidate(0, (10, 10), (1, 16), 0),
            candidate(1, (1, 10), (20, 16), 0),
            candidate(2, (11, 10), (1, 16), 0),
        ];
        assert_eq!(least_loaded(&fleet), Some(0));
        assert_eq!(least_loaded(&fleet[1..]), Some(1));
        assert_eq!(least_loaded(&[]), None);
    }

    #[test]
    fn whoever_comes_back_is_as_full_as_what_it_is_given_says_and_who_rests_is_last() {
        let held_back = |slot, taken, given_slots| Candidate {
            standing: Standing::HeldBack,
            given_slots,
            ..candidate(slot, (0, 0), (taken, 16), 0)
        };
        let full = |taken| candidate(1, (0, 0), (taken, 16), 0);
        let least = |first, full| least_loaded(&[first, full]);
        assert_eq!([least(held_back(0, 4, 4), full(16)), least(held_back(0, 5, 4), full(16))], [Some(0), Some(1)]);
        assert_eq!([least(held_back(0, 5, 4), full(20)), least(held_back(0, 5, 4), full(21))], [Some(0), Some(0)]);
        assert_eq!(least(held_back(0, 0, 0), full(1_000)), Some(1));
        assert_eq!(least(held_back(0, 0, 0), held_back(1, 90, 1)), Some(1));
        assert_eq!(least(held_back(0, 9, 0), held_back(1, 8, 0)), Some(0));
    }
}
