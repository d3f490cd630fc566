//! Measures Warmpath's prefix index beside `dynamo-kv-router` and `kv-index`: the measurements are those of
//! `indexer/examples/index_bench`, file by file; only the two adapters are here. `scripts/bench.sh index --peers` runs it.

#[path = "../../../indexer/examples/index_bench/apply.rs"]
mod apply;
#[path = "../../../indexer/examples/index_bench/arguments.rs"]
mod arguments;
#[path = "../../../indexer/examples/index_bench/case.rs"]
mod case;
mod chain_index;
#[path = "../../../indexer/examples/index_bench/clock.rs"]
mod clock;
#[path = "../../../indexer/examples/index_bench/draws.rs"]
mod draws;
mod dynamo;
#[path = "../../../indexer/examples/index_bench/feed.rs"]
mod feed;
#[path = "../../../indexer/examples/index_bench/fleet.rs"]
mod fleet;
#[path = "../../../indexer/examples/index_bench/look_up.rs"]
mod look_up;
#[path = "../../../indexer/examples/index_bench/memory.rs"]
mod memory;
#[path = "../../../indexer/examples/index_bench/plan.rs"]
mod plan;
#[path = "../../../indexer/examples/index_bench/reference.rs"]
mod reference;
#[path = "../../../indexer/examples/index_bench/report.rs"]
mod report;
#[path = "../../../indexer/examples/index_bench/run.rs"]
mod run;
#[path = "../../../indexer/examples/index_bench/subject.rs"]
mod subject;
#[path = "../../../indexer/examples/index_bench/trace.rs"]
mod trace;
#[path = "../../../indexer/examples/index_bench/visible.rs"]
mod visible;
#[path = "../../../indexer/examples/index_bench/warmpath.rs"]
mod warmpath;
#[path = "../../../indexer/examples/index_bench/workload.rs"]
mod workload;

use case::Contender;

fn main() -> std::process::ExitCode {
    run::run(&[
        Contender::of::<warmpath::Warmpath>(),
        Contender::of::<dynamo::Compressed>(),
        Contender::of::<chain_index::Chains>(),
    ])
}
