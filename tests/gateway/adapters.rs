//! LoRA adapters: served by the workers that have them, with prefixes of their own.

use serde_json::{Value, json};
use warmpath_indexer::event::{CacheEvent, Stored};

use crate::by_hand::{batch, stored};
use crate::fleet::{Answered, TestFleet, fleet};
use crate::models::{serves, until_listed};
use crate::nats::NatsServer;
use crate::scripted::{Scripted, Step, whole};

const CONFIG: &str = "engines: {models_interval: 20ms}";

async fn ask(fleet: &TestFleet, model: &str) -> Answered {
    let prompt: Vec<u32> = (0..40).collect();
    fleet.post("/v1/completions", &json!({"model": model, "prompt": prompt})).await
}

async fn two(first: &[&str], second: &[&str]) -> [Scripted; 2] {
    let workers =
        [Scripted::start(vec![whole("200 OK", "{}")]).await, Scripted::start(vec![whole("200 OK", "{}")]).await];
    workers[0].offers(&serves(4096, first));
    workers[1].offers(&serves(4096, second));
    workers
}

#[tokio::test]
async fn only_workers_that_have_an_adapter_are_asked_for_it() {
    let workers = two(&["both"], &["both", "second"]).await;
    let builder = fleet().engines(0).stranger(workers[0].address).stranger(workers[1].address);
    let fleet = builder.policy("round_robin").config(CONFIG).start().await;
    until_listed(&fleet, &["m", "alias/of-m", "both", "second"]).await;
    fleet
        .eventually("both have said it", async |fleet| {
            let known: Value = serde_json::from_str(&fleet.admin("/api/v1/workers").await.1).unwrap();
            known["workers"][0]["adapters"] == json!(["both"])
                && known["workers"][1]["adapters"] == json!(["both", "second"])
        })
        .await;
    let mut chosen = Vec::new();
    for model in ["second", "both", "both", "second", "both", "m:second"] {
        let answer = ask(&fleet, model).await;
        assert_eq!(answer.status, 200, "{model}: {answer:?}");
        chosen.push((model, answer.worker));
    }
    assert!(chosen.iter().all(|(model, worker)| *model == "both" || worker == "stranger-2"), "{chosen:?}");
    for worker in ["stranger-1", "stranger-2"] {
        assert!(chosen.contains(&("both", worker.to_owned())), "{chosen:?}");
    }
    let beside = async |adapter: Value| {
        let body = json!({"model": "m", "lora_path": adapter, "prompt": "x"});
        let answer = fleet.post("/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.worker
    };
    assert_eq!([beside(json!("second")).await, beside(json!("second")).await], ["stranger-2", "stranger-2"]);
    // Engines that are none of SGLang's do not read it.
    for of_none in [json!("third"), json!(["second"])] {
        let mut served = [beside(of_none.clone()).await, beside(of_none.clone()).await];
        served.sort();
        assert_eq!(served, ["stranger-1", "stranger-2"], "{of_none}");
    }
    let embedding = fleet.post("/v1/embeddings", &json!({"model": "second", "input": "x"})).await;
    assert_eq!((embedding.status, embedding.worker.as_str()), (200, "stranger-2"));
    assert_eq!(ask(&fleet, "third").await.status, 404);
    assert_eq!(ask(&fleet, "x:second").await.status, 404);
    // Nobody else may take over.
    workers[1].plays(vec![whole("503 Service Unavailable", "{}")]);
    let asked = workers[0].seen().len();
    assert_eq!(ask(&fleet, "second").await.status, 503);
    assert_eq!(workers[0].seen().len(), asked);
}

/// While a new name is brought to one worker after the other.
#[tokio::test]
async fn an_alias_goes_to_those_that_go_by_it_where_anybody_does() {
    let workers = two(&[], &[]).await;
    let builder = fleet().engines(0).stranger(workers[0].address).stranger(workers[1].address);
    let fleet = builder.policy("round_robin").config(CONFIG).start().await;
    let chosen = async || {
        let mut chosen = Vec::new();
        for _ in 0..4 {
            let answer = ask(&fleet, "alias/of-m").await;
            assert_eq!(answer.status, 200, "{answer:?}");
            chosen.push(answer.worker);
        }
        chosen.sort();
        chosen.dedup();
        chosen
    };
    // Engines may serve a name without listing it.
    assert_eq!(chosen().await, ["stranger-1", "stranger-2"]);
    let unknown = r#"{"error": {"code": "model_not_found"}}"#;
    workers[0].plays(vec![whole("404 Not Found", unknown)]);
    let listed = serves(4096, &[]).replacen(r#"[{"#, r#"[{"id": "alias/of-m", "root": "/models/m"}, {"#, 1);
    workers[1].offers(&listed);
    fleet
        .eventually("it is known who goes by it", async |fleet| {
            let asked = workers[0].seen().len();
            assert_eq!(ask(fleet, "alias/of-m").await.status, 200);
            assert_eq!(ask(fleet, "alias/of-m").await.status, 200);
            workers[0].seen().len() == asked
        })
        .await;
    assert_eq!(chosen().await, ["stranger-2"]);
    let embedding = fleet.post("/v1/embeddings", &json!({"model": "alias/of-m", "input": "x"})).await;
    assert_eq!((embedding.status, embedding.worker.as_str()), (200, "stranger-2"));
    // Of its own name it is another matter.
    workers[1].plays(vec![whole("404 Not Found", unknown)]);
    let answer = ask(&fleet, "alias/of-m").await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.body["error"]["message"], "no worker that was asked serves the model");
}

/// What a worker does that answers when it is told to.
fn slow() -> Vec<Step> {
    vec![Step::Await, whole("200 OK", "{}")]
}

/// Two that take one request at a time; the first, which has the adapter, answers when it is told to.
async fn one_at_a_time() -> ([Scripted; 2], TestFleet) {
    let workers = two(&["sql"], &[]).await;
    workers[0].plays(slow());
    let one = "events: none, max_num_seqs: 1";
    let builder = fleet().engines(0).stranger_with(workers[0].address, one).stranger_with(workers[1].address, one);
    let fleet = builder.config(CONFIG).start().await;
    until_listed(&fleet, &["m", "alias/of-m", "sql"]).await;
    (workers, fleet)
}

/// The only worker that has the adapter is busy; the other one is not, and nobody has to wait for it.
#[tokio::test]
async fn who_waits_for_an_adapter_keeps_nobody_from_a_worker_without_it() {
    let (workers, fleet) = one_at_a_time().await;
    let fleet = &fleet;
    let sent = |model: &'static str| async move {
        let served = ask(fleet, model).await;
        (served.status, served.worker)
    };
    let is_queued = |count: f64| async move {
        let waiting = async |fleet: &TestFleet| fleet.metric("warmpath_queue_length", "class=\"normal\"").await;
        fleet.eventually("so many wait", async |fleet| waiting(fleet).await == count).await;
    };
    let others = async {
        workers[0].asked(1).await;
        is_queued(1.0).await;
        // One that comes while the other waits, and one that waits behind it.
        assert_eq!(sent("m").await, (200, "stranger-2".to_owned()));
        workers[1].plays(slow());
        let behind = async {
            workers[1].asked(2).await;
            is_queued(2.0).await;
            workers[1].go();
            workers[1].go();
        };
        let (held, waited, ()) = tokio::join!(sent("m"), sent("m"), behind);
        assert_eq!([held, waited], [(); 2].map(|()| (200, "stranger-2".to_owned())));
        workers[0].go();
        workers[0].go();
    };
    let (first, second, ()) = tokio::join!(sent("sql"), sent("sql"), others);
    assert_eq!([first, second], [(); 2].map(|()| (200, "stranger-1".to_owned())));
}

/// Where an adapter is loaded there is room for those that wait for it, and where it is unloaded there is nobody any more.
#[tokio::test]
async fn who_waits_for_an_adapter_hears_where_it_is_loaded_and_unloaded() {
    let (workers, fleet) = one_at_a_time().await;
    let fleet = &fleet;
    let sent = || async move {
        let served = ask(fleet, "sql").await;
        (served.status, served.worker)
    };
    let is_queued = || async move {
        let waiting = async |fleet: &TestFleet| fleet.metric("warmpath_queue_length", "class=\"normal\"").await;
        fleet.eventually("one waits", async |fleet| waiting(fleet).await == 1.0).await;
    };
    let loading = async {
        workers[0].asked(1).await;
        is_queued().await;
        workers[1].offers(&serves(4096, &["sql"]));
        workers[1].asked(1).await;
        workers[0].go();
    };
    let (first, second, ()) = tokio::join!(sent(), sent(), loading);
    let mut served = [first, second];
    served.sort();
    assert_eq!(served, ["stranger-1", "stranger-2"].map(|worker| (200, worker.to_owned())));
    workers[1].plays(slow());
    let unloading = async {
        workers[0].asked(2).await;
        workers[1].asked(2).await;
        is_queued().await;
        workers.iter().for_each(|worker| worker.offers(&serves(4096, &[])));
        fleet.until_metric("warmpath_requests_total", "outcome=\"no_worker\"", 1.0).await;
        workers.iter().for_each(Scripted::go);
    };
    let (first, second, third, ()) = tokio::join!(sent(), sent(), sent(), unloading);
    let mut answers = [first.0, second.0, third.0];
    answers.sort_unstable();
    assert_eq!(answers, [200, 200, 503]);
}

#[tokio::test]
async fn an_adapters_prefixes_and_its_models_never_match() {
    let server = NatsServer::core();
    let workers = two(&["sql", "law"], &["sql", "law"]).await;
    let mut builder = fleet().engines(0).nats(server.url());
    for worker in &workers {
        builder = builder.stranger_with(worker.address, "events: nats, capacity_blocks: 1000");
    }
    let fleet = builder.config(CONFIG).start().await;
    until_listed(&fleet, &["m", "alias/of-m", "law", "sql"]).await;
    let bus = async_nats::connect(server.url()).await.unwrap();
    let publish = async |worker: u32, adapter: Option<&str>| {
        let CacheEvent::Stored(event) = stored(0, 10) else { panic!("it is a store") };
        let event = Stored { adapter: adapter.map(Into::into), ..*event };
        let payload = batch(Some(0), vec![event.into()]).into();
        bus.publish(format!("warmpath.kv.m.stranger-{worker}.0"), payload).await.unwrap();
        bus.flush().await.unwrap();
        fleet.until_metric("warmpath_index_blocks", &format!("stranger-{worker}"), 10.0).await;
    };
    publish(2, Some("sql")).await;
    for (model, predicted) in [("sql", 36), ("m:sql", 36), ("m", 0), ("law", 0), ("alias/of-m", 0)] {
        let answer = ask(&fleet, model).await;
        assert_eq!((answer.status, answer.predicted), (200, Some(predicted)), "{model}");
        assert!(predicted == 0 || answer.worker == "stranger-2");
    }
    publish(1, None).await;
    for (model, worker) in [("sql", "stranger-2"), ("m", "stranger-1"), ("alias/of-m", "stranger-1")] {
        let answer = ask(&fleet, model).await;
        assert_eq!((answer.worker.as_str(), answer.predicted), (worker, Some(36)), "{model}");
    }
    assert_eq!(ask(&fleet, "law").await.predicted, Some(0));
}
