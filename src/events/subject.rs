//! NATS subjects and headers of the event bus.

use crate::fleet::discovery::registration::key_of as token;

/// Number of the batch, consecutive for each worker, rank and epoch.
pub const SEQUENCE_HEADER: &str = "Warmpath-Seq";

/// Raised whenever the engine's process changed.
pub const EPOCH_HEADER: &str = "Warmpath-Epoch";

/// What JetStream knows repeated messages by.
pub const MESSAGE_ID_HEADER: &str = "Nats-Msg-Id";

/// Where a worker's events are published: `<prefix>.kv.<model>.<worker>.<rank>`.
pub fn events_of(prefix: &str, model: &str, worker: &str, rank: u32) -> String {
    format!("{prefix}.kv.{}.{}.{rank}", token(model), token(worker))
}

/// Every event of every worker.
pub fn all_events(prefix: &str) -> String {
    format!("{prefix}.kv.>")
}

/// Where a worker's load is told: `<prefix>.load.<worker>`.
pub fn load_of(prefix: &str, worker: &str) -> String {
    format!("{prefix}.load.{}", token(worker))
}

/// Where a worker's blocks are asked for: `<prefix>.snapshot.<worker>`.
pub fn snapshot_of(prefix: &str, worker: &str) -> String {
    format!("{prefix}.snapshot.{}", token(worker))
}

/// Where a router tells how it is: `<prefix>.routers.<router>`; without one, where all do.
pub fn router_of(prefix: &str, router: Option<&str>) -> String {
    format!("{prefix}.routers.{}", router.map_or_else(|| "*".to_owned(), token))
}

/// The stream that keeps events: `WARMPATH_KV` for the prefix `warmpath`.
pub fn stream_name(prefix: &str) -> String {
    let word: String =
        prefix.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    format!("{word}_KV")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_single_tokens() {
        let subject = events_of("warmpath", "Qwen/Qwen3-0.6B", "gpu 1", 2);
        assert_eq!(subject, "warmpath.kv.Qwen=2FQwen3-0=2E6B.gpu=201.2");
        assert_eq!(load_of("warmpath", "gpu 1"), "warmpath.load.gpu=201");
        assert_eq!(snapshot_of("warmpath", "gpu 1"), "warmpath.snapshot.gpu=201");
        assert_eq!(router_of("warmpath", Some("a.b")), "warmpath.routers.a=2Eb");
        assert_eq!(router_of("warmpath", None), "warmpath.routers.*");
        assert_eq!(stream_name("warmpath"), "WARMPATH_KV");
        assert_eq!(stream_name("a.b"), "A_B_KV");
    }
}
