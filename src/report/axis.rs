//! Axes: where a value lies between two ends, where ticks stand, and how numbers are written.

/// Most powers of ten between which a logarithmic axis has ticks at 2 and 5 as well.
const FINE_DECADES: f64 = 2.5;

/// How an axis writes its numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// As they are, shortened from a thousand on: 20k, 1.5M.
    #[default]
    Number,
    /// As percent of one.
    Share,
}

/// An axis from `low` to `high`, with its ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Where it begins.
    pub low: f64,
    /// Where it ends; above `low`.
    pub high: f64,
    /// Where ticks stand, in rising order, within its ends.
    pub ticks: Vec<f64>,
    log: bool,
    form: Form,
}

impl Axis {
    /// An axis that holds `values` and 0, with round ends and about `ticks` ticks.
    pub fn linear(values: impl Iterator<Item = f64>, form: Form, ticks: f64) -> Self {
        let (low, high) = ends(values.chain([0.0]));
        let high = if high > low { high } else { low + 1.0 };
        let step = round_step((high - low) / ticks);
        let (low, last) = ((low / step).floor() * step, (high / step - 1e-9).ceil() * step);
        let mut marks = vec![low];
        while let Some(mark) = marks.last().map(|mark| mark + step)
            && mark <= last + step / 2.0
        {
            // A sum of steps drifts; the nearest multiple does not.
            marks.push((mark / step).round() * step);
        }
        Self { low, high: last, ticks: marks, log: false, form }
    }

    /// A linear axis that begins and ends with `values`; for times.
    pub fn tight(values: impl Iterator<Item = f64>, form: Form, ticks: f64) -> Self {
        let (low, high) = ends(values);
        let whole = Self::linear([low, high].into_iter(), form, ticks);
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, ticks: whole.ticks.into_iter().filter(|tick| (low..=high).contains(tick)).collect(), ..whole }
    }

    /// An axis with round ends that holds `values`, and 0 only where it is near.
    pub fn around(values: impl Iterator<Item = f64>, form: Form, ticks: f64) -> Self {
        let (low, high) = ends(values);
        let high = if high > low { high } else { low + low.abs().max(1.0) / 100.0 };
        let step = round_step((high - low) / ticks);
        let first = (low / step + 1e-9).floor();
        let count = (high / step - 1e-9).ceil() - first;
        let marks: Vec<f64> =
            (0..).map(f64::from).take_while(|mark| *mark <= count).map(|mark| (first + mark) * step).collect();
        let (low, high) = (first * step, (first + count) * step);
        Self { low, high, ticks: marks, log: false, form }
    }

    /// A logarithmic axis that holds `values` above 0.
    pub fn logarithmic(values: impl Iterator<Item = f64>, form: Form) -> Self {
        let (low, high) = ends(values.filter(|value| *value > 0.0));
        let (low, high) = if low > 0.0 { (low, high.max(low * 2.0)) } else { (1.0, 10.0) };
        let fine = (high / low).log10() <= FINE_DECADES;
        let steps: &[f64] = if fine { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let mut ticks = Vec::new();
        let mut decade = 10_f64.powf(low.log10().floor());
        while decade <= high {
            let marks = steps.iter().map(|step| step * decade);
            ticks.extend(marks.filter(|mark| (low * 0.999_999..=high * 1.000_001).contains(mark)));
            decade *= 10.0;
        }
        Self { low, high, ticks, log: true, form }
    }

    /// Where `value` lies: 0 at the beginning, 1 at the end.
    pub fn place(&self, value: f64) -> f64 {
        if self.log {
            (value.max(self.low * 1e-3) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }

    /// A tick's number in words, short.
    pub fn tick(&self, value: f64) -> String {
        match self.form {
            Form::Share => format!("{} %", trimmed(value * 100.0, 1)),
            Form::Number => short(value),
        }
    }

    /// A value in words, as exact as anyone wants to read it.
    pub fn exact(&self, value: f64) -> String {
        match self.form {
            Form::Share => format!("{:.2} %", value * 100.0),
            Form::Number => grouped(value),
        }
    }
}

fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    let (low, high) =
        finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    if low.is_finite() { (low, high) } else { (0.0, 0.0) }
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is at least `least`.
fn round_step(least: f64) -> f64 {
    let decade = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * decade);
    steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(10.0 * decade)
}

/// `value` with at most `digits` digits behind the point, and none that are zeros at its end.
pub(crate) fn trimmed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    if !text.contains('.') {
        return text;
    }
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// A number in few characters: 950, 20k, 1.5M.
pub(crate) fn short(value: f64) -> String {
    let size = value.abs();
    match size {
        1e9.. => format!("{}G", trimmed(value / 1e9, 3)),
        1e6.. => format!("{}M", trimmed(value / 1e6, 3)),
        1e3.. => format!("{}k", trimmed(value / 1e3, 3)),
        1.0.. => trimmed(value, 2),
        _ => trimmed(value, 4),
    }
}

/// A number with its thousands apart: 182 790; below a thousand with three digits behind the point.
pub fn grouped(value: f64) -> String {
    if value.is_infinite() {
        return "∞".to_owned();
    }
    if value.abs() < 1e3 {
        return trimmed(value, 3);
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "−".to_owned() } else { String::new() };
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{a0}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_has_round_ends_and_ticks() {
        let axis = Axis::linear([0.05, 0.373].into_iter(), Form::Share, 5.0);
        let words: Vec<_> = axis.ticks.iter().map(|tick| axis.tick(*tick)).collect();
        assert_eq!(words, ["0 %", "10 %", "20 %", "30 %", "40 %"]);
        assert!((axis.place(0.4) - 1.0).abs() < 1e-12 && axis.place(0.0).abs() < 1e-12);
    }

    #[test]
    fn an_axis_around_its_values_has_round_ends_and_leaves_out_a_zero_that_is_far() {
        let words = |values: [f64; 2]| {
            let axis = Axis::around(values.into_iter(), Form::Number, 5.0);
            assert!(values.into_iter().all(|value| (0.0..=1.0).contains(&axis.place(value))), "{axis:?}");
            axis.ticks.iter().map(|tick| axis.tick(*tick)).collect::<Vec<_>>()
        };
        assert_eq!(words([13_288.5, 15_072.6]), ["13k", "13.5k", "14k", "14.5k", "15k", "15.5k"]);
        assert_eq!(words([7.0, 7.0]), ["7", "7.02", "7.04", "7.06", "7.08"]);
        assert_eq!(words([1.0, 9.0]), ["0", "2", "4", "6", "8", "10"]);
    }

    #[test]
    fn an_axis_without_values_or_with_one_still_has_a_length() {
        assert_eq!(Axis::linear([].into_iter(), Form::Number, 5.0).high.total_cmp(&1.0), std::cmp::Ordering::Equal);
        let axis = Axis::tight([7.0, f64::NAN].into_iter(), Form::Number, 5.0);
        assert!(axis.high > axis.low && axis.place(7.0).abs() < 1e-12);
        assert!(Axis::logarithmic([].into_iter(), Form::Number).place(1.0).abs() < 1e-12);
        assert!(Axis::logarithmic([3.0].into_iter(), Form::Number).place(3.0).abs() < 1e-12);
    }

    #[test]
    fn a_logarithmic_axis_has_finer_ticks_where_there_is_room() {
        let words = |values: [f64; 2]| {
            let axis = Axis::logarithmic(values.into_iter(), Form::Number);
            axis.ticks.iter().map(|tick| axis.tick(*tick)).collect::<Vec<_>>()
        };
        assert_eq!(words([2004.0, 182_790.0]), ["5k", "10k", "20k", "50k", "100k"]);
        assert_eq!(words([1.0, 1e5]), ["1", "10", "100", "1k", "10k", "100k"]);
    }

    #[test]
    fn numbers_are_short_at_ticks_and_exact_elsewhere() {
        assert_eq!(["0", "0.25", "950", "1.5k", "20k", "2M"], [0.0, 0.25, 950.0, 1500.0, 2e4, 2e6].map(short));
        assert_eq!(short(1925.0), "1.925k", "a tick between round ones");
        assert_eq!(grouped(182_790.0), "182\u{a0}790");
        assert_eq!(grouped(1234.4), "1\u{a0}234");
        assert_eq!(grouped(0.125), "0.125");
        assert_eq!(grouped(f64::INFINITY), "∞");
    }
}
