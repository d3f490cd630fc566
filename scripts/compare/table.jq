# Rows of scripts/compare.sh -> Markdown.
def two: (. * 100 | round) / 100 | tostring;
def whole: if . >= 10000 then (. / 1000 | round | tostring) + " s" else (round | tostring) + " ms" end;
def geometric: (map(log) | add / length) | exp;

# The best of the others, and what predicted is of it.
def judged($figure):
    (map(select(.policy != "predicted")) | min_by(.[$figure])) as $best
    | (map(select(.policy == "predicted"))[0]) as $own
    | {best: $best.policy, least: $best[$figure], own: $own[$figure], ratio: ($own[$figure] / $best[$figure])};
def cells: group_by([.setting, .trace, .timing, .blocks, .workers, .load])
    | map({at: .[0], rows: ., mean: judged("mean"), p99: judged("p99"), p50: judged("p50"), itl: judged("itl")});
def summary:
    length as $n
    | [.[] | .mean.ratio] as $mean | [.[] | .p99.ratio] as $p99
    | "\($n) | \([$mean[] | select(. <= 1)] | length) | \($mean | geometric | two) | \($mean | max | two) | "
        + "\([$p99[] | select(. <= 1)] | length) | \($p99 | geometric | two) | \($p99 | max | two) | "
        + "\([.[] | .rows[] | select(.policy == "predicted") | .hit / ([.reachable, 0.001] | max)] | add / length | two)";
# A cell in which even the best policy's mean is above five seconds is overloaded.
def overloaded: .mean.least > 5000;

(map(select(.setting == "plain")) | cells) as $plain
| (map(select(.setting == "fresh")) | cells) as $fresh
| (map(select(.setting | IN("plain", "fresh") | not)) | cells) as $robust
| "`predicted` against the best other policy of each cell (a cell's best mean and its best p99 may be different policies).",
  "",
  "| trace | timing | cells | mean ≤ best | mean, ratio | worst | p99 ≤ best | p99, ratio | worst | hit of reachable |",
  "|---|---|---|---|---|---|---|---|---|---|",
  ($plain | map(select(overloaded | not)) | group_by([.at.trace, .at.timing])[] | "| \(.[0].at.trace) | \(.[0].at.timing) | \(summary) |"),
  ($plain | map(select(overloaded | not)) | "| all below overload | | \(summary) |"),
  ($plain | map(select(overloaded)) | if length > 0 then group_by(.at.trace)[] | "| \(.[0].at.trace), overloaded | | \(summary) |" else empty end),
  "",
  "The same on workloads that were made when `predicted` was done, of other shapes and seeds:",
  "",
  "| trace | timing | cells | mean ≤ best | mean, ratio | worst | p99 ≤ best | p99, ratio | worst | hit of reachable |",
  "|---|---|---|---|---|---|---|---|---|---|",
  ($fresh | map(select(overloaded | not)) | group_by([.at.trace, .at.timing])[] | "| \(.[0].at.trace) | \(.[0].at.timing) | \(summary) |"),
  ($fresh | map(select(overloaded | not)) | if length > 0 then "| all below overload | | \(summary) |" else empty end),
  ($fresh | map(select(overloaded)) | if length > 0 then group_by(.at.trace)[] | "| \(.[0].at.trace), overloaded | | \(summary) |" else empty end),
  "",
  "Each policy against the best of all in each cell below overload, geometric means:",
  "",
  "| policy | TTFT mean | p50 | p99 | ITL | hit of reachable | new tokens, busiest / mean |",
  "|---|---|---|---|---|---|---|",
  ($plain | map(select(overloaded | not)
        | (.rows | {mean: (map(.mean) | min), p50: (map(.p50) | min), p99: (map(.p99) | min), itl: (map(.itl) | min)}) as $least
        | .rows[] | . + {least: $least}) | group_by(.policy)
    | map({policy: .[0].policy, mean: (map(.mean / .least.mean) | geometric), p50: (map(.p50 / .least.p50) | geometric),
           p99: (map(.p99 / .least.p99) | geometric), itl: (map(.itl / .least.itl) | geometric),
           hit: (map(.hit / ([.reachable, 0.001] | max)) | add / length), balance: (map(.balance) | geometric)})
    | sort_by(.mean)[] | "| `\(.policy)` | \(.mean | two) | \(.p50 | two) | \(.p99 | two) | \(.itl | two) | \(.hit | two) | \(.balance | two) |"),
  "",
  "Robustness, conversation trace, 8 workers of 8 192 blocks:",
  "",
  "| setting | load | mean: predicted | best other | ratio | p99: predicted | best other | ratio |",
  "|---|---|---|---|---|---|---|---|",
  ($robust[] | "| \(.at.setting) | \(.at.load) | \(.mean.own | whole) | \(.mean.least | whole) `\(.mean.best)` | \(.mean.ratio | two) | \(.p99.own | whole) | \(.p99.least | whole) `\(.p99.best)` | \(.p99.ratio | two) |"),
  "",
  "Cells that `predicted` loses in mean or p99:",
  "",
  "| trace | timing | blocks | workers | load | mean | best other | ratio | p99 | best other | ratio |",
  "|---|---|---|---|---|---|---|---|---|---|---|",
  ($plain + $fresh | .[] | select(.mean.ratio > 1 or .p99.ratio > 1)
    | "| \(.at.trace)\(if .at.setting == "fresh" then ", fresh" else "" end) | \(.at.timing) | \(.at.blocks) | \(.at.workers) | \(.at.load) | \(.mean.own | whole) | \(.mean.least | whole) `\(.mean.best)` | \(.mean.ratio | two) | \(.p99.own | whole) | \(.p99.least | whole) `\(.p99.best)` | \(.p99.ratio | two) |")
