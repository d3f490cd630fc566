//! What a cost is made of, told only to who asks.

use std::num::NonZeroU32;

/// What a term counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A share of a whole, weighted.
    Share,
    /// Tokens.
    Tokens,
    /// Blocks, weighted.
    Blocks,
    /// Requests.
    Requests,
    /// Time.
    Milliseconds,
    /// Places from a beginning, on a ring or in a round.
    Steps,
    /// What puts a candidate behind all whom a rule names: 0, or more than all else together.
    Rule,
}

impl Unit {
    /// Its name, for people and machines.
    pub fn label(self) -> &'static str {
        match self {
            Unit::Share => "share",
            Unit::Tokens => "tokens",
            Unit::Blocks => "blocks",
            Unit::Requests => "requests",
            Unit::Milliseconds => "ms",
            Unit::Steps => "steps",
            Unit::Rule => "rule",
        }
    }
}

/// How a term enters the cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Joins {
    /// It is added.
    Adds,
    /// The sum of all that are added is multiplied by it.
    Multiplies,
    /// It is added to the product.
    AddsLast,
}

impl Joins {
    /// Its name, for people and machines.
    pub fn label(self) -> &'static str {
        match self {
            Joins::Adds => "adds",
            Joins::Multiplies => "multiplies",
            Joins::AddsLast => "adds_last",
        }
    }
}

/// One term of a candidate's cost, weights included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// What it stands for.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// How much.
    pub value: f64,
    /// How it enters the cost.
    pub joins: Joins,
}

impl Term {
    pub(crate) const fn adds(name: &'static str, unit: Unit, value: f64) -> Self {
        // What is taken off may be nothing: that is 0, not −0, to who reads it.
        Self { name, unit, value: value + 0.0, joins: Joins::Adds }
    }

    pub(crate) const fn multiplies(name: &'static str, unit: Unit, value: f64) -> Self {
        Self { name, unit, value, joins: Joins::Multiplies }
    }

    pub(crate) const fn adds_last(name: &'static str, unit: Unit, value: f64) -> Self {
        Self { joins: Joins::AddsLast, ..Self::adds(name, unit, value) }
    }
}

/// The cost that these terms make: the sum of what adds, times all that multiplies, and what is added last.
pub fn combined(terms: &[Term]) -> f64 {
    let of = |joins| terms.iter().filter(move |term| term.joins == joins).map(|term| term.value);
    of(Joins::Adds).sum::<f64>() * of(Joins::Multiplies).product::<f64>() + of(Joins::AddsLast).sum::<f64>()
}

/// What a policy looks at and what costs something to find out: done only where somebody asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// [`Candidate::added_blocks`](super::Candidate::added_blocks).
    pub added_blocks: bool,
    /// [`Shape::opening`](crate::shape::Shape::opening), of so many characters where the text is known.
    pub opening: Option<NonZeroU32>,
    /// [`Shape::fork`](crate::shape::Shape::fork).
    pub fork: bool,
}

impl Needs {
    /// What either needs.
    pub fn or(self, other: Needs) -> Needs {
        Needs {
            added_blocks: self.added_blocks || other.added_blocks,
            opening: self.opening.or(other.opening),
            fork: self.fork || other.fork,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_never_less_than_nothing() {
        assert!(Term::adds("copy", Unit::Milliseconds, -0.0).value.is_sign_positive());
    }
}
