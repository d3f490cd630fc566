#!/usr/bin/env bash
# R12 as others attack: slowhttptest with a thousand slow heads, then a thousand slow bodies, against a router beside one
# simulated engine, at default time-outs.
#
#     scripts/chaos/slow-http.sh [CONNECTIONS]
#
# Each connection must be closed within 11 s, and slowhttptest's own probes must be answered all the while. Prints figures.
# Needs slowhttptest, which it installs as root on Debian. Half a minute beside the build, and 3000 file descriptors.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec </dev/null
[ -d "${HOME:-}/.cargo/bin" ] && PATH="$PATH:$HOME/.cargo/bin"

readonly CONNECTIONS="${1:-1000}" CLOSED_WITHIN=11
if ! [[ "$CONNECTIONS" =~ ^[1-9][0-9]{0,3}$ ]]; then
    echo "slow-http: \`$CONNECTIONS\` is no number of connections from 1 to 9999" >&2
    exit 2
fi
if ! command -v slowhttptest >/dev/null; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "slow-http: slowhttptest is missing (Debian: apt-get install slowhttptest)" >&2
        exit 1
    fi
    apt-get install -y -q slowhttptest >/dev/null
fi
[ "$(ulimit -n)" = unlimited ] || [ "$(ulimit -n)" -ge $((3 * CONNECTIONS)) ] || ulimit -n $((3 * CONNECTIONS + 64))

cargo build --locked --quiet --bin warmpath
readonly WARMPATH="${CARGO_TARGET_DIR:-target}/debug/warmpath"
folder="$(mktemp -d)"
readonly folder
trap 'jobs -p | xargs -r kill; rm -rf "$folder"' EXIT

# address LOG WORDS: where a program says that it listens, behind these words.
address() {
    local found
    for _ in $(seq 100); do
        found="$(sed -n "s#.*$2 http://\([0-9.:]*\).*#\1#p" "$1" | head -n 1)"
        [ -n "$found" ] && echo "$found" && return
        sleep 0.1
    done
    echo "slow-http: nothing listens: $(cat "$1")" >&2
    return 1
}

"$WARMPATH" mock-engine --listen 127.0.0.1:0 >"$folder/engine.log" 2>&1 &
engine="$(address "$folder/engine.log" 'engine on')"
cat >"$folder/router.yaml" <<YAML
listen: {data: "127.0.0.1:0", admin: "127.0.0.1:0"}
models: [{name: demo, tokenizer: null}]
workers: [{id: w, url: "http://$engine", model: demo, events: none}]
YAML
"$WARMPATH" serve --config "$folder/router.yaml" >"$folder/router.log" 2>&1 &
router="$(address "$folder/router.log" 'serving on')"

# attack NAME OPTION...: prints how it went, from slowhttptest's table of seconds; fails if it did not go well.
attack() {
    local name="$1"
    shift
    timeout 90 slowhttptest -c "$CONNECTIONS" -r 500 -i 5 -l 60 -p 3 -g -o "$folder/$name" "$@" >"$folder/$name.log" 2>&1 || {
        echo "slow-http: slowhttptest ended badly: $(tail -n 5 "$folder/$name.log")" >&2
        return 1
    }
    awk -F, -v name="$name" -v wanted="$CONNECTIONS" -v within="$CLOSED_WITHIN" '
        NR == 1 { next }
        !all && $2 + $4 >= wanted { all = 1; opened = $1 }
        { last = $1; if ($5 == 0) unanswered++ }
        END {
            # What was still open in the last line was closed in the second that followed.
            printf "R12: slowhttptest, slow %s: %d connections, the last closed %d s after it was opened at most; " \
                "seconds without an answer for others: %d\n", name, wanted, last + 1 - opened, unanswered
            exit !(all && last + 1 - opened <= within && !unanswered)
        }' "$folder/$name.csv" && grep -q 'No open connections left' "$folder/$name.log" || {
        echo "slow-http: slow $name got through" >&2
        cat "$folder/$name.csv" >&2
        return 1
    }
}

attack heads -H -u "http://$router/v1/models"
attack bodies -B -s 8192 -t POST -f application/json -u "http://$router/v1/completions"
