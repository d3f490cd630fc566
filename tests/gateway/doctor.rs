//! The doctor before simulated engines: green where all is well, and one red line with its remedy for each fault.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use warmpath::config::Config;
use warmpath::doctor::{Check, Examination, Report, Verdict, examine};
use warmpath::events::publish::Bus;
use warmpath::events::publish::faults::EventFaults;
use warmpath::events::publish::zmq::{ReplayFault, ZmqPublisher};
use warmpath::mock_engine::{MockEngine, MockSettings};
use warmpath::shutdown::Tasks;
use warmpath_core::units::BlockSize;
use warmpath_indexer::codec::encode::{Form, HashForm};
use warmpath_simulator::EngineConfig;

use crate::meddler::Meddler;
use crate::sdk::python;
use crate::zmq::outlet;

/// An engine with sockets of its own.
struct Patient {
    tasks: Tasks,
    address: SocketAddr,
    sockets: ZmqPublisher,
}

/// An engine that publishes nothing.
pub(crate) fn settings() -> MockSettings {
    MockSettings {
        listen: anywhere(),
        worker: "e".to_owned(),
        model: "m".to_owned(),
        engine: EngineConfig {
            block_size: BlockSize::new(4).unwrap(),
            blocks: 2001,
            timing: "linear:0.01,0.001".parse().unwrap(),
            vocabulary: 97..123,
            ..EngineConfig::default()
        },
        ranks: vec![Bus::Silent],
        form: Form::Map,
        hashes: HashForm::Int,
        faults: EventFaults::default(),
        speedup: 1.0,
        tokenizer: None,
    }
}

pub(crate) async fn mock(address: SocketAddr, bus: Bus, tasks: &Tasks) -> SocketAddr {
    let settings = MockSettings { listen: address, ranks: vec![bus], ..settings() };
    MockEngine::start(settings, tasks).await.unwrap().address
}

pub(crate) fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A port at which nobody listens.
pub(crate) fn nowhere() -> SocketAddr {
    std::net::TcpListener::bind(anywhere()).unwrap().local_addr().unwrap()
}

impl Patient {
    async fn start() -> Self {
        let tasks = Tasks::new();
        let sockets = ZmqPublisher::start(outlet(), &tasks).await.unwrap();
        let address = mock(anywhere(), Bus::Zmq(sockets.clone()), &tasks).await;
        Self { tasks, address, sockets }
    }

    /// What a configuration says of it where all is right.
    fn worker(&self, address: SocketAddr) -> String {
        let (events, replay) = (self.sockets.events.clone().unwrap(), self.sockets.replay.clone().unwrap());
        format!("{{id: e, url: 'http://{address}', model: m, zmq_endpoint: '{events}', zmq_replay: '{replay}'}}")
    }
}

pub(crate) const MODEL: &str = "{name: m, tokenizer: bytes, block_size: 4}";

fn config(model: &str, workers: &str) -> Config {
    let events = "{zmq: {connect_timeout: 500ms, reconnect_delay_max: 50ms, replay_idle_timeout: 200ms}}";
    let text = format!("models: [{model}]\nworkers: [{workers}]\nevents: {events}\n");
    Config::parse("a test", text).expect("the configuration is good")
}

pub(crate) async fn examined(config: &Config, timeout: Duration) -> Report {
    let examination = Examination { workers: Vec::new(), skip: Vec::new(), timeout };
    examine(config, &examination, |_, _| {}).await.expect("there are workers")
}

pub(crate) const PATIENT: Duration = Duration::from_secs(10);
pub(crate) const HASTY: Duration = Duration::from_millis(700);

/// Finding and remedy of the only check that failed.
pub(crate) fn only_fault(report: &Report, check: Check) -> (String, String) {
    let table = report.table(false);
    assert_eq!((report.workers.len(), report.failed), (1, 1), "{table}");
    let failed = report.workers[0].checks.iter().find(|finding| finding.verdict == Verdict::Failed).unwrap();
    assert_eq!(failed.check, check, "{table}");
    (failed.finding.clone(), failed.remedy.clone().expect("a remedy"))
}

pub(crate) fn skipped(report: &Report) -> Vec<Check> {
    let checks = report.workers[0].checks.iter();
    checks.filter(|finding| finding.verdict == Verdict::Skipped).map(|finding| finding.check).collect()
}

fn facts(report: &Report, check: Check) -> Value {
    let finding = report.workers[0].checks.iter().find(|finding| finding.check == check).unwrap();
    finding.facts.clone().into()
}

#[tokio::test]
async fn where_all_is_well_every_check_holds() {
    let patient = Patient::start().await;
    let config = config(MODEL, &patient.worker(patient.address));
    // Twice: what the first one left in the cache does not disturb the second.
    for _ in 0..2 {
        let report = examined(&config, PATIENT).await;
        assert_eq!((report.ok, report.failed, report.skipped), (8, 0, 0), "{}", report.table(false));
        assert_eq!(report.workers[0].checks.iter().map(|finding| finding.check).collect::<Vec<_>>(), Check::ALL);
        assert_eq!(facts(&report, Check::Prediction), json!({"predicted_tokens": 64, "reported_tokens": 64}));
        assert_eq!(facts(&report, Check::BlockSize), json!({"configured": 4, "told": 4}));
        assert_eq!(facts(&report, Check::Tokens), json!({"compared": 52, "different": 0}));
    }
}

#[tokio::test]
async fn workers_may_be_chosen_and_checks_left_out() {
    let patient = Patient::start().await;
    let dead = format!("{{id: dead, url: 'http://{}', model: m, events: none}}", nowhere());
    let config = config(MODEL, &format!("{dead}, {}", patient.worker(patient.address)));
    let skip = vec![Check::Tokens, Check::Replay];
    let examination = Examination { workers: vec!["e".into()], skip, timeout: PATIENT };
    let report = examine(&config, &examination, |_, _| {}).await.unwrap();
    assert_eq!((report.ok, report.failed, report.workers[0].worker.as_str()), (6, 0, "e"), "{}", report.table(false));
    assert_eq!(skipped(&report), [Check::Tokens, Check::Replay]);
    let both = examined(&config, PATIENT).await;
    assert_eq!((both.workers.len(), both.ok, both.failed, both.skipped), (2, 8, 1, 7), "{}", both.table(false));
}

#[tokio::test]
async fn a_worker_that_does_not_answer_is_unreachable_and_nothing_else() {
    let patient = Patient::start().await;
    let report = examined(&config(MODEL, &patient.worker(nowhere())), HASTY).await;
    let (finding, remedy) = only_fault(&report, Check::Reachable);
    assert!(finding.contains("/health: Connection refused"), "{finding}");
    assert!(remedy.contains("workers[].url"), "{remedy}");
    assert_eq!(skipped(&report), Check::ALL[1..]);
}

#[tokio::test]
async fn a_worker_that_serves_another_model_is_told_its_flag() {
    let patient = Patient::start().await;
    let worker = patient.worker(patient.address).replace("model: m,", "model: other,");
    let report = examined(&config(&MODEL.replace("name: m,", "name: other,"), &worker), HASTY).await;
    let (finding, remedy) = only_fault(&report, Check::Model);
    assert_eq!(finding, "serves `m`, not `other`");
    assert!(remedy.starts_with("start it with --served-model-name other,"), "{remedy}");
    assert_eq!(skipped(&report), [Check::Events, Check::Tokens, Check::Replay, Check::Prediction]);
    // An alias that the engine does not know fails requests just as well.
    let report = examined(
        &config(&MODEL.replace("name: m,", "name: m, aliases: [n],"), &patient.worker(patient.address)),
        PATIENT,
    )
    .await;
    assert_eq!(only_fault(&report, Check::Model).0, "serves `m`, not `n`");
    assert_eq!((report.ok, report.skipped), (7, 0), "{}", report.table(false));
}

#[tokio::test]
async fn another_block_size_is_one_fault_and_predictions_are_left_out() {
    let patient = Patient::start().await;
    let model = MODEL.replace("block_size: 4", "block_size: 8");
    let report = examined(&config(&model, &patient.worker(patient.address)), PATIENT).await;
    let (finding, remedy) = only_fault(&report, Check::BlockSize);
    assert_eq!(finding, "its events tell 4 tokens, configured are 8");
    let expected =
        "set models[].block_size to 4 for `m`, or start the engine with --block-size 8 (SGLang: --page-size 8)";
    assert_eq!(remedy, expected);
    assert_eq!(skipped(&report), [Check::Prediction]);
}

#[tokio::test]
async fn an_engine_without_events_is_told_its_flags() {
    let patient = Patient::start().await;
    let silent = mock(anywhere(), Bus::Silent, &patient.tasks).await;
    let report = examined(&config(MODEL, &patient.worker(silent)), HASTY).await;
    let (finding, remedy) = only_fault(&report, Check::Events);
    assert_eq!(finding, "connected, but nothing came within 700ms of an answered prompt");
    let flags = "--kv-events-config '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:";
    assert!(remedy.contains(flags), "{remedy}");
    assert_eq!(skipped(&report), [Check::Replay, Check::Prediction]);

    let place = patient.sockets.events.clone().unwrap().to_string();
    let gone = format!("tcp://{}", nowhere());
    let report = examined(&config(MODEL, &patient.worker(silent).replace(&place, &gone)), HASTY).await;
    let (finding, _) = only_fault(&report, Check::Events);
    assert_eq!(finding, format!("not connected (e at {gone}: Connection refused (os error 111))"));

    let without = format!("{{id: e, url: 'http://{silent}', model: m, events: none}}");
    let report = examined(&config(MODEL, &without), HASTY).await;
    assert_eq!((report.ok, report.failed), (5, 0), "{}", report.table(false));
    assert_eq!(skipped(&report), [Check::Events, Check::Replay, Check::Prediction]);
}

#[tokio::test]
async fn without_a_replay_socket_that_answers_only_the_replay_fails() {
    let patient = Patient::start().await;
    let place = patient.sockets.replay.clone().unwrap().to_string();
    let worker = patient.worker(patient.address);

    let report = examined(&config(MODEL, &worker.replace(&format!(", zmq_replay: '{place}'"), "")), PATIENT).await;
    let (finding, remedy) = only_fault(&report, Check::Replay);
    assert!(finding.starts_with("no replay socket is configured"), "{finding}");
    assert!(remedy.contains("set events.zmq.replay_port: 5657"), "{remedy}");
    assert_eq!(report.ok, 7);

    let gone = format!("tcp://{}", nowhere());
    let report = examined(&config(MODEL, &worker.replace(&place, &gone)), PATIENT).await;
    let (finding, remedy) = only_fault(&report, Check::Replay);
    assert_eq!(finding, "events of e cannot be replayed (Connection refused (os error 111))");
    assert!(remedy.contains("\"replay_endpoint\":\"tcp://*:"), "{remedy}");

    patient.sockets.set_fault(ReplayFault::Refused);
    let report = examined(&config(MODEL, &worker), PATIENT).await;
    let (finding, _) = only_fault(&report, Check::Replay);
    assert_eq!(finding, "events of e cannot be replayed (nothing was heard for 200ms)");
}

#[tokio::test]
async fn a_tokenizer_that_counts_otherwise_is_told_by_how_much() {
    let file = std::env::temp_dir().join(format!("warmpath-doctor-{}-tokenizer.json", std::process::id()));
    let model = json!({"type": "WordLevel", "vocab": {"?": 0, "a": 1}, "unk_token": "?"});
    let tokenizer = json!({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": null, "decoder": null, "model": model});
    std::fs::write(&file, tokenizer.to_string()).unwrap();
    let patient = Patient::start().await;
    let model = MODEL.replace("bytes", &format!("'{}'", file.display()));
    let report = examined(&config(&model, &patient.worker(patient.address)), PATIENT).await;
    let (finding, remedy) = only_fault(&report, Check::Tokens);
    assert!(
        finding.ends_with("more")
            && finding.contains(" of 52 texts and chats differ: `plain` has 10 tokens here and 44 there"),
        "{finding}"
    );
    assert!(remedy.starts_with("point models[].tokenizer at the tokenizer.json that the engine loads"), "{remedy}");
    assert_eq!(report.ok, 7, "the probe is made of token ids");
    std::fs::remove_file(&file).unwrap();
    let report = examined(&config(&model, &patient.worker(patient.address)), PATIENT).await;
    let (finding, _) = only_fault(&report, Check::Tokens);
    assert!(finding.starts_with("the tokenizer cannot be loaded: cannot read `"), "{finding}");
}

#[tokio::test]
async fn an_engine_that_reports_other_cached_tokens_than_it_has_is_found_out() {
    let patient = Patient::start().await;
    // What it says of the first sending, and of the second one.
    for (lie, when, predicted, reported) in
        [(4, "the probe was new", 0, 4), (60, "the probe was repeated", 64, 60), (0, "the probe was repeated", 64, 0)]
    {
        let liar = Meddler::before(patient.address, move |path, answer| {
            let cached = &mut answer["usage"]["prompt_tokens_details"]["cached_tokens"];
            if path == "/v1/completions" && (lie == 4 || *cached != 0) {
                *cached = lie.into();
            }
        })
        .await;
        let report = examined(&config(MODEL, &patient.worker(liar.address)), PATIENT).await;
        let (finding, remedy) = only_fault(&report, Check::Prediction);
        let expected = format!("when {when}, {predicted} cached tokens were predicted and {reported} reported");
        assert_eq!(finding, expected);
        let expected = if reported > predicted {
            "the engine has more than it tells"
        } else {
            "the engine finds less than it told"
        };
        assert!(remedy.starts_with(expected), "{remedy}");
        assert_eq!(
            facts(&report, Check::Prediction),
            json!({"predicted_tokens": predicted, "reported_tokens": reported})
        );
    }
}

#[tokio::test]
async fn where_usage_does_not_tell_the_engines_counters_do() {
    let patient = Patient::start().await;
    let terse = Meddler::before(patient.address, |_, answer| {
        if let Some(usage) = answer["usage"].as_object_mut() {
            usage.insert("prompt_tokens_details".to_owned(), Value::Null);
        }
    })
    .await;
    let report = examined(&config(MODEL, &patient.worker(terse.address)), PATIENT).await;
    assert_eq!((report.ok, report.failed), (8, 0), "{}", report.table(false));
    assert_eq!(facts(&report, Check::Prediction)["reported_tokens"], 64);

    terse.hide(&["/metrics"]);
    let report = examined(&config(MODEL, &patient.worker(terse.address)), PATIENT).await;
    assert_eq!(
        (report.ok, report.failed, skipped(&report)),
        (7, 0, vec![Check::Prediction]),
        "{}",
        report.table(false)
    );
    assert!(report.table(false).contains("remedy: start vLLM with --enable-prompt-tokens-details"));
}

#[tokio::test]
async fn what_an_engine_does_not_offer_is_skipped_or_found_otherwise() {
    let patient = Patient::start().await;
    let bare = Meddler::before(patient.address, |_, _| {}).await;
    bare.hide(&["/tokenize", "/version", "/metrics"]);
    let report = examined(&config(MODEL, &patient.worker(bare.address)), PATIENT).await;
    assert_eq!((report.ok, report.failed, skipped(&report)), (7, 0, vec![Check::Version]), "{}", report.table(false));
    let tokens = &report.workers[0].checks[5];
    assert_eq!(tokens.finding, "48 awkward texts and 4 chats: as many tokens (it has no /tokenize)");
    // An engine that is to tokenize for the router has to offer it.
    let remote = MODEL.replace("bytes", "remote");
    let report = examined(&config(&remote, &patient.worker(bare.address)), PATIENT).await;
    assert!(only_fault(&report, Check::Tokens).1.contains("name a tokenizer.json instead"));
    let report = examined(&config(&remote, &patient.worker(patient.address)), PATIENT).await;
    assert_eq!((report.ok, report.failed), (8, 0), "{}", report.table(false));
    let none = MODEL.replace("tokenizer: bytes, ", "");
    let report = examined(&config(&none, &patient.worker(patient.address)), PATIENT).await;
    assert_eq!((report.ok, skipped(&report)), (7, vec![Check::Tokens]), "{}", report.table(false));
}

#[tokio::test]
async fn the_workers_key_is_sent_and_a_missing_one_is_named() {
    let patient = Patient::start().await;
    let locked = Meddler::before(patient.address, |_, _| {}).await;
    locked.lock("s3cret");
    let worker = patient.worker(locked.address);
    let report = examined(&config(MODEL, &worker), HASTY).await;
    let (finding, remedy) = only_fault(&report, Check::Model);
    assert_eq!(finding, "/v1/models says HTTP 401: Unauthorized");
    assert_eq!(remedy, "set workers[].api_key to the engine's --api-key");
    let report = examined(&config(MODEL, &worker.replace("model: m", "model: m, api_key: s3cret")), PATIENT).await;
    assert_eq!((report.ok, report.failed), (8, 0), "{}", report.table(false));
    assert!(!serde_json::to_string(&report).unwrap().contains("s3cret"));
}

/// Runs a command on a terminal of its own and prints what it said there.
const ON_A_TERMINAL: &str = r#"
import os, pty, sys
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
said = b""
try:
    while piece := os.read(terminal, 65536):
        said += piece
except OSError:
    pass
os.waitpid(child, 0)
sys.stdout.buffer.write(said)
"#;

#[test]
fn how_far_it_is_shows_only_on_a_terminal_on_which_lines_can_be_written_over() {
    let config = std::env::temp_dir().join(format!("warmpath-doctor-terminal-{}.yaml", std::process::id()));
    let text = "models: [{name: m}]\nworkers: [{id: w, url: 'http://127.0.0.1:9', model: m}]\n";
    std::fs::write(&config, text).unwrap();
    for (terminal, is_shown) in [("xterm", true), ("dumb", false)] {
        let mut command = std::process::Command::new(python());
        command.args(["-c", ON_A_TERMINAL, env!("CARGO_BIN_EXE_warmpath"), "doctor", "--config"]).arg(&config);
        let output = command.env("TERM", terminal).env("NO_COLOR", "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("reachable"), "{said:?}");
        assert_eq!(said.contains("\u{1b}[2Kexamining workers: "), is_shown, "TERM={terminal}: {said:?}");
        assert_eq!(said.contains('\u{1b}'), is_shown, "TERM={terminal}: {said:?}");
    }
    std::fs::remove_file(&config).unwrap();
}
