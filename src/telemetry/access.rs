//! The access log: one line a request, with the decision in it and nothing of what was said.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderValue;
use smallvec::SmallVec;
use warmpath_core::ids::{Rank, WorkerId};
use warmpath_core::observe::Usage;
use warmpath_core::units::Tokens;

use super::otlp::Exporter;
use super::parting::Parting;
use super::trace_context::TraceContext;

/// The target of its lines, by which logs are filtered.
pub const TARGET: &str = "access";

/// What is known of a request so far. When the last of those drop it who have a part in the request, it is written as a line
/// and its spans are sent, as far as that is wanted: so that both happen whatever becomes of the request.
#[derive(Debug)]
pub struct Access {
    began: Instant,
    request: HeaderValue,
    trace: TraceContext,
    endpoint: &'static str,
    logs: bool,
    exporter: Option<Exporter>,
    parting: Parting,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    /// The pool, and tokens of the prompt.
    asked: Option<(Arc<str>, Tokens)>,
    status: Option<u16>,
    outcome: Option<&'static str>,
    waits: Vec<Range<Instant>>,
    attempts: SmallVec<[Attempt; 1]>,
    chosen: Option<Chosen>,
    first_token: Option<Duration>,
    ended: Option<Instant>,
    usage: Usage,
}

/// All that is known of a request that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its name.
    pub request: HeaderValue,
    /// The trace that it belongs to.
    pub trace: TraceContext,
    /// What it was sent to: `completions`, `chat_completions`, `models`, `passed` or `refused`.
    pub endpoint: &'static str,
    /// When it came.
    pub began: Instant,
    /// When it was over.
    pub ended: Instant,
    /// The pool.
    pub model: Option<Arc<str>>,
    /// Tokens of its prompt as the router counts them; estimated where they are not known.
    pub prompt: Option<Tokens>,
    /// What the client was answered.
    pub status: Option<u16>,
    /// What became of it, as `requests_total` counts it.
    pub outcome: &'static str,
    /// Each time that it waited for a worker.
    pub waits: Vec<Range<Instant>>,
    /// Each time that it was sent to a worker.
    pub attempts: SmallVec<[Attempt; 1]>,
    /// The last decision.
    pub chosen: Option<Chosen>,
    /// From its coming to its first token.
    pub first_token: Option<Duration>,
    /// What the engine said of its tokens.
    pub usage: Usage,
}

/// A time that a request was sent to a worker.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// When.
    pub began: Instant,
    /// When it had failed; none where it lasted as long as the request.
    pub failed: Option<Instant>,
    /// To whom.
    pub worker: Option<WorkerId>,
}

/// A request that waits for a worker. The wait is over when this is dropped.
#[derive(Debug)]
pub struct Waiting<'a> {
    access: &'a Access,
    since: Instant,
}

/// A decision, as far as it is told.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Who was chosen.
    pub worker: WorkerId,
    /// Which of its ranks.
    pub rank: Rank,
    /// Tokens of the prompt that are predicted to be cached there.
    pub overlap: Tokens,
    /// The policy whose costs decided.
    pub policy: &'static str,
    /// Who decided: `policy`, `fallback`, `load` or `least_loaded`.
    pub decided_by: &'static str,
    /// What the chosen one costs; none where no policy was asked.
    pub cost: Option<f64>,
    /// The decision's number, where it is kept.
    pub decision: Option<u64>,
}

impl Access {
    /// A request that has just come. None where nobody wants to know: no log, and no exporter or a trace in which the router
    /// has no part.
    pub fn begin(
        began: Instant,
        endpoint: &'static str,
        (request, trace): (&HeaderValue, &TraceContext),
        (logs, exporter): (bool, Option<&Exporter>),
        parting: &Parting,
    ) -> Option<Arc<Self>> {
        let logs = logs && tracing::enabled!(target: TARGET, tracing::Level::INFO);
        let exporter = exporter.filter(|_| trace.place().is_some());
        (logs || exporter.is_some()).then(|| {
            let (request, trace, exporter) = (request.clone(), trace.clone(), exporter.cloned());
            let (parting, line) = (parting.clone(), Mutex::default());
            Arc::new(Self { began, request, trace, endpoint, logs, exporter, parting, line })
        })
    }

    /// It is for `model`, with so many tokens in its prompt; estimated where they are not known.
    pub fn asks(&self, model: &Arc<str>, prompt: Tokens) {
        self.line().asked = Some((Arc::clone(model), prompt));
    }

    /// It was decided where the request goes; of several decisions the last one counts.
    pub fn chosen(&self, chosen: Chosen) {
        self.line().chosen = Some(chosen);
    }

    /// From now on it waits for a worker.
    pub fn waits(&self) -> Waiting<'_> {
        Waiting { access: self, since: Instant::now() }
    }

    /// It was sent to the worker that was chosen last.
    pub fn sent(&self) {
        let began = Instant::now();
        let mut line = self.line();
        let worker = line.chosen.as_ref().map(|chosen| chosen.worker.clone());
        line.attempts.push(Attempt { began, failed: None, worker });
    }

    /// What was sent last has failed, if it had not yet.
    pub fn failed(&self) {
        if let Some(last) = self.line().attempts.last_mut() {
            last.failed.get_or_insert_with(Instant::now);
        }
    }

    /// The first token came so long after the request.
    pub fn first_token(&self, after: Duration) {
        self.line().first_token = Some(after);
    }

    /// What the client is answered.
    pub fn status(&self, status: u16) {
        self.line().status = Some(status);
    }

    /// What became of it, as `requests_total` counts it. Without a word it was given up: [`Parting`].
    pub fn outcome(&self, outcome: &'static str) {
        self.line().outcome = Some(outcome);
    }

    /// The same of an answer that has ended, and what the engine told of its tokens.
    pub fn ended(&self, now: Instant, outcome: &'static str, usage: Usage) {
        let mut line = self.line();
        (line.outcome, line.ended, line.usage) = (Some(outcome), Some(now), usage);
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.access.line().waits.push(self.since..Instant::now());
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        let line = std::mem::take(self.line.get_mut().unwrap_or_else(PoisonError::into_inner));
        let (model, prompt) = line.asked.unzip();
        let ended = Ended {
            request: self.request.clone(),
            trace: self.trace.clone(),
            endpoint: self.endpoint,
            began: self.began,
            ended: line.ended.unwrap_or_else(Instant::now),
            model,
            prompt,
            status: line.status,
            outcome: line.outcome.unwrap_or_else(|| self.parting.outcome()),
            waits: line.waits,
            attempts: line.attempts,
            chosen: line.chosen,
            first_token: line.first_token,
            usage: line.usage,
        };
        if self.logs {
            ended.log();
        }
        if let Some(exporter) = &self.exporter {
            exporter.tell(ended);
        }
    }
}

impl Ended {
    /// How long it waited for workers, if it did.
    fn waited(&self) -> Option<Duration> {
        let waits = self.waits.iter();
        (!self.waits.is_empty()).then(|| waits.map(|wait| wait.end.saturating_duration_since(wait.start)).sum())
    }

    fn log(&self) {
        let chosen = self.chosen.as_ref();
        tracing::info!(
            target: TARGET,
            request = &*String::from_utf8_lossy(self.request.as_bytes()),
            trace_id = self.trace.trace_id(),
            endpoint = self.endpoint,
            model = self.model.as_deref(),
            worker = chosen.map(|chosen| chosen.worker.as_str()),
            rank = chosen.map(|chosen| chosen.rank.0),
            status = self.status,
            outcome = self.outcome,
            prompt_tokens = self.usage.prompt.or(self.prompt).map(|tokens| tokens.0),
            overlap_tokens = chosen.map(|chosen| chosen.overlap.0),
            reported_cached_tokens = self.usage.cached.map(|tokens| tokens.0),
            output_tokens = self.usage.completion.map(|tokens| tokens.0),
            queue_ms = self.waited().map(milliseconds),
            ttft_ms = self.first_token.map(milliseconds),
            total_ms = milliseconds(self.ended.saturating_duration_since(self.began)),
            attempts = self.attempts.len(),
            policy = chosen.map(|chosen| chosen.policy),
            decided_by = chosen.map(|chosen| chosen.decided_by),
            cost = chosen.and_then(|chosen| chosen.cost),
            decision = chosen.and_then(|chosen| chosen.decision),
        );
    }
}

/// In milliseconds, to the microsecond.
fn milliseconds(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::LogFormat;
    use crate::telemetry::line::tests::written;

    fn logged(format: LogFormat, request: impl FnOnce(&Access, Instant)) -> String {
        written(format, || {
            let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
            let trace = HeaderMap::from_iter([(super::super::trace_context::TRACEPARENT, trace.parse().unwrap())]);
            let (id, trace) = (HeaderValue::from_static("r 1"), TraceContext::of(&trace, false, 1.0));
            let began = Instant::now();
            let access = Access::begin(began, "chat", (&id, &trace), (true, None), &Parting::default())
                .expect("somebody listens");
            request(&access, began);
        })
    }

    fn chosen() -> Chosen {
        Chosen {
            worker: WorkerId::from("w"),
            rank: Rank(1),
            overlap: Tokens(20),
            policy: "kv",
            decided_by: "policy",
            cost: Some(0.25),
            decision: Some(7),
        }
    }

    #[test]
    fn a_line_has_the_request_the_decision_and_what_came_of_it() {
        let usage = Usage { prompt: Some(Tokens(24)), cached: Some(Tokens(16)), completion: Some(Tokens(2)) };
        let told = logged(LogFormat::Json, |access, began| {
            // An estimate, which gives way to what the engine counts.
            access.asks(&"m".into(), Tokens(30));
            access.sent();
            access.chosen(chosen());
            access.sent();
            access.status(200);
            access.first_token(Duration::from_micros(1_234_567));
            access.ended(began + Duration::from_millis(2_500), "ok", usage);
        });
        let mut told: Value = serde_json::from_str(&told).unwrap();
        assert!(told.as_object_mut().unwrap().remove("timestamp").is_some());
        let expected = json!({
            "level": "INFO", "target": "access", "request": "r 1", "trace_id": "0af7651916cd43dd8448eb211c80319c",
            "endpoint": "chat", "model": "m", "worker": "w", "rank": 1, "status": 200, "outcome": "ok",
            "prompt_tokens": 24, "overlap_tokens": 20, "reported_cached_tokens": 16, "output_tokens": 2,
            "ttft_ms": 1234.567, "total_ms": 2500.0, "attempts": 2, "policy": "kv", "decided_by": "policy",
            "cost": 0.25, "decision": 7
        });
        assert_eq!(told, expected);
    }

    #[test]
    fn what_is_not_known_is_left_out_and_who_says_nothing_has_left() {
        let told: Value = serde_json::from_str(&logged(LogFormat::Json, |_, _| {})).unwrap();
        assert_eq!(
            (&told["outcome"], &told["attempts"], told["total_ms"].is_f64()),
            (&json!("client_left"), &json!(0), true)
        );
        assert_eq!(told.as_object().unwrap().len(), 9, "{told}");
        let line = logged(LogFormat::Text, |access, _| access.outcome("no_worker"));
        let begins = "  INFO access: request=\"r 1\" trace_id=\"0af7651916cd43dd8448eb211c80319c\" endpoint=\"chat\" \
                      outcome=\"no_worker\" total_ms=";
        let behind_its_time = &line[line.find(' ').unwrap()..];
        assert!(behind_its_time.starts_with(begins) && line.ends_with(" attempts=0\n"), "{line}");
    }

    #[test]
    fn how_long_a_request_waited_is_told_of_all_its_waits() {
        let told: Value = serde_json::from_str(&logged(LogFormat::Json, |access, _| {
            for _ in 0..2 {
                let waiting = access.waits();
                std::thread::sleep(Duration::from_millis(20));
                drop(waiting);
                std::thread::sleep(Duration::from_millis(20));
            }
        }))
        .unwrap();
        let (waited, total) = (told["queue_ms"].as_f64().unwrap(), told["total_ms"].as_f64().unwrap());
        assert!(waited >= 40.0 && waited + 40.0 <= total, "{told}");
    }

    #[test]
    fn where_nobody_listens_nothing_is_kept() {
        let trace = TraceContext::of(&HeaderMap::new(), false, 1.0);
        let id = HeaderValue::from_static("x");
        tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || {
            assert!(Access::begin(Instant::now(), "chat", (&id, &trace), (true, None), &Parting::default()).is_none());
        });
    }
}
