//! What the admin port tells, asked for again and again. What is not known to this version is passed over, and what is
//! missing is nothing, so that the router may be older or newer.

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};

use super::state::Wish;
use crate::cli::admin::AdminPort;

/// The configuration is long and changes seldom: it is asked for every so many looks.
const CONFIG_EVERY: u32 = 5;

/// Decisions that are shown.
const DECISIONS: &str = "100";

/// Whoever looks.
pub(super) struct Looker {
    port: AdminPort,
    turn: u32,
    config: Value,
}

/// One look at everything, as it was told.
pub(super) struct Look {
    health: Value,
    workers: Value,
    history: Value,
    decisions: Value,
    bus: Value,
    config: Value,
}

/// The same as far as it is shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Picture {
    pub(super) health: Health,
    pub(super) workers: Vec<Worker>,
    pub(super) history: History,
    /// How many were made.
    pub(super) decided: u64,
    /// The newest first.
    pub(super) decisions: Vec<Decision>,
    pub(super) bus: Bus,
    pub(super) config: Config,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Health {
    pub(super) status: String,
    pub(super) degraded: Vec<String>,
    pub(super) queued: usize,
    pub(super) off_duty: Vec<String>,
    pub(super) ready: bool,
    pub(super) not_ready: Option<String>,
    pub(super) version: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Worker {
    pub(super) id: String,
    pub(super) rank: u32,
    pub(super) model: String,
    pub(super) state: String,
    pub(super) condition: String,
    pub(super) breaker: String,
    pub(super) in_flight: InFlight,
    pub(super) max_num_seqs: u32,
    pub(super) index_blocks: u64,
    pub(super) view: String,
    pub(super) hit_rate: f64,
    pub(super) kv_load: f64,
    pub(super) trust_weight: f64,
    pub(super) reasons: Vec<String>,
    pub(super) last_event_age_s: Option<f64>,
    pub(super) engine: Option<Engine>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct InFlight {
    pub(super) sequences: u32,
    pub(super) prefill_tokens: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Engine {
    pub(super) waiting: Option<f64>,
    pub(super) kv_usage: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct History {
    pub(super) step_ms: u64,
    pub(super) points: Vec<Point>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Point {
    pub(super) requests: f64,
    pub(super) prompt_tokens: f64,
    pub(super) hit_rate: Option<f64>,
    pub(super) first_tokens: f64,
    pub(super) ttft_ms: Option<f64>,
    pub(super) requests_max_over_mean: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Decision {
    pub(super) number: u64,
    pub(super) at_ms: u64,
    pub(super) request: String,
    pub(super) worker: String,
    pub(super) rank: u32,
    pub(super) policy: String,
    pub(super) prompt_tokens: u64,
    pub(super) overlap_tokens: u64,
    pub(super) cost: Option<f64>,
    pub(super) unit: Option<String>,
    pub(super) why: String,
    pub(super) outcome: Option<String>,
    pub(super) ttft_ms: Option<f64>,
}

/// Where events come from, and the other routers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Bus {
    pub(super) buses: Vec<Shared>,
    pub(super) sources: Vec<Source>,
    pub(super) replicas: Replicas,
}

/// A connection that many sources share.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Shared {
    pub(super) kind: String,
    pub(super) up: bool,
    pub(super) for_s: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Source {
    pub(super) worker: String,
    pub(super) rank: u32,
    pub(super) way: String,
    pub(super) at: String,
    pub(super) state: String,
    pub(super) for_s: f64,
    pub(super) events: u64,
    pub(super) events_per_s: f64,
    pub(super) last_event_age_s: Option<f64>,
    pub(super) lag_s: Option<f64>,
    pub(super) behind: u64,
    pub(super) held: u64,
    pub(super) gaps: u64,
    pub(super) missing: u64,
    pub(super) last_error: Option<String>,
    pub(super) last_error_age_s: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Replicas {
    pub(super) heard: Vec<Router>,
    pub(super) in_flight: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Router {
    pub(super) name: String,
    pub(super) config: String,
    pub(super) same_config: bool,
    pub(super) ready: bool,
    pub(super) in_flight: u32,
    pub(super) last_heard_s: f64,
    pub(super) silent: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    pub(super) hash: String,
    pub(super) loaded_at_ms: u64,
    pub(super) last_reload: Option<Reload>,
    pub(super) needs_restart: Vec<Named>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Reload {
    pub(super) ok: bool,
    pub(super) at_ms: u64,
    pub(super) asked_by: String,
    pub(super) faults: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    pub(super) key: String,
}

impl Looker {
    pub(super) fn new(port: AdminPort) -> Self {
        Self { port, turn: 0, config: Value::Null }
    }

    /// Asks for everything.
    ///
    /// # Errors
    /// No router answers, or not as one.
    pub(super) async fn look(&mut self) -> anyhow::Result<Look> {
        let port = &self.port;
        let newest = [("limit", DECISIONS)];
        let bus = async { anyhow::Ok(port.get(&["api", "v1", "bus"], &[]).await.unwrap_or_default()) };
        let (health, workers, history, decisions, bus) = tokio::try_join!(
            port.get(&["healthz"], &[]),
            port.get(&["api", "v1", "workers"], &[]),
            port.get(&["api", "v1", "history"], &[]),
            port.get(&["api", "v1", "decisions"], &newest),
            // Older routers have none.
            bus,
        )?;
        if self.turn.is_multiple_of(CONFIG_EVERY) {
            self.config = port.get(&["api", "v1", "config"], &[]).await?;
            if let Some(config) = self.config.as_object_mut() {
                config.remove("values");
            }
        }
        self.turn = self.turn.wrapping_add(1);
        Ok(Look { health, workers, history, decisions, bus, config: self.config.clone() })
    }

    /// Has the router do something with a worker. Returns how the worker stands then.
    ///
    /// # Errors
    /// It refuses.
    pub(super) async fn act(&self, wish: &Wish) -> anyhow::Result<String> {
        let path = ["api", "v1", "workers", &wish.worker, wish.action.name()];
        let told: Value = self.port.post(&path, Vec::new()).await?;
        Ok(told["state"].as_str().unwrap_or_default().to_owned())
    }
}

impl Look {
    /// One document of it all.
    pub(super) fn json(&self) -> Value {
        let Self { health, workers, history, decisions, bus, config } = self;
        json!({
            "health": health,
            "workers": workers["workers"],
            "history": history,
            "decisions": decisions,
            "bus": bus,
            "config": config,
        })
    }

    /// What is shown of it.
    ///
    /// # Errors
    /// Another program answers.
    pub(super) fn picture(&self) -> anyhow::Result<Picture> {
        let read = || {
            Ok::<_, serde_json::Error>(Picture {
                health: Health::deserialize(&self.health)?,
                workers: Vec::deserialize(&self.workers["workers"])?,
                history: History::deserialize(&self.history)?,
                decided: self.decisions["last"].as_u64().unwrap_or(0),
                decisions: Vec::deserialize(&self.decisions["decisions"])?,
                bus: Option::deserialize(&self.bus)?.unwrap_or_default(),
                config: Config::deserialize(&self.config)?,
            })
        };
        read().context("what answers is no router of this version")
    }
}

impl Worker {
    /// The worker, with its rank where it is not the first.
    pub(super) fn name(&self) -> String {
        named(&self.id, self.rank)
    }

    /// Share of its cache that is used: as the engine says, else by the router's account.
    pub(super) fn kv_use(&self) -> f64 {
        self.engine.as_ref().and_then(|engine| engine.kv_usage).unwrap_or(self.kv_load)
    }
}

impl Source {
    /// The worker, with its rank where it is not the first.
    pub(super) fn name(&self) -> String {
        named(&self.worker, self.rank)
    }
}

impl Decision {
    /// Who was chosen.
    pub(super) fn chosen(&self) -> String {
        named(&self.worker, self.rank)
    }
}

fn named(worker: &str, rank: u32) -> String {
    if rank == 0 { worker.to_owned() } else { format!("{worker}/{rank}") }
}
