//! What a search came to: as JSON, as a table for people, and as a fragment of a configuration.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;
use warmpath_simulator::fleet::Scenario;

use super::figures::{Aim, Figures, Limits};
use super::verdict::Verdict;

/// All that there is to show. Equal plans on equal traces give equal outcomes but for `wall_s`.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The policy.
    pub policy: String,
    /// What was to be reached.
    pub aim: Aim,
    /// What an answer must keep to count as good.
    pub limits: Limits,
    /// Seed of the search.
    pub seed: u64,
    /// Requests that the search saw and that count.
    pub tuned_requests: usize,
    /// Requests that were held back.
    pub held_back_requests: usize,
    /// Fleets and loads.
    pub cells: Vec<Cell>,
    /// Different choices of weights that were measured.
    pub points: usize,
    /// Runs of the simulator that this took.
    pub simulations: usize,
    /// Whether what was found is better on what was held back.
    pub verdict: Verdict,
    /// What is different on the tuned part: of times a part of what they were, of good answers in shares of all.
    pub change_tuned: f64,
    /// The same on what was held back, over all draws of it.
    pub change_held_back: f64,
    /// The same in each draw.
    pub changes_held_back: Vec<f64>,
    /// The standard error of the change over all draws, by how they differ; of times by their logarithms.
    pub error_held_back: f64,
    /// The weights of the configuration that the search began with.
    pub start: Contender,
    /// The best on the tuned part.
    pub found: Contender,
    /// What nothing beats in mean and p99 TTFT and mean ITL on the tuned part, by mean TTFT.
    pub front: Vec<FrontPoint>,
    /// Everything that was measured on all of the tuned part, in the order of the search; the first is the start.
    pub tried: Vec<Figures>,
    /// Start and best on what was held back, with other timing constants; none where both are the same.
    pub worlds: Vec<World>,
    /// The weights to use, as they stand in a configuration: those found where they are better on what was held back by more
    /// than chance, else those that the search began with.
    pub yaml: String,
    /// Seconds on the clock.
    pub wall_s: f64,
}

/// One fleet at one load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Workers.
    pub workers: u16,
    /// How much faster than recorded requests arrive.
    pub speed: f64,
}

/// One choice of weights, on both parts of the trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contender {
    /// By name.
    pub weights: BTreeMap<String, Value>,
    /// On the part that the search saw.
    pub tuned: Share,
    /// On the part that was held back.
    pub held_back: Share,
}

/// Figures on one part of the trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Over all fleets and loads.
    pub all: Figures,
    /// Of each, in the order of the outcome's cells.
    pub cells: Vec<Figures>,
}

/// A point of the front.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FrontPoint {
    /// By name.
    pub weights: BTreeMap<String, Value>,
    /// On the tuned part, over all fleets and loads.
    pub tuned: Figures,
}

/// Start and best where one timing constant is another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct World {
    /// The constant.
    pub constant: String,
    /// What it is multiplied by.
    pub factor: f64,
    /// The start's figures.
    pub start: Figures,
    /// Those of the best.
    pub found: Figures,
    /// What is different by the aim.
    pub change: f64,
}

impl Cell {
    /// Of this scenario.
    pub fn of(scenario: &Scenario) -> Self {
        Self { workers: scenario.workers, speed: scenario.speed }
    }

    /// In words.
    pub fn name(&self) -> String {
        format!("{} × {}", self.workers, self.speed)
    }
}

impl Share {
    /// Of these fleets and loads.
    pub fn of(cells: &[Figures]) -> Self {
        Self { all: Figures::over(cells), cells: cells.to_vec() }
    }
}

impl World {
    /// In words.
    pub fn name(&self) -> String {
        format!("{} {:+.0} %", self.constant, (self.factor - 1.0) * 100.0)
    }
}

/// One figure in words, with how it is written.
pub(super) type Shown = (&'static str, fn(&Figures) -> String);

/// What tables show of figures.
pub(super) const SHOWN: [Shown; 7] = [
    ("TTFT mean", |figures| ms(figures.ttft_mean_ms)),
    ("TTFT p99", |figures| ms(figures.ttft_p99_ms)),
    ("ITL mean", |figures| format!("{:.2} ms", figures.itl_mean_ms)),
    ("E2E mean", |figures| ms(figures.e2e_mean_ms)),
    ("hit rate", |figures| percent(figures.hit_rate)),
    ("good answers", |figures| percent(figures.good)),
    ("completed", |figures| percent(figures.completed)),
];

fn ms(ms: f64) -> String {
    format!("{ms:.1} ms")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

impl Outcome {
    /// A change by the aim, in words: of times in percent, of good answers in percentage points.
    pub fn change(&self, change: f64) -> String {
        let unit = if self.aim == Aim::Goodput { "points" } else { "%" };
        format!("{:+.1} {unit}", change * 100.0)
    }

    /// What the held-back part says, and what other timing constants do where the weights found are to be used.
    pub fn said(&self) -> String {
        let (survived, all) = (self.survived(), self.worlds.len());
        if self.verdict != Verdict::Better || survived == all {
            return self.judged();
        }
        format!("{} With other timing constants they are better in {survived} of {all} cases only.", self.judged())
    }

    /// Between what the draws of what was held back lie, in words.
    pub(super) fn draws(&self) -> String {
        let changes = || self.changes_held_back.iter().copied();
        let (least, most) = (changes().fold(f64::INFINITY, f64::min), changes().fold(f64::NEG_INFINITY, f64::max));
        let count = self.changes_held_back.len();
        format!("in {count} draws from {} to {}", self.change(least), self.change(most))
    }

    fn judged(&self) -> String {
        let (tuned, held_back) = (self.change(self.change_tuned), self.change(self.change_held_back));
        let (aim, draws) = (self.aim, self.draws());
        match self.verdict {
            Verdict::Better => format!(
                "By {aim} the weights found are {held_back} from the start on what was held back ({draws}), {tuned} where \
                 they were tuned."
            ),
            Verdict::Chance => format!(
                "By {aim} the weights found are {held_back} from the start on what was held back ({draws}), {tuned} where \
                 they were tuned: no more than chance alone changes. Keep the weights that you have; they are the ones below."
            ),
            Verdict::NotConfirmed => format!(
                "The weights found do NOT beat the start on what was held back: {held_back} there ({draws}), {tuned} where \
                 they were tuned. Keep the weights that you have; they are the ones below."
            ),
            Verdict::NothingFound => {
                "Nothing that was tried beats the weights that the search began with. Keep them; they are the ones below."
                    .to_owned()
            }
        }
    }

    /// The least share of the requests that was answered whole, with the weights of the start or those that were found.
    pub fn completed(&self) -> f64 {
        let shares = [&self.start, &self.found].map(|one| [one.tuned.all.completed, one.held_back.all.completed]);
        shares.as_flattened().iter().copied().fold(1.0, f64::min)
    }

    /// How many other timing constants leave the best better than the start.
    pub fn survived(&self) -> usize {
        let is_better = |world: &&World| self.aim.score(&world.found) < self.aim.score(&world.start);
        self.worlds.iter().filter(is_better).count()
    }

    /// A file with the weights to use, and above them where they come from.
    pub fn file(&self, trace: &str) -> String {
        let mut text = format!(
            "# warmpath tune: {} for {} on {trace}, {} choices of weights.\n",
            self.policy, self.aim, self.points
        );
        for line in wrapped(&self.said(), 118) {
            text += &format!("# {line}\n");
        }
        text + &self.yaml
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let cells: Vec<String> = self.cells.iter().map(Cell::name).collect();
        let _ = writeln!(
            text,
            "{} for {}: {} choices of weights, {} simulations; workers × speed: {}",
            self.policy,
            self.aim,
            self.points,
            self.simulations,
            cells.join(", ")
        );
        let (tuned, held_back) = (self.tuned_requests, self.held_back_requests);
        let heads = [format!("tuned on, {tuned} requests"), format!("held back, {held_back} requests")];
        let _ = writeln!(text, "\n{:<24}{:>28}{:>32}", "", heads[0], heads[1]);
        let columns = [&self.start.tuned, &self.found.tuned, &self.start.held_back, &self.found.held_back];
        let mut line = |name: &str, cells: [String; 4]| {
            let [a, b, c, d] = cells;
            let _ = writeln!(text, "{name:<24}{a:>14}{b:>14}{c:>18}{d:>14}");
        };
        line("", ["start", "found", "start", "found"].map(str::to_owned));
        for (name, show) in SHOWN {
            line(name, columns.map(|share| show(&share.all)));
        }
        let of_aim = |figures: &Figures| match self.aim {
            Aim::Goodput => percent(figures.good),
            Aim::MeanTtft | Aim::P99Ttft => ms(self.aim.score(figures)),
        };
        for (place, cell) in self.cells.iter().enumerate().filter(|_| self.cells.len() > 1) {
            line(&format!("  {} at {}", self.aim, cell.name()), columns.map(|share| of_aim(&share.cells[place])));
        }
        let none = String::new;
        line("change", [none(), self.change(self.change_tuned), none(), self.change(self.change_held_back)]);
        self.table_of_weights(&mut text);
        self.table_of_worlds(&mut text);
        let _ = writeln!(text, "\n{}\n\n{}", self.said(), self.yaml.trim_end());
        text
    }

    fn table_of_weights(&self, text: &mut String) {
        let _ = writeln!(text, "\n{:<32}{:>14}{:>14}", "weights", "start", "found");
        for (name, start) in &self.start.weights {
            let found = self.found.weights.get(name).map(Value::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {name:<30}{:>14}{found:>14}", start.to_string());
        }
        let head = "what nothing beats in mean TTFT, p99 TTFT and ITL, on the tuned part";
        let _ = writeln!(text, "\n{head}");
        for point in &self.front {
            let weights: Vec<String> = point.weights.iter().map(|(name, value)| format!("{name} {value}")).collect();
            let Figures { ttft_mean_ms, ttft_p99_ms, itl_mean_ms, hit_rate, .. } = point.tuned;
            let _ = writeln!(
                text,
                "  {ttft_mean_ms:>9.1} ms {ttft_p99_ms:>10.1} ms {itl_mean_ms:>8.2} ms  hit {:>7}  {}",
                percent(hit_rate),
                weights.join("  ")
            );
        }
    }

    fn table_of_worlds(&self, text: &mut String) {
        if self.worlds.is_empty() {
            return;
        }
        let (survived, all) = (self.survived(), self.worlds.len());
        let _ = writeln!(text, "\nheld back, with other timing constants: better in {survived} of {all}");
        for world in &self.worlds {
            let score = |figures: &Figures| match self.aim {
                Aim::Goodput => percent(figures.good),
                Aim::MeanTtft | Aim::P99Ttft => ms(self.aim.score(figures)),
            };
            let (name, start, found) = (world.name(), score(&world.start), score(&world.found));
            let _ = writeln!(text, "  {name:<22}{start:>14}{found:>14}{:>14}", self.change(world.change));
        }
    }
}

/// Lines of at most `width` characters, broken at spaces.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            let space = if line.is_empty() { "" } else { " " };
            *line += &format!("{space}{word}");
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(verdict: Verdict, change_held_back: f64) -> Outcome {
        let figures = Figures { ttft_mean_ms: 100.0, ttft_p99_ms: 900.0, itl_mean_ms: 9.0, ..Figures::default() };
        let share = Share::of(&[figures, figures]);
        let weights = BTreeMap::from([("kv.alpha".to_owned(), Value::from(0.25))]);
        let contender = Contender { weights: weights.clone(), tuned: share.clone(), held_back: share };
        let world = |change, found: f64| World {
            constant: "mfu".to_owned(),
            factor: 0.7,
            start: figures,
            found: Figures { ttft_mean_ms: found, ..figures },
            change,
        };
        Outcome {
            policy: "kv".to_owned(),
            aim: Aim::MeanTtft,
            limits: Limits { ttft_ms: 1.0, itl_ms: 1.0 },
            seed: 1,
            tuned_requests: 70,
            held_back_requests: 30,
            cells: vec![Cell { workers: 4, speed: 2.0 }, Cell { workers: 8, speed: 0.5 }],
            points: 9,
            simulations: 20,
            verdict,
            change_tuned: -0.2,
            change_held_back,
            changes_held_back: vec![change_held_back - 0.02, change_held_back + 0.03],
            error_held_back: 0.02,
            start: contender.clone(),
            found: contender,
            front: vec![FrontPoint { weights, tuned: figures }],
            tried: vec![figures],
            worlds: vec![world(-0.1, 90.0), world(0.1, 110.0)],
            yaml: "routing:\n  policy: kv\n".to_owned(),
            wall_s: 1.0,
        }
    }

    #[test]
    fn a_gain_that_is_not_confirmed_is_called_none() {
        let said = |verdict, change| outcome(verdict, change).said();
        let better = said(Verdict::Better, -0.1);
        assert!(
            better
                .contains("-10.0 % from the start on what was held back (in 2 draws from -12.0 % to -7.0 %), -20.0 %")
        );
        assert!(better.ends_with("With other timing constants they are better in 1 of 2 cases only."));
        let chance = said(Verdict::Chance, -0.01);
        assert!(
            chance.contains("(in 2 draws from -3.0 % to +2.0 %), -20.0 % where they were tuned: no more than chance")
        );
        assert!(chance.ends_with("Keep the weights that you have; they are the ones below."), "{chance}");
        assert!(
            said(Verdict::NotConfirmed, 0.05)
                .contains("do NOT beat the start on what was held back: +5.0 % there (in 2")
        );
        assert!(said(Verdict::NothingFound, 0.0).starts_with("Nothing that was tried beats"));
    }

    #[test]
    fn the_table_shows_both_parts_side_by_side_and_every_fleet() {
        let table = outcome(Verdict::Better, -0.1).table();
        assert!(table.contains("tuned on, 70 requests") && table.contains("held back, 30 requests"), "{table}");
        assert!(table.contains("  mean-ttft at 4 × 2") && table.contains("  mean-ttft at 8 × 0.5"), "{table}");
        assert!(table.contains("better in 1 of 2") && table.contains("mfu -30 %"), "{table}");
        assert!(table.contains("kv.alpha") && table.ends_with("routing:\n  policy: kv\n"), "{table}");
    }

    #[test]
    fn a_file_says_where_its_weights_come_from_in_short_lines() {
        let file = outcome(Verdict::NotConfirmed, 0.05).file("trace.jsonl");
        assert!(
            file.starts_with("# warmpath tune: kv for mean-ttft on trace.jsonl, 9 choices of weights.\n# The weights")
        );
        assert!(file.lines().all(|line| line.len() <= 120) && file.ends_with("routing:\n  policy: kv\n"), "{file}");
    }
}
