//! How workers make themselves known.

pub mod registration;
