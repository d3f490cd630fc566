//! The programs of a run, and what the kernel says of them.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use warmpath_core::count::real;

use anyhow::{Context, bail};

use super::client::{Outcome, Spec};

/// A part of this very program as a process of its own, spoken to line by line. It ends when this value does.
pub(crate) struct Part {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Part {
    fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("a pipe that was asked for")?);
        Ok(Self { child, input, output })
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("a part of the bench has ended early; its message is above");
        }
        Ok(line.trim_end().to_owned())
    }

    fn say(&mut self) -> anyhow::Result<()> {
        self.input.as_mut().context("the pipe is open until the end")?.write_all(b"\n")?;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        drop(self.input.take());
        // A part ends with its input.
        let _ = self.child.wait();
    }
}

/// The engines: one process that serves on several ports.
pub(crate) struct Workers {
    _part: Part,
    /// Where they answer.
    pub(crate) ports: Vec<u16>,
}

impl Workers {
    /// Starts so many.
    pub(crate) fn start(count: usize) -> anyhow::Result<Self> {
        let mut part = Part::start(&["worker", &count.to_string()])?;
        let line = part.line()?;
        let ports: Vec<u16> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        anyhow::ensure!(ports.len() == count, "the workers said `{line}`");
        Ok(Self { _part: part, ports })
    }

    /// The first of them, for measuring without a proxy.
    pub(crate) fn direct(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[0]).into()
    }
}

/// A process of clients whose connections are open and warm.
pub(crate) struct Client(Part);

impl Client {
    /// Starts it and waits until it is ready.
    pub(crate) fn start(spec: &Spec) -> anyhow::Result<Self> {
        let mut part = Part::start(&["client", &serde_json::to_string(spec)?])?;
        let line = part.line()?;
        anyhow::ensure!(line == "ready", "a client said `{line}`");
        Ok(Self(part))
    }

    /// Lets it begin.
    pub(crate) fn go(&mut self) -> anyhow::Result<()> {
        self.0.say()
    }

    /// Waits for what it saw. Its connections stay open.
    pub(crate) fn outcome(&mut self) -> anyhow::Result<Outcome> {
        let line = self.0.line()?;
        serde_json::from_str(&line).with_context(|| format!("a client said `{line}`"))
    }
}

/// Processor time of these processes so far, in microseconds: what the kernel books as theirs and as its own for them.
pub(crate) fn cpu_us(pids: &[u32]) -> anyhow::Result<f64> {
    let mut ticks = 0;
    for pid in pids {
        let fields = stat(*pid).with_context(|| format!("process {pid} is gone"))?;
        // utime and stime are fields 14 and 15 of proc(5), of which the first two are not in `fields`.
        for field in fields.get(11..13).context("a short stat")? {
            ticks += field.parse::<u64>()?;
        }
    }
    Ok(real(ticks) * 1e6 / ticks_per_second())
}

/// The children of a process.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| stat(*pid).and_then(|fields| fields.get(1)?.parse().ok()) == Some(parent);
    pids.filter(is_child).collect()
}

/// The fields of /proc/PID/stat from the third on: the second is a name that may have anything in it.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split(' ').map(str::to_owned).collect())
}

/// Memory of these processes that is resident, in bytes. What several share counts for each.
pub(crate) fn resident_bytes(pids: &[u32]) -> anyhow::Result<f64> {
    let mut kib = 0;
    for pid in pids {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        kib += line.trim().trim_end_matches(" kB").parse::<u64>()?;
    }
    Ok(real(kib) * 1024.0)
}

fn ticks_per_second() -> f64 {
    static TICKS: OnceLock<f64> = OnceLock::new();
    *TICKS.get_or_init(|| {
        let told = Command::new("getconf").arg("CLK_TCK").output().ok();
        told.and_then(|told| String::from_utf8(told.stdout).ok()?.trim().parse().ok()).unwrap_or(100.0)
    })
}

/// Ports that nobody listens on just now, no two the same.
pub(crate) fn free_ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    let mut ports = [0; N];
    // Held until all are known, or one might be given twice.
    let mut taken = Vec::with_capacity(N);
    for port in &mut ports {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        taken.push(listener);
    }
    Ok(ports)
}

/// Asks again and again, a minute at most.
pub(crate) fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(answer) = ask() {
            return Ok(answer);
        }
        if Instant::now() > until {
            bail!("{what}: not within a minute");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_known_to_the_kernel() {
        let own = [std::process::id()];
        assert!(resident_bytes(&own).unwrap() > 100_000.0);
        assert!(cpu_us(&own).unwrap() >= 0.0);
        assert!(cpu_us(&[u32::MAX]).is_err());
    }
}
