//! The reference of all metrics: by group, each with its type, its labels and what it tells.

use std::fmt::Write;

use warmpath_core::queue::Lane;

use super::definitions::{GROUPS, Group, Kind, RANK};
use super::words::{WORDS, Words};
use super::{MODELS_MAX, WORKERS_MAX};

/// What names begin with unless `metrics.prefix` says otherwise.
const PREFIX: &str = "warmpath";

const HEAD: &str = "\
# Metrics

<!-- Made of src/telemetry/metrics/definitions.rs and words.rs; a test holds it to the code, and writes it with UPDATE=1. -->

`GET /metrics` on the admin port gives them in the text format of Prometheus. Names begin with `metrics.prefix`, which is
`warmpath` unless the configuration says otherwise. A series shows once there is something to tell: most
counters of failures are absent, not 0, until the first one, and the series of a worker that has left are gone. Times are in seconds. A histogram
has the series `_bucket` (with the label `le`, the bound), `_sum` and `_count`. [The runbook](runbook.md) tells what to do
about the alerts that are made of them; `deploy/grafana/dashboard.json` shows them.
";

/// The reference as Markdown.
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    labels(&mut text);
    for group in GROUPS {
        table(&mut text, group);
    }
    text
}

/// What every label holds, and how many values it can have. Writing to a string cannot fail.
fn labels(text: &mut String) {
    text.push_str("\n## Labels\n\nEvery label has a bound, so that no client can make series.\n\n");
    text.push_str("| label | values | bound |\n|---|---|---|\n");
    for (label, values, bound) in meanings() {
        let _ = writeln!(text, "| {label} | {values} | {bound} |");
    }
}

/// Label, values, bound. Labels without a line of their own are names that the code has.
fn meanings() -> Vec<(String, String, String)> {
    let lanes: Vec<&str> = Lane::ALL.iter().map(|lane| lane.label()).collect();
    let row = |label: &str, values: &str, bound: &str| (format!("`{label}`"), values.to_owned(), bound.to_owned());
    let names: Vec<String> = others().iter().map(|name| format!("`{name}`")).collect();
    vec![
        row(
            "model",
            "`models[].name`; `none` where a request was refused before a model was known",
            &format!("the first {MODELS_MAX} of the configuration, the rest is `other`"),
        ),
        row(
            "worker",
            "`workers[].id`, or the name that discovery gave",
            &format!("{WORKERS_MAX} at a time, the rest is `other`"),
        ),
        row(
            RANK,
            "the data-parallel rank; absent where a worker is a single one, numbered 0",
            "as many as a worker has",
        ),
        row("class", &format!("how urgent, as queues have it: {}", lanes.join(", ")), &lanes.len().to_string()),
        row("listener", "`data` or `admin`", "2"),
        row("policy", "the names of `routing.shadow`", "as many as there are policies"),
        row("active", "the policy that decides, `routing.policy`", "as many as there are policies"),
        row("version", "that of the program", "1"),
        (names.join(", "), "words of the code, which are told below the metrics that have them".into(), "fixed".into()),
    ]
}

/// Labels whose values are names that the code has.
fn others() -> Vec<&'static str> {
    const TOLD: [&str; 8] = ["model", "worker", RANK, "class", "listener", "policy", "active", "version"];
    let mut names: Vec<&str> =
        GROUPS.iter().flat_map(|group| group.metrics).flat_map(|metric| metric.labels).copied().collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| !TOLD.contains(name));
    names
}

fn table(text: &mut String, group: &Group) {
    let _ = write!(text, "\n## {}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n", group.title);
    for metric in group.metrics {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, labels) = (metric.name, metric.kind.word(), labels.join(", "));
        let _ = writeln!(text, "| `{PREFIX}_{name}` | {kind} | {labels} | {} |", metric.help);
    }
    for metric in group.metrics {
        let Kind::Histogram(bounds) = metric.kind else { continue };
        let bounds: Vec<String> = bounds.iter().map(f64::to_string).collect();
        let _ = write!(text, "\nBounds of `{PREFIX}_{}`: {}.\n", metric.name, bounds.join(", "));
    }
    let is_ours = |words: &&Words| group.metrics.iter().any(|metric| words.of.contains(&metric.name));
    WORDS.iter().filter(is_ours).for_each(|words| told(text, words));
}

/// What each word of a label tells.
fn told(text: &mut String, Words { of, label, all }: &Words) {
    let metrics: Vec<String> = of.iter().map(|metric| format!("`{PREFIX}_{metric}`")).collect();
    let _ = write!(text, "\n| `{label}` of {} | |\n|---|---|\n", metrics.join(", "));
    for (word, meaning) in *all {
        let _ = writeln!(text, "| `{word}` | {meaning} |");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::tokenize::Reason;

    /// `UPDATE=1` writes it anew.
    #[test]
    fn the_reference_in_the_documents_is_the_one_of_the_code() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
        let made = reference();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap();
        assert!(written == made, "docs/metrics.md is not what the code says: run this test with UPDATE=1");
    }

    #[test]
    fn every_metric_has_one_row_which_the_text_cannot_break() {
        let text = reference();
        let metrics: Vec<_> = GROUPS.iter().flat_map(|group| group.metrics).collect();
        let names: BTreeSet<&str> = metrics.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), metrics.len(), "a name occurs twice");
        for metric in metrics {
            assert_eq!(text.matches(&format!("\n| `{PREFIX}_{}` | ", metric.name)).count(), 1, "{}", metric.name);
            assert!(!metric.help.contains(['|', '\n', '<', '\\']), "{}: {}", metric.name, metric.help);
        }
    }

    #[test]
    fn every_word_is_told_once_and_every_label_of_words_has_some() {
        let metrics = || GROUPS.iter().flat_map(|group| group.metrics);
        for metric in metrics() {
            for label in others().into_iter().filter(|label| metric.labels.contains(label)) {
                assert!(Words::of(metric.name, label).is_some(), "{}: {label}", metric.name);
            }
        }
        for Words { of, label, all } in WORDS {
            let has = |name: &str| metrics().any(|metric| metric.name == name && metric.labels.contains(label));
            assert!(of.iter().all(|name| has(name)), "{of:?} have no {label}");
            let distinct: BTreeSet<&str> = all.iter().map(|(word, _)| *word).collect();
            assert_eq!(distinct.len(), all.len(), "{of:?}: {label}");
            assert!(all.iter().all(|(_, meaning)| !meaning.contains(['|', '\n', '<', '\\'])), "{of:?}: {label}");
        }
    }

    /// Where the code has lists of them.
    #[test]
    fn words_are_those_of_the_code() {
        let told = |metric: &str, label: &str| -> BTreeSet<&str> {
            Words::of(metric, label).unwrap().all.iter().map(|(word, _)| *word).collect()
        };
        let untokenized: BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.label()).collect();
        assert_eq!(told("untokenized_total", "reason"), untokenized);
        assert_eq!(told("trust_reason", "reason"), warmpath_core::trust::Reason::LABELS.into());
    }

    #[test]
    fn a_series_has_the_declared_labels_and_may_lack_its_rank() {
        let metrics = GROUPS.iter().flat_map(|group| group.metrics);
        let placed = metrics.into_iter().find(|metric| metric.name == "trust_reason").unwrap();
        for (names, taken) in [
            (&["worker", "rank", "reason"][..], true),
            (&["worker", "reason"], true),
            (&["worker", "rank"], false),
            (&["rank", "worker", "reason"], false),
            (&["reason"], false),
            (&["worker", "reason", "model"], false),
        ] {
            assert_eq!(placed.takes(names.iter().copied()), taken, "{names:?}");
        }
    }
}
