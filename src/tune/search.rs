//! The search: points that fill the space evenly, of which only the better half is looked at longer each time; then steps
//! around the best one, which become smaller where they lead nowhere.

use std::collections::HashSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use warmpath_core::count::real_len;

use super::space::{Point, Space};

/// Of all points, those of the first part, in tenths; the others are steps around the best.
const SPREAD_TENTHS: usize = 6;
/// Points of one round of steps: measured side by side, so it is the same however many cores there are.
const ROUND: usize = 4;
/// How far the first steps lead, as a part of the whole scale …
const STEP: f64 = 0.3;
/// … and what becomes of that after a round without success.
const SHORTER: f64 = 0.6;
/// Attempts to find a point that was not measured yet.
const ATTEMPTS: usize = 64;

/// Measures points: the first argument is the rung, from 0, on which each is looked at longer than on the one before. Lower
/// is better.
pub type Measure<'a, E> = dyn FnMut(usize, &[Point]) -> Result<Vec<f64>, E> + 'a;

/// Points with what they measured.
pub type Measured = Vec<(Point, f64)>;

/// How many points are measured on each rung, the last one with its steps, where none is found twice.
pub fn rounds(budget: usize, rungs: usize) -> Vec<usize> {
    let spread = spread(budget);
    let mut counts: Vec<usize> = (0..rungs).map(|rung| kept(spread, rung)).collect();
    if let Some(last) = counts.last_mut() {
        *last += budget.max(1) - spread;
    }
    counts
}

/// Measures about `budget` points and the one to start from. Returns those that came to the last rung, in the order in which
/// they did, with what they measured; the first is always the start. Equal arguments give equal answers, and no point is
/// measured twice on a rung.
///
/// # Errors
/// Whatever `measure` ends with.
pub fn search<E>(
    space: &Space,
    (budget, rungs): (usize, usize),
    seed: u64,
    measure: &mut Measure<'_, E>,
) -> Result<Measured, E> {
    let mut rng = StdRng::seed_from_u64(seed);
    let start = space.start();
    let mut seen = HashSet::from([start.clone()]);
    let mut points = vec![start.clone()];
    points
        .extend(spread_out(space, spread(budget) - 1, &mut rng).into_iter().filter(|point| seen.insert(point.clone())));
    let count = points.len();
    let mut measured = Vec::new();
    for rung in 0..rungs {
        if rung > 0 {
            points = better(&measured, kept(count, rung), &start);
        }
        let scores = measure(rung, &points)?;
        measured = points.iter().cloned().zip(scores).collect();
    }
    let mut left = budget.saturating_sub(count);
    let mut step = STEP;
    while left > 0 {
        let best = best(&measured);
        let round = steps_around(space, &best.0, step, left.min(ROUND), &mut seen, &mut rng);
        if round.is_empty() {
            break;
        }
        left -= round.len();
        let scores = measure(rungs.saturating_sub(1), &round)?;
        if scores.iter().all(|score| *score >= best.1) {
            step *= SHORTER;
        }
        measured.extend(round.into_iter().zip(scores));
    }
    Ok(measured)
}

/// The best of these, which is the first of equal ones.
pub fn best(measured: &[(Point, f64)]) -> (Point, f64) {
    let best = measured.iter().min_by(|one, other| one.1.total_cmp(&other.1));
    best.cloned().expect("the start was measured")
}

/// Points of the first part.
fn spread(budget: usize) -> usize {
    (budget * SPREAD_TENTHS / 10).max(1)
}

/// Points that come to a rung.
fn kept(count: usize, rung: usize) -> usize {
    (0..rung).fold(count, |count, _| count.div_ceil(2))
}

/// The best `count` of these and the start, in the order in which they stand.
fn better(measured: &[(Point, f64)], count: usize, start: &Point) -> Vec<Point> {
    let mut places: Vec<usize> = (0..measured.len()).filter(|place| measured[*place].0 != *start).collect();
    places.sort_by(|one, other| measured[*one].1.total_cmp(&measured[*other].1));
    places.truncate(count.saturating_sub(1));
    places.sort_unstable();
    let others = places.into_iter().map(|place| measured[place].0.clone());
    std::iter::once(start.clone()).chain(others).collect()
}

/// Points of which each has a part of every scale for itself.
fn spread_out(space: &Space, count: usize, rng: &mut StdRng) -> Vec<Point> {
    let parts: Vec<Vec<usize>> = (0..space.dimensions()).map(|_| shuffled(count, rng)).collect();
    let point = |number: usize| {
        let place = |part: &Vec<usize>| (real_len(part[number]) + rng.random_range(0.0..1.0)) / real_len(count);
        space.at(&parts.iter().map(place).collect::<Vec<_>>())
    };
    (0..count).map(point).collect()
}

fn shuffled(count: usize, rng: &mut StdRng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for end in (1..count).rev() {
        order.swap(end, rng.random_range(0..=end));
    }
    order
}

/// New points at most `step` away from one, in one weight at least.
fn steps_around(
    space: &Space,
    from: &Point,
    step: f64,
    count: usize,
    seen: &mut HashSet<Point>,
    rng: &mut StdRng,
) -> Vec<Point> {
    let places = space.places(from);
    let mut found = Vec::new();
    for _ in 0..ATTEMPTS {
        if found.len() == count {
            break;
        }
        let moved = rng.random_range(0..places.len());
        let mut to = places.clone();
        for (at, place) in to.iter_mut().enumerate() {
            if at == moved || rng.random_range(0.0..1.0) < 0.5 {
                *place += rng.random_range(-step..=step);
            }
        }
        let point = space.at(&to);
        if seen.insert(point.clone()) {
            found.push(point);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use warmpath_core::policy::PolicyName;

    use super::*;
    use crate::config::Config;

    fn space(policy: PolicyName) -> Space {
        Space::new(policy, &Config::default().routing, false).unwrap()
    }

    /// Distance from a place in the space, so that the best point is known.
    fn distance(space: &Space, point: &Point, aim: &[f64]) -> f64 {
        space.places(point).iter().zip(aim).map(|(place, aim)| (place - aim).powi(2)).sum::<f64>().sqrt()
    }

    /// What is found, and the rung and size of every round.
    fn found(budget: usize, seed: u64) -> (Measured, Vec<(usize, usize)>) {
        let space = space(PolicyName::Kv);
        let mut rounds = Vec::new();
        let mut measured = HashSet::new();
        let mut measure = |rung: usize, points: &[Point]| {
            rounds.push((rung, points.len()));
            for point in points {
                assert!(measured.insert((rung, point.clone())), "measured twice on rung {rung}: {point:?}");
            }
            let score = |point: &Point| distance(&space, point, &[0.8, 0.2, 0.7, 0.4]);
            Ok::<_, Infallible>(points.iter().map(score).collect())
        };
        let found = search(&space, (budget, 3), seed, &mut measure).unwrap();
        (found, rounds)
    }

    #[test]
    fn the_search_comes_near_the_best_point() {
        let at_start = found(1, 1).0;
        assert_eq!((at_start.len(), at_start[0].0.clone()), (1, space(PolicyName::Kv).start()));
        for seed in 1..=5 {
            let (points, _) = found(80, seed);
            let best = best(&points).1;
            assert!(best < 0.15 && best < at_start[0].1 / 3.0, "seed {seed}: {best}");
        }
    }

    #[test]
    fn equal_seeds_find_the_same_and_others_something_else() {
        assert_eq!(found(40, 7), found(40, 7));
        assert_ne!(found(40, 7).0, found(40, 8).0);
    }

    #[test]
    fn half_of_the_points_are_looked_at_longer_each_time_and_then_come_steps_of_four() {
        let (points, rounds) = found(40, 1);
        assert_eq!(rounds[..3], [(0, 24), (1, 12), (2, 6)]);
        assert_eq!(rounds[3..], [(2, 4); 4]);
        assert_eq!(points.len(), 6 + 16);
        assert_eq!(super::rounds(40, 3), [24, 12, 22]);
    }

    #[test]
    fn the_search_ends_where_steps_find_nothing_new() {
        let space = space(PolicyName::Aibrix);
        let mut count = 0;
        let mut measure = |_: usize, points: &[Point]| {
            count += points.len();
            Ok::<_, Infallible>(vec![1.0; points.len()])
        };
        let measured = search(&space, (4_000, 1), 1, &mut measure).unwrap();
        assert_eq!(measured.len(), count);
        assert!(count < 4_000, "{count}");
    }

    #[test]
    fn spread_points_have_each_part_of_a_scale_for_themselves() {
        let space = space(PolicyName::Affinity);
        let points = spread_out(&space, 10, &mut StdRng::seed_from_u64(3));
        let mut parts: Vec<f64> = points.iter().map(|point| (space.places(point)[0] * 10.0).floor()).collect();
        parts.sort_by(f64::total_cmp);
        assert_eq!(parts, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
    }

    #[test]
    fn the_start_is_measured_on_every_rung_however_bad_it_is() {
        let space = space(PolicyName::Kv);
        let start = space.start();
        let mut measure = |_: usize, points: &[Point]| {
            assert_eq!(points.iter().filter(|point| **point == start).count(), usize::from(points.len() > 4));
            Ok::<_, Infallible>(points.iter().map(|point| if *point == start { 9.0 } else { 1.0 }).collect())
        };
        let measured = search(&space, (40, 3), 1, &mut measure).unwrap();
        assert_eq!(measured[0], (start.clone(), 9.0));
    }
}
