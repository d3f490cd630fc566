//! By what a request would break what its class was promised.

use std::time::Duration;

use crate::real::{Number, larger, smaller};
use crate::shape::Shape;

/// What a ms that breaks a promise counts, in ms: others may lose as much to keep it.
const PROMISED: f64 = 10.0;

/// What a request would be late there: beyond the time to first token that it was promised, and of its decoding beyond the gaps
/// that it was; what it has waited so far counts. As much again as what was promised at most: what is later than that is lost
/// anyway, and nobody is to pay for it.
pub(super) fn late<N: Number>(&Shape { objectives, waited, .. }: &Shape, ttft: N, (gap, decode_ms): (N, f64)) -> N {
    let ms = |limit: Duration| limit.as_secs_f64() * 1e3;
    let [waited, nothing] = [ms(waited), 0.0].map(N::all);
    let beyond = |limit| smaller(larger(waited + ttft - limit, nothing), limit);
    let share = |limit| gap.if_above(limit, smaller(N::all(1.0) - limit / gap, N::all(0.5)), nothing);
    let [first, gaps] = [objectives.ttft, objectives.itl].map(|limit| limit.map(|limit| N::all(ms(limit))));
    N::all(PROMISED) * (first.map_or(nothing, beyond) + gaps.map_or(nothing, share) * N::all(decode_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Objectives;
    use crate::units::{BlockSize, Tokens};

    #[test]
    fn a_promise_counts_ten_times_until_it_is_lost_anyway() {
        let promised = |ttft: Option<u64>, itl: Option<u64>| {
            let [ttft, itl] = [ttft, itl].map(|limit| limit.map(Duration::from_millis));
            let shape = Shape::of(Tokens(256), BlockSize::new(16).unwrap());
            Shape { objectives: Objectives { ttft, itl }, ..shape }
        };
        let by = |ttft, itl| late(&promised(ttft, itl), 400.0, (32.0, 8_000.0));
        // 400 ms to the first token: in time, 50 ms late, and later than twice what was promised.
        assert_eq!(
            [by(None, None), by(Some(400), None), by(Some(350), None), by(Some(100), None)],
            [0.0, 0.0, 500.0, 1_000.0]
        );
        // Whoever has waited 200 ms of 300 is 300 ms late, all that counts; who has waited for 800, is lost wherever it goes.
        let waited = |ms| Shape { waited: Duration::from_millis(ms), ..promised(Some(300), None) };
        let after = |ms, ttft| late(&waited(ms), ttft, (0.0, 0.0));
        assert_eq!([after(200, 400.0), after(200, 100.0), after(200, 1.0)], [3_000.0, 0.0, 0.0]);
        assert_eq!([after(800, 400.0), after(800, 1.0)], [3_000.0; 2]);
        // Gaps of 32 ms: a quarter of 8 s is too much, and at most half.
        assert!([by(None, Some(32)), by(None, Some(24)), by(None, Some(2))] == [0.0, 20_000.0, 40_000.0]);
    }
}
