//! A real `nats-server` of a test's own, on a free port.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Ends when dropped.
pub(crate) struct NatsServer {
    child: Option<Child>,
    port: u16,
    jetstream: bool,
    config: Option<String>,
    store: PathBuf,
}

impl NatsServer {
    /// A server without JetStream.
    pub(crate) fn core() -> Self {
        Self::start(false)
    }

    /// A server with JetStream.
    pub(crate) fn jetstream() -> Self {
        Self::start(true)
    }

    /// A server without JetStream for the users `warm` with the password `path`, and `engine` with `engine`.
    pub(crate) fn guarded() -> Self {
        let users = "{user: warm, password: path}, {user: engine, password: engine}";
        Self::configured(false, format!("authorization {{ users: [{users}] }}\n"))
    }

    /// A server with a configuration of its own, beside address and storage.
    pub(crate) fn configured(jetstream: bool, config: String) -> Self {
        let mut server = Self::down(jetstream);
        server.config = Some(config);
        server.up();
        server
    }

    /// A port on which nothing listens; [`NatsServer::up`] starts a server there.
    pub(crate) fn down(jetstream: bool) -> Self {
        let port = free_port();
        let store = std::env::temp_dir().join(format!("warmpath-nats-{}-{port}", std::process::id()));
        Self { child: None, port, jetstream, config: None, store }
    }

    fn start(jetstream: bool) -> Self {
        let mut server = Self::down(jetstream);
        server.up();
        server
    }

    /// Starts the server, with what it had kept.
    pub(crate) fn up(&mut self) {
        let mut command = Command::new(program());
        command.args(["--addr", "127.0.0.1", "--port", &self.port.to_string()]);
        if self.jetstream {
            command.arg("--jetstream").arg("--store_dir").arg(&self.store);
        }
        if let Some(text) = &self.config {
            std::fs::create_dir_all(&self.store).expect("the temporary folder can be written");
            let config = self.store.join("server.conf");
            std::fs::write(&config, text).expect("it can be written");
            command.arg("--config").arg(config);
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.expect("nats-server is installed; scripts/check.sh does that"));
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "nats-server did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// From its next start on it has this configuration.
    pub(crate) fn configure(&mut self, config: String) {
        self.config = Some(config);
    }

    /// Kills the server; its address stays.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Throws away what the stream of the prefix `warmpath` kept; its numbers go on.
    pub(crate) async fn purge(&self) {
        let client = async_nats::connect(self.url()).await.expect("the server is up");
        let stream = async_nats::jetstream::new(client).get_stream("WARMPATH_KV").await;
        stream.expect("the stream is there").purge().await.expect("it can be emptied");
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Forgets what it had kept; only while it is down.
    pub(crate) fn forget(&self) {
        assert!(self.child.is_none(), "a running server keeps its files");
        let _ = std::fs::remove_dir_all(&self.store);
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.store);
    }
}

/// Debian puts daemons where not every user looks.
fn program() -> PathBuf {
    let debian = PathBuf::from("/usr/sbin/nats-server");
    if debian.exists() { debian } else { PathBuf::from("nats-server") }
}

/// A port below those that the system gives to everybody: nobody takes it between now and the server's start, and no two
/// tests of a process get the same. Two servers on one port would be one bus for two tests.
fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(131);
    loop {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + u16::try_from(start.wrapping_add(tried) % 20_000).expect("below 20 000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
