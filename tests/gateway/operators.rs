//! `warmpath worker`: what operators do from the command line.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};

use crate::fleet::{TestFleet, fleet};
use crate::scripted::{Scripted, Step, event, head, piece};

/// What `warmpath worker` does with this router: its exit code, and what it says on both outputs.
async fn worker(fleet: &TestFleet, args: &[&str]) -> (i32, String, String) {
    worker_at(fleet.app.admin_address(), args).await
}

async fn worker_at(admin: SocketAddr, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command.arg("worker").args(args).arg("--admin").arg(format!("http://{admin}"));
    command.env_remove("WARMPATH_ADMIN_TOKEN");
    let output = tokio::task::spawn_blocking(move || command.output().expect("the binary runs")).await.unwrap();
    let Output { status, stdout, stderr } = output;
    let text = |said: Vec<u8>| String::from_utf8(said).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

async fn condition(fleet: &TestFleet, place: usize) -> Value {
    let workers: Value = serde_json::from_str(&fleet.admin("/api/v1/workers").await.1).unwrap();
    workers["workers"][place]["condition"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_taken_out_and_in_again() {
    let fleet = fleet().engines(2).start().await;
    for (args, said, becomes) in [
        (&["drain", "engine-1"][..], "engine-1: draining\n", "draining"),
        (&["undrain", "engine-1"], "engine-1: active\n", "active"),
        (&["eject", "engine-1"], "engine-1: ejected\n", "ejected"),
        (&["reset-breaker", "engine-1"], "engine-1: closed\n", "ejected"),
        (&["reset-cache", "engine-1"], "engine-1: cache emptied, it is ejected\n", "ejected"),
    ] {
        assert_eq!(worker(&fleet, args).await, (0, said.to_owned(), String::new()), "{args:?}");
        assert_eq!(condition(&fleet, 0).await, becomes, "{args:?}");
    }
    // The second time it is so already.
    for (action, state) in [("undrain", "active"), ("drain", "draining"), ("eject", "ejected")] {
        for _ in 0..2 {
            let (code, said, error) = worker(&fleet, &[action, "engine-1", "--json"]).await;
            assert_eq!((code, error.as_str()), (0, ""), "{action}");
            assert_eq!(serde_json::from_str::<Value>(&said).unwrap(), json!({"worker": "engine-1", "state": state}));
        }
    }
}

/// What the router says is what is told, and the exit code says that nothing was done.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_told_in_the_routers_words() {
    let fleet = fleet().engines(1).start().await;
    for (args, message) in [
        (&["eject", "nobody"][..], "404 Not Found: there is no worker `nobody`"),
        (&["drain", "nobody", "--wait"], "404 Not Found: there is no worker `nobody`"),
        (&["drain", "a/b?c", "--json"], "404 Not Found: there is no worker `a/b?c`"),
    ] {
        let (code, said, error) = worker(&fleet, args).await;
        assert_eq!((code, said.as_str()), (1, ""), "{args:?}");
        assert!(error.contains(message), "{args:?}: {error}");
    }
    for args in [&["drain", "engine-1", "--wait=long"][..], &["drain"], &["sell", "engine-1"]] {
        assert_eq!(worker(&fleet, args).await.0, 2, "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_the_port_for_requests_is_told_of_the_other() {
    let fleet = fleet().engines(1).start().await;
    let (code, said, error) = worker_at(fleet.app.data_address(), &["drain", "engine-1"]).await;
    assert_eq!((code, said.as_str()), (1, ""));
    assert!(error.contains("404 Not Found: unknown path `/api/v1/workers/engine-1/drain`"), "{error}");
    assert!(error.contains("(requests are served there: name the admin port with --admin)"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_with_a_token_asks_for_it() {
    let fleet = fleet().engines(1).listen("admin_token: secret").start().await;
    let (code, _, error) = worker(&fleet, &["drain", "engine-1"]).await;
    assert!(code == 1 && error.contains("set WARMPATH_ADMIN_TOKEN"), "{error}");
    assert_eq!(worker(&fleet, &["drain", "engine-1", "--token", "secret"]).await.0, 0);
}

/// It comes back when nothing is in flight any more, or says what still is; and whoever gave up may ask again.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_what_is_in_flight() {
    let endless = vec![head(), piece(event("a")), Step::Hold];
    let engine = Scripted::start(endless).await;
    let fleet = fleet().engines(0).stranger(engine.address).start().await;
    let body = json!({"model": "m", "prompt": "x", "stream": true});
    let mut stream = fleet.client.post(fleet.url("/v1/completions")).json(&body).send().await.unwrap();
    assert!(stream.chunk().await.unwrap().is_some());

    let (code, said, error) = worker(&fleet, &["drain", "stranger-1", "--wait=300ms"]).await;
    assert_eq!((code, said.as_str()), (1, ""));
    assert!(error.contains("stranger-1 still has 1 in flight after 300ms: it is draining"), "{error}");

    let leaving = async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        drop(stream);
    };
    let ((code, said, error), ()) = tokio::join!(worker(&fleet, &["drain", "stranger-1", "--wait", "--json"]), leaving);
    assert_eq!((code, error.as_str()), (0, ""));
    let told: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(told, json!({"worker": "stranger-1", "state": "draining", "in_flight": 0}));
    assert_eq!(worker(&fleet, &["drain", "stranger-1", "--wait"]).await.1, "stranger-1: draining, 0 in flight\n");
}

/// Whoever restarted its engine then would cut them.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_is_ended_or_whose_worker_leaves_is_not_done() {
    let engine = Scripted::start(vec![head(), piece(event("a")), Step::Hold]).await;
    let fleet = fleet().engines(0).stranger(engine.address).start().await;
    let file = fleet.following("leaves").await;
    let body = json!({"model": "m", "prompt": "x", "stream": true});
    let mut stream = fleet.client.post(fleet.url("/v1/completions")).json(&body).send().await.unwrap();
    assert!(stream.chunk().await.unwrap().is_some());
    let drain = || worker(&fleet, &["drain", "stranger-1", "--wait=30s"]);
    let ending = async {
        fleet.eventually("it drains", async |fleet| condition(fleet, 0).await == "draining").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        fleet.operate("stranger-1", "undrain").await
    };
    let ((code, said, error), _) = tokio::join!(drain(), ending);
    assert_eq!((code, said.as_str()), (1, ""));
    assert!(error.contains("stranger-1 is active and on duty again, with 1 in flight"), "{error}");
    let leaving = async {
        fleet.eventually("it drains", async |fleet| condition(fleet, 0).await == "draining").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        file.write(fleet.yaml.replace("stranger-1", "stranger-9").as_bytes());
        fleet.reload().await
    };
    let ((code, said, error), _) = tokio::join!(drain(), leaving);
    assert_eq!((code, said.as_str()), (1, ""));
    assert!(error.contains("stranger-1 has left the list; 1 were in flight when last seen"), "{error}");
}
