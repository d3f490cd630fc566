#!/usr/bin/env bash
# Feeds the decoders of events what no engine would send, guided by what they reach, until the time is up: a panic, a hang
# of more than a second or more than 512 MiB of memory fails.
#
#     scripts/fuzz.sh [SECONDS] [TARGET...]   180 seconds for each target of indexer/fuzz, if nothing else is said
#
# It begins with the recorded frames of tests/data/frames and whatever earlier runs have found (indexer/fuzz/corpus). An
# input that failed is kept below indexer/fuzz/artifacts; `cargo +nightly fuzz run TARGET FILE` in indexer/ repeats it.
#
# It needs a nightly toolchain (`rustup toolchain install nightly`), cargo-fuzz (`cargo install cargo-fuzz`), a C++
# compiler, and python3. None of them is installed from here.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../indexer"
exec </dev/null
[ -d "${HOME:-}/.cargo/bin" ] && PATH="$PATH:$HOME/.cargo/bin"

readonly SECONDS_EACH="${1:-180}"
if ! [[ "$SECONDS_EACH" =~ ^[1-9][0-9]{0,5}$ ]]; then
    echo "fuzz: \`$SECONDS_EACH\` is no number of seconds; usage: scripts/fuzz.sh [SECONDS] [TARGET...]" >&2
    exit 2
fi
shift || true
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "fuzz: needs a nightly toolchain and cargo-fuzz; see the head of this script" >&2
    exit 2
fi
targets=("$@")
[ "${#targets[@]}" -gt 0 ] || mapfile -t targets < <(cargo +nightly fuzz list)

for target in "${targets[@]}"; do
    mkdir -p "fuzz/corpus/$target"
done
# The payload is the last frame of each line.
[ ! -d fuzz/corpus/msgpack ] || python3 - ../tests/data/frames/*/events.jsonl <<'PYTHON'
import hashlib, json, pathlib, sys
for file in sys.argv[1:]:
    for line in open(file):
        payload = bytes.fromhex(json.loads(line)["frames"][-1])
        name = hashlib.sha256(payload).hexdigest()[:20]
        pathlib.Path("fuzz/corpus/msgpack", name).write_bytes(payload)
PYTHON
[ ! -d fuzz/corpus/json ] || cat > fuzz/corpus/json/stored <<'JSON'
{"worker_id":1,"event":{"event_id":7,"data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":101,"tokens_hash":5}]}}}}
JSON

for target in "${targets[@]}"; do
    echo "fuzz: $target for $SECONDS_EACH s"
    cargo +nightly fuzz run "$target" -- -max_total_time="$SECONDS_EACH" -rss_limit_mb=512 -timeout=1 -max_len=65536 \
        -print_final_stats=1
done
echo "fuzz: passed"
