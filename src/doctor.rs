//! A self-test of the wiring: whether each worker is what the configuration says, and whether what its cache holds
//! arrives and is understood.
//!
//! No running router is needed. The doctor opens the same event sources as the router would, keeps an index of its own
//! for each (worker, rank) by the same task, and asks the engines by the same requests. A check that another one's failure
//! makes meaningless is skipped, so that each fault has one finding.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::OnceCell;
use warmpath_core::ids::{Rank, WorkerId};

use crate::config::{Config, EventSource, Model, Worker};
use crate::events::nats::NatsBus;
use crate::events::wiring::{nats_settings, nats_source, zmq_settings, zmq_source};
use crate::events::zmq::{Gate, ZmqBus};
use crate::link::Links;
use crate::shutdown::Tasks;
use crate::telemetry::metrics::Metrics;

use corpus::Sample;
use engine::Engine;
use listening::{Bus, Listening, worker_of};
use parity::Ours;
use probe::{Probe, Probed};

pub use finding::{Check, Finding, Verdict};
pub use remedy::DETAILS;
pub use report::{Report, WorkerReport};

mod corpus;
mod ear;
mod engine;
mod finding;
mod identity;
mod listening;
mod parity;
mod probe;
mod remedy;
mod report;

/// Workers that are examined at once.
const AT_ONCE: usize = 8;

/// What is examined, and how patiently.
#[derive(Clone, Debug)]
pub struct Examination {
    /// Only these workers; none are all.
    pub workers: Vec<WorkerId>,
    /// Checks that are left out.
    pub skip: Vec<Check>,
    /// Bound on each wait: for a connection, for an answer, for an event.
    pub timeout: Duration,
}

/// Why nothing was examined.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nobody {
    /// The configuration names no workers.
    #[error(
        "the configuration names no workers: list those to examine in a copy of it, under `workers` (the running router tells who they are, `GET /api/v1/workers`)"
    )]
    Listed,
    /// What `https` needs cannot be used.
    #[error("`upstream_tls` cannot be used: {0}")]
    Tls(String),
    /// A worker that was asked for is not in it.
    #[error("the configuration has no worker `{asked}` (known: {known})")]
    Such {
        /// Who was asked for.
        asked: WorkerId,
        /// Who is there.
        known: String,
    },
}

/// What all workers' examinations share.
struct Ward<'a> {
    config: &'a Config,
    examination: &'a Examination,
    samples: Vec<Sample>,
    links: Links,
    /// What each model's samples become here, made when the first worker needs it.
    ours: HashMap<&'a str, OnceCell<Ours>>,
    listening: HashMap<(&'a str, u32), Result<Listening, String>>,
}

/// Examines the workers of `config`; `progress` is told how many of how many are done.
///
/// # Errors
/// [`Nobody`]: there is no such worker.
pub async fn examine(
    config: &Config,
    examination: &Examination,
    progress: impl Fn(usize, usize),
) -> Result<Report, Nobody> {
    let workers = chosen(config, examination)?;
    let tasks = Tasks::new();
    let links = Links::configured(config, &tasks).map_err(|error| Nobody::Tls(error.to_string()))?;
    let ward = Ward {
        config,
        examination,
        samples: corpus::samples(),
        ours: config.models.iter().map(|model| (model.name.value.as_str(), OnceCell::new())).collect(),
        listening: listen(config, &workers, &links, &tasks).await,
        links,
    };
    let (done, all) = (AtomicUsize::new(0), workers.len());
    progress(0, all);
    let visits = workers.iter().map(|worker| {
        let (ward, done, progress) = (&ward, &done, &progress);
        Box::pin(async move {
            let report = ward.visit(worker).await;
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, all);
            report
        })
    });
    let reports = futures_util::stream::iter(visits).buffered(AT_ONCE).collect().await;
    tasks.drain(Duration::ZERO).await;
    Ok(Report::new(reports))
}

fn chosen<'a>(config: &'a Config, examination: &Examination) -> Result<Vec<&'a Worker>, Nobody> {
    let known = || config.workers.iter().map(|worker| worker.id.value.as_str()).collect::<Vec<_>>().join(", ");
    let is_unknown = |asked: &&WorkerId| config.workers.iter().all(|worker| worker.id.value != **asked);
    match examination.workers.iter().find(is_unknown) {
        _ if config.workers.is_empty() => Err(Nobody::Listed),
        Some(asked) => Err(Nobody::Such { asked: asked.clone(), known: known() }),
        None => {
            let asked = &examination.workers;
            let is_chosen = |worker: &&Worker| asked.is_empty() || asked.contains(&worker.id.value);
            Ok(config.workers.iter().filter(is_chosen).collect())
        }
    }
}

/// The ranks of a worker as routing targets have them.
fn ranks(worker: &Worker) -> impl Iterator<Item = Option<Rank>> {
    worker.ranks().map(|rank| worker.rank(rank))
}

/// Begins to listen to everybody who has events.
async fn listen<'a>(
    config: &'a Config,
    workers: &[&'a Worker],
    links: &Links,
    tasks: &Tasks,
) -> HashMap<(&'a str, u32), Result<Listening, String>> {
    let wants_nats = workers.iter().any(|worker| config.event_source(worker) == EventSource::Nats);
    let nats = match nats_settings(&config.events.nats).filter(|_| wants_nats) {
        Some(settings) => {
            let bus = NatsBus::connect(settings).await;
            bus.map_err(|error| format!("the NATS settings cannot be used: {error}"))
        }
        None => Err("`events.nats.url` is not set".to_owned()),
    };
    let zmq = zmq_settings(&config.events.zmq);
    let entrance = ZmqBus::new(zmq.clone());
    let gate = config.events.zmq.bind.as_ref().map(|bind| Arc::new(Gate::new(&entrance, bind.value.clone())));
    let restarts = Metrics::new("warmpath").restarts("event_source");
    let mut all = HashMap::new();
    for (worker, rank) in workers.iter().flat_map(|worker| ranks(worker).map(move |rank| (*worker, rank))) {
        let Some(model) = model_of(config, worker) else { continue };
        let Some(known) = worker_of(worker, rank, links) else { continue };
        let heard = match config.event_source(worker) {
            EventSource::None | EventSource::Local => continue,
            EventSource::Nats => nats.clone().map(|bus| {
                let source = nats_source(&bus, &known, config, (tasks, &restarts));
                (Bus::Nats(Box::new(bus)), source)
            }),
            EventSource::Zmq => {
                let bus = match config.zmq_events(worker) {
                    Some(_) => Bus::Zmq(ZmqBus::new(zmq.clone())),
                    None => Bus::Gate(entrance.clone()),
                };
                let (Bus::Zmq(sockets) | Bus::Gate(sockets)) = &bus else { continue };
                let source = zmq_source((sockets, gate.as_ref()), (&known, worker), config, (tasks, &restarts));
                source.map(|source| (bus.clone(), source)).map_err(|error| error.to_string())
            }
        };
        let listening = heard.map(|heard| Listening::start(config, (known, model), heard, tasks));
        all.insert((worker.id.value.as_str(), rank.unwrap_or_default().0), listening);
    }
    if let Some(gate) = gate.filter(|_| all.values().flatten().any(Listening::is_awaited)) {
        tasks.spawn(gate.run(tasks.clone()));
    }
    all
}

fn model_of<'a>(config: &'a Config, worker: &Worker) -> Option<&'a Model> {
    config.models.iter().find(|model| model.name.value == worker.model.value)
}

impl Ward<'_> {
    async fn visit(&self, worker: &Worker) -> WorkerReport {
        let mut checks = match model_of(self.config, worker) {
            Some(model) => self.checks(worker, model).await,
            None => vec![Finding::skipped(Check::Model, "the configuration does not describe its model")],
        };
        for finding in checks.iter_mut().filter(|finding| self.examination.skip.contains(&finding.check)) {
            *finding = Finding { rank: finding.rank, ..Finding::skipped(finding.check, "left out, as asked") };
        }
        checks.sort_by_key(|finding| Check::ALL.iter().position(|check| *check == finding.check));
        WorkerReport {
            worker: worker.id.value.as_str().to_owned(),
            url: worker.url.value.to_string(),
            model: worker.model.value.clone(),
            checks,
        }
    }

    fn skips(&self, check: Check) -> bool {
        self.examination.skip.contains(&check)
    }

    async fn checks(&self, worker: &Worker, model: &Model) -> Vec<Finding> {
        let engine = Engine::new(&self.links, worker, &self.config.engines.presets, self.examination.timeout);
        let is_other = |other: &&Worker| other.id.value != worker.id.value && other.is_engine_of(worker);
        let reachable = match self.config.workers.iter().find(is_other) {
            // Whatever else was found would be true of one of both.
            Some(other) => identity::not_alone(&engine, &other.id.value),
            None => identity::reachable(&engine).await,
        };
        if reachable.has_failed() {
            let rest = Check::ALL.into_iter().filter(|check| *check != Check::Reachable);
            return std::iter::once(reachable)
                .chain(rest.map(|check| Finding::skipped(check, "not reachable")))
                .collect();
        }
        let identity::Offer { finding: served, serves, longest } = identity::model(&engine, model).await;
        let scrape = engine.scrape(None).await;
        let mut checks = vec![reachable, identity::version(&engine, scrape.is_some()).await];
        let told = scrape.and_then(|scrape| scrape.block_size);
        if !serves {
            let why = "whether it serves the model is not known, or it does not";
            let rest = [Check::Events, Check::Tokens, Check::Replay, Check::Prediction];
            checks.extend([served, identity::block_size(model, None, told)]);
            checks.extend(rest.map(|check| Finding::skipped(check, why)));
            return checks;
        }
        checks.push(served);
        let mut carried = None;
        for probed in self.probe_all((worker, model), &engine, longest, &mut checks).await {
            carried = carried.or(probed);
        }
        checks.push(identity::block_size(model, carried, told));
        checks.push(self.tokens(model, &engine, longest).await);
        checks
    }

    /// Probes each rank; returns the sizes of blocks that their events carry.
    async fn probe_all(
        &self,
        (worker, model): (&Worker, &Model),
        engine: &Engine,
        longest: Option<u64>,
        checks: &mut Vec<Finding>,
    ) -> Vec<Option<u32>> {
        const HEARD: [Check; 3] = [Check::Events, Check::Replay, Check::Prediction];
        let unheard = match self.config.event_source(worker) {
            _ if HEARD.iter().all(|check| self.skips(*check)) => Some("left out, as asked"),
            EventSource::None => Some("it is configured without events, and routed to by load"),
            EventSource::Local => Some("its events stay inside the router's process"),
            EventSource::Nats | EventSource::Zmq => None,
        };
        if let Some(why) = unheard {
            let remedy = "set workers[].events to zmq or nats";
            checks.extend(HEARD.map(|check| Finding::skipped(check, why).with_remedy(remedy)));
            return Vec::new();
        }
        let mut carried = Vec::new();
        for rank in ranks(worker) {
            let probed = match self.listening.get(&(worker.id.value.as_str(), rank.unwrap_or_default().0)) {
                Some(Ok(listening)) => {
                    let (config, patience) = (self.config, self.examination.timeout);
                    Box::pin(Probe { engine, listening, config, worker, model, rank, longest, patience }.run()).await
                }
                Some(Err(why)) => Probed::unheard(why, remedy::events(self.config, worker, rank)),
                None => Probed::unheard("its address cannot be read", "correct workers[].url".to_owned()),
            };
            carried.push(probed.carried);
            let found = [probed.events, probed.replay, probed.prediction];
            checks.extend(found.map(|finding| Finding { rank: rank.map(|rank| rank.0), ..finding }));
        }
        carried
    }

    async fn tokens(&self, model: &Model, engine: &Engine, longest: Option<u64>) -> Finding {
        if self.skips(Check::Tokens) {
            return Finding::skipped(Check::Tokens, "left out, as asked");
        }
        let patience = self.examination.timeout;
        let cell = self.ours.get(model.name.value.as_str()).expect("every model of the configuration has one");
        let ours = cell.get_or_init(|| Ours::of(model, &self.samples, patience)).await;
        parity::compare(engine, model, (&self.samples, ours), longest, patience).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(workers: &str) -> Config {
        Config::parse("a test", format!("models: [{{name: m}}]\nworkers: [{workers}]\n")).unwrap()
    }

    fn ids(config: &Config, asked: &[&str]) -> Result<Vec<String>, Nobody> {
        let workers = asked.iter().map(|id| WorkerId::from(*id)).collect();
        let examination = Examination { workers, skip: Vec::new(), timeout: Duration::from_secs(1) };
        let found = chosen(config, &examination)?;
        Ok(found.into_iter().map(|worker| worker.id.value.as_str().to_owned()).collect())
    }

    #[test]
    fn workers_are_chosen_by_their_ids_in_the_order_of_the_configuration() {
        let worker = |id: &str| format!("{{id: {id}, url: 'http://h:1', model: m, dp_ranks: 2}}");
        let config = config(&["a", "b", "c"].map(worker).join(", "));
        assert_eq!(ids(&config, &[]).unwrap(), ["a", "b", "c"]);
        assert_eq!(ids(&config, &["c", "a"]).unwrap(), ["a", "c"]);
        let expected = "the configuration has no worker `x` (known: a, b, c)";
        assert_eq!(ids(&config, &["a", "x"]).unwrap_err().to_string(), expected);
        assert_eq!(ranks(&config.workers[0]).collect::<Vec<_>>(), [Some(Rank(0)), Some(Rank(1))]);
        assert_eq!(ids(&Config::default(), &[]), Err(Nobody::Listed));
    }
}
