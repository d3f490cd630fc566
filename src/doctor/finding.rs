//! What is examined, and what came of it.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::{Map, Value};

/// Something that must hold for a worker to be routed to by what its cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// It answers its health check.
    Reachable,
    /// It serves the model under the names that clients send.
    Model,
    /// Which engine it is, and whether that version tells what its cache holds.
    Version,
    /// Its blocks have as many tokens as the configuration says.
    BlockSize,
    /// What it caches arrives here.
    Events,
    /// Texts become the same token ids there and here.
    Tokens,
    /// What was missed can be had again.
    Replay,
    /// What the router would predict is what the engine reports.
    Prediction,
}

impl Check {
    /// Every check, in the order in which they are told.
    pub const ALL: [Self; 8] = [
        Self::Reachable,
        Self::Model,
        Self::Version,
        Self::BlockSize,
        Self::Events,
        Self::Tokens,
        Self::Replay,
        Self::Prediction,
    ];

    /// Its name on the command line, in tables and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reachable => "reachable",
            Self::Model => "model",
            Self::Version => "version",
            Self::BlockSize => "block_size",
            Self::Events => "events",
            Self::Tokens => "tokens",
            Self::Replay => "replay",
            Self::Prediction => "prediction",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Check {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::as_str).join(", ");
        let check = Self::ALL.into_iter().find(|check| check.as_str() == text);
        check.ok_or_else(|| format!("no such check (known: {})", known()))
    }
}

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It holds.
    Ok,
    /// It does not.
    Failed,
    /// Nobody knows: it could not be made.
    Skipped,
}

/// What came of one check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Which.
    pub check: Check,
    /// The data-parallel rank that it is about, where the worker has several and they were examined one by one.
    pub rank: Option<u32>,
    /// How it went.
    pub verdict: Verdict,
    /// What was found, or why it could not be examined.
    pub finding: String,
    /// What to do about it.
    pub remedy: Option<String>,
    /// The figures behind it, by name.
    pub facts: Map<String, Value>,
}

impl Finding {
    /// It holds.
    pub fn ok(check: Check, finding: impl Into<String>) -> Self {
        Self::new(check, Verdict::Ok, finding.into(), None)
    }

    /// It does not; `remedy` says what to do.
    pub fn failed(check: Check, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(check, Verdict::Failed, finding.into(), Some(remedy.into()))
    }

    /// It could not be made, and why.
    pub fn skipped(check: Check, why: impl Into<String>) -> Self {
        Self::new(check, Verdict::Skipped, why.into(), None)
    }

    fn new(check: Check, verdict: Verdict, finding: String, remedy: Option<String>) -> Self {
        Self { check, rank: None, verdict, finding, remedy, facts: Map::new() }
    }

    /// With what would make the check possible.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// With a figure.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(name.to_owned(), value.into());
        self
    }

    /// Whether the check failed.
    pub fn has_failed(&self) -> bool {
        self.verdict == Verdict::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_read_by_the_name_that_it_is_told_by() {
        for check in Check::ALL {
            assert_eq!(check.to_string().parse(), Ok(check));
            assert_eq!(serde_json::to_value(check).unwrap(), check.as_str());
        }
        let known = "no such check (known: reachable, model, version, block_size, events, tokens, replay, prediction)";
        assert_eq!("block size".parse::<Check>(), Err(known.to_owned()));
    }
}
