//! The doctor where events come over NATS, or from engines that connect to the router.

use warmpath::config::{Config, ZmqEndpoint};
use warmpath::doctor::{Check, Report};
use warmpath::events::publish::Bus;
use warmpath::events::publish::zmq::{ZmqOutlet, ZmqPublisher};
use warmpath::shutdown::Tasks;

use crate::doctor::{HASTY, MODEL, PATIENT, anywhere, examined, mock, nowhere, only_fault, skipped};
use crate::fleet::fleet;
use crate::nats::NatsServer;
use crate::zmq::outlet;

#[tokio::test]
async fn engines_that_connect_to_the_router_are_heard_unless_the_router_is_there() {
    let tasks = Tasks::new();
    let place: ZmqEndpoint = format!("tcp://{}", nowhere()).parse().unwrap();
    let outlet = ZmqOutlet { bind: None, connect: Some(place.clone()), topic: "kv@e@m".to_owned(), ..outlet() };
    let sockets = ZmqPublisher::start(outlet, &tasks).await.unwrap();
    let engine = mock(anywhere(), Bus::Zmq(sockets.clone()), &tasks).await;
    let replay = sockets.replay.clone().unwrap();
    let text = format!(
        "models: [{MODEL}]\nevents: {{zmq: {{bind: '{place}'}}}}\n\
         workers: [{{id: e, url: 'http://{engine}', model: m, events: zmq, zmq_replay: '{replay}'}}]\n"
    );
    let config = Config::parse("a test", text).unwrap();
    let report = examined(&config, PATIENT).await;
    assert_eq!((report.ok, report.failed), (8, 0), "{}", report.table(false));

    let ZmqEndpoint::Tcp { port, .. } = place else { panic!("a TCP endpoint") };
    let _router = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let report = examined(&config, HASTY).await;
    assert_eq!(skipped(&report), [Check::Events, Check::Replay, Check::Prediction], "{}", report.table(false));
    assert!(report.table(false).contains("engines cannot connect here"), "{}", report.table(false));
}

/// A fleet's configuration without the alias that only its gateway knows.
fn plain(yaml: &str) -> Config {
    Config::parse("a test", yaml.replace("aliases: [alias/of-m], ", "")).expect("the configuration is good")
}

/// Beside a running gateway, which does not mind.
#[tokio::test]
async fn over_nats_all_is_well_with_a_stream_and_with_a_bridge() {
    let server = NatsServer::jetstream();
    let gateway = fleet().nats(server.url()).start().await;
    let config = plain(&gateway.yaml);
    let report = examined(&config, PATIENT).await;
    assert_eq!((report.workers.len(), report.ok, report.failed), (2, 16, 0), "{}", report.table(false));

    let core = NatsServer::core();
    let gateway = fleet().nats(core.url()).bridged().start().await;
    let config = plain(&gateway.yaml);
    let report = examined(&config, PATIENT).await;
    assert_eq!((report.workers.len(), report.ok, report.failed), (2, 16, 0), "{}", report.table(false));
    assert!(report.table(false).contains("the server keeps no stream; the bridge sent a snapshot"));
    // A bridge of another seed than the routers'.
    let config = plain(&format!("{}index: {{seed: 9}}\n", gateway.yaml));
    let report = examined(&config, PATIENT).await;
    let replays = |report: &Report| {
        report
            .workers
            .iter()
            .flat_map(|it| &it.checks)
            .filter(|it| it.check == Check::Replay)
            .map(|it| it.has_failed())
            .collect::<Vec<_>>()
    };
    assert_eq!(replays(&report), [true; 2], "{}", report.table(false));
    assert!(report.table(false).contains("--index-seed 9"), "{}", report.table(false));
}

#[tokio::test]
async fn over_nats_a_missing_stream_bridge_or_server_is_named() {
    let mut core = NatsServer::core();
    let gateway = fleet().engines(1).nats(core.url()).start().await;
    let config = plain(&gateway.yaml);
    let report = examined(&config, PATIENT).await;
    let (finding, remedy) = only_fault(&report, Check::Replay);
    assert_eq!(finding, "the server keeps no stream, and no bridge sends snapshots");
    assert!(remedy.starts_with("start nats-server with -js"), "{remedy}");

    let silent = fleet().engines(1).nats(core.url()).silent().start().await;
    let deaf = plain(&silent.yaml);
    let (finding, remedy) = only_fault(&examined(&deaf, HASTY).await, Check::Events);
    assert_eq!(finding, "connected, but nothing came within 700ms of an answered prompt");
    assert!(remedy.starts_with("run `warmpath bridge --engine http://127.0.0.1:"), "{remedy}");

    core.kill();
    let (finding, remedy) = only_fault(&examined(&config, HASTY).await, Check::Events);
    assert!(finding.starts_with("not connected ("), "{finding}");
    assert!(remedy.starts_with("start the NATS server, or correct events.nats: "), "{remedy}");
}
