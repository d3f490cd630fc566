//! Remembers. Which blocks each engine's cache holds, learned from the engines' own events: their wire formats
//! ([`codec`]), their order ([`feed`]) and how it is kept whole ([`repair`]), one engine's view ([`view`]) and the index over all engines
//! ([`index`]), whose blocks lie in [`concurrent`] ([`tree`] is the plain one that it is measured against).
//! Where engines publish nothing, what they were sent stands in ([`approx`]).
//! Synchronous, deterministic, without I/O: bytes and time are arguments.
#![forbid(unsafe_code)]

pub mod approx;
pub mod codec;
pub mod concurrent;
pub mod event;
pub mod feed;
pub mod index;
pub mod repair;
mod room;
pub mod snapshot;
pub mod store;
mod table;
pub mod tree;
pub mod view;
