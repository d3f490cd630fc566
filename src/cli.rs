//! The commands. They compose; others do.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use self::misuse::OrMisuse;
use crate::config::NatsUrl;

pub use misuse::told;

mod admin;
pub mod bridge;
mod cache;
pub mod calibrate;
pub mod check;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod events;
pub mod explain;
mod fleet;
pub mod manual;
mod misuse;
pub mod mock_engine;
mod number;
pub mod optimize;
mod output;
mod overrides;
pub mod plan;
mod progress;
pub mod replay;
pub mod serve;
mod site;
pub mod tap;
pub mod top;
pub mod trace;
pub mod tune;
pub mod worker;

/// A KV-cache-aware request router for LLM fleets.
#[derive(Debug, Parser)]
#[command(name = "warmpath", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "Start with `warmpath demo`. Exit codes: 0 done, 1 failed or faults found, 2 wrong use or an \
    unreadable file.")]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show it working: simulated engines, the real router, a real conversation trace.
    Demo(demo::DemoArgs),
    /// Run the router.
    Serve(serve::ServeArgs),
    /// Try policies, fleets and loads on a trace: in virtual time, or against a live gateway.
    Replay(Box<replay::ReplayArgs>),
    /// Run a simulated engine behind HTTP.
    MockEngine(Box<mock_engine::MockEngineArgs>),
    /// Bring one real engine onto the event bus.
    Bridge(Box<bridge::BridgeArgs>),
    /// Say what is wrong with a configuration: one `FILE:line:column: message` a fault.
    Check(check::CheckArgs),
    /// Show what a change of the configuration would do.
    Plan(Box<plan::PlanArgs>),
    /// Look at the configuration.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Print the configuration's JSON Schema, for editors, or its reference.
    Schema(config::SchemaArgs),
    /// Examine every worker's wiring: address, model, blocks, events, tokens, replay, predictions.
    Doctor(doctor::DoctorArgs),
    /// Say why a request went where it went, or where one would go.
    Explain(Box<explain::ExplainArgs>),
    /// Show decisions as they are made.
    Tap(Box<tap::TapArgs>),
    /// Show the fleet live in the terminal: workers, figures over time, decisions.
    Top(Box<top::TopArgs>),
    /// Take a worker out of a running router, and in again: drain, eject, resets.
    #[command(subcommand)]
    Worker(Box<worker::WorkerCommand>),
    /// Fit the timing of simulated engines to a real one, from one prefill and one decode.
    Calibrate(Box<calibrate::CalibrateArgs>),
    /// Look at KV-cache events.
    #[command(subcommand)]
    Events(events::EventsCommand),
    /// Print what a shell completes after `warmpath`.
    Completions(manual::CompletionsArgs),
    /// Print the manual page, or write one for each command.
    Man(manual::ManArgs),
    /// Capacity against hit rate over a trace.
    Optimize(Box<optimize::OptimizeArgs>),
    /// Search the weights of a policy over a trace.
    Tune(Box<tune::TuneArgs>),
    /// Look at traces and convert them.
    #[command(subcommand)]
    Trace(Box<trace::TraceCommand>),
}

impl Cli {
    /// What this process was asked for. Ends the process where that is nothing that can be done.
    pub fn of_process() -> Self {
        let asked = with_negative_numbers(Self::command()).get_matches();
        Self::from_arg_matches(&asked).unwrap_or_else(|error| error.format(&mut Self::command()).exit())
    }

    /// Does what was asked.
    ///
    /// # Errors
    /// What `main` prints.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Demo(args) => args.run(),
            Command::Serve(args) => args.run(),
            Command::Replay(args) => args.run(),
            Command::MockEngine(args) => args.run(),
            Command::Bridge(args) => args.run(),
            Command::Check(args) => args.run(),
            Command::Plan(args) => args.run(),
            Command::Config(command) => command.run(),
            Command::Schema(args) => args.run(),
            Command::Doctor(args) => args.run(),
            Command::Explain(args) => args.run(),
            Command::Tap(args) => args.run(),
            Command::Top(args) => args.run(),
            Command::Worker(command) => command.run(),
            Command::Calibrate(args) => args.run(),
            Command::Events(command) => command.run(),
            Command::Completions(args) => args.run(),
            Command::Man(args) => args.run(),
            Command::Optimize(args) => args.run(),
            Command::Tune(args) => args.run(),
            Command::Trace(command) => command.run(),
        }
    }
}

/// The same commands, whose options take `-1` for a value: what is wrong with it is for their bounds to say.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes = |arg: clap::Arg| {
        let is_option = !arg.is_positional() && arg.get_action().takes_values();
        if is_option { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(takes).mut_subcommands(with_negative_numbers)
}

/// Prints on standard output.
///
/// # Errors
/// It cannot be written, as where a disk is full.
fn say(text: fmt::Arguments<'_>) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    heard(stdout.write_fmt(text).and_then(|()| stdout.flush()))
}

/// Says something beside the result, on standard error. Whoever does not hear it loses nothing of that.
pub fn remark(text: fmt::Arguments<'_>) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_fmt(text).and_then(|()| stderr.flush());
}

/// What came of writing to standard output. Where whoever reads has gone, nobody is left to tell: that is no failure.
fn heard(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// A name of a worker or a model, as configurations take it.
fn name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && text.len() <= 128 && !text.chars().any(char::is_control);
    is_name.then(|| text.to_owned()).ok_or_else(|| "must have 1 to 128 bytes and no control characters".to_owned())
}

/// The address of a NATS server that an option gives. It is not read with the arguments, for what cannot be read is repeated
/// there, and may have a password in it.
///
/// # Errors
/// It is none.
fn nats_url(option: &'static str, text: &str) -> anyhow::Result<String> {
    let url = NatsUrl::try_from(text.to_owned()).map_err(anyhow::Error::msg).context(option).or_misuse()?;
    Ok(url.as_str().to_owned())
}

/// How long what is cut off at the end may take to be written down.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a command does that serves until it is told to end. What may block, such as a look-up of a name or a read from a file
/// system that hangs, is not waited for longer than for a moment then.
fn network<T>(serving: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = runtime()?;
    let served = runtime.block_on(serving);
    runtime.shutdown_timeout(LAST_WORDS);
    served
}

/// The runtime of every command that talks to the network.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().on_thread_park(crate::turn::ended).build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        with_negative_numbers(Cli::command()).debug_assert();
    }
}
