//! `warmpath top`: the status page in a terminal.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::admin::AdminArgs;
use super::runtime;
use super::say;
use crate::telemetry::has_moves;
use looker::Looker;
use state::State;

mod figures;
mod frame;
mod looker;
mod screen;
mod state;

/// Columns of a frame that is printed.
const COLUMNS: u16 = 120;

/// Shows a running router's workers, figures and decisions in the terminal, and drains or ejects workers on a key.
#[derive(Debug, Args)]
#[command(after_help = AFTER, after_long_help = AFTER)]
pub struct TopArgs {
    /// Milliseconds between two looks.
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    interval: u64,
    /// Print one frame as plain text, with every worker and the last decisions. So it is, too, where standard output is no
    /// terminal, or TERM=dumb says that it cannot be drawn upon.
    #[arg(long)]
    once: bool,
    /// Print one JSON document of what would be shown.
    #[arg(long, conflicts_with = "once")]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

const AFTER: &str = "\
Keys: q quits, tab changes between workers, decisions, and event sources with other routers, arrows or j and k select, ? tells
all. With a worker selected d drains it, u puts it back, e ejects it, r resets its breaker, c has its engine empty its cache;
each asks first.

--json: {\"health\": …, \"workers\": […], \"history\": …, \"decisions\": …, \"bus\": …, \"config\": …}, each as the admin port
tells it; of the configuration all but its values.

Exit codes: 0 shown, 1 no router answers or it wants another token, 2 wrong use.";

impl TopArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = runtime()?;
        let mut looker = Looker::new(self.admin.port(&runtime)?);
        // What goes wrong at once is told before there is a screen.
        let first = runtime.block_on(looker.look())?;
        if self.json {
            say(format_args!("{}\n", first.json()))?;
        } else if self.once || !has_moves(&std::io::stdout()) {
            say(format_args!("{}", frame::printed(&mut State::new(first.picture()?), COLUMNS)))?;
        } else {
            let state = State::new(first.picture()?);
            screen::show(&runtime, (looker, Duration::from_millis(self.interval)), state)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
