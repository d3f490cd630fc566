//! How the gateway learns what engines cache, over a real NATS server that comes and goes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fleet::{TestFleet, fleet};
use crate::link::Link;
use crate::nats::NatsServer;

/// `count` tokens that no other `family` has.
fn tokens(family: u32, count: u32) -> Value {
    (family * 1000..family * 1000 + count).collect::<Vec<_>>().into()
}

async fn blocks(fleet: &TestFleet) -> f64 {
    fleet.metric("warmpath_index_blocks", "engine-1").await + fleet.metric("warmpath_index_blocks", "engine-2").await
}

async fn until_blocks(fleet: &TestFleet, count: f64) {
    fleet.eventually(&format!("{count} blocks are known"), async |fleet| blocks(fleet).await == count).await;
}

async fn until_degraded(fleet: &TestFleet) {
    fleet.eventually("it is degraded", async |fleet| fleet.health().await["status"] == "degraded").await;
}

async fn until_ok(fleet: &TestFleet) {
    fleet.eventually("all is well", async |fleet| fleet.health().await["status"] == "ok").await;
}

/// Sends a prompt of a new family, and again until it is predicted as it is reported.
async fn learns(fleet: &TestFleet, family: u32) {
    let first = fleet.complete(tokens(family, 40)).await;
    assert_eq!((first.status, first.predicted, first.cached()), (200, Some(0), 0));
    fleet
        .eventually("the prompt is predicted where it was answered", async |fleet| {
            let again = fleet.complete(tokens(family, 40)).await;
            assert!(again.predicted <= Some(36) && again.cached() <= 36, "{again:?}");
            again.worker == first.worker && (again.predicted, again.cached()) == (Some(36), 36)
        })
        .await;
}

/// What comes while the view is compared with the stream may come both ways. Nothing else comes twice.
async fn nothing_is_read_twice(fleet: &TestFleet) {
    let [duplicate, replayed] =
        ["duplicate", "replayed"].map(async |outcome| fleet.metric("warmpath_kv_events_total", outcome).await);
    let (duplicate, replayed) = (duplicate.await, replayed.await);
    assert!(duplicate <= replayed, "{duplicate} of which {replayed} were asked for");
}

/// R-001 over a real bus.
async fn a_shared_prefix_goes_to_its_holder(server: &NatsServer) {
    let fleet = fleet().nats(server.url()).start().await;
    for family in 1..=4 {
        let known = blocks(&fleet).await;
        let first = fleet.complete(tokens(family, 40)).await;
        assert_eq!((first.status, first.predicted, first.cached()), (200, Some(0), 0));
        until_blocks(&fleet, known + 10.0).await;
        for _ in 0..5 {
            let again = fleet.complete(tokens(family, 38)).await;
            assert_eq!((&again.worker, again.predicted, again.cached()), (&first.worker, Some(36), 36));
        }
    }
    let unexpected = ["over", "under"].map(async |result| fleet.metric("warmpath_predictions_total", result).await);
    for count in unexpected {
        assert_eq!(count.await, 0.0);
    }
    assert_eq!(fleet.metric("warmpath_kv_event_gaps_total", "").await, 0.0);
    assert_eq!(fleet.metric("warmpath_event_bus_up", "").await, 1.0);
}

#[tokio::test]
async fn over_core_nats_a_shared_prefix_goes_to_its_holder() {
    a_shared_prefix_goes_to_its_holder(&NatsServer::core()).await;
}

#[tokio::test]
async fn over_jetstream_a_shared_prefix_goes_to_its_holder() {
    a_shared_prefix_goes_to_its_holder(&NatsServer::jetstream()).await;
}

#[tokio::test]
async fn with_jetstream_a_router_that_starts_late_is_warm() {
    let server = NatsServer::jetstream();
    let mut fleet = fleet().nats(server.url()).start().await;
    let first = fleet.complete(tokens(1, 40)).await;
    until_blocks(&fleet, 10.0).await;
    fleet.restart_gateway().await;
    until_blocks(&fleet, 10.0).await;
    let again = fleet.complete(tokens(1, 40)).await;
    assert_eq!((&again.worker, again.predicted, again.cached()), (&first.worker, Some(36), 36));
}

#[tokio::test]
async fn without_jetstream_a_router_that_starts_late_is_cold_and_learns() {
    let server = NatsServer::core();
    let mut fleet = fleet().engines(1).nats(server.url()).start().await;
    fleet.complete(tokens(1, 40)).await;
    fleet.until_metric("warmpath_index_blocks", "engine-1", 10.0).await;
    fleet.restart_gateway().await;
    let again = fleet.complete(tokens(1, 40)).await;
    assert_eq!((again.predicted, again.cached()), (Some(0), 36));
    fleet.complete(tokens(2, 40)).await;
    fleet.until_metric("warmpath_index_blocks", "engine-1", 10.0).await;
    let again = fleet.complete(tokens(2, 40)).await;
    assert_eq!((again.predicted, again.cached()), (Some(36), 36));
}

/// R19. The figures to reach are a second and half a second; `scripts/chaos.sh` prints them.
#[tokio::test]
async fn r19_a_bus_that_is_down_at_the_start_is_not_waited_for() {
    let mut server = NatsServer::down(true);
    let begun = Instant::now();
    let fleet = fleet().nats(server.url()).start_at_once().await;
    fleet.eventually("it is ready", async |fleet| fleet.admin("/readyz").await.0 == 200).await;
    let ready = begun.elapsed();
    assert!(ready < Duration::from_secs(5), "{ready:?}");
    let answer = fleet.complete(tokens(1, 40)).await;
    assert_eq!((answer.status, answer.predicted), (200, Some(0)));
    let health = fleet.health().await;
    assert_eq!(health["status"], "degraded");
    let reason = health["degraded"][0].as_str().unwrap();
    assert!(reason.starts_with("the event bus is not connected ("), "{reason}");
    assert_eq!(fleet.metric("warmpath_event_bus_up", "").await, 0.0);
    server.up();
    let up = Instant::now();
    until_ok(&fleet).await;
    let connected = up.elapsed();
    assert!(connected < Duration::from_secs(3), "{connected:?}");
    println!("\nR19: ready after {ready:?} without the bus; connected {connected:?} after it was up");
    learns(&fleet, 2).await;
}

/// R20, with what was published kept.
#[tokio::test]
async fn r20_a_bus_that_is_killed_and_comes_back_heals_the_index() {
    let mut server = NatsServer::jetstream();
    let fleet = fleet().engines(1).nats(server.url()).start().await;
    learns(&fleet, 1).await;
    server.kill();
    until_degraded(&fleet).await;
    for family in 2..6 {
        let answer = fleet.complete(tokens(family, 40)).await;
        assert_eq!((answer.status, answer.predicted), (200, Some(0)));
    }
    // What was known is still known.
    let again = fleet.complete(tokens(1, 40)).await;
    assert_eq!((again.predicted, again.cached()), (Some(36), 36));
    server.up();
    let up = Instant::now();
    until_ok(&fleet).await;
    learns(&fleet, 7).await;
    assert!(up.elapsed() < Duration::from_secs(4), "{:?}", up.elapsed());
    for family in [1, 7] {
        let again = fleet.complete(tokens(family, 40)).await;
        assert!(again.predicted.unwrap() <= again.cached(), "{again:?}");
    }
}

#[tokio::test]
async fn a_bus_that_comes_back_without_its_stream_is_followed_again() {
    let mut server = NatsServer::jetstream();
    let fleet = fleet().engines(1).nats(server.url()).start().await;
    for family in 1..4 {
        learns(&fleet, family).await;
    }
    server.kill();
    until_degraded(&fleet).await;
    server.forget();
    server.up();
    until_ok(&fleet).await;
    learns(&fleet, 9).await;
}

/// R23: nothing is replayed by core NATS, so the view starts anew, and promises nothing that it does not know.
#[tokio::test]
async fn r23_what_core_nats_loses_empties_the_view() {
    let server = NatsServer::core();
    let mut link = Link::to(&server.url()).await;
    let fleet = fleet().engines(1).nats(server.url()).gateway_nats(link.url()).start().await;
    learns(&fleet, 1).await;
    let gaps = fleet.metric("warmpath_kv_event_gaps_total", "engine-1").await;
    link.cut().await;
    until_degraded(&fleet).await;
    for family in 2..5 {
        assert_eq!(fleet.complete(tokens(family, 40)).await.status, 200);
    }
    link.mend().await;
    until_ok(&fleet).await;
    fleet.complete(tokens(5, 40)).await;
    fleet.until_metric("warmpath_kv_event_gaps_total", "engine-1", gaps + 1.0).await;
    for family in 1..6 {
        let again = fleet.complete(tokens(family, 40)).await;
        assert!(again.predicted.unwrap() <= again.cached(), "{again:?}");
    }
    learns(&fleet, 6).await;
    assert_eq!(fleet.metric("warmpath_kv_event_gaps_total", "engine-1").await, gaps + 1.0);
    assert_eq!(fleet.metric("warmpath_predictions_total", "over").await, 0.0);
}

#[tokio::test]
async fn with_jetstream_a_cut_link_loses_nothing() {
    let server = NatsServer::jetstream();
    let mut link = Link::to(&server.url()).await;
    let fleet = fleet().engines(1).nats(server.url()).gateway_nats(link.url()).start().await;
    learns(&fleet, 1).await;
    link.cut().await;
    until_degraded(&fleet).await;
    for family in 2..5 {
        assert_eq!(fleet.complete(tokens(family, 40)).await.predicted, Some(0));
    }
    let known = blocks(&fleet).await;
    link.mend().await;
    fleet.eventually("all is known", async |fleet| blocks(fleet).await >= known + 30.0).await;
    for family in 1..5 {
        let again = fleet.complete(tokens(family, 40)).await;
        assert_eq!((again.predicted, again.cached()), (Some(36), 36));
    }
    assert_eq!(fleet.metric("warmpath_kv_event_gaps_total", "").await, 0.0);
    nothing_is_read_twice(&fleet).await;
}

/// A way back that breaks at any step of it does not make the router read again what it has read.
#[tokio::test]
async fn with_jetstream_a_way_back_that_breaks_anywhere_costs_no_second_reading() {
    let server = NatsServer::jetstream();
    let mut link = Link::to(&server.url()).await;
    let fleet = fleet().engines(1).nats(server.url()).gateway_nats(link.url()).start().await;
    for family in 1..4 {
        learns(&fleet, family).await;
    }
    for bytes in (400..4_600).step_by(200) {
        link.cut().await;
        until_degraded(&fleet).await;
        link.mend_for(bytes).await;
        until_ok(&fleet).await;
    }
    learns(&fleet, 4).await;
    assert_eq!(fleet.metric("warmpath_kv_event_gaps_total", "").await, 0.0);
    nothing_is_read_twice(&fleet).await;
}

/// R24.
#[tokio::test]
async fn r24_an_engine_that_restarts_empties_its_view() {
    let server = NatsServer::jetstream();
    let mut fleet = fleet().engines(1).nats(server.url()).start().await;
    for family in 1..4 {
        learns(&fleet, family).await;
    }
    fleet.restart_engines().await;
    // Its first word is about another prompt. Retried: the gateway may still hold a dead connection.
    fleet.eventually("it answers", async |fleet| fleet.complete(tokens(9, 40)).await.status == 200).await;
    fleet.until_metric("warmpath_kv_event_restarts_total", "engine-1", 1.0).await;
    for family in 1..4 {
        let again = fleet.complete(tokens(family, 40)).await;
        assert_eq!((again.status, again.predicted, again.cached()), (200, Some(0), 0));
    }
    learns(&fleet, 5).await;
    fleet.restart_gateway().await;
    // A replay of both lives ends where the second does.
    until_blocks(&fleet, blocks(&fleet).await.max(50.0)).await;
    let again = fleet.complete(tokens(5, 40)).await;
    assert_eq!((again.predicted, again.cached()), (Some(36), 36));
}

#[tokio::test]
async fn a_worker_without_events_is_routed_by_load() {
    let server = NatsServer::core();
    let engine = fleet().engines(1).start().await;
    let fleet = fleet().engines(0).stranger(engine.engines[0]).nats(server.url()).start().await;
    for _ in 0..3 {
        let answer = fleet.complete(tokens(1, 40)).await;
        assert_eq!((answer.status, answer.predicted, answer.worker.as_str()), (200, Some(0), "stranger-1"));
    }
    assert_eq!(fleet.metric("warmpath_index_blocks", "stranger-1").await, 0.0);
}

#[tokio::test]
async fn names_with_slashes_dots_and_spaces_work_from_end_to_end() {
    for server in [NatsServer::core(), NatsServer::jetstream()] {
        let fleet = fleet().names("Qwen/Qwen3-0.6B *v1.>", "gpu node.7/a").nats(server.url()).start().await;
        let first = fleet.complete(tokens(1, 40)).await;
        assert_eq!(first.status, 200, "{first:?}");
        fleet.until_metric("warmpath_index_blocks", &first.worker, 10.0).await;
        let again = fleet.complete(tokens(1, 40)).await;
        assert_eq!((&again.worker, again.predicted, again.cached()), (&first.worker, Some(36), 36));
    }
}

#[tokio::test]
async fn a_guarded_bus_lets_in_who_has_the_password() {
    let server = NatsServer::guarded();
    let engines = server.url().replace("nats://", "nats://engine:engine@");
    let fleet = fleet().nats(engines).gateway_nats(server.url()).credentials("user: warm, password: path");
    let fleet = fleet.start().await;
    learns(&fleet, 1).await;
}

#[tokio::test]
async fn wrong_credentials_leave_the_gateway_degraded_and_serving() {
    let server = NatsServer::guarded();
    let fleet = fleet().nats(server.url()).credentials("user: warm, password: cold").start_at_once().await;
    let said = async |fleet: &TestFleet| fleet.health().await["degraded"].to_string();
    fleet.eventually("it says why", async |fleet| said(fleet).await.contains("authorization violation")).await;
    let answer = fleet.complete(tokens(1, 40)).await;
    assert_eq!((answer.status, answer.predicted), (200, Some(0)));
    let health = fleet.health().await;
    assert_eq!(health["status"], json!("degraded"));
    assert!(!health.to_string().contains("cold"), "{health}");
    fleet.eventually("it is ready", async |fleet| fleet.admin("/readyz").await.0 == 200).await;
}
