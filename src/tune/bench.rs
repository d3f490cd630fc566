//! Where points are measured: growing beginnings of the trace, and the end that is held back. What was measured once on the
//! former is remembered.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use warmpath_simulator::fleet::{Scenario, ScenarioError};

use super::Plan;
use super::figures::{Figures, Limits};
use super::search::rounds;
use super::space::{Point, Space};
use super::verdict::{DRAWS, Drawn, drawn};
use crate::replay::simulated::{Trial, Trials};
use crate::replay::trace::TraceRequest;

/// Beginnings of the tuned part on which points are measured one after the other, the last of which is all of it.
pub const RUNGS: usize = 3;

/// For how long nobody sends anything before what is held back begins: longer than any queue lasts.
const REST: Duration = Duration::from_hours(30 * 24);
/// For how long at most, where it is longer for a slow load than for a fast one: later, times have steps that can be seen.
const REST_MAX: Duration = Duration::from_millis(1 << 43);

/// A part of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stretch {
    /// A beginning of the tuned part: of three rungs a quarter, a half, all.
    Rung(usize),
    /// The requests that are held back, once all others have ended: these have warmed the caches, and nobody waits for them.
    HeldBack,
}

/// The trace with a rest between what is tuned on and what is held back, in which fleets run empty: a queue that the former
/// leaves behind is no figure of the latter.
pub fn rested(trace: &[TraceRequest], plan: &Plan) -> Vec<TraceRequest> {
    let (slowest, fastest) = plan
        .cells
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(low, high), cell| (low.min(cell.speed), high.max(cell.speed)));
    let seconds = (REST.as_secs_f64() * fastest).min(REST_MAX.as_secs_f64() * slowest);
    let rest = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_millis();
    let rest = u64::try_from(rest).unwrap_or(u64::MAX);
    let mut rested = trace.to_vec();
    for request in rested.iter_mut().skip(plan.tuned) {
        request.at_ms = request.at_ms.saturating_add(rest);
    }
    rested
}

/// Measures points on every fleet and load of a plan.
pub struct Bench<'a> {
    rungs: Vec<Trials<'a>>,
    whole: Trials<'a>,
    cells: &'a [Scenario],
    space: &'a Space,
    limits: Limits,
    threads: usize,
    ended: &'a (dyn Fn() + Sync),
    known: HashMap<(Stretch, Point), Vec<Figures>>,
    simulations: usize,
    budget: usize,
}

impl<'a> Bench<'a> {
    /// Nothing was measured yet, on a trace that is [`rested`]. O(blocks of the trace).
    pub fn new(trace: &'a [TraceRequest], plan: &'a Plan, space: &'a Space, ended: &'a (dyn Fn() + Sync)) -> Self {
        let rung = |rung: usize| {
            let len = (0..RUNGS - 1 - rung).fold(plan.tuned, |len, _| len.div_ceil(2));
            let warm_up = (0..RUNGS - 1 - rung).fold(plan.warm_up, |len, _| len / 2);
            Trials::new(&trace[..len.max(1)], plan.block_size, warm_up)
        };
        Self {
            rungs: (0..RUNGS).map(rung).collect(),
            whole: Trials::new(trace, plan.block_size, plan.tuned),
            cells: &plan.cells,
            space,
            limits: plan.limits,
            threads: plan.threads,
            ended,
            known: HashMap::new(),
            simulations: 0,
            budget: plan.trials,
        }
    }

    /// Requests that will be simulated at most, the judgement of two points on what is held back included.
    pub fn planned(&self) -> usize {
        let searched: usize = rounds(self.budget, RUNGS)
            .iter()
            .zip(&self.rungs)
            .map(|(points, rung)| points * rung.prepared().len())
            .sum();
        let worlds = self.cells.first().map_or(0, |cell| super::robust::worlds(&cell.engine).len());
        let draws = usize::try_from(DRAWS).unwrap_or(usize::MAX);
        (searched + 2 * (draws + worlds) * self.whole.prepared().len()) * self.cells.len()
    }

    /// The figures of each point on each fleet and load. What is known already is not simulated again.
    ///
    /// # Errors
    /// A fleet that makes no sense.
    pub fn measure(&mut self, on: Stretch, points: &[Point]) -> Result<Vec<Vec<Figures>>, ScenarioError> {
        let mut asked = HashSet::new();
        let unknown =
            |point: &&Point| !self.known.contains_key(&(on, (*point).clone())) && asked.insert((*point).clone());
        let fresh: Vec<Point> = points.iter().filter(unknown).cloned().collect();
        let figures = self.simulate(on, &fresh, self.cells)?;
        self.known.extend(fresh.into_iter().map(|point| (on, point)).zip(figures));
        Ok(points.iter().map(|point| self.known[&(on, point.clone())].clone()).collect())
    }

    /// The figures of each point in every draw of what is held back.
    ///
    /// # Errors
    /// A fleet that makes no sense.
    pub(super) fn draw(&mut self, points: &[Point]) -> Result<Vec<Drawn>, ScenarioError> {
        let cells = self.cells;
        let draws = (0..DRAWS).flat_map(|draw| cells.iter().map(move |cell| drawn(cell, draw)));
        let figures = self.simulate(Stretch::HeldBack, points, &draws.collect::<Vec<_>>())?;
        let by_draw =
            |figures: Vec<Figures>| Drawn(figures.chunks(cells.len().max(1)).map(<[Figures]>::to_vec).collect());
        Ok(figures.into_iter().map(by_draw).collect())
    }

    /// The same on other fleets, and not remembered.
    ///
    /// # Errors
    /// A fleet that makes no sense.
    pub fn simulate(
        &mut self,
        on: Stretch,
        points: &[Point],
        cells: &[Scenario],
    ) -> Result<Vec<Vec<Figures>>, ScenarioError> {
        let trials = match on {
            Stretch::Rung(rung) => &self.rungs[rung.min(RUNGS - 1)],
            Stretch::HeldBack => &self.whole,
        };
        let wanted: Vec<Trial> = points
            .iter()
            .flat_map(|point| {
                let routing = Arc::new(self.space.routing(point));
                cells.iter().map(move |cell| {
                    let mut scenario = cell.clone();
                    scenario.router.routing = routing.clone();
                    Trial { scenario, without: None }
                })
            })
            .collect();
        let limits = self.limits;
        let keep = |tried| Figures::of(&tried, trials.warm_up(), &limits);
        let figures = trials.each(&wanted, self.threads, self.ended, &keep)?;
        self.simulations += wanted.len();
        Ok(figures.chunks(cells.len().max(1)).map(<[Figures]>::to_vec).collect())
    }

    /// Simulations so far.
    pub fn simulations(&self) -> usize {
        self.simulations
    }

    /// Different points so far.
    pub fn points(&self) -> usize {
        self.known.keys().map(|(_, point)| point).collect::<HashSet<_>>().len()
    }
}

#[cfg(test)]
mod tests {
    use warmpath_core::policy::PolicyName;
    use warmpath_core::units::BlockSize;
    use warmpath_simulator::fleet::{Conditions, EventWay, Reports};
    use warmpath_simulator::{EngineConfig, Ms, Timing};

    use super::super::figures::Aim;
    use super::*;
    use crate::config::Config;

    /// One worker that computes a token in a millisecond, at this speed.
    fn cell(speed: f64) -> Scenario {
        let timing = Timing::Linear { computed: Ms(1.0), cached: Ms(0.0) };
        let block_size = BlockSize::new(512).unwrap();
        Scenario {
            router: Config::default().simulated(PolicyName::Kv),
            workers: 1,
            engine: EngineConfig { block_size, timing, ..EngineConfig::default() },
            shared_pages: 0,
            slow: 1.0,
            speed,
            seed: 1,
            events: EventWay::AfterStep(Ms(1.0)),
            reports: Reports::Every(Ms(1000.0)),
            conditions: Conditions::default(),
            wire: false,
            check: false,
            explained: Vec::new(),
        }
    }

    /// A prompt of two blocks, of which the first is that of all others.
    fn request(at_ms: u64, own: u64) -> TraceRequest {
        TraceRequest { at_ms, input_length: 1024, output_length: 1, hash_ids: vec![0, own], ..TraceRequest::default() }
    }

    #[test]
    fn what_is_held_back_waits_for_nothing_before_it_and_finds_caches_warm() {
        let mut trace: Vec<TraceRequest> = (1..=40).map(|own| request(own, own)).collect();
        trace.extend([request(41, 41), request(100_000_000, 42)]);
        let routing = Config::default().routing;
        let space = Space::new(PolicyName::Kv, &routing, false).unwrap();
        let plan = Plan {
            policy: PolicyName::Kv,
            aim: Aim::MeanTtft,
            limits: Limits { ttft_ms: 600.0, itl_ms: 1.0 },
            trials: 1,
            seed: 1,
            routing,
            cells: vec![cell(1.0), cell(100.0)],
            block_size: BlockSize::new(512).unwrap(),
            warm_up: 0,
            tuned: 40,
            threads: 1,
        };
        let rested = rested(&trace, &plan);
        assert_eq!(rested[..40], trace[..40]);
        let mut bench = Bench::new(&rested, &plan, &space, &|| ());
        let start = [space.start()];
        for figures in &bench.simulate(Stretch::HeldBack, &start, &plan.cells).unwrap()[0] {
            // One block is computed, the other one was left behind.
            assert!((figures.ttft_p99_ms - 512.0).abs() < 1e-3, "{figures:?}");
            assert_eq!((figures.hit_rate, figures.good), (0.5, 1.0), "{figures:?}");
        }
        let drawn = bench.draw(&start).unwrap().remove(0).0;
        let times: HashSet<u64> = drawn.iter().map(|draw| draw[0].ttft_mean_ms.to_bits()).collect();
        assert_eq!((drawn.len(), times.len()), (8, 8), "no two draws are the same: {drawn:?}");
        assert_eq!(bench.simulations(), 2 + 2 * 8);
    }
}
