//! `warmpath doctor`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tracing::Level;
use warmpath_core::ids::WorkerId;

use super::misuse::OrMisuse;
use super::{remark, runtime, say};
use crate::config::{Config, LogFormat};
use crate::doctor::{self, Check, Examination};
use crate::telemetry;

/// Examines every worker: is it what the configuration says, and does what its cache holds arrive here and mean the same?
/// One line for each check, with what to do where it fails.
#[derive(Debug, Args)]
#[command(after_help = AFTER, after_long_help = AFTER)]
pub struct DoctorArgs {
    /// The router's configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Examine this worker only; may be given several times.
    #[arg(long = "worker", value_name = "ID")]
    workers: Vec<String>,
    /// Leave this check out; may be given several times.
    #[arg(long, value_name = "CHECK")]
    skip: Vec<Check>,
    /// Bound on each wait, in seconds: for a connection, an answer, an event.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
    /// Print one JSON document instead of lines.
    #[arg(long)]
    json: bool,
}

const AFTER: &str = "\
No running router is needed, and a running one does not mind. Each worker and data-parallel rank is sent one prompt of
random tokens twice, for one token of answer, and some fifty short texts and chats to tokenize: little, but real work for
an engine that serves. Colours only on a terminal, and not with NO_COLOR or TERM=dumb; how far it is, which is said on standard
error while it lasts, only on a terminal that is not TERM=dumb.

Checks:
  reachable   it answers /health
  model       it serves the model under its name and aliases
  version     which engine it is, and that this version tells what it caches
  block_size  its blocks have as many tokens as models[].block_size
  events      a probe prompt's blocks are told, over ZeroMQ or NATS as configured
  tokens      awkward texts and chats (Unicode, special tokens, long ones) become the same token ids
  replay      the probe's batch can be had again: replay socket, JetStream or a bridge's snapshot
  prediction  of the probe, new and repeated, as many tokens are cached as the router would predict

What cannot be examined is `skipped`, with the reason; so is what another fault makes meaningless.

--json: {\"workers\": [{\"worker\", \"url\", \"model\", \"checks\": [{\"check\", \"rank\": null or number,
  \"verdict\": \"ok\" or \"failed\" or \"skipped\", \"finding\", \"remedy\": null or text, \"facts\": {…}}]}],
  \"ok\", \"failed\", \"skipped\"}. Facts: reachable ms; model max_model_len; version version; block_size configured, told;
  events ms, batches; tokens compared, different; replay batches or parts; prediction predicted_tokens, reported_tokens.

Exit codes: 0 nothing failed, 1 some check failed, none could be made or the configuration has faults, 2 wrong use or an unreadable file.";

impl DoctorArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = Config::load(&self.config)?;
        // What goes wrong is told in the findings.
        telemetry::log_to_stderr(LogFormat::Text, Level::ERROR);
        let examination = Examination {
            workers: self.workers.iter().map(|id| WorkerId::from(id.as_str())).collect(),
            skip: self.skip,
            timeout: Duration::from_secs(self.timeout),
        };
        let shown = telemetry::has_moves(&std::io::stderr());
        let progress = move |done, all| {
            if shown {
                remark(format_args!("\r\x1b[2Kexamining workers: {done} of {all} done"));
            }
        };
        let examined = runtime()?.block_on(doctor::examine(&config, &examination, progress));
        if shown {
            remark(format_args!("\r\x1b[2K"));
        }
        let report = examined.or_misuse()?;
        if self.json {
            say(format_args!("{}\n", serde_json::to_string_pretty(&report)?))?;
        } else {
            say(format_args!("{}", report.table(telemetry::has_colours(&std::io::stdout()))))?;
        }
        if report.ok == 0 && report.failed == 0 {
            remark(format_args!("warmpath: nothing could be examined\n"));
        }
        Ok(if report.failed == 0 && report.ok > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
