//! The configuration as a user meets it: what is read, and what is said about what cannot be.

#[path = "config/broken.rs"]
mod broken;
#[path = "config/fleets.rs"]
mod fleets;
#[path = "config/outside.rs"]
mod outside;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::Value;
use warmpath::config::{Config, ConfigError, Environment, EventSource, Reading, TokenizerSource, leaves};
use warmpath_core::policy::PolicyName;

use broken::{BROKEN, BROKEN_BELOW_A_FLEET, BROKEN_FLEETS};

const FLEET: &str = "models: [{name: m}]\nworkers: [{id: a, url: http://a:1, model: m}]\n";

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/warmpath.yaml")
}

fn read(text: &str, variables: &[(&str, &str)]) -> Reading {
    let environment: Environment = variables.iter().copied().collect();
    Reading::of_text("f.yaml", text.to_owned(), Path::new("/etc/warmpath"), &environment)
}

fn faults(text: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let reading = read(text, variables);
    reading.faults.iter().map(|fault| fault.to_string().replacen("f.yaml:", "", 1)).collect()
}

fn config(text: &str, variables: &[(&str, &str)]) -> Config {
    read(text, variables).into_config().expect("the document has no fault")
}

/// A file that is gone with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, content: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("warmpath-{}-{name}", std::process::id()));
        std::fs::write(&path, content).expect("the temporary folder can be written");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Every key below `value` as a dotted path; entries of lists count as one.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                found.insert(format!("{path}{key}"));
                keys(value, &format!("{path}{key}."), found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, path, found)),
        _ => {}
    }
}

#[test]
fn the_shipped_file_holds_the_defaults() {
    let mut config = Reading::of_file(&shipped(), &Environment::default()).unwrap().into_config().unwrap();
    assert_eq!((config.models.len(), config.workers.len()), (1, 2));
    let [first, second] = config.workers.as_mut_slice() else { panic!("two workers") };
    first.id = second.id.clone();
    first.url = second.url.clone();
    assert_eq!(first, second, "the first worker spells out what the second leaves out");
    config.models.clear();
    config.workers.clear();
    assert_eq!(config, Config::default());
}

#[test]
fn the_shipped_file_has_every_key_and_no_other() {
    let text = std::fs::read_to_string(shipped()).unwrap();
    let written: Value = serde_saphyr::from_str(&text).unwrap();
    let config = Reading::of_file(&shipped(), &Environment::default()).unwrap().into_config().unwrap();
    let (mut in_file, mut in_struct) = (BTreeSet::new(), BTreeSet::new());
    keys(&written, "", &mut in_file);
    keys(&serde_json::to_value(&config).unwrap(), "", &mut in_struct);
    assert_eq!(in_file, in_struct);
    assert!(in_file.contains("routing.kv.alpha_imbalanced") && in_file.contains("workers.max_num_seqs"));
}

#[test]
fn the_shipped_file_passes_and_faults_are_told_from_absence() {
    let code = |path: &Path| Config::load(path).map(drop).map_err(|error| error.exit_code());
    assert_eq!(code(&shipped()), Ok(()));
    assert_eq!(code(Path::new("/no/such/file.yaml")), Err(2));
    let broken = Scratch::new("broken.yaml", b"routing: {policy: fast}\n");
    assert_eq!(code(&broken.0), Err(1));
}

#[test]
fn loading_names_every_fault_on_a_line_of_its_own() {
    let broken = Scratch::new(
        "two.yaml",
        b"limits: {headers: 0}\nretries: {attempts: many}\nmodels: [{name: m}]\nworkers: []\n",
    );
    let error = Config::load(&broken.0).unwrap_err();
    let name = broken.0.display();
    assert_eq!(
        error.to_string(),
        format!(
            "{name}:1:19: must be at least 1, got 0\n\
             {name}:2:21: expected a whole number from 0 to 255, got `many`\n\
             {name}:4:1: there are no workers: nothing could be answered"
        )
    );
    let absent = Config::load(Path::new("/no/such/file.yaml")).unwrap_err();
    assert!(matches!(absent, ConfigError::Unreadable { .. }));
    assert_eq!(absent.to_string(), "/no/such/file.yaml: cannot be read: No such file or directory (os error 2)");
}

#[test]
fn a_small_configuration_is_enough() {
    let config = config(
        "models: [{name: m, tokenizer: tok/tokenizer.json}]\nworkers:\n- {id: 7, url: 'http://a:1', model: m}\n",
        &[],
    );
    let (model, worker) = (&config.models[0], &config.workers[0]);
    assert_eq!(model.tokenizer, Some(TokenizerSource::File("/etc/warmpath/tok/tokenizer.json".into())));
    assert_eq!(model.block_size.get(), 16);
    assert_eq!((worker.id.as_str(), worker.dp_ranks.get(), worker.max_num_seqs.get()), ("7", 1, 256));
    assert_eq!(worker.url.authority(), "a:1");
    assert_eq!(config.event_source(worker), EventSource::None);
    assert_eq!(worker.id.place.as_ref().unwrap().to_string(), "f.yaml:3:8");
}

#[test]
fn events_come_over_nats_where_a_server_is_named() {
    let config = config(&format!("{FLEET}events: {{nats: {{url: 'nats://n:4222'}}}}\n"), &[]);
    assert_eq!(config.event_source(&config.workers[0]), EventSource::Nats);
}

#[test]
fn events_over_zeromq_have_their_place() {
    let read = |worker: &str, zmq: &str| {
        let text =
            format!("models: [{{name: m}}]\nworkers: [{{id: a, url: 'http://h:1', model: m, {worker}}}]\n{zmq}\n");
        let config = config(&text, &[]);
        let worker = &config.workers[0];
        let shown = |endpoint: Option<warmpath::config::ZmqEndpoint>| endpoint.map(String::from).unwrap_or_default();
        (config.event_source(worker), shown(config.zmq_events(worker)), shown(config.zmq_replay(worker)))
    };
    let zmq = |events: &str, replay: &str| (EventSource::Zmq, events.to_owned(), replay.to_owned());
    assert_eq!(read("events: zmq", ""), zmq("tcp://h:5557", ""));
    let ports = "events: {zmq: {port: 7000, replay_port: 7100}}";
    assert_eq!(read("events: zmq, dp_ranks: 100", ports), zmq("tcp://h:7000", "tcp://h:7100"));
    let own = "zmq_endpoint: 'ipc:///run/a', zmq_replay: 'tcp://[::1]:9'";
    assert_eq!(read(own, ports), zmq("ipc:///run/a", "tcp://[::1]:9"));
    assert_eq!(read("events: zmq", "events: {zmq: {bind: 'tcp://*:5557'}}"), zmq("", ""));
}

#[test]
fn the_common_pair_of_ports_collides_at_two_ranks_and_says_so() {
    let faults_of = |ranks: u32, zmq: &str| {
        let worker = format!("{{id: a, url: 'http://h:1', model: m, events: zmq, dp_ranks: {ranks}}}");
        faults(&format!("models: [{{name: m}}]\nworkers:\n- {worker}\nevents: {{zmq: {{{zmq}}}}}\n"), &[])
    };
    assert_eq!(faults_of(1, "replay_port: 5558"), Vec::<String>::new());
    let collide = "4:29: the ports 5557 for events and 5558 for replays collide, as rank r adds r to both and worker `a` has \
        2 of them: keep them 2 apart";
    assert_eq!(faults_of(2, "replay_port: 5558"), [collide]);
    assert_eq!(faults_of(2, "replay_port: 5559"), Vec::<String>::new());
    assert_eq!(faults_of(2, "port: 65535"), ["3:48: tcp://h:65535 leaves no place for rank 1"]);
    assert_eq!(faults_of(2, "bind: 'tcp://*:5557'"), Vec::<String>::new());
    let unknown = "4:22: engines cannot connect to a port that is not known before";
    assert_eq!(faults_of(1, "bind: 'tcp://*:0'"), [unknown]);
}

#[test]
fn a_key_without_a_value_keeps_its_default() {
    assert_eq!(config(&format!("{FLEET}routing:\nlimits: {{headers: ~}}\n"), &[]), config(FLEET, &[]));
}

#[test]
fn every_fault_is_named_with_its_place() {
    for (text, expected) in BROKEN.iter().chain(BROKEN_FLEETS) {
        let mut found = faults(text, &[]);
        let mut expected = expected.to_vec();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{text}");
    }
    for (text, expected) in BROKEN_BELOW_A_FLEET {
        assert_eq!(faults(&format!("{FLEET}{text}\n"), &[]), *expected, "{text}");
    }
}

#[test]
fn aliases_serve_but_cannot_explode() {
    let shared = "models: [{name: &m m}]\nworkers:\n- &w {id: a, url: 'http://a:1', model: *m}\n- {<<: *w, id: b}\n";
    assert_eq!(config(shared, &[]).workers[1].url.authority(), "a:1");
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let below = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    let found = faults(&bomb, &[]);
    assert_eq!(found, ["5:20: aliases repeat more than 50000 nodes"]);
}

#[test]
fn depth_and_size_are_bounded() {
    assert_eq!(faults(&"[".repeat(1_000), &[]).len(), 1);
    let huge = Scratch::new("huge.yaml", &vec![b'#'; (1 << 20) + 1]);
    let reading = Reading::of_file(&huge.0, &Environment::default()).unwrap();
    assert_eq!(reading.faults[0].to_string(), format!("{}:1:1: a configuration has at most 1 MiB", huge.0.display()));
    let binary = Scratch::new("binary.yaml", b"log: {}\nlog\xff: {}\n");
    let reading = Reading::of_file(&binary.0, &Environment::default()).unwrap();
    assert_eq!(reading.faults[0].to_string(), format!("{}:2:4: not UTF-8", binary.0.display()));
}

#[test]
fn at_most_sixty_four_faults_are_looked_for() {
    let keys = |count| (0..count).map(|key| format!("key{key}: 1\n")).collect::<String>();
    assert_eq!(faults(&(keys(60) + FLEET), &[]).len(), 60);
    let told = faults(&keys(100), &[]);
    assert_eq!(told.len(), 65);
    assert_eq!(told[64], "64:1: there may be more: after so many faults no further values are looked at");
    let repeated = "log: {}\n".repeat(100);
    assert_eq!(faults(&repeated, &[]).len(), 65);
}

#[test]
fn secrets_come_from_the_environment_and_from_files() {
    let file = Scratch::new("token", b"from-a-file\n");
    let text = format!(
        "models: [{{name: m}}]\nworkers: [{{id: a, url: 'http://${{env:HOST}}:1', model: m, api_key: '${{env:KEY}}', max_num_seqs: '${{env:SEQS}}'}}]\nlisten: {{admin_token: '${{file:{}}}'}}\n",
        file.0.display()
    );
    let config = config(&text, &[("HOST", "a"), ("KEY", "12345"), ("SEQS", "64")]);
    let worker = &config.workers[0];
    assert_eq!((worker.url.to_string().as_str(), worker.max_num_seqs.get()), ("http://a:1", 64));
    assert_eq!(worker.api_key.as_ref().unwrap().expose(), "12345");
    assert_eq!(config.listen.admin_token.as_ref().unwrap().expose(), "from-a-file");
    let shown = format!("{config:?}{}", serde_json::to_string(&config).unwrap());
    assert!(shown.contains("[secret]") && !shown.contains("12345") && !shown.contains("from-a-file"));
}

#[test]
fn a_secret_of_two_lines_opens_nothing_and_is_refused() {
    let file = Scratch::new("two-lines", b"one\ntwo\n");
    let text = format!("{FLEET}listen: {{admin_token: '${{file:{}}}'}}\n", file.0.display());
    assert_eq!(faults(&text, &[]), ["3:23: a header's value is made of visible ASCII characters and spaces"]);
}

#[test]
fn clients_certificates_open_the_admin_port_as_a_token_does_and_their_paths_start_from_the_file() {
    let tls = "{certificate: a.pem, key: /keys/a.key, client_authorities: ca.pem}";
    let config = config(&format!("{FLEET}listen: {{admin: '0.0.0.0:9090', admin_tls: {tls}}}\n"), &[]);
    let path = |path: &Option<warmpath::config::Spanned<PathBuf>>| path.as_ref().unwrap().value.display().to_string();
    let tls = &config.listen.admin_tls;
    assert_eq!(path(&tls.certificate), "/etc/warmpath/a.pem");
    assert_eq!(path(&tls.key), "/keys/a.key");
    assert_eq!(path(&tls.client_authorities), "/etc/warmpath/ca.pem");
}

#[test]
fn the_headers_of_spans_come_from_the_environment_and_are_not_shown() {
    let text = format!(
        "{FLEET}tracing: {{otlp: 'http://a:4318', headers: {{X-Api-Key: '${{env:KEY}}', x-tenant: 7}}, sample: 0.25}}\n"
    );
    let variables = [("KEY", "s3cret"), ("WARMPATH__TRACING__HEADERS__X-TENANT", "t-8")];
    let reading = read(&text, &variables);
    let tracing = &config(&text, &variables).tracing;
    let sent = tracing.headers.to_map();
    assert_eq!(
        (sent.len(), &sent["x-api-key"], &sent["x-tenant"]),
        (2, &"s3cret".parse().unwrap(), &"t-8".parse().unwrap())
    );
    assert_eq!(tracing.sample.get(), 0.25);
    let shown = format!("{:?}", leaves(reading.config.as_ref().unwrap(), &reading.origins));
    assert!(shown.contains("tracing.headers.X-Api-Key") && shown.contains("${env:KEY}"), "{shown}");
    assert!(!shown.contains("s3cret") && !shown.contains("t-8"), "{shown}");
    let wrong = read(&text, &[("KEY", "s3c\nret")]);
    let faults: Vec<String> = wrong.faults.iter().map(|fault| fault.to_string()).collect();
    assert_eq!(faults, ["f.yaml:3:55: a header's value is made of visible ASCII characters and spaces"]);
}

#[test]
fn a_secret_that_is_not_there_is_a_fault_and_no_other_follows_from_it() {
    let text = format!("{FLEET}listen: {{admin: '0.0.0.0:9090', admin_token: '${{env:TOKEN}}'}}\n");
    assert_eq!(faults(&text, &[]), ["3:46: environment variable `TOKEN` is not set"]);
    assert_eq!(faults(&text, &[("TOKEN", "")]), ["3:46: `${env:TOKEN}` is empty"]);
    assert_eq!(faults(&text, &[("TOKEN", "~")]), Vec::<String>::new());
    let worker = "models: [{name: m}]\nworkers: [{id: '${env:ID}', url: 'http://a', model: m}]\n";
    assert_eq!(faults(worker, &[]), ["2:16: environment variable `ID` is not set"]);
}

#[test]
fn messages_do_not_show_what_was_substituted() {
    let text = format!("{FLEET}log: {{level: '${{env:KEY}}'}}\nindex: {{seed: '${{env:KEY}}'}}\n");
    assert_eq!(
        faults(&text, &[("KEY", "s3cret")]),
        [
            "3:14: unknown value `${env:KEY}` (known: error, warn, info, debug, trace)",
            "4:15: expected a whole number from 0 to 18446744073709551615, got `${env:KEY}`",
        ]
    );
}

#[test]
fn the_folder_of_snapshots_is_found_from_the_files_own() {
    let snapshots = |text: &str| config(&format!("{FLEET}index: {{snapshots: {text}}}\n"), &[]).index.snapshots;
    assert_eq!(snapshots("kept"), Some("/etc/warmpath/kept".into()));
    assert_eq!((snapshots("/var/kept"), snapshots("null")), (Some("/var/kept".into()), None));
    let faulty = faults(&format!("{FLEET}index: {{snapshots: ''}}\n"), &[]);
    assert_eq!(faulty, ["3:20: expected the path of a folder, got ``"]);
}

#[test]
fn the_file_of_recorded_requests_is_found_from_the_files_own_and_has_a_least_size() {
    let loaded = config(&format!("{FLEET}record: kept.jsonl\nrecord_size: 1MiB\n"), &[]);
    assert_eq!((loaded.record, loaded.record_size.bytes()), (Some("/etc/warmpath/kept.jsonl".into()), 1 << 20));
    assert_eq!(config(FLEET, &[]).record, None);
    let faulty = faults(&format!("{FLEET}record: ''\nrecord_size: 1KiB\n"), &[]);
    let expected =
        ["3:9: expected the path of a file, got ``", "4:14: a file of recorded requests holds at least 64KiB"];
    assert_eq!(faulty, expected);
}

#[test]
fn variables_override_the_file() {
    let variables = [
        ("WARMPATH__ROUTING__POLICY", "round_robin"),
        ("WARMPATH__ROUTING__KV__ALPHA", "0.5"),
        ("WARMPATH__LISTEN__DATA", "[::]:8000"),
        ("WARMPATH__WORKERS__0__API_KEY", "${env:KEY}"),
        ("WARMPATH__INDEX__SEED", "~"),
        ("KEY", "k"),
        ("WARMPATH_LOG", "not ours"),
    ];
    let config = config(&format!("{FLEET}routing: {{policy: logit}}\nindex: {{seed: 5}}\n"), &variables);
    assert_eq!((config.routing.policy, config.routing.kv.alpha.get()), (PolicyName::RoundRobin, 0.5));
    assert_eq!(config.listen.data.to_string(), "[::]:8000");
    assert_eq!(config.workers[0].api_key.as_ref().unwrap().expose(), "k");
    assert_eq!(config.index.seed, 1337);
}

#[test]
fn a_faulty_override_is_named_by_its_variable() {
    let text = format!("{FLEET}log: {{level: loud}}\nretries: 5\n");
    let variables = [
        ("WARMPATH__FOO", "1"),
        ("WARMPATH__LIMITS__HEADERS", "0"),
        ("WARMPATH__LOG__FORMAT", ""),
        ("WARMPATH__RETRIES__ATTEMPTS", "1"),
        ("WARMPATH__ROUTING__POLCY", "kv"),
        ("WARMPATH__WORKERS__3__ID", "b"),
    ];
    assert_eq!(
        faults(&text, &variables),
        [
            "3:14: unknown value `loud` (known: error, warn, info, debug, trace)",
            "4:10: expected a section with keys, got `5`",
            "WARMPATH__FOO:1:1: unknown key `foo` (known: listen, models, workers, discovery, routing, queue, events, index, engines, tokenize, upstream_tls, limits, timeouts, health, retries, decisions, metrics, log, tracing, ready_when, usage, record, record_size)",
            "WARMPATH__LIMITS__HEADERS:1:1: must be at least 1, got 0",
            "WARMPATH__LOG__FORMAT:1:1: the value is empty: leave it out, or give one",
            "WARMPATH__RETRIES__ATTEMPTS:1:1: there is no section above `attempts`",
            "WARMPATH__ROUTING__POLCY:1:1: unknown key `polcy`, did you mean `policy`?",
            "WARMPATH__WORKERS__3__ID:1:1: the list has no item `3`",
        ]
    );
}

proptest! {
    /// A reader that panics takes a running router with it at a reload.
    #[test]
    fn no_mutant_of_the_shipped_file_panics_or_breaks_a_line(
        at in any::<prop::sample::Index>(),
        length in 0usize..40,
        inserted in "[-:\\[\\]{}&*!?|>'\"#$ \n\u{1b}éa-z0-9]{0,12}",
    ) {
        let mut characters: Vec<char> = std::fs::read_to_string(shipped()).unwrap().chars().collect();
        let start = at.index(characters.len());
        let end = (start + length).min(characters.len());
        characters.splice(start..end, inserted.chars());
        let reading = read(&characters.iter().collect::<String>(), &[]);
        prop_assert!(reading.config.is_some() || !reading.faults.is_empty());
        for fault in &reading.faults {
            let line = fault.to_string();
            prop_assert!(line.starts_with("f.yaml:") && !line.contains(char::is_control), "{line:?}");
        }
    }
}
