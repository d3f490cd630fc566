#!/usr/bin/env bash
# Views under faults: lost, repeated and overtaken event batches, whole replays, restarts, cuts and late answers, over
# every sort of event source, in virtual time. Whatever happens, the index must end as the engine's cache is.
#
#     scripts/chaos.sh [SEEDS] [FIRST]        1000 seeds from 1, if nothing else is said
#
# Ends at the first fault and prints its seed; `scripts/chaos.sh 1 SEED` repeats it. Prints figures for each sort of
# fault and source. At most 100000 seeds, and at most an hour. Then the event bus itself: a nats-server that is down when
# the router starts, one that is killed under load, and bursts that a subscriber is too slow for; their figures are the
# lines that begin with R19, R20 and R21. Then clients at the door and workers that die, hang, refuse and cut, in full
# counts, with OpenAI's SDK as a judge and slowhttptest as an attacker: R1 to R12, R16, R17, R32, R36. Needs what
# scripts/check.sh needs, and that it has run once.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"     # where Debian keeps nats-server, off an ordinary user's PATH
[ -d "${HOME:-}/.cargo/bin" ] && PATH="$PATH:$HOME/.cargo/bin"

readonly SEEDS="${1:-1000}" FIRST="${2:-1}"
for number in "$SEEDS" "$FIRST"; do
    if ! [[ "$number" =~ ^[1-9][0-9]{0,8}$ ]]; then
        echo "chaos: \`$number\` is no number of seeds; usage: scripts/chaos.sh [SEEDS] [FIRST]" >&2
        exit 2
    fi
done
if [ "$SEEDS" -gt 100000 ]; then
    echo "chaos: at most 100000 seeds" >&2
    exit 2
fi
# Told now, not when all else has run for a quarter of an hour.
export WARMPATH_TEST_PYTHON="${WARMPATH_TEST_PYTHON:-$PWD/.cache/venv/bin/python}"
if [ "$SEEDS" -gt 1 ] && ! [ -x "$WARMPATH_TEST_PYTHON" ]; then
    echo "chaos: $WARMPATH_TEST_PYTHON is missing: scripts/check.sh makes it" >&2
    exit 2
fi

failed() {
    local status=$?
    echo "chaos: FAILED (exit $status, after $SECONDS s)" >&2
    exit "$status"
}

echo "chaos: $SEEDS seeds from $FIRST for each sort of fault and source"
export WARMPATH_CHAOS_SEEDS="$SEEDS" WARMPATH_CHAOS_FROM="$FIRST"
timeout 3600 cargo test --locked -p warmpath-indexer --test repair -- --nocapture || failed
if [ "$SEEDS" -eq 1 ]; then
    exit                                                # a seed that is repeated has nothing to do with real servers
fi
echo "chaos: real servers: down at the start, killed under load, slower than a burst of 200 000 messages a second for 2 s"
export WARMPATH_CHAOS_BURST=400000
timeout 1200 cargo test --locked --test gateway -- r19_ r20_ r21_ --nocapture --test-threads 1 || failed
echo "chaos: clients at the door"
scripts/chaos/door.sh || failed
scripts/chaos/slow-http.sh || failed
echo "chaos: workers that die, hang, refuse and cut"
timeout 3600 cargo test --locked -p warmpath --test gateway chaos_ -- --ignored --nocapture --test-threads 1 \
    --skip door:: --skip drain:: --skip stalled:: || failed
echo "chaos: passed in $SECONDS s"
