//! What the proxies cost when little happens: memory and processor time at rest, and memory of streams that hardly move.
//! Each in a process that has done nothing else.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use warmpath_core::count::real_len;

use super::canned::Pace;
use super::client::Spec;
use super::nginx::Nginx;
use super::process::{Client, cpu_us, free_ports, resident_bytes, wait_for};
use super::router::{Router, Settings};
use super::{Bench, open_files_max};
use crate::bodies::Kind;
use crate::figures::{Figure, Report};

/// Processes of clients that hold streams, each from an address of its own.
const HOLDERS: usize = 4;
/// Files that a proxy needs beside two for each stream.
const FILES_BESIDE: usize = 200;
/// Streams that move so seldom are at rest nearly always.
const SLOW: Pace = Pace { events: 100_000, interval_ms: 5_000 };

const MB: f64 = 1e6;
const KIB: f64 = 1024.0;

/// Measures all of it.
///
/// # Errors
/// When a program does not run.
pub(super) fn measure(bench: &Bench<'_>, report: &mut Report) -> anyhow::Result<()> {
    let streams = streams_possible(bench.plan.streams, report)?;
    let plain = bench.router(&bench.settings("rest-plain", "round_robin"))?;
    let bare = at_rest(bench, report, "no_tokenizer", &plain, None)?;
    held(bench, report, "round_robin", (plain.data, &plain.pids()), streams)?;
    plain.stop()?;

    let kv = bench.router(&bench.settings("rest-kv", "kv").with_all_of(bench))?;
    at_rest(bench, report, "tokenizer_and_zmq", &kv, Some(bare))?;
    held(bench, report, "kv", (kv.data, &kv.pids()), streams)?;
    kv.stop()?;

    if let Some(program) = super::program("nats-server") {
        let (_server, url) = nats(&program)?;
        let settings = Settings { nats: Some(&url), ..bench.settings("rest-nats", "kv") };
        let on_nats = bench.router(&settings)?;
        idle(bench, report, "nats", &on_nats)?;
        on_nats.stop()?;
    } else {
        eprintln!("bench: no nats-server on PATH, so a router on NATS is not measured (Debian: nats-server)");
    }

    let folder = bench.folder.join("nginx-rest");
    let nginx = Nginx::start(&bench.plan.nginx, &folder, bench.plan.threads, &bench.workers.ports)?;
    held(bench, report, "nginx", (nginx.streams, &nginx.pids()), streams)
}

/// Memory of a router that has just become ready, and some time later, when whatever it does behind is done; returns the
/// latter. `bare` is what it has without a tokenizer.
fn at_rest(
    bench: &Bench<'_>,
    report: &mut Report,
    name: &str,
    router: &Router,
    bare: Option<f64>,
) -> anyhow::Result<f64> {
    let ready = resident_bytes(&router.pids())?;
    std::thread::sleep(Duration::from_millis(bench.plan.settle_ms));
    let settled = resident_bytes(&router.pids())?;
    let figures = match bare {
        None => vec![
            Figure::once("rss_when_ready", "MB", ready / MB),
            Figure::once("rss", "MB", settled / MB).target(Some(50.0)),
        ],
        Some(bare) => vec![
            Figure::once("rss", "MB", settled / MB),
            Figure::once("rss_more_when_ready", "MB", (ready - bare) / MB).target(Some(300.0)),
            // By then the reference may have been loaded beside the fast tokenizer.
            Figure::once("rss_more", "MB", (settled - bare) / MB).target(Some(500.0)),
        ],
    };
    report.row(format!("rest/{name}"), figures);
    idle(bench, report, name, router)?;
    Ok(settled)
}

/// Processor time of a router that nobody asks anything.
fn idle(bench: &Bench<'_>, report: &mut Report, name: &str, router: &Router) -> anyhow::Result<()> {
    let (before, start) = (cpu_us(&router.pids())?, Instant::now());
    std::thread::sleep(Duration::from_millis(bench.plan.idle_ms));
    let share = (cpu_us(&router.pids())? - before) / 1e6 / start.elapsed().as_secs_f64();
    report.row(format!("idle/{name}"), vec![Figure::once("cpu", "core", share).target(Some(0.05))]);
    Ok(())
}

/// Memory of `streams` streams that have begun and have an event every few seconds.
fn held(
    bench: &Bench<'_>,
    report: &mut Report,
    name: &str,
    (to, pids): (SocketAddr, &[u32]),
    streams: usize,
) -> anyhow::Result<()> {
    warm(bench, to)?;
    let before = resident_bytes(pids)?;
    let mut holders = Vec::new();
    for number in 0..HOLDERS {
        let from = Ipv4Addr::new(127, 0, 0, u8::try_from(10 + number)?);
        let seed = u64::try_from(100 + number)?;
        let spec =
            Spec { from, stream: Some(SLOW), held: true, ..bench.spec(to, Kind::Short, streams / HOLDERS, seed) };
        holders.push(Client::start(&spec)?);
    }
    for holder in &mut holders {
        holder.go()?;
        holder.outcome()?;
    }
    std::thread::sleep(Duration::from_millis(bench.plan.settle_ms));
    let during = resident_bytes(pids)?;
    let mut begun = 0;
    for holder in &mut holders {
        holder.go()?;
        let outcome = holder.outcome()?;
        begun += outcome.requests;
        if outcome.failed > 0 {
            report.fault(format!("{name}: {} held streams failed: {}", outcome.failed, outcome.faults.join("; ")));
        }
    }
    let held = usize::try_from(begun)?.max(1);
    let target = (name != "nginx").then_some(100.0);
    let figures = vec![
        Figure::once("streams", "streams", real_len(held)),
        Figure::once("rss", "MB", during / MB),
        Figure::once("rss_per_stream", "KiB", (during - before) / KIB / real_len(held)).target(target),
    ];
    report.row(format!("held/{name}"), figures);
    Ok(())
}

/// What is allocated once for all requests does not count for streams.
fn warm(bench: &Bench<'_>, to: SocketAddr) -> anyhow::Result<()> {
    let mut client = Client::start(&Spec { window_ms: 200, ..bench.spec(to, Kind::Short, 8, 99) })?;
    client.go()?;
    client.outcome().map(drop)
}

/// As many streams as were asked for, or as files may be open: a proxy needs two for each.
fn streams_possible(asked: usize, report: &mut Report) -> anyhow::Result<usize> {
    let possible = open_files_max()?.saturating_sub(FILES_BESIDE) / 2;
    if possible < asked {
        report.note("streams_fewer_because", format!("no more than {} files may be open", open_files_max()?));
        eprintln!("bench: only {possible} streams are held, since no more files may be open (ulimit -n)");
    }
    Ok(asked.min(possible) / HOLDERS * HOLDERS)
}

/// A NATS server of our own.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn nats(program: &Path) -> anyhow::Result<(Server, String)> {
    let [port] = free_ports()?;
    let mut command = Command::new(program);
    command.args(["-a", "127.0.0.1", "-p", &port.to_string()]).stdin(Stdio::null());
    let server = Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    wait_for("nats-server", || std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok())?;
    Ok((server, format!("nats://127.0.0.1:{port}")))
}
