//! Engines in processes of their own, a real bus between them and the gateway, and SIGKILL.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::fleet::{TestFleet, fleet, value_of};
use crate::nats::NatsServer;
use crate::retries::{read, retries};

/// A simulated engine in a process of its own.
struct EngineProcess {
    child: Child,
    port: u16,
}

impl EngineProcess {
    fn start(number: usize, bus: &str) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let child = Command::new(env!("CARGO_BIN_EXE_warmpath"))
            .args(["mock-engine", "--model", "m", "--block-size", "4", "--timing", "linear:25,0.05", "--bus", bus])
            .args(["--listen", &format!("127.0.0.1:{port}"), "--worker", &format!("stranger-{number}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the engine starts");
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "the engine does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { child, port }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// R1. The engine is killed between a request and its first token; the client gets a whole stream.
#[tokio::test]
async fn an_engine_that_is_killed_before_its_first_token_is_not_noticed() {
    let nats = NatsServer::core();
    let mut engines = [EngineProcess::start(1, &nats.url()), EngineProcess::start(2, &nats.url())];
    let mut fleet = fleet().engines(0).policy("round_robin").nats(nats.url());
    for engine in &engines {
        fleet = fleet.stranger_with(([127, 0, 0, 1], engine.port).into(), "events: nats");
    }
    let fleet = fleet.start().await;
    let body = json!({"model": "m", "prompt": (100..140).collect::<Vec<u32>>(), "max_tokens": 3, "stream": true});
    let sending = fleet.client.post(fleet.url("/v1/completions")).json(&body).send();
    tokio::pin!(sending);
    let waits_on_the_first = async {
        fleet.until_metric("warmpath_in_flight_requests", "stranger-1", 1.0).await;
        let running = format!("http://127.0.0.1:{}/metrics", engines[0].port);
        let is_running = async |fleet: &TestFleet| {
            value_of(&fleet.get(running.clone()).await.1, "vllm:num_requests_running", "") > 0.5
        };
        fleet.eventually("the engine runs it", is_running).await;
    };
    tokio::select! {
        answer = &mut sending => panic!("too early: {answer:?}"),
        () = waits_on_the_first => {}
    }
    engines[0].kill();
    let answer = sending.await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["x-warmpath-worker"], "stranger-2");
    let (text, clean) = read(answer).await;
    let payloads: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!((payloads.len(), payloads.last(), clean), (4, Some(&"data: [DONE]"), true), "{text}");
    assert_eq!(retries(&fleet, "broken").await, 1);
    // The events of the engine that answered came over the bus.
    fleet.until_metric("warmpath_index_blocks", "stranger-2", 10.0).await;
}
