//! The gateway end to end: real sockets, simulated engines behind HTTP, a real NATS server.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod by_hand;
mod engine;
mod events;
mod fleet;
mod link;
mod nats;
mod routing;
