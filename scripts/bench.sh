#!/usr/bin/env bash
# Measures Warmpath.
#
#     scripts/bench.sh index [--quick] [--json FILE] [...]     the prefix index; `index --help` tells the rest
#     scripts/bench.sh index --peers [...]                     the same beside other projects' indexes, with ratios
#     scripts/bench.sh decision [--json FILE] [--rounds N]     from a request to the hashes of its blocks, cold and warm
#     scripts/bench.sh events [--json FILE] [--blocks N]       decoding events, and applying them to the index
#
# It needs Rust and a C compiler. `--peers` builds scripts/peers, a workspace of its own that fetches the other projects'
# crates (some three minutes on two cores, once). Measure on a machine that does nothing else; every figure that stands
# beside another's must come from the same run.
set -euo pipefail

# Every bench is a function bench_NAME.
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root

usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
}

benches() {
    declare -F | sed -n 's/^declare -f bench_//p' | paste -sd ' '
}

bench_index() {
    local argument peers=false arguments=()
    for argument in "$@"; do
        if [ "$argument" = --peers ]; then
            peers=true
        else
            arguments+=("$argument")
        fi
    done
    local program trace="$root/tests/data/traces/mooncake-conversation.jsonl.gz"
    if $peers; then
        program="$root/scripts/peers/target/release/warmpath-peers"
        cargo build --release --locked --manifest-path "$root/scripts/peers/Cargo.toml" \
            --target-dir "$root/scripts/peers/target"
    else
        local target
        target="${CARGO_TARGET_DIR:-$root/target}"
        program="$target/release/examples/index_bench"
        cargo build --release --locked --manifest-path "$root/Cargo.toml" --target-dir "$target" \
            -p warmpath-indexer --example index_bench
    fi
    exec "$program" --trace "$trace" "${arguments[@]}"
}

bench_decision() {
    "$root/scripts/fetch-tokenizer.sh"
    cargo run --release --locked --manifest-path "$root/Cargo.toml" --example decision_bench -- "$@"
}

bench_events() {
    cargo run --release --locked --manifest-path "$root/Cargo.toml" -p warmpath-indexer --example events_bench -- "$@"
}

case "${1:-}" in
    "" | -h | --help)
        usage
        ;;
    *)
        if ! declare -F "bench_$1" >/dev/null; then
            echo "bench.sh: there is no bench \`$1\` (there are: $(benches))" >&2
            exit 2
        fi
        "bench_$1" "${@:2}"
        ;;
esac
