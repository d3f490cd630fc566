//! Workers listed in a file that is watched.
//!
//! It is read again and again, and what is read is compared: so links that are swapped, as Kubernetes does with mounted
//! maps, files that are moved into place, and secrets that are exchanged behind `${file:…}` are seen alike, on any file
//! system. A list of a thousand workers takes a few milliseconds.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::MissedTickBehavior;

use super::{Found, Origin};
use crate::config::{Config, ConfigError};

/// Tells what the file lists, whenever that changes. Ends with its listener.
pub async fn follow(config: Arc<Config>, path: PathBuf, interval: Duration, tell: Sender<Found>) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        ticks.tick().await;
        let (config, path) = (Arc::clone(&config), path.clone());
        // Files can be slow.
        let read = tokio::task::spawn_blocking(move || look(&config, path)).await;
        let Ok(found) = read else { continue };
        if last.as_ref() == Some(&found) {
            continue;
        }
        if tell.send(found.clone()).await.is_err() {
            return;
        }
        last = Some(found);
    }
}

fn look(config: &Config, path: PathBuf) -> Found {
    let (workers, trouble) = match config.load_workers(&path) {
        Ok(workers) => (Some(workers), Vec::new()),
        Err(error) => (None, reasons(&error)),
    };
    Found { origin: Origin::File, workers, trouble }
}

/// The first faults: whoever mends them sees the others.
fn reasons(error: &ConfigError) -> Vec<String> {
    const SHOWN: usize = 4;
    let kept = "the workers that it named last are kept";
    match error {
        ConfigError::Unreadable { path, why } => vec![format!("{}: {why}; {kept}", path.display())],
        ConfigError::Faulty(faults) => faults.iter().take(SHOWN).map(|fault| format!("{fault}; {kept}")).collect(),
    }
}
