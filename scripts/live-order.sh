#!/usr/bin/env bash
# Shows whether policies stand in the same order over real HTTP as in virtual time.
#
#   scripts/live-order.sh [--quick]
#
# `warmpath demo` sends a slice of the conversation trace through the router to simulated engines, all on loopback, under one
# policy after the other, REPEATS times (3; with --quick once, half of the slice): half a minute for each policy and time.
# The same requests go as often through the virtual fleet of the same engines, each as late, by chance, as the sender was on
# the average: a run in which all come to the tick is one of many that differ by some per cent, and of a policy that does not
# draw it gives the same figures whatever the seed. Two policies are compared where their mean times to first token differ by
# more than runs of one policy do, live and in virtual time, and by more than 2 %. Ends with 1 where any two stand the other
# way round live. It needs a machine that does little else: figures of a lag between due and sent that is not small beside
# them are those of the machine, so load and lag are shown.
#
# WARMPATH names the binary; POLICIES the policies, with commas between; JSON a file for the rows.
set -euo pipefail
cd "$(dirname "$0")/.."

repeats=${REPEATS:-3} part=()
if [ "${1:-}" = --quick ]; then
    repeats=${REPEATS:-1} part=(--requests 350)
fi
warmpath=${WARMPATH:-target/release/warmpath}
policies=${POLICIES:-kv,logit,blocks,product,affinity,chwbl,preble,aibrix,predicted,approx_tree,approx_lru,round_robin,random,least_requests,power_of_two}
# What the demo has if it is not told otherwise: workers, how much faster, tokens in place of 512, blocks of 16.
workers=4 speed=140 scale=64 cache_blocks=4096 block=16
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
rows=${JSON:-$folder/rows.jsonl}
: >"$rows"
readonly repeats warmpath policies workers speed scale cache_blocks block folder rows

# The demo's requests, as it scales and splits them.
gzip -cd src/demo/conversation-slice.jsonl.gz | jq -c --argjson to "$scale" --argjson block "$block" '
    def scaled: ((. / 512 | floor) * $to + ((. % 512) * $to / 512 | ceil)) | [., 1] | max;
    .input_length |= scaled | .output_length |= scaled
    | ($to / $block) as $parts | (.input_length / $block | ceil) as $blocks
    | .hash_ids |= (map(range($parts) as $part | . * $parts + $part) | .[:$blocks])' >"$folder/slice.jsonl"

# late RUN: the slice as the virtual fleet gets it in this run: each request up to twice as late as this run's senders were
# on the average, in ms of the trace. Multiples of the golden ratio stand for chance: the runs differ, and can be had again.
late() {
    local lag
    lag=$(jq -s --argjson seed "$1" 'map(select(.way == "live" and .seed == $seed) | .lag_ms.mean) | add / length' "$rows")
    jq -cs --argjson seed "$1" --argjson most "$(jq -n "2 * $lag * $speed")" '
        to_entries[] | ((.key + 1 + $seed * 65536) * 2654435761 % 4294967296 / 4294967296) as $chance
        | .value | .timestamp |= (. + $chance * $most | round)' "$folder/slice.jsonl"
}

for seed in $(seq "$repeats"); do
    echo "live, $seed of $repeats; load of the machine: $(cut -d ' ' -f 1-3 /proc/loadavg) on $(nproc) cores" >&2
    timeout 1200 "$warmpath" demo --policy "$policies" --workers "$workers" --speed "$speed" --cache-blocks "$cache_blocks" \
        --seed "$seed" --json "${part[@]}" 2>/dev/null | jq -c '.rows[] + {way: "live"}' >>"$rows"
    late "$seed" >"$folder/late.jsonl"
    timeout 1200 "$warmpath" replay --trace "$folder/late.jsonl" --format mooncake --block-size "$block" --policy "$policies" \
        --workers "$workers" --speed "$speed" --cache-blocks "$cache_blocks" --max-num-seqs 1024 --seed "$seed" --json "${part[@]}" |
        jq -c '.rows[] + {way: "virtual"}' >>"$rows"
done

jq -rs '
    def mean: add / length;
    def shown: . * 10 | round / 10 | tostring;
    def figures: map(.ttft_ms.mean) | {mean: mean, low: min, high: max};
    def apart($one; $other): ($one.low > $other.high or $other.low > $one.high)
        and ([$one.mean, $other.mean] | max / min) > 1.02;
    def order($way): to_entries | sort_by(.value[$way].mean) | map(.key) | join(" < ");
    (group_by(.policy) | map({key: .[0].policy, value: {live: (map(select(.way == "live")) | figures),
        virtual: (map(select(.way == "virtual")) | figures), hit: (map(select(.way == "live") | .hit_rate) | mean),
        virtual_hit: (map(select(.way == "virtual") | .hit_rate) | mean),
        lag: (map(select(.way == "live") | .lag_ms.mean // 0) | mean),
        lost: (map(.requests - .completed) | add)}}) | from_entries) as $of
    | ($of | keys) as $names
    | [range($names | length) as $a | range($a + 1; $names | length) as $b | $of[$names[$a]] as $one | $of[$names[$b]] as $other
        | {pair: "\($names[$a]), \($names[$b])", clear: (apart($one.live; $other.live) and apart($one.virtual; $other.virtual)),
           same: (($one.live.mean < $other.live.mean) == ($one.virtual.mean < $other.virtual.mean))}] as $pairs
    | "mean time to first token, ms (lowest and highest of the runs); hit rate; lag of the sender; requests that failed",
      ($of | to_entries | sort_by(.value.live.mean)[] | .key as $name | .value
        | "  \($name): live \(.live.mean | shown) (\(.live.low | shown) to \(.live.high | shown)), virtual \(.virtual.mean | shown) "
          + "(\(.virtual.low | shown) to \(.virtual.high | shown)); \(.hit * 100 | shown) % and \(.virtual_hit * 100 | shown) %; "
          + "\(.lag | shown) ms; \(.lost)"),
      "live:    \($of | order("live"))",
      "virtual: \($of | order("virtual"))",
      "\([$pairs[] | select(.clear and .same)] | length) pairs stand alike, \([$pairs[] | select(.clear | not)] | length) are within noise, "
        + "\([$pairs[] | select(.clear and (.same | not))] | length) stand the other way round",
      ($pairs[] | select(.clear and (.same | not)) | "the other way round: \(.pair)")' "$rows" | tee "$folder/shown"
echo "load of the machine: $(cut -d ' ' -f 1-3 /proc/loadavg)" >&2
! grep -q '^the other way round' "$folder/shown"
