//! `replay --live`, `calibrate` and `bridge` before servers that speak TLS.

use std::process::{Command, Output};
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::Value;
use tokio::time::timeout;
use warmpath::bridge::{Bridge, BridgeSettings};
use warmpath::config::BaseUrl;
use warmpath::events::nats::load::LoadReport;
use warmpath::link::TlsFiles;
use warmpath::shutdown::Tasks;

use crate::bridge::Played;
use crate::calibrate;
use crate::fleet::fleet;
use crate::nats::NatsServer;
use crate::sidecar::bridge_settings;
use crate::tls::{Certificates, tls_before};

const TRACE: &str = "generate:multi-turn?sessions=4&turns=3&system=4&user=2&answer=1&block=4";

/// What the command says. The system trusts nobody but the stranger's authority.
async fn run(files: &Certificates, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command.args(args).env("SSL_CERT_FILE", files.path("other.pem")).env_remove("SSL_CERT_DIR");
    tokio::task::spawn_blocking(move || command.output().expect("it runs")).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_goes_to_a_gateway_over_tls() {
    let (files, tasks) = (Certificates::new("replay"), Tasks::new());
    let fleet = fleet().engines(2).start().await;
    let gateway = tls_before(fleet.app.data_address(), &files, "server", true, &tasks).await;
    let (url, path) = (format!("https://{gateway}"), |name: &str| files.path(name).display().to_string());
    let (ca, certificate, key) = (path("ca.pem"), path("client.pem"), path("client.key"));
    let replay = ["replay", "--trace", TRACE, "--vocabulary", "250", "--speed", "100", "--requests", "11"];
    let live = [&replay[..], &["--model", "m", "--json", "--live", &url]].concat();
    let said = run(&files, &[&live[..], &["--ca", &ca, "--cert", &certificate, "--key", &key]].concat()).await;
    let complaint = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{complaint}");
    let told: Value = serde_json::from_slice(&said.stdout).unwrap();
    let row = &told["rows"][0];
    assert_eq!((row["requests"].as_u64(), row["completed"].as_u64()), (Some(11), Some(11)), "{row}");
    for (more, remedy) in [
        (
            &["--cert", &*certificate, "--key", &*key][..],
            "is of no authority that this system trusts: name its authority with --ca FILE",
        ),
        // Whether it hears the reason or only that the server hangs up is a race.
        (&["--ca", &*ca], "name yours with --cert and --key"),
    ] {
        let said = run(&files, &[&live[..], more].concat()).await;
        let complaint = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.code() == Some(1) && complaint.contains(remedy), "{complaint}");
    }
    let alone = run(&files, &[&live[..], &["--cert", &certificate]].concat()).await;
    assert_eq!(alone.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_behind_tls_is_measured() {
    let (files, tasks) = (Certificates::new("calibrate"), Tasks::new());
    let engine = calibrate::engine(&tasks).await;
    let engine = tls_before(engine.address, &files, "server", false, &tasks).await;
    let (url, ca) = (format!("https://{engine}/"), files.path("ca.pem").display().to_string());
    let few = ["--rounds", "1", "--prefill-tokens", "2048", "--context", "8", "--json"];
    let args = [&["calibrate", "--url", &url][..], &few].concat();
    let said = run(&files, &[&args[..], &["--ca", &ca]].concat()).await;
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let told: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!((told["prefill"]["tokens"].as_u64(), told["decode"]["batch"].as_u64()), (Some(2048), Some(1)), "{told}");
    let said = run(&files, &args).await;
    let complaint = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(1));
    assert!(complaint.contains("is of no authority that this system trusts"), "{complaint}");
}

#[tokio::test]
async fn a_bridge_asks_its_engine_over_tls_and_shows_who_it_is() {
    let (files, tasks, server) = (Certificates::new("bridge"), Tasks::new(), NatsServer::core());
    let (played, feed) = Played::start().await;
    let engine = tls_before(played.address, &files, "server", true, &tasks).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut reports = client.subscribe("warmpath.load.w").await.unwrap();
    client.flush().await.unwrap();
    let settings = BridgeSettings {
        engine: BaseUrl::try_from(format!("https://{engine}")).unwrap(),
        engine_tls: TlsFiles {
            authorities: Some(files.path("ca.pem")),
            identity: Some((files.path("client.pem"), files.path("client.key"))),
        },
        ..bridge_settings(played.address, "m", "w", &server.url())
    };
    let absent = TlsFiles { authorities: Some(files.path("absent.pem")), identity: None };
    let refused = Bridge::start(BridgeSettings { engine_tls: absent, ..settings.clone() }, Vec::new()).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("absent.pem")));
    let bridge = Bridge::start(settings, vec![feed]).await.unwrap();
    let report = timeout(Duration::from_secs(10), reports.next()).await.unwrap().unwrap();
    assert_eq!(LoadReport::read("w", &report.payload).unwrap().worker, "w");
    bridge.stop(Duration::from_secs(1)).await;
}
