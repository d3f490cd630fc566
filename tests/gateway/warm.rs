//! What a router knows when it starts: the views that the one before left in its folder.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::fleet::{Answered, FleetBuilder, TestFleet, fleet};
use crate::nats::NatsServer;

const RESTORED: &str = "warmpath_index_restored_blocks_total";
const BLOCKS: &str = "warmpath_index_blocks";
const ENGINE: &str = "engine-1";

/// 40 tokens that no other `family` has: ten blocks of four.
fn tokens(family: u32) -> Value {
    (family * 1000..family * 1000 + 40).collect::<Vec<_>>().into()
}

/// A folder that is gone with its owner.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("warmpath-snapshots-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }

    fn file(&self) -> PathBuf {
        self.path().join("engine-1.0.snapshot")
    }

    pub(crate) fn key(&self) -> String {
        format!("snapshots: '{}'", self.path().display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One engine whose gateway uses the folder.
fn with(folder: &Folder, server: &NatsServer) -> FleetBuilder {
    fleet().engines(1).nats(server.url()).config(&format!("index: {{{}}}", folder.key()))
}

/// Families 1 to 3 are asked for, and known.
async fn learnt(fleet: TestFleet) -> TestFleet {
    for family in 1..=3 {
        assert_eq!(fleet.complete(tokens(family)).await.status, 200);
    }
    fleet.until_metric(BLOCKS, ENGINE, 30.0).await;
    fleet
}

/// What is predicted and what is so, in tokens.
fn counts(answer: &Answered) -> (u64, u64) {
    (answer.predicted.unwrap(), answer.cached())
}

async fn is_exact(fleet: &TestFleet, families: impl IntoIterator<Item = u32>) {
    for family in families {
        let answer = fleet.complete(tokens(family)).await;
        assert_eq!(counts(&answer), (36, 36), "family {family}");
    }
    assert_eq!(fleet.metric("warmpath_predictions_total", "over").await, 0.0);
}

/// Without JetStream nobody repeats anything, so that all that is known comes from the file.
#[tokio::test]
async fn a_router_that_starts_again_is_warm_from_its_first_request() {
    let (server, folder) = (NatsServer::core(), Folder::new("first"));
    let resting = learnt(with(&folder, &server).start().await).await.stop_gateway().await;
    assert_eq!(folder.files(), ["engine-1.0.snapshot"]);
    let fleet = resting.start_gateway().await;
    assert_eq!((fleet.metric(RESTORED, ENGINE).await, fleet.metric(BLOCKS, ENGINE).await), (30.0, 30.0));
    assert_eq!(folder.files(), Vec::<String>::new(), "a file is used once");
    is_exact(&fleet, 1..=3).await;
    // The stream goes on where it was.
    assert_eq!(fleet.complete(tokens(4)).await.status, 200);
    fleet.until_metric(BLOCKS, ENGINE, 40.0).await;
    assert_eq!(fleet.metric("warmpath_kv_event_gaps_total", ENGINE).await, 0.0);
    is_exact(&fleet, 1..=4).await;
    // And once more, with what came since.
    let fleet = fleet.stop_gateway().await.start_gateway().await;
    assert_eq!(fleet.metric(RESTORED, ENGINE).await, 40.0);
    is_exact(&fleet, 1..=4).await;
}

#[tokio::test]
async fn without_a_folder_it_is_cold() {
    let (server, folder) = (NatsServer::core(), Folder::new("none"));
    let resting = learnt(with(&folder, &server).start().await).await.stop_gateway().await;
    let fleet = resting.start_gateway_with(&folder.key(), "snapshots: null").await;
    assert_eq!((fleet.metric(RESTORED, ENGINE).await, fleet.metric(BLOCKS, ENGINE).await), (0.0, 0.0));
    assert_eq!(counts(&fleet.complete(tokens(1)).await), (0, 36));
}

/// What was published while no router ran is read from the stream; what the router had is there no more.
#[tokio::test]
async fn with_jetstream_what_happened_meanwhile_is_read_behind_the_snapshot() {
    let (server, folder) = (NatsServer::jetstream(), Folder::new("meanwhile"));
    let resting = learnt(with(&folder, &server).start().await).await.stop_gateway().await;
    server.purge().await;
    resting.complete(tokens(4)).await;
    resting.complete(tokens(5)).await;
    let fleet = resting.start_gateway().await;
    fleet.until_metric(BLOCKS, ENGINE, 50.0).await;
    assert_eq!(fleet.metric(RESTORED, ENGINE).await, 30.0);
    assert_eq!(fleet.metric("warmpath_kv_event_gaps_total", ENGINE).await, 0.0);
    is_exact(&fleet, 1..=5).await;
    // The same without the file: the stream alone no longer tells it all.
    let resting = fleet.stop_gateway().await;
    let fleet = resting.start_gateway_with(&folder.key(), "snapshots: null").await;
    fleet.until_metric(BLOCKS, ENGINE, 20.0).await;
    assert_eq!(counts(&fleet.complete(tokens(1)).await), (0, 36));
}

/// A stream that kept everything repeats it: known batches are dropped.
#[tokio::test]
async fn what_the_stream_repeats_is_not_taken_twice() {
    let (server, folder) = (NatsServer::jetstream(), Folder::new("repeats"));
    let resting = learnt(with(&folder, &server).start().await).await.stop_gateway().await;
    resting.complete(tokens(4)).await;
    let fleet = resting.start_gateway().await;
    fleet.until_metric(BLOCKS, ENGINE, 40.0).await;
    fleet.until_metric("warmpath_kv_events_total", "duplicate", 3.0).await;
    assert_eq!(fleet.metric("warmpath_kv_event_gaps_total", ENGINE).await, 0.0);
    is_exact(&fleet, 1..=4).await;
}

#[tokio::test]
async fn events_that_nobody_kept_empty_the_view() {
    let (server, folder) = (NatsServer::core(), Folder::new("lost"));
    let resting = learnt(with(&folder, &server).start().await).await.stop_gateway().await;
    resting.complete(tokens(4)).await;
    let fleet = resting.start_gateway().await;
    assert_eq!(fleet.metric(RESTORED, ENGINE).await, 30.0);
    fleet.complete(tokens(5)).await;
    fleet.until_metric("warmpath_kv_event_gaps_total", ENGINE, 1.0).await;
    fleet.until_metric(BLOCKS, ENGINE, 10.0).await;
    assert_eq!(fleet.metric(BLOCKS, ENGINE).await, 10.0);
    assert_eq!(counts(&fleet.complete(tokens(1)).await), (0, 36));
    assert_eq!(fleet.metric("warmpath_predictions_total", "over").await, 0.0);
}

#[tokio::test]
async fn an_engine_that_restarted_meanwhile_has_an_empty_view() {
    let (server, folder) = (NatsServer::jetstream(), Folder::new("restart"));
    let mut resting = learnt(with(&folder, &server).start().await).await.stop_gateway().await;
    resting.restart_engines().await;
    resting.complete(tokens(4)).await;
    let fleet = resting.start_gateway().await;
    fleet.until_metric("warmpath_kv_event_restarts_total", ENGINE, 1.0).await;
    fleet.eventually("only the new life is known", async |fleet| fleet.metric(BLOCKS, ENGINE).await == 10.0).await;
    assert_eq!(counts(&fleet.complete(tokens(1)).await), (0, 0));
    is_exact(&fleet, [4]).await;
}

/// Of another block size, cut short, with a bit turned, or nothing at all.
#[tokio::test]
async fn a_file_that_cannot_be_believed_is_refused_and_kept_aside() {
    let (server, folder) = (NatsServer::core(), Folder::new("broken"));
    let mut resting = learnt(with(&folder, &server).start().await).await.stop_gateway().await;
    let good = std::fs::read(folder.file()).unwrap();
    let mut turned = good.clone();
    turned[200] ^= 16;
    for bad in [&turned[..], &good[..good.len() - 1], b"nonsense", b""] {
        std::fs::write(folder.file(), bad).unwrap();
        let fleet = resting.start_gateway().await;
        assert_eq!((fleet.metric(RESTORED, ENGINE).await, fleet.metric(BLOCKS, ENGINE).await), (0.0, 0.0));
        assert_eq!(folder.files(), ["engine-1.0.refused"]);
        assert_eq!(std::fs::read(folder.path().join("engine-1.0.refused")).unwrap(), bad);
        assert_eq!(fleet.health().await["status"], "ok");
        resting = fleet.stop_gateway().await;
        assert_eq!(folder.files(), ["engine-1.0.refused"], "a view that is empty is not written");
    }
    std::fs::write(folder.file(), &good).unwrap();
    let fleet = resting.start_gateway_with("block_size: 4}", "block_size: 8}").await;
    assert_eq!(fleet.metric(RESTORED, ENGINE).await, 0.0);
    assert_eq!(fleet.complete(tokens(1)).await.status, 200);
    let resting = fleet.stop_gateway().await;
    std::fs::write(folder.file(), &good).unwrap();
    let fleet = resting.start_gateway_with("block_size: 8}", "block_size: 4}").await;
    assert_eq!(fleet.metric(RESTORED, ENGINE).await, 30.0);
    is_exact(&fleet, 1..=3).await;
}

/// As after a crash: the last run left nothing, and an older file is put back by hand.
#[tokio::test]
async fn an_older_file_is_caught_up_with_or_given_up() {
    let (server, folder) = (NatsServer::jetstream(), Folder::new("older"));
    let resting = learnt(with(&folder, &server).start().await).await.stop_gateway().await;
    let older = std::fs::read(folder.file()).unwrap();
    let fleet = resting.start_gateway().await;
    fleet.complete(tokens(4)).await;
    fleet.until_metric(BLOCKS, ENGINE, 40.0).await;
    let resting = fleet.stop_gateway().await;
    std::fs::write(folder.file(), &older).unwrap();
    let fleet = resting.start_gateway().await;
    fleet.until_metric(BLOCKS, ENGINE, 40.0).await;
    assert_eq!(fleet.metric(RESTORED, ENGINE).await, 30.0);
    is_exact(&fleet, 1..=4).await;
    let resting = fleet.stop_gateway().await;
    std::fs::write(folder.file(), &older).unwrap();
    // What follows it is gone, and something newer is there.
    server.purge().await;
    resting.complete(tokens(5)).await;
    let fleet = resting.start_gateway().await;
    fleet.until_metric("warmpath_kv_event_gaps_total", ENGINE, 1.0).await;
    fleet.eventually("only what is new is known", async |fleet| fleet.metric(BLOCKS, ENGINE).await == 10.0).await;
    assert_eq!(counts(&fleet.complete(tokens(1)).await), (0, 36));
}

#[tokio::test]
async fn a_folder_that_cannot_be_used_is_told_and_keeps_nobody_from_serving() {
    let (server, folder) = (NatsServer::core(), Folder::new("file"));
    std::fs::write(folder.path(), "in the way").unwrap();
    let fleet = learnt(with(&folder, &server).start().await).await;
    let health = fleet.health().await;
    assert_eq!(health["status"], "degraded");
    let reason = health["degraded"][0].as_str().unwrap();
    assert!(reason.starts_with("`index.snapshots` cannot be used ("), "{reason}");
    fleet.eventually("it is ready", async |fleet| fleet.admin("/readyz").await.0 == 200).await;
    is_exact(&fleet, 1..=3).await;
    drop(fleet.stop_gateway().await);
    std::fs::remove_file(folder.path()).unwrap();
}
