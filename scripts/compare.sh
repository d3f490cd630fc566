#!/usr/bin/env bash
# Compares all policies in virtual time, and writes the comparison as Markdown.
#
#   scripts/compare.sh [--quick] TRACE OUT.md
#
# TRACE is a conversation trace in Mooncake's form (12 031 requests; `conversation_trace.jsonl` of its FAST '25 release).
# Fleets of 4, 8 and 16 workers, loads of 0.25, 0.5 and 0.75 of the trace's own rate for each worker, caches of 2 048 and
# 8 192 blocks of 512, both timings; and five generated workloads whose rate a worker of the polynomial bears, and five
# that were made when `predicted` was done. `--quick` takes eight workers only, and the large caches. Every policy is at
# the defaults of its source. Then the same with a slow worker, late events, no metrics, and faster and slower engines.
# WARMPATH names the binary; JOBS the threads.
set -euo pipefail
cd "$(dirname "$0")/.."

quick=
[ "${1:-}" = --quick ] && quick=1 && shift
trace=${1:?usage: scripts/compare.sh [--quick] TRACE OUT.md}
out=${2:?usage: scripts/compare.sh [--quick] TRACE OUT.md}
warmpath=${WARMPATH:-target/release/warmpath}
policies=kv,logit,blocks,product,affinity,chwbl,preble,aibrix,predicted,approx_tree,approx_lru,round_robin,random,least_requests,power_of_two
fleets=(4 8 16) caches=(2048 8192)
[ -n "$quick" ] && fleets=(8) caches=(8192)
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT

# name, trace, rate that counts as 1, workers, blocks, timing, rest: more options
cell() {
    local name=$1 input=$2 rate=$3 workers=$4 blocks=$5 timing=$6 setting=$7
    shift 7
    local speeds
    speeds=$(jq -rn --argjson w "$workers" --argjson r "$rate" '[0.25, 0.5, 0.75] | map(. * $w * $r | tostring) | join(",")')
    { "$warmpath" replay --trace "$input" --workers "$workers" --speed "$speeds" --policy "$policies" --cache-blocks "$blocks" \
        --block-size 512 --timing "$timing" --json ${JOBS:+--jobs "$JOBS"} "$@" 2>/dev/null || true; } |
        jq -c --arg trace "$name" --argjson rate "$rate" --argjson blocks "$blocks" --arg timing "$timing" --arg setting "$setting" \
            '.rows[] | {trace: $trace, blocks: $blocks, timing: $timing, setting: $setting, policy, workers,
             load: (.speed / .workers / $rate * 100 | round / 100), mean: .ttft_ms.mean, p50: .ttft_ms.p50, p99: .ttft_ms.p99,
             itl: .itl_ms.mean, hit: .hit_rate, reachable: .reachable_hit_rate, balance: .new_tokens_max_over_mean}' >>"$rows"
}

for timing in polynomial roofline:8b-h100; do
    for blocks in "${caches[@]}"; do
        for workers in "${fleets[@]}"; do
            cell conversation "$trace" 1 "$workers" "$blocks" "$timing" plain
            cell few-shot 'generate:few-shot?tasks=200&requests=30&system=2&shots=14&question=4&block=512&output=200&rate=4' 3 "$workers" "$blocks" "$timing" plain
            cell self-consistency 'generate:self-consistency?questions=1200&samples=6&prompt=14&block=512&output=300&rate=2' 1.5 "$workers" "$blocks" "$timing" plain
            cell tree-of-thought 'generate:tree-of-thought?trees=150&depth=3&branching=3&prompt=12&thought=1&block=512&rate=0.1&think=6' 6 "$workers" "$blocks" "$timing" plain
            cell multi-turn 'generate:multi-turn?sessions=700&turns=8&system=3&context=4&user=2&answer=1&block=512&rate=0.5&think=20' 4 "$workers" "$blocks" "$timing" plain
            cell agent 'generate:agent?sessions=150&turns=40&system=8&context=40&user=1&answer=1&block=512&rate=0.12&think=5' 4 "$workers" "$blocks" "$timing" plain
            # Made when `predicted` was done: who changes it after this makes others.
            fresh=("$workers" "$blocks" "$timing" fresh --trace-seed 7)
            cell few-shot 'generate:few-shot?tasks=100&requests=60&system=2&shots=8&question=6&block=512&output=250&rate=4' 2.5 "${fresh[@]}"
            cell self-consistency 'generate:self-consistency?questions=1500&samples=4&prompt=20&block=512&output=250&rate=2' 1.2 "${fresh[@]}"
            cell tree-of-thought 'generate:tree-of-thought?trees=120&depth=3&branching=3&prompt=8&thought=2&block=512&rate=0.1&think=8' 6 "${fresh[@]}"
            cell multi-turn 'generate:multi-turn?sessions=900&turns=6&system=2&context=8&user=1&answer=1&block=512&rate=0.5&think=25' 4 "${fresh[@]}"
            cell agent 'generate:agent?sessions=120&turns=30&system=6&context=30&user=1&answer=2&block=512&rate=0.12&think=4' 4 "${fresh[@]}"
        done
    done
done
r=roofline:8b-h100
cell conversation "$trace" 1 8 8192 polynomial 'one worker 2× slower' --slow 2
cell conversation "$trace" 1 8 8192 polynomial 'events 1 s late' --event-delay 1000
cell conversation "$trace" 1 8 8192 polynomial 'no metrics' --scrape-interval 0
cell conversation "$trace" 1 8 8192 "$r,mfu=0.65,mbu=0.975" 'engines 30 % faster'
cell conversation "$trace" 1 8 8192 "$r,mfu=0.385,mbu=0.577" 'engines 30 % slower'

jq -rs -f scripts/compare/table.jq "$rows" >"$out"
echo "$out: $(jq -s length "$rows") rows"
