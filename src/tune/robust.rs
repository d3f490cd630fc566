//! What was found, where the engines' timing is other than it was estimated: a gain that hangs on an estimate is none.

use warmpath_simulator::fleet::{Scenario, ScenarioError};
use warmpath_simulator::{EngineConfig, Ms, Timing};

use super::Plan;
use super::bench::{Bench, Stretch};
use super::figures::Figures;
use super::outcome::World;
use super::space::Point;
use super::verdict::drawn;

/// By how much every constant is changed.
const FACTORS: [f64; 2] = [0.7, 1.3];

/// The constants of a timing model by name, each with a way to multiply it.
type Constant = (&'static str, fn(&mut EngineConfig, f64));

/// Engines of which one constant each is 30 % smaller or larger, with the constant's name and the factor. What is 0 stays so.
pub fn worlds(engine: &EngineConfig) -> Vec<(&'static str, f64, EngineConfig)> {
    let changed = |(name, change): &Constant, factor: f64| {
        let mut engine = engine.clone();
        change(&mut engine, factor);
        (*name, factor, engine)
    };
    let all = constants(&engine.timing).iter().flat_map(|constant| FACTORS.map(|factor| changed(constant, factor)));
    all.filter(|(_, _, other)| other != engine).collect()
}

fn constants(timing: &Timing) -> &'static [Constant] {
    match timing {
        Timing::Roofline(_) => &[
            ("mfu", |engine, factor| with_roofline(engine, |roofline| roofline.mfu *= factor)),
            ("mbu", |engine, factor| with_roofline(engine, |roofline| roofline.mbu *= factor)),
            ("overhead", |engine, factor| with_roofline(engine, |roofline| roofline.overhead.0 *= factor)),
            ("all_reduce", |engine, factor| with_roofline(engine, |roofline| roofline.all_reduce.0 *= factor)),
        ],
        Timing::PerToken(_) => &[
            ("prefill", |engine, factor| with_per_token(engine, |constants| constants.prefill.0 *= factor)),
            ("decode", |engine, factor| with_per_token(engine, |constants| constants.decode.0 *= factor)),
            ("overhead", |engine, factor| with_per_token(engine, |constants| constants.overhead.0 *= factor)),
            ("time_factor", |engine, factor| with_per_token(engine, |constants| constants.time_factor *= factor)),
        ],
        Timing::Linear { .. } => &[
            ("computed", |engine, factor| with_linear(engine, |computed, _| computed.0 *= factor)),
            ("cached", |engine, factor| with_linear(engine, |_, cached| cached.0 *= factor)),
        ],
        // Its constants were fitted together: one of them alone means nothing.
        Timing::Polynomial => &[("step", |engine, factor| engine.slowness *= factor)],
    }
}

fn with_roofline(engine: &mut EngineConfig, change: impl FnOnce(&mut warmpath_simulator::Roofline)) {
    if let Timing::Roofline(roofline) = &mut engine.timing {
        change(roofline);
    }
}

fn with_per_token(engine: &mut EngineConfig, change: impl FnOnce(&mut warmpath_simulator::timing::PerToken)) {
    if let Timing::PerToken(constants) = &mut engine.timing {
        change(constants);
    }
}

fn with_linear(engine: &mut EngineConfig, change: impl FnOnce(&mut Ms, &mut Ms)) {
    if let Timing::Linear { computed, cached } = &mut engine.timing {
        change(computed, cached);
    }
}

/// The start and what was found, on the requests that were held back, in each of these worlds, each of which is another draw.
///
/// # Errors
/// A fleet that makes no sense.
pub(super) fn judge(bench: &mut Bench<'_>, plan: &Plan, points: &[Point; 2]) -> Result<Vec<World>, ScenarioError> {
    let [start, found] = points;
    let engines = plan.cells.first().map(|cell| worlds(&cell.engine)).unwrap_or_default();
    if start == found {
        return Ok(Vec::new());
    }
    let mut judged = Vec::new();
    for ((constant, factor, engine), draw) in engines.into_iter().zip(0..) {
        let cell = |cell: &Scenario| drawn(&Scenario { engine: engine.clone(), ..cell.clone() }, draw);
        let cells: Vec<Scenario> = plan.cells.iter().map(cell).collect();
        let figures = bench.simulate(Stretch::HeldBack, points, &cells)?;
        let [start, found] = [0, 1].map(|place| Figures::over(&figures[place]));
        let change = plan.aim.change(&start, &found);
        judged.push(World { constant: constant.to_owned(), factor, start, found, change });
    }
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(timing: &str) -> Vec<(&'static str, f64)> {
        let engine = EngineConfig { timing: timing.parse().unwrap(), ..EngineConfig::default() };
        let worlds = worlds(&engine);
        assert!(worlds.iter().all(|(_, _, other)| *other != engine), "{timing}");
        worlds.into_iter().map(|(name, factor, _)| (name, factor)).collect()
    }

    #[test]
    fn every_constant_is_once_smaller_and_once_larger() {
        let expected = [("mfu", 0.7), ("mfu", 1.3), ("mbu", 0.7), ("mbu", 1.3), ("overhead", 0.7), ("overhead", 1.3)];
        assert_eq!(names("roofline:8b-h100"), expected);
        assert_eq!(names("polynomial"), [("step", 0.7), ("step", 1.3)]);
        let each = [("computed", 0.7), ("computed", 1.3), ("cached", 0.7), ("cached", 1.3)];
        assert_eq!(names("linear:0.1,0.01"), each);
        assert_eq!(names("per_token")[6..], [("time_factor", 0.7), ("time_factor", 1.3)]);
        assert_eq!(names("roofline:70b-h100x4")[6..], [("all_reduce", 0.7), ("all_reduce", 1.3)]);
    }

    #[test]
    fn a_constant_of_zero_makes_no_other_world() {
        assert_eq!(names("linear:qwen3-coder"), [("computed", 0.7), ("computed", 1.3)]);
        assert_eq!(names("linear:0,0"), []);
    }
}
