//! `warmpath top` before a real router: as text, as JSON, and on a terminal.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::fleet::{TestFleet, fleet};
use crate::sdk::python;

async fn run(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().expect("it runs")).await.unwrap()
}

fn top(admin: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command.arg("top").args(args).args(["--admin", admin]).env_remove("WARMPATH_ADMIN_TOKEN");
    command
}

fn admin(fleet: &TestFleet) -> String {
    format!("http://{}", fleet.app.admin_address())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_and_a_document_show_the_fleet_and_why() {
    let fleet = fleet().engines(3).start().await;
    let prompt: Vec<u32> = (97..121).collect();
    let first = fleet.complete(prompt.clone().into()).await;
    fleet.until_metric("warmpath_index_blocks", &first.worker, 6.0).await;
    fleet.complete(prompt.into()).await;
    fleet.operate("engine-3", "drain").await;
    // Standard output is no terminal: the same without `--once`.
    for args in [&["--once"][..], &[]] {
        let output = run(top(&admin(&fleet), args)).await;
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(text.starts_with(concat!("warmpath ", env!("CARGO_PKG_VERSION"), "  ok")), "{text}");
        assert!(text.contains("\nengine-3: draining\n") && text.contains("\nWorkers: 2 of 3 up ─"), "{text}");
        let row = |id: &str| text.lines().find(|line| line.starts_with(&format!("{id} "))).unwrap_or_default();
        let words: Vec<&str> = row(&first.worker).split_whitespace().collect();
        assert_eq!((words[1], words[words.len() - 2], words[words.len() - 1]), ("active", "closed", "m"), "{text}");
        assert!(row("engine-3").contains("draining"), "{text}");
        assert!(text.contains("\nDecisions: 2 so far ") && text.contains(" 20/24 "), "{text}");
        assert!(text.contains(" share cheaper than engine-") && !text.contains('\u{1b}'), "{text}");
    }
    let output = run(top(&admin(&fleet), &["--json"])).await;
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["health"], fleet.health().await);
    assert_eq!(
        (told["workers"][2]["id"].as_str(), told["workers"][2]["condition"].as_str()),
        (Some("engine-3"), Some("draining"))
    );
    assert_eq!(
        (&told["decisions"]["last"], told["decisions"]["decisions"].as_array().map(Vec::len)),
        (&json!(2), Some(2))
    );
    assert_eq!(
        (told["history"]["points"].as_array().map(Vec::len), &told["config"]["values"]),
        (Some(120), &Value::Null)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_workers_are_printed_each() {
    // Nobody answers there: what matters is that they are listed.
    let mut many = fleet().engines(0);
    for _ in 0..100 {
        many = many.stranger(([127, 0, 0, 1], 9).into());
    }
    let fleet = many.start().await;
    let output = run(top(&admin(&fleet), &["--once"])).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("stranger-")).count(), 100, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_router_or_its_token_it_says_what_to_do() {
    let output = run(top("http://127.0.0.1:9", &["--once"])).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
    let expected = "warmpath: no router answers at http://127.0.0.1:9/: start one with `warmpath serve`, or name its admin \
                    port with --admin: ";
    assert!(said.starts_with(expected), "{said}");
    let fleet = fleet().listen("admin_token: secret").start().await;
    let output = run(top(&admin(&fleet), &["--once"])).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("401") && said.contains("set WARMPATH_ADMIN_TOKEN, or give --token"), "{said}");
    let mut command = top(&admin(&fleet), &["--once"]);
    command.env("WARMPATH_ADMIN_TOKEN", "secret");
    assert_eq!(run(command).await.status.code(), Some(0));
    assert_eq!(run(top("no address", &[])).await.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_is_given_back_whatever_ends_it() {
    let fleet = fleet().start().await;
    let mut command = Command::new(python());
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/top_terminal.py"))
        .args([env!("CARGO_BIN_EXE_warmpath"), &admin(&fleet)])
        .env_remove("WARMPATH_ADMIN_TOKEN");
    let output = run(command).await;
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "ok", "{told}");
    assert_eq!(fleet.health().await["off_duty"], json!(["engine-2: draining"]));
}
