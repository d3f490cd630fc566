//! Numbers on the command line, each within its bounds.

fn within(text: &str, expected: &str, is_fit: impl Fn(f64) -> bool) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && is_fit(*number));
    number.ok_or_else(|| expected.to_owned())
}

/// A number above 0, neither so small nor so large that times become none.
pub(super) fn above_zero(text: &str) -> Result<f64, String> {
    match within(text, "must be a number above 0", |number| number > 0.0) {
        Ok(number) if !(1e-6..=1e9).contains(&number) => Err("must be from 0.000001 to 1000000000".to_owned()),
        number => number,
    }
}

/// A number from 0, not so large that times become none.
pub(super) fn not_negative(text: &str) -> Result<f64, String> {
    match within(text, "must be a number, 0 or more", |number| number >= 0.0) {
        Ok(number) if number > 1e9 => Err("must be at most 1000000000".to_owned()),
        number => number,
    }
}

/// For how long something travels, in µs for each token: a second at most, or the readings of metrics in which nothing else
/// happens take longer than all else.
pub(super) fn travel(text: &str) -> Result<f64, String> {
    absence(text)
}

/// How long a simulated worker is gone, in seconds, during which its health is checked.
pub(super) fn absence(text: &str) -> Result<f64, String> {
    match not_negative(text)? {
        seconds if seconds > 1e6 => Err("must be at most 1000000".to_owned()),
        seconds => Ok(seconds),
    }
}

/// A time between two readings in ms, or 0 for never.
pub(super) fn interval(text: &str) -> Result<f64, String> {
    match not_negative(text)? {
        ms if ms > 0.0 && ms < 1.0 => Err("must be 0, or at least 1".to_owned()),
        ms => Ok(ms),
    }
}

/// How many times as long something takes.
pub(super) fn slowness(text: &str) -> Result<f64, String> {
    match above_zero(text)? {
        factor if !(1e-3..=1e3).contains(&factor) => Err("must be from 0.001 to 1000".to_owned()),
        factor => Ok(factor),
    }
}

/// All, nothing, or what lies between.
pub(super) fn share(text: &str) -> Result<f64, String> {
    within(text, "must be from 0 to 1", |share| (0.0..=1.0).contains(&share))
}

/// Nothing, or a share that leaves something.
pub(super) fn part(text: &str) -> Result<f64, String> {
    within(text, "must be at least 0 and below 1", |share| (0.0..1.0).contains(&share))
}

/// A share that is something and leaves something.
pub(super) fn inner_part(text: &str) -> Result<f64, String> {
    within(text, "must be above 0 and below 1", |share| share > 0.0 && share < 1.0)
}

/// A deviation of a logarithm: beyond 2 its factors are no times any more.
pub(super) fn deviation(text: &str) -> Result<f64, String> {
    within(text, "must be from 0 to 2", |deviation| (0.0..=2.0).contains(&deviation))
}

/// A factor between things of one kind.
pub(super) fn factor(text: &str) -> Result<f64, String> {
    within(text, "must be from 0.01 to 100", |factor| (0.01..=100.0).contains(&factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_bounds_and_no_bound_lets_nonsense_in() {
        assert_eq!([share("0"), share("1"), part("0"), inner_part("0.5")], [Ok(0.0), Ok(1.0), Ok(0.0), Ok(0.5)]);
        for wrong in
            [above_zero("0"), not_negative("-1"), share("1.1"), part("1"), inner_part("0"), deviation("3"), factor("0")]
        {
            assert!(wrong.is_err());
        }
        for wrong in [
            above_zero("1e-300"),
            above_zero("1e300"),
            not_negative("1e300"),
            absence("1e9"),
            travel("1e7"),
            interval("0.5"),
            slowness("1e300"),
            slowness("1e-300"),
        ] {
            assert!(wrong.is_err());
        }
        assert_eq!(
            [interval("0"), interval("1"), absence("30"), travel("8"), slowness("2.5")],
            [Ok(0.0), Ok(1.0), Ok(30.0), Ok(8.0), Ok(2.5)]
        );
        for parser in
            [above_zero, not_negative, absence, travel, interval, slowness, share, part, inner_part, deviation, factor]
        {
            assert!(["nan", "inf", "-inf", "", "x"].iter().all(|text| parser(text).is_err()));
        }
    }
}
