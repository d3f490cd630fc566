//! The status page in a real browser: what it shows, and that its own policy lets it. `WARMPATH_TEST_BROWSER` names the
//! browser (`scripts/check.sh` sets it); without it there is nothing to look with.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::fleet::{TestFleet, fleet, gateway};
use crate::nats::NatsServer;
use crate::sdk::python;

/// What a browser makes of the page; none without a browser. It has nothing to complain of.
async fn seen(fleet: &TestFleet, name: &str) -> Option<String> {
    let Ok(browser) = std::env::var("WARMPATH_TEST_BROWSER") else {
        eprintln!("SKIPPED: WARMPATH_TEST_BROWSER names no browser");
        return None;
    };
    let profile = std::env::temp_dir().join(format!("warmpath-page-{}-{name}", std::process::id()));
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--enable-logging=stderr"])
        .args(["--timeout=60000", "--virtual-time-budget=6000", "--window-size=1300,1000"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("http://{}/", fleet.app.admin_address()))
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().expect("the browser runs")).await.unwrap();
    let _ = std::fs::remove_dir_all(&profile);
    let (document, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let of_the_page: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(of_the_page.is_empty(), "{of_the_page:?}");
    Some(document.into_owned())
}

/// The rows of a table's body.
fn rows(document: &str, body: &str) -> Vec<String> {
    let (_, from) = document.split_once(&format!("<tbody id=\"{body}\">")).expect("the body is there");
    let (inside, _) = from.split_once("</tbody>").expect("it ends");
    inside.split("<tr>").skip(1).map(text).collect()
}

/// What stands between the marks, with `|` for them.
fn text(markup: &str) -> String {
    let words = markup.split('<').filter_map(|part| part.split_once('>')).map(|(_, words)| words);
    words.filter(|words| !words.is_empty()).collect::<Vec<_>>().join("|")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_shows_the_fleet_its_figures_and_why() {
    let fleet = fleet().engines(3).start().await;
    for first in [97, 98, 97] {
        fleet.complete((first..first + 24).collect::<Vec<u32>>().into()).await;
    }
    fleet.operate("engine-3", "drain").await;
    let Some(document) = seen(&fleet, "fleet").await else { return };
    for shown in [
        "engine-1",
        "2 of 3 targets up",
        "draining",
        "put back engine-3",
        "3 so far",
        "share each; ties end",
        "held by some worker",
        "3 of 3 connected, ",
        "Routers hear of each other over NATS only; none is configured here.",
    ] {
        assert!(document.contains(shown), "{shown} is not in {document}");
    }
    assert_eq!(document.matches("class=\"plot\"").count(), 4);
    let sources = rows(&document, "sources");
    assert_eq!(sources.len(), 3, "{sources:?}");
    assert!(sources[0].starts_with("engine-1|in process|connected|"), "{sources:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_shows_the_bus_each_source_and_the_other_router() {
    let server = NatsServer::jetstream();
    let nowhere = "events: zmq, zmq_endpoint: 'tcp://127.0.0.1:9'";
    let fleet = fleet().nats(server.url()).stranger_with(([127, 0, 0, 1], 9).into(), nowhere).start_at_once().await;
    let other = gateway(&fleet.yaml, None).await;
    let settled = async |fleet: &TestFleet| {
        let told = fleet.admin("/api/v1/bus").await.1;
        told.matches("\"connected\"").count() == 2 && told.contains("\"down\"") && told.contains("\"router\"")
    };
    fleet.eventually("sources and routers are known", settled).await;
    let Some(document) = seen(&fleet, "bus").await else { return };
    let sources = rows(&document, "sources");
    assert_eq!(sources.len(), 3, "{sources:?}");
    assert!(sources[0].starts_with("stranger-1|ZMQ|down|") && sources[0].contains("refused"), "{sources:?}");
    assert!(sources[1].starts_with("engine-1|JetStream|connected|"), "{sources:?}");
    assert!(sources[2].starts_with("engine-2|JetStream|connected|") && sources[2].contains("|0|"), "{sources:?}");
    let at = server.url().replace("nats://", "");
    for shown in
        ["2 of 3 connected, ", "1 heard, 0 requests in flight there", "the same", &format!("JetStream {at} up ")]
    {
        assert!(document.contains(shown), "{shown} is not in {document}");
    }
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_shows_a_hundred_workers_and_their_sources() {
    let mut many = fleet().engines(0);
    for port in 0..100 {
        let zmq = format!("events: zmq, zmq_endpoint: 'tcp://127.0.0.1:{}'", port + 1);
        many = many.stranger_with(([127, 0, 0, 1], 9).into(), &zmq);
    }
    let fleet = many.start_at_once().await;
    let all_down = async |fleet: &TestFleet| fleet.admin("/api/v1/bus").await.1.matches("\"down\"").count() == 100;
    fleet.eventually("all were tried", all_down).await;
    let Some(document) = seen(&fleet, "many").await else { return };
    assert_eq!((rows(&document, "workers").len(), rows(&document, "sources").len()), (100, 100));
    assert!(document.contains("0 of 100 connected, 0.0 events/s, 0 gaps"), "{document}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_drained_and_put_back_on_the_page_by_keyboard() {
    let Ok(browser) = std::env::var("WARMPATH_TEST_BROWSER") else {
        eprintln!("SKIPPED: WARMPATH_TEST_BROWSER names no browser");
        return;
    };
    let fleet = fleet().engines(3).start().await;
    let profile = std::env::temp_dir().join(format!("warmpath-page-{}-keys", std::process::id()));
    let mut command = Command::new(python());
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/page_keys.py"))
        .args([browser, profile.display().to_string(), format!("http://{}/", fleet.app.admin_address())])
        .arg("engine-2")
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().expect("python runs")).await.unwrap();
    let _ = std::fs::remove_dir_all(&profile);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let told: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let states: Vec<&Value> = told.iter().map(|line| &line["state"]).collect();
    assert_eq!(states, [&json!("draining"), &json!("active")]);
    assert!(told[0]["said"].as_str().unwrap().ends_with(" drain engine-2: draining"), "{said}");
    assert_eq!(fleet.health().await["off_duty"], json!([]));
}
