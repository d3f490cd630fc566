#!/usr/bin/env bash
# Warmpath in front of two real vLLM engines on a CPU: a small model of random weights, a real tokenizer.
#
#     scripts/real-engines.sh [DIR]        DIR keeps what is fetched (default .cache/real-engines, 3 GB)
#
# It starts the engines with nothing but their own event flags, the router on their ZMQ sockets, and drives completions
# and chats through it; then the same with a `warmpath bridge` beside each engine and a NATS server. It prints what came
# of it, and fails where the warm engine was not chosen, a warm first token is not much sooner than a cold one, or what
# the router promised is not what the engines reported. Then it kills an engine and starts it again.
#
# It needs Rust, a C compiler, binutils, Python 3.11 or newer with venv, npm, curl, libnuma1 and nats-server (Debian:
# apt-get install gcc binutils python3-venv npm curl libnuma1 nats-server), 8 GB of memory, and some minutes. All ports
# are on 127.0.0.1: 8111, 8112 (engines), 5571, 5572, 6571, 6572 (events), 8180, 9190 (router), 4322 (NATS).
# It ends what it started, and nothing else.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root
mkdir -p "${1:-$root/.cache/real-engines}"
dir="$(cd "${1:-$root/.cache/real-engines}" && pwd)"
readonly dir
readonly warmpath="$root/target/release/warmpath"
readonly router=http://127.0.0.1:8180 admin=http://127.0.0.1:9190
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
started=()

say() { printf '\n== %s\n' "$*"; }

# Ends a program that was started here, its children too.
end() { kill -- "-$1" 2>/dev/null || kill "$1" 2>/dev/null || true; }

finish() {
    local pid
    for pid in "${started[@]}"; do end "$pid"; done
    for pid in "$dir"/run/*.pid; do [ -e "$pid" ] && end "$(cat "$pid")"; done
    wait 2>/dev/null || true
}
trap finish EXIT

# Starts a program with its output in a log; its process id goes to `last`.
start() {
    local log="$dir/logs/$1.log"
    shift
    setsid "$@" >"$log" 2>&1 &
    last=$!
    started+=("$last")
}

# Waits until a URL answers with success, for at most so many half seconds.
until_ok() {
    local left
    for ((left = $2; left > 0; left--)); do
        curl -sf -m 2 "$1" >/dev/null && return
        sleep 0.5
    done
    echo "$1 does not answer; logs are in $dir/logs" >&2
    return 1
}

engine() {
    (cd "$dir" && CORE="$1" NAME=mid BLOCKS=257 MAXLEN=8192 ./startwait.sh "$2" "$3" "$dir/models/mid")
}

# What the router needs to know; $1 is how events come.
config() {
    cat <<YAML
listen: {data: 127.0.0.1:8180, admin: 127.0.0.1:9190, routing_headers: true}
models:
  - name: mid
    tokenizer: $dir/models/mid/tokenizer.json
    block_size: 32
workers:
  - {id: engine-a, url: "http://127.0.0.1:8111", model: mid, max_num_seqs: 8, $2}
  - {id: engine-b, url: "http://127.0.0.1:8112", model: mid, max_num_seqs: 8, $3}
routing: {policy: kv}
$1
YAML
}

serve() {
    "$warmpath" check "$dir/router.yaml"
    start "router-$1" "$warmpath" serve --config "$dir/router.yaml"
    router_pid=$last
    until_ok "$admin/readyz" 60
}

reset_caches() {
    local port
    for port in 8111 8112; do curl -sf -X POST "http://127.0.0.1:$port/reset_prefix_cache" >/dev/null; done
    sleep 1
}

drive() {
    say "$1"
    python3 "$root/scripts/engines/drive.py" "$router" mid
}

# How long until a killed engine that was started again is used: purged first, warm again after its own events.
kill_and_return() {
    say "an engine is killed and started again"
    end "$(cat "$dir/run/8111.pid")"
    until ! curl -sf -m 1 http://127.0.0.1:8111/health >/dev/null; do sleep 0.1; done
    curl -sf "$router/v1/completions" -H 'content-type: application/json' \
        -d '{"model": "mid", "prompt": "while one is away", "max_tokens": 2}' >/dev/null
    echo "requests go on"
    engine 0 8111 5571
    python3 "$root/scripts/engines/returned.py" "$router" mid engine-a
}

say "engines"
if [ ! -e "$dir/models/mid/config.json" ]; then "$root/scripts/engines/setup.sh" "$dir"; fi
mkdir -p "$dir/logs" "$dir/run"
cargo build --release --locked --manifest-path "$root/Cargo.toml"
engine 0 8111 5571
engine 1 8112 5572

config "" "events: zmq, zmq_endpoint: 'tcp://127.0.0.1:5571', zmq_replay: 'tcp://127.0.0.1:6571'" \
    "events: zmq, zmq_endpoint: 'tcp://127.0.0.1:5572', zmq_replay: 'tcp://127.0.0.1:6572'" >"$dir/router.yaml"
serve zmq
drive "events over ZMQ"
kill_and_return
end "$router_pid"
wait "$router_pid" 2>/dev/null || true

say "bridges and NATS"
start nats nats-server -a 127.0.0.1 -p 4322 -js -sd "$(mktemp -d "$dir/nats.XXXXXX")"
reset_caches
for n in 1 2; do
    start "bridge-$n" "$warmpath" bridge --engine "http://127.0.0.1:811$n" --model mid \
        --worker "engine-$([ $n = 1 ] && echo a || echo b)" --nats nats://127.0.0.1:4322 \
        --zmq "tcp://127.0.0.1:557$n" --zmq-replay "tcp://127.0.0.1:657$n" --block-size 32
done
config "events: {nats: {url: 'nats://127.0.0.1:4322'}}" "events: nats" "events: nats" >"$dir/router.yaml"
serve nats
sleep 2
drive "events over bridges and NATS"
say "done"
