//! `--override KEY=VALUE`: values from the command line.

use clap::Args;

use crate::config::{Environment, Override};

/// What the command line sets above a configuration's file.
#[derive(Debug, Default, Args)]
pub(super) struct Overrides {
    /// Set a key above the file and the environment, such as `routing.policy=blocks` or `workers.0.max_num_seqs=64`. Again
    /// for others. Not for secrets: who else is on the machine can read command lines
    #[arg(long = "override", value_name = "KEY=VALUE")]
    pub(super) list: Vec<Override>,
}

impl Overrides {
    /// The environment of this process, and these above it.
    pub(super) fn environment(&self) -> Environment {
        Environment::of_process().with(self.list.clone())
    }
}
