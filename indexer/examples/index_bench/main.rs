//! Measures the prefix index; `--help` says what and how. `scripts/bench.sh index` runs it.
//!
//! `workload`, `trace` and `draws` say which requests come, `fleet` and `plan` what is stored and given up for them,
//! `reference` what the exact answers are, `feed` makes events of it; `subject` brings the index under measurement;
//! `apply`, `look_up`, `visible` and `memory` measure; `case` is one process of it, `run` all of them.

mod apply;
mod arguments;
mod case;
mod clock;
mod draws;
mod feed;
mod fleet;
mod look_up;
mod memory;
mod plan;
mod reference;
mod report;
mod run;
mod subject;
mod trace;
mod visible;
mod warmpath;
mod workload;

fn main() -> std::process::ExitCode {
    run::run(&[case::Contender::of::<warmpath::Warmpath>()])
}
