#!/usr/bin/env bash
# Builds the router as docker/Dockerfile builds it, and tries it where nothing but it is, as in the image: no shell, no
# library, nobody's rights. A release build takes minutes, so scripts/check.sh leaves this out.
#
#     scripts/check-image.sh [BINARY]        BINARY: one that was built so before
#
# It needs readelf (Debian: binutils), curl, python3 for free ports, and for the empty root to be run as root: else that part
# is SKIPPED.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly BYTES_MAX=30000000
step() { printf -- '-- %s\n' "$*"; }
fail() { printf 'check-image: %s\n' "$*" >&2; exit 1; }

binary="${1:-}"
if [ -z "$binary" ]; then
    step "the Dockerfile's build"
    target="$(rustc -vV | sed -n 's/^host: //p')"
    grep -q -- '--config docker/static.toml' docker/Dockerfile || fail "docker/Dockerfile does not build a static program"
    cargo build --release --locked --bin warmpath --target "$target" --config docker/static.toml
    binary="target/$target/release/warmpath"
fi

step "a static program, and small"
# To a variable first: a pipe that ends early would fail it.
headers="$(readelf -lW "$binary")"
dynamic="$(readelf -dW "$binary")"
! grep -q INTERP <<<"$headers" || fail "$binary asks for a dynamic loader"
! grep -q NEEDED <<<"$dynamic" || fail "$binary needs libraries"
bytes="$(stat -c %s "$binary")"
[ "$bytes" -le "$BYTES_MAX" ] || fail "$binary has $bytes bytes, more than $BYTES_MAX"
echo "static, $bytes bytes"

step "alone in a root folder, as nobody"
folder="$(mktemp -d)"
started=()
finish() {
    local status=$?
    [ "${#started[@]}" -eq 0 ] || kill "${started[@]}" 2>/dev/null || true
    [ "$status" -eq 0 ] || cat "$folder"/*.log >&2 2>/dev/null || true
    rm -rf "$folder"
}
trap finish EXIT
if [ "$(id -u)" -ne 0 ] || ! chroot --userspec=65532:65532 / true 2>/dev/null; then
    echo "SKIPPED: only root can have another root folder"
    exit 0
fi
alone=(chroot --userspec=65532:65532)
root="$folder/root"
mkdir -p "$root/etc/warmpath" "$root/dev"
# Every runtime of containers brings these two: a static program seeds its chance from them.
mknod -m 444 "$root/dev/random" c 1 8 && mknod -m 444 "$root/dev/urandom" c 1 9 || {
    echo "SKIPPED: no device can be made here"
    exit 0
}
cp "$binary" "$root/warmpath"
chmod 755 "$folder" "$root" "$root/warmpath"
printf '127.0.0.1 localhost\n127.0.0.1 worker-1.example\n' >"$root/etc/hosts"
read -r engine data admin < <(python3 -c '
import socket
taken = [socket.socket() for _ in range(3)]
for one in taken:
    one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in taken))')
cat >"$root/etc/warmpath/warmpath.yaml" <<YAML
listen: {data: '127.0.0.1:$data', admin: '127.0.0.1:$admin'}
models: [{name: m, tokenizer: bytes}]
workers: [{id: worker-1, url: 'http://worker-1.example:$engine', model: m}]
timeouts: {health_interval: 200ms}
YAML
"${alone[@]}" "$root" /warmpath --version
"${alone[@]}" "$root" /warmpath check /etc/warmpath/warmpath.yaml
"${alone[@]}" "$root" /warmpath mock-engine --model m --worker worker-1 --listen "127.0.0.1:$engine" >"$folder/engine.log" 2>&1 &
started+=($!)
"${alone[@]}" "$root" /warmpath serve --config /etc/warmpath/warmpath.yaml >"$folder/router.log" 2>&1 &
started+=($!)
router="${started[1]}"
for _ in $(seq 100); do
    curl -sf -o /dev/null "http://127.0.0.1:$admin/readyz" && break
    kill -0 "$router" || fail "the router has ended"
    sleep 0.1
done
body='{"model": "m", "prompt": "a worker that is found by its name", "max_tokens": 4}'
curl -sf "http://127.0.0.1:$data/v1/completions" -H 'content-type: application/json' -d "$body" | grep -q '"finish_reason"' ||
    fail "no answer from a worker that is known by its name"
"${alone[@]}" "$root" /warmpath top --once --admin "http://localhost:$admin" | head -n 1
echo "it serves; $(awk '/VmRSS/ {print $2 " " $3}' "/proc/$router/status") at rest"
