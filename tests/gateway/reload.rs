//! A configuration that changes while the router runs: what is broken changes nothing, what is good takes effect, and
//! nothing that is under way is dropped.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use warmpath::shutdown::Tasks;

use crate::fleet::{TestFleet, fleet};
use crate::scripted::{Scripted, Step, end, event, head, piece};

/// Signals reach every router of this process, and whoever follows a file reads it again then: nobody who counts that may
/// run beside a test that sends one.
pub(crate) static SIGNALS: RwLock<()> = RwLock::const_new(());

/// For a test that sends signals.
pub(crate) async fn alone() -> RwLockWriteGuard<'static, ()> {
    SIGNALS.write().await
}

/// The file of a configuration, gone with its test, while which nobody else sends signals.
pub(crate) struct File {
    path: PathBuf,
    _undisturbed: Option<RwLockReadGuard<'static, ()>>,
}

impl File {
    async fn new(name: &str, text: &str) -> Self {
        Self::written(name, text, Some(SIGNALS.read().await))
    }

    fn written(name: &str, text: &str, undisturbed: Option<RwLockReadGuard<'static, ()>>) -> Self {
        let path = std::env::temp_dir().join(format!("warmpath-reload-{}-{name}.yaml", std::process::id()));
        let file = Self { path, _undisturbed: undisturbed };
        file.write(text.as_bytes());
        file
    }

    /// Puts another text in its place, at once.
    pub(crate) fn write(&self, text: &[u8]) {
        let new = self.path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &self.path).unwrap();
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl TestFleet {
    /// Follows a file with what it was started with.
    pub(crate) async fn following(&self, name: &str) -> File {
        let file = File::new(name, &self.yaml).await;
        self.app.follow(file.path.clone(), Vec::new()).unwrap();
        self.eventually("it follows the file", async |fleet| fleet.config().await["file"].is_string()).await;
        file
    }

    pub(crate) async fn config(&self) -> Value {
        serde_json::from_str(&self.admin("/api/v1/config").await.1).unwrap()
    }

    pub(crate) async fn reload(&self) -> (u16, Value) {
        let url = format!("http://{}/api/v1/reload", self.app.admin_address());
        let answer = self.client.post(url).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }
}

/// So many ways to break a configuration, none like the other.
fn broken(good: &str, number: usize) -> Vec<u8> {
    let mutant = match number % 12 {
        0 => format!("{good}colour: red\n"),
        1 => good.replace("models:", "modles:"),
        2 => good[..good.len() / 2].to_owned(),
        3 => good.replace("http://", "ftp://"),
        4 => good.replace("round_robin", "fastest"),
        5 => String::new(),
        6 => format!("{good}\tx: 1\n"),
        7 => format!("{good}limits: {{headers: 0}}\ntimeouts: {{total: soon}}\n"),
        8 => good.replace("127.0.0.1:0', routing", "0.0.0.0:0', routing"),
        9 => format!("{good}{}", "#".repeat(1 << 20)),
        10 => format!("{good}retries: {{attempts: ${{env:NO_SUCH_VARIABLE}}}}\n"),
        _ => return [good.as_bytes(), &b"# \xff\n"[..]].concat(),
    };
    [mutant.as_bytes(), format!("# {number}\n").as_bytes()].concat()
}

/// Clients that ask again and again.
pub(crate) struct Load {
    tasks: Tasks,
    stop: Arc<AtomicBool>,
    /// Answers, and failures.
    counts: Arc<[AtomicU64; 2]>,
}

impl Load {
    pub(crate) fn start(fleet: &TestFleet) -> Self {
        let load = Self { tasks: Tasks::new(), stop: Arc::default(), counts: Arc::default() };
        for _ in 0..4 {
            let (stop, counts) = (Arc::clone(&load.stop), Arc::clone(&load.counts));
            let (client, url) = (fleet.client.clone(), fleet.url("/v1/completions"));
            load.tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let body = json!({"model": "m", "prompt": [97, 98, 99, 100], "max_tokens": 2});
                    let fine = client.post(&url).json(&body).send().await.is_ok_and(|answer| answer.status() == 200);
                    counts[usize::from(!fine)].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        load
    }

    /// How many were answered so far.
    pub(crate) fn answered(&self) -> u64 {
        self.counts[0].load(Ordering::Relaxed)
    }

    /// How many were answered, and how many were not.
    pub(crate) async fn stop(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.drain(Duration::from_secs(10)).await;
        (self.counts[0].load(Ordering::Relaxed), self.counts[1].load(Ordering::Relaxed))
    }
}

async fn a_good_one_takes_effect(fleet: &TestFleet, file: &File, before: &Value) {
    // Nobody asks for the good one: it is seen.
    file.write(fleet.yaml.replace("round_robin", "least_requests").as_bytes());
    fleet.eventually("the good one is followed", async |fleet| fleet.config().await["last_reload"]["ok"] == true).await;
    let now = fleet.config().await;
    assert_eq!((&now["last_reload"]["asked_by"], &now["needs_restart"]), (&json!("file"), &json!([])));
    assert_eq!(now["last_reload"]["changed"][0]["key"], "routing.policy");
    assert_ne!(now["hash"], before["hash"]);
    let policy = async |fleet: &TestFleet| -> Value {
        let list: Value = serde_json::from_str(&fleet.admin("/api/v1/decisions?limit=1").await.1).unwrap();
        list["decisions"][0]["policy"].clone()
    };
    fleet.eventually("its policy decides", async |fleet| policy(fleet).await == "least_requests").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_asks_for_a_reload() {
    let _alone = alone().await;
    let fleet = fleet().engines(1).start().await;
    let file = File::written("signal", &fleet.yaml, None);
    fleet.app.follow(file.path.clone(), Vec::new()).unwrap();
    fleet.eventually("it follows the file", async |fleet| fleet.config().await["file"].is_string()).await;
    let hup = Command::new("kill").args(["-HUP", &std::process::id().to_string()]).status();
    assert!(hup.unwrap().success());
    let by_signal = async |fleet: &TestFleet| fleet.config().await["last_reload"]["asked_by"] == "signal";
    fleet.eventually("a signal is heard", by_signal).await;
}

/// R18.
#[tokio::test(flavor = "multi_thread")]
async fn r18_fifty_broken_reloads_drop_nothing_and_a_good_one_takes_effect() {
    let held = vec![head(), piece(event("a")), Step::Await, piece("data: [DONE]\n\n"), end()];
    let held = Scripted::start(held).await;
    let fleet = fleet().engines(2).stranger(held.address).policy("round_robin").start().await;
    for engine in ["engine-1", "engine-2"] {
        fleet.operate(engine, "drain").await;
    }
    let body = json!({"model": "m", "prompt": "x", "stream": true}).to_string();
    let mut streams = Vec::new();
    for _ in 0..20 {
        let sending = fleet.client.post(fleet.url("/v1/completions")).body(body.clone()).send();
        streams.push(sending.await.unwrap());
    }
    for (worker, action) in [("stranger-1", "drain"), ("engine-1", "undrain"), ("engine-2", "undrain")] {
        fleet.operate(worker, action).await;
    }
    let file = fleet.following("r18").await;
    let before = fleet.config().await;

    let load = Load::start(&fleet);
    for number in 0..50 {
        file.write(&broken(&fleet.yaml, number));
        let (status, told) = fleet.reload().await;
        assert_eq!((status, &told["ok"]), (422, &json!(false)), "{number}");
        assert!(!told["faults"].as_array().unwrap().is_empty(), "{number}");
    }
    let after = fleet.config().await;
    assert_eq!((&after["values"], &after["hash"]), (&before["values"], &before["hash"]));
    assert_eq!(after["last_reload"]["ok"], false);
    let health = fleet.health().await;
    let complaint = health["degraded"][0].as_str().unwrap();
    assert!(
        complaint.starts_with("the configuration's file cannot be followed, what was in effect stays: "),
        "{complaint}"
    );
    assert!(fleet.metric("warmpath_config_reload_failures_total", "").await >= 50.0);
    assert_eq!(fleet.metric("warmpath_config_last_reload_successful", "").await, 0.0);

    a_good_one_takes_effect(&fleet, &file, &before).await;
    let (served, failed) = load.stop().await;
    assert!(failed == 0 && served >= 50, "{served} served, {failed} failed");
    for _ in 0..streams.len() {
        held.go();
    }
    for stream in streams {
        let text = stream.text().await.expect("a stream that was open goes on to its end");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_change_changes_and_what_cannot_is_named() {
    let fleet = fleet().engines(2).start().await;
    let file = fleet.following("live").await;
    let prompt: Vec<u32> = (97..121).collect();
    let first = fleet.complete(prompt.clone().into()).await;
    fleet.until_metric("warmpath_index_blocks", &first.worker, 6.0).await;
    let other = if first.worker == "engine-1" { "engine-2" } else { "engine-1" };
    let kept: String =
        fleet.yaml.lines().filter(|line| !line.contains(other)).map(|line| format!("{line}\n")).collect();
    let wanted = kept
        .replace("policy: kv", "policy: product")
        .replace("routing_headers: true", "routing_headers: true, admin_token: new")
        + "index: {seed: 7}\nlimits: {messages: 5}\n";
    file.write(wanted.as_bytes());
    let (status, told) = fleet.reload().await;
    assert_eq!((status, &told["needs_restart"]), (200, &json!(["index.seed"])), "{told}");
    let changed: Vec<&str> =
        told["changed"].as_array().unwrap().iter().filter_map(|change| change["key"].as_str()).collect();
    for key in ["routing.policy", "listen.admin_token", "limits.messages"] {
        assert!(changed.contains(&key), "{key}: {changed:?}");
    }
    assert!(changed.iter().any(|key| key.starts_with(&format!("workers[{other}]."))), "{changed:?}");
    assert!(!told.to_string().contains("\"new\":\"new\""), "the token is not told");
    // The new token is asked for at once.
    assert_eq!(fleet.admin("/api/v1/config").await.0, 401);
    let url = format!("http://{}/api/v1/config", fleet.app.admin_address());
    let shown: Value = fleet.client.get(url).bearer_auth("new").send().await.unwrap().json().await.unwrap();
    assert_eq!(shown["needs_restart"][0]["key"], "index.seed");
    let url = format!("http://{}/metrics", fleet.app.admin_address());
    let metrics = fleet.client.get(url).bearer_auth("new").send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("warmpath_config_restart_pending 1\n"));
    let value = |key: &str| {
        let values = shown["values"].as_array().unwrap();
        values.iter().find(|value| value["key"] == key).unwrap().clone()
    };
    assert_eq!((&value("index.seed")["value"], &value("limits.messages")["value"]), (&json!(1337), &json!(5)));
    assert_eq!(value("listen.admin_token")["value"], "[secret]");
    // What the worker holds is still known, and its model is served by whom is left.
    let second = fleet.complete(prompt.into()).await;
    assert_eq!((second.worker.as_str(), second.predicted), (first.worker.as_str(), Some(20)));
    let message = json!({"role": "user", "content": "x"});
    let chat = json!({"model": "m", "messages": vec![message; 6]});
    assert_eq!(fleet.post("/v1/chat/completions", &chat).await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_command_line_sets_stays_above_the_file_at_a_reload() {
    let fleet = fleet().engines(1).start().await;
    let file = File::new("flags", &fleet.yaml).await;
    fleet.app.follow(file.path.clone(), vec!["limits.messages=3".parse().unwrap()]).unwrap();
    fleet.eventually("it follows the file", async |fleet| fleet.config().await["file"].is_string()).await;
    let other = fleet.yaml.replace("policy: kv", "policy: product") + "limits: {messages: 5}\n";
    file.write(other.as_bytes());
    assert_eq!(fleet.reload().await.0, 200);
    let shown = fleet.config().await;
    let value = |key: &str| shown["values"].as_array().unwrap().iter().find(|value| value["key"] == key).unwrap();
    let expected =
        json!({"key": "limits.messages", "value": 3, "origin": "flag", "flag": "--override limits.messages"});
    assert_eq!(value("limits.messages"), &expected);
    assert_eq!(value("routing.policy")["value"], "product");
}

/// Every worker gets another address: nobody has passed a check there, and nobody else could serve.
#[tokio::test(flavor = "multi_thread")]
async fn requests_go_on_while_every_worker_moves() {
    let fleet = fleet().engines(2).config("timeouts: {health_interval: 5s}").start().await;
    let file = fleet.following("moved").await;
    let load = Load::start(&fleet);
    let mut moved = fleet.yaml.clone();
    for (from, to) in [("127.0.0.1", "localhost"), ("localhost", "127.0.0.1")] {
        let answered = load.answered();
        fleet.eventually("requests are answered", async |_| load.answered() > answered + 20).await;
        moved = moved.replace(&format!("url: 'http://{from}"), &format!("url: 'http://{to}"));
        file.write(moved.as_bytes());
        assert_eq!(fleet.reload().await.0, 200, "{moved}");
    }
    let answered = load.answered();
    fleet.eventually("requests are answered", async |_| load.answered() > answered + 20).await;
    let (answered, failed) = load.stop().await;
    assert_eq!(failed, 0, "beside {answered} that were answered");
}

/// Or routers of one file would be told to disagree, by when they read it.
#[tokio::test]
async fn a_file_that_says_the_same_in_other_words_has_its_own_hash() {
    let fleet = fleet().engines(1).start().await;
    let file = fleet.following("words").await;
    let before = fleet.config().await;
    let measured = async |fleet: &TestFleet| fleet.metric("warmpath_config_hash", "").await.to_bits();
    let hash = measured(&fleet).await;
    file.write(format!("# Ours.\n{}", fleet.yaml).as_bytes());
    fleet.eventually("it is seen", async |fleet| fleet.config().await["hash"] != before["hash"]).await;
    let after = fleet.config().await;
    let unchanged = |shown: &Value| (shown["last_reload"].clone(), shown["loaded_at_ms"].clone());
    assert_eq!(unchanged(&after), unchanged(&before));
    assert_ne!(measured(&fleet).await, hash);
}

#[tokio::test]
async fn a_router_of_no_file_says_so() {
    let fleet = fleet().start().await;
    let (status, told) = fleet.reload().await;
    assert_eq!((status, &told["faults"]), (422, &json!(["the configuration is from no file that can be read again"])));
    let config = fleet.config().await;
    assert_eq!((&config["file"], &config["last_reload"]), (&Value::Null, &Value::Null));
    assert!(config["values"].as_array().unwrap().iter().any(|leaf| leaf["key"] == "workers[engine-1].url"));
}

/// Whoever opened it would wait for a writer, and read nothing that comes after.
#[tokio::test]
async fn a_pipe_in_place_of_the_file_is_told_and_a_file_in_place_of_the_pipe_is_followed() {
    let fleet = fleet().engines(1).policy("round_robin").start().await;
    let file = fleet.following("pipe").await;
    std::fs::remove_file(&file.path).unwrap();
    assert!(Command::new("mkfifo").arg(&file.path).status().unwrap().success());
    let (status, told) = fleet.reload().await;
    let fault = format!("{}: cannot be read: it is no regular file", file.path.display());
    assert_eq!((status, &told["faults"]), (422, &json!([fault])));
    file.write(fleet.yaml.replace("round_robin", "least_requests").as_bytes());
    fleet.eventually("the file is followed", async |fleet| fleet.config().await["last_reload"]["ok"] == true).await;
    assert_eq!(fleet.config().await["last_reload"]["changed"][0]["key"], "routing.policy");
}
