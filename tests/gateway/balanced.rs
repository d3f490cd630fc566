//! Two routers behind haproxy, restarted in turn under load.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::chaos::{Saw, ask};
use crate::faulty::{Act, Faulty, stream};
use crate::serving::Serving;

/// Ports that nobody listens at.
fn free_ports<const N: usize>() -> [u16; N] {
    let all: [TcpListener; N] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    all.map(|listener| listener.local_addr().unwrap().port())
}

/// A balancer that asks every 20 ms who is ready. It ends with the test.
struct Haproxy {
    child: Child,
    config: PathBuf,
    port: u16,
}

impl Haproxy {
    fn start(replicas: &[(u16, u16)]) -> Self {
        let [port] = free_ports();
        let servers: String = (1..)
            .zip(replicas)
            .map(|(number, (data, admin))| format!("  server r{number} 127.0.0.1:{data} check port {admin}\n"))
            .collect();
        let text = format!(
            "defaults\n  mode http\n  timeout connect 1s\n  timeout client 60s\n  timeout server 60s\n  timeout check 1s\n  retries 3\n  \
             option redispatch 1\n  retry-on conn-failure empty-response\n  default-server inter 20ms fall 1 rise 1\n\
             listen routers\n  bind 127.0.0.1:{port}\n  option httpchk GET /readyz\n{servers}"
        );
        let config = std::env::temp_dir().join(format!("warmpath-haproxy-{}.cfg", std::process::id()));
        std::fs::write(&config, text).unwrap();
        let own = Path::new("/usr/sbin/haproxy");
        let program = if own.exists() { own } else { Path::new("haproxy") };
        let mut command = Command::new(program);
        command.args(["-db", "-q", "-f"]).arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = Self { child: command.spawn().expect("haproxy is installed"), config, port };
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "haproxy does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        started
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.config);
    }
}

/// Waits until a router is ready and the balancer has seen it.
async fn until_ready(admin: u16) {
    let (url, deadline) = (format!("http://127.0.0.1:{admin}/readyz"), Instant::now() + Duration::from_secs(20));
    while !reqwest::get(&url).await.is_ok_and(|answer| answer.status() == 200) {
        assert!(Instant::now() < deadline, "it is not ready");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
}

/// R17: so many restarts, and at least so many requests meanwhile.
async fn r17(name: &str, restarts: usize, requests: usize) {
    let slow = |_: &str, _| [vec![Act::Pause(Duration::from_millis(20))], stream(2)].concat();
    let worker = Faulty::start(slow).await;
    let [a, b, c, d] = free_ports();
    let ports = [(a, b), (c, d)];
    let start = |number: usize, worker: SocketAddr| {
        Serving::on(
            ports[number],
            (&format!("{name}-{number}"), worker, "timeouts: {health_interval: 50ms, shutdown_delay: 500ms}"),
            4_096,
        )
    };
    let mut routers = [start(0, worker.address), start(1, worker.address)];
    let balancer = Haproxy::start(&ports);
    for (_, admin) in ports {
        until_ready(admin).await;
    }
    let over = AtomicBool::new(false);
    let url = format!("http://127.0.0.1:{}/v1/completions", balancer.port);
    let restarting = async {
        for number in 0..restarts {
            let router = &mut routers[number % 2];
            router.signal("TERM");
            let status = router.ended(Duration::from_secs(30)).await;
            assert_eq!(status.code(), Some(0));
            *router = start(number % 2, worker.address);
            until_ready(ports[number % 2].1).await;
        }
        over.store(true, Ordering::SeqCst);
    };
    let lanes = (0..10).map(|lane| {
        let (url, over, client) = (&url, &over, reqwest::Client::new());
        async move {
            let mut saw = Vec::new();
            while !over.load(Ordering::SeqCst) || saw.len() < requests / 10 {
                saw.push(ask(&client, url, &format!("lane-{lane}-{}", saw.len())).await);
                // 200 a second, all together.
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            saw
        }
    });
    let ((), saw) = tokio::join!(restarting, futures_util::future::join_all(lanes));
    let saw: Vec<Saw> = saw.into_iter().flatten().collect();
    let failed: Vec<&Saw> = saw.iter().filter(|saw| **saw != Saw::Whole).collect();
    println!("R17: {} requests through {restarts} restarts: {} failed", saw.len(), failed.len());
    assert!(failed.is_empty(), "{failed:?}");
    assert!(saw.len() >= requests);
}

#[tokio::test]
async fn r17_routers_that_restart_in_turn_behind_a_balancer_lose_nothing() {
    r17("r17", 3, 500).await;
}

#[tokio::test]
#[ignore = "scripts/chaos.sh runs it"]
async fn chaos_r17_twenty_restarts_under_ten_thousand_requests() {
    r17("chaos-r17", 20, 10_000).await;
}
