//! The routes of the data port and of the admin port, and their handlers.

pub mod admin;
mod admit;
mod arrival;
mod between;
mod bulk;
mod coding;
pub mod completions;
pub mod desk;
mod destination;
mod explain;
mod forward;
pub mod gateway;
pub mod models;
mod panics;
mod passthrough;
mod place;
mod retrying;
pub mod routes;
pub mod sender;
mod timing;
mod usage;
