//! `warmpath serve`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tokio::sync::oneshot;

use super::network;
use super::overrides::Overrides;
use crate::app::App;
use crate::config::{Config, LogFormat, Tls};
use crate::shutdown::{Interrupts, Tasks};
use crate::telemetry;

/// Runs the router until it is interrupted; then it drains: not ready, no new connections, streams may finish. The
/// configuration is read again when it changes and on SIGHUP, certificates too; what is wrong with it is logged, and nothing
/// changes.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The configuration; `config/warmpath.yaml` explains every key.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
}

impl ServeArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = Config::load_in(&self.overrides.environment(), &self.config)?;
        let format = config.log.format;
        let _log = telemetry::log_with_requests(format, config.log.level.into());
        let scheme = |tls: &Tls| if tls.certificate.is_some() { "https" } else { "http" };
        let (data_scheme, admin_scheme) = (scheme(&config.listen.data_tls), scheme(&config.listen.admin_tls));
        let served = network(async {
            let mut interrupts = Interrupts::new();
            // In a task of its own: what a start reads or opens may hang where nothing can be cut off.
            let (tasks, (done, started)) = (Tasks::new(), oneshot::channel());
            tasks.spawn(async {
                // Nobody waits for it where the process has been told to end.
                let _ = done.send(App::start(config, None).await);
            });
            let started = tokio::select! {
                started = started => started?,
                () = interrupts.next() => {
                    tracing::info!("told to end before it served");
                    return Ok(ExitCode::SUCCESS);
                }
            };
            let app = started.context("the router could not start")?;
            app.follow(self.config, self.overrides.list)?;
            let (data, admin) = (app.data_address(), app.admin_address());
            announce(format, &format!("serving on {data_scheme}://{data}, admin on {admin_scheme}://{admin}"));
            app.run_until(&mut interrupts).await?;
            Ok(ExitCode::SUCCESS)
        });
        match served {
            Err(error) if format == LogFormat::Json => {
                tracing::error!(error = format!("{error:#}"), "the router has ended");
                Ok(ExitCode::FAILURE)
            }
            served => served,
        }
    }
}

/// Says that it serves. Whoever collects lines of JSON is not told in another form.
fn announce(format: LogFormat, said: &str) {
    match format {
        LogFormat::Json => tracing::info!("{said}"),
        // Where nobody can be told, clients are served all the same.
        LogFormat::Text => {
            let _ = writeln!(io::stderr(), "{said}");
        }
    }
}
