//! The search for a policy's weights: over a trace, at several loads and sizes of the fleet, for a stated aim.
//!
//! The last part of the trace is held back: nothing that is chosen hangs on it, and what was found is shown on it beside
//! the weights that the search began with. A gain on the one part alone is a gain on that trace, not of the policy; and one
//! that other chances take back is none.

pub mod bench;
pub mod figures;
pub mod front;
pub mod outcome;
pub mod page;
pub mod robust;
pub mod search;
pub mod space;
pub mod verdict;

use std::time::Instant;

use warmpath_core::policy::PolicyName;
use warmpath_core::units::BlockSize;
use warmpath_simulator::fleet::{Scenario, ScenarioError};

use crate::config::Routing;
use crate::replay::trace::TraceRequest;
use bench::{Bench, Stretch};
use figures::{Aim, Figures, Limits};
use outcome::{Cell, Contender, FrontPoint, Outcome, Share};
use search::{best, search};
use space::{NothingToTune, Point, Space};
use verdict::{Drawn, Gain, Verdict};

/// What is tuned, for what, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The policy.
    pub policy: PolicyName,
    /// What is to be low, or high.
    pub aim: Aim,
    /// What an answer must keep to count as good.
    pub limits: Limits,
    /// Points that are measured; the search ends sooner where it finds no new ones.
    pub trials: usize,
    /// Seed of the search.
    pub seed: u64,
    /// Where the search begins.
    pub routing: Routing,
    /// The fleets and loads on which every point is measured.
    pub cells: Vec<Scenario>,
    /// Tokens in a block.
    pub block_size: BlockSize,
    /// Requests at the beginning that warm the caches and count in no figure.
    pub warm_up: usize,
    /// Requests at the beginning that the search sees; those behind them are held back.
    pub tuned: usize,
    /// Simulations that run at once. It changes nothing but the time that they take.
    pub threads: usize,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The policy has no weights.
    #[error(transparent)]
    Nothing(#[from] NothingToTune),
    /// A fleet makes no sense.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// There is no fleet, or a part of the trace would be empty.
    #[error(
        "both parts of the trace must have requests that count: {tuned} of {requests} are tuned on, {warm_up} of them only warm up"
    )]
    Parts {
        /// Requests that the search sees.
        tuned: usize,
        /// All requests.
        requests: usize,
        /// Those that do not count.
        warm_up: usize,
    },
}

/// Searches, then judges what was found on what was held back. `planned` is told how many requests will be simulated at
/// most, `ended` is called for each that was.
///
/// # Errors
/// [`TuneError`].
pub fn run(
    trace: &[TraceRequest],
    plan: &Plan,
    planned: &dyn Fn(usize),
    ended: &(dyn Fn() + Sync),
) -> Result<Outcome, TuneError> {
    let begun = Instant::now();
    let (tuned, warm_up) = (plan.tuned, plan.warm_up);
    let Some(first) = plan.cells.first().filter(|_| warm_up < tuned && tuned < trace.len()) else {
        return Err(TuneError::Parts { tuned, requests: trace.len(), warm_up });
    };
    let space = Space::new(plan.policy, &plan.routing, first.engine.tiers.is_some())?;
    let rested = bench::rested(trace, plan);
    let mut bench = Bench::new(&rested, plan, &space, ended);
    planned(bench.planned());
    let mut measure = |rung: usize, points: &[Point]| {
        let measured = bench.measure(Stretch::Rung(rung), points)?;
        let score = |cells: &Vec<Figures>| plan.aim.score(&Figures::over(cells));
        Ok::<_, ScenarioError>(measured.iter().map(score).collect())
    };
    let measured = search(&space, (plan.trials, bench::RUNGS), plan.seed, &mut measure)?;
    let (start, found) = (space.start(), best(&measured).0);
    let (drawn_start, drawn_found) = draw(&mut bench, &start, &found)?;
    let gain = Gain::of(plan.aim, &drawn_start, &drawn_found);
    let verdict = if start == found { Verdict::NothingFound } else { gain.verdict() };
    let worlds = robust::judge(&mut bench, plan, &[start.clone(), found.clone()])?;
    let points: Vec<Point> = measured.iter().map(|(point, _)| point.clone()).collect();
    let tuned_on = bench.measure(Stretch::Rung(bench::RUNGS - 1), &points)?;
    let contender = |point: &Point, held_back: &Drawn| {
        let place = points.iter().position(|other| other == point).unwrap_or_default();
        Contender { weights: space.named(point), tuned: Share::of(&tuned_on[place]), held_back: held_back.share() }
    };
    let (start_at, found_at) = (contender(&start, &drawn_start), contender(&found, &drawn_found));
    let tried: Vec<Figures> = tuned_on.iter().map(|cells| Figures::over(cells)).collect();
    Ok(Outcome {
        policy: plan.policy.to_string(),
        aim: plan.aim,
        limits: plan.limits,
        seed: plan.seed,
        tuned_requests: tuned - warm_up,
        held_back_requests: trace.len() - tuned,
        cells: plan.cells.iter().map(Cell::of).collect(),
        points: bench.points(),
        simulations: bench.simulations(),
        verdict,
        change_tuned: plan.aim.change(&start_at.tuned.all, &found_at.tuned.all),
        change_held_back: plan.aim.change(&start_at.held_back.all, &found_at.held_back.all),
        changes_held_back: gain.changes,
        error_held_back: gain.error,
        start: start_at,
        found: found_at,
        front: front_of(&space, &points, &tried),
        tried,
        worlds,
        yaml: space.yaml(if verdict == Verdict::Better { &found } else { &start }),
        wall_s: begun.elapsed().as_secs_f64(),
    })
}

/// Start and best on what was held back; where both are the same, once.
fn draw(bench: &mut Bench<'_>, start: &Point, found: &Point) -> Result<(Drawn, Drawn), ScenarioError> {
    let points = [start.clone(), found.clone()];
    let different = if start == found { &points[..1] } else { &points[..] };
    let mut drawn = bench.draw(different)?;
    let at_found = drawn.pop().unwrap_or_default();
    Ok((drawn.pop().unwrap_or_else(|| at_found.clone()), at_found))
}

/// What nothing else beats in mean and 99th percentile of the time to first token and in the mean gap between tokens.
fn front_of(space: &Space, points: &[Point], figures: &[Figures]) -> Vec<FrontPoint> {
    let results: Vec<[f64; 3]> = figures.iter().map(|of| [of.ttft_mean_ms, of.ttft_p99_ms, of.itl_mean_ms]).collect();
    let mut places = front::front(&results);
    places.sort_by(|one, other| results[*one][0].total_cmp(&results[*other][0]));
    let point = |place: usize| FrontPoint { weights: space.named(&points[place]), tuned: figures[place] };
    places.into_iter().map(point).collect()
}
