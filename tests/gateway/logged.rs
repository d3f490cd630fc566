//! What is written into the log, and how often.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::header::ORIGIN;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

use crate::fleet::{TestFleet, fleet};
use crate::nats::NatsServer;
use crate::scripted::{Scripted, Step, until, whole};
use crate::sdk::python;

/// What this thread has logged, for as long as its guard lives. Tests that read it run on one thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn begin() -> (Self, DefaultGuard) {
        let lines = Self::default();
        let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false).without_time().finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    /// Lines with all of these words.
    fn with(&self, words: &[&str]) -> usize {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Runs a command on a terminal of its own until it has logged a line, and prints what it said.
const ON_A_TERMINAL: &str = r#"
import os, pty, signal, sys
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
said = b""
while b"\n" not in said.partition(b"INFO")[2]:
    said += os.read(terminal, 65536)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
sys.stdout.buffer.write(said)
"#;

#[test]
fn a_log_has_colours_on_a_terminal_that_has_them_unless_somebody_wants_none() {
    let config = std::env::temp_dir().join(format!("warmpath-colours-{}.yaml", std::process::id()));
    let text = "listen: {data: '127.0.0.1:0', admin: '127.0.0.1:0'}\nmodels: [{name: m}]\n\
                workers: [{id: w, url: 'http://127.0.0.1:9', model: m}]\n";
    std::fs::write(&config, text).unwrap();
    for (terminal, no_color, is_coloured) in
        [("xterm", "", true), ("xterm", "1", false), ("dumb", "", false), ("dumb", "1", false)]
    {
        let mut command = Command::new(python());
        command.args(["-c", ON_A_TERMINAL, env!("CARGO_BIN_EXE_warmpath"), "serve", "--config"]).arg(&config);
        let output = command.env("TERM", terminal).env("NO_COLOR", no_color).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(said.contains('\u{1b}'), is_coloured, "TERM={terminal} NO_COLOR={no_color}: {said:?}");
    }
    std::fs::remove_file(&config).unwrap();
}

/// An engine may take its time, and whoever asked may not.
#[tokio::test]
async fn what_an_operator_has_begun_is_done_and_leaves_its_line_though_he_leaves() {
    let (lines, _guard) = Lines::begin();
    let worker = Scripted::start(vec![Step::Await, whole("200 OK", "")]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    let url = format!("http://{}/api/v1/workers/stranger-1/reset_cache", fleet.app.admin_address());
    tokio::select! {
        _ = fleet.client.post(url).send() => panic!("the engine has not answered"),
        () = worker.asked(1) => {}
    }
    // The router sees that he has gone.
    tokio::time::sleep(Duration::from_millis(100)).await;
    worker.go();
    let line = ["warmpath::audit", "operator", "action=\"reset_cache\"", "status=200"];
    until("it has left its line", || lines.with(&line) == 1).await;
}

async fn reload(fleet: &TestFleet, origin: Option<&str>) -> u16 {
    let request = fleet.client.post(format!("http://{}/api/v1/reload", fleet.app.admin_address()));
    let request = origin.into_iter().fold(request, |request, origin| request.header(ORIGIN, origin));
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn every_reload_that_is_asked_for_leaves_a_line_refused_ones_too() {
    let (lines, _guard) = Lines::begin();
    let open = fleet().start().await;
    assert_eq!(reload(&open, Some("http://elsewhere")).await, 403);
    let guarded = fleet().listen("admin_token: secret").start().await;
    assert_eq!((reload(&guarded, None).await, reload(&open, None).await), (401, 422));
    for status in ["status=403", "status=401", "status=422"] {
        assert_eq!(lines.with(&["warmpath::audit", "operator", "action=\"reload\"", status]), 1, "{status}");
    }
}

#[tokio::test]
async fn a_tokenizer_that_is_missed_is_told_of_once() {
    let (lines, _guard) = Lines::begin();
    let broken = fleet().tokenizer("/nowhere/tokenizer.json").start().await;
    let told = || lines.with(&["WARN", "the tokenizer of `m` could not be loaded (", "/nowhere/tokenizer.json"]) == 1;
    until("it is told", told).await;
    let none = fleet().tokenizer("null").start().await;
    until("that too", || lines.with(&["WARN", "`m` has no tokenizer"]) == 1).await;
    for fleet in [&broken, &none] {
        fleet.health().await;
    }
    assert!(told() && lines.with(&["`m` has no tokenizer"]) == 1);
}

#[tokio::test]
async fn a_worker_that_goes_and_comes_back_is_told_of_in_words() {
    let (lines, _guard) = Lines::begin();
    let mut fleet = fleet().engines(1).config("timeouts: {health_interval: 50ms}").start().await;
    std::mem::take(&mut fleet.tasks).drain(Duration::ZERO).await;
    let gone = ["WARN", "taken out: its health checks fail", "worker=engine-1"];
    until("it is out", || lines.with(&gone) > 0).await;
    // More checks fail.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(lines.with(&gone), 1);
    fleet.restart_engines().await;
    let back = ["INFO", "brought back: its health checks pass", "worker=engine-1"];
    until("it is back", || lines.with(&back) > 0).await;
}

#[tokio::test]
async fn of_two_thousand_batches_that_cannot_be_used_eleven_are_told() {
    let (lines, _guard) = Lines::begin();
    let server = NatsServer::core();
    let fleet = fleet().engines(1).silent().nats(server.url()).start().await;
    let bus = async_nats::connect(server.url()).await.unwrap();
    for _ in 0..2000 {
        bus.publish("warmpath.kv.m.engine-1.0", "junk".into()).await.unwrap();
    }
    let junk = "worker=\"engine-1\",outcome=\"undecodable\"";
    fleet.until_metric("warmpath_kv_events_total", junk, 2000.0).await;
    assert_eq!(lines.with(&["WARN", "events refused", "engine-1", "a batch cannot be read"]), 11);
}

#[tokio::test]
async fn a_clean_stop_is_no_loss_of_the_bus() {
    let (lines, _guard) = Lines::begin();
    let server = NatsServer::core();
    let fleet = fleet().nats(server.url()).start().await;
    let resting = fleet.stop_gateway().await;
    until("the bus is closed", || lines.with(&["INFO", "event bus closed"]) == 1).await;
    assert_eq!(lines.with(&["event bus lost"]), 0);
    drop(resting);
}
