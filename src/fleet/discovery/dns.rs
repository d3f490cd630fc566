//! The addresses behind a name as workers.

use std::collections::BTreeSet;

use tokio::sync::mpsc::Sender;
use tokio::time::{MissedTickBehavior, timeout};
use warmpath_core::ids::WorkerId;

use super::srv;
use super::{Found, Origin, WORKERS_MAX};
use crate::config::{DnsSource, Records, Worker};
use crate::error::BoxError;
use crate::lookup;

/// How long a look-up may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// Tells who stands behind the name, whenever that changes. An answer without anybody counts as a failure: a fleet does
/// not vanish because a name server has just lost its list. Ends with its listener.
pub async fn follow(dns: DnsSource, model: String, tell: Sender<Found>) {
    let Some(name) = dns.name.as_ref().map(|name| name.value.clone()) else { return };
    let mut ticks = tokio::time::interval(dns.interval.get());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        ticks.tick().await;
        let looked_up = match timeout(PATIENCE, look_up(&dns, &name)).await {
            Ok(Ok(hosts)) if hosts.is_empty() => Err("the answer names nobody".to_owned()),
            Ok(Ok(hosts)) => described(&dns, &model, &hosts),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        };
        let (workers, trouble) = match looked_up {
            Ok(workers) => (Some(workers), Vec::new()),
            Err(reason) => (None, vec![format!("`{name}` cannot be looked up ({reason}): its last workers are kept")]),
        };
        let found = Found { origin: Origin::Dns, workers, trouble };
        if last.as_ref() == Some(&found) {
            continue;
        }
        if tell.send(found.clone()).await.is_err() {
            return;
        }
        last = Some(found);
    }
}

/// Hosts and ports, in order, each once.
async fn look_up(dns: &DnsSource, name: &str) -> Result<BTreeSet<(String, u16)>, BoxError> {
    let hosts: BTreeSet<(String, u16)> = match dns.records {
        Records::Address => {
            let addresses = lookup::addresses(name, dns.port.get()).await?;
            addresses.into_iter().map(|address| (address.ip().to_string(), address.port())).collect()
        }
        Records::Srv => {
            let server = match dns.server {
                Some(server) => server,
                None => srv::system_server().await?,
            };
            srv::look_up(server, name).await?.into_iter().collect()
        }
    };
    Ok(hosts.into_iter().take(WORKERS_MAX).collect())
}

fn described(dns: &DnsSource, model: &str, hosts: &BTreeSet<(String, u16)>) -> Result<Vec<Worker>, String> {
    let worker = |(host, port): &(String, u16)| {
        let (id, url) = dns.fill(host, *port)?;
        let mut worker = Worker::at(WorkerId::from(id.as_str()), url, model.to_owned());
        worker.api_key = dns.api_key.clone();
        worker.dp_ranks = dns.dp_ranks.clone();
        worker.events = dns.events.clone();
        worker.capacity_blocks = dns.capacity_blocks;
        worker.max_num_seqs = dns.max_num_seqs;
        Ok(worker)
    };
    hosts.iter().map(worker).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_is_a_worker_of_the_template() {
        let dns = DnsSource { id: "gpu-{host}".to_owned().into(), ..DnsSource::default() };
        let hosts = [("10.0.0.2".to_owned(), 8000), ("10.0.0.1".to_owned(), 8000)].into_iter().collect();
        let workers = described(&dns, "m", &hosts).unwrap();
        let seen: Vec<_> = workers.iter().map(|worker| (worker.id.as_str(), worker.url.to_string())).collect();
        let expected = [("gpu-10.0.0.1", "http://10.0.0.1:8000"), ("gpu-10.0.0.2", "http://10.0.0.2:8000")];
        assert_eq!(seen, expected.map(|(id, url)| (id, url.to_owned())));
        assert!(workers.iter().all(|worker| worker.model.value == "m" && worker.max_num_seqs.get() == 256));
    }
}
