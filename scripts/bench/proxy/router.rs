//! The router under measurement: the program itself, as an operator would start it, but for the line that it logs of each
//! request: nginx logs none either, and the one router that does has rows of its own.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::process::wait_for;
use crate::bodies::{BLOCK, MODEL};

/// What distinguishes one router from another.
pub(crate) struct Settings<'a> {
    /// Its name in the figures.
    pub(crate) name: &'static str,
    /// `routing.policy`.
    pub(crate) policy: &'static str,
    /// `log.access`.
    pub(crate) access: bool,
    /// The folder of the tokenizer, if it has one.
    pub(crate) tokenizer: Option<&'a Path>,
    /// The ports of the workers.
    pub(crate) workers: &'a [u16],
    /// Each worker's endpoints for events and replays.
    pub(crate) zmq: Option<&'a [(String, String)]>,
    /// The address of a NATS server.
    pub(crate) nats: Option<&'a str>,
}

/// A running router.
pub(crate) struct Router {
    child: Child,
    /// Where clients' requests go.
    pub(crate) data: SocketAddr,
    admin: SocketAddr,
    log: PathBuf,
    pub(crate) name: &'static str,
}

impl Router {
    /// Starts it, and waits until it is ready, its tokenizer loaded and its buses connected. Its files go to `folder`.
    ///
    /// # Errors
    /// When it does not become ready.
    pub(crate) fn start(
        program: &Path,
        folder: &Path,
        threads: usize,
        settings: &Settings<'_>,
    ) -> anyhow::Result<Self> {
        let name = settings.name;
        let (file, log) = (folder.join(format!("{name}.yaml")), folder.join(format!("{name}.log")));
        std::fs::write(&file, configuration(settings))?;
        let mut command = Command::new(program);
        command.args(["serve", "--config"]).arg(&file).env("TOKIO_WORKER_THREADS", threads.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
        // Dropped, and so killed, if anything fails from here on.
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut router = Self { child, data: nowhere, admin: nowhere, log, name };
        let (data, admin) = wait_for(&format!("the addresses of the router {name}"), || router.addresses())
            .with_context(|| router.last_words())?;
        (router.data, router.admin) = (data, admin);
        let ready = |router: &Self| {
            let health = router.ask("/healthz").ok()?;
            // One that has no tokenizer says so for ever; everything else passes.
            let lacks = |line: &serde_json::Value| !line.as_str().is_some_and(|line| line.contains("has no tokenizer"));
            let waits = health["degraded"].as_array().is_none_or(|lines| lines.iter().any(lacks));
            (health["ready"] == true && !waits).then_some(())
        };
        wait_for(&format!("the router {name}"), || ready(&router)).with_context(|| router.last_words())?;
        Ok(router)
    }

    /// The process.
    pub(crate) fn pids(&self) -> Vec<u32> {
        vec![self.child.id()]
    }

    /// What it knows of its workers.
    ///
    /// # Errors
    /// When it does not tell.
    pub(crate) fn workers(&self) -> anyhow::Result<Vec<Value>> {
        let told = self.ask("/api/v1/workers")?;
        Ok(told["workers"].as_array().context("no list of workers")?.clone())
    }

    /// How many requests it has routed without knowing their token ids.
    ///
    /// # Errors
    /// When it does not tell.
    pub(crate) fn untokenized(&self) -> anyhow::Result<f64> {
        let text = self.get("/metrics")?;
        let lines = text.lines().filter(|line| line.starts_with("warmpath_untokenized_total"));
        Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// Stops it as an operator would.
    ///
    /// # Errors
    /// When it does not end by itself, or not well.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        let asked = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        ensure!(asked.success(), "the router {} cannot be signalled", self.name);
        let until = Instant::now() + Duration::from_secs(40);
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the router {} ended with {status}", self.name);
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        anyhow::bail!("the router {} does not stop", self.name)
    }

    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        let text = std::fs::read_to_string(&self.log).ok()?;
        let line = text.lines().find(|line| line.starts_with("serving on ") && line.contains("admin on "))?;
        let mut found = line.split("http://").skip(1).map(|rest| rest.trim_end_matches([',', ' ']));
        let mut next = || found.next()?.split([',', ' ']).next()?.parse().ok();
        Some((next()?, next()?))
    }

    fn ask(&self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.get(path)?)?)
    }

    fn get(&self, path: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(self.admin)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.admin)?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (_, body) = text.split_once("\r\n\r\n").context("no answer from the admin port")?;
        Ok(body.to_owned())
    }

    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let health = self.ask("/healthz").map(|health| health.to_string()).unwrap_or_default();
        let from = text.len().saturating_sub(2_000);
        format!("{health}\n{}", text.get(from..).unwrap_or_default())
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every limit that could turn a request away or aside is far above the load, since none of them is what is measured.
fn configuration(settings: &Settings<'_>) -> String {
    let tokenizer =
        settings.tokenizer.map_or("null".to_owned(), |folder| format!("{}/tokenizer.json", folder.display()));
    let mut text = format!(
        "listen: {{data: '127.0.0.1:0', admin: '127.0.0.1:0'}}
models:
  - {{name: {MODEL}, block_size: {BLOCK}, tokenizer: {tokenizer}}}
routing: {{policy: {}, trust: {{event_silence: 24h}}}}
log: {{level: warn, access: {}}}
workers:
",
        settings.policy, settings.access
    );
    for (number, port) in settings.workers.iter().enumerate() {
        let events = match (settings.zmq.map(|endpoints| &endpoints[number]), settings.nats) {
            (Some((live, replay)), _) => format!("events: zmq, zmq_endpoint: '{live}', zmq_replay: '{replay}'"),
            (None, Some(_)) => "events: nats".to_owned(),
            (None, None) => "events: none".to_owned(),
        };
        let _ = writeln!(
            text,
            "  - {{id: w{number}, url: 'http://127.0.0.1:{port}', model: {MODEL}, max_num_seqs: 65536, \
             capacity_blocks: 10000000, {events}}}"
        );
    }
    if let Some(url) = settings.nats {
        let _ = writeln!(text, "events: {{nats: {{url: '{url}'}}}}");
    }
    text
}
