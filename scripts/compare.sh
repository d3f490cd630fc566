#!/usr/bin/env bash
# Compares all policies in virtual time, and writes the comparison as Markdown.
#
#   scripts/compare.sh [--quick] TRACE OUT.md
#
# TRACE is a conversation trace in Mooncake's form (12 031 requests; `conversation_trace.jsonl` of its FAST '25 release).
# Fleets of 4, 8 and 16 workers, loads of 0.25, 0.5 and 0.75 of the trace's own rate for each worker, caches of 2 048 and
# 8 192 blocks of 512, both timings; the whole trace, its last third by itself, five generated workloads whose rate a worker
# of the polynomial bears, and five that were made when `predicted` was done. Then the trace once more under conditions that
# nobody wishes for. `--quick` takes eight workers, large caches, half of the rate and the polynomial only.
#
# A generated workload is drawn as often as DRAWS says, from one seed after the other, and a cell's figures are the means over
# these draws: where policies are close, which of fifteen has the lowest 99th percentile of one draw is chance. What all the
# others are overloaded by in the first draw is not drawn again.
#
# Every policy is at the defaults of its source and, where it has weights, once more at those that `warmpath tune` finds for
# it: once for each kind of workload and timing, on eight workers with large caches at all loads together, by mean TTFT. Of
# the trace the search sees the first two thirds, of a generated workload another draw (another seed); none of the workloads
# that were made last. Where what it finds is not better on what it held back itself, the defaults stand.
#
# All of it takes some six hours of one core, `--quick` six minutes.
#
# WARMPATH names the binary; JOBS the threads; TRIALS the choices of weights that are tried (24, of `--quick` 8); DRAWS how often
# a workload is drawn (3, of `--quick` once). KEEP names a folder in which rows and weights are kept: what is there already is
# not done again, so a run that was cut short goes on. AGAIN names policies, with commas between, whose rows are thrown away
# first: those that have changed since. The weights that were found for them stay.
set -euo pipefail
cd "$(dirname "$0")/.."

usage='usage: scripts/compare.sh [--quick] TRACE OUT.md'
quick=
[ "${1:-}" = --quick ] && quick=1 && shift
trace=${1:?$usage}
out=${2:?$usage}
warmpath=${WARMPATH:-target/release/warmpath}
policies=kv,logit,blocks,product,affinity,chwbl,preble,aibrix,predicted,approx_tree,approx_lru,round_robin,random,least_requests,power_of_two
tunable=(kv logit blocks affinity chwbl preble aibrix approx_tree approx_lru)
fleets=(4 8 16) caches=(2048 8192) timings=(polynomial roofline:8b-h100) loads=(0.25 0.5 0.75)
trials=${TRIALS:-24} draws=${DRAWS:-3}
[ -n "$quick" ] && fleets=(8) caches=(8192) timings=(polynomial) loads=(0.5) trials=${TRIALS:-8} draws=${DRAWS:-1}
options=(--block-size 512 --max-num-seqs 256 --max-num-batched-tokens 8192 ${JOBS:+--jobs "$JOBS"})

keep=${KEEP:-$(mktemp -d)}
[ -n "${KEEP:-}" ] || trap 'rm -rf "$keep"' EXIT
rows=$keep/rows${quick:+-quick}.jsonl found=$keep/weights${quick:+-quick}
mkdir -p "$found"
touch "$rows"
jq -c --arg again "${AGAIN:-}" 'select(.policy | IN($again | split(",")[]) | not)' "$rows" >"$rows.new"
mv "$rows.new" "$rows"
requests=$(gzip -cdf "$trace" | wc -l)
tuned_on=$((requests * 2 / 3))
# Requests that a search is given at most.
tuning=$tuned_on
[ -z "$quick" ] || tuning=2500
# Above this mean time to first token of every other policy, in ms, a cell is overloaded.
overload=5000
readonly overload usage quick trace out warmpath policies trials draws keep rows found requests tuned_on tuning

# The workloads: each with the rate that counts as 1 for a worker.
declare -A specs=(
    [few-shot]='generate:few-shot?tasks=200&requests=30&system=2&shots=14&question=4&block=512&output=200&rate=4'
    [self-consistency]='generate:self-consistency?questions=1200&samples=6&prompt=14&block=512&output=300&rate=2'
    [tree-of-thought]='generate:tree-of-thought?trees=150&depth=3&branching=3&prompt=12&thought=1&block=512&rate=0.1&think=6'
    [multi-turn]='generate:multi-turn?sessions=700&turns=8&system=3&context=4&user=2&answer=1&block=512&rate=0.5&think=20'
    [agent]='generate:agent?sessions=150&turns=40&system=8&context=40&user=1&answer=1&block=512&rate=0.12&think=5'
)
# Made when `predicted` was done, of lengths drawn at random, and of as many tasks, questions, trees and sessions as make six to
# nine thousand requests, so that a 99th percentile is that of sixty at least: who changes it after this draws others.
declare -A fresh=(
    [few-shot]='generate:few-shot?tasks=158&requests=40&system=3&shots=16&question=4&block=512&output=282&rate=4'
    [self-consistency]='generate:self-consistency?questions=962&samples=7&prompt=6&block=512&output=209&rate=1'
    [tree-of-thought]='generate:tree-of-thought?trees=1097&depth=2&branching=2&prompt=13&thought=1&block=512&rate=0.1&think=10'
    [multi-turn]='generate:multi-turn?sessions=1263&turns=7&system=2&context=5&user=2&answer=2&block=512&rate=0.5&think=8'
    [agent]='generate:agent?sessions=166&turns=52&system=4&context=45&user=1&answer=1&block=512&rate=0.12&think=8'
)
declare -A rates=([conversation]=1 [few-shot]=3 [self-consistency]=1.5 [tree-of-thought]=6 [multi-turn]=4 [agent]=4)
declare -A fresh_rates=([few-shot]=5 [self-consistency]=5.5 [tree-of-thought]=7 [multi-turn]=2.5 [agent]=1.5)
generated=(few-shot self-consistency tree-of-thought multi-turn agent)
readonly -A specs fresh rates fresh_rates
# The seeds of their draws: a search has 2, those that were made last have the ones from theirs on.
mapfile -t seeds < <(seq 3 $((draws + 1)))
seeds=(1 "${seeds[@]}")
mapfile -t fresh_seeds < <(seq 7664 $((7663 + draws)))
readonly seeds fresh_seeds tuning_seed=2

# speeds RATE WORKERS LOAD...: the speeds that are the loads, with commas between.
speeds() {
    jq -rn '($ARGS.positional | map(tonumber)) as [$rate, $workers] | $ARGS.positional[2:] | map(tonumber * $workers * $rate | tostring) | join(",")' --args "$@"
}

# Of all that is done: how many, how many so far, when it began.
total=0 done=0 began=$SECONDS counting=1

# Whether a step is to be done now, and telling that it is.
step() {
    if [ -n "$counting" ]; then
        total=$((total + 1))
        return 1
    fi
    done=$((done + 1))
    echo "[$done/$total, $(((SECONDS - began) / 60)) min] $*" >&2
}

weights_of() {
    echo "$found/$1-${2%%[:,]*}.json"
}

# tune KIND TIMING INPUT...: finds weights for every policy that has some, for cells of this kind and timing.
tune() {
    local kind=$1 timing=$2 policy file tried
    shift 2
    file=$(weights_of "$kind" "$timing")
    step "weights for $kind, $timing" || return 0
    [ ! -s "$file" ] || return 0
    tried=$(mktemp -p "$keep")
    for policy in "${tunable[@]}"; do
        "$warmpath" tune "$@" --policy "$policy" --workers 8 --speed "$(speeds "${rates[$kind]}" 8 "${loads[@]}")" --cache-blocks 8192 \
            --timing "$timing" --trials "$trials" --json "${options[@]}" |
            jq -c '{policy, verdict, change_tuned, change_held_back, weights: (if .verdict == "better" then .found.weights else {} end)}' >>"$tried"
    done
    # What replay reads as a configuration has to name a worker.
    jq -s --arg kind "$kind" --arg timing "$timing" --argjson trials "$trials" '{kind: $kind, timing: $timing, trials: $trials, policies: .,
        names: (map(select(.weights != {}) | .policy) | join(",")),
        configuration: {models: [{name: "m"}], workers: [{id: "w", url: "http://127.0.0.1:9", model: "m"}],
            routing: (reduce (.[].weights | to_entries[]) as {$key, $value} ({}; setpath($key | split("."); $value)))}}' "$tried" >"$file"
    rm "$tried"
}

# replay SPEEDS WORKERS BLOCKS TIMING POLICIES OPTION...: one JSON line a row.
replay() {
    local speeds=$1 workers=$2 blocks=$3 timing=$4 names=$5
    shift 5
    [ -n "$names" ] || return 0
    # Where some requests did not complete, it says so by its status; the rows say it too. Where there are none, it failed.
    "$warmpath" replay "$@" --workers "$workers" --speed "$speeds" --policy "$names" --cache-blocks "$blocks" \
        --timing "$timing" --json "${options[@]}" >"$keep/replay.json" 2>"$keep/replay.err" || true
    jq -ce --arg speeds "$speeds" --arg names "$names" \
        '.rows | if length == ($speeds / "," | length) * ($names / "," | length) then .[] else error("rows are missing") end' \
        "$keep/replay.json" || {
        cat "$keep/replay.err" >&2
        echo "$0: replay failed: $* (policies $names)" >&2
        return 1
    }
}

# missing WEIGHTS POLICIES WORKERS PLACE: which of the policies have no rows there yet.
missing() {
    jq -nr --arg weights "$1" --arg names "$2" --argjson w "$3" --argjson place "$4" \
        '[inputs | select(.workers == $w and .weights == $weights and {setting, trace, draw, timing, blocks} == $place) | .policy] as $there
        | $names / "," - $there | join(",")' "$rows"
}

# borne WORKERS PLACE: the loads to look at, all in a first draw; in others those that some other policy bore in the first.
borne() {
    jq -nr --argjson w "$1" --argjson place "$2" --argjson overload "$overload" \
        '[inputs | select(.workers == $w and .policy != "predicted" and .draw < $place.draw and . + $place == . + {draw: $place.draw})]
        | group_by(.draw) | if . == [] then $ARGS.positional[]
            else .[0] | group_by(.load)[] | select(map(.mean) | min <= $overload) | .[0].load end' "$rows" --args "${loads[@]}"
}

# cell SETTING KIND DRAW RATE WORKERS BLOCKS TIMING OPTION...: every policy at every load, at defaults and at tuned weights; the
# trace is draw 0.
cell() {
    local setting=$1 kind=$2 draw=$3 rate=$4 workers=$5 blocks=$6 timing=$7 weights names place at
    shift 7
    place=$(jq -cn --arg s "$setting" --arg k "$kind" --argjson d "$draw" --arg t "$timing" --argjson b "$blocks" \
        '{setting: $s, trace: $k, draw: $d, timing: $t, blocks: $b}')
    [ "$draw" = 0 ] || set -- "$@" --trace-seed "$draw"
    step "$setting: $kind, draw $draw, $workers workers of $blocks blocks, $timing" || return 0
    mapfile -t at < <(borne "$workers" "$place")
    [ "${#at[@]}" -gt 0 ] || return 0
    at=$(speeds "$rate" "$workers" "${at[@]}")
    weights=$(weights_of "$kind" "$timing")
    # Those of the polynomial, where nothing was tuned for this timing.
    [ -s "$weights" ] || weights=$(weights_of "$kind" polynomial)
    names=
    if [ -s "$weights" ]; then
        names=$(jq -r .names "$weights")
        jq .configuration "$weights" >"$keep/tuned.yaml"
    fi
    {
        replay "$at" "$workers" "$blocks" "$timing" "$(missing default "$policies" "$workers" "$place")" "$@" |
            jq -c '. + {weights: "default"}'
        replay "$at" "$workers" "$blocks" "$timing" "$(missing tuned "$names" "$workers" "$place")" "$@" \
            --config "$keep/tuned.yaml" | jq -c '. + {weights: "tuned"}'
    } | jq -c --argjson place "$place" --argjson rate "$rate" '$place + {policy, weights, workers,
            load: (.speed / .workers / $rate * 100 | round / 100), mean: .ttft_ms.mean, p50: .ttft_ms.p50, p99: .ttft_ms.p99,
            itl: .itl_ms.mean, hit: .hit_rate, reachable: .reachable_hit_rate, balance: .new_tokens_max_over_mean,
            lost: (.requests - .completed)}' >"$keep/cell.jsonl"
    cat "$keep/cell.jsonl" >>"$rows"
}

# robust SETTING TIMING BLOCKS OPTION...: the trace on eight workers under one condition.
robust() {
    local setting=$1 timing=$2 blocks=$3 part=()
    shift 3
    [ -n "$quick" ] && part=(--requests "$((requests / 3))")
    cell "$setting" conversation 0 1 8 "$blocks" "$timing" --trace "$trace" "${part[@]}" "$@"
}

everything() {
    local timing blocks workers kind draw roofline=roofline:8b-h100
    for timing in "${timings[@]}"; do
        tune conversation "$timing" --trace "$trace" --requests "$tuning"
        for kind in "${generated[@]}"; do
            tune "$kind" "$timing" --trace "${specs[$kind]}" --trace-seed "$tuning_seed" --requests "$tuning"
        done
    done
    for timing in "${timings[@]}"; do
        for blocks in "${caches[@]}"; do
            for workers in "${fleets[@]}"; do
                cell plain conversation 0 1 "$workers" "$blocks" "$timing" --trace "$trace"
                cell 'held back' conversation 0 1 "$workers" "$blocks" "$timing" --trace "$trace" --skip "$tuned_on"
                cell 'in turn' few-shot 1 "${rates[few-shot]}" "$workers" "$blocks" "$timing" --trace "${specs[few-shot]}&order=turn"
                for draw in "${seeds[@]}"; do
                    for kind in "${generated[@]}"; do
                        cell plain "$kind" "$draw" "${rates[$kind]}" "$workers" "$blocks" "$timing" --trace "${specs[$kind]}"
                    done
                done
                for draw in "${fresh_seeds[@]}"; do
                    for kind in "${generated[@]}"; do
                        cell fresh "$kind" "$draw" "${fresh_rates[$kind]}" "$workers" "$blocks" "$timing" --trace "${fresh[$kind]}"
                    done
                done
            done
        done
    done
    robust 'one worker 2× slower' polynomial 8192 --slow 2
    robust 'one worker restarts, gone for 30 s' polynomial 8192 --restart 30
    robust 'events 1 s late' polynomial 8192 --event-delay 1000
    robust 'no metrics' polynomial 8192 --scrape-interval 0
    robust 'two routers' polynomial 8192 --routers 2
    robust 'output lengths unknown' polynomial 8192 --output-unknown
    robust 'host memory of 8 192 blocks below 2 048' polynomial 2048 --host-blocks 8192
    robust 'engines 30 % faster' "$roofline,mfu=0.65,mbu=0.975" 8192
    robust 'engines 30 % slower' "$roofline,mfu=0.385,mbu=0.577" 8192
}

everything
counting=
everything
jq -rs --slurpfile weights <(cat "$found"/*.json) --argjson overload "$overload" -f scripts/compare/table.jq "$rows" >"$out"
echo "$out: $(wc -l <"$rows") rows, $(((SECONDS - began) / 60)) min"
