//! The routes of the data port and of the admin port, and their handlers.

pub mod admin;
mod admit;
pub mod completions;
mod forward;
pub mod gateway;
pub mod models;
mod panics;
mod retrying;
pub mod routes;
pub mod sender;
