//! Prometheus's text format, as engines write it: read line by line, in place.

/// The most of an engine's metrics that is read: vLLM's are 56 kB.
pub const METRICS_MAX: usize = 4 << 20;

/// The longest line that is read; what is longer is left out.
const LINE_MAX: usize = 16 * 1024;

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The metric's name.
    pub name: &'a str,
    /// What stands between the braces.
    labels: &'a str,
    /// Its value; may be infinite or no number.
    pub value: f64,
}

/// The samples in `text`. What is no sample is passed over, so any text gives some; nothing is copied.
pub fn samples(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.lines().filter(|line| line.len() <= LINE_MAX && !line.starts_with('#')).filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => {
            let end = closing_brace(inside)?;
            (&inside[..end], &inside[end + 1..])
        }
        None => ("", rest),
    };
    // A time stamp may follow.
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    (!name.is_empty()).then_some(Sample { name, labels, value })
}

/// The first closing brace outside of quotes.
fn closing_brace(labels: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    labels.bytes().position(|byte| {
        let was_escaped = escaped;
        escaped = quoted && !escaped && byte == b'\\';
        if byte == b'"' && !was_escaped {
            quoted = !quoted;
        }
        byte == b'}' && !quoted
    })
}

impl<'a> Sample<'a> {
    /// The value of a label, its escapes as they stand.
    pub fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (key, after) = rest.split_once("=\"")?;
            let end = closing_quote(after)?;
            if key.trim_start_matches([',', ' ']) == name {
                return Some(&after[..end]);
            }
            rest = &after[end + 1..];
        }
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let was_escaped = escaped;
        escaped = !escaped && byte == b'\\';
        byte == b'"' && !was_escaped
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Vec<(&str, f64)> {
        samples(text).map(|sample| (sample.name, sample.value)).collect()
    }

    #[test]
    fn samples_are_read_with_and_without_labels_and_time_stamps() {
        let text = "# HELP a b\n# TYPE a gauge\na 1.0\nb{x=\"1\"} 2\nc{} 3e2 1795224792\nd\t4\ne{y=\"}\\\"}\"} 5\r\n";
        assert_eq!(read(text), [("a", 1.0), ("b", 2.0), ("c", 300.0), ("d", 4.0), ("e", 5.0)]);
    }

    #[test]
    fn what_is_no_sample_is_passed_over() {
        let text = format!("a\n{{}} 1\nb{{x=\"1\" 2\nc one\n\n{} 1\nd 1\n", "e".repeat(LINE_MAX));
        assert_eq!(read(&text), [("d", 1.0)]);
        assert!(read("a NaN\n")[0].1.is_nan());
    }

    #[test]
    fn labels_are_found_by_their_whole_name() {
        let line = "a{engine=\"0\", model_name=\"a\\\"b,engine=\",num_gpu_blocks=\"129\"} 1";
        let sample = samples(line).next().unwrap();
        assert_eq!(sample.label("engine"), Some("0"));
        assert_eq!(sample.label("model_name"), Some("a\\\"b,engine="));
        assert_eq!(sample.label("num_gpu_blocks"), Some("129"));
        assert_eq!((sample.label("blocks"), sample.label("name")), (None, None));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "([a-z_:{}\"\\\\=, #\n\t.0-9é-]|NaN|inf){0,200}") {
            for sample in samples(&text) {
                prop_assert!(text.contains(sample.name));
                let _ = sample.label("a");
            }
        }
    }
}
