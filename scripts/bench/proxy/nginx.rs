//! nginx as a proxy for the same workers, set up as its manual advises for upstreams that are kept alive.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use serde_json::{Value, json};

use super::process::{children, free_ports, wait_for};

/// What a reader of the figures should know of the configuration.
const CHOICES: &str = "one upstream block over the same workers, round robin, keepalive 1024, HTTP/1.1; access_log off; \
    proxy_request_buffering on (the default: as a router, it reads a request before it sends it); client_body_buffer_size \
    1m, so that no body goes to a file; proxy_buffering on (the default) for answers in one piece, off for streams, whose \
    events would be held back otherwise; keepalive_requests unlimited on both sides; tcp_nodelay on";

/// A running nginx.
pub(crate) struct Nginx {
    program: PathBuf,
    folder: PathBuf,
    child: Child,
    /// Where answers in one piece are asked for, and where streams are.
    pub(crate) whole: SocketAddr,
    pub(crate) streams: SocketAddr,
}

impl Nginx {
    /// Starts it with so many worker processes; its files go to `folder`.
    ///
    /// # Errors
    /// When it does not run.
    pub(crate) fn start(program: &Path, folder: &Path, processes: usize, upstreams: &[u16]) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let [whole, streams] = free_ports()?;
        std::fs::write(folder.join("nginx.conf"), configuration(processes, upstreams, (whole, streams)))?;
        let mut command = Command::new(program);
        command.arg("-p").arg(folder).args(["-c", "nginx.conf", "-e", "error.log"]);
        let child = command.stdin(Stdio::null()).spawn().with_context(|| {
            format!("cannot run {}: install nginx (Debian: apt-get install nginx)", program.display())
        })?;
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut nginx = Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
            child,
            whole: at(whole),
            streams: at(streams),
        };
        wait_for("nginx", || TcpStream::connect(nginx.streams).ok())?;
        anyhow::ensure!(nginx.child.try_wait()?.is_none(), "nginx has ended; see {}/error.log", folder.display());
        wait_for("nginx's processes", || (nginx.pids().len() > processes).then_some(()))?;
        Ok(nginx)
    }

    /// The master and its workers.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let master = self.child.id();
        std::iter::once(master).chain(children(master)).collect()
    }

    /// Its version and how it was set up.
    pub(crate) fn described(program: &Path, processes: usize) -> Value {
        let told = Command::new(program).arg("-v").output().map(|output| output.stderr).unwrap_or_default();
        let version = String::from_utf8_lossy(&told).trim().trim_start_matches("nginx version: ").to_owned();
        json!({ "version": version, "worker_processes": processes, "choices": CHOICES })
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let mut command = Command::new(&self.program);
        command.arg("-p").arg(&self.folder).args(["-c", "nginx.conf", "-e", "error.log", "-s", "stop"]);
        // Its own way to stop, which ends its workers too. If even that cannot be run, the master is killed.
        if !command.status().is_ok_and(|status| status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

fn configuration(processes: usize, upstreams: &[u16], (whole, streams): (u16, u16)) -> String {
    let servers: String =
        upstreams.iter().map(|port| format!("        server 127.0.0.1:{port} max_fails=0;\n")).collect();
    let server = |port: u16, buffering: &str| {
        format!(
            "    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://workers;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_set_header Host $http_host;
            proxy_buffering {buffering};
            proxy_read_timeout 300s;
        }}
    }}
"
        )
    };
    // Only a master that may change its user heeds this line, and then the workers must be able to read their folder.
    let user = if nobody_else() { "user root;\n" } else { "" };
    format!(
        "{user}daemon off;
worker_processes {processes};
worker_rlimit_nofile 20000;
pid nginx.pid;
events {{ worker_connections 20000; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    client_max_body_size 16m;
    client_body_buffer_size 1m;
    keepalive_timeout 300s;
    keepalive_requests 1000000000;
    tcp_nodelay on;
    upstream workers {{
{servers}        keepalive 1024;
        keepalive_requests 1000000000;
        keepalive_timeout 300s;
    }}
{}{}}}
",
        server(whole, "on"),
        server(streams, "off")
    )
}

/// Whether this process is root's.
fn nobody_else() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}
