//! What the documents say of a running gateway, held to one that runs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::fleet::fleet;

/// Name, type and labels of each row of `docs/metrics.md`.
fn documented_metrics() -> BTreeMap<String, (String, Vec<String>)> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `warmpath_"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let name = cells[0].trim_start_matches("| ").trim_matches('`').to_owned();
        let labels = cells[2].split(", ").map(|label| label.trim_matches('`').to_owned());
        (name, (cells[1].to_owned(), labels.filter(|label| !label.is_empty()).collect()))
    })
    .collect()
}

/// The labels' names of a series; their values here have no commas.
fn labels_of(labels: &str) -> Vec<String> {
    labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned())).collect()
}

/// What `/metrics` shows is what `docs/metrics.md` has: the type of each metric, and the labels of each of its series.
#[tokio::test]
async fn every_series_has_the_type_and_the_labels_that_are_documented() {
    let shadow = "routing: {shadow: [product, approx_tree]}\nengines: {metrics_interval: 100ms}";
    let fleet = fleet().engines(2).config(shadow).start().await;
    for prompt in [json!("some text of which more than a block is made"), json!("another")] {
        assert_eq!(fleet.complete(prompt).await.status, 200);
    }
    let streamed = json!({"model": "m", "prompt": "once", "max_tokens": 2, "stream": true});
    let stream = fleet.client.post(fleet.url("/v1/completions")).json(&streamed).send().await.unwrap();
    assert!(stream.text().await.unwrap().ends_with("data: [DONE]\n\n"));
    assert_eq!(fleet.post("/v1/completions", &json!({"model": "nobody's", "prompt": "x"})).await.status, 404);
    assert_eq!(fleet.operate("engine-1", "drain").await.0, 200);
    fleet.until_metric("warmpath_engine_scrapes_total", "outcome=\"", 1.0).await;

    let documented = documented_metrics();
    let (_, text) = fleet.admin("/metrics").await;
    let (mut seen, mut faults) = (BTreeSet::new(), Vec::new());
    let mut metric = String::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            name.clone_into(&mut metric);
            match documented.get(name) {
                Some((told, _)) if told == kind => seen.insert(name.to_owned()),
                _ => panic!("`{name}` is a {kind}, which docs/metrics.md does not say"),
            };
        } else if !line.starts_with('#') {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (_, inside) = series.trim_end_matches('}').split_once('{').unwrap_or((series, ""));
            let mut labels = labels_of(inside);
            labels.retain(|label| label != "le");
            let (_, told) = &documented[&metric];
            let has_rank = labels.iter().any(|label| label == "rank");
            let expected: Vec<&String> = told.iter().filter(|label| has_rank || *label != "rank").collect();
            if labels.iter().collect::<Vec<_>>() != expected {
                faults.push(format!("{series}: documented are the labels {told:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(seen.len() > documented.len() / 2, "only {} of {} metrics were looked at", seen.len(), documented.len());
    for name in ["warmpath_shadow_regret", "warmpath_requests_total", "warmpath_time_to_first_token_seconds"] {
        assert!(seen.contains(name), "{name} was not looked at");
    }
}
