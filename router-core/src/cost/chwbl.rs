//! The `chwbl` policy: consistent hashing with bounded loads.

use std::collections::HashSet;
use std::fmt::Write;
use std::num::NonZeroU32;
use std::sync::{PoisonError, RwLock};
use std::time::Instant;

use serde::{Deserialize, Deserializer, Serialize, de};
use xxhash_rust::xxh64::xxh64;

use super::{BEHIND, Candidate, Cost, CostFunction, NoChoice, Standing, Term, Unit, Weight, real, serving};
use crate::ids::{Rank, Roll, Slot, WorkerId};
use crate::observe::{Enrol, Enrolled};
use crate::shape::Shape;

/// Settings of the `chwbl` policy. Defaults and rule: KubeAI's prefix-hash load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChwblRule {
    /// Points of each worker on the ring.
    #[serde(deserialize_with = "points")]
    pub replication: NonZeroU32,
    /// Requests in flight that a worker may have, as a multiple of the mean …
    pub load_factor: Weight,
    /// … and this many in any case.
    pub load_min: u32,
    /// Characters of the prompt, or of a chat's first message of the user, that are its key.
    pub prefix_characters: NonZeroU32,
}

impl Default for ChwblRule {
    fn default() -> Self {
        let count = |count| NonZeroU32::new(count).expect("constants are not 0");
        Self {
            replication: count(256),
            load_factor: Weight::constant(1.25),
            load_min: 2,
            prefix_characters: count(100),
        }
    }
}

/// A point takes ten bytes.
const REPLICATION_MAX: u32 = 4_096;

fn points<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NonZeroU32, D::Error> {
    let points = NonZeroU32::deserialize(deserializer)?;
    if points.get() <= REPLICATION_MAX {
        Ok(points)
    } else {
        Err(de::Error::custom(format_args!("must be at most {REPLICATION_MAX}, got {points}")))
    }
}

/// From the prompt's key clockwise, the first worker with `requests + 1 ≤ max(load_min, load_factor·(total + 1)/n)`; if
/// there is none, the first one. The cost is the number of workers passed on the way; who is above the bound comes
/// behind all others, and who lies behind the one that is found is not looked for, and counts as `n` away.
///
/// The key is [`Shape::opening`]; a ring point is the xxh64 of a worker's name and the point's number in decimal digits. Where
/// that is another worker's point already, as `w-1` and 11 make what `w-11` and 1 make, the longer name is hashed with the
/// next seed: else it would have no point there.
#[derive(Debug, Default)]
pub struct Chwbl {
    rule: ChwblRule,
    ring: RwLock<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    roll: Option<Roll>,
    /// Ascending by hash.
    points: Vec<(u64, Slot)>,
}

/// How many requests a worker may have in a fleet, and how large the fleet is.
#[derive(Clone, Copy)]
struct Bound {
    most: f64,
    workers: f64,
}

impl Chwbl {
    /// With an empty ring: who is on it is told by [`Enrol`].
    pub fn new(rule: ChwblRule) -> Self {
        Self { rule, ring: RwLock::default() }
    }

    fn bound(&self, candidates: &[Candidate]) -> Bound {
        let serving = serving(candidates);
        let (workers, total) = serving
            .fold((0_u32, 0_u64), |(workers, total), candidate| (workers + 1, total + u64::from(candidate.requests)));
        let workers = f64::from(workers);
        let share = if workers == 0.0 { 0.0 } else { self.rule.load_factor.get() * (real(total) + 1.0) / workers };
        Bound { most: share.max(f64::from(self.rule.load_min)), workers }
    }

    /// Pushes how many workers are passed on the way to each candidate; `workers` for those that are not come by.
    fn steps(&self, shape: &Shape, candidates: &[Candidate], bound: Bound, steps: &mut Vec<Cost>) {
        let first = steps.len();
        steps.extend(candidates.iter().map(|_| Cost(bound.workers)));
        let Some(key) = shape.opening else { return };
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        let start = ring.points.partition_point(|point| point.0 < key.0);
        let (before, behind) = ring.points.split_at(start);
        let (mut passed, mut open) = (0.0, super::open(candidates).count());
        // Where all are above the bound it is the first one, and nobody behind it is looked for either.
        let is_any_within = super::open(candidates).any(|candidate| !bound.is_exceeded(candidate));
        for (_, slot) in behind.iter().chain(before) {
            let Some(at) = place_of(*slot, candidates) else { continue };
            let candidate = &candidates[at];
            let step = &mut steps[first + at].0;
            if candidate.standing != Standing::Open || *step < bound.workers {
                continue;
            }
            *step = passed;
            passed += 1.0;
            open -= 1;
            if open == 0 || !is_any_within || !bound.is_exceeded(candidate) {
                return;
            }
        }
    }
}

/// Where in `candidates`, which are in the order of their slots, this one is. O(1) where each slot is one of the pool.
fn place_of(slot: Slot, candidates: &[Candidate]) -> Option<usize> {
    if candidates.get(slot.index()).is_some_and(|candidate| candidate.slot == slot) {
        return Some(slot.index());
    }
    candidates.binary_search_by_key(&slot, |candidate| candidate.slot).ok()
}

impl Bound {
    fn is_exceeded(self, candidate: &Candidate) -> bool {
        f64::from(candidate.requests) + 1.0 > self.most
    }

    fn penalty(self, candidate: &Candidate) -> f64 {
        if self.is_exceeded(candidate) { BEHIND } else { 0.0 }
    }
}

impl CostFunction for Chwbl {
    fn score(
        &self,
        _now: Instant,
        shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        let (bound, first) = (self.bound(candidates), costs.len());
        self.steps(shape, candidates, bound, costs);
        for (cost, candidate) in costs[first..].iter_mut().zip(candidates) {
            cost.0 += bound.penalty(candidate);
        }
        Ok(())
    }

    fn explain(&self, _now: Instant, shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        let (bound, mut steps) = (self.bound(candidates), Vec::new());
        self.steps(shape, candidates, bound, &mut steps);
        for (at, (step, candidate)) in steps.iter().zip(candidates).enumerate() {
            tell(at, Term::adds("passed", Unit::Steps, step.0));
            tell(at, Term::adds("above the bound", Unit::Rule, bound.penalty(candidate)));
        }
    }

    fn rule(&self) -> Option<f64> {
        Some(BEHIND)
    }

    /// More than all others that could be passed.
    fn prompt_worth(&self, _shape: &Shape, _candidate: &Candidate) -> f64 {
        65_536.0
    }
}

/// What a target is called on the ring. Ranks of one worker lie apart; the first is called as the worker is.
fn ring_name(worker: &WorkerId, rank: Rank) -> String {
    if rank.0 == 0 { worker.as_str().to_owned() } else { format!("{}/{}", worker.as_str(), rank.0) }
}

impl Enrol for Chwbl {
    fn enrol(&self, roll: Roll, targets: &mut dyn Iterator<Item = Enrolled<'_>>) {
        let knows = |ring: &Ring| ring.roll == Some(roll);
        if knows(&self.ring.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let mut named: Vec<(Slot, String)> =
            targets.map(|Enrolled { slot, worker, rank }| (slot, ring_name(worker, rank))).collect();
        // In an order that slots have no part in.
        named.sort_by(|(_, a), (_, b)| (a.len(), a).cmp(&(b.len(), b)));
        let (mut points, mut taken) = (Vec::new(), HashSet::<u64, foldhash::fast::FixedState>::default());
        for (slot, mut name) in named {
            let length = name.len();
            for number in 0..self.rule.replication.get() {
                name.truncate(length);
                write!(name, "{number}").expect("a string takes what is written");
                let mut seeded = (0..).map(|seed| xxh64(name.as_bytes(), seed));
                points.extend(seeded.find(|point| taken.insert(*point)).map(|point| (point, slot)));
            }
        }
        points.sort_unstable();
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Ring { roll: Some(roll), points };
    }
}

#[cfg(test)]
mod tests {
    use super::super::small_worlds::{assert_costs, candidate, origin, shape};
    use super::*;
    use crate::shape::Opening;

    fn enrolled(chwbl: &Chwbl, names: &[&str]) {
        let ids: Vec<_> = names.iter().map(|name| WorkerId::from(*name)).collect();
        let mut targets =
            ids.iter().zip(0..).map(|(worker, slot)| Enrolled { slot: Slot(slot), worker, rank: Rank(0) });
        chwbl.enrol(Roll(u64::try_from(names.len()).unwrap()), &mut targets);
    }

    fn fleet(requests: &[u32]) -> Vec<Candidate> {
        let slots = requests.iter().zip(0..);
        slots.map(|(requests, slot)| candidate(slot, (0, 1000), (*requests, 1000), 0)).collect()
    }

    fn costs(chwbl: &Chwbl, key: u64, fleet: &[Candidate]) -> Vec<Cost> {
        let mut costs = Vec::new();
        let shape = Shape { opening: Some(Opening(key)), ..shape(256) };
        chwbl.score(origin(), &shape, fleet, &mut costs).unwrap();
        costs
    }

    /// A ring of three with one point each, in the order of the hashes of `a0`, `b0`, `c0`.
    fn small_ring() -> (Chwbl, Vec<(u64, usize)>) {
        let chwbl = Chwbl::new(ChwblRule { replication: NonZeroU32::MIN, ..ChwblRule::default() });
        enrolled(&chwbl, &["a", "b", "c"]);
        let mut points: Vec<_> = ["a0", "b0", "c0"].iter().map(|name| xxh64(name.as_bytes(), 0)).zip(0..).collect();
        points.sort_unstable();
        (chwbl, points)
    }

    /// Computed apart, by the definition of xxh64.
    #[test]
    fn r184_points_are_hashes_of_name_and_number() {
        assert_eq!(xxh64(b"a", 0), 0xd24e_c4f1_a98c_6e5b);
        let chwbl = Chwbl::default();
        enrolled(&chwbl, &["worker-1", "worker-2"]);
        let ring = chwbl.ring.read().unwrap();
        assert_eq!(ring.points.len(), 512);
        assert!(ring.points.is_sorted());
        assert!(ring.points.contains(&(xxh64(b"worker-1255", 0), Slot(0))));
        assert!(ring.points.contains(&(xxh64(b"worker-20", 0), Slot(1))));
    }

    /// `worker-1` and 110 make what `worker-11` and 0 make: 110 of their 256 points would be the same.
    #[test]
    fn workers_whose_names_continue_each_other_share_no_point() {
        let names: Vec<String> = (1..=12).map(|number| format!("worker-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let chwbl = Chwbl::default();
        enrolled(&chwbl, &names);
        let points = chwbl.ring.read().unwrap().points.clone();
        assert!(points.windows(2).all(|two| two[0].0 < two[1].0), "two workers are at one point");
        let of = |slot: u16| points.iter().filter(|point| point.1 == Slot(slot)).count();
        assert!((0..12).all(|slot| of(slot) == 256));
        // The shorter name keeps its points, whichever slot it has.
        assert!(points.contains(&(xxh64(b"worker-111", 0), Slot(0))));
        assert!(points.contains(&(xxh64(b"worker-111", 1), Slot(10))));
        let reversed: Vec<&str> = names.iter().rev().copied().collect();
        let turned = Chwbl::default();
        enrolled(&turned, &reversed);
        let turned: Vec<_> =
            turned.ring.read().unwrap().points.iter().map(|(at, slot)| (*at, Slot(11 - slot.0))).collect();
        assert_eq!(turned, points);
    }

    #[test]
    fn r184_the_first_one_clockwise_within_the_bound_is_chosen() {
        let (chwbl, points) = small_ring();
        let order = [points[0].1, points[1].1, points[2].1];
        let idle = costs(&chwbl, points[0].0, &fleet(&[0, 0, 0]));
        assert_eq!([idle[order[0]], idle[order[1]], idle[order[2]]], [Cost(0.0), Cost(3.0), Cost(3.0)]);
        // Just behind a point the next one is first; behind the last, the first.
        assert_eq!(costs(&chwbl, points[0].0 + 1, &fleet(&[0, 0, 0]))[order[1]], Cost(0.0));
        assert_eq!(costs(&chwbl, points[2].0 + 1, &fleet(&[0, 0, 0]))[order[0]], Cost(0.0));
        // Total 8: 1.25·9/3 = 3.75, so that whoever has 3 would exceed it.
        let mut loads = [0; 3];
        (loads[order[0]], loads[order[1]], loads[order[2]]) = (3, 3, 2);
        let spilt = costs(&chwbl, points[0].0, &fleet(&loads));
        let spilt = [spilt[order[0]], spilt[order[1]], spilt[order[2]]];
        assert_eq!(spilt, [Cost(BEHIND), Cost(1.0 + BEHIND), Cost(2.0)]);
    }

    /// In an idle fleet 1.25·1/3 would let nobody take a first request, and one in flight would be too many.
    #[test]
    fn r184_two_requests_are_never_too_many() {
        let (chwbl, points) = small_ring();
        let mut loads = [0; 3];
        loads[points[0].1] = 1;
        assert_eq!(costs(&chwbl, points[0].0, &fleet(&loads))[points[0].1], Cost(0.0));
        loads[points[0].1] = 2;
        assert_eq!(costs(&chwbl, points[0].0, &fleet(&loads))[points[1].1], Cost(1.0));
    }

    #[test]
    fn r184_where_nobody_is_within_the_bound_the_owner_is_chosen() {
        let (chwbl, points) = small_ring();
        let order = [points[0].1, points[1].1, points[2].1];
        let mut fleet = fleet(&[9, 9, 9]);
        // The only one within the bound takes no more.
        fleet[order[1]].requests = 0;
        fleet[order[1]].standing = Standing::Full;
        let costs = costs(&chwbl, points[0].0, &fleet);
        assert_eq!([costs[order[0]], costs[order[2]]], [Cost(BEHIND), Cost(3.0 + BEHIND)]);
    }

    /// at a mean load of 4 nobody has more than 5.
    #[test]
    fn r059_no_worker_gets_above_the_bound() {
        let chwbl = Chwbl::default();
        enrolled(&chwbl, &["w0", "w1", "w2", "w3"]);
        let mut fleet = fleet(&[0; 4]);
        for _ in 0..16 {
            let costs = costs(&chwbl, 42, &fleet);
            let chosen = (0..4).min_by(|a, b| costs[*a].0.total_cmp(&costs[*b].0)).unwrap();
            fleet[chosen].requests += 1;
        }
        let loads: Vec<_> = fleet.iter().map(|candidate| candidate.requests).collect();
        assert!(loads.iter().all(|load| *load <= 5) && loads.iter().sum::<u32>() == 16, "{loads:?}");
    }

    #[test]
    fn a_worker_more_takes_keys_only_for_itself() {
        let (three, four) = (Chwbl::default(), Chwbl::default());
        enrolled(&three, &["w0", "w1", "w2"]);
        enrolled(&four, &["w0", "w1", "w2", "w3"]);
        let owner = |chwbl: &Chwbl, key: u64, workers: usize| {
            costs(chwbl, key, &fleet(&vec![0; workers])).iter().position(|cost| cost.0 == 0.0).unwrap()
        };
        let keys = (0..1000_u64).map(|key| xxh64(&key.to_le_bytes(), 0));
        let moved: Vec<_> = keys
            .map(|key| (owner(&three, key, 3), owner(&four, key, 4)))
            .filter(|(before, after)| before != after)
            .collect();
        assert!(moved.iter().all(|(_, after)| *after == 3));
        assert!((150..350).contains(&moved.len()), "{}", moved.len());
    }

    #[test]
    fn without_a_key_or_a_ring_all_are_alike() {
        let fleet = fleet(&[0, 0]);
        assert_costs(&costs(&Chwbl::default(), 1, &fleet), &[2.0, 2.0]);
        let mut costs = Vec::new();
        small_ring().0.score(origin(), &shape(256), &fleet, &mut costs).unwrap();
        assert_costs(&costs, &[2.0, 2.0]);
    }
}
