//! Workers that come and go: by a file, by DNS, and by registering themselves.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream::kv;
use serde_json::json;
use tokio::net::UdpSocket;
use warmpath::events::nats::{NatsBus, NatsSettings};
use warmpath::events::publish::Bus;
use warmpath::fleet::discovery::registration::{self, RegisteredEvents, Registration};
use warmpath::shutdown::Tasks;

use crate::doctor::{anywhere, mock};
use crate::fleet::{TestFleet, fleet};
use crate::nats::NatsServer;
use crate::scripted::{Scripted, good_stream};

/// A folder of a test's own, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("warmpath-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Puts a list of workers in the place of the last one, at once.
    fn list(&self, workers: &str) {
        let new = self.0.join("new");
        std::fs::write(&new, workers).unwrap();
        std::fs::rename(new, self.0.join("workers.yaml")).unwrap();
    }

    fn settings(&self) -> String {
        let path = self.0.join("workers.yaml");
        format!(
            "timeouts: {{health_interval: 5ms}}\ndiscovery: {{file: {{path: '{}', interval: 5ms}}}}",
            path.display()
        )
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn worker() -> Scripted {
    Scripted::start(good_stream()).await
}

fn line(id: &str, address: SocketAddr, events: &str) -> String {
    format!("- {{id: {id}, url: 'http://{address}', model: m, events: {events}}}\n")
}

/// Metric lines of workers.
async fn series(fleet: &TestFleet) -> usize {
    fleet.admin("/metrics").await.1.lines().filter(|line| line.contains("worker=\"")).count()
}

/// R25. An engine joins, is sent a prompt, tells of its blocks, and leaves, two hundred times.
#[tokio::test]
async fn r25_two_hundred_joins_and_leaves_leave_nothing_behind() {
    let folder = Folder::new("r25");
    folder.list("[]");
    let fleet = fleet().engines(1).unlisted().config(&folder.settings()).start().await;
    let listed = line("engine-1", fleet.engines[0], "local");
    let mut before = None;
    for round in 0..200_u32 {
        folder.list(&listed);
        fleet.until_metric("warmpath_worker_up", "engine-1", 1.0).await;
        let prompt: Vec<u32> = (0..40).map(|token| round * 100 + token).collect();
        assert_eq!(fleet.complete(json!(prompt)).await.status, 200, "round {round}");
        fleet.until_metric("warmpath_index_blocks", "engine-1", 1.0).await;
        folder.list("[]");
        fleet.eventually("no series is left", async |fleet| series(fleet).await == 0).await;
        let index = fleet.metric("warmpath_index_bytes", "").await;
        let (tasks, index_before) = *before.get_or_insert((fleet.app.tasks_alive(), index));
        assert!(fleet.app.tasks_alive() <= tasks, "round {round}: {} tasks, first {tasks}", fleet.app.tasks_alive());
        assert!(index <= index_before * 1.05, "round {round}: the index has {index} bytes, first {index_before}");
    }
}

/// As Kubernetes mounts a map: the file is a link through a folder that is a link, which is swapped.
#[tokio::test]
async fn a_mounted_list_is_followed_and_one_with_faults_is_not() {
    let (folder, a, b) = (Folder::new("mounted"), worker().await, worker().await);
    let publish = |version: &str, text: &str| {
        let inside = folder.0.join(version);
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(inside.join("workers.yaml"), text).unwrap();
        std::os::unix::fs::symlink(&inside, folder.0.join("..new")).unwrap();
        std::fs::rename(folder.0.join("..new"), folder.0.join("..data")).unwrap();
    };
    publish("1", &format!("workers:\n{}", line("a", a.address, "none")));
    std::os::unix::fs::symlink("..data/workers.yaml", folder.0.join("workers.yaml")).unwrap();
    let fleet = fleet().engines(0).config(&folder.settings()).start().await;
    fleet.until_answered_by("a").await;
    publish("2", &line("b", b.address, "none"));
    fleet.until_answered_by("b").await;
    fleet.eventually("a is gone", async |fleet| !fleet.admin("/metrics").await.1.contains("worker=\"a\"")).await;
    publish("3", "- {id: c, url: 'http://c', model: other}\n");
    fleet.until_degraded("no model is named `other`").await;
    assert_eq!(fleet.who().await.as_deref(), Ok("b"));
    publish("4", &line("a", a.address, "none"));
    fleet.until_answered_by("a").await;
    assert_eq!(fleet.health().await["degraded"], json!([]));
}

/// What comes to light only beside other sources, or when a worker is to be taken in, is counted as well.
#[tokio::test]
async fn what_is_wrong_with_a_list_is_counted_and_a_pipe_is_none() {
    let (folder, a) = (Folder::new("counted"), worker().await);
    folder.list(&line("engine-1", a.address, "none"));
    let fleet = fleet().engines(1).config(&folder.settings()).start().await;
    let faults = async |fleet: &TestFleet| fleet.metric("warmpath_discovery_faults", "source=\"file\"").await;
    fleet.until_degraded("`engine-1` is named by the configuration and by the workers' file").await;
    fleet.eventually("it is counted", async |fleet| faults(fleet).await == 1.0).await;
    folder.list(&line("a", a.address, "none"));
    fleet.eventually("all is well", async |fleet| faults(fleet).await == 0.0).await;
    // Whoever opened it would wait for its writer, and read no list that comes later.
    let list = folder.0.join("workers.yaml");
    std::fs::remove_file(&list).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&list).status().unwrap().success());
    fleet.until_degraded("it is no regular file").await;
    assert_eq!(faults(&fleet).await, 1.0);
    folder.list(&line("b", a.address, "none"));
    fleet.eventually("b is up", async |fleet| fleet.metric("warmpath_worker_up", "\"b\"").await == 1.0).await;
    assert_eq!((fleet.health().await["degraded"].clone(), faults(&fleet).await), (json!([]), 0.0));
}

#[tokio::test]
async fn a_worker_whose_address_changes_is_used_at_the_new_one() {
    let (folder, a, b) = (Folder::new("moved"), worker().await, worker().await);
    folder.list(&line("w", a.address, "none"));
    let fleet = fleet().engines(0).config(&folder.settings()).start().await;
    fleet.until_answered_by("w").await;
    assert_eq!((a.seen().len(), b.seen().len()), (1, 0));
    folder.list(&line("w", b.address, "none"));
    fleet.eventually("the new one is asked", async |fleet| fleet.who().await.is_ok() && !b.seen().is_empty()).await;
}

/// As an engine is upgraded that registers itself.
#[tokio::test]
async fn a_worker_that_was_drained_is_drained_when_it_returns_unless_that_was_taken_back() {
    let (folder, a) = (Folder::new("returns"), worker().await);
    let listed = line("w", a.address, "none");
    folder.list(&listed);
    let fleet = fleet().engines(0).config(&folder.settings()).start().await;
    fleet.until_answered_by("w").await;
    let gone = async |fleet: &TestFleet| !fleet.admin("/api/v1/workers").await.1.contains("\"w\"");
    let drained = async |fleet: &TestFleet| fleet.admin("/api/v1/workers").await.1.contains("\"draining\"");
    for is_there in [true, false] {
        assert_eq!(fleet.operate("w", "drain").await.0, 200);
        folder.list("[]");
        fleet.eventually("it is gone", gone).await;
        if is_there {
            folder.list(&listed);
            fleet.eventually("it is back, and drained", drained).await;
            assert_eq!(fleet.who().await, Err(503));
        }
        assert_eq!(fleet.operate("w", "undrain").await.0, 200);
        folder.list(&listed);
        fleet.until_answered_by("w").await;
    }
}

#[tokio::test]
async fn the_addresses_of_a_name_are_workers() {
    let worker = worker().await;
    let port = worker.address.port();
    let settings = format!("timeouts: {{health_interval: 5ms}}\ndiscovery: {{dns: {{name: localhost, port: {port}}}}}");
    let fleet = fleet().engines(0).config(&settings).start().await;
    fleet.until_answered_by(&format!("127.0.0.1:{port}")).await;
}

/// A name server that lists `localhost` at one port; at 0 it says that it cannot tell.
async fn name_server(tasks: &Tasks) -> (SocketAddr, Arc<AtomicU16>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (address, port) = (socket.local_addr().unwrap(), Arc::new(AtomicU16::new(0)));
    let told = Arc::clone(&port);
    tasks.spawn(async move {
        let mut question = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut question).await {
            let name = question[12..len].iter().position(|byte| *byte == 0).unwrap() + 13;
            let port = told.load(Ordering::SeqCst);
            let mut answer = question[..name + 4].to_vec();
            answer[2..12].copy_from_slice(&[
                0x81,
                if port == 0 { 0x82 } else { 0x80 },
                0,
                1,
                0,
                u8::from(port > 0),
                0,
                0,
                0,
                0,
            ]);
            if port > 0 {
                answer.extend_from_slice(&[0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 30, 0, 17, 0, 1, 0, 1]);
                answer.extend_from_slice(&port.to_be_bytes());
                answer.extend_from_slice(b"\x09localhost\x00");
            }
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    (address, port)
}

#[tokio::test]
async fn service_records_tell_hosts_and_ports_and_a_name_server_that_fails_takes_nobody_away() {
    let (tasks, a, b) = (Tasks::new(), worker().await, worker().await);
    let (server, port) = name_server(&tasks).await;
    port.store(a.address.port(), Ordering::SeqCst);
    let settings = format!(
        "timeouts: {{health_interval: 5ms}}\ndiscovery: {{dns: {{name: _http._tcp.w, records: srv, server: '{server}', \
         interval: 20ms, id: 'gpu-{{port}}-{{host}}'}}}}"
    );
    let fleet = fleet().engines(0).config(&settings).start().await;
    let id = |worker: &Scripted| format!("gpu-{}-localhost", worker.address.port());
    fleet.until_answered_by(&id(&a)).await;
    port.store(0, Ordering::SeqCst);
    fleet.until_degraded("the name server answers with code 2").await;
    assert_eq!(fleet.who().await, Ok(id(&a)));
    port.store(b.address.port(), Ordering::SeqCst);
    fleet.until_answered_by(&id(&b)).await;
}

fn registered(id: &str, address: SocketAddr, epoch: u64) -> Registration {
    let text = json!({"v": 1, "id": id, "model": "m", "url": format!("http://{address}"), "block_size": 4, "dp_ranks": 1,
        "epoch": epoch, "capacity_blocks": null, "max_num_seqs": 8, "events": "none"});
    Registration::read(id, text.to_string().as_bytes()).unwrap()
}

async fn bucket(nats: &NatsServer) -> kv::Store {
    let context = async_nats::jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        // The router makes it.
        match context.get_key_value(registration::bucket("warmpath")).await {
            Ok(store) => return store,
            Err(error) => assert!(Instant::now() < deadline, "there is no bucket: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn put(bucket: &kv::Store, registration: &Registration) {
    bucket.put(registration.key(), registration.to_json().into()).await.unwrap();
}

#[tokio::test]
async fn workers_register_are_let_go_when_they_fall_silent_and_stay_while_the_bus_is_away() {
    let (mut nats, a, b) = (NatsServer::jetstream(), worker().await, worker().await);
    let settings = "timeouts: {health_interval: 5ms}\ndiscovery: {nats: {enabled: true, lease: 1s}}";
    let fleet = fleet().engines(0).nats(nats.url()).config(settings).start().await;
    let store = bucket(&nats).await;
    put(&store, &registered("a", a.address, 1)).await;
    fleet.until_answered_by("a").await;
    // Taken back.
    put(&store, &registered("b", b.address, 1)).await;
    store.delete("a").await.unwrap();
    fleet.until_answered_by("b").await;
    fleet.eventually("a is gone", async |fleet| !fleet.admin("/metrics").await.1.contains("worker=\"a\"")).await;
    // Silent.
    fleet.until_nobody_answers().await;
    // There again; and the bus goes for longer than a lease.
    put(&store, &registered("b", b.address, 2)).await;
    fleet.until_answered_by("b").await;
    nats.kill();
    fleet.until_degraded("nobody is let go").await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(fleet.who().await.as_deref(), Ok("b"));
    nats.up();
    fleet.until_nobody_answers().await;
}

#[tokio::test]
async fn a_registration_that_is_none_is_refused_and_said() {
    let (nats, a) = (NatsServer::jetstream(), worker().await);
    let settings = "timeouts: {health_interval: 5ms}\ndiscovery: {nats: {enabled: true, lease: 2s}}";
    let fleet = fleet().engines(0).nats(nats.url()).config(settings).start().await;
    let store = bucket(&nats).await;
    store.put("x", "{}".into()).await.unwrap();
    put(&store, &Registration { model: "other".to_owned(), ..registered("y", a.address, 1) }).await;
    fleet.until_degraded("the registration under `x` is refused: not a registration").await;
    fleet.until_degraded("worker `y` registered for `other`, and no model is named so").await;
    put(&store, &registered("y", a.address, 1)).await;
    fleet.until_answered_by("y").await;
    // Nor is it kept in mind for longer than anybody else who falls silent.
    let is_forgotten = async |fleet: &TestFleet| !fleet.health().await["degraded"].to_string().contains("under `x`");
    fleet.eventually("it is forgotten", is_forgotten).await;
}

/// R25. A worker that had registered is killed: its lease ends, and nothing of it is left, three times over. Whoever else
/// is there stays as it was.
#[tokio::test]
async fn r25_a_leased_worker_that_is_killed_leaves_nothing_behind() {
    let nats = NatsServer::jetstream();
    let settings = "timeouts: {health_interval: 5ms}\ndiscovery: {nats: {enabled: true, lease: 1s}}";
    let fleet = fleet().engines(1).nats(nats.url()).config(settings).start().await;
    assert_eq!(fleet.complete((0..400).collect::<Vec<u32>>().into()).await.status, 200);
    fleet.until_metric("warmpath_index_blocks", "engine-1", 100.0).await;
    let (bytes, store) =
        (async |fleet: &TestFleet| fleet.metric("warmpath_index_bytes", "").await, bucket(&nats).await);
    let before = bytes(&fleet).await;
    let mut tasks_before = None;
    for round in 1..=3_u32 {
        let (engine, leased) = (Tasks::new(), Tasks::new());
        let bus = NatsBus::connect(NatsSettings::publisher(nats.url(), "warmpath".to_owned())).await.unwrap();
        let address = mock(anywhere(), Bus::Nats(Box::new(bus)), &engine).await;
        let entry = Registration { events: RegisteredEvents::Nats, ..registered("e", address, round.into()) };
        let refreshed = store.clone();
        leased.spawn(async move {
            loop {
                put(&refreshed, &entry).await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        fleet.until_metric("warmpath_worker_up", "worker=\"e\"", 1.0).await;
        for family in 1..=18 {
            let prompt: Vec<u32> = (family * 1000 + round..family * 1000 + round + 400).collect();
            let body = json!({"model": "m", "prompt": prompt, "max_tokens": 2});
            let sent = fleet.client.post(format!("http://{address}/v1/completions")).json(&body).send().await.unwrap();
            assert_eq!(sent.status(), 200);
        }
        fleet.until_metric("warmpath_index_blocks", "worker=\"e\"", 1800.0).await;
        let own = fleet.metric("warmpath_index_worker_bytes", "worker=\"e\"").await;
        let full = bytes(&fleet).await;
        assert!(own > 1800.0 * 12.0 && full > before + 1800.0 * 12.0, "{own} of {full} bytes, {before} before");
        engine.drain(Duration::ZERO).await;
        leased.drain(Duration::ZERO).await;
        let killed = Instant::now();
        let is_gone = async |fleet: &TestFleet| !fleet.admin("/metrics").await.1.contains("worker=\"e\"");
        fleet.eventually("no series of it is left", is_gone).await;
        assert!(killed.elapsed() < Duration::from_secs(3), "its lease of a second ended after {:?}", killed.elapsed());
        let after = bytes(&fleet).await;
        assert!(after <= before * 1.05, "round {round}: {after} bytes, {before} before");
        assert_eq!(fleet.metric("warmpath_index_blocks", "engine-1").await, 100.0);
        let tasks = fleet.app.tasks_alive();
        // Kept connections to the other one come and go.
        assert!(tasks <= *tasks_before.get_or_insert(tasks) + 2, "round {round}: {tasks} tasks");
        println!("\nR25: {before} bytes before, {full} with it, {after} after its lease");
    }
}
