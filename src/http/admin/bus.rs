//! `GET /api/v1/bus`: the event bus, the source of each worker's events, and the other routers.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::guard::Reader;
use crate::events::course::Standing;

/// What comes in besides requests, and who else there is. Fields may be added, never renamed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BusReport {
    /// Connections that many sources share.
    pub buses: Vec<BusState>,
    /// One for each routing target that tells events, ascending by slot.
    pub sources: Vec<SourceState>,
    /// The other routers.
    pub replicas: Replicas,
}

/// A connection that many sources share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BusState {
    /// `nats`, or `zmq_gate`, to which engines connect.
    pub kind: &'static str,
    /// Its address, without what is secret in it.
    pub at: String,
    /// Whether it is up.
    pub up: bool,
    /// Since when, in seconds.
    pub for_s: f64,
    /// How often it was lost.
    pub losses: u64,
    /// Bursts of which messages found no room here; at the gate, messages that name no worker.
    pub dropped: u64,
    /// Why it is down, or what else is wrong with it.
    pub error: Option<String>,
}

/// The source of one routing target's events.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SourceState {
    /// The worker.
    pub worker: String,
    /// Its rank.
    pub rank: u32,
    /// How it goes.
    #[serde(flatten)]
    pub standing: Standing,
}

/// The other routers of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replicas {
    /// What this router tells the others that it is called; none where there is no NATS to tell it over, nor to hear of any.
    pub told_as: Option<String>,
    /// Those that were heard in the last minute.
    pub heard: Vec<Replica>,
    /// Requests in flight on them together, as they said.
    pub in_flight: u64,
    /// Sequences that engines have beyond what was sent from here: other routers', heard or not, and who goes around them.
    pub other_sequences: u64,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replica {
    /// A number of its process.
    pub router: String,
    /// The machine or container that it runs on, and the port of its clients.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The hash of its configuration.
    pub config: String,
    /// Whether that is ours.
    pub same_config: bool,
    /// Whether it can serve requests.
    pub ready: bool,
    /// Requests that it has sent to workers and has not seen finished.
    pub in_flight: u32,
    /// Since it was heard last, in seconds.
    pub last_heard_s: f64,
    /// Whether that is longer than it should be.
    pub silent: bool,
}

/// All of it.
pub(super) async fn show(Reader(admin): Reader) -> Response {
    Json((admin.bus)()).into_response()
}
