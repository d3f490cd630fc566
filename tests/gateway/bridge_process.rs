//! A bridge in a process of its own, and SIGTERM.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use warmpath::events::Message;
use warmpath::events::publish::zmq::ZmqPublisher;
use warmpath::shutdown::Tasks;

use crate::bridge::{Played, numbers};
use crate::by_hand::{batch, stored};
use crate::fleet::value_of;
use crate::nats::NatsServer;
use crate::zmq::outlet;

/// `warmpath bridge` beside an engine that the test plays. It ends when dropped.
struct BridgeProcess {
    child: Child,
    metrics: String,
}

impl BridgeProcess {
    fn start(played: &Played, publisher: &ZmqPublisher, server: &NatsServer) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let metrics = free.local_addr().unwrap().to_string();
        drop(free);
        let (events, replay) = (publisher.events.clone().unwrap(), publisher.replay.clone().unwrap());
        let child = Command::new(env!("CARGO_BIN_EXE_warmpath"))
            .args(["bridge", "--worker", "w", "--model", "m", "--block-size", "4", "--nats", &server.url()])
            .args(["--engine", &format!("http://{}", played.address), "--metrics", &metrics])
            .args(["--zmq", &events.to_string(), "--zmq-replay", &replay.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the bridge starts");
        Self { child, metrics }
    }

    /// Waits until a metric of its has this value.
    async fn until(&self, name: &str, value: f64) {
        let (url, deadline) = (format!("http://{}/metrics", self.metrics), Instant::now() + Duration::from_secs(10));
        loop {
            let text = match reqwest::get(&url).await {
                Ok(answer) => answer.text().await.unwrap_or_default(),
                Err(_) => String::new(),
            };
            let name = format!("warmpath_bridge_{name}");
            if text.contains(&format!("\n{name}{{")) && value_of(&text, &name, "worker=\"w\"") == value {
                return;
            }
            assert!(Instant::now() < deadline, "{name} did not become {value}: {text}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Sends SIGTERM, and returns the exit code.
    async fn terminated(mut self) -> Option<i32> {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for BridgeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether worker `w` is registered.
async fn is_registered(server: &NatsServer) -> bool {
    let client = async_nats::connect(server.url()).await.unwrap();
    let store = async_nats::jetstream::new(client).get_key_value("warmpath_workers").await;
    match store {
        Ok(store) => store.get("w").await.unwrap().is_some(),
        Err(_) => false,
    }
}

fn say(publisher: &ZmqPublisher, seq: u64) {
    let first = u32::try_from(seq * 100).unwrap();
    let message = Message { payload: batch(Some(0), vec![stored(first, 2)]).into(), seq: Some(seq), epoch: None };
    publisher.keep(message.clone());
    publisher.send(message);
}

/// What waits for a server that was away is published before the end, and the worker is no longer offered to routers.
#[tokio::test]
async fn a_bridge_that_is_told_to_end_publishes_what_waits_and_gives_up_its_lease() {
    let (mut server, tasks) = (NatsServer::jetstream(), Tasks::new());
    let publisher = ZmqPublisher::start(outlet(), &tasks).await.unwrap();
    let (played, _) = Played::start().await;
    (0..20).for_each(|seq| say(&publisher, seq));
    let bridge = BridgeProcess::start(&played, &publisher, &server);
    bridge.until("batches_published_total", 20.0).await;
    bridge.until("bus_connected", 1.0).await;
    bridge.until("engine_up", 1.0).await;
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_registered(&server).await {
        assert!(Instant::now() < deadline, "it is not registered");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.kill();
    bridge.until("bus_connected", 0.0).await;
    (20..40).for_each(|seq| say(&publisher, seq));
    bridge.until("batches_waiting", 20.0).await;
    bridge.until("batches_lost_total", 0.0).await;
    server.up();
    assert_eq!(bridge.terminated().await, Some(0));
    let published: Vec<_> = numbers(&server).await.into_iter().map(|(_, seq)| seq).collect();
    assert_eq!(published, (0..40).collect::<Vec<_>>());
    assert!(!is_registered(&server).await);
}
