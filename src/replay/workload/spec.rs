//! How a workload is written: `SHAPE?key=value&key=value`, every key with a default.

use std::str::FromStr;

use super::{Order, Shape, Workload};

/// Requests of a workload.
const REQUESTS_MAX: u64 = 10_000_000;
/// Blocks of all prompts together.
const BLOCKS_MAX: u64 = 1 << 28;
/// Blocks of one prompt.
const PROMPT_MAX: u64 = 1 << 18;
/// The largest value of a key that counts.
const COUNT_MAX: u32 = 10_000_000;
/// Levels of a tree.
const DEPTH_MAX: u32 = 64;

/// Keys that every shape has.
const SHARED: [&str; 5] = ["block", "rate", "arrivals", "think", "output"];

/// The key of few-shot that is a word.
const ORDER: &str = "order";

/// Shapes, with the keys of their own and the defaults.
const SHAPES: [(&str, &[(&str, u32)]); 5] = [
    ("few-shot", &[("tasks", 20), ("requests", 50), ("system", 8), ("shots", 64), ("question", 8)]),
    ("self-consistency", &[("questions", 200), ("samples", 8), ("prompt", 64)]),
    ("tree-of-thought", &[("trees", 20), ("depth", 3), ("branching", 4), ("prompt", 32), ("thought", 8)]),
    ("multi-turn", &[("sessions", 100), ("turns", 6), ("system", 16), ("context", 0), ("user", 8), ("answer", 16)]),
    // Ten thousand tokens and more of own context, a few new ones a turn, for a long time.
    ("agent", &[("sessions", 8), ("turns", 60), ("system", 128), ("context", 1_024), ("user", 4), ("answer", 8)]),
];

/// The keys of a text, which are taken out one by one.
struct Keys<'a> {
    shape: &'a str,
    own: &'static [(&'static str, u32)],
    given: Vec<(&'a str, &'a str)>,
}

impl<'a> Keys<'a> {
    fn read(text: &'a str) -> Result<Self, String> {
        let (shape, rest) = text.split_once('?').unwrap_or((text, ""));
        let Some((_, own)) = SHAPES.iter().find(|(name, _)| *name == shape) else {
            let names = SHAPES.map(|(name, _)| name).join(", ");
            return Err(format!("no workload is called `{shape}` (known: {names})"));
        };
        let mut given: Vec<(&str, &str)> = Vec::new();
        for part in rest.split('&').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is no key=value"))?;
            let words: &[&str] = if shape == "few-shot" { &[ORDER] } else { &[] };
            let known = own.iter().map(|(key, _)| *key).chain(words.iter().copied()).chain(SHARED);
            if !known.clone().any(|known| known == key) {
                let known: Vec<_> = known.collect();
                return Err(format!("`{shape}` has no key `{key}` (known: {})", known.join(", ")));
            }
            if given.iter().any(|(other, _)| *other == key) {
                return Err(format!("`{key}` is given twice"));
            }
            given.push((key, value));
        }
        Ok(Self { shape, own, given })
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.given.iter().find(|(given, _)| *given == key).map(|(_, value)| *value)
    }

    /// One of these words, the first if it is not given.
    fn word<T: Copy>(&self, key: &str, words: [(&str, T); 2]) -> Result<T, String> {
        let [(first, usual), (second, _)] = words;
        let Some(text) = self.text(key) else { return Ok(usual) };
        let found = words.into_iter().find(|(word, _)| *word == text).map(|(_, meaning)| meaning);
        found.ok_or_else(|| format!("`{key}` must be {first} or {second}, got `{text}`"))
    }

    /// A whole number in `least..=most`.
    fn count(&self, key: &str, default: u32, least: u32, most: u32) -> Result<u32, String> {
        let Some(text) = self.text(key) else { return Ok(default) };
        let value = text.parse().ok().filter(|value| (least..=most).contains(value));
        value.ok_or_else(|| format!("`{key}` must be a whole number from {least} to {most}, got `{text}`"))
    }

    /// A key of the shape's own, at least `least`.
    fn own(&self, key: &str, least: u32) -> Result<u32, String> {
        let default = self.own.iter().find(|(own, _)| *own == key).map_or(0, |(_, default)| *default);
        self.count(key, default, least, COUNT_MAX)
    }

    /// A number above 0, or 0 where that is allowed.
    fn number(&self, key: &str, default: f64, may_be_0: bool) -> Result<f64, String> {
        let Some(text) = self.text(key) else { return Ok(default) };
        let value = text.parse().ok().filter(|value: &f64| (0.0..=1e6).contains(value) && (may_be_0 || *value >= 1e-6));
        value.ok_or_else(|| format!("`{key}` must be a number up to 1000000, got `{text}`"))
    }

    fn shape(&self) -> Result<Shape, String> {
        Ok(match self.shape {
            "few-shot" => Shape::FewShot {
                tasks: self.own("tasks", 1)?,
                requests: self.own("requests", 1)?,
                system: self.own("system", 0)?,
                shots: self.own("shots", 0)?,
                question: self.own("question", 0)?,
                order: self.word(ORDER, [("random", Order::Random), ("turn", Order::Turn)])?,
            },
            "self-consistency" => Shape::SelfConsistency {
                questions: self.own("questions", 1)?,
                samples: self.own("samples", 1)?,
                prompt: self.own("prompt", 1)?,
            },
            "tree-of-thought" => Shape::Tree {
                trees: self.own("trees", 1)?,
                depth: self.count("depth", 3, 0, DEPTH_MAX)?,
                branching: self.own("branching", 1)?,
                prompt: self.own("prompt", 1)?,
                thought: self.own("thought", 1)?,
            },
            _ => Shape::Dialogue {
                sessions: self.own("sessions", 1)?,
                turns: self.own("turns", 1)?,
                system: self.own("system", 0)?,
                context: self.own("context", 0)?,
                user: self.own("user", 1)?,
                answer: self.own("answer", 0)?,
            },
        })
    }
}

impl FromStr for Workload {
    type Err = String;

    /// Reads `SHAPE?key=value&…`. Shapes: `few-shot` (tasks, requests, system, shots, question, and `order`: requests come
    /// from tasks in `random` order, or from each in its `turn`), `self-consistency`
    /// (questions, samples, prompt), `tree-of-thought` (trees, depth, branching, prompt, thought), `multi-turn` and `agent`
    /// (sessions, turns, system, context, user, answer). Lengths are in blocks. For all: `block` (tokens, 16), `rate`
    /// (arrivals a second, 4), `arrivals` (poisson or fixed), `think` (seconds between turns, 10), `output` (tokens, 128).
    ///
    /// # Errors
    /// A shape or key that does not exist, a value out of its range, or more than fits into memory.
    fn from_str(text: &str) -> Result<Self, String> {
        let keys = Keys::read(text)?;
        let workload = Self {
            shape: keys.shape()?,
            block: keys.count("block", 16, 2, 65_536)?,
            rate: keys.number("rate", 4.0, false)?,
            is_poisson: keys.word("arrivals", [("poisson", true), ("fixed", false)])?,
            think_s: keys.number("think", 10.0, true)?,
            output: keys.count("output", 128, 1, COUNT_MAX)?,
        };
        let size = workload.shape.size();
        let tokens = size.longest.saturating_add(1).saturating_mul(u64::from(workload.block));
        if size.requests > REQUESTS_MAX || size.blocks > BLOCKS_MAX {
            return Err(format!(
                "{} requests of {} blocks are too many ({REQUESTS_MAX} and {BLOCKS_MAX} are allowed)",
                size.requests, size.blocks
            ));
        }
        if size.longest > PROMPT_MAX || tokens > u64::from(u32::MAX) {
            return Err(format!("a prompt of {} blocks is too long ({PROMPT_MAX} are allowed)", size.longest));
        }
        Ok(workload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_named() {
        for (text, message) in [
            (
                "chat",
                "no workload is called `chat` (known: few-shot, self-consistency, tree-of-thought, multi-turn, agent)",
            ),
            (
                "self-consistency?turns=2",
                "`self-consistency` has no key `turns` (known: questions, samples, prompt, block, rate, arrivals, think, output)",
            ),
            ("agent?turns", "`turns` is no key=value"),
            ("agent?turns=2&turns=3", "`turns` is given twice"),
            ("agent?turns=0", "`turns` must be a whole number from 1 to 10000000, got `0`"),
            ("agent?turns=-1", "`turns` must be a whole number from 1 to 10000000, got `-1`"),
            ("few-shot?block=1", "`block` must be a whole number from 2 to 65536, got `1`"),
            ("few-shot?rate=0", "`rate` must be a number up to 1000000, got `0`"),
            ("few-shot?rate=NaN", "`rate` must be a number up to 1000000, got `NaN`"),
            ("few-shot?order=best", "`order` must be random or turn, got `best`"),
            (
                "agent?order=turn",
                "`agent` has no key `order` (known: sessions, turns, system, context, user, answer, block, rate, arrivals, think, output)",
            ),
            ("few-shot?arrivals=burst", "`arrivals` must be poisson or fixed, got `burst`"),
            (
                "self-consistency?questions=10000000&samples=2",
                "20000000 requests of 1280000000 blocks are too many (10000000 and 268435456 are allowed)",
            ),
            (
                "self-consistency?questions=1&samples=1&prompt=300000",
                "a prompt of 300000 blocks is too long (262144 are allowed)",
            ),
        ] {
            assert_eq!(text.parse::<Workload>().unwrap_err(), message);
        }
        let wide = "tree-of-thought?depth=64&branching=10000000";
        assert!(wide.parse::<Workload>().unwrap_err().contains("too many"), "no overflow");
    }

    #[test]
    fn keys_may_come_in_any_order_and_all_have_defaults() {
        let one: Workload = "multi-turn?turns=3&sessions=9&think=0&rate=0.5".parse().unwrap();
        assert_eq!(one, "multi-turn?rate=0.5&think=0&sessions=9&turns=3".parse().unwrap());
        assert_eq!("agent".parse::<Workload>(), "agent?".parse());
    }
}
