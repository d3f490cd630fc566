//! The routes of the data port and of the admin port, and their handlers.

pub mod admin;
pub mod completions;
mod forward;
pub mod gateway;
pub mod models;
pub mod routes;
mod workers;
