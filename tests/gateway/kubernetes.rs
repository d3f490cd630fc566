//! Workers that are the endpoints of a Kubernetes Service, by an API server that lists and watches as the real one does.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use warmpath::shutdown::Tasks;

use crate::api_server::{ApiServer, Denial};
use crate::fleet::{TestFleet, fleet};
use crate::scripted::{Scripted, good_stream};
use crate::tls::{Certificates, tls_before};

/// A file with a token of a test's own, gone with it.
struct Token(PathBuf);

impl Token {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("warmpath-{}-{name}", std::process::id()));
        let token = Self(path);
        token.write("first");
        token
    }

    fn write(&self, token: &str) {
        std::fs::write(&self.0, format!("{token}\n")).unwrap();
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn worker() -> Scripted {
    Scripted::start(good_stream()).await
}

/// A slice with one endpoint of 127.0.0.1 for each pod, which are ready or not, at the worker's port.
fn slice(name: &str, worker: &Scripted, pods: &[(&str, bool)]) -> Value {
    let endpoint = |(pod, ready): &(&str, bool)| {
        json!({"addresses": ["127.0.0.1"], "conditions": {"ready": ready, "serving": ready, "terminating": false},
            "nodeName": "n", "zone": "z", "targetRef": {"kind": "Pod", "namespace": "gpu", "name": pod, "uid": "u"}})
    };
    let endpoints: Vec<Value> = pods.iter().map(endpoint).collect();
    json!({"metadata": {"name": name, "namespace": "gpu", "labels": {"kubernetes.io/service-name": "vllm"}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "protocol": "TCP", "port": worker.address.port()}]})
}

/// The configuration of a router that follows Service `vllm` there.
fn settings(api: &ApiServer, interval: &str, token: &Token) -> String {
    settings_at(&format!("http://{}", api.address()), interval, token, "")
}

fn settings_at(server: &str, interval: &str, token: &Token, more: &str) -> String {
    format!(
        "timeouts: {{health_interval: 5ms}}\ndiscovery: {{kubernetes: {{service: vllm, namespace: gpu, port: http, \
         interval: {interval}, server: '{server}', token_file: '{}'{more}}}}}",
        token.0.display()
    )
}

async fn until_well(fleet: &TestFleet) {
    fleet.eventually("it is well", async |fleet| fleet.health().await["degraded"] == json!([])).await;
}

async fn faults(fleet: &TestFleet) -> f64 {
    fleet.metric("warmpath_discovery_faults", "source=\"kubernetes\"").await
}

/// The interval is so long that only the watch can have told.
#[tokio::test]
async fn endpoints_join_leave_and_pause_as_the_watch_tells() {
    let (mut api, token, a, b) = (ApiServer::start().await, Token::new("watch"), worker().await, worker().await);
    let fleet = fleet().engines(0).config(&settings(&api, "1h", &token)).start().await;
    fleet.until_degraded("there is no EndpointSlice of a Service `vllm` in namespace `gpu`").await;
    api.put(slice("vllm-1", &a, &[("a", true)]));
    fleet.until_answered_by("a").await;
    until_well(&fleet).await;
    // Another slice of the same Service, and the first one's pod is not ready any more.
    api.put(slice("vllm-2", &b, &[("b", true)]));
    api.put(slice("vllm-1", &a, &[("a", false)]));
    fleet.until_answered_by("b").await;
    fleet.eventually("a is gone", async |fleet| !fleet.admin("/metrics").await.1.contains("worker=\"a\"")).await;
    api.put(slice("vllm-1", &a, &[("a", true)]));
    api.remove("vllm-2");
    fleet.until_answered_by("a").await;
    fleet.eventually("b is gone", async |fleet| !fleet.admin("/metrics").await.1.contains("worker=\"b\"")).await;
    api.remove("vllm-1");
    fleet.until_nobody_answers().await;
    let seen = api.seen();
    assert_eq!(seen.iter().filter(|seen| !seen.contains("watch=1")).count(), 1, "{seen:?}");
    let slices = "GET /apis/discovery.k8s.io/v1/namespaces/gpu/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dvllm&";
    assert_eq!(seen[0], format!("{slices}limit=64 Bearer first"));
    let watch = "watch=1&allowWatchBookmarks=true&timeoutSeconds=";
    assert!(seen[1].starts_with(&format!("{slices}{watch}")) && seen[1].contains("&resourceVersion="), "{}", seen[1]);
    api.leave().await;
}

#[tokio::test]
async fn a_watch_that_ends_goes_on_where_it_was_and_one_that_is_too_old_begins_with_a_list() {
    let (mut api, token, a, b) = (ApiServer::start().await, Token::new("ends"), worker().await, worker().await);
    api.put(slice("vllm-1", &a, &[("a", true)]));
    let fleet = fleet().engines(0).config(&settings(&api, "1h", &token)).start().await;
    fleet.until_answered_by("a").await;
    let lists = |api: &ApiServer| api.seen().iter().filter(|seen| !seen.contains("watch=1")).count();
    let watches = |api: &ApiServer| api.seen().iter().filter(|seen| seen.contains("watch=1")).count();
    // What changes while no watch stands is told by the next one.
    fleet.eventually("it is watched", async |_| api.is_watched()).await;
    token.write("second");
    api.end_watches();
    api.put(slice("vllm-1", &b, &[("b", true)]));
    fleet.until_answered_by("b").await;
    assert_eq!((lists(&api), watches(&api)), (1, 2));
    assert!(api.seen()[2].ends_with(" Bearer second"), "{:?}", api.seen());
    // The server has forgotten what came before: an event says so, and then the head of an answer.
    for (round, is_told_late) in [(2, true), (3, false)] {
        fleet.eventually("it is watched", async |_| api.is_watched()).await;
        api.forget(is_told_late);
        api.end_watches();
        api.put(slice("vllm-1", &a, &[("a", true), ("not-yet", false)]));
        fleet.eventually("it is listed again", async |_| lists(&api) == round).await;
        fleet.until_answered_by("a").await;
    }
    assert_eq!((fleet.health().await["degraded"].clone(), faults(&fleet).await), (json!([]), 0.0));
    api.leave().await;
}

/// One page holds a slice here.
#[tokio::test]
async fn a_long_list_comes_in_pages_and_a_silent_watch_has_the_next_list_below_it() {
    let (mut api, token) = (ApiServer::start().await, Token::new("pages"));
    let (a, b, c) = (worker().await, worker().await, worker().await);
    api.page(1);
    api.put(slice("vllm-1", &a, &[("a", true)]));
    api.put(slice("vllm-2", &b, &[("b", true)]));
    let fleet = fleet().engines(0).config(&settings(&api, "100ms", &token)).start().await;
    fleet.until_metric("warmpath_worker_up", "worker=\"a\"", 1.0).await;
    fleet.until_metric("warmpath_worker_up", "worker=\"b\"", 1.0).await;
    api.be_silent();
    api.put(slice("vllm-3", &c, &[("c", true)]));
    fleet.until_metric("warmpath_worker_up", "worker=\"c\"", 1.0).await;
    api.remove("vllm-3");
    fleet.eventually("c is gone", async |fleet| !fleet.admin("/metrics").await.1.contains("worker=\"c\"")).await;
    api.leave().await;
}

#[tokio::test]
async fn a_server_that_is_away_takes_nobody_along_and_is_asked_again() {
    let (mut api, token, a, b) = (ApiServer::start().await, Token::new("away"), worker().await, worker().await);
    api.put(slice("vllm-1", &a, &[("a", true)]));
    let fleet = fleet().engines(0).config(&settings(&api, "300ms", &token)).start().await;
    fleet.until_answered_by("a").await;
    assert_eq!(faults(&fleet).await, 0.0);
    api.leave().await;
    fleet.until_degraded("does not answer").await;
    fleet.until_degraded("the workers that they named last are kept").await;
    assert_eq!((faults(&fleet).await, fleet.who().await.as_deref()), (1.0, Ok("a")));
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(fleet.who().await.as_deref(), Ok("a"));
    api.put(slice("vllm-1", &b, &[("b", true)]));
    api.come_back().await;
    fleet.until_answered_by("b").await;
    until_well(&fleet).await;
    assert_eq!(faults(&fleet).await, 0.0);
    api.leave().await;
}

#[tokio::test]
async fn whoever_may_not_ask_is_told_what_is_missing() {
    let (mut api, token, a) = (ApiServer::start().await, Token::new("denied"), worker().await);
    api.put(slice("vllm-1", &a, &[("a", true)]));
    api.deny(Some(Denial::Everything(401, "Unauthorized")));
    let fleet = fleet().engines(0).config(&settings(&api, "50ms", &token)).start().await;
    fleet.until_degraded("does not accept the token in").await;
    let forbidden =
        "endpointslices.discovery.k8s.io is forbidden: User \"system:serviceaccount:gpu:default\" cannot list";
    api.deny(Some(Denial::Everything(403, forbidden)));
    fleet.until_degraded("cannot list").await;
    fleet.until_degraded("needs a Role in namespace `gpu` with get, list and watch of endpointslices").await;
    assert_eq!(fleet.who().await, Err(503));
    // Lists alone are enough to serve.
    api.deny(Some(Denial::Watches(403, "cannot watch")));
    fleet.until_answered_by("a").await;
    fleet.until_degraded("changes of endpoints are seen late").await;
    api.deny(None);
    until_well(&fleet).await;
    std::fs::remove_file(&token.0).unwrap();
    fleet.until_degraded("is the service account's token mounted").await;
    assert_eq!(fleet.who().await.as_deref(), Ok("a"));
    api.leave().await;
}

#[tokio::test]
async fn answers_that_are_none_are_refused_in_words() {
    let (mut api, token, a) = (ApiServer::start().await, Token::new("nonsense"), worker().await);
    api.deny(Some(Denial::Body("[1, 2")));
    let fleet = fleet().engines(0).config(&settings(&api, "1h", &token)).start().await;
    fleet.until_degraded("the API server's answer is no list of EndpointSlices").await;
    api.put(slice("vllm-1", &a, &[("a", true)]));
    api.deny(None);
    fleet.until_answered_by("a").await;
    until_well(&fleet).await;
    let is_told = async |fleet: &TestFleet| {
        api.say("nonsense\n");
        fleet.health().await["degraded"].to_string().contains("an event cannot be read")
    };
    fleet.eventually("an event that is none is told", is_told).await;
    until_well(&fleet).await;
    assert_eq!(fleet.who().await.as_deref(), Ok("a"));
    api.leave().await;
}

/// As in a cluster: its own authority, in a file that may be exchanged.
#[tokio::test]
async fn over_tls_the_server_must_be_one_of_the_authoritys() {
    let (mut api, token, a, tasks) = (ApiServer::start().await, Token::new("tls"), worker().await, Tasks::new());
    let files = Certificates::new("kubernetes");
    api.put(slice("vllm-1", &a, &[("a", true)]));
    let address = tls_before(api.address(), &files, "server", false, &tasks).await;
    let trusted = files.path("trusted.pem");
    std::fs::copy(files.path("other.pem"), &trusted).unwrap();
    let authorities = format!(", authorities: '{}'", trusted.display());
    let settings = settings_at(&format!("https://{address}"), "1s", &token, &authorities);
    let fleet = fleet().engines(0).config(&settings).start().await;
    fleet.until_degraded("invalid peer certificate").await;
    assert_eq!((api.seen().len(), fleet.who().await), (0, Err(503)));
    std::fs::copy(files.path("ca.pem"), &trusted).unwrap();
    fleet.until_answered_by("a").await;
    until_well(&fleet).await;
    api.leave().await;
}
