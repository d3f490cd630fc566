//! Where workers are learned from while the router runs.

pub mod registration;
