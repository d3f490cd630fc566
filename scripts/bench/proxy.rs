//! The proxy beside nginx: the same workers, the same clients, turn by turn in one run.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

use crate::arguments::ProxyPlan;
use crate::bodies::{CHAT_BYTES, IDS, Kind};
use crate::corpus::Corpus;
use crate::figures::Report;
use crate::tokens::Tokens;

mod canned;
pub(crate) mod client;
mod fill;
mod nginx;
mod process;
mod rest;
mod rounds;
mod router;
mod wire;
pub(crate) mod worker;

use canned::Pace;
use client::Spec;
use fill::Fleet;
use nginx::Nginx;
use process::{Workers, wait_for};
use rounds::Turns;
use router::{Router, Settings};

/// Engines behind every proxy.
const WORKERS: usize = 2;

/// What all parts of a run share.
struct Bench<'a> {
    plan: &'a ProxyPlan,
    folder: PathBuf,
    workers: Workers,
    fleet: Fleet,
    endpoints: Vec<(String, String)>,
    corpus: PathBuf,
    /// Tokens of each conversation that the workers hold.
    cached: Vec<u32>,
}

/// Measures all that was asked for, and tells whether nothing went wrong.
///
/// # Errors
/// When a program does not run, or a file cannot be written.
pub(crate) fn run(plan: &ProxyPlan) -> anyhow::Result<bool> {
    let folder = std::env::temp_dir().join(format!("warmpath-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured = measure(plan, &folder);
    match &measured {
        Ok(true) => drop(std::fs::remove_dir_all(&folder)),
        _ => eprintln!("bench: configurations and logs are in {}", folder.display()),
    }
    measured
}

fn measure(plan: &ProxyPlan, folder: &Path) -> anyhow::Result<bool> {
    let mut report = Report::new(head(plan));
    eprintln!("bench: counting the tokens of the corpus");
    let tokens = Tokens::load(&plan.tokenizer)?;
    let mut fault = None;
    let mut corpus = Corpus::read(&plan.root, &mut |text| {
        tokens.count(text).unwrap_or_else(|error| {
            fault.get_or_insert(error);
            0
        })
    })?;
    fault.map_or(Ok(()), Err)?;
    let conversations = fill::conversations(&tokens, &mut corpus)?;
    drop(tokens);
    let file = folder.join("corpus.json");
    std::fs::write(&file, serde_json::to_vec(&corpus)?)?;
    let fleet = Fleet::start(WORKERS)?;
    let mut bench = Bench {
        plan,
        folder: folder.to_owned(),
        workers: Workers::start(WORKERS)?,
        endpoints: fleet.endpoints()?,
        fleet,
        corpus: file,
        cached: Vec::new(),
    };
    if plan.wants("rest") {
        rest::measure(&bench, &mut report)?;
    }
    bench.cached = bench.fleet.fill(&conversations, plan.index_blocks)?;
    if plan.wants("short") || plan.wants("chat") || plan.wants("ids") || plan.wants("streams") {
        turns(&bench, &mut report)?;
    }
    report.finish(plan.json.as_deref())
}

/// The part with clients that take turns between the proxies.
fn turns(bench: &Bench<'_>, report: &mut Report) -> anyhow::Result<()> {
    let plan = bench.plan;
    let nginx = Nginx::start(&plan.nginx, &bench.folder.join("nginx"), plan.threads, &bench.workers.ports)?;
    let plain = bench.router(&bench.settings("round_robin", "round_robin"))?;
    let logged = bench.router(&Settings { access: true, ..bench.settings("round_robin_logged", "round_robin") })?;
    let kv = bench.router(&bench.settings("kv", "kv").with_all_of(bench))?;
    wait_for("the views of the workers", || bench.fleet.is_known_to(&kv))?;
    let mut turns = Turns { bench, nginx: &nginx, plain: &plain, logged: &logged, kv: &kv, report, seed: 1 };
    for (name, kind) in [("short", Kind::Short), ("chat", Kind::ChatWarm), ("ids", Kind::Ids)] {
        if plan.wants(name) {
            for &connections in &plan.connections {
                turns.answers(name, kind, connections);
            }
        }
    }
    if plan.wants("streams") {
        turns.streams();
    }
    turns.check_views()?;
    plain.stop()?;
    logged.stop()?;
    kv.stop()
}

impl Bench<'_> {
    fn router(&self, settings: &Settings<'_>) -> anyhow::Result<Router> {
        Router::start(&self.plan.router, &self.folder, self.plan.threads, settings)
    }

    /// A router without tokenizer and events.
    fn settings(&self, name: &'static str, policy: &'static str) -> Settings<'_> {
        Settings { name, policy, access: false, tokenizer: None, workers: &self.workers.ports, zmq: None, nats: None }
    }

    fn spec(&self, to: SocketAddr, kind: Kind, connections: usize, seed: u64) -> Spec {
        Spec {
            to,
            from: Ipv4Addr::LOCALHOST,
            connections,
            kind,
            stream: None,
            window_ms: self.plan.window_ms,
            held: false,
            seed,
            corpus: self.corpus.clone(),
            cached: self.cached.clone(),
        }
    }
}

impl<'a> Settings<'a> {
    /// The same with the tokenizer and the workers' events.
    fn with_all_of(self, bench: &'a Bench<'_>) -> Self {
        Self { tokenizer: Some(&bench.plan.tokenizer), zmq: Some(&bench.endpoints), ..self }
    }
}

fn head(plan: &ProxyPlan) -> serde_json::Value {
    json!({
        "bench": "proxy",
        "quick": plan.quick,
        "router": plan.router.display().to_string().rsplit('/').next(),
        "threads": plan.threads,
        "logs": "a line for each request by round_robin_logged only, into a file, as by default; none by nginx and the others",
        "nginx": Nginx::described(&plan.nginx, plan.threads),
        "rounds": plan.rounds,
        "window_ms": plan.window_ms,
        "requests": {
            "short": "completion of one line of text, 30 to 110 bytes",
            "chat": format!("chat of {CHAT_BYTES} bytes in ten messages; warm: all but a new last turn seen before, and \
                its prefix in the index; cold: never seen"),
            "ids": format!("completion of {IDS} token ids, all but the last block in the index"),
            "answers": "360 bytes of JSON with usage",
        },
        "stream": stream_pace(),
        "cpu": "utime + stime of all processes, from when every connection was open and warm until the last answer",
        "ratios": "of each round to nginx in the same round, then their median",
        "added": "percentile through the proxy minus the same percentile without one, of the same round",
    })
}

/// The streams whose chunks are counted.
fn stream_pace() -> Pace {
    Pace { events: 51, interval_ms: 10 }
}

/// The address of a program on PATH, or where Debian keeps it.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Reads a limit of this process: how many files it may have open.
fn open_files_max() -> anyhow::Result<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).context("no limit of files")?;
    Ok(line.split_whitespace().next().and_then(|soft| soft.parse().ok()).unwrap_or(usize::MAX))
}
