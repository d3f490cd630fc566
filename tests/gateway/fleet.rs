//! A gateway before simulated engines, all in this process, on real sockets.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warmpath::app::App;
use warmpath::bridge::Bridge;
use warmpath::config::Config;
use warmpath::events::local::LocalBus;
use warmpath::events::nats::{NatsBus, NatsSettings};
use warmpath::events::publish::Bus;
use warmpath::events::publish::faults::EventFaults;
use warmpath::mock_engine::{MockEngine, MockSettings};
use warmpath::shutdown::Tasks;
use warmpath_core::units::BlockSize;
use warmpath_indexer::codec::encode;
use warmpath_simulator::EngineConfig;

pub(crate) use crate::exposition::value_of;
use crate::resting::Resting;
use crate::sidecar::{bridge_settings, engine_source};

/// What a test's fleet is made of.
pub(crate) struct FleetBuilder {
    engines: usize,
    policy: &'static str,
    tokenizer: &'static str,
    blocks: u32,
    nats: Option<String>,
    gateway_nats: Option<String>,
    credentials: String,
    silent: bool,
    events: bool,
    model: &'static str,
    worker: &'static str,
    more: String,
    listen: String,
    second_model: bool,
    strangers: Vec<(SocketAddr, String)>,
    bridged: bool,
    listed: bool,
}

/// A fleet of two fast engines under `kv`, events inside the process.
pub(crate) fn fleet() -> FleetBuilder {
    FleetBuilder {
        engines: 2,
        policy: "kv",
        tokenizer: "bytes",
        blocks: 1000,
        nats: None,
        gateway_nats: None,
        credentials: String::new(),
        silent: false,
        events: true,
        model: "m",
        worker: "engine",
        more: String::new(),
        listen: String::new(),
        second_model: false,
        strangers: Vec::new(),
        bridged: false,
        listed: true,
    }
}

impl FleetBuilder {
    pub(crate) fn engines(mut self, engines: usize) -> Self {
        self.engines = engines;
        self
    }

    pub(crate) fn policy(mut self, policy: &'static str) -> Self {
        self.policy = policy;
        self
    }

    pub(crate) fn tokenizer(mut self, tokenizer: &'static str) -> Self {
        self.tokenizer = tokenizer;
        self
    }

    pub(crate) fn nats(mut self, url: String) -> Self {
        self.nats = Some(url);
        self
    }

    /// The gateway reaches the bus by another way than the engines.
    pub(crate) fn gateway_nats(mut self, url: String) -> Self {
        self.gateway_nats = Some(url);
        self
    }

    /// What the gateway says of itself to the bus: more keys of `events.nats`.
    pub(crate) fn credentials(mut self, keys: &str) -> Self {
        keys.clone_into(&mut self.credentials);
        self
    }

    /// The engines speak to a bridge each, which publishes for them.
    pub(crate) fn bridged(mut self) -> Self {
        self.bridged = true;
        self
    }

    /// The engines publish nothing: a test speaks for them.
    pub(crate) fn silent(mut self) -> Self {
        self.silent = true;
        self
    }

    /// The engines publish nothing, and the gateway knows it.
    pub(crate) fn without_events(mut self) -> Self {
        (self.silent, self.events) = (true, false);
        self
    }

    /// The model's name, and that of its workers without their numbers.
    pub(crate) fn names(mut self, model: &'static str, worker: &'static str) -> Self {
        (self.model, self.worker) = (model, worker);
        self
    }

    /// More lines of configuration.
    pub(crate) fn config(mut self, lines: &str) -> Self {
        self.more += lines;
        self.more.push('\n');
        self
    }

    /// More keys of `listen`.
    pub(crate) fn listen(mut self, keys: &str) -> Self {
        self.listen = format!(", {keys}");
        self
    }

    /// A second model, `m2`, served by nobody.
    pub(crate) fn second_model(mut self) -> Self {
        self.second_model = true;
        self
    }

    /// The engines are there, but the configuration does not name them.
    pub(crate) fn unlisted(mut self) -> Self {
        self.listed = false;
        self
    }

    /// A worker that is no engine of ours; it comes first.
    pub(crate) fn stranger(self, address: SocketAddr) -> Self {
        self.stranger_with(address, "events: none")
    }

    /// A stranger with further settings.
    pub(crate) fn stranger_with(mut self, address: SocketAddr, settings: &str) -> Self {
        self.strangers.push((address, settings.to_owned()));
        self
    }

    /// Starts engines and gateway, and waits until events can arrive.
    pub(crate) async fn start(self) -> TestFleet {
        let fleet = self.start_at_once().await;
        assert!(fleet.app.wait_for_events(Duration::from_secs(5)).await, "the bus is there");
        fleet
    }

    /// Starts engines and gateway, whether there is a bus or not.
    pub(crate) async fn start_at_once(self) -> TestFleet {
        let local = LocalBus::new();
        let bus = match &self.nats {
            _ if self.silent => Bus::Silent,
            _ if self.bridged => Bus::Local(local.clone()),
            None => Bus::Local(local.clone()),
            Some(url) => Bus::Nats(Box::new(connect(url).await)),
        };
        let tasks = Tasks::new();
        let mut engines = Vec::new();
        for number in 1..=self.engines {
            let settings = self.engine(number, bus.clone());
            engines.push(MockEngine::start(settings, &tasks).await.expect("the engine starts").address);
        }
        let mut bridges = Vec::new();
        if let Some(url) = self.nats.as_ref().filter(|_| self.bridged) {
            for (address, number) in engines.iter().zip(1..) {
                let worker = format!("{}-{number}", self.worker);
                let settings = bridge_settings(*address, self.model, &worker, url);
                let source = engine_source(&local, self.model, &worker);
                bridges.push(Bridge::start(settings, vec![source]).await.expect("the settings are good"));
            }
        }
        let yaml = self.yaml(&engines);
        let app = gateway(&yaml, Some(local)).await;
        let model = self.model;
        TestFleet { app, engines, tasks, client: reqwest::Client::new(), model, yaml, bus, bridges, builder: self }
    }

    fn engine(&self, number: usize, bus: Bus) -> MockSettings {
        MockSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            worker: format!("{}-{number}", self.worker),
            model: self.model.to_owned(),
            engine: EngineConfig {
                block_size: BlockSize::new(4).expect("4 is not 0"),
                blocks: self.blocks + 1,
                timing: "linear:0.01,0.001".parse().expect("a timing model"),
                seed: u64::try_from(number).expect("a small number"),
                vocabulary: 97..123,
                ..EngineConfig::default()
            },
            ranks: vec![bus],
            hashes: encode::HashForm::Int,
            faults: EventFaults::default(),
            form: if number.is_multiple_of(2) { encode::Form::Array } else { encode::Form::Map },
            speedup: 1.0,
            tokenizer: None,
        }
    }

    fn yaml(&self, engines: &[SocketAddr]) -> String {
        let second = if self.second_model { ", {name: m2}" } else { "" };
        let mut text = format!(
            "listen: {{data: '127.0.0.1:0', admin: '127.0.0.1:0', routing_headers: true{}}}\n\
             models: [{{name: '{}', aliases: [alias/of-m], tokenizer: {}, block_size: 4}}{second}]\n{}",
            self.listen, self.model, self.tokenizer, self.more
        );
        if !self.more.contains("routing:") {
            text += &format!("routing: {{policy: {}, seed: 1}}\n", self.policy);
        }
        let source = match &self.nats {
            None if self.events => "local",
            None => "none",
            Some(url) => {
                let (url, credentials) = (self.gateway_nats.as_ref().unwrap_or(url), &self.credentials);
                text += &format!("events: {{nats: {{url: '{url}', {credentials}}}}}\n");
                "nats"
            }
        };
        text += "workers:\n";
        for ((address, settings), number) in self.strangers.iter().zip(1..) {
            text += &format!("- {{id: stranger-{number}, url: 'http://{address}', model: m, {settings}}}\n");
        }
        for (address, number) in engines.iter().filter(|_| self.listed).zip(1..) {
            let (blocks, worker, model) = (self.blocks, self.worker, self.model);
            text += &format!(
                "- {{id: '{worker}-{number}', url: 'http://{address}', model: '{model}', events: {source}, capacity_blocks: {blocks}}}\n"
            );
        }
        text
    }
}

pub(crate) async fn gateway(yaml: &str, local: Option<LocalBus>) -> App {
    let config = Config::parse("a test", yaml.to_owned()).expect("the configuration is good");
    App::start(config, local).await.expect("the gateway starts")
}

async fn connect(url: &str) -> NatsBus {
    let settings = NatsSettings::publisher(url.to_owned(), "warmpath".to_owned());
    NatsBus::connect(settings).await.expect("the settings are good")
}

/// A gateway and its engines. Dropping it ends the runtime's tasks with the test.
pub(crate) struct TestFleet {
    pub(crate) app: App,
    pub(crate) engines: Vec<SocketAddr>,
    pub(crate) tasks: Tasks,
    pub(crate) client: reqwest::Client,
    pub(crate) model: &'static str,
    pub(crate) yaml: String,
    pub(crate) bus: Bus,
    pub(crate) bridges: Vec<Bridge>,
    pub(crate) builder: FleetBuilder,
}

/// An answer, taken apart.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) body: Value,
    pub(crate) worker: String,
    pub(crate) predicted: Option<u64>,
    pub(crate) headers: reqwest::header::HeaderMap,
}

impl Answered {
    pub(crate) fn cached(&self) -> u64 {
        self.body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("the engine reports it")
    }
}

impl TestFleet {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.app.data_address())
    }

    /// A completion of token ids, not streamed.
    pub(crate) async fn complete(&self, prompt: Value) -> Answered {
        self.post("/v1/completions", &json!({"model": self.model, "prompt": prompt, "max_tokens": 2})).await
    }

    /// Replaces the gateway by a new one with the same configuration, which knows nothing yet.
    pub(crate) async fn restart_gateway(&mut self) {
        let old = std::mem::replace(&mut self.app, gateway(&self.yaml, None).await);
        old.stop().await;
        assert!(self.app.wait_for_events(Duration::from_secs(5)).await, "the bus is there");
    }

    /// Ends every engine, and starts them anew with empty caches at the same addresses.
    pub(crate) async fn restart_engines(&mut self) {
        self.tasks = restart(&self.builder, &self.bus, std::mem::take(&mut self.tasks), &self.engines).await;
    }

    /// Stops the gateway; the engines stay.
    pub(crate) async fn stop_gateway(self) -> Resting {
        let Self { app, engines, tasks, client, model, yaml, bus, bridges, builder } = self;
        app.stop().await;
        Resting { engines, tasks, client, model, yaml, bus, bridges, builder }
    }

    /// The health report.
    pub(crate) async fn health(&self) -> Value {
        serde_json::from_str(&self.admin("/healthz").await.1).expect("health is JSON")
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answered {
        self.post_bytes(path, serde_json::to_vec(body).expect("JSON")).await
    }

    pub(crate) async fn post_bytes(&self, path: &str, body: Vec<u8>) -> Answered {
        let request = self.client.post(self.url(path)).header("content-type", "application/json").body(body);
        let response = request.send().await.expect("the gateway answers");
        let header = |name: &str| -> Option<String> { Some(response.headers().get(name)?.to_str().ok()?.to_owned()) };
        Answered {
            status: response.status().as_u16(),
            worker: header("x-warmpath-worker").unwrap_or_default(),
            predicted: header("x-warmpath-overlap-tokens").and_then(|tokens| tokens.parse().ok()),
            headers: response.headers().clone(),
            body: response.json().await.unwrap_or(Value::Null),
        }
    }

    pub(crate) async fn get(&self, url: String) -> (u16, String) {
        let response = self.client.get(url).send().await.expect("an answer");
        (response.status().as_u16(), response.text().await.expect("text"))
    }

    pub(crate) async fn admin(&self, path: &str) -> (u16, String) {
        self.get(format!("http://{}{path}", self.app.admin_address())).await
    }

    /// What an operator does with a worker: the status, and what is said.
    pub(crate) async fn operate(&self, worker: &str, action: &str) -> (u16, Value) {
        let url = format!("http://{}/api/v1/workers/{worker}/{action}", self.app.admin_address());
        let response = self.client.post(url).send().await.expect("an answer");
        (response.status().as_u16(), response.json().await.expect("JSON"))
    }

    /// The value of the metric's first series that contains `labels`; 0 where there is none.
    pub(crate) async fn metric(&self, name: &str, labels: &str) -> f64 {
        value_of(&self.admin("/metrics").await.1, name, labels)
    }

    /// Waits until `metric` reaches `least`.
    pub(crate) async fn until_metric(&self, name: &str, labels: &str, least: f64) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.metric(name, labels).await < least {
            assert!(Instant::now() < deadline, "{name}{{{labels}}} did not reach {least}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until `check` holds.
    pub(crate) async fn eventually(&self, what: &str, check: impl AsyncFn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !check(self).await {
            assert!(Instant::now() < deadline, "it did not come true that {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(crate) async fn restart(builder: &FleetBuilder, bus: &Bus, old: Tasks, engines: &[SocketAddr]) -> Tasks {
    old.drain(Duration::ZERO).await;
    let tasks = Tasks::new();
    for (number, address) in (1..).zip(engines) {
        let settings = MockSettings { listen: *address, ..builder.engine(number, bus.clone()) };
        let mut tries = 0;
        // Somebody's outgoing connection may have been given the port in the meantime.
        while let Err(error) = MockEngine::start(settings.clone(), &tasks).await {
            tries += 1;
            assert!(tries < 100, "the engine starts again: {error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    tasks
}
