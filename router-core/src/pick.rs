//! From costs to one candidate. How ties end belongs to the policy: its sources disagree.

use rand::{Rng, RngExt};

use crate::cost::{Among, Candidate, Cost, Weight};
use crate::real::smaller;

/// How a policy's costs become a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pick {
    /// The cheapest; among equals the lowest slot.
    CheapestLowestSlot,
    /// The cheapest; among equals the one with the fewest requests in flight, then the lowest slot.
    CheapestFewestRequests,
    /// The cheapest; among equals one at random.
    CheapestAtRandom,
    /// The cheaper of two that are drawn at random; among equals the first drawn.
    CheaperOfTwo,
    /// Any, one with cost `c` as often as `exp(−c/temperature)` says. The temperature is in the costs' own unit: costs are
    /// not stretched between the least and the most first, which would make a full swing of any difference. At 0 the
    /// cheapest; among equals one at random.
    Softmax(Weight),
}

impl Pick {
    /// The index of the chosen candidate, of candidates in the order of their slots; none when `among` takes none.
    /// O(candidates), no allocation.
    pub fn choose(self, among: Among, candidates: &[Candidate], costs: &[Cost], rng: &mut impl Rng) -> Option<usize> {
        self.choose_beside(None, among, candidates, costs, rng)
    }

    /// The index of the cheapest, of the lowest slot among equals; none when `among` takes none.
    pub fn cheapest(among: Among, candidates: &[Candidate], costs: &[Cost]) -> Option<usize> {
        all_cheapest(among, candidates, costs).next()
    }

    /// The same where one of them has a claim already: whoever draws two draws it and one other.
    pub fn choose_beside(
        self,
        kept: Option<usize>,
        among: Among,
        candidates: &[Candidate],
        costs: &[Cost],
        rng: &mut impl Rng,
    ) -> Option<usize> {
        let eligible = || {
            let all = candidates.iter().zip(costs).enumerate();
            all.filter(move |(_, (candidate, _))| among.takes(candidate.standing))
                .map(|(index, (candidate, cost))| (index, candidate, cost.0))
        };
        let cheapest = || all_cheapest(among, candidates, costs);
        match self {
            Pick::CheapestLowestSlot => Self::cheapest(among, candidates, costs),
            Pick::CheapestFewestRequests => cheapest().min_by_key(|index| candidates[*index].requests),
            Pick::Softmax(temperature) if temperature.get() > 0.0 && lowest(among, candidates, costs).is_finite() => {
                let lowest = lowest(among, candidates, costs);
                let weighed =
                    || eligible().map(|(index, _, cost)| (index, ((lowest - cost) / temperature.get()).exp()));
                let mut left = rng.random_range(0.0..1.0) * weighed().map(|(_, weight)| weight).sum::<f64>();
                let drawn = weighed().find(|(_, weight)| {
                    left -= weight;
                    left < 0.0
                });
                // Rounding may leave a rest behind the last one.
                drawn.or_else(|| weighed().find(|(_, weight)| *weight > 0.0)).map(|(index, _)| index)
            }
            Pick::CheapestAtRandom | Pick::Softmax(_) => draw(cheapest(), rng),
            Pick::CheaperOfTwo => {
                // Who was kept among others may be none of these.
                let kept = kept.filter(|kept| among.takes(candidates[*kept].standing));
                let claims = eligible().filter(|(index, _, _)| kept.is_none_or(|kept| kept == *index));
                let (first, first_cost) = draw(claims.map(|(index, _, cost)| (index, cost)), rng)?;
                let others = eligible().filter(|(index, _, _)| *index != first).map(|(index, _, cost)| (index, cost));
                match draw(others, rng) {
                    Some((second, cost)) if cost < first_cost => Some(second),
                    _ => Some(first),
                }
            }
        }
    }
}

/// The places of all that cost least, ascending.
fn all_cheapest<'a>(
    among: Among,
    candidates: &'a [Candidate],
    costs: &'a [Cost],
) -> impl Iterator<Item = usize> + Clone + 'a {
    at_most(lowest(among, candidates, costs), costs).filter(move |place| among.takes(candidates[*place].standing))
}

/// The least cost of those whom `among` takes; infinite when there is none.
fn lowest(among: Among, candidates: &[Candidate], costs: &[Cost]) -> f64 {
    let least = least(costs);
    // Mostly one of the cheapest is taken, and nobody else has to be asked.
    if at_most(least, costs).any(|place| among.takes(candidates[place].standing)) {
        return least;
    }
    let taken = candidates.iter().zip(costs).filter(|(candidate, _)| among.takes(candidate.standing));
    taken.fold(f64::INFINITY, |least, (_, cost)| smaller(cost.0, least))
}

/// Infinite of none.
fn least(costs: &[Cost]) -> f64 {
    // A minimum waits for the one before it, so some are kept.
    let (rows, rest) = costs.as_chunks::<COLUMNS>();
    let mut least = [f64::INFINITY; COLUMNS];
    for row in rows {
        least.iter_mut().zip(row).for_each(|(least, cost)| *least = smaller(cost.0, *least));
    }
    least.into_iter().chain(rest.iter().map(|cost| cost.0)).fold(f64::INFINITY, |least, cost| smaller(cost, least))
}

/// The places of costs up to `most`, ascending; of all where that is infinite: then nobody is dearer than another. Several are
/// looked at together, as hardly any is the least.
fn at_most(most: f64, costs: &[Cost]) -> impl Iterator<Item = usize> + Clone {
    let takes = move |cost: &Cost| cost.0 <= most || most == f64::INFINITY;
    let rows = costs.chunks(COLUMNS).zip((0..).step_by(COLUMNS));
    let some = rows.filter(move |(row, _)| row.iter().fold(false, |any, cost| any | takes(cost)));
    some.flat_map(move |(row, first)| row.iter().zip(first..).filter(move |(cost, _)| takes(cost)).map(|(_, at)| at))
}

/// Costs that are compared together.
const COLUMNS: usize = 16;

/// One item, each as likely as any other. Goes over them twice: chance costs more than looking.
fn draw<T>(mut items: impl Iterator<Item = T> + Clone, rng: &mut impl Rng) -> Option<T> {
    match items.clone().count() {
        0 => None,
        1 => items.next(),
        several => items.nth(rng.random_range(0..several)),
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::cost::Standing;
    use crate::cost::small_worlds::candidate;

    fn fleet(size: u16) -> Vec<Candidate> {
        (0..size).map(|slot| candidate(slot, (0, 10), (0, 16), 0)).collect()
    }

    fn rng() -> StdRng {
        StdRng::seed_from_u64(1)
    }

    #[test]
    fn r023_the_lowest_slot_wins_ties() {
        let costs = [Cost(2.0), Cost(1.0), Cost(1.0)];
        assert_eq!(Pick::CheapestLowestSlot.choose(Among::Open, &fleet(3), &costs, &mut rng()), Some(1));
    }

    #[test]
    fn the_shortest_queue_wins_ties_before_the_lowest_slot() {
        let mut fleet = fleet(4);
        fleet[1].requests = 2;
        (fleet[2].requests, fleet[3].requests) = (1, 1);
        let costs = [Cost(2.0), Cost(1.0), Cost(1.0), Cost(1.0)];
        assert_eq!(Pick::CheapestFewestRequests.choose(Among::Open, &fleet, &costs, &mut rng()), Some(2));
    }

    /// Of 10 000 draws between two equals each wins 5000 ± 200.
    #[test]
    fn r015_ties_at_random_are_even() {
        let (fleet, mut rng) = (fleet(3), rng());
        let costs = [Cost(1.0), Cost(1.0), Cost(2.0)];
        let mut wins = [0_u32; 3];
        for _ in 0..10_000 {
            wins[Pick::CheapestAtRandom.choose(Among::Open, &fleet, &costs, &mut rng).unwrap()] += 1;
        }
        assert!((4_800..=5_200).contains(&wins[0]), "{wins:?}");
        assert_eq!(wins[2], 0);
    }

    #[test]
    fn the_cheapest_that_can_be_chosen_is_found_in_a_fleet_of_any_size() {
        let standings = [Standing::Open, Standing::Full, Standing::Out, Standing::HeldBack];
        let mut rng = rng();
        for size in [1, 15, 16, 17, 100] {
            for among in [Among::Open, Among::OpenAndFull] {
                let mut fleet = fleet(size);
                fleet.iter_mut().for_each(|it| it.standing = standings[rng.random_range(0..4)]);
                // Few different costs, so that some are equal, and some of those who cannot be chosen are cheaper.
                let draw = |rng: &mut StdRng| [0.5, 1.0, 2.0, 3.0, f64::INFINITY][rng.random_range(0..5)];
                let costs: Vec<_> = (0..size).map(|_| Cost(draw(&mut rng))).collect();
                let takes = |place: &usize| among.takes(fleet[*place].standing);
                let taken: Vec<_> = (0..fleet.len()).filter(takes).collect();
                let least = taken.iter().map(|place| costs[*place].0).fold(f64::INFINITY, f64::min);
                let expected: Vec<_> = taken.into_iter().filter(|place| costs[*place].0 <= least).collect();
                assert_eq!(all_cheapest(among, &fleet, &costs).collect::<Vec<_>>(), expected, "{size} {among:?}");
            }
        }
    }

    #[test]
    fn who_was_kept_and_cannot_be_chosen_keeps_nobody_from_it() {
        let mut fleet = fleet(3);
        fleet[1].standing = Standing::Full;
        let costs = [Cost(2.0), Cost(0.0), Cost(1.0)];
        let chosen = Pick::CheaperOfTwo.choose_beside(Some(1), Among::Open, &fleet, &costs, &mut rng());
        assert_eq!(chosen, Some(2));
    }

    #[test]
    fn the_dearest_of_three_never_wins_the_choice_of_two() {
        let (fleet, mut rng) = (fleet(3), rng());
        let costs = [Cost(1.0), Cost(3.0), Cost(2.0)];
        let mut wins = [0_u32; 3];
        for _ in 0..3_000 {
            wins[Pick::CheaperOfTwo.choose(Among::Open, &fleet, &costs, &mut rng).unwrap()] += 1;
        }
        // The cheapest is in two of the three pairs, the middle one wins the third.
        assert_eq!(wins[1], 0);
        assert!((1_850..=2_150).contains(&wins[0]), "{wins:?}");
    }

    /// Costs of 0, ln 2 and ln 4 times the temperature: weights 1, 1/2 and 1/4, so 4/7, 2/7 and 1/7 of 7000 draws.
    #[test]
    fn softmax_draws_by_the_costs_own_unit() {
        let (fleet, mut rng) = (fleet(3), rng());
        let step = 20.0 * 2.0_f64.ln();
        let costs = [Cost(1e6), Cost(1e6 + step), Cost(1e6 + 2.0 * step)];
        let mut wins = [0_u32; 3];
        for _ in 0..7_000 {
            wins[Pick::Softmax(Weight::constant(20.0)).choose(Among::Open, &fleet, &costs, &mut rng).unwrap()] += 1;
        }
        let near = |wins: u32, expected: u32| wins.abs_diff(expected) < 150;
        assert!(near(wins[0], 4_000) && near(wins[1], 2_000) && near(wins[2], 1_000), "{wins:?}");
    }

    /// Stretched between the least and the most, a hundredth of a block would be all that counts.
    #[test]
    fn a_tiny_difference_stays_tiny_under_softmax() {
        let (fleet, mut rng) = (fleet(2), rng());
        let mut wins = [0_u32; 2];
        for _ in 0..10_000 {
            let costs = [Cost(100.0), Cost(100.01)];
            wins[Pick::Softmax(Weight::constant(1.0)).choose(Among::Open, &fleet, &costs, &mut rng).unwrap()] += 1;
        }
        assert!((4_800..=5_250).contains(&wins[0]), "{wins:?}");
    }

    #[test]
    fn without_temperature_softmax_is_the_cheapest_with_ties_at_random() {
        let costs = [Cost(1.0), Cost(1.0), Cost(1.000_001)];
        let (cold, cheapest) = (Pick::Softmax(Weight::constant(0.0)), Pick::CheapestAtRandom);
        let (mut one, mut other) = (rng(), rng());
        for _ in 0..100 {
            let chosen = cold.choose(Among::Open, &fleet(3), &costs, &mut one);
            assert_eq!(chosen, cheapest.choose(Among::Open, &fleet(3), &costs, &mut other));
            assert_ne!(chosen, Some(2));
        }
    }

    #[test]
    fn where_no_cost_is_finite_softmax_chooses_still() {
        let costs = [Cost(f64::INFINITY); 3];
        let mut rng = rng();
        let mut chosen: Vec<_> = (0..100)
            .map(|_| Pick::Softmax(Weight::constant(1.0)).choose(Among::Open, &fleet(3), &costs, &mut rng))
            .collect();
        chosen.sort_unstable();
        chosen.dedup();
        assert_eq!(chosen, [Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn softmax_survives_costs_of_any_size() {
        let (fleet, mut rng) = (fleet(3), rng());
        let costs = [Cost(1e300), Cost(-1e300), Cost(f64::INFINITY)];
        assert_eq!(Pick::Softmax(Weight::constant(1e-300)).choose(Among::Open, &fleet, &costs, &mut rng), Some(1));
    }

    #[test]
    fn the_cheapest_is_found_wherever_it_is() {
        for size in 1..=9 {
            for at in 0..usize::from(size) {
                let mut costs = vec![Cost(2.0); usize::from(size)];
                costs[at] = Cost(-1.0);
                for pick in [Pick::CheapestLowestSlot, Pick::CheapestFewestRequests, Pick::CheapestAtRandom] {
                    assert_eq!(pick.choose(Among::Open, &fleet(size), &costs, &mut rng()), Some(at));
                }
            }
        }
    }

    #[test]
    fn costs_that_are_no_numbers_leave_nobody_without_a_worker() {
        for pick in [Pick::CheapestLowestSlot, Pick::CheapestFewestRequests, Pick::CheapestAtRandom] {
            let choose = |costs: [f64; 2]| pick.choose(Among::Open, &fleet(2), &costs.map(Cost), &mut rng());
            assert_eq!(choose([f64::NAN, 7.0]), Some(1));
            assert!(choose([f64::NAN, f64::INFINITY]).is_some() && choose([f64::NAN; 2]).is_some());
        }
    }

    #[test]
    fn only_open_candidates_are_chosen() {
        let mut fleet = fleet(2);
        fleet[0].standing = Standing::Full;
        for pick in [Pick::CheapestLowestSlot, Pick::CheapestFewestRequests, Pick::CheapestAtRandom, Pick::CheaperOfTwo]
        {
            assert_eq!(pick.choose(Among::Open, &fleet, &[Cost(0.0), Cost(9.0)], &mut rng()), Some(1));
        }
        fleet[1].standing = Standing::Out;
        assert_eq!(Pick::CheaperOfTwo.choose(Among::Open, &fleet, &[Cost(0.0), Cost(9.0)], &mut rng()), None);
    }
}
