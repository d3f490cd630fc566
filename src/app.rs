//! One gateway: from a configuration to bound sockets and running tasks, and back.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;
use warmpath_core::overlap::PrefixIndex;
use warmpath_indexer::concurrent::ConcurrentIndex;

use crate::config::{Config, Override, ReadyWhen, Timeouts};
use crate::door::Door;
use crate::error::BoxError;
use crate::events::local::LocalBus;
use crate::fleet::Fleet;
use crate::http::admin::{self, Admin, AdminToken, Changes, Condition};
use crate::http::desk::Desk;
use crate::http::gateway::Gateway;
use crate::http::routes;
use crate::shutdown::{Interrupts, Tasks};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::otlp::Exporter;
use crate::upstream::Upstream;
use crate::upstream::record::Recorder;
use muster::{Absent, muster};
use readiness::readiness;
use reload::Reloader;
use report::report;
use sources::Sources;

mod behaviour;
mod build;
mod bus;
mod doors;
mod load;
mod members;
mod muster;
mod offers;
mod probe;
mod readiness;
mod record;
mod reload;
mod replicas;
mod report;
mod scrape;
mod sources;
mod spans;

/// After the grace, for clients to be told that their answers end.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A running gateway.
pub struct App {
    data: SocketAddr,
    admin: SocketAddr,
    data_door: Door,
    admin_door: Door,
    fleet: Arc<Fleet>,
    sources: Arc<Sources>,
    reloader: Arc<Reloader>,
    tasks: Tasks,
    background: Tasks,
    timeouts: Timeouts,
    draining: Arc<AtomicBool>,
    /// Cancelled when workers are waited for no longer.
    absent: (CancellationToken, Arc<OnceLock<Absent>>),
    /// Those that keep what is told of requests: in a file, and as spans.
    keepers: [record::Keeping; 2],
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
    /// Not all workers came.
    #[error(transparent)]
    Absent(#[from] Absent),
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
        let metrics = Metrics::new(&config.metrics.prefix);
        let [data, admin] = doors::bind_both(&config.listen, &metrics)?;
        let certificates: Vec<_> = [&data, &admin].into_iter().filter_map(|port| port.tls().cloned()).collect();
        let (config, background) = (Arc::new(config), Tasks::new());
        let (fleet, index) = (Arc::new(build::fleet(&config, &metrics, &background)), Arc::new(build::index(&config)));
        // In a box: connecting is the largest future of all, and everything that awaits this would have it inside.
        let sources = Box::pin(Sources::connect(&config, local, (&fleet, &index), &metrics, &background));
        let sources = Arc::new(sources.await?);
        let (list, trouble) = members::begin(&config, (&fleet, &index), &sources, &metrics, &background)?;
        let (recorder, journal) = record::start(&config, &metrics).await?;
        let (exporter, courier) = spans::start(&config, &metrics, &background)?;
        let decisions = Arc::new(build::decisions(&config));
        let gateway = gateway(&config, (&fleet, &index), metrics.clone(), (recorder, exporter));
        let desk = Desk::new(gateway.with_decisions(Arc::clone(&decisions)));
        let (token, draining) = (AdminToken::default(), Arc::new(AtomicBool::new(false)));
        let reloader = Arc::new(Reloader::new(&config, (&fleet, &desk, list), token.clone(), &metrics));
        doors::keep_fresh(certificates.clone(), &background)?;
        let absent = (CancellationToken::new(), Arc::default());
        let mustered = wait_for_workers(&config, &fleet, &absent, &background);
        let ready = readiness((&fleet, &sources), (mustered, &draining));
        let bus = bus::start((&fleet, &sources), (&reloader, data.address().port()), Arc::clone(&ready), &background);
        let health = {
            let (fleet, ready, sources, settings) = (fleet.clone(), ready.clone(), sources.clone(), reloader.clone());
            let (unread_after, obstacle) = (scrape::unread_after(&config.engines), journal.obstacle());
            move || report((&fleet, unread_after), (&ready, &sources), (&trouble, &obstacle, &settings), &certificates)
        };
        let measured = Arc::clone(&sources);
        let admin_state = Arc::new(Admin {
            fleet: Arc::clone(&fleet),
            index,
            decisions,
            desk: desk.clone(),
            metrics,
            condition: Condition { ready: readiness::refusal(&ready), health: Box::new(health) },
            bus,
            refresh: Box::new(move || measured.measure()),
            token,
            settings: reloader.clone(),
            changes: Changes::new(background.clone()),
        });
        report::tell_on_signal(Arc::clone(&admin_state), &background)?;
        report::tell_untokenized(&fleet, &background);
        let (limits, tasks) = (doors::limits(&config), Tasks::new());
        Ok(Self {
            data: data.address(),
            admin: admin.address(),
            data_door: data.open(routes::data(desk), limits, &tasks),
            admin_door: admin.open(admin::routes(admin_state), limits, &background),
            fleet,
            sources,
            reloader,
            tasks,
            background,
            timeouts: config.timeouts,
            draining,
            absent,
            keepers: [journal, courier],
        })
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
        let kept: usize = self.keepers.iter().map(record::Keeping::tasks_alive).sum();
        self.tasks.len() + self.background.len() + self.sources.tasks_alive() + kept
    }

    /// Requests that were sent to workers and have not ended.
    pub fn in_flight(&self) -> u32 {
        bus::in_flight(&self.fleet)
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

    /// From now on follows the file that its configuration is from: whenever that changes, and on SIGHUP, which does not end
    /// the process then.
    ///
    /// # Errors
    /// The signal cannot be had.
    pub fn follow(&self, file: PathBuf, overrides: Vec<Override>) -> Result<(), StartError> {
        let hangups = doors::hangups()?;
        Arc::clone(&self.reloader).follow((file, overrides), hangups, &self.background);
        Ok(())
    }

    /// Serves until one of `interrupts`, then drains; a second one ends it at once.
    ///
    /// # Errors
    /// Every worker was waited for, and not all came.
    pub async fn run_until(self, interrupts: &mut Interrupts) -> Result<(), StartError> {
        let (given_up, absent) = self.absent.clone();
        tell_supervisor(NotifyState::Ready);
        tokio::select! {
            () = interrupts.next() => {}
            () = given_up.cancelled() => {}
        }
        tracing::info!("draining");
        tell_supervisor(NotifyState::Stopping);
        tokio::select! {
            cut = self.stop() => tracing::info!(cut, "stopped"),
            () = interrupts.next() => tracing::warn!("stopped without waiting"),
        }
        absent.get().map_or(Ok(()), |absent| Err((*absent).into()))
    }

    /// Not ready, and answers that end their connections; after the delay, in which balancers take the router out, no new
    /// connections, then what runs may finish within the grace; what is left of that is for the workers' views to be written
    /// down. The admin port answers to the last. Returns how many connections were cut.
    pub async fn stop(self) -> usize {
        self.draining.store(true, Ordering::Relaxed);
        self.data_door.part();
        tokio::time::sleep(self.timeouts.shutdown_delay.get()).await;
        self.data_door.close();
        let grace = self.timeouts.shutdown_grace.get();
        let until = Instant::now() + grace;
        let patience = grace - self.sources.time_to_stop(grace);
        let drained = self.tasks.drain(patience + LAST_WORDS);
        tokio::pin!(drained);
        let cut = tokio::select! {
            cut = &mut drained => cut,
            () = tokio::time::sleep(patience) => {
                let cut = self.data_door.cut();
                drained.await;
                cut
            }
        };
        let [journal, courier] = &self.keepers;
        tokio::join!(journal.stop(), courier.stop());
        self.sources.stop(until).await;
        self.admin_door.close();
        self.background.drain(Duration::ZERO).await;
        cut
    }
}

fn gateway(
    config: &Config,
    (fleet, index): (&Arc<Fleet>, &Arc<ConcurrentIndex>),
    metrics: Metrics,
    (recorder, exporter): (Option<Recorder>, Option<Exporter>),
) -> Gateway {
    let upstream = Upstream::new(behaviour::attempt_timeouts(config));
    let index: Arc<dyn PrefixIndex> = index.clone();
    Gateway::new(Arc::clone(fleet), index, upstream, metrics, behaviour::behaviour(config))
        .with_passthrough(config.listen.passthrough.clone())
        .with_recorder(recorder)
        .with_exporter(exporter)
}

/// With `ready_when: all`, waits for every worker. What it returns becomes true when nobody is waited for any more.
fn wait_for_workers(
    config: &Config,
    fleet: &Arc<Fleet>,
    (given_up, absent): &(CancellationToken, Arc<OnceLock<Absent>>),
    background: &Tasks,
) -> Arc<AtomicBool> {
    let mustered = Arc::new(AtomicBool::new(config.ready_when == ReadyWhen::Any));
    if config.ready_when == ReadyWhen::All {
        let (fleet, done) = (Arc::clone(fleet), Arc::clone(&mustered));
        let (given_up, absent) = (given_up.clone(), Arc::clone(absent));
        let (interval, timeout) = (config.timeouts.start_interval.get(), config.timeouts.start.get());
        background.spawn(async move {
            match muster(|| readiness::ready(&fleet, ReadyWhen::All).is_ok(), interval, timeout).await {
                Ok(()) => done.store(true, Ordering::Relaxed),
                Err(missing) => {
                    absent.get_or_init(|| missing);
                    given_up.cancel();
                }
            }
        });
    }
    mustered
}

/// Tells whoever started this process, where that wants to know (systemd's notification protocol).
fn tell_supervisor(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "the supervisor cannot be told");
    }
}
