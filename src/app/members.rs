//! Who is in the fleet: takes workers in and lets them go, each with all that belongs to it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use warmpath_core::ids::WorkerId;
use warmpath_indexer::concurrent::ConcurrentIndex;

use super::StartError;
use super::build::{self, is_same_worker, setup};
use super::load;
use super::offers::Offers;
use super::probe::Probes;
use super::scrape::Readers;
use super::sources::Sources;
use crate::config::{Config, EventSource, Worker as Described};
use crate::fleet::discovery::{
    Found, Origin, Troubles, Union, dns, file, kubernetes::EndpointSlices, nats::Registrations,
};
use crate::fleet::health::Health;
use crate::fleet::{Fleet, Worker};
use crate::link::{LinkLimits, Links};
use crate::shutdown::{Lasting, Tasks};
use crate::telemetry::metrics::Metrics;

/// What sources of workers are called where they begin again after a panic.
const DISCOVERY: &str = "discovery";

/// What sources have found and nobody has looked at yet; each tells only what is new.
const FOUND_MAX: usize = 8;

/// What is wrong with the sources of workers, in words.
pub(super) type Trouble = Arc<Mutex<Vec<String>>>;

/// All members, and what it takes to be one.
struct Members {
    config: Arc<Config>,
    fleet: Arc<Fleet>,
    sources: Arc<Sources>,
    probes: Probes,
    readers: Readers,
    links: Links,
    offers: Offers,
    metrics: Metrics,
    background: Tasks,
    present: HashMap<WorkerId, Member>,
}

/// One member. Its tasks end with its membership.
struct Member {
    described: Described,
    ranks: Vec<Arc<Worker>>,
    tasks: Tasks,
    /// Those that keep the index true to it.
    listening: Tasks,
}

/// Takes in the workers of the configuration, and follows all sources. Returns where changes of the configuration's own list
/// are told, and what is wrong.
///
/// # Errors
/// When one of the configuration's workers cannot be taken in.
pub(super) fn begin(
    config: &Arc<Config>,
    of: (&Arc<Fleet>, &Arc<ConcurrentIndex>),
    sources: &Arc<Sources>,
    metrics: &Metrics,
    background: &Tasks,
) -> Result<(mpsc::Sender<Found>, Trouble), StartError> {
    let links = build::links(config, background)?;
    let members = Members::new(config, of, sources, (links, metrics.clone()), background);
    let trouble = Trouble::default();
    Ok((members.start(&trouble)?, trouble))
}

/// What the sources find, made true of the members.
struct Following {
    members: Members,
    union: Union,
    found: mpsc::Receiver<Found>,
    trouble: Trouble,
    /// Whether members may not be what was found last: a panic came in between.
    torn: bool,
}

impl Lasting for Following {
    async fn work(&mut self) {
        if self.torn {
            self.reconcile().await;
        }
        while let Some(found) = self.found.recv().await {
            self.union.take(found);
            self.reconcile().await;
        }
    }
}

impl Following {
    async fn reconcile(&mut self) {
        self.torn = true;
        let said = self.members.reconcile(&self.union).await;
        self.torn = false;
        said.iter().for_each(|(origin, lines)| self.members.metrics.discovery(origin.key(), lines.len()));
        let said: Vec<String> = said.into_values().flatten().collect();
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        for line in said.iter().filter(|line| !trouble.contains(line)) {
            tracing::warn!(trouble = line, "discovery");
        }
        *trouble = said;
    }
}

impl Members {
    /// Nobody yet.
    fn new(
        config: &Arc<Config>,
        (fleet, index): (&Arc<Fleet>, &Arc<ConcurrentIndex>),
        sources: &Arc<Sources>,
        (links, metrics): (Links, Metrics),
        background: &Tasks,
    ) -> Self {
        Self {
            config: Arc::clone(config),
            fleet: Arc::clone(fleet),
            sources: Arc::clone(sources),
            probes: Probes::new(fleet, &config.timeouts),
            readers: Readers::new((fleet, index), (&config.engines, &config.timeouts)),
            links,
            offers: Offers::new(fleet, (&config.engines, &config.timeouts)),
            metrics,
            background: background.clone(),
            present: HashMap::new(),
        }
    }

    /// Takes in the workers of the configuration, then follows what the other sources find. Returns where changes of the
    /// configuration's own list are told.
    ///
    /// # Errors
    /// When one of the configuration's workers cannot be taken in.
    fn start(mut self, trouble: &Trouble) -> Result<mpsc::Sender<Found>, StartError> {
        let listed = self.config.workers.clone();
        for described in &listed {
            let ranks = self.join(described, Health::presumed())?;
            self.attend(described, ranks)?;
        }
        self.sources.tell_pools();
        let (tell, found) = mpsc::channel(FOUND_MAX);
        self.discover(&tell);
        let mut union = Union::default();
        union.take(Found { origin: Origin::List, workers: Some(listed), trouble: Vec::new() });
        let (background, restarts) = (self.background.clone(), self.metrics.restarts("members"));
        background
            .supervise(restarts, Following { members: self, union, found, trouble: Arc::clone(trouble), torn: false });
        Ok(tell)
    }

    /// Starts the configured sources.
    fn discover(&self, tell: &mpsc::Sender<Found>) {
        let discovery = &self.config.discovery;
        if let Some(path) = &discovery.file.path {
            let (config, path, tell) = (Arc::clone(&self.config), path.clone(), tell.clone());
            let interval = discovery.file.interval.get();
            let following = move || file::follow(Arc::clone(&config), path.clone(), interval, tell.clone());
            self.background.supervise(self.metrics.restarts(DISCOVERY), following);
        }
        let only = self.config.models.first().map(|model| &model.name);
        if let (Some(_), Some(model)) = (&discovery.dns.name, discovery.dns.model.as_ref().or(only)) {
            let (dns, model, tell) = (discovery.dns.clone(), model.value.clone(), tell.clone());
            let following = move || dns::follow(dns.clone(), model.clone(), tell.clone());
            self.background.supervise(self.metrics.restarts(DISCOVERY), following);
        }
        let kubernetes = &discovery.kubernetes;
        if let (true, Some(model)) = (kubernetes.is_used(), kubernetes.model.as_ref().or(only)) {
            let connecting = (LinkLimits::of(&self.config), self.background.clone());
            let slices = EndpointSlices::new(kubernetes.clone(), model.value.clone(), connecting, tell.clone());
            self.background.supervise(self.metrics.restarts(DISCOVERY), slices);
        }
        if let (true, Some(bus)) = (discovery.nats.enabled.value, self.sources.nats()) {
            let registrations = Registrations::new(bus.client().clone(), Arc::clone(&self.config), tell.clone());
            self.background.supervise(self.metrics.restarts(DISCOVERY), registrations);
        }
    }

    /// Makes the members those that the sources name. Returns what is wrong with each source.
    async fn reconcile(&mut self, union: &Union) -> Troubles {
        let (wanted, mut trouble) = union.workers();
        let stays = |member: &Member| {
            wanted.get(&member.described.id.value).is_some_and(|(_, wanted)| is_same_worker(&member.described, wanted))
        };
        let serving = || self.present.values().filter(|member| member.may_serve());
        let served: BTreeSet<String> = serving().filter(|member| stays(member)).map(Member::model).collect();
        // Models of which everybody who serves them goes.
        let orphaned: BTreeSet<String> = serving().map(Member::model).filter(|model| !served.contains(model)).collect();
        let gone = self.present.iter().filter(|(id, _)| !wanted.contains_key(*id));
        // They go when others have come.
        let (last, first): (Vec<_>, Vec<_>) =
            gone.map(|(id, member)| (id.clone(), member.model())).partition(|(_, model)| orphaned.contains(model));
        for (id, _) in first {
            self.leave(&id).await;
        }
        let mut wanted: Vec<(Origin, &Described)> = wanted.into_values().collect();
        wanted.sort_by(|(_, a), (_, b)| a.id.value.cmp(&b.id.value));
        for (origin, described) in wanted {
            if let Err(error) = self.admit(described, &orphaned).await {
                trouble.entry(origin).or_default().push(error);
            }
        }
        for (id, _) in last {
            self.leave(&id).await;
        }
        self.sources.tell_pools();
        trouble
    }

    /// Makes a worker a member as it is described. One at another place is another worker, and takes the old one's place.
    async fn admit(&mut self, described: &Described, orphaned: &BTreeSet<String>) -> Result<(), String> {
        let id = &described.id.value;
        let is_same = |member: &&mut Member| is_same_worker(&member.described, described);
        let (what, done) = match self.present.get_mut(id).filter(is_same) {
            Some(member) => ("changed", member.change(described, &self.fleet)),
            None => {
                // Checks first, unless it takes over: then requests would be refused that it may well serve.
                let takes_over = orphaned.contains(&described.model.value);
                let health = if takes_over { Health::presumed() } else { Health::unproven() };
                ("taken in", self.take_in(described, health).await)
            }
        };
        done.map_err(|error| {
            let cause = std::error::Error::source(&error).map_or_else(String::new, |cause| format!(" ({cause})"));
            format!("worker `{id}` cannot be {what}: {error}{cause}")
        })
    }

    /// Takes a worker in. Whoever was there by its id goes at the moment at which it comes, and stays where it cannot come.
    async fn take_in(&mut self, described: &Described, health: Health) -> Result<(), StartError> {
        let ranks = self.join(described, health)?;
        if let Some(before) = self.present.remove(&described.id.value) {
            self.wind_up(before).await;
        }
        self.attend(described, ranks)
    }

    /// From now on requests may go there, in the place of whoever had its id.
    fn join(&self, described: &Described, health: Health) -> Result<Vec<Arc<Worker>>, StartError> {
        let id = &described.id.value;
        self.sources.origin(described)?;
        let newcomers = build::newcomers(&self.config, described, (health, &self.links), &self.metrics)?;
        self.fleet.join(id, &newcomers).map_err(|error| {
            self.metrics.forget_worker(id.as_str());
            setup(&format!("worker `{id}` cannot join"), error)
        })
    }

    /// Starts all that belongs to a worker that has joined. Nobody else may be there by its id any more.
    fn attend(&mut self, described: &Described, ranks: Vec<Arc<Worker>>) -> Result<(), StartError> {
        let id = &described.id.value;
        let (tasks, listening) = (self.background.part(), self.sources.part());
        let started = ranks.iter().try_for_each(|worker| self.sources.start(worker, described, (&tasks, &listening)));
        if let Err(error) = started {
            self.fleet.leave(id);
            tasks.cancel();
            listening.cancel();
            self.metrics.forget_worker(id.as_str());
            return Err(error);
        }
        self.probes.start(ranks.clone(), (&tasks, self.metrics.restarts("probe")));
        self.readers.start(ranks.clone(), (&tasks, self.metrics.restarts("scrape")));
        if let (EventSource::Nats, Some(bus)) = (self.config.event_source(described), self.sources.nats()) {
            load::start(&self.readers, bus, ranks.clone(), (&tasks, self.metrics.restarts("load")));
        }
        self.offers.start(ranks.clone(), (&tasks, self.metrics.restarts("offers")));
        tracing::info!(worker = %id, url = %described.url.value, model = described.model.value, "joined");
        self.present.insert(id.clone(), Member { described: described.clone(), ranks, tasks, listening });
        Ok(())
    }

    /// Lets a worker go: no new requests at once; then all that belongs to it ends.
    async fn leave(&mut self, id: &WorkerId) {
        self.fleet.leave(id);
        let Some(member) = self.present.remove(id) else { return };
        self.wind_up(member).await;
        self.metrics.forget_worker(id.as_str());
    }

    /// Ends the tasks of a worker that is gone. After them nobody writes into the index any more, so that what it held can be
    /// forgotten for good.
    async fn wind_up(&self, member: Member) {
        member.tasks.drain(Duration::ZERO).await;
        member.listening.drain(Duration::ZERO).await;
        for worker in &member.ranks {
            self.sources.vacate(worker);
        }
        tracing::info!(worker = %member.described.id.value, "left");
    }
}

impl Member {
    /// Whether one of its ranks may be chosen.
    fn may_serve(&self) -> bool {
        self.ranks.iter().any(|worker| worker.may_serve())
    }

    fn model(&self) -> String {
        self.described.model.value.clone()
    }

    /// The same worker, described otherwise: it stays, and serves so from now on.
    ///
    /// # Errors
    /// When it cannot serve so: all stays as it was.
    fn change(&mut self, described: &Described, fleet: &Fleet) -> Result<(), StartError> {
        if self.described != *described {
            let id = &described.id.value;
            fleet.change(id, &build::contract(described)?);
            self.described = described.clone();
            tracing::info!(worker = %id, "changed");
        }
        Ok(())
    }
}
