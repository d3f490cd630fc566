//! What a bridge counts, for Prometheus.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio_util::sync::CancellationToken;

use super::blocks::Blocks;
use super::poll::Polled;
use super::rank::RankCounts;
use crate::door::{Door, DoorLimits, Listener};
use crate::events::nats::{NatsBus, OutboxCounts};
use crate::shutdown::Tasks;
use crate::telemetry::metrics::DoorMetrics;

/// Scrapers are few.
const CONNECTIONS_MAX: usize = 16;

/// All that can be seen of a running bridge.
pub(super) struct Watched {
    pub(super) worker: String,
    pub(super) bus: NatsBus,
    pub(super) polled: Polled,
    pub(super) ranks: Vec<(u32, Arc<RankCounts>, Arc<OutboxCounts>)>,
    pub(super) blocks: Arc<Blocks>,
}

/// One rank's counts.
type Rank = (u32, Arc<RankCounts>, Arc<OutboxCounts>);

/// A series for each rank: name, kind, help, and where its value is.
type Series = (&'static str, &'static str, &'static str, fn(&Rank) -> &AtomicU64);

const OF_A_RANK: [Series; 7] = [
    ("batches_heard_total", "counter", "Batches that came from the engine, repeats included.", |rank| &rank.1.heard),
    ("batches_unreadable_total", "counter", "Batches that could not be read, passed on as they are.", |rank| {
        &rank.1.unreadable
    }),
    ("batches_lost_total", "counter", "Batches that the engine no longer had: gaps for routers.", |rank| &rank.1.lost),
    ("engine_restarts_total", "counter", "Changes of the engine's process.", |rank| &rank.1.restarts),
    ("batches_published_total", "counter", "Batches handed to the server, with JetStream kept by it.", |rank| {
        &rank.2.published
    }),
    ("batches_refused_total", "counter", "Batches dropped: no room while the server was away, or too large.", |rank| {
        &rank.2.dropped
    }),
    ("batches_waiting", "gauge", "Batches that wait for the server.", |rank| &rank.2.waiting),
];

/// A series of the bridge as a whole: name, kind, help, and its value.
type Whole = (&'static str, &'static str, &'static str, fn(&Watched) -> u64);

const OF_ALL: [Whole; 3] = [
    ("snapshots_served_total", "counter", "Snapshots that a router began to read.", |it| it.blocks.served()),
    ("bus_connected", "gauge", "Whether the server is connected.", |it| u64::from(it.bus.is_up())),
    ("engine_up", "gauge", "Whether the engine passes its checks.", |it| u64::from(it.polled.engine().is_up)),
];

impl Watched {
    /// The text format of Prometheus.
    pub(super) fn expose(&self) -> String {
        let mut text = String::new();
        let worker = self.worker.replace('\\', "\\\\").replace('"', "\\\"");
        for (name, kind, help, value) in OF_A_RANK {
            head(&mut text, name, kind, help);
            for rank in &self.ranks {
                let value = value(rank).load(Ordering::Relaxed);
                line(&mut text, name, &format!("worker=\"{worker}\",rank=\"{}\"", rank.0), value);
            }
        }
        for (name, kind, help, value) in OF_ALL {
            head(&mut text, name, kind, help);
            line(&mut text, name, &format!("worker=\"{worker}\""), value(self));
        }
        text
    }

    /// Answers `GET /metrics` until `stop`.
    pub(super) async fn serve(self: Arc<Self>, listener: Listener, tasks: Tasks, stop: CancellationToken) {
        let answer = async move || ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], self.expose());
        let router = Router::new().route("/metrics", get(answer));
        let limits = DoorLimits { connections: CONNECTIONS_MAX, ..DoorLimits::default() };
        let door = Door::open(listener, router, (limits, None), DoorMetrics::default(), &tasks);
        stop.cancelled().await;
        door.close();
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(text, "# HELP warmpath_bridge_{name} {help}\n# TYPE warmpath_bridge_{name} {kind}\n");
}

fn line(text: &mut String, name: &str, labels: &str, value: u64) {
    let _ = writeln!(text, "warmpath_bridge_{name}{{{labels}}} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of docs/engines.md.
    #[test]
    fn every_series_is_told_in_the_documents() {
        let document = include_str!("../../docs/engines.md");
        let of_a_rank = OF_A_RANK.iter().map(|(name, kind, help, _)| (name, kind, "`worker`, `rank`", help));
        let of_all = OF_ALL.iter().map(|(name, kind, help, _)| (name, kind, "`worker`", help));
        for (name, kind, labels, help) in of_a_rank.chain(of_all) {
            let line = format!("| `warmpath_bridge_{name}` | {kind} | {labels} | {help} |\n");
            assert!(document.contains(&line), "docs/engines.md lacks\n{line}");
        }
    }
}
