//! The router in a process of its own, for what only a process has: memory, descriptors, signals, an exit code.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// See the module. It is killed with the test.
pub(crate) struct Serving {
    child: Child,
    config: PathBuf,
    log: Arc<Mutex<Vec<String>>>,
    pub(crate) data: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Serving {
    /// Starts `warmpath serve` before one worker, without events, with more lines of configuration.
    pub(crate) fn start(name: &str, worker: SocketAddr, more: &str) -> Self {
        Self::limited(name, worker, more, 20_000)
    }

    /// The same with so many file descriptors.
    pub(crate) fn limited(name: &str, worker: SocketAddr, more: &str, descriptors: usize) -> Self {
        Self::on((0, 0), (name, worker, more), descriptors)
    }

    /// The same on these ports, for clients and for operators.
    pub(crate) fn on(
        (data, admin): (u16, u16),
        (name, worker, more): (&str, SocketAddr, &str),
        descriptors: usize,
    ) -> Self {
        let text = format!(
            "listen: {{data: '127.0.0.1:{data}', admin: '127.0.0.1:{admin}'}}\nmodels: [{{name: m}}]\n\
             workers: [{{id: w, url: 'http://{worker}', model: m, events: none}}]\n{more}\n"
        );
        Self::of(name, &text, descriptors)
    }

    /// The same with all of the configuration but the ports, which are any.
    pub(crate) fn configured(name: &str, config: &str) -> Self {
        Self::of(name, &format!("listen: {{data: '127.0.0.1:0', admin: '127.0.0.1:0'}}\n{config}\n"), 20_000)
    }

    /// The same with a log that nobody reads.
    pub(crate) fn unheard(name: &str, worker: SocketAddr, more: &str, log: Stdio) -> Self {
        let [data, admin] = [(); 2].map(|()| {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap()
        });
        let text = format!(
            "listen: {{data: '{data}', admin: '{admin}'}}\nmodels: [{{name: m}}]\n\
             workers: [{{id: w, url: 'http://{worker}', model: m, events: none}}]\n{more}\n"
        );
        let (mut child, config) = Self::spawn(name, &text, "", 20_000, log);
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(data).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "it has ended");
            assert!(Instant::now() < deadline, "it does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { child, config, log: Arc::default(), data, admin }
    }

    fn of(name: &str, text: &str, descriptors: usize) -> Self {
        Self::heard(Self::spawn(name, text, "", descriptors, Stdio::piped()))
    }

    /// Waits until it says where it serves.
    fn heard((mut child, config): (Child, PathBuf)) -> Self {
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let told = lines.by_ref().map_while(Result::ok).find(|line| line.contains("serving on http://"));
        let told = told.expect("it says where it serves");
        let addresses: Vec<SocketAddr> =
            told.split("http://").skip(1).map(|part| part.split([',', '"']).next().unwrap().parse().unwrap()).collect();
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&log);
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| kept.lock().unwrap().push(line)));
        Self { child, config, log, data: addresses[0], admin: addresses[1] }
    }

    /// What it has logged since it serves.
    pub(crate) fn logged(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// What a supervisor would be told, at this socket.
    pub(crate) fn supervised(name: &str, worker: SocketAddr, socket: &std::path::Path) -> Self {
        let text = format!(
            "listen: {{data: '127.0.0.1:0', admin: '127.0.0.1:0'}}\nmodels: [{{name: m}}]\n\
             workers: [{{id: w, url: 'http://{worker}', model: m, events: none}}]\n"
        );
        Self::heard(Self::spawn(name, &text, &format!("NOTIFY_SOCKET='{}'", socket.display()), 20_000, Stdio::piped()))
    }

    fn spawn(name: &str, text: &str, environment: &str, descriptors: usize, log: Stdio) -> (Child, PathBuf) {
        let config = std::env::temp_dir().join(format!("warmpath-serving-{}-{name}.yaml", std::process::id()));
        std::fs::write(&config, text).unwrap();
        let shell = format!("ulimit -n {descriptors} && {environment} exec \"$0\" serve --config \"$1\"");
        let child = Command::new("sh")
            .args(["-c", &shell, env!("CARGO_BIN_EXE_warmpath"), &config.display().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("a shell");
        (child, config)
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self, patience: Duration) -> ExitStatus {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Memory in use, and the most that ever was, in KiB.
    pub(crate) fn memory(&self) -> (u64, u64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux tells");
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        (of("VmRSS:"), of("VmHWM:"))
    }

    /// The text of its metrics.
    pub(crate) async fn metrics(&self) -> String {
        reqwest::get(format!("http://{}/metrics", self.admin)).await.unwrap().text().await.unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.config);
        if std::thread::panicking() {
            // What it said of a test that fails, but for the line of each request.
            let told = self.logged();
            told.iter().filter(|line| !line.contains(" access: ")).for_each(|line| eprintln!("{line}"));
        }
    }
}
