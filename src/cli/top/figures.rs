//! Numbers as they are shown, and their course over time.

use super::looker::Point;

/// Steps of a bar.
pub(super) const LEVELS: u64 = 16;

/// The points of the last minute, with steps of five seconds.
const RECENT: usize = 12;

/// What is not known.
const NOTHING: &str = "–";

/// A share in hundredths.
pub(super) fn percent(share: Option<f64>, digits: usize) -> String {
    share.map_or_else(|| NOTHING.to_owned(), |share| format!("{:.digits$} %", 100.0 * share))
}

/// A time in the unit that suits it.
pub(super) fn span(seconds: Option<f64>) -> String {
    match seconds {
        None => NOTHING.to_owned(),
        Some(seconds) if seconds < 1.0 => format!("{:.0} ms", 1000.0 * seconds),
        Some(seconds) if seconds < 120.0 => format!("{seconds:.1} s"),
        Some(seconds) if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        Some(seconds) => format!("{:.0} h", seconds / 3600.0),
    }
}

/// A number with three digits that count.
pub(super) fn short(number: Option<f64>) -> String {
    match number {
        None => NOTHING.to_owned(),
        Some(number) if number.abs() >= 100.0 => format!("{number:.0}"),
        Some(number) if number.abs() >= 1.0 => format!("{number:.2}"),
        Some(number) => format!("{number:.3}"),
    }
}

/// A count that need not be known.
pub(super) fn count(number: Option<f64>) -> String {
    number.map_or_else(|| NOTHING.to_owned(), |number| format!("{number:.0}"))
}

/// The time of day in UTC.
pub(super) fn clock(ms: u64) -> String {
    let seconds = ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The mean of a figure over the last minute, each point with its weight.
pub(super) fn recent(points: &[Point], figure: fn(&Point) -> Option<f64>, weight_of: fn(&Point) -> f64) -> Option<f64> {
    let (mut sum, mut weight) = (0.0, 0.0);
    for point in &points[points.len().saturating_sub(RECENT)..] {
        let by = weight_of(point);
        if let Some(value) = figure(point) {
            sum += value * by;
            weight += by;
        }
    }
    (weight > 0.0).then(|| sum / weight)
}

/// The course of a figure in so many bars: the mean of the points that fall in each, from 0 to [`LEVELS`] at the highest;
/// none where none is known.
pub(super) fn course(points: &[Point], figure: fn(&Point) -> Option<f64>, bars: usize) -> Vec<Option<u64>> {
    let means: Vec<Option<f64>> = (0..bars)
        .map(|bar| {
            let from = bar * points.len() / bars;
            let to = ((bar + 1) * points.len() / bars).max(from + 1).min(points.len());
            let known: Vec<f64> = points.get(from..to)?.iter().filter_map(figure).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / warmpath_core::count::real_len(known.len()))
        })
        .collect();
    let most = means.iter().flatten().copied().fold(0.0, f64::max);
    means.into_iter().map(|mean| Some(level(mean?, most))).collect()
}

/// The bar of `value` where the longest is that of `most`; what is more than nothing is seen.
fn level(value: f64, most: f64) -> u64 {
    let steps = 16.0 * value / most;
    let least = u64::from(value > 0.0);
    // Counted up to, since a float becomes no integer without a loss.
    let reached = (1..=LEVELS).zip(1_u32..).filter(|(_, step)| f64::from(*step) <= steps + 0.5).map(|(level, _)| level);
    reached.max().unwrap_or(0).max(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(requests: &[f64]) -> Vec<Point> {
        requests.iter().map(|requests| Point { requests: *requests, ..Point::default() }).collect()
    }

    #[test]
    fn numbers_are_told_in_few_letters() {
        assert_eq!([percent(Some(0.875), 1), percent(Some(1.0), 0), percent(None, 0)], ["87.5 %", "100 %", "–"]);
        let spans = [0.0123, 1.0, 119.94, 120.0, 7199.0, 7200.0].map(|seconds| span(Some(seconds)));
        assert_eq!(spans, ["12 ms", "1.0 s", "119.9 s", "2 min", "120 min", "2 h"]);
        assert_eq!([123.4, -2.345, 0.0567].map(|number| short(Some(number))), ["123", "-2.35", "0.057"]);
        assert_eq!([clock(0), clock(1_700_000_000_999)], ["00:00:00", "22:13:20"]);
        assert_eq!([span(None), short(None), count(None), count(Some(3.0))], ["–", "–", "–", "3"]);
    }

    #[test]
    fn the_last_minute_is_twelve_points() {
        let mut told = points(&[100.0, 1.0, 3.0]);
        (told[1].ttft_ms, told[2].ttft_ms) = (Some(10.0), Some(20.0));
        assert_eq!(recent(&told, |point| point.ttft_ms, |point| point.requests), Some(17.5));
        assert_eq!(recent(&told, |point| point.ttft_ms, |_| 1.0), Some(15.0));
        assert_eq!(recent(&told, |point| point.hit_rate, |_| 1.0), None);
        let long = points(&[vec![100.0], vec![1.0; 12]].concat());
        assert_eq!(recent(&long, |point| Some(point.requests), |_| 1.0), Some(1.0));
    }

    #[test]
    fn a_course_has_a_bar_for_equal_parts_of_the_time() {
        let figure = |point: &Point| (point.requests >= 0.0).then_some(point.requests);
        let told = points(&[0.0, 0.0, 1.0, 3.0, -1.0, -1.0, 8.0, 8.0]);
        assert_eq!(course(&told, figure, 4), [Some(0), Some(4), None, Some(16)]);
        assert_eq!(course(&told, figure, 3), [Some(0), Some(4), Some(16)]);
        assert_eq!(course(&points(&[1.0, 1000.0]), figure, 4), [1, 1, 16, 16].map(Some));
        assert_eq!(course(&[], figure, 2), [None, None]);
        assert_eq!(course(&points(&[0.0]), figure, 1), [Some(0)]);
        assert_eq!(course(&told, figure, 0), []);
    }
}
