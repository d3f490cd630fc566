//! What `check` says of configurations that can be followed.

use serde_json::Value;

use super::{Configuration, stderr, stdout, warmpath};

#[test]
fn what_serve_could_not_use_is_a_warning_and_fails_where_that_is_asked_for() {
    let text = "models: [{name: m, tokenizer: no/t.json, chat_template: no/c.jinja}]\n\
                workers: [{id: w, url: 'http://127.0.0.1:9', model: m}]\n\
                listen: {data: '0.0.0.0:80', data_tls: {certificate: /no/c, key: /no/k}}\n\
                record: /dev/null/x/r.jsonl\nupstream_tls: {authorities: /no/ca}\n\
                index: {snapshots: /dev/null}\n";
    let config = Configuration::new("doubtful", text);
    let name = config.path();
    let folder = std::path::Path::new(name).parent().unwrap().display();
    let gone = "No such file or directory (os error 2)";
    let expected = [
        format!("{name}:1:31: warning: cannot read `{folder}/no/t.json`: {gone}"),
        format!("{name}:1:57: warning: cannot read `{folder}/no/c.jinja`: {gone}"),
        format!(
            "{name}:2:16: warning: `kv` goes by what caches hold, and nobody tells it of `w`: it has no source of events"
        ),
        format!(
            "{name}:3:16: warning: 0.0.0.0:80 is open to the network, and nothing here asks clients who they are: what \
             stands before it must, or `listen.data_tls.client_authorities`"
        ),
        format!("{name}:3:54: warning: cannot read `/no/c`: {gone}"),
        format!("{name}:4:9: warning: `/dev/null/x/r.jsonl` cannot be written: it is a folder, or lies below a file"),
        format!("{name}:5:29: warning: cannot read `/no/ca`: {gone}"),
        format!("{name}:6:20: warning: `/dev/null` cannot be a folder: it is a file, or lies below one"),
    ];
    let output = warmpath(&["check", name]);
    assert_eq!(stderr(&output).lines().collect::<Vec<_>>(), expected);
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(0), &*format!("{name}: valid: 1 model, 1 worker, policy kv\n"))
    );
    assert_eq!(warmpath(&["check", name, "--strict"]).status.code(), Some(1));
    let output = warmpath(&["check", name, "--json"]);
    let document: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!((&document["valid"], document["warnings"].as_array().map(Vec::len)), (&true.into(), Some(8)));
    assert_eq!((&document["warnings"][2]["line"], &document["warnings"][2]["column"]), (&2.into(), &16.into()));
}

#[test]
fn a_recording_that_is_something_else_is_a_warning() {
    let config = Configuration::new("recorded", "models: [{name: m}]\n");
    let name = config.path();
    let folder = std::path::Path::new(name).parent().unwrap();
    let workers = "workers: [{id: w, url: 'http://127.0.0.1:9', model: m}]";
    let text = format!("models: [{{name: m}}]\n{workers}\nrecord: {name}\n");
    std::fs::write(name, &text).unwrap();
    let said = || stderr(&warmpath(&["check", name])).to_owned();
    let refused = format!("{name}:3:9: warning: `{name}` cannot be written: it holds something else than a recording");
    assert!(said().lines().any(|line| line == refused), "{}", said());
    // What is not there yet can be made.
    std::fs::write(name, text.replace(&format!("record: {name}"), &format!("record: {}/r.jsonl", folder.display())))
        .unwrap();
    let output = warmpath(&["check", name]);
    assert!(!stderr(&output).contains("recording") && output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_tokenizer_or_a_template_that_cannot_be_loaded_is_a_warning_with_its_cause() {
    let folder = std::env::temp_dir().join(format!("warmpath-untokenized-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name).display().to_string()
    };
    let (broken, whole) = (file("tokenizer.json", "{}"), file("whole.json", WHOLE));
    let template = file("broken.jinja", "{% if %}");
    let text = format!(
        "models:\n- {{name: a, tokenizer: {}}}\n- {{name: b, chat_template: {template}, tokenizer: {whole}}}\n\
         workers: [{{id: a, url: 'http://a:1', model: a}}, {{id: b, url: 'http://b:1', model: b}}]\n\
         routing: {{policy: approx_tree}}\n",
        folder.display()
    );
    let config = Configuration::new("untokenized", &text);
    let output = warmpath(&["check", config.path(), "--strict"]);
    std::fs::remove_dir_all(&folder).unwrap();
    let lines: Vec<_> = stderr(&output).lines().collect();
    assert_eq!((output.status.code(), lines.len()), (Some(1), 2), "{lines:?}");
    for (line, said) in lines.iter().zip([
        format!("2:24: warning: `{broken}` is no tokenizer: "),
        "3:28: warning: the chat template does not compile: ".to_owned(),
    ]) {
        assert!(line.starts_with(&format!("{}:{said}", config.path())), "{line}");
    }
}

/// The least that is a tokenizer.
const WHOLE: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#;

#[test]
fn workers_that_are_the_same_engine_are_warned_of() {
    let text = "models: [{name: m}]\nrouting: {policy: approx_tree}\nworkers:\n\
                - {id: a, url: 'http://w:1', model: m, dp_ranks: 2}\n\
                - {id: b, url: 'http://W:1/', model: m, dp_start_rank: 1}\n\
                - {id: c, url: 'http://w:1', model: m, dp_start_rank: 2, dp_ranks: 2}\n\
                - {id: d, url: 'http://w:2', model: m}\n";
    let config = Configuration::new("twins", text);
    let expected = format!(
        "{}:5:16: warning: http://W:1 is that of `a`, too: what one of them is sent, the load of the other does not show\n",
        config.path()
    );
    let output = warmpath(&["check", config.path()]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), &*expected));
}

#[test]
fn nothing_is_said_of_what_is_whole() {
    for text in [
        "models: [{name: m}]\nworkers: [{id: w, url: 'http://w:1', model: m}]\nrouting: {policy: approx_tree}\n",
        "models: [{name: m, tokenizer: bytes}]\nworkers: [{id: w, url: 'http://w:1', model: m, events: zmq}]\n",
    ] {
        let config = Configuration::new("whole", text);
        let output = warmpath(&["check", config.path(), "--strict"]);
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    }
    let text = "models: [{name: m}]\nworkers: [{id: w, url: 'http://w:1', model: m, events: zmq}]\n";
    let config = Configuration::new("untold", text);
    let expected = format!(
        "{}:1:17: warning: `kv` goes by token ids, and `m` has no `tokenizer`: its text prompts are routed by load\n",
        config.path()
    );
    assert_eq!(stderr(&warmpath(&["check", config.path()])), expected);
}

/// A folder, a pipe: whoever read it would wait, or fail.
#[test]
fn a_list_of_workers_that_is_no_file_is_said() {
    let folder = std::env::temp_dir();
    let text =
        format!("models: [{{name: m, tokenizer: bytes}}]\ndiscovery: {{file: {{path: '{}'}}}}\n", folder.display());
    let config = Configuration::new("listless", &text);
    let output = warmpath(&["check", config.path()]);
    assert!(stderr(&output).contains("it is no regular file"), "{}", stderr(&output));
}

#[test]
fn files_and_leases_of_nats_are_looked_at() {
    let text = "models: [{name: m, tokenizer: bytes}]\n\
                events: {nats: {url: 'tls://127.0.0.1:9', tls_authorities: no/ca}}\n\
                discovery: {nats: {enabled: true, lease: 2s}}\n";
    let config = Configuration::new("doubtful-nats", text);
    let name = config.path();
    let folder = std::path::Path::new(name).parent().unwrap().display();
    let output = warmpath(&["check", name]);
    let expected = [
        format!("{name}:2:60: warning: cannot read `{folder}/no/ca`: No such file or directory (os error 2)"),
        format!("{name}:3:42: warning: workers are heard of every 5s: with less than 10s they come and go"),
    ];
    assert_eq!(stderr(&output).lines().collect::<Vec<_>>(), expected);
    assert_eq!(output.status.code(), Some(0));
}
