//! Where workers are learned from while the router runs, and what all sources together say.
//!
//! Each source is a future that tells what it found, again whenever that changes, and that ends with its listener. One that
//! fails says why and takes nothing back: what it named last stays, for a fleet does not vanish with its register.

use std::collections::{BTreeMap, HashMap};

use warmpath_core::ids::WorkerId;

use crate::config::Worker;

pub mod dns;
pub mod file;
pub mod kubernetes;
pub mod leases;
pub mod nats;
pub mod registration;
pub mod srv;

/// The most workers of one source: more than any fleet has, and few enough to hold.
const WORKERS_MAX: usize = 4096;

/// Where a worker was learned from. The first of two that name the same worker is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The configuration.
    List,
    /// A file beside it.
    File,
    /// A name's addresses.
    Dns,
    /// A Service's endpoints.
    Kubernetes,
    /// The bucket of registrations.
    Nats,
}

impl Origin {
    /// What metrics call it.
    pub fn key(self) -> &'static str {
        match self {
            Origin::List => "list",
            Origin::File => "file",
            Origin::Dns => "dns",
            Origin::Kubernetes => "kubernetes",
            Origin::Nats => "nats",
        }
    }

    /// What messages call it.
    pub fn label(self) -> &'static str {
        match self {
            Origin::List => "the configuration",
            Origin::File => "the workers' file",
            Origin::Dns => "DNS",
            Origin::Kubernetes => "Kubernetes",
            Origin::Nats => "the registrations",
        }
    }
}

/// What a source tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Who tells it.
    pub origin: Origin,
    /// All its workers; `None`: it cannot say, those that it named last are kept.
    pub workers: Option<Vec<Worker>>,
    /// What is wrong, in words.
    pub trouble: Vec<String>,
}

/// What is wrong with each source that has told anything, in words.
pub type Troubles = BTreeMap<Origin, Vec<String>>;

/// What all sources together say.
#[derive(Debug, Default)]
pub struct Union {
    found: BTreeMap<Origin, Vec<Worker>>,
    trouble: Troubles,
}

impl Union {
    /// Takes in what a source tells.
    pub fn take(&mut self, found: Found) {
        let Found { origin, workers, mut trouble } = found;
        if let Some(mut workers) = workers {
            if workers.len() > WORKERS_MAX {
                trouble.push(format!("{} names {} workers: {WORKERS_MAX} are used", origin.label(), workers.len()));
                workers.truncate(WORKERS_MAX);
            }
            self.found.insert(origin, workers);
        }
        self.trouble.insert(origin, trouble);
    }

    /// Every worker once with who names it, and what is wrong.
    pub fn workers(&self) -> (HashMap<WorkerId, (Origin, &Worker)>, Troubles) {
        let mut first: HashMap<WorkerId, (Origin, &Worker)> = HashMap::new();
        let mut trouble = self.trouble.clone();
        for (origin, worker) in self.found.iter().flat_map(|(origin, workers)| workers.iter().map(|w| (*origin, w))) {
            match first.get(&worker.id.value) {
                Some((earlier, _)) => trouble.entry(origin).or_default().push(format!(
                    "worker `{}` is named by {} and by {}: the first counts",
                    worker.id.value,
                    earlier.label(),
                    origin.label()
                )),
                None => {
                    first.insert(worker.id.value.clone(), (origin, worker));
                }
            }
        }
        (first, trouble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn workers(ids: &[&str], port: u16) -> Vec<Worker> {
        let lines = ids.iter().map(|id| format!("- {{id: {id}, url: 'http://a:{port}', model: m}}\n"));
        let text = format!("models: [{{name: m}}]\nworkers:\n{}", lines.collect::<String>());
        Config::parse("a test", text).unwrap().workers
    }

    fn found(origin: Origin, workers: Option<Vec<Worker>>, trouble: &[&str]) -> Found {
        Found { origin, workers, trouble: trouble.iter().map(|line| (*line).to_owned()).collect() }
    }

    fn ports(union: &Union) -> Vec<String> {
        let mut ports: Vec<_> =
            union.workers().0.values().map(|(_, worker)| format!("{} {}", worker.id.value, worker.url.value)).collect();
        ports.sort();
        ports
    }

    #[test]
    fn the_first_source_that_names_a_worker_is_believed_and_the_clash_is_told() {
        let mut union = Union::default();
        union.take(found(Origin::Nats, Some(workers(&["a", "b"], 2)), &[]));
        union.take(found(Origin::List, Some(workers(&["a"], 1)), &[]));
        assert_eq!(ports(&union), ["a http://a:1", "b http://a:2"]);
        let clash = "worker `a` is named by the configuration and by the registrations: the first counts";
        assert_eq!(union.workers().1[&Origin::Nats], [clash]);
    }

    #[test]
    fn a_source_that_fails_keeps_what_it_named_and_says_why() {
        let mut union = Union::default();
        union.take(found(Origin::File, Some(workers(&["a"], 1)), &[]));
        union.take(found(Origin::File, None, &["it is gone"]));
        let wrong =
            |lines: &[&str]| BTreeMap::from([(Origin::File, lines.iter().copied().map(str::to_owned).collect())]);
        assert_eq!((ports(&union), union.workers().1), (vec!["a http://a:1".to_owned()], wrong(&["it is gone"])));
        union.take(found(Origin::File, Some(Vec::new()), &[]));
        assert_eq!((ports(&union), union.workers().1), (Vec::new(), wrong(&[])));
    }
}
