//! Rounds in which direct connections, nginx and the routers take turns, so that what else the machine does falls on all.

use serde_json::Value;
use warmpath_core::count::real;

use super::client::{Outcome, Spec};
use super::nginx::Nginx;
use super::process::{Client, cpu_us};
use super::router::Router;
use super::{Bench, stream_pace};
use crate::bodies::Kind;
use crate::figures::{Figure, Report};

/// Streams at once, where their chunks are counted.
const STREAMS: usize = 128;

/// The share of requests whose token ids a policy that goes by them may not know.
const UNTOKENIZED_MAX: f64 = 0.01;

/// Everything that takes turns.
pub(super) struct Turns<'a> {
    pub(super) bench: &'a Bench<'a>,
    pub(super) nginx: &'a Nginx,
    pub(super) plain: &'a Router,
    pub(super) logged: &'a Router,
    pub(super) kv: &'a Router,
    pub(super) report: &'a mut Report,
    /// Of the next client: none sends what another has sent.
    pub(super) seed: u64,
}

/// Who is asked.
#[derive(Clone, Copy)]
enum Subject<'a> {
    Direct,
    Nginx,
    Router { router: &'a Router, kind: Kind, row: &'static str, target: Option<f64> },
}

/// What one turn measured.
struct Turn {
    cpu_us: f64,
    /// Requests of which the router did not know the token ids.
    untokenized: f64,
    outcome: Outcome,
}

impl<'a> Turns<'a> {
    /// Answers in one piece over so many connections.
    pub(super) fn answers(&mut self, name: &'static str, kind: Kind, connections: usize) {
        // One connection mostly measures how processes fall asleep and wake up, so no target is held against it.
        let gated = |target: f64| (connections >= 32).then_some(target);
        let through = |router: &'a Router, row, kind, target| Subject::Router { router, kind, row, target };
        let mut subjects = vec![Subject::Direct, Subject::Nginx];
        subjects.push(through(self.plain, "round_robin", kind, gated(1.5)));
        match kind {
            Kind::Short => {
                subjects.push(through(self.logged, "round_robin_logged", kind, None));
                subjects.push(through(self.kv, "kv", kind, None));
            }
            Kind::Ids => subjects.push(through(self.kv, "kv", kind, gated(1.7))),
            Kind::ChatWarm | Kind::ChatCold => {
                subjects.push(through(self.kv, "kv_warm", Kind::ChatWarm, gated(3.5)));
                subjects.push(through(self.kv, "kv_cold", Kind::ChatCold, gated(12.0)));
            }
        }
        let turns = self.rounds(&subjects, kind, connections, false);
        self.report_answers(name, connections, &subjects, &turns);
    }

    /// Streams that have their events at a steady pace.
    pub(super) fn streams(&mut self) {
        let through = |router, row| Subject::Router { router, kind: Kind::Short, row, target: Some(1.25) };
        let subjects = [Subject::Direct, Subject::Nginx, through(self.plain, "round_robin"), through(self.kv, "kv")];
        let turns = self.rounds(&subjects, Kind::Short, STREAMS, true);
        let chunks = real(u64::from(stream_pace().events));
        let cpu = |turn: &Turn| turn.cpu_us / (real(turn.outcome.requests.max(1)) * chunks);
        for (at, subject) in subjects.iter().enumerate().skip(2) {
            let Subject::Router { row, target, .. } = subject else { continue };
            let each = |of: &dyn Fn(&[Turn]) -> f64| turns.iter().map(|round| of(round)).collect::<Vec<f64>>();
            let figures = vec![
                Figure::of("cpu_per_chunk", "us", each(&|round| cpu(&round[at]))),
                Figure::of("nginx_cpu_per_chunk", "us", each(&|round| cpu(&round[1]))),
                Figure::of("cpu_ratio_to_nginx", "x", each(&|round| cpu(&round[at]) / cpu(&round[1]))).target(*target),
                Figure::of("first_p50_added", "us", each(&|r| r[at].outcome.first_p50_us - r[0].outcome.first_p50_us)),
                Figure::of(
                    "nginx_first_p50_added",
                    "us",
                    each(&|r| r[1].outcome.first_p50_us - r[0].outcome.first_p50_us),
                ),
                Figure::of("whole_p50_added", "us", each(&|r| r[at].outcome.p50_us - r[0].outcome.p50_us)),
                Figure::of("nginx_whole_p50_added", "us", each(&|r| r[1].outcome.p50_us - r[0].outcome.p50_us)),
            ];
            self.report.row(format!("streams/{row}/c{STREAMS}"), figures);
        }
    }

    /// What the router predicted must be what the workers said, for else no exact look-up was measured.
    ///
    /// # Errors
    /// When the router does not tell.
    pub(super) fn check_views(&mut self) -> anyhow::Result<()> {
        let told = self.kv.workers()?;
        let sum = |field: &str| told.iter().filter_map(|worker| worker["cached_tokens"][field].as_u64()).sum::<u64>();
        let (predicted, reported) = (sum("predicted"), sum("reported"));
        if reported > 0 {
            let share = real(predicted) / real(reported);
            self.report.row("kv/views", vec![Figure::once("predicted_of_reported", "share", share)]);
            if !(0.95..=1.05).contains(&share) {
                self.report.fault(format!("{predicted} cached tokens were predicted and {reported} reported"));
            }
        }
        for worker in &told {
            let believed = worker["trust_weight"].as_f64().unwrap_or(0.0);
            if believed < 1.0 {
                let reasons: Vec<&Value> = worker["reasons"].as_array().into_iter().flatten().collect();
                self.report.fault(format!("the view of {} is believed {believed}: {reasons:?}", worker["id"]));
            }
        }
        Ok(())
    }

    /// All turns of each round, in the order of `subjects`; every second round goes the other way round.
    fn rounds(&mut self, subjects: &[Subject<'_>], kind: Kind, connections: usize, streams: bool) -> Vec<Vec<Turn>> {
        let mut rounds = Vec::new();
        for round in 0..self.bench.plan.rounds {
            let mut order: Vec<usize> = (0..subjects.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            let mut turns: Vec<(usize, Turn)> = Vec::new();
            for at in order {
                turns.push((at, self.turn(subjects[at], kind, connections, streams)));
            }
            turns.sort_by_key(|(at, _)| *at);
            rounds.push(turns.into_iter().map(|(_, turn)| turn).collect());
        }
        rounds
    }

    fn turn(&mut self, subject: Subject<'_>, kind: Kind, connections: usize, streams: bool) -> Turn {
        let (to, pids, kind, who) = match subject {
            Subject::Direct => (self.bench.workers.direct(), Vec::new(), kind, "direct"),
            Subject::Nginx if streams => (self.nginx.streams, self.nginx.pids(), kind, "nginx"),
            Subject::Nginx => (self.nginx.whole, self.nginx.pids(), kind, "nginx"),
            Subject::Router { router, kind, row, .. } => (router.data, router.pids(), kind, row),
        };
        self.seed += 1;
        let mut spec = self.bench.spec(to, kind, connections, self.seed);
        if streams {
            spec.stream = Some(stream_pace());
            // At least three streams, one after the other.
            spec.window_ms = spec.window_ms.max(1_100);
        }
        // Whatever went wrong, the other turns still tell something; the run fails at its end.
        let turn = take(&spec, &pids, subject).unwrap_or_else(|error| {
            let outcome = Outcome { faults: vec![format!("{error:#}")], ..Outcome::default() };
            Turn { cpu_us: 0.0, untokenized: 0.0, outcome }
        });
        let Outcome { failed, requests, faults, .. } = &turn.outcome;
        if *failed > 0 || *requests == 0 {
            let first = faults.join("; ");
            let place = format!("{who}, {kind:?} over {connections} connections");
            self.report.fault(format!("{place}: {requests} requests answered, {failed} failed: {first}"));
        }
        turn
    }

    fn report_answers(&mut self, name: &str, connections: usize, subjects: &[Subject<'_>], turns: &[Vec<Turn>]) {
        let cpu = |turn: &Turn| turn.cpu_us / real(turn.outcome.requests.max(1));
        let unknown = |turn: &Turn| turn.untokenized / real(turn.outcome.requests.max(1));
        let per_second = |turn: &Turn| real(turn.outcome.requests) / turn.outcome.seconds;
        for (at, subject) in subjects.iter().enumerate().skip(2) {
            let Subject::Router { row, target, .. } = subject else { continue };
            let each = |of: &dyn Fn(&[Turn]) -> f64| turns.iter().map(|round| of(round)).collect::<Vec<f64>>();
            // A router that sheds the work would look cheap.
            let untokenized = Figure::of("untokenized", "share", each(&|round| unknown(&round[at])));
            let all = row.starts_with("round_robin") || untokenized.value() <= UNTOKENIZED_MAX;
            let figures = vec![
                Figure::of("cpu_per_request", "us", each(&|round| cpu(&round[at]))),
                Figure::of("nginx_cpu_per_request", "us", each(&|round| cpu(&round[1]))),
                Figure::of("cpu_ratio_to_nginx", "x", each(&|round| cpu(&round[at]) / cpu(&round[1])))
                    .target(*target)
                    .only_if(all),
                untokenized,
                Figure::of("p50_added", "us", each(&|r| r[at].outcome.p50_us - r[0].outcome.p50_us)),
                Figure::of("nginx_p50_added", "us", each(&|r| r[1].outcome.p50_us - r[0].outcome.p50_us)),
                Figure::of("p99_added", "us", each(&|r| r[at].outcome.p99_us - r[0].outcome.p99_us)),
                Figure::of("nginx_p99_added", "us", each(&|r| r[1].outcome.p99_us - r[0].outcome.p99_us)),
                Figure::of("requests_per_s", "1/s", each(&|round| per_second(&round[at]))),
                Figure::of("nginx_requests_per_s", "1/s", each(&|round| per_second(&round[1]))),
            ];
            self.report.row(format!("{name}/{row}/c{connections}"), figures);
        }
    }
}

/// Lets clients do as `spec` says, and reads what it cost the processes `pids`.
fn take(spec: &Spec, pids: &[u32], subject: Subject<'_>) -> anyhow::Result<Turn> {
    let mut client = Client::start(spec)?;
    let untokenized = || match subject {
        Subject::Router { router, .. } => router.untokenized(),
        Subject::Direct | Subject::Nginx => Ok(0.0),
    };
    let (untokenized_before, before) = (untokenized()?, cpu_us(pids)?);
    client.go()?;
    let outcome = client.outcome()?;
    let cpu_us = cpu_us(pids)? - before;
    Ok(Turn { cpu_us, untokenized: untokenized()? - untokenized_before, outcome })
}
