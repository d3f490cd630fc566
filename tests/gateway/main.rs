//! The gateway end to end: real sockets, simulated engines behind HTTP, a real NATS server.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod approx;
mod bad_input;
mod bursts;
mod by_hand;
mod discovery;
mod engine;
mod events;
mod fleet;
mod health;
mod killed;
mod link;
mod nats;
mod retries;
mod routing;
mod scripted;
mod sdk;
mod streaming;
