//! What metrics say, read from their text.

/// See [`TestFleet::metric`].
pub(crate) fn value_of(metrics: &str, name: &str, labels: &str) -> f64 {
    let mut lines = metrics.lines().filter(|line| line.starts_with(name) && line.contains(labels));
    let value = lines.find_map(|line| line.rsplit_once(' '));
    value.map_or(0.0, |(_, value)| value.parse().expect("a number"))
}
