//! A fleet without its gateway.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use warmpath::bridge::Bridge;
use warmpath::events::publish::Bus;
use warmpath::shutdown::Tasks;

use crate::fleet::{FleetBuilder, TestFleet, gateway, restart};

/// Engines without a gateway.
pub(crate) struct Resting {
    pub(crate) engines: Vec<SocketAddr>,
    pub(crate) tasks: Tasks,
    pub(crate) client: reqwest::Client,
    pub(crate) model: &'static str,
    pub(crate) yaml: String,
    pub(crate) bus: Bus,
    pub(crate) builder: FleetBuilder,
    pub(crate) bridges: Vec<Bridge>,
}

impl Resting {
    /// A completion by the first engine.
    pub(crate) async fn complete(&self, prompt: Value) {
        let body = json!({"model": self.model, "prompt": prompt, "max_tokens": 2}).to_string();
        let request = self.client.post(format!("http://{}/v1/completions", self.engines[0])).body(body);
        assert_eq!(request.send().await.expect("the engine answers").status(), 200);
    }

    /// See [`TestFleet::restart_engines`].
    pub(crate) async fn restart_engines(&mut self) {
        self.tasks = restart(&self.builder, &self.bus, std::mem::take(&mut self.tasks), &self.engines).await;
    }

    /// Starts a gateway whose configuration has `old` replaced by `new`, and waits until events can arrive.
    pub(crate) async fn start_gateway_with(self, old: &str, new: &str) -> TestFleet {
        let Self { engines, tasks, client, model, yaml, bus, bridges, builder } = self;
        assert!(yaml.contains(old));
        let yaml = yaml.replace(old, new);
        let app = gateway(&yaml, None).await;
        assert!(app.wait_for_events(Duration::from_secs(5)).await, "the bus is there");
        TestFleet { app, engines, tasks, client, model, yaml, bus, bridges, builder }
    }

    /// Starts a gateway as it was.
    pub(crate) async fn start_gateway(self) -> TestFleet {
        self.start_gateway_with("", "").await
    }
}
