//! `warmpath trace`, and how every command that takes a trace reads it.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::say;
use crate::real::{real, real_len};
use crate::replay::trace::{Access, Format, Options, Trace, TraceRequest};
use crate::replay::workload::Workload;

/// The largest file that is read.
const BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;

/// A trace, and how it is read.
#[derive(Debug, Args)]
pub struct Input {
    /// JSON lines, plain or gzipped; `-` is standard input; `generate:SHAPE?key=value&…` makes one (few-shot,
    /// self-consistency, tree-of-thought, multi-turn, agent).
    #[arg(long, value_name = "FILE")]
    pub(super) trace: String,
    /// Its form: mooncake, bailian, tair-events, tair-optimizer, warmpath. Detected by the first line's fields if not given.
    #[arg(long)]
    format: Option<Format>,
    /// Pass over lines that make no sense, and say how many there were.
    #[arg(long)]
    lenient: bool,
    /// Tokens that a block id stands for: 512 of Mooncake's, 16 of Bailian's, 64 of Tair's, if not given; our own form
    /// says it.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    block_size: Option<u32>,
    /// Pass over the first so many lines.
    #[arg(long, default_value_t = 0, value_name = "N")]
    skip: usize,
    /// Only the first so many lines, after those that are passed over.
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// The seed of a generated trace.
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    trace_seed: u64,
}

/// Look at traces, and turn them into our own form.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Write it in our own form: JSON lines with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`,
    /// `block_size`, and `model`, `session`, `tenant`, `class` where they are known.
    Convert(Input),
    /// Say how many requests, tokens and blocks it has.
    Stat(StatArgs),
}

/// What is told of a trace.
#[derive(Debug, Args)]
pub struct StatArgs {
    #[command(flatten)]
    input: Input,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

impl Input {
    /// The trace. What was passed over is told on standard error.
    pub(super) fn read(&self) -> anyhow::Result<Trace> {
        let mut trace = match self.trace.strip_prefix("generate:") {
            Some(spec) => {
                let workload: Workload = spec.parse().map_err(anyhow::Error::msg).context("--trace generate:")?;
                let (requests, block_size) = (workload.generate(self.trace_seed), workload.block_size());
                let is_said = self.block_size.is_none_or(|size| size == block_size);
                ensure!(is_said, "a generated trace says its block size itself: generate:SHAPE?block=TOKENS");
                Trace { requests, format: Format::Warmpath, block_size, skipped: 0 }
            }
            None => {
                let bytes = self.bytes().with_context(|| self.trace.clone())?;
                let options = Options { format: self.format, lenient: self.lenient, block_size: self.block_size };
                Trace::read(&bytes, &options).with_context(|| self.trace.clone())?
            }
        };
        if trace.skipped > 0 {
            eprintln!("warmpath: {}: {} lines passed over", self.trace, trace.skipped);
        }
        trace.requests.drain(..self.skip.min(trace.requests.len()));
        trace.requests.truncate(self.requests.unwrap_or(usize::MAX));
        Ok(trace)
    }

    /// What the trace is called in a report: its file, without the folder.
    pub(super) fn name(&self) -> String {
        let file = std::path::Path::new(&self.trace).file_name();
        match file {
            Some(file) if !self.trace.starts_with("generate:") => file.to_string_lossy().into_owned(),
            _ => self.trace.clone(),
        }
    }

    fn bytes(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let from: &mut dyn Read =
            if self.trace == "-" { &mut std::io::stdin().lock() } else { &mut File::open(&self.trace)? };
        from.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > BYTES_MAX {
            return Err(std::io::Error::other("larger than 4 GiB"));
        }
        Ok(bytes)
    }
}

impl TraceCommand {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Convert(input) => {
                let mut out = BufWriter::new(std::io::stdout().lock());
                input.read()?.write(&mut out)?;
                out.flush()?;
            }
            Self::Stat(args) => {
                let figures = Figures::of(&args.input.read()?);
                if args.json {
                    say(format_args!("{}\n", serde_json::to_string_pretty(&figures)?));
                } else {
                    say(format_args!("{}", figures.text()));
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What there is in a trace.
#[derive(Debug, PartialEq, Serialize)]
struct Figures {
    format: String,
    /// Tokens in a block.
    block_size: u32,
    requests: usize,
    writes: usize,
    lines_skipped: usize,
    sessions: usize,
    span_s: f64,
    prompt_tokens: u64,
    output_tokens: u64,
    blocks: usize,
    different_blocks: usize,
}

impl Figures {
    fn of(trace: &Trace) -> Self {
        let asking = || trace.requests.iter().filter(|request| request.access() != Access::Write);
        let sum = |of: fn(&TraceRequest) -> u32| asking().map(|request| u64::from(of(request))).sum();
        let times = || trace.requests.iter().map(|request| request.at_ms);
        let ids = || trace.requests.iter().flat_map(|request| request.hash_ids.iter().copied());
        let requests = asking().count();
        Self {
            format: trace.format.to_string(),
            block_size: trace.block_size,
            requests,
            writes: trace.requests.len() - requests,
            lines_skipped: trace.skipped,
            sessions: trace.requests.iter().filter_map(TraceRequest::session).collect::<HashSet<_>>().len(),
            span_s: real(times().max().unwrap_or(0) - times().min().unwrap_or(0)) / 1e3,
            prompt_tokens: sum(|request| request.input_length),
            output_tokens: sum(|request| request.output_length),
            blocks: ids().count(),
            different_blocks: ids().collect::<HashSet<_>>().len(),
        }
    }

    fn text(&self) -> String {
        let mean = |tokens: u64| real(tokens) / real_len(self.requests.max(1));
        format!(
            "form             {}\nblock size       {} tokens\nrequests         {}\nwrites           {}\n\
             lines skipped    {}\nsessions         {}\nspan             {:.1} s\n\
             prompt tokens    {} ({:.1} a request)\noutput tokens    {} ({:.1} a request)\n\
             blocks           {}\ndifferent blocks {}\n",
            self.format,
            self.block_size,
            self.requests,
            self.writes,
            self.lines_skipped,
            self.sessions,
            self.span_s,
            self.prompt_tokens,
            mean(self.prompt_tokens),
            self.output_tokens,
            mean(self.output_tokens),
            self.blocks,
            self.different_blocks,
        )
    }
}
