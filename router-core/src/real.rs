//! Real numbers that are numbers, so that which is larger takes one instruction. `f64::max` takes four, to pass over NaN, and
//! what is asked of every worker for every request asks a dozen times.

/// The larger of the two; of NaN and a number, the second.
#[inline(always)]
pub(crate) fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// The smaller of the two; of NaN and a number, the second.
#[inline(always)]
pub(crate) fn smaller(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_is_chosen() {
        let both = |a, b| (smaller(a, b), larger(a, b));
        assert_eq!([both(1.0, 2.0), both(2.0, 1.0)], [(1.0, 2.0); 2]);
        assert_eq!(both(-1.0, f64::INFINITY), (-1.0, f64::INFINITY));
        assert_eq!(both(f64::NAN, 3.0), (3.0, 3.0));
    }
}
