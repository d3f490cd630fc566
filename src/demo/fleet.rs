//! The demo's engines and its router, on loopback, in this process.

use std::net::SocketAddr;
use std::time::Duration;

use warmpath_core::policy::PolicyName;
use warmpath_core::units::BlockSize;
use warmpath_indexer::codec::encode;
use warmpath_simulator::EngineConfig;

use super::{BLOCK, DemoOptions};
use crate::app::{App, StartError};
use crate::config::Config;
use crate::error::BoxError;
use crate::events::local::LocalBus;
use crate::events::nats::{NatsBus, NatsSettings};
use crate::events::publish::Bus;
use crate::events::publish::faults::EventFaults;
use crate::mock_engine::{LETTERS, MockEngine, MockSettings};
use crate::shutdown::{Interrupts, Tasks};

/// The model that the demo's engines serve.
pub(super) const MODEL: &str = "demo";

/// Prompt tokens are below this number.
pub(super) const VOCABULARY: u32 = 100_000;

/// Engines and router of one run.
pub struct DemoFleet {
    app: App,
    engines: Tasks,
    bus: Bus,
    workers: usize,
}

impl DemoFleet {
    /// Starts engines with empty caches, and a router before them.
    ///
    /// # Errors
    /// When a socket, the bus or the router cannot be had.
    pub async fn start(options: &DemoOptions, policy: PolicyName) -> Result<Self, BoxError> {
        let local = LocalBus::new();
        // A prefix of its own keeps each run's events apart from those of the last one.
        let prefix = format!("warmpath-demo-{}-{policy}", std::process::id());
        let bus = match &options.bus {
            None => Bus::Local(local.clone()),
            Some(url) => Bus::Nats(Box::new(connect(url, &prefix).await?)),
        };
        let engines = Tasks::new();
        let mut addresses = Vec::new();
        for number in 1..=options.workers {
            let settings = MockSettings {
                listen: SocketAddr::from(([127, 0, 0, 1], 0)),
                worker: name(number),
                model: MODEL.to_owned(),
                engine: engine(options, number),
                ranks: vec![bus.clone()],
                hashes: encode::HashForm::Int,
                faults: EventFaults::default(),
                form: encode::Form::Map,
                speedup: 1.0,
                tokenizer: None,
            };
            addresses.push(MockEngine::start(settings, &engines).await?.address);
        }
        let text = yaml(options, policy, &prefix, &addresses);
        let config = Config::parse("the demo's configuration", text)?;
        let app = App::start(config, Some(local)).await?;
        app.wait_for_events(Duration::from_secs(10)).await;
        Ok(Self { app, engines, bus, workers: options.workers })
    }

    /// The address of the data port.
    pub fn base(&self) -> String {
        format!("http://{}", self.app.data_address())
    }

    /// A request to try on it.
    pub fn invitation(&self) -> String {
        format!(
            "serving until interrupted; admin on http://{}\n\n  curl -sN {}/v1/chat/completions -H 'content-type: \
             application/json' -d \\\n    '{{\"model\": \"{MODEL}\", \"messages\": [{{\"role\": \"user\", \"content\": \
             \"Hello, who are you?\"}}], \"max_tokens\": 16, \"stream\": true}}'",
            self.app.admin_address(),
            self.base(),
        )
    }

    /// The names of its engines, in order.
    pub fn workers(&self) -> Vec<String> {
        (1..=self.workers).map(name).collect()
    }

    /// The app's current balance score.
    pub fn load_balance_score(&self) -> f64 {
        self.app.load_balance_score()
    }

    /// Serves until interrupted.
    ///
    /// # Errors
    /// See [`App::run_until`].
    pub async fn serve(self) -> Result<(), StartError> {
        let Self { app, engines, bus, .. } = self;
        let mut interrupts = Interrupts::new();
        let served = app.run_until(&mut interrupts).await;
        leave(engines, bus).await;
        served
    }

    /// Stops router and engines.
    pub async fn stop(self) {
        let Self { app, engines, bus, .. } = self;
        app.stop().await;
        leave(engines, bus).await;
    }
}

fn name(number: usize) -> String {
    format!("engine-{number}")
}

async fn leave(engines: Tasks, bus: Bus) {
    engines.drain(Duration::ZERO).await;
    if let Bus::Nats(bus) = bus {
        bus.discard().await;
    }
}

async fn connect(url: &str, prefix: &str) -> Result<NatsBus, BoxError> {
    let bus = NatsBus::connect(NatsSettings::publisher(url.to_owned(), prefix.to_owned())).await?;
    if !matches!(tokio::time::timeout(Duration::from_secs(5), bus.connected()).await, Ok(true)) {
        let why = bus.trouble().map_or_else(String::new, |why| format!(" ({why})"));
        return Err(format!("no NATS server takes us at {url}{why}; start one, correct it, or leave --bus out").into());
    }
    bus.prepare().await;
    Ok(bus)
}

fn engine(options: &DemoOptions, number: usize) -> EngineConfig {
    EngineConfig {
        block_size: BlockSize::new(BLOCK).expect("16 is not 0"),
        blocks: options.cache_blocks + 1,
        vocabulary: LETTERS,
        seed: options.seed.wrapping_add(u64::try_from(number).unwrap_or(0)),
        ..EngineConfig::default()
    }
}

/// Nobody waits in the router's queue: every request is to be answered under every policy, however late.
fn yaml(options: &DemoOptions, policy: PolicyName, prefix: &str, addresses: &[SocketAddr]) -> String {
    let mut text = format!(
        "listen: {{data: '127.0.0.1:0', admin: '127.0.0.1:0', routing_headers: true}}\n\
         models: [{{name: {MODEL}, tokenizer: bytes, block_size: {}}}]\n\
         routing: {{policy: {policy}, predict: always, seed: {}, on_all_busy: least_loaded}}\n",
        BLOCK, options.seed,
    );
    let source = match &options.bus {
        None => "local",
        Some(url) => {
            text += &format!("events: {{nats: {{url: '{url}', prefix: {prefix}}}}}\n");
            "nats"
        }
    };
    text += "workers:\n";
    for (address, number) in addresses.iter().zip(1..) {
        text += &format!(
            "- {{id: engine-{number}, url: 'http://{address}', model: {MODEL}, events: {source}, \
             capacity_blocks: {}, max_num_seqs: 1024}}\n",
            options.cache_blocks,
        );
    }
    text
}
