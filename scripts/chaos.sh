#!/usr/bin/env bash
# Views under faults: lost, repeated and overtaken event batches, whole replays, restarts, cuts and late answers, over
# every sort of event source, in virtual time. Whatever happens, the index must end as the engine's cache is.
#
#     scripts/chaos.sh [SEEDS] [FIRST]        1000 seeds from 1, if nothing else is said
#
# Ends at the first fault and prints its seed; `scripts/chaos.sh 1 SEED` repeats it. Prints figures for each sort of
# fault and source. At most 100000 seeds, and at most an hour.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
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

echo "chaos: $SEEDS seeds from $FIRST for each sort of fault and source"
export WARMPATH_CHAOS_SEEDS="$SEEDS" WARMPATH_CHAOS_FROM="$FIRST"
if timeout 3600 cargo test --locked -p warmpath-indexer --test repair -- --nocapture; then
    echo "chaos: passed in $SECONDS s"
else
    status=$?
    echo "chaos: FAILED (exit $status, after $SECONDS s)" >&2
    exit "$status"
fi
