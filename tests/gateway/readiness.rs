//! What the router says of itself where it cannot serve, or only as a load balancer.

use serde_json::{Value, json};

use crate::faulty::Faulty;
use crate::fleet::{TestFleet, fleet};
use crate::models::serves;
use crate::nats::NatsServer;
use crate::scripted::{Scripted, good_stream, whole};

async fn degraded(fleet: &TestFleet) -> Vec<String> {
    let health = fleet.health().await;
    health["degraded"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect()
}

async fn until_said(fleet: &TestFleet, line: &str) {
    fleet.eventually(line, async |fleet| degraded(fleet).await.iter().any(|said| said == line)).await;
}

#[tokio::test]
async fn a_router_whose_workers_are_all_off_duty_is_not_ready_and_says_why() {
    for when in ["any", "all"] {
        let fleet = fleet().config(&format!("ready_when: {when}\ntimeouts: {{start_interval: 50ms}}")).start().await;
        fleet.eventually("it is ready", async |fleet| fleet.admin("/readyz").await.0 == 200).await;
        assert_eq!(fleet.operate("engine-1", "drain").await.0, 200);
        assert_eq!(
            (fleet.admin("/readyz").await.0, fleet.health().await["status"].clone()),
            (200, json!("ok")),
            "{when}"
        );
        assert_eq!(fleet.operate("engine-2", "eject").await.0, 200);
        let why = "nobody serves `m`: engine-1 is draining, engine-2 is ejected";
        assert_eq!(fleet.admin("/readyz").await, (503, format!("not ready: {why}\n")));
        let health = fleet.health().await;
        assert_eq!(
            (&health["ready"], &health["not_ready"], &health["status"]),
            (&json!(false), &json!(why), &json!("degraded"))
        );
        assert_eq!(health["degraded"], json!([why]));
        assert_eq!(fleet.row("engine-1").await["state"], "draining", "it is well, and finishes what it has");
        assert_eq!(fleet.operate("engine-1", "undrain").await.0, 200);
        assert_eq!((fleet.admin("/readyz").await.0, fleet.health().await["not_ready"].clone()), (200, Value::Null));
    }
}

#[tokio::test]
async fn all_are_waited_for_at_the_start_and_one_that_dies_later_is_not() {
    let [stays, goes] = [Faulty::start(|_, _| Vec::new()).await, Faulty::start(|_, _| Vec::new()).await];
    let all = "ready_when: all\ntimeouts: {start_interval: 50ms, health_interval: 100ms}";
    let late = ([127, 0, 0, 1], 9).into();
    let waits = fleet().engines(0).stranger(stays.address).stranger(late).config(all).start_at_once().await;
    let said = "not ready: it waits for every worker, as `ready_when: all` says: not every worker serves `m`: ";
    let waiting = async |fleet: &TestFleet| {
        let (status, text) = fleet.admin("/readyz").await;
        status == 503 && text.starts_with(said) && text.contains("is well, ")
    };
    waits.eventually("it waits", waiting).await;
    let fleet = fleet().engines(0).stranger(stays.address).stranger(goes.address).config(all).start().await;
    fleet.eventually("it is ready", async |fleet| fleet.admin("/readyz").await.0 == 200).await;
    goes.kill().await;
    let is_down = async |fleet: &TestFleet| fleet.health().await["degraded"] != json!([]);
    fleet.eventually("one is down", is_down).await;
    assert_eq!(fleet.admin("/readyz").await.0, 200);
    stays.kill().await;
    let nobody = async |fleet: &TestFleet| fleet.admin("/readyz").await.1.starts_with("not ready: nobody serves `m`: ");
    fleet.eventually("nobody is left", nobody).await;
}

#[tokio::test]
async fn a_policy_that_wants_tokens_and_has_no_tokenizer_says_so() {
    let said = "`m` has no tokenizer: its prompts sent as text are routed by load";
    let blind = fleet().tokenizer("null").without_events().start().await;
    assert_eq!(
        (degraded(&blind).await, blind.health().await["status"].clone()),
        (vec![said.to_owned()], json!("degraded"))
    );
    blind.eventually("it is ready all the same", async |fleet| fleet.admin("/readyz").await.0 == 200).await;
    // These want none.
    for policy in ["round_robin", "approx_lru"] {
        let fleet = fleet().tokenizer("null").without_events().policy(policy).start().await;
        assert_eq!(degraded(&fleet).await, Vec::<String>::new(), "{policy}");
    }
    let asked = fleet().tokenizer("remote").start().await;
    assert_eq!(degraded(&asked).await, Vec::<String>::new());
}

#[tokio::test]
async fn an_engine_whose_metrics_cannot_be_read_is_named() {
    let worker = Scripted::start(good_stream()).await;
    let config = "engines: {metrics_interval: 20ms}";
    let fleet = fleet().engines(1).config(config).stranger(worker.address).start().await;
    let said = "metrics of worker `stranger-1` cannot be read (no known engine's names are in them): what others send there \
                is not seen";
    until_said(&fleet, said).await;
    assert!(fleet.metric("warmpath_engine_metrics_age_seconds", "stranger-1").await > 0.1, "since it joined");
    worker.says(Some("vllm:num_requests_running{engine=\"0\"} 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.0\n"));
    fleet.eventually("it is well", async |fleet| degraded(fleet).await.is_empty()).await;
}

/// One engine's socket is away: that is said of this one, and the other's events come.
#[tokio::test]
async fn what_one_engine_lacks_is_not_said_of_the_others() {
    let nats = NatsServer::down(false);
    let heard = crate::zmq_engine::Speaking::start().await;
    let nowhere = Scripted::start(good_stream()).await;
    let away = "events: zmq, zmq_endpoint: 'tcp://127.0.0.1:9'";
    let fleet = fleet()
        .engines(0)
        .config(&format!("events: {{nats: {{url: '{}'}}}}", nats.url()))
        .stranger_with(nowhere.address, away)
        .stranger_with(heard.address, &heard.settings)
        .start_at_once()
        .await;
    fleet
        .eventually("both are told", async |fleet| {
            let said = degraded(fleet).await;
            let away = "events of stranger-1 are not connected (tcp://127.0.0.1:9: ";
            let unused = "no worker's events come over it; registrations and other routers are not heard";
            said.iter()
                .any(|line| line.starts_with(away) && line.ends_with("routed to by load and by what was known before"))
                && said
                    .iter()
                    .any(|line| line.starts_with("the event bus is not connected (") && line.ends_with(unused))
                && !said.iter().any(|line| line.starts_with("events of stranger-2"))
        })
        .await;
    assert_eq!(fleet.metric("warmpath_event_bus_up", "").await, 1.0);
    fleet
        .eventually("the server is told with its address and the cause", async |fleet| {
            let bus: Value = serde_json::from_str(&fleet.admin("/api/v1/bus").await.1).unwrap();
            let (server, at) = (&bus["buses"][0], bus["buses"][0]["at"].as_str().unwrap());
            let why = format!("{at}: Connection refused (os error 111)");
            server["error"] == why && server["for_s"].as_f64().unwrap() > 0.0
        })
        .await;
}

#[tokio::test]
async fn a_worker_that_lists_another_model_or_shares_its_address_is_told_of() {
    let (other, shared) = (Scripted::start(good_stream()).await, Scripted::start(good_stream()).await);
    other.offers(&serves(9, &[]).replace("\"m\"", "\"other\""));
    shared.offers(&serves(9, &[]));
    let config = "engines: {models_interval: 20ms}";
    let fleet = fleet().engines(0).config(config);
    let fleet = fleet.stranger(other.address).stranger(shared.address).stranger(shared.address).start().await;
    let misnamed = "worker `stranger-1` serves `other`, not `m`: start it with --served-model-name m alias/of-m, or \
         correct its `model`";
    let twins = format!("worker `stranger-3` is at the address of `stranger-2`, {}", shared.address);
    until_said(&fleet, misnamed).await;
    until_said(&fleet, &twins).await;
    other.offers(&serves(9, &[]));
    fleet.eventually("only twins are left", async |fleet| degraded(fleet).await == [&*twins]).await;
}

/// A request for an adapter would be told that there is no such model, which nobody tries again.
#[tokio::test]
async fn a_router_is_not_ready_before_its_workers_have_said_what_they_serve() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    worker.offers_nothing();
    let settings = "timeouts: {health_check: 100ms, health_interval: 50ms}\nengines: {models_interval: 60s}";
    let fleet = fleet().engines(0).stranger(worker.address).config(settings).start().await;
    let why = "what its workers serve is still being read";
    fleet.eventually(why, async |fleet| fleet.health().await["not_ready"] == why).await;
    let ask = async |model: &str| fleet.post("/v1/completions", &json!({"model": model, "prompt": "x"})).await.status;
    assert_eq!((fleet.admin("/readyz").await.0, ask("m").await, ask("sql").await), (503, 200, 404));
    // It is asked again long before the interval is over.
    worker.offers(&serves(4096, &["sql"]));
    fleet.eventually("it is ready", async |fleet| fleet.admin("/readyz").await.0 == 200).await;
    assert_eq!(ask("sql").await, 200);
}
