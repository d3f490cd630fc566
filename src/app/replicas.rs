//! The other routers of the fleet, as far as they tell of themselves over NATS.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use crate::events::nats::NatsBus;
use crate::events::nats::replicas::{RouterReport, VERSION};
use crate::http::admin::bus::Replica;
use crate::shutdown::Tasks;

/// How often a router tells how it is.
const BEAT: Duration = Duration::from_secs(2);

/// After so long without a word it counts as silent, and after this long it is not shown any more.
const SILENT: Duration = Duration::from_secs(7);
const FORGOTTEN: Duration = Duration::from_mins(1);

/// Routers that are remembered at most.
const HEARD_MAX: usize = 64;

/// Who was heard, and when.
pub(super) struct Replicas {
    me: String,
    name: String,
    heard: Mutex<BTreeMap<String, (Instant, RouterReport)>>,
}

/// What a router says of itself, but for who it is.
pub(super) struct Said {
    pub(super) config: String,
    pub(super) ready: bool,
    pub(super) in_flight: u32,
}

impl Replicas {
    /// Nobody was heard. Every process is another router; people tell them apart by machine and by the `port` of clients.
    pub(super) fn new(port: u16) -> Self {
        let host = std::fs::read_to_string(Path::new("/proc/sys/kernel/hostname")).unwrap_or_default();
        let name = format!("{}:{port}", host.trim());
        Self { me: format!("{:016x}", rand::random::<u64>()), name, heard: Mutex::default() }
    }

    /// What the others are told that this one is called.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Tells the others how this one is, and hears them, for ever.
    pub(super) fn start(
        self: &Arc<Self>,
        bus: &NatsBus,
        say: impl Fn() -> Said + Send + Sync + 'static,
        tasks: &Tasks,
    ) {
        let (this, bus) = (Arc::clone(self), bus.clone());
        tasks.spawn(async move {
            let mut others = match bus.router_reports().await {
                Ok(others) => others,
                Err(error) => return tracing::warn!(%error, "other routers cannot be heard"),
            };
            let mut beats = tokio::time::interval(BEAT);
            beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    report = others.next() => match report {
                        Some(report) => this.hear(report, Instant::now()),
                        None => return,
                    },
                    _ = beats.tick() => {
                        if let Err(error) = bus.tell_router(&this.report(say())).await {
                            tracing::debug!(%error, "other routers cannot be told");
                        }
                    }
                }
            }
        });
    }

    fn report(&self, said: Said) -> RouterReport {
        RouterReport {
            v: VERSION,
            router: self.me.clone(),
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config: said.config,
            ready: said.ready,
            in_flight: said.in_flight,
        }
    }

    fn hear(&self, report: RouterReport, now: Instant) {
        if report.router == self.me {
            return;
        }
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.retain(|_, (at, _)| now.saturating_duration_since(*at) <= FORGOTTEN);
        if heard.len() < HEARD_MAX || heard.contains_key(&report.router) {
            heard.insert(report.router.clone(), (now, report));
        }
    }

    /// Those that were heard lately, by name; `config` is the hash of ours.
    pub(super) fn rows(&self, now: Instant, config: &str) -> Vec<Replica> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = heard.values().map(|(at, report)| (now.saturating_duration_since(*at), report));
        let mut rows: Vec<Replica> = recent
            .filter(|(age, _)| *age <= FORGOTTEN)
            .map(|(age, report)| Replica {
                router: report.router.clone(),
                name: report.name.clone(),
                version: report.version.clone(),
                config: report.config.clone(),
                same_config: report.config == config,
                ready: report.ready,
                in_flight: report.in_flight,
                last_heard_s: age.as_secs_f64(),
                silent: age > SILENT,
            })
            .collect();
        rows.sort_by(|a, b| (&a.name, &a.router).cmp(&(&b.name, &b.router)));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(replicas: &Replicas, router: &str, in_flight: u32) -> RouterReport {
        let said = Said { config: "aa".to_owned(), ready: true, in_flight };
        RouterReport { router: router.to_owned(), name: format!("pod-{router}"), ..replicas.report(said) }
    }

    #[test]
    fn others_are_shown_while_they_are_heard_and_never_this_one() {
        let (replicas, start) = (Replicas::new(8080), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        replicas.hear(report(&replicas, "b", 1), at(0));
        replicas.hear(report(&replicas, "a", 5), at(0));
        replicas.hear(report(&replicas, &replicas.me, 9), at(0));
        replicas.hear(report(&replicas, "a", 7), at(8));
        let rows = |seconds, config| -> Vec<(String, u32, f64, bool, bool)> {
            let rows = replicas.rows(at(seconds), config).into_iter();
            rows.map(|row| (row.name, row.in_flight, row.last_heard_s, row.silent, row.same_config)).collect()
        };
        let expected = [("pod-a".to_owned(), 7, 2.0, false, true), ("pod-b".to_owned(), 1, 10.0, true, true)];
        assert_eq!(rows(10, "aa"), expected);
        assert_eq!(rows(61, "bb"), [("pod-a".to_owned(), 7, 53.0, true, false)]);
        assert_eq!(rows(69, "aa"), []);
    }

    #[test]
    fn a_crowd_is_bounded_and_makes_room_when_it_is_silent() {
        let (replicas, start) = (Replicas::new(8080), Instant::now());
        for number in 0..100 {
            replicas.hear(report(&replicas, &format!("r{number:03}"), 1), start);
        }
        let names = |at| replicas.rows(at, "aa").iter().map(|row| row.router.clone()).collect::<Vec<_>>();
        assert_eq!((names(start).len(), names(start).last().map(String::as_str)), (64, Some("r063")));
        let later = start + FORGOTTEN + Duration::from_secs(1);
        replicas.hear(report(&replicas, "r099", 1), later);
        assert_eq!(names(later), ["r099"]);
    }
}
