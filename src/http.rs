//! The routes of the data port and of the admin port, and their handlers.

pub mod admin;
mod admit;
mod arrival;
pub mod completions;
mod destination;
mod forward;
pub mod gateway;
pub mod models;
mod panics;
mod passthrough;
mod retrying;
pub mod routes;
pub mod sender;
mod usage;
