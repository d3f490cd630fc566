//! The status page in a real browser: what it shows, and that its own policy lets it. `WARMPATH_TEST_BROWSER` names the
//! browser (`scripts/check.sh` sets it); without it there is nothing to look with.

use std::process::{Command, Stdio};

use crate::fleet::fleet;

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_shows_the_fleet_its_figures_and_why() {
    let Ok(browser) = std::env::var("WARMPATH_TEST_BROWSER") else {
        eprintln!("SKIPPED: WARMPATH_TEST_BROWSER names no browser");
        return;
    };
    let fleet = fleet().engines(3).start().await;
    for first in [97, 98, 97] {
        fleet.complete((first..first + 24).collect::<Vec<u32>>().into()).await;
    }
    fleet.operate("engine-3", "drain").await;
    let profile = std::env::temp_dir().join(format!("warmpath-page-{}", std::process::id()));
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
    for shown in [
        "engine-1",
        "2 of 3 targets up",
        "draining",
        "put back engine-3",
        "3 so far",
        "share each; ties end",
        "held by some worker",
    ] {
        assert!(document.contains(shown), "{shown} is not in {document}");
    }
    assert_eq!(document.matches("class=\"plot\"").count(), 4);
}
