//! The `warmpath` command: arguments -> runtime -> exit code.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use warmpath::cli::Cli;

/// Requests are many small allocations, of headers above all: a tenth of what one costs lies here.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    warmpath::telemetry::panics::say_briefly();
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("warmpath: {error:#}");
            ExitCode::FAILURE
        }
    }
}
