//! Histograms whose bounds are fixed: a value is counted where it belongs and forgotten. The exporter's own keep every value
//! until somebody asks for them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{Histogram, HistogramFn, Key};
use metrics_exporter_prometheus::formatting::sanitize_label_value;

/// All histograms of a registry.
#[derive(Default)]
pub(super) struct Histograms(Mutex<Vec<(Key, Arc<Buckets>)>>);

/// The values of one series.
struct Buckets {
    bounds: &'static [f64],
    /// How many values are not above each bound but above those before it, and in the end how many are above all.
    counts: Box<[AtomicU64]>,
    /// The bits of the sum of all values.
    sum: AtomicU64,
}

impl Histograms {
    /// The series of this name and these labels. O(series).
    pub(super) fn get(&self, key: Key, bounds: &'static [f64]) -> Histogram {
        let mut known = self.lock();
        let found = known.iter().find(|(other, _)| *other == key).map(|(_, buckets)| Arc::clone(buckets));
        Histogram::from_arc(found.unwrap_or_else(|| {
            let buckets = Arc::new(Buckets::new(bounds));
            known.push((key, Arc::clone(&buckets)));
            buckets
        }))
    }

    /// Appends the exposition's lines of each series to those of its name.
    pub(super) fn write(&self, lines: &mut BTreeMap<String, String>) {
        for (key, buckets) in self.lock().iter() {
            let labels =
                key.labels().map(|label| format!("{}=\"{}\"", label.key(), sanitize_label_value(label.value())));
            let labels: Vec<String> = labels.collect();
            buckets.write(key.name(), &labels.join(","), lines.entry(key.name().to_owned()).or_default());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Key, Arc<Buckets>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buckets {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0.0_f64.to_bits()) }
    }

    fn write(&self, name: &str, labels: &str, lines: &mut String) {
        let (comma, braced) = if labels.is_empty() { ("", String::new()) } else { (",", format!("{{{labels}}}")) };
        let bounds = self.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let mut total = 0;
        for (bound, count) in bounds.zip(&self.counts) {
            total += count.load(Ordering::Relaxed);
            lines.push_str(&format!("{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {total}\n"));
        }
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed));
        lines.push_str(&format!("{name}_sum{braced} {sum}\n{name}_count{braced} {total}\n"));
    }
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        let place = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
        // It cannot fail: `add` never says no.
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

#[cfg(test)]
mod tests {
    use metrics::Label;

    use super::*;

    fn lines(histograms: &Histograms) -> String {
        let mut series = BTreeMap::new();
        histograms.write(&mut series);
        series.into_values().collect()
    }

    #[test]
    fn a_value_counts_for_its_bound_and_all_above() {
        let histograms = Histograms::default();
        let histogram = histograms.get(Key::from_name("w_s"), &[0.5, 1.0]);
        for value in [0.25, 0.5, 0.75, 2.0] {
            histogram.record(value);
        }
        let expected =
            "w_s_bucket{le=\"0.5\"} 2\nw_s_bucket{le=\"1\"} 3\nw_s_bucket{le=\"+Inf\"} 4\nw_s_sum 3.5\nw_s_count 4\n";
        assert_eq!(lines(&histograms), expected);
    }

    #[test]
    fn equal_labels_are_one_series_and_others_another() {
        let histograms = Histograms::default();
        let key = |model: &'static str| Key::from_parts("w_s", vec![Label::new("model", model)]);
        for model in ["a\"b", "a\"b", "c"] {
            histograms.get(key(model), &[1.0]).record(0.5);
        }
        let lines = lines(&histograms);
        assert!(lines.contains("w_s_bucket{model=\"a\\\"b\",le=\"1\"} 2\n"), "{lines}");
        assert!(lines.contains("w_s_count{model=\"c\"} 1\n"), "{lines}");
    }
}
