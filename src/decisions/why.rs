//! Why, in a sentence.

use std::fmt::Write;

use warmpath_core::cost::Term;
use warmpath_core::cost::terms::{Joins, Unit};
use warmpath_core::policy::PolicyName;
use warmpath_core::scheduler::{Considered, DecidedBy};

/// Terms that are told of what made the difference.
const TERMS_MAX: usize = 3;

/// Costs that differ by less, as a share, are equal but for rounding.
const EQUAL: f64 = 1e-9;

/// Why `chosen` was chosen among `considered`, in the order of their slots; `name` names one by its place.
pub(super) fn why(
    (decided_by, policy): (DecidedBy, PolicyName),
    chosen: usize,
    considered: &[Considered],
    name: &dyn Fn(usize) -> String,
) -> String {
    let prefix = match decided_by {
        DecidedBy::LeastLoaded => return "every worker was full: the least loaded one".to_owned(),
        DecidedBy::Policy => String::new(),
        DecidedBy::Fallback(_) => format!("the policy preferred none, so by {policy}: "),
        DecidedBy::Load => format!("token ids unknown, so by {policy}: "),
    };
    let Some(cost) = considered.get(chosen).and_then(|at| at.cost) else { return prefix + "its costs are not known" };
    let others = considered
        .iter()
        .enumerate()
        .filter(|(at, considered)| *at != chosen && policy.among().takes(considered.candidate.standing));
    let next = others.filter_map(|(at, considered)| Some((at, considered.cost?.0)));
    let Some((next, next_cost)) = next.min_by(|a, b| a.1.total_cmp(&b.1)) else {
        return prefix + "the only worker that could be chosen";
    };
    // Of costs whose terms are not known any more the unit is not told.
    let unit = considered[chosen].terms.first().map_or_else(String::new, |term| format!(" {}", term.unit.label()));
    let other = name(next);
    let gap = next_cost - cost.0;
    if gap.abs() <= EQUAL * cost.0.abs().max(1.0) {
        return format!("{prefix}as cheap as {other}: {}{unit} each; ties end by the policy's rule", short(cost.0));
    }
    if gap < 0.0 {
        return format!("{prefix}drawn by chance: {other} costs {}{unit} less", short(-gap));
    }
    if is_ruled(&considered[chosen].terms, &considered[next].terms) {
        return format!("{prefix}the policy's rule names it, and not {other}");
    }
    let difference = difference(&considered[chosen].terms, &considered[next].terms);
    format!("{prefix}{}{unit} cheaper than {other}{difference}", short(gap))
}

/// Whether a rule puts `next` behind `chosen`, whatever else they cost.
fn is_ruled(chosen: &[Term], next: &[Term]) -> bool {
    chosen.iter().zip(next).any(|(a, b)| a.unit == Unit::Rule && a.name == b.name && a.value < b.value)
}

/// What makes one cheaper than the other, the most first.
fn difference(chosen: &[Term], next: &[Term]) -> String {
    // What only one of them has, as a session, is nothing to the other.
    let of = |terms: &[Term], name| terms.iter().find(|term| term.name == name).map_or(0.0, |term| term.value);
    let own = chosen.iter().map(|term| (term, term.value, of(next, term.name)));
    let missing = next.iter().filter(|term| chosen.iter().all(|own| own.name != term.name));
    let mut pairs: Vec<_> = own.chain(missing.map(|term| (term, 0.0, term.value))).collect();
    pairs.retain(|(_, own, other)| (own - other).abs() > 0.0);
    pairs.sort_by(|(_, a, b), (_, c, d)| (c - d).abs().total_cmp(&(a - b).abs()));
    let mut text = String::new();
    for (term, own, other) in pairs.into_iter().take(TERMS_MAX) {
        let joint = if text.is_empty() { ": " } else { ", " };
        let by = if term.joins == Joins::Multiplies { "×" } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(text, "{joint}{} {by}{} instead of {by}{}", term.name, short(own), short(other));
    }
    text
}

/// A number with as many digits as say something.
fn short(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        0.0 => "0".to_owned(),
        _ if magnitude >= 100.0 => format!("{value:.0}"),
        _ if magnitude >= 1.0 => trimmed(format!("{value:.2}")),
        _ if magnitude >= 0.001 => trimmed(format!("{value:.4}")),
        _ => format!("{value:.1e}"),
    }
}

fn trimmed(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_say_something() {
        let shown = [0.0, 1234.5, 12.5, -3.0, 0.175, 0.0625, 0.00001].map(short);
        assert_eq!(shown, ["0", "1234", "12.5", "-3", "0.175", "0.0625", "1.0e-5"]);
    }

    #[test]
    fn what_only_one_of_them_has_makes_a_difference_too() {
        let term = |name, value| Term { name, unit: Unit::Share, value, joins: Joins::Adds };
        let [own, next] = [0.1, -0.1].map(|load| term("load", load));
        let session = term("session", -0.7);
        let with = [own, session];
        assert_eq!(difference(&with, &[next]), ": session -0.7 instead of 0, load 0.1 instead of -0.1");
        assert_eq!(difference(&[next], &with), ": session 0 instead of -0.7, load -0.1 instead of 0.1");
        assert_eq!(difference(&with, &with), "");
    }

    #[test]
    fn what_a_rule_decides_is_no_matter_of_cost() {
        let term = |name, unit, value| Term { name, unit, value, joins: Joins::Adds };
        let terms = |behind| [term("requests", Unit::Requests, 3.0), term("not named", Unit::Rule, behind)];
        assert!(is_ruled(&terms(0.0), &terms(1e9)));
        assert!(!is_ruled(&terms(0.0), &terms(0.0)) && !is_ruled(&terms(1e9), &terms(0.0)));
    }
}
