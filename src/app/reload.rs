//! The configuration while the router runs: read again, compared, and followed as far as that goes without a restart.

use std::fs::File;
use std::hash::Hasher;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use tokio::signal::unix::Signal;
use tokio::sync::{Mutex, MutexGuard, mpsc};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use warmpath_core::count::real;
use xxhash_rust::xxh3::Xxh3;

use super::{behaviour, build};
use crate::config::{Config, Environment, Leaf, Origins, Override, Reading, adopted, changes, leaves};
use crate::fleet::Fleet;
use crate::fleet::discovery::{Found, Origin};
use crate::http::admin::AdminToken;
use crate::http::admin::settings::{Reloaded, Settings, Shown};
use crate::http::desk::Desk;
use crate::shutdown::{Lasting, Restarts, Tasks};
use crate::telemetry::metrics::{ConfigMetrics, Metrics};
use crate::upstream::Upstream;
use crate::wall_clock::now_ms;

/// Between two looks at the file. Its text is compared, so that links that are swapped, as Kubernetes does with mounted
/// maps, and files that are moved into place are seen.
const LOOK: Duration = Duration::from_secs(2);

/// How long a read of the file may take; a file system that hangs can take for ever.
const READ_MAX: Duration = Duration::from_secs(10);

/// How long who asks for a reload waits for the one before: not longer, or those who wait would keep other changes out.
const TURN_MAX: Duration = Duration::from_secs(1);

/// Faults of one file that are logged; the admin port tells all.
const LOGGED: usize = 8;

/// What is compared of the file: more than a configuration may have.
const BYTES_MAX: u64 = 2 << 20;

/// Keeps a gateway true to its configuration's file.
pub(super) struct Reloader {
    /// The file, and what the command line sets above it.
    followed: OnceLock<(PathBuf, Vec<Override>)>,
    fleet: Arc<Fleet>,
    desk: Desk,
    workers: mpsc::Sender<Found>,
    token: AdminToken,
    metrics: ConfigMetrics,
    restarts: Restarts,
    /// One reload at a time.
    running: Mutex<Running>,
    shown: ArcSwap<Shown>,
}

/// What is in effect, and what was seen of the file last.
struct Running {
    config: Config,
    seen: Option<Seen>,
    /// The read that took too long: there is no other until it has ended.
    hanging: Option<JoinHandle<Option<Seen>>>,
}

/// A look at the file.
struct Seen {
    hash: u64,
    /// Whether what it says depends on other files.
    refers: bool,
    /// What it says, or what is wrong with it.
    outcome: Result<(Config, Origins), Vec<String>>,
}

impl Reloader {
    /// Follows no file yet.
    pub(super) fn new(
        config: &Config,
        (fleet, desk, workers): (&Arc<Fleet>, &Desk, mpsc::Sender<Found>),
        token: AdminToken,
        metrics: &Metrics,
    ) -> Self {
        let (metrics, restarts) = (metrics.config(), metrics.restarts("reload"));
        token.set(secret(config));
        metrics.in_effect(real(now_ms()) / 1e3, 0);
        let shown = Shown { loaded_at_ms: now_ms(), values: leaves(config, &Origins::default()), ..Shown::default() };
        Self {
            followed: OnceLock::new(),
            fleet: Arc::clone(fleet),
            desk: desk.clone(),
            workers,
            token,
            metrics,
            restarts,
            running: Mutex::new(Running { config: config.clone(), seen: None, hanging: None }),
            shown: ArcSwap::from_pointee(shown),
        }
    }

    /// Follows the file that the configuration is from, with what the command line sets: looks at it every two seconds, and
    /// on `hangups`. One that is read once is not followed.
    pub(super) fn follow(self: Arc<Self>, followed: (PathBuf, Vec<Override>), hangups: Signal, tasks: &Tasks) {
        if is_read_once(&followed.0) {
            tracing::info!(file = %followed.0.display(), "the configuration is from no regular file: it is not read again");
        } else if self.followed.set(followed).is_err() {
            tracing::error!("a router follows one file");
        }
        tasks.supervise(self.restarts.clone(), Following { reloader: self, hangups });
    }

    /// What is wrong with the file, if it cannot be followed.
    pub(super) fn complaint(&self) -> Option<String> {
        let shown = self.shown.load();
        let fault = shown.last_reload.as_ref().filter(|last| !last.ok)?.faults.first()?;
        Some(format!("the configuration's file cannot be followed, what was in effect stays: {fault}"))
    }

    /// Reads the file if `asked` to or if it has changed, and follows it.
    async fn look(&self, mut running: MutexGuard<'_, Running>, asked: Option<&'static str>) -> Option<Reloaded> {
        let (file, overrides) = self.followed.get()?.clone();
        let known = running.seen.as_ref().filter(|seen| asked.is_none() && !seen.refers).map(|seen| seen.hash);
        let seen = read((file, overrides), known, &mut running.hanging).await?;
        let is_first = running.seen.is_none();
        let same = |before: &Seen| match (&before.outcome, &seen.outcome) {
            (Ok((before, _)), Ok((now, _))) => before == now,
            (Err(before), Err(now)) => before == now,
            _ => false,
        };
        if asked.is_none() && running.seen.as_ref().is_some_and(same) {
            self.reword(&running.config, &seen);
            running.seen = Some(seen);
            return None;
        }
        let reloaded = match &seen.outcome {
            Ok((config, origins)) => {
                let by = asked.unwrap_or("file");
                self.adopt(&mut running, (config, origins), (seen.hash, by), is_first).await
            }
            Err(faults) => self.keep(faults, asked.unwrap_or("file")),
        };
        running.seen = Some(seen);
        Some(reloaded)
    }

    /// The file says the same in other words: routers of equal files are to have equal hashes.
    fn reword(&self, in_effect: &Config, seen: &Seen) {
        let shown = self.shown.load();
        if let (Ok((_, origins)), true) = (&seen.outcome, shown.hash != hex(seen.hash)) {
            self.metrics.in_effect(real(shown.loaded_at_ms) / 1e3, seen.hash);
            let values = leaves(in_effect, origins);
            self.shown.store(Arc::new(Shown { hash: hex(seen.hash), values, ..Shown::clone(&shown) }));
        }
    }

    /// What was read cannot be followed.
    fn keep(&self, faults: &[String], asked_by: &'static str) -> Reloaded {
        self.metrics.failed();
        for fault in faults.iter().take(LOGGED) {
            tracing::error!(fault, "the configuration cannot be followed: what was in effect stays");
        }
        let faults = faults.to_vec();
        let reloaded = Reloaded { ok: false, at_ms: now_ms(), asked_by, faults, ..Reloaded::default() };
        let shown = Shown { last_reload: Some(reloaded.clone()), ..Shown::clone(&self.shown.load()) };
        self.shown.store(Arc::new(shown));
        reloaded
    }

    /// Follows `wanted` as far as that goes, all at once.
    async fn adopt(
        &self,
        running: &mut Running,
        (wanted, origins): (&Config, &Origins),
        (hash, asked_by): (u64, &'static str),
        is_first: bool,
    ) -> Reloaded {
        let config = adopted(&running.config, wanted);
        let (changed, waiting) = (changes(&running.config, &config), changes(&config, wanted));
        let needs_restart: Vec<String> = waiting.iter().map(|change| change.key.clone()).collect();
        if config != running.config {
            self.replace(&config, &running.config).await;
            running.config = config.clone();
        }
        if !(is_first && changed.is_empty()) {
            self.metrics.reloaded();
            let keys: Vec<&str> = changed.iter().take(LOGGED).map(|change| change.key.as_str()).collect();
            tracing::info!(asked_by, hash = %hex(hash), changed = changed.len(), ?keys, "configuration followed");
        }
        for key in &needs_restart {
            tracing::warn!(key, "needs a restart: what was in effect stays");
        }
        let at_ms = now_ms();
        self.metrics.in_effect(real(at_ms) / 1e3, hash);
        self.metrics.waiting(needs_restart.len());
        let reloaded = Reloaded { ok: true, at_ms, asked_by, changed, needs_restart, faults: Vec::new() };
        let values: Vec<Leaf> = leaves(&config, origins);
        self.shown.store(Arc::new(Shown {
            file: self.followed.get().map(|(file, _)| file.display().to_string()),
            hash: hex(hash),
            loaded_at_ms: at_ms,
            last_reload: Some(reloaded.clone()).filter(|_| !is_first),
            needs_restart: waiting,
            values,
        }));
        reloaded
    }

    /// The requests to come are served by `config`; those under way keep what they began with.
    async fn replace(&self, config: &Config, before: &Config) {
        self.fleet.set_conduct(build::conduct(config));
        let pools = self.fleet.pools().map(|old| Arc::new(build::succeeding(config, before, &old)));
        self.fleet.replace_pools(pools);
        let old = self.desk.gateway();
        let upstream = Upstream::new(behaviour::attempt_timeouts(config));
        let behaviour = behaviour::succeeding(config, &old.behaviour);
        self.desk.replace(old.succeeding(upstream, behaviour, config.listen.passthrough.clone()));
        self.token.set(secret(config));
        if config.workers != before.workers {
            let found = Found { origin: Origin::List, workers: Some(config.workers.clone()), trouble: Vec::new() };
            if self.workers.send(found).await.is_err() {
                tracing::error!("nobody takes workers in any more");
            }
        }
    }
}

/// Keeps a gateway true to its configuration's file, whenever that changes.
struct Following {
    reloader: Arc<Reloader>,
    hangups: Signal,
}

impl Lasting for Following {
    async fn work(&mut self) {
        let Self { reloader, hangups } = self;
        // What changed since the router read it is followed at once.
        reloader.look(reloader.running.lock().await, None).await;
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let asked = tokio::select! {
                heard = hangups.recv() => heard.map(|()| "signal"),
                _ = ticks.tick() => None,
            };
            reloader.look(reloader.running.lock().await, asked).await;
        }
    }
}

impl Settings for Reloader {
    fn show(&self) -> Arc<Shown> {
        self.shown.load_full()
    }

    fn reload(&self) -> BoxFuture<'_, Reloaded> {
        Box::pin(async {
            let refused = |fault: &str| Reloaded {
                at_ms: now_ms(),
                asked_by: "admin",
                faults: vec![fault.to_owned()],
                ..Reloaded::default()
            };
            match tokio::time::timeout(TURN_MAX, self.running.lock()).await {
                Ok(running) => self.look(running, Some("admin")).await,
                Err(_) => Some(refused("the reload before this one still reads the configuration's file")),
            }
            .unwrap_or_else(|| refused("the configuration is from no file that can be read again"))
        })
    }
}

/// Reads the file, which can be slow; none where its text is as `known`.
async fn read(
    (file, overrides): (PathBuf, Vec<Override>),
    known: Option<u64>,
    hanging: &mut Option<JoinHandle<Option<Seen>>>,
) -> Option<Seen> {
    let deadline = tokio::time::Instant::now() + READ_MAX;
    let unread = Seen::not(known, format!("{}: cannot be read: it takes more than {READ_MAX:?}", file.display()));
    if let Some(before) = hanging {
        // What it has seen may be old by now.
        if tokio::time::timeout_at(deadline, before).await.is_err() {
            return unread;
        }
        *hanging = None;
    }
    let mut reading = tokio::task::spawn_blocking(move || see((&file, overrides), known));
    match tokio::time::timeout_at(deadline, &mut reading).await {
        Ok(seen) => seen.ok()?,
        Err(_) => {
            *hanging = Some(reading);
            unread
        }
    }
}

impl Seen {
    /// Nothing, for this reason; none where that is `known`.
    fn not(known: Option<u64>, fault: String) -> Option<Self> {
        (known != Some(0)).then(|| Self { hash: 0, refers: false, outcome: Err(vec![fault]) })
    }
}

/// Whether it is a pipe, or another that has nothing to say again, or keeps its reader waiting for a writer.
fn is_read_once(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|it| !it.is_file())
}

/// Reads the file; none where its text is as `known`.
fn see((file, overrides): (&Path, Vec<Override>), known: Option<u64>) -> Option<Seen> {
    if is_read_once(file) {
        return Seen::not(known, format!("{}: cannot be read: it is no regular file", file.display()));
    }
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => {}
        Err(error) => {
            return Seen::not(known, format!("{}: cannot be read: {error}", file.display()));
        }
    }
    let mut hasher = Xxh3::new();
    hasher.write(&bytes);
    let hash = hasher.finish();
    if known == Some(hash) {
        return None;
    }
    let environment = Environment::of_process().with(overrides);
    let outcome = match Reading::of_file(file, &environment) {
        Err(error) => Err(vec![format!("{}: cannot be read: {error}", file.display())]),
        Ok(reading) => match (reading.config, reading.faults.as_slice()) {
            (Some(config), []) => Ok((config, reading.origins)),
            (_, faults) => Err(faults.iter().map(ToString::to_string).collect()),
        },
    };
    let refers = environment.refers() || memchr::memmem::find(&bytes, b"${file:").is_some();
    Some(Seen { hash, refers, outcome })
}

fn secret(config: &Config) -> Option<String> {
    config.listen.admin_token.as_ref().map(|token| token.expose().to_owned())
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}
