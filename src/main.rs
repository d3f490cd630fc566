//! The `warmpath` command: arguments -> runtime -> exit code.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use warmpath::cli::{Cli, told};

fn main() -> ExitCode {
    warmpath::telemetry::panics::say_briefly();
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => told(&error),
    }
}
