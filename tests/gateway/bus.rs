//! What the admin port tells of the event bus, of each source, and of the other routers.

use serde_json::{Value, json};

use crate::fleet::{TestFleet, fleet, gateway};
use crate::nats::NatsServer;

impl TestFleet {
    pub(crate) async fn bus(&self) -> Value {
        serde_json::from_str(&self.admin("/api/v1/bus").await.1).unwrap()
    }
}

/// One field of every source.
fn each(bus: &Value, key: &str) -> Vec<Value> {
    bus["sources"].as_array().unwrap().iter().map(|source| source[key].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_over_jetstream_and_another_router_are_told_through_a_loss() {
    let mut server = NatsServer::jetstream();
    let fleet = fleet().nats(server.url()).start().await;
    let other = gateway(&fleet.yaml, None).await;
    let answer = fleet.complete((97..121).collect::<Vec<u32>>().into()).await;
    fleet.until_metric("warmpath_index_blocks", &answer.worker, 6.0).await;
    fleet
        .eventually("the other router is heard", async |fleet| fleet.bus().await["replicas"]["heard"][0].is_object())
        .await;
    let told = fleet.bus().await;
    let bus = &told["buses"][0];
    let at = server.url().replace("nats://", "");
    assert_eq!(
        (&bus["kind"], &bus["at"], &bus["up"], &bus["losses"], &bus["dropped"], &bus["error"]),
        (&json!("nats"), &json!(at), &json!(true), &json!(0), &json!(0), &Value::Null)
    );
    assert_eq!(each(&told, "worker"), ["engine-1", "engine-2"]);
    assert_eq!(each(&told, "way"), ["jetstream", "jetstream"]);
    assert_eq!(each(&told, "state"), ["connected", "connected"]);
    assert_eq!(each(&told, "at"), ["warmpath.kv.m.engine-1.0", "warmpath.kv.m.engine-2.0"]);
    assert_eq!((each(&told, "gaps"), each(&told, "missing")), (vec![json!(0); 2], vec![json!(0); 2]));
    let served = usize::from(answer.worker == "engine-2");
    let (source, idle) = (&told["sources"][served], &told["sources"][1 - served]);
    assert!(source["events"].as_u64().unwrap() >= 1 && source["events_per_s"].as_f64().unwrap() > 0.0, "{source}");
    assert!(source["last_event_age_s"].as_f64().unwrap() < 10.0, "{source}");
    assert_eq!((&idle["events"], &idle["last_event_age_s"], &idle["lag_s"]), (&json!(0), &Value::Null, &Value::Null));
    let replicas = &told["replicas"];
    let heard = &replicas["heard"][0];
    assert_eq!((replicas["heard"].as_array().unwrap().len(), &replicas["in_flight"]), (1, &json!(0)));
    assert_eq!(
        (&heard["ready"], &heard["same_config"], &heard["silent"], &heard["version"]),
        (&json!(true), &json!(true), &json!(false), &json!(env!("CARGO_PKG_VERSION")))
    );
    // Two on one machine are told apart.
    let (host, port) = replicas["told_as"].as_str().unwrap().rsplit_once(':').unwrap();
    assert_eq!(port, fleet.app.data_address().port().to_string());
    let name = heard["name"].as_str().unwrap();
    assert!(name.strip_prefix(&format!("{host}:")).is_some_and(|theirs| theirs != port), "{name}");
    server.kill();
    fleet.eventually("all are down", async |fleet| each(&fleet.bus().await, "state") == ["down", "down"]).await;
    let told = fleet.bus().await;
    assert_eq!((&told["buses"][0]["up"], &told["buses"][0]["losses"]), (&json!(false), &json!(1)));
    assert!(each(&told, "last_error").iter().all(Value::is_string), "{told}");
    server.up();
    let back = async |fleet: &TestFleet| each(&fleet.bus().await, "state") == ["connected", "connected"];
    fleet.eventually("all are back", back).await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_cannot_be_reached_is_down_with_the_reason() {
    let nowhere = ([127, 0, 0, 1], 9).into();
    let zmq = "events: zmq, zmq_endpoint: 'tcp://127.0.0.1:9'";
    let fleet = fleet().engines(1).stranger_with(nowhere, zmq).start_at_once().await;
    fleet.eventually("it was tried", async |fleet| fleet.bus().await["sources"][0]["state"] == "down").await;
    let told = fleet.bus().await;
    let source = &told["sources"][0];
    assert_eq!(
        (&source["worker"], &source["way"], &source["at"]),
        (&json!("stranger-1"), &json!("zmq"), &json!("tcp://127.0.0.1:9"))
    );
    assert!(source["last_error"].as_str().unwrap().contains("refused"), "{source}");
    let local = &told["sources"][1];
    assert_eq!(
        (&local["worker"], &local["way"], &local["state"]),
        (&json!("engine-1"), &json!("local"), &json!("connected"))
    );
    assert_eq!((&told["buses"], &told["replicas"]["told_as"]), (&json!([]), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bus_is_told_only_with_the_token() {
    let fleet = fleet().listen("admin_token: secret").start().await;
    assert_eq!(fleet.admin("/api/v1/bus").await.0, 401);
}
