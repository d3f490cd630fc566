//! `warmpath trace`, and how every command that takes a trace reads it.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use serde::Serialize;
use warmpath_core::count::{real, real_len};
use warmpath_core::units::BlockSize;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::misuse::{OrMisuse, misuse};
use super::{heard, remark, say};
use crate::replay::trace::{Access, Format, Options, Trace, TraceError, TraceRequest};
use crate::replay::workload::Workload;

/// The largest file that is read.
const BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Tokens that a block may have.
const BLOCK_SIZES: RangeInclusive<i64> = 1..=65_536;

/// A trace, and how it is read.
#[derive(Debug, Args)]
pub struct Input {
    /// JSON lines, plain or gzipped; `-` is standard input; `generate:SHAPE?key=value&…` makes one (few-shot,
    /// self-consistency, tree-of-thought, multi-turn, agent).
    #[arg(long, value_name = "FILE")]
    pub(super) trace: String,
    #[command(flatten)]
    form: TraceForm,
}

/// How a trace is read, and how much of it.
#[derive(Debug, Args)]
pub struct TraceForm {
    /// Its form: mooncake, bailian, tair-events, tair-optimizer, warmpath. Detected by the first line's fields if not given.
    #[arg(long, requires = "trace")]
    format: Option<Format>,
    /// Pass over lines that make no sense, and say how many there were.
    #[arg(long, requires = "trace")]
    lenient: bool,
    /// Tokens that a block id stands for: 512 of Mooncake's, 16 of Bailian's, 64 of Tair's, if not given; our own form
    /// says it.
    #[arg(long, value_name = "TOKENS", requires = "trace", value_parser = clap::value_parser!(u32).range(BLOCK_SIZES))]
    block_size: Option<u32>,
    /// Pass over so many requests, those that arrived first; the order of the lines does not matter.
    #[arg(long, requires = "trace", default_value_t = 0, value_name = "N")]
    skip: usize,
    /// Only so many requests, the first to arrive after those that are passed over.
    #[arg(long, requires = "trace", value_name = "N")]
    requests: Option<usize>,
    /// The seed of a generated trace; 1 if not given.
    #[arg(long, requires = "trace", value_name = "SEED")]
    trace_seed: Option<u64>,
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
        self.form.read(&self.trace)
    }

    /// The same where it asks for something: of a trace that does not, all figures would be 0.
    pub(super) fn asking(&self) -> anyhow::Result<Trace> {
        self.form.asking(&self.trace)
    }

    /// Its requests in order of their arrival, and the size of its blocks.
    pub(super) fn requests(&self) -> anyhow::Result<(Vec<TraceRequest>, BlockSize)> {
        self.form.requests(&self.trace)
    }

    /// The option that names it, and the file that is read, if it is one.
    pub(super) fn file(&self) -> (&'static str, Option<&Path>) {
        let is_file = self.trace != "-" && !self.trace.starts_with("generate:");
        ("--trace", is_file.then(|| Path::new(&self.trace)))
    }

    /// What the trace is called in a report: its file, without the folder.
    pub(super) fn name(&self) -> String {
        let file = Path::new(&self.trace).file_name();
        match file {
            Some(file) if !self.trace.starts_with("generate:") => file.to_string_lossy().into_owned(),
            _ => self.trace.clone(),
        }
    }
}

impl TraceForm {
    /// The trace that `--trace` names. What was passed over is told on standard error.
    fn read(&self, named: &str) -> anyhow::Result<Trace> {
        let mut trace = match named.strip_prefix("generate:") {
            Some(spec) => self.generated(spec).or_misuse()?,
            None if self.trace_seed.is_some() => {
                return Err(misuse(format!("--trace-seed is for what is generated, and {named} is read")));
            }
            None => {
                let bytes = bytes(named).with_context(|| format!("{named}: cannot be read")).or_misuse()?;
                let options = Options { format: self.format, lenient: self.lenient, block_size: self.block_size };
                match Trace::read(&bytes, &options) {
                    Err(error @ TraceError::Io(_)) => Err(error).context(named.to_owned()).or_misuse()?,
                    read => read.with_context(|| named.to_owned())?,
                }
            }
        };
        let own = trace.block_size;
        if trace.format == Format::Warmpath && self.block_size.is_some_and(|size| size != own) {
            return Err(misuse(format!("--block-size: {named} says itself that its blocks have {own} tokens")));
        }
        if trace.skipped > 0 {
            remark(format_args!("warmpath: {named}: {} lines passed over\n", trace.skipped));
        }
        let all = trace.requests.len();
        trace.requests.drain(..self.skip.min(all));
        trace.requests.truncate(self.requests.unwrap_or(usize::MAX));
        if all > 0 && trace.requests.is_empty() {
            return Err(misuse(format!("{named}: --skip and --requests leave none of its {all} requests")));
        }
        doubt(&trace, named);
        Ok(trace)
    }

    fn asking(&self, named: &str) -> anyhow::Result<Trace> {
        let mut trace = self.read(named)?;
        part_models(&mut trace.requests);
        let asks = trace.requests.iter().any(|request| request.access() != Access::Write);
        ensure!(asks, "{named} has no requests");
        Ok(trace)
    }

    /// Its requests in order of their arrival, without what was only written to a cache, and the size of its blocks.
    pub(super) fn requests(&self, named: &str) -> anyhow::Result<(Vec<TraceRequest>, BlockSize)> {
        let mut trace = self.asking(named)?;
        trace.requests.retain(|request| request.access() != Access::Write);
        trace.requests.sort_by_key(|request| request.at_ms);
        let size = BlockSize::new(trace.block_size).filter(|size| BLOCK_SIZES.contains(&i64::from(size.get())));
        let wrong = || format!("{named}: a block must have 1 to 65536 tokens, got {}", trace.block_size);
        Ok((trace.requests, size.with_context(wrong)?))
    }

    fn generated(&self, spec: &str) -> anyhow::Result<Trace> {
        let workload: Workload = spec.parse().map_err(anyhow::Error::msg).context("--trace generate")?;
        ensure!(self.format.is_none(), "--format is for what is read, and this is generated");
        let (requests, block_size) = (workload.generate(self.trace_seed.unwrap_or(1)), workload.block_size());
        Ok(Trace { requests, format: Format::Warmpath, block_size, skipped: 0 })
    }
}

/// Makes the ids of different models different, since nothing is reused across models; those of the model that is named
/// first stay as they are. O(ids).
fn part_models(requests: &mut [TraceRequest]) {
    let Some(first) = requests.iter().find_map(TraceRequest::model).map(str::to_owned) else { return };
    for request in requests {
        let Some(other) = request.model().filter(|model| *model != first) else { continue };
        let seed = xxh3_64(other.as_bytes());
        request.hash_ids.iter_mut().for_each(|id| *id = xxh3_64_with_seed(&id.to_le_bytes(), seed));
    }
}

/// Says on standard error where ids and lengths of prompts tell of different blocks.
fn doubt(trace: &Trace, named: &str) {
    let (size, all) = (trace.block_size, trace.requests.len());
    let short = trace.requests.iter().filter(|request| request.is_short_of_ids(size)).count();
    if short > 0 {
        remark(format_args!(
            "warmpath: {named}: {short} of {all} prompts have whole blocks of {size} tokens that no id names, and that count \
             as their own: is --block-size right?\n"
        ));
    }
    let over = trace.requests.iter().filter(|request| request.has_ids_beyond(size)).count();
    if over > 0 {
        remark(format_args!(
            "warmpath: {named}: {over} of {all} prompts have more ids than blocks of {size} tokens: is --block-size right?\n"
        ));
    }
}

fn bytes(named: &str) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let from: &mut dyn Read = if named == "-" { &mut std::io::stdin().lock() } else { &mut File::open(named)? };
    from.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > BYTES_MAX {
        return Err(std::io::Error::other("larger than 4 GiB"));
    }
    Ok(bytes)
}

impl TraceCommand {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Convert(input) => {
                let trace = input.read()?;
                let mut out = BufWriter::new(std::io::stdout().lock());
                heard(trace.write(&mut out).and_then(|()| out.flush()))?;
            }
            Self::Stat(args) => {
                let mut trace = args.input.read()?;
                part_models(&mut trace.requests);
                let figures = Figures::of(&trace);
                if args.json {
                    say(format_args!("{}\n", serde_json::to_string_pretty(&figures)?))?;
                } else {
                    say(format_args!("{}", figures.text()))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::trace::About;

    #[test]
    fn equal_ids_of_different_models_are_parted_and_those_of_the_first_stay() {
        let request = |model: Option<&str>| {
            let about = About { model: model.map(str::to_owned), ..About::default() };
            TraceRequest { hash_ids: vec![1, 2], about: Some(Box::new(about)), ..TraceRequest::default() }
        };
        let mut requests = [None, Some("a"), Some("b"), Some("a"), Some("b")].map(request);
        part_models(&mut requests);
        let ids = requests.map(|request| request.hash_ids);
        assert!([0, 1, 3].iter().all(|at: &usize| ids[*at] == [1, 2]), "{ids:?}");
        assert!(ids[2] == ids[4] && ids[2].iter().all(|id| *id > 2), "{ids:?}");
    }
}
