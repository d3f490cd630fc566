//! A configuration that is mounted, as Kubernetes does it.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::{Value, json};
use tokio::sync::RwLockReadGuard;

use crate::fleet::{TestFleet, fleet};
use crate::reload::SIGNALS;

/// A folder as the kubelet mounts a ConfigMap: the file is a link through `..data`, itself a link to a folder with a time
/// stamp, and a change is a new folder to which `..data` is moved at once.
struct Mounted {
    folder: PathBuf,
    stamp: u32,
    _undisturbed: RwLockReadGuard<'static, ()>,
}

impl Mounted {
    async fn new(name: &str, text: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("warmpath-mount-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut mounted = Self { folder, stamp: 0, _undisturbed: SIGNALS.read().await };
        mounted.swap(text);
        symlink("..data/warmpath.yaml", mounted.file()).unwrap();
        mounted
    }

    fn file(&self) -> PathBuf {
        self.folder.join("warmpath.yaml")
    }

    fn stamped(&self) -> String {
        format!("..2026_11_22_01_02_{:02}.123456789", self.stamp)
    }

    /// What the kubelet does, in its order: folder, files, `..data_tmp`, rename, and the old folder goes.
    fn swap(&mut self, text: &str) {
        let old = self.folder.join(self.stamped());
        self.stamp += 1;
        let new = self.folder.join(self.stamped());
        std::fs::create_dir(&new).unwrap();
        std::fs::write(new.join("warmpath.yaml"), text).unwrap();
        symlink(self.stamped(), self.folder.join("..data_tmp")).unwrap();
        std::fs::rename(self.folder.join("..data_tmp"), self.folder.join("..data")).unwrap();
        if old.exists() {
            std::fs::remove_dir_all(old).unwrap();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mounted_map_that_is_swapped_by_links_is_followed() {
    let fleet = fleet().engines(1).policy("round_robin").start().await;
    let mut mounted = Mounted::new("swap", &fleet.yaml).await;
    fleet.app.follow(mounted.file(), Vec::new()).unwrap();
    fleet.eventually("it follows the file", async |fleet| fleet.config().await["file"].is_string()).await;
    let policy = async |fleet: &TestFleet| -> Value {
        let config = fleet.config().await;
        let values = config["values"].as_array().unwrap();
        values.iter().find(|value| value["key"] == "routing.policy").unwrap()["value"].clone()
    };
    assert_eq!((policy(&fleet).await, &fleet.config().await["last_reload"]), (json!("round_robin"), &Value::Null));
    mounted.swap(&fleet.yaml.replace("round_robin", "least_requests"));
    fleet.eventually("the swap is followed", async |fleet| fleet.config().await["last_reload"]["ok"] == true).await;
    let followed = fleet.config().await;
    let last = &followed["last_reload"];
    assert_eq!((&last["asked_by"], &last["changed"][0]["key"]), (&json!("file"), &json!("routing.policy")));
    assert_eq!(last["changed"].as_array().map(Vec::len), Some(1));
    assert_eq!((policy(&fleet).await, &followed["file"]), (json!("least_requests"), &json!(mounted.file())));
    // Broken ones are told of, and change nothing.
    mounted.swap(&fleet.yaml.replace("round_robin", "fastest"));
    fleet.eventually("the fault is told", async |fleet| fleet.config().await["last_reload"]["ok"] == false).await;
    let broken = fleet.config().await;
    let fault = broken["last_reload"]["faults"][0].as_str().unwrap();
    assert!(fault.starts_with(&mounted.file().display().to_string()) && fault.contains("fastest"), "{fault}");
    assert_eq!((policy(&fleet).await, &broken["hash"]), (json!("least_requests"), &followed["hash"]));
    // Another stamp with the text of before: what is in effect is the file again.
    mounted.swap(&fleet.yaml.replace("round_robin", "least_requests"));
    fleet.eventually("it is well again", async |fleet| fleet.config().await["last_reload"]["ok"] == true).await;
    let again = fleet.config().await;
    assert_eq!((&again["hash"], &again["last_reload"]["changed"]), (&followed["hash"], &json!([])));
    assert_eq!(fleet.metric("warmpath_config_reload_failures_total", "").await.to_bits(), 1.0_f64.to_bits());
}
