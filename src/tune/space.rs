//! What can be tuned of a policy: its weights, between which bounds and on which scale each is looked for, and how a choice
//! of them becomes a configuration.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use serde_json::Value;
use warmpath_core::policy::PolicyName;

use crate::config::Routing;

/// The part of a scale with a zero that means zero.
const ZERO_PART: f64 = 0.1;

/// One weight, as the configuration names it, and where it is looked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knob {
    /// The section below `routing`.
    pub section: &'static str,
    /// The key in it.
    pub key: &'static str,
    /// Where the search begins …
    low: f64,
    /// … and ends. A default may lie outside.
    high: f64,
    scale: Scale,
}

/// How values lie between the bounds of a knob.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    /// Evenly.
    Linear,
    /// By their logarithms.
    Log,
    /// The same, and 0 as well.
    LogOrZero,
    /// Whole numbers, by their logarithms.
    Count,
}

const fn knob(section: &'static str, key: &'static str, (low, high): (f64, f64), scale: Scale) -> Knob {
    Knob { section, key, low, high, scale }
}

const KV: &[Knob] = &[
    knob("kv", "alpha", (0.0, 1.0), Scale::Linear),
    knob("kv", "alpha_imbalanced", (0.0, 1.0), Scale::Linear),
    knob("kv", "gamma", (0.003, 10.0), Scale::LogOrZero),
    knob("kv", "imbalance", (0.01, 3.0), Scale::LogOrZero),
];
// Only the ratios of these three matter, so one of them stays as it is.
const LOGIT: &[Knob] =
    &[knob("logit", "usage", (0.02, 50.0), Scale::LogOrZero), knob("logit", "waiting", (0.02, 50.0), Scale::LogOrZero)];
const BLOCKS: &[Knob] = &[
    knob("blocks", "prefill_load_scale", (0.1, 100.0), Scale::Log),
    knob("blocks", "active_request_weight", (0.05, 50.0), Scale::LogOrZero),
    knob("blocks", "overlap_decay", (0.01, 10.0), Scale::LogOrZero),
    knob("blocks", "temperature", (0.05, 50.0), Scale::LogOrZero),
];
const AFFINITY: &[Knob] = &[
    knob("affinity", "match_min", (0.05, 0.95), Scale::Linear),
    knob("affinity", "release_tokens", (1_000.0, 2_000_000.0), Scale::Count),
];
// The key's length is counted in characters of a text, and a trace has none.
const CHWBL: &[Knob] = &[
    knob("chwbl", "replication", (8.0, 1_024.0), Scale::Count),
    knob("chwbl", "load_factor", (1.0, 8.0), Scale::Log),
    knob("chwbl", "load_min", (1.0, 64.0), Scale::Count),
];
const PREBLE: &[Knob] = &[
    knob("preble", "prefill_ms", (0.003, 3.0), Scale::Log),
    knob("preble", "gap_ms", (3.0, 1_000.0), Scale::Log),
    knob("preble", "imbalance", (1.0, 20.0), Scale::Log),
];
const AIBRIX: &[Knob] = &[knob("aibrix", "deviations", (0.0, 4.0), Scale::Linear)];
const APPROX_TREE: &[Knob] = &[
    knob("approx_tree", "cache_threshold", (0.0, 1.0), Scale::Linear),
    knob("approx_tree", "balance_abs_threshold", (1.0, 512.0), Scale::Count),
    knob("approx_tree", "balance_rel_threshold", (1.0, 5.0), Scale::Log),
];
const APPROX_LRU: &[Knob] = &[
    knob("approx_lru", "queue", (0.02, 50.0), Scale::LogOrZero),
    knob("approx_lru", "usage", (0.02, 50.0), Scale::LogOrZero),
    knob("approx_lru", "queue_span", (1.0, 256.0), Scale::Count),
];
/// What a block in the host's memory is worth, where there is one.
const HOST: Knob = knob("tiers", "host", (0.0, 1.0), Scale::Linear);

/// A policy learns by itself what others are told, or has nothing to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the policy `{policy}` has no weights to tune (those with some: {})",
    tunables().map(PolicyName::as_str).collect::<Vec<_>>().join(", ")
)]
pub struct NothingToTune {
    policy: PolicyName,
}

/// Policies with weights.
fn tunables() -> impl Iterator<Item = PolicyName> {
    PolicyName::ALL.into_iter().filter(|policy| !knobs(*policy).is_empty())
}

/// The policy, if it has weights.
///
/// # Errors
/// It has none.
pub fn tunable(policy: PolicyName) -> Result<PolicyName, NothingToTune> {
    if knobs(policy).is_empty() { Err(NothingToTune { policy }) } else { Ok(policy) }
}

fn knobs(policy: PolicyName) -> &'static [Knob] {
    match policy {
        PolicyName::Kv => KV,
        PolicyName::Logit => LOGIT,
        PolicyName::Blocks => BLOCKS,
        PolicyName::Affinity => AFFINITY,
        PolicyName::Chwbl => CHWBL,
        PolicyName::Preble => PREBLE,
        PolicyName::Aibrix => AIBRIX,
        PolicyName::ApproxTree => APPROX_TREE,
        PolicyName::ApproxLru => APPROX_LRU,
        _ => &[],
    }
}

/// A choice of all weights of a space, in the order of its knobs. Values have three digits that count, but for those of the
/// configuration that the search begins with, so that equal choices are equal, and a file is short.
#[derive(Clone, Debug, PartialEq)]
pub struct Point(Vec<f64>);

impl Eq for Point {}

impl Hash for Point {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.iter().for_each(|value| value.to_bits().hash(state));
    }
}

impl PartialOrd for Point {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Point {
    fn cmp(&self, other: &Self) -> Ordering {
        let unequal = self.0.iter().zip(&other.0).map(|(one, two)| one.total_cmp(two)).find(|order| order.is_ne());
        unequal.unwrap_or_else(|| self.0.len().cmp(&other.0.len()))
    }
}

/// The weights of one policy.
#[derive(Clone, Debug)]
pub struct Space {
    policy: PolicyName,
    knobs: Vec<Knob>,
    routing: Routing,
    /// The same as a document.
    document: Value,
}

impl Space {
    /// The weights of `policy`, all else as in `routing`; with what blocks in the hosts' memory are worth, where `has_host`.
    ///
    /// # Errors
    /// [`NothingToTune`].
    pub fn new(policy: PolicyName, routing: &Routing, has_host: bool) -> Result<Self, NothingToTune> {
        let mut knobs = knobs(policy).to_vec();
        if knobs.is_empty() {
            return Err(NothingToTune { policy });
        }
        knobs.extend(has_host.then_some(HOST));
        let routing = Routing { policy, ..routing.clone() };
        let document = serde_json::to_value(&routing).unwrap_or_default();
        Ok(Self { policy, knobs, routing, document })
    }

    /// How many weights there are.
    pub fn dimensions(&self) -> usize {
        self.knobs.len()
    }

    /// What the configuration says, whether it lies between the bounds or not.
    pub fn start(&self) -> Point {
        let value = |knob: &Knob| self.document[knob.section][knob.key].as_f64().unwrap_or(knob.low);
        Point(self.knobs.iter().map(value).collect())
    }

    /// The point at these places, each from 0 at the beginning of a knob to 1 at its end.
    pub fn at(&self, places: &[f64]) -> Point {
        Point(self.knobs.iter().zip(places).map(|(knob, place)| knob.at(place.clamp(0.0, 1.0))).collect())
    }

    /// Where a point lies: what [`at`](Self::at) makes it of.
    pub fn places(&self, point: &Point) -> Vec<f64> {
        self.knobs.iter().zip(&point.0).map(|(knob, value)| knob.place(*value)).collect()
    }

    /// The configuration with the weights of a point.
    pub fn routing(&self, point: &Point) -> Routing {
        let mut document = self.document.clone();
        for (knob, value) in self.knobs.iter().zip(&point.0) {
            document[knob.section][knob.key] = knob.number(*value);
        }
        serde_json::from_value(document).unwrap_or_else(|_| self.routing.clone())
    }

    /// The weights of a point by their names below `routing`.
    pub fn named(&self, point: &Point) -> BTreeMap<String, Value> {
        let name = |knob: &Knob| format!("{}.{}", knob.section, knob.key);
        self.knobs.iter().zip(&point.0).map(|(knob, value)| (name(knob), knob.number(*value))).collect()
    }

    /// The policy and the weights of a point as they stand in a configuration.
    pub fn yaml(&self, point: &Point) -> String {
        let mut text = format!("routing:\n  policy: {}\n", self.policy);
        let mut section = "";
        for (knob, value) in self.knobs.iter().zip(&point.0) {
            if knob.section != section {
                text += &format!("  {}:\n", knob.section);
                section = knob.section;
            }
            text += &format!("    {}: {}\n", knob.key, knob.number(*value));
        }
        text
    }
}

impl Knob {
    fn at(&self, place: f64) -> f64 {
        let along = |place: f64| self.low * (self.high / self.low).powf(place);
        match self.scale {
            Scale::Linear => short(self.low + place * (self.high - self.low)),
            Scale::Log => short(along(place)),
            Scale::LogOrZero if place < ZERO_PART => 0.0,
            Scale::LogOrZero => short(along((place - ZERO_PART) / (1.0 - ZERO_PART))),
            Scale::Count => short(along(place)).round(),
        }
    }

    fn place(&self, value: f64) -> f64 {
        let along = || (value / self.low).ln() / (self.high / self.low).ln();
        let place = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log | Scale::Count if value > 0.0 => along(),
            Scale::LogOrZero if value > 0.0 => ZERO_PART + (1.0 - ZERO_PART) * along().max(0.0),
            Scale::Log | Scale::Count | Scale::LogOrZero => 0.0,
        };
        place.clamp(0.0, 1.0)
    }

    /// A value as a configuration has it.
    fn number(&self, value: f64) -> Value {
        match self.scale {
            Scale::Count => format!("{value:.0}").parse::<u64>().map_or(Value::Null, Value::from),
            Scale::Linear | Scale::Log | Scale::LogOrZero => Value::from(value),
        }
    }
}

/// The nearest number with three digits that count.
fn short(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn space(policy: PolicyName) -> Space {
        Space::new(policy, &Config::default().routing, true).unwrap()
    }

    #[test]
    fn the_search_begins_with_what_the_configuration_says() {
        let defaults = Config::default().routing;
        for policy in tunables() {
            let space = space(policy);
            assert_eq!(space.routing(&space.start()), Routing { policy, ..defaults.clone() }, "{policy}");
        }
        let changed: Routing = serde_json::from_value(serde_json::json!({ "kv": { "alpha": 0.123456 } })).unwrap();
        let space = Space::new(PolicyName::Kv, &changed, false).unwrap();
        assert_eq!(space.start(), Point(vec![0.123456, 0.7, 0.1, 0.1]));
    }

    #[test]
    fn every_corner_and_the_middle_is_a_configuration_of_its_own() {
        for policy in tunables() {
            let space = space(policy);
            let mut seen = Vec::new();
            for place in [0.0, 0.5, 1.0] {
                let point = space.at(&vec![place; space.dimensions()]);
                let routing = space.routing(&point);
                let there = serde_json::to_value(&routing).unwrap();
                for (name, value) in space.named(&point) {
                    let (section, key) = name.split_once('.').unwrap();
                    assert_eq!(there[section][key].as_f64(), value.as_f64(), "{policy}: {name}");
                }
                assert!(!seen.contains(&routing), "{policy} at {place}");
                seen.push(routing);
            }
        }
    }

    #[test]
    fn places_lead_back_to_their_point() {
        for policy in tunables() {
            let space = space(policy);
            for step in 0..=20 {
                let point = space.at(&vec![f64::from(step) / 20.0; space.dimensions()]);
                assert_eq!(space.at(&space.places(&point)), point, "{policy} at {step}");
            }
        }
    }

    #[test]
    fn values_lie_between_their_bounds_with_three_digits_that_count() {
        let space = space(PolicyName::Kv);
        assert_eq!(space.at(&[0.0, 1.0, 0.05, 0.1, 0.123_45]), Point(vec![0.0, 1.0, 0.0, 0.01, 0.123]));
        assert_eq!(space.at(&[-4.0, 7.0, 0.55, 1.0, 0.0]), Point(vec![0.0, 1.0, 0.173, 3.0, 0.0]));
        let space = Space::new(PolicyName::Affinity, &Config::default().routing, false).unwrap();
        assert_eq!(space.at(&[0.5, 0.5]), Point(vec![0.5, 44_700.0]));
    }

    #[test]
    fn a_point_is_written_as_a_configuration_has_it() {
        let space = space(PolicyName::Affinity);
        let yaml = space.yaml(&space.at(&[0.5, 0.5, 0.25]));
        let expected = "routing:\n  policy: affinity\n  affinity:\n    match_min: 0.5\n    release_tokens: 44700\n  tiers:\n    host: 0.25\n";
        assert_eq!(yaml, expected);
    }

    #[test]
    fn what_has_no_weights_cannot_be_tuned() {
        let error = Space::new(PolicyName::RoundRobin, &Config::default().routing, true).unwrap_err().to_string();
        let with_some = "kv, logit, blocks, affinity, chwbl, preble, aibrix, approx_tree, approx_lru";
        assert_eq!(error, format!("the policy `round_robin` has no weights to tune (those with some: {with_some})"));
        for policy in PolicyName::ALL {
            let result = Space::new(policy, &Config::default().routing, false);
            assert_eq!(result.is_ok(), with_some.split(", ").any(|name| name == policy.as_str()), "{policy}");
        }
    }
}
