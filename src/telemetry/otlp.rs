//! Spans on their way to a receiver of OTLP over HTTP. What finds no room in the queue, or is not taken, is counted and lost:
//! no request waits for a tracing system.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, header};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use super::access::Ended;
use super::metrics::SpanMetrics;
use super::spans::{Clock, encoded};
use crate::link::{Link, Outgoing};
use crate::wall_clock;

/// Requests that wait to be sent.
const QUEUE: usize = 4096;

/// Requests that are sent at once.
const BATCH: usize = 256;

/// How long the first of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);

/// How long the receiver may take; what comes meanwhile waits in the queue.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most of its answer that is read; only its status counts.
const ANSWER_MAX: usize = 64 * 1024;

/// The way to whoever sends spans. A clone is the same.
#[derive(Clone, Debug)]
pub struct Exporter {
    to: Sender<Ended>,
    metrics: SpanMetrics,
}

/// Whoever sends them.
pub struct Courier {
    from: Receiver<Ended>,
    link: Arc<Link>,
    path: PathAndQuery,
    headers: HeaderMap,
    metrics: SpanMetrics,
    instance: String,
    /// Whether the last batch was taken.
    works: bool,
}

impl Exporter {
    /// Takes a request's spans, if there is room.
    pub fn tell(&self, ended: Ended) {
        if self.to.try_send(ended).is_err() {
            self.metrics.add("dropped", 1);
        }
    }
}

/// A queue, and whoever empties it towards a path on `link`, with further headers beside what is sent.
pub fn exporter(
    link: Arc<Link>,
    (path, mut headers): (PathAndQuery, HeaderMap),
    metrics: SpanMetrics,
) -> (Exporter, Courier) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let (to, from) = channel(QUEUE);
    let instance = format!("{:016x}", rand::random::<u64>());
    let courier = Courier { from, link, path, headers, metrics: metrics.clone(), instance, works: true };
    (Exporter { to, metrics }, courier)
}

impl Courier {
    /// Sends what comes until `stop`, and then what is left.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let mut batch = Vec::new();
            let stopped = tokio::select! {
                count = self.from.recv_many(&mut batch, BATCH) => count == 0,
                () = stop.cancelled() => true,
            };
            if !stopped {
                self.gather(&mut batch, &stop).await;
            } else {
                while batch.len() < QUEUE && self.from.try_recv().map(|ended| batch.push(ended)).is_ok() {}
            }
            for part in batch.chunks(BATCH) {
                self.send(part).await;
            }
            if stopped {
                return;
            }
        }
    }

    /// Waits for others, a moment at most.
    async fn gather(&mut self, batch: &mut Vec<Ended>, stop: &CancellationToken) {
        let until = tokio::time::Instant::now() + GATHER;
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            let more = tokio::select! {
                more = timeout_at(until, self.from.recv_many(batch, room)) => more.unwrap_or(0),
                () = stop.cancelled() => 0,
            };
            if more == 0 {
                return;
            }
        }
    }

    async fn send(&mut self, batch: &[Ended]) {
        let clock = Clock { at: Instant::now(), since_1970: wall_clock::now() };
        let body = encoded(batch, clock, &self.instance, rand::random).to_string();
        let (path, headers) = (self.path.clone(), self.headers.clone());
        let ask = Outgoing { method: Method::POST, path, headers, body: body.into() };
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let failed = match self.link.ask(&ask, PATIENCE, ANSWER_MAX).await {
            Ok((status, _)) if status.is_success() => None,
            Ok((status, _)) => Some(format!("it answers {status}")),
            Err(error) => Some(error.to_string()),
        };
        self.metrics.add(if failed.is_none() { "sent" } else { "failed" }, count);
        let works = failed.is_none();
        match failed {
            // Said once, not each second.
            Some(reason) if self.works => {
                let (receiver, path) = (self.link.authority(), ask.path.as_str());
                tracing::warn!(%receiver, path, reason, "spans are not taken")
            }
            None if !self.works => tracing::info!(receiver = %self.link.authority(), "spans are taken again"),
            _ => {}
        }
        self.works = works;
    }
}
