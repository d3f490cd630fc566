//! One gateway: from a configuration to bound sockets and running tasks, and back.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Usage};
use crate::error::BoxError;
use crate::events::local::LocalBus;
use crate::fleet::{Duty, Fleet};
use crate::http::admin::{self, Admin, HealthReport};
use crate::http::gateway::{Behaviour, Gateway};
use crate::http::{ConnectionLimits, routes, serve};
use crate::shutdown::{Tasks, interrupted};
use crate::telemetry::metrics::Metrics;
use crate::tokenize::TokenizerState;
use crate::upstream::{Timeouts, Upstream};
use members::{Members, Trouble};
use offers::Offers;
use probe::Probes;
use scrape::Readers;
use sources::Sources;

mod build;
mod members;
mod offers;
mod probe;
mod scrape;
mod sources;

/// Between "not ready" and "no new connections", so that balancers can take the router out.
const PAUSE: Duration = Duration::from_millis(100);

/// A running gateway.
pub struct App {
    data: SocketAddr,
    admin: SocketAddr,
    fleet: Arc<Fleet>,
    sources: Arc<Sources>,
    tasks: Tasks,
    background: Tasks,
    grace: Duration,
    draining: Arc<AtomicBool>,
    stop_accepting: CancellationToken,
}

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port could not be had.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The configuration cannot be carried out.
    #[error("{what}")]
    Setup {
        /// What could not be set up.
        what: String,
        /// Why.
        #[source]
        source: BoxError,
    },
}

impl App {
    /// Binds, connects and serves. Workers with `events: local` publish on `local`.
    ///
    /// # Errors
    /// When a port is taken or the event bus's settings make no sense. A bus that is down is no error.
    pub async fn start(config: Config, local: Option<LocalBus>) -> Result<Self, StartError> {
        let data = listen(config.listen.data.value).await?;
        let admin = listen(config.listen.admin.value).await?;
        let metrics = Metrics::new(&config.metrics.prefix);
        let background = Tasks::new();
        let config = Arc::new(config);
        let fleet = Arc::new(build::fleet(&config, &metrics));
        let index = Arc::new(build::index(&config));
        let sources = Arc::new(Sources::connect(&config, local, (&fleet, &index), &metrics, &background).await?);
        let trouble = Trouble::default();
        let members = Members {
            config: Arc::clone(&config),
            fleet: Arc::clone(&fleet),
            sources: Arc::clone(&sources),
            probes: Probes::new(&fleet, &config.timeouts),
            readers: Readers::new((&fleet, &index), (&config.engines, &config.timeouts)),
            offers: Offers::new(&fleet, (&config.engines, &config.timeouts)),
            metrics: metrics.clone(),
            background: background.clone(),
            present: HashMap::new(),
        };
        members.start(&trouble)?;
        let draining = Arc::new(AtomicBool::new(false));
        let upstream = Upstream::new(attempt_timeouts(&config));
        let gateway = Gateway::new(Arc::clone(&fleet), index.clone(), upstream, metrics.clone(), behaviour(&config))
            .with_passthrough(config.listen.passthrough.clone());
        let health = {
            let (fleet, sources, draining) = (Arc::clone(&fleet), Arc::clone(&sources), Arc::clone(&draining));
            let ready_when = config.ready_when;
            move || HealthReport {
                ready: !draining.load(Ordering::Relaxed) && sources.are_warm() && probe::ready(&fleet, ready_when),
                ..report(&fleet, &sources, &trouble)
            }
        };
        let measured = Arc::clone(&sources);
        let admin_state = Admin {
            fleet: Arc::clone(&fleet),
            index,
            metrics,
            health: Box::new(health),
            refresh: Box::new(move || measured.measure()),
            control: control(),
            token: config.listen.admin_token.as_ref().map(|token| token.expose().to_owned()),
        };
        let app = Self {
            data: data.1,
            admin: admin.1,
            fleet,
            sources,
            tasks: Tasks::new(),
            background,
            grace: config.timeouts.shutdown_grace.get(),
            draining,
            stop_accepting: CancellationToken::new(),
        };
        let limits = connection_limits(&config);
        app.serve(data.0, routes::data(Arc::new(gateway)), limits, &app.tasks);
        app.serve(admin.0, admin::routes(Arc::new(admin_state)), limits, &app.background);
        Ok(app)
    }

    fn serve(&self, listener: TcpListener, router: axum::Router, limits: ConnectionLimits, tasks: &Tasks) {
        let stop = self.stop_accepting.clone();
        tasks.spawn(serve(listener, router, limits, tasks.clone(), async move { stop.cancelled().await }));
    }

    /// Where clients connect.
    pub fn data_address(&self) -> SocketAddr {
        self.data
    }

    /// Where operators connect.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Tasks alive.
    pub fn tasks_alive(&self) -> usize {
        self.tasks.len() + self.background.len() + self.sources.tasks_alive()
    }

    /// Requests that were sent to workers and have not ended.
    pub fn in_flight(&self) -> u32 {
        self.fleet.roster().table().iter().map(|target| target.account.read().requests).sum()
    }

    /// How uneven the fleet's load is at this moment.
    pub fn load_balance_score(&self) -> f64 {
        self.fleet.load_balance_score()
    }

    /// Waits until every event source is connected, or `patience` is over; returns whether all are.
    pub async fn wait_for_events(&self, patience: Duration) -> bool {
        let start = Instant::now();
        while !self.sources.are_up() {
            if start.elapsed() > patience {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        true
    }

    /// Serves until SIGINT or SIGTERM, then drains; a second signal ends it at once.
    pub async fn run_until_signal(self) {
        interrupted().await;
        tracing::info!("draining");
        tokio::select! {
            cancelled = self.stop() => tracing::info!(cancelled, "stopped"),
            () = interrupted() => tracing::warn!("stopped without waiting"),
        }
    }

    /// Not ready, then no new connections, then what runs may finish within the grace; what is left of that is for the
    /// workers' views to be written down. Returns how many connections were cut.
    pub async fn stop(self) -> usize {
        self.draining.store(true, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
        self.stop_accepting.cancel();
        let until = Instant::now() + self.grace;
        let cut = self.tasks.drain(self.grace - self.sources.time_to_stop(self.grace)).await;
        self.sources.stop(until).await;
        self.background.drain(Duration::ZERO).await;
        cut
    }
}

/// How long an engine may take to empty its cache.
const CONTROL_PATIENCE: Duration = Duration::from_secs(10);

fn control() -> reqwest::Client {
    let client = reqwest::Client::builder().timeout(CONTROL_PATIENCE).build();
    client.expect("a client without TLS has nothing to fail on")
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn connection_limits(config: &Config) -> ConnectionLimits {
    let count = |number: std::num::NonZeroU32| usize::try_from(number.get()).unwrap_or(usize::MAX);
    ConnectionLimits {
        connections: count(config.limits.connections),
        header_timeout: config.timeouts.header_read.get(),
        header_bytes: config.limits.header_bytes.as_usize(),
        headers: count(config.limits.headers),
    }
}

fn attempt_timeouts(config: &Config) -> Timeouts {
    Timeouts {
        connect: config.timeouts.connect.get(),
        first_byte: config.timeouts.first_byte.get(),
        idle: config.timeouts.stream_idle.get(),
        connection_idle: config.timeouts.worker_idle.get(),
    }
}

fn behaviour(config: &Config) -> Behaviour {
    Behaviour {
        body_max: config.limits.body_bytes.bytes(),
        body_timeout: config.timeouts.body_read.get(),
        messages_max: usize::try_from(config.limits.messages.get()).unwrap_or(usize::MAX),
        total_timeout: config.timeouts.total.get(),
        retries: u32::from(config.retries.attempts),
        index_seed: config.index.seed,
        seed: config.routing.seed.unwrap_or_else(rand::random),
        expose_decisions: config.listen.routing_headers,
        asks_usage: config.usage == Usage::Always,
    }
}

fn report(fleet: &Fleet, sources: &Sources, trouble: &Trouble) -> HealthReport {
    let mut degraded = sources.complaints();
    degraded.extend(probe::complaints(fleet));
    degraded.extend(trouble.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
    degraded.extend(fleet.pools().filter_map(|pool| {
        let state = match pool.tokenizer.state() {
            TokenizerState::Absent | TokenizerState::Ready => return None,
            TokenizerState::Loading => "is still being loaded".to_owned(),
            TokenizerState::Failed(reason) => format!("could not be loaded ({reason})"),
        };
        let by = if pool.scheduler.policy().history.is_some() { "their characters" } else { "load" };
        Some(format!("the tokenizer of `{}` {state}: its prompts sent as text are routed by {by}", pool.model))
    }));
    let status = if degraded.is_empty() { "ok" } else { "degraded" };
    let roster = fleet.roster();
    let off_duty = roster.workers().filter(|worker| worker.duty() != Duty::Active);
    let mut off_duty: Vec<String> =
        off_duty.map(|worker| format!("{}: {}", worker.id, worker.duty().label())).collect();
    off_duty.dedup();
    HealthReport { status, degraded, off_duty, ready: true, version: env!("CARGO_PKG_VERSION") }
}
