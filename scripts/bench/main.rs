//! Measures the proxy beside nginx, and what a decision costs; `--help` says what and how. `scripts/bench.sh proxy` and
//! `scripts/bench.sh decision` run it.
//!
//! `corpus` and `bodies` say what clients ask, `tokens` is all that knows how a request becomes token ids, `figures` tells
//! what was measured. `proxy` starts the programs and takes turns between them, each in a process of its own: `worker` is
//! the engine behind all of them, `client` the load. `decision` needs no sockets.

mod arguments;
mod bodies;
mod corpus;
mod decision;
mod draws;
mod figures;
mod proxy;
mod times;
mod tokens;

use std::process::ExitCode;

use arguments::Arguments;
use mimalloc::MiMalloc;

/// The program's, so that a decision costs here what it costs there.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let done = match Arguments::parse(std::env::args().skip(1)) {
        Ok(Arguments::Help) => {
            print!("{}", arguments::HELP);
            Ok(true)
        }
        Ok(Arguments::Proxy(plan)) => proxy::run(&plan),
        Ok(Arguments::Decision(plan)) => decision::run(&plan),
        Ok(Arguments::Worker(ports)) => proxy::worker::run(ports).map(|()| true),
        Ok(Arguments::Client(spec)) => proxy::client::run(&spec).map(|()| true),
        Err(fault) => {
            eprintln!("bench: {fault}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
