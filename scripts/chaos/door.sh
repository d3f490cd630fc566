#!/usr/bin/env bash
# Clients at the door in full counts: a thousand slow ones, 200 that read nothing, and a stop under 100 streams. The check
# runs the same with small counts.
#
#     scripts/chaos/door.sh
#
# Prints figures, and ends at the first fault. About two minutes beside the build, and 2000 file descriptors.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec </dev/null
[ -d "${HOME:-}/.cargo/bin" ] && PATH="$PATH:$HOME/.cargo/bin"

[ "$(ulimit -n)" = unlimited ] || [ "$(ulimit -n)" -ge 4096 ] || ulimit -n 4096

# One after the other: they measure time and memory.
for name in door::chaos_r12 drain::chaos_r16 stalled::chaos_r10 stalled::chaos_r11; do
    timeout 1800 cargo test --locked -p warmpath --test gateway -- --ignored --nocapture --test-threads 1 "$name"
done
echo "chaos: the door held, $SECONDS s"
