//! Remembers. Which blocks each engine's cache holds, learned from the engines' own events: their wire formats
//! ([`codec`]), their order ([`feed`]), one engine's view ([`view`]) and the index over all engines ([`tree`]).
//! Synchronous, deterministic, without I/O: bytes and time are arguments.
#![forbid(unsafe_code)]

pub mod change;
pub mod codec;
pub mod event;
pub mod feed;
pub mod tree;
pub mod view;
