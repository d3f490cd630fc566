//! A gateway before simulated engines, all in this process, on real sockets.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warmpath::app::App;
use warmpath::config::Config;
use warmpath::events::local::LocalBus;
use warmpath::events::nats::{NatsBus, NatsSettings};
use warmpath::events::publish::Bus;
use warmpath::mock_engine::{MockEngine, MockSettings};
use warmpath::shutdown::Tasks;
use warmpath::sim::EngineConfig;
use warmpath_core::units::BlockSize;
use warmpath_indexer::codec::encode;

/// What a test's fleet is made of.
pub(crate) struct FleetBuilder {
    engines: usize,
    policy: &'static str,
    timing: &'static str,
    tokenizer: &'static str,
    blocks: u32,
    nats: Option<String>,
    more: String,
    second_model: bool,
    strangers: Vec<(SocketAddr, String)>,
}

/// A fleet of two fast engines under `kv`, events inside the process.
pub(crate) fn fleet() -> FleetBuilder {
    FleetBuilder {
        engines: 2,
        policy: "kv",
        timing: "linear:0.01,0.001",
        tokenizer: "bytes",
        blocks: 1000,
        nats: None,
        more: String::new(),
        second_model: false,
        strangers: Vec::new(),
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

    pub(crate) fn timing(mut self, timing: &'static str) -> Self {
        self.timing = timing;
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

    /// More lines of configuration.
    pub(crate) fn config(mut self, lines: &str) -> Self {
        self.more += lines;
        self.more.push('\n');
        self
    }

    /// A second model, `m2`, served by nobody.
    pub(crate) fn second_model(mut self) -> Self {
        self.second_model = true;
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

    pub(crate) async fn start(self) -> TestFleet {
        let local = LocalBus::new();
        let bus = match &self.nats {
            None => Bus::Local(local.clone()),
            Some(url) => Bus::Nats(Box::new(connect(url).await)),
        };
        let tasks = Tasks::new();
        let mut engines = Vec::new();
        for number in 1..=self.engines {
            let settings = self.engine(number, bus.clone());
            engines.push(MockEngine::start(settings, &tasks).await.expect("the engine starts").address);
        }
        let config = Config::parse("a test", self.yaml(&engines)).expect("the configuration is good");
        let app = App::start(config, Some(local)).await.expect("the gateway starts");
        if self.nats.is_some() {
            app.wait_for_events(Duration::from_secs(5)).await;
        }
        TestFleet { app, engines, tasks, client: reqwest::Client::new() }
    }

    fn engine(&self, number: usize, bus: Bus) -> MockSettings {
        MockSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            worker: format!("engine-{number}"),
            model: "m".to_owned(),
            engine: EngineConfig {
                block_size: BlockSize::new(4).expect("4 is not 0"),
                blocks: self.blocks + 1,
                timing: self.timing.parse().expect("a timing model"),
                seed: u64::try_from(number).expect("a small number"),
                vocabulary: 97..123,
                ..EngineConfig::default()
            },
            bus,
            form: if number % 2 == 0 { encode::Form::Array } else { encode::Form::Map },
            speedup: 1.0,
            tokenizer: None,
        }
    }

    fn yaml(&self, engines: &[SocketAddr]) -> String {
        let second = if self.second_model { ", {name: m2}" } else { "" };
        let mut text = format!(
            "listen: {{data: '127.0.0.1:0', admin: '127.0.0.1:0', routing_headers: true}}\n\
             models: [{{name: m, aliases: [alias/of-m], tokenizer: {}, block_size: 4}}{second}]\n{}",
            self.tokenizer, self.more
        );
        if !self.more.contains("routing:") {
            text += &format!("routing: {{policy: {}, seed: 1}}\n", self.policy);
        }
        let source = match &self.nats {
            None => "local",
            Some(url) => {
                text += &format!("events: {{nats: {{url: '{url}'}}}}\n");
                "nats"
            }
        };
        text += "workers:\n";
        for ((address, settings), number) in self.strangers.iter().zip(1..) {
            text += &format!("- {{id: stranger-{number}, url: 'http://{address}', model: m, {settings}}}\n");
        }
        for (address, number) in engines.iter().zip(1..) {
            let blocks = self.blocks;
            text += &format!(
                "- {{id: engine-{number}, url: 'http://{address}', model: m, events: {source}, capacity_blocks: {blocks}}}\n"
            );
        }
        text
    }
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
        self.post("/v1/completions", &json!({"model": "m", "prompt": prompt, "max_tokens": 2})).await
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

/// See [`TestFleet::metric`].
pub(crate) fn value_of(metrics: &str, name: &str, labels: &str) -> f64 {
    let mut lines = metrics.lines().filter(|line| line.starts_with(name) && line.contains(labels));
    let value = lines.find_map(|line| line.rsplit_once(' '));
    value.map_or(0.0, |(_, value)| value.parse().expect("a number"))
}
