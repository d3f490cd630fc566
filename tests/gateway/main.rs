//! The gateway end to end: real sockets, simulated engines behind HTTP, a real NATS server.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod adapters;
mod approx;
mod bad_input;
mod bridge;
mod bursts;
mod by_hand;
mod conformance;
mod credentials;
mod discovery;
mod endpoints;
mod engine;
mod events;
mod fleet;
mod health;
mod killed;
mod link;
mod models;
mod nats;
mod nats_source;
mod pyzmq;
mod recorded;
mod resting;
mod retries;
mod routing;
mod scripted;
mod sdk;
mod sidecar;
mod streaming;
mod trust;
mod usage;
mod warm;
mod zmq;
mod zmq_engine;
mod zmq_gate;
mod zmq_strangers;
