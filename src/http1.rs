//! What is the same on both sides of HTTP/1.1, towards clients and towards workers: where bodies end, and how the lines of
//! a head are read and written.

pub(crate) use fields::{copied, line, number, tokens};
pub(crate) use framing::{Framing, Malformed};

mod fields;
mod framing;
