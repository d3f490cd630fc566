//! Where points are measured: growing beginnings of the trace, and the end that is held back. What was measured once is
//! remembered.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use warmpath_simulator::fleet::{Scenario, ScenarioError};

use super::Plan;
use super::figures::{Figures, Limits};
use super::search::rounds;
use super::space::{Point, Space};
use crate::replay::simulated::{Trial, Trials};
use crate::replay::trace::TraceRequest;

/// Beginnings of the tuned part on which points are measured one after the other, the last of which is all of it.
pub const RUNGS: usize = 3;

/// A part of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stretch {
    /// A beginning of the tuned part: of three rungs a quarter, a half, all.
    Rung(usize),
    /// The requests that are held back, behind all others, which warm the caches as they did.
    HeldBack,
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
    /// Nothing was measured yet. O(blocks of the trace).
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
        (searched + 2 * (1 + worlds) * self.whole.prepared().len()) * self.cells.len()
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
