//! Values that come from outside the file, and what is said of them.

use std::path::Path;

use warmpath::config::{Environment, Reading};

use super::{FLEET, config, faults};

#[test]
fn lists_and_sections_come_from_outside_whole_or_item_by_item() {
    let whole = [
        ("WARMPATH__LISTEN__PASSTHROUGH", r#"["/v1/x", "/v1/y"]"#),
        ("WARMPATH__ROUTING__SHADOW", "[product]"),
        ("WARMPATH__ROUTING__KV", "{alpha: 0.5}"),
        ("WARMPATH__TRACING", r#"{otlp: "http://a:4318", headers: {x-api: "[1]"}}"#),
    ];
    let read = config(FLEET, &whole);
    let shown = serde_json::to_value(&read).unwrap();
    assert_eq!(shown["listen"]["passthrough"], serde_json::json!(["/v1/x", "/v1/y"]));
    assert_eq!(shown["routing"]["shadow"], serde_json::json!(["product"]));
    assert_eq!(read.routing.kv.alpha.get(), 0.5);
    assert_eq!(read.tracing.headers.to_map()["x-api"], "[1]");

    let items: Vec<(String, String)> =
        (0..12).map(|at| (format!("WARMPATH__LISTEN__PASSTHROUGH__{at}"), format!("/v1/{at}"))).collect();
    let items: Vec<(&str, &str)> = items.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let shown = serde_json::to_value(config(FLEET, &items)).unwrap();
    let expected: Vec<String> = (0..12).map(|at| format!("/v1/{at}")).collect();
    assert_eq!(shown["listen"]["passthrough"], serde_json::json!(expected));

    let another = [
        ("WARMPATH__WORKERS__1__ID", "b"),
        ("WARMPATH__WORKERS__1__URL", "http://b:1"),
        ("WARMPATH__WORKERS__1__MODEL", "m"),
    ];
    assert_eq!(config(FLEET, &another).workers.len(), 2);
    let overrides = ["routing.shadow=[blocks, kv]", "listen.passthrough.0=/v1/x"].map(|text| text.parse().unwrap());
    let environment = Environment::default().with(overrides.to_vec());
    let reading = Reading::of_text("f.yaml", FLEET.to_owned(), Path::new(""), &environment);
    assert!(reading.faults.is_empty(), "{:?}", reading.faults);
}

#[test]
fn what_looks_like_a_list_is_one_only_where_a_list_is_read() {
    let read = config(FLEET, &[("WARMPATH__LISTEN__ADMIN_TOKEN", "[a, b]"), ("WARMPATH__LISTEN__DATA", "[::1]:80")]);
    assert_eq!(read.listen.admin_token.unwrap().expose(), "[a, b]");
    assert_eq!(
        faults(FLEET, &[("WARMPATH__ROUTING__SHADOW", "[a"), ("WARMPATH__LISTEN__PASSTHROUGH", "[/v1/x, 'no path']")]),
        [
            "WARMPATH__LISTEN__PASSTHROUGH:1:9: expected a path such as /v1/embeddings or /v1/audio/*, got `no path`",
            "WARMPATH__ROUTING__SHADOW:1:1: expected a list such as [a, b]",
        ]
    );
}

#[test]
fn messages_show_no_secret_and_no_credentials_of_an_address() {
    let said = faults(
        "models: [{name: m}]\nworkers: [{id: w, url: 'http://u:hunter2@w 1', model: m, api_key: {a: hunter2}}]\n\
         tracing: {otlp: 'http://a:1', headers: hunter2}\n",
        &[("WARMPATH__EVENTS__NATS", "{token: [hunter2"), ("WARMPATH__LISTEN__ADMIN_TOKN", "hunter2")],
    );
    assert_eq!(said.len(), 5, "{said:?}");
    assert!(said.iter().all(|line| !line.contains("hunter2")), "{said:?}");
    let headers = [("WARMPATH__TRACING__HEADERS", r#"{"x-api": "hunter2""#)];
    assert_eq!(
        faults(&format!("{FLEET}tracing: {{otlp: 'http://a:1'}}\n"), &headers),
        ["WARMPATH__TRACING__HEADERS:1:1: expected a section such as {key: value}"]
    );
}

#[test]
fn a_message_keeps_what_it_has_in_common_with_what_was_substituted() {
    let text = format!("{FLEET}timeouts: {{connect: '${{env:T}}'}}\nrouting: {{kv: {{alpha: '${{env:T}}'}}}}\n");
    assert_eq!(
        faults(&text, &[("T", "5")]),
        [
            "3:21: expected a duration such as 250ms, 5s, 2m or 1h, got `${env:T}`",
            "4:23: a share must be from 0 to 1, got ${env:T}",
        ]
    );
}
