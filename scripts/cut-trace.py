#!/usr/bin/env python3
"""Cuts the demo's slice out of the Mooncake conversation trace.

    scripts/cut-trace.py conversation_trace.jsonl.gz src/demo/conversation-slice.jsonl.gz

The rule, fixed before anything was measured on a slice:
- requests with an equal second hash id form a group (all requests share the first); one with a single id stands alone;
- groups are numbered in order of their first request; every k-th is taken whole, over the whole hour, starting at an
  offset that `random.Random(seed).randrange(k)` draws;
- k is the one whose slice comes nearest to the wanted number of requests. Size alone chooses it, never reuse;
- kept lines stay as they are, byte for byte, in their order. Lengths and times are not scaled.

The same input gives the same lines anywhere; the compressed bytes can differ between versions of zlib.
"""

import argparse
import gzip
import io
import json
import random
import sys
from pathlib import Path

K_MAX = 1_000


def groups_of(requests):
    """Indices of the requests of each group, groups in order of first appearance."""
    groups = {}
    for index, request in enumerate(requests):
        ids = request["hash_ids"]
        key = ("group", ids[1]) if len(ids) > 1 else ("alone", index)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def cut(groups, every, seed):
    """Indices of the requests in the slice, ascending, and how many groups they come from."""
    offset = random.Random(seed).randrange(every)
    chosen = groups[offset::every]
    return sorted(index for group in chosen for index in group), len(chosen)


def nearest_k(groups, wanted, seed):
    """The k whose slice has nearest to `wanted` requests; the smaller k on a tie."""
    return min(range(1, K_MAX + 1), key=lambda k: (abs(len(cut(groups, k, seed)[0]) - wanted), k))


def reuse(requests):
    """Share of blocks that an infinite cache has seen before."""
    seen, hits, blocks = set(), 0, 0
    for request in requests:
        for block in request["hash_ids"]:
            blocks += 1
            hits += block in seen
            seen.add(block)
    return hits, blocks


def describe(name, requests):
    hits, blocks = reuse(requests)
    tokens_in = sum(request["input_length"] for request in requests)
    tokens_out = sum(request["output_length"] for request in requests)
    span_s = (requests[-1]["timestamp"] - requests[0]["timestamp"]) / 1000
    print(
        f"{name}: {len(requests)} requests over {span_s:.0f} s, {tokens_in} input tokens, {tokens_out} output tokens, "
        f"{blocks} blocks, {hits} seen before ({100 * hits / blocks:.4f} %)"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="the whole conversation trace, gzipped JSON lines")
    parser.add_argument("slice", type=Path, help="where the slice goes, gzipped")
    parser.add_argument("--requests", type=int, default=800, help="wanted size; default: 800")
    parser.add_argument("--seed", type=int, default=1, help="draws the offset; default: 1")
    arguments = parser.parse_args()

    with gzip.open(arguments.trace, "rt", encoding="utf-8", newline="\n") as trace:
        lines = [line for line in trace if line.strip()]
    requests = [json.loads(line) for line in lines]
    groups = groups_of(requests)
    k = nearest_k(groups, arguments.requests, arguments.seed)
    chosen, chosen_groups = cut(groups, k, arguments.seed)
    if not chosen:
        sys.exit("the slice is empty")

    # No name and no time in the header: the same lines give the same file.
    compressed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=compressed, mtime=0) as out:
        out.write("".join(lines[index] for index in chosen).encode("utf-8"))
    arguments.slice.write_bytes(compressed.getvalue())

    print(f"k = {k}, seed {arguments.seed}: {chosen_groups} of {len(groups)} groups, {len(compressed.getvalue())} bytes")
    describe("slice", [requests[index] for index in chosen])
    describe("whole trace", requests)
    describe("its first thousand lines", requests[:1000])


if __name__ == "__main__":
    main()
