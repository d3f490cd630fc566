//! `warmpath events`.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use warmpath_indexer::codec;

use super::heard;

/// Work with KV-cache events.
#[derive(Debug, Subcommand)]
pub enum EventsCommand {
    /// Decode payloads from standard input, one a line, and print one JSON line for each.
    Decode(DecodeArgs),
}

/// `{"events":[…],"rejected":[…]}` for a payload that could be read, `{"error":"…"}` for one that could not.
#[derive(Debug, Args)]
pub struct DecodeArgs {
    /// What a line holds: hexadecimal msgpack as engines send it, or a JSON event of the bus.
    #[arg(long, value_enum)]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Msgpack,
    Json,
}

impl EventsCommand {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let Self::Decode(args) = self;
        let format = match args.format {
            Format::Msgpack => codec::Format::Msgpack,
            Format::Json => codec::Format::Json,
        };
        let mut out = std::io::stdout().lock();
        for line in std::io::stdin().lock().split(b'\n') {
            let line = line.context("standard input")?;
            if line.trim_ascii().is_empty() {
                continue;
            }
            if let Err(error) = writeln!(out, "{}", codec::line::describe(format, line.trim_ascii())) {
                heard(Err(error))?;
                break;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
