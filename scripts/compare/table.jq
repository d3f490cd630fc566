# Rows of scripts/compare.sh, the weights that were found as $weights, and above which mean a cell is overloaded, in ms, as
# $overload -> Markdown.
def two: (. * 100 | round) / 100 | tostring;
def whole: if . >= 10000 then (. / 1000 | round | tostring) + " s" else (round | tostring) + " ms" end;
def geometric: if length == 0 then 1 else (map(log) | add / length) | exp end;
def mean: if length == 0 then 0 else add / length end;
def share: .hit / ([.reachable, 0.001] | max);
def own: map(select(.policy == "predicted"))[0];

# Rows of one policy in one cell, a draw each -> their means.
def averaged: def of(f): map(f) | mean;
    .[0] + {mean: of(.mean), p50: of(.p50), p99: of(.p99), itl: of(.itl), hit: of(.hit), reachable: of(.reachable),
        balance: of(.balance), lost: (map(.lost) | add), draw: 0};
def pooled: group_by([.setting, .trace, .timing, .blocks, .workers, .load, .policy, .weights]) | map(averaged);

# The others at their defaults; the same, those with weights at the ones that were found where these are better in a tuning.
def at_defaults: map(select(.policy != "predicted" and .weights == "default"));
def at_tuned: (map(select(.weights == "tuned"))) as $tuned
    | [at_defaults[] | .policy as $policy | first($tuned[] | select(.policy == $policy) | .policy += "*") // .];

# The best of some rows in a figure, and what predicted is of it.
def against($figure; $own): min_by(.[$figure]) | {policy, least: .[$figure], ratio: ($own / .[$figure])};
def judged($figure): own[$figure] as $own
    | {own: $own, default: (at_defaults | against($figure; $own)), tuned: (at_tuned | against($figure; $own))}
    | . + {least: ([.default.least, .tuned.least] | min), ratio: ([.default.ratio, .tuned.ratio] | max)};
def cells: group_by([.setting, .trace, .draw, .timing, .blocks, .workers, .load])
    | map({at: .[0], rows: ., own: own, mean: judged("mean"), p99: judged("p99")});

# Where every other policy is slower, nobody is worth choosing.
def overloaded: .mean.least > $overload;

# Of ratios: how many are at most 1, their geometric mean, the highest.
def verdict: "\(map(select(. <= 1)) | length), \(geometric | two) (\(max | two))";
def columns: "\(map(.mean.default.ratio) | verdict) | \(map(.mean.tuned.ratio) | verdict) | \(map(.p99.default.ratio) | verdict) | "
    + "\(map(.p99.tuned.ratio) | verdict) | \(map(.own | share) | mean | two) | "
    + "\(map(select(.at.load == 0.5) | .own.balance) | if length == 0 then "" else max | two end)";
def summary: "\(length) | \(columns)";
def head: "| trace | timing | cells | mean, defaults | mean, tuned | p99, defaults | p99, tuned | hit of reachable | busiest / mean |",
    "|---|---|---|---|---|---|---|---|---|";
def groups: (map(select(overloaded | not)) | group_by([.at.trace, .at.timing])[] | "| \(.[0].at.trace) | \(.[0].at.timing) | \(summary) |"),
    (map(select(overloaded | not)) | select(length > 0) | "| all below overload | | \(summary) |"),
    (map(select(overloaded)) | group_by(.at.trace)[] | "| \(.[0].at.trace), overloaded | | \(summary) |");

# Means and 99th percentiles of cells, with what predicted is of the best at defaults, and of the best of all.
def figures: [.[] | {at, name: "mean", default: .mean.default.ratio, all: .mean.ratio}, {at, name: "p99", default: .p99.default.ratio, all: .p99.ratio}];
def kept(of): "\(map(select(of <= 1)) | length)";
def missed(of): "\(map(select(of > 1.03)) | length)";
def percent: (. * 1000 | round) / 10 | tostring + " %";

# How far predicted keeps what it has to: of figures, those at most 1, and those above 1.03.
def promise: figures | "\(kept(.default)) of \(length) figures (means and 99th percentiles) are at or below those of every other policy at its "
    + "defaults, \(kept(.all)) where others are tuned as well; \(missed(.default)) and \(missed(.all)) are more than 3 % above the best";

# In how many cells it keeps both, and in how many one other policy has both.
def both: "Both figures are in \(map(select(.mean.default.ratio <= 1 and .p99.default.ratio <= 1)) | length) of \(length) cells, in "
    + "\(map(select(.mean.ratio <= 1 and .p99.ratio <= 1)) | length) where others are tuned as well; in "
    + "\(map(select(.own as $own | any(.rows | at_defaults[], at_tuned[]; .mean <= $own.mean and .p99 <= $own.p99))) | length) is any one "
    + "other policy at or below `predicted` in both.";

def tally: figures | "\(kept(.default)) and \(kept(.all)) of \(length), \(missed(.default)) and \(missed(.all))";

# Those above, by kind: how many, and how far the worst.
def place: {"plain": "", "held back": ", its last third", "fresh": " drawn last"}[.at.setting];
def exceptions: map(select(.all > 1.03)) | group_by([.at.trace, .at.setting, .name]) | sort_by(-(map(.all) | max))
    | map("\(length) \(.[0].name)\(if length > 1 then "s" else "" end) of `\(.[0].at.trace)`\(.[0] | place), by \(if length > 1 then "up to " else "" end)"
        + "\(map(.all) | max - 1 | percent)\(if all(.default <= 1.03) then " (only against tuned weights)" else "" end)") | join("; ");

# How far each policy is from the lowest at defaults, means and 99th percentiles, the nearest first.
def distances: map((.rows | [own] + at_defaults) as $rows | ($rows | map(.mean) | min) as $mean | ($rows | map(.p99) | min) as $p99
        | $rows[] | {policy, mean: (.mean / $mean), p99: (.p99 / $p99)})
    | group_by(.policy) | map({policy: .[0].policy, mean: (map(.mean) | geometric), p99: (map(.p99) | geometric)}) | sort_by(.mean);
def long: (. * 10000 | round) / 10000 | tostring;
def nearest: distances | map("`\(.policy)` \(.mean | long) and \(.p99 | long)") | .[:3] | join(", ");

# The standard deviations, between the draws of each cell, of what predicted is of the best other: the one in the middle, the highest.
def same: .at | [.setting, .trace, .timing, .blocks, .workers, .load];
def deviation: (add / length) as $mean | (map(. - $mean | . * .) | add / (length - 1)) | sqrt;
def scatter(of): map(map(of) | deviation) | sort | "\(.[length / 2 | floor] | percent) (the median; at most \(last | percent))";

# Where it finds least of what could be found, and where one worker computes more than the others.
def missing: map(.own | share) as $shares | map(select(.at.trace == "conversation") | .own | share) as $trace
    | map(select(.at.load == 0.5) | .own.balance) as $balances
    | "It finds less than 0.88 of what can be found in \($shares | map(select(. < 0.88)) | length) of \($shares | length) cells, of which "
        + "\($trace | map(select(. < 0.88)) | length) are of the \($trace | length) of the trace, the least of them \($shares | min | two)"
        + ($balances | if length == 0 then "." else "; at half of the rate its busiest worker computes more than 1.2 times the mean in "
            + "\(map(select(. > 1.2)) | length) of \(length), at most \(max | two) times." end);

def wrapped: reduce splits(" ") as $word ([]; if length > 0 and ((.[-1] + $word) | length) < 127 then .[-1] += " " + $word else . + [$word] end) | .[];

# Where somebody hits more: what that costs in time to first token. Of those who hit equally much, the fastest.
def apart: [.[] | .own as $own | .rows | (at_defaults + at_tuned) | max_by([.hit, -.mean]) | select(.hit > $own.hit)
        | {points: ((.hit - $own.hit) * 100), ratio: (.mean / $own.mean)}] as $all
    | "In \($all | length) of \(length) cells some other policy hits more, by \($all | map(.points) | mean | two) points on average; the "
        + "mean time to first token of the one that hits most, the fastest of equals, is \($all | map(.ratio) | geometric | two) times that of `predicted` there.";

# With each tuned policy once more, in all cells: at its defaults where no search found any better.
def relative($tuned): (.rows | {mean: (map(.mean) | min), p50: (map(.p50) | min), p99: (map(.p99) | min), itl: (map(.itl) | min)}) as $least
    | (.rows | [own] + at_defaults + (at_tuned | map((.policy | rtrimstr("*")) as $name | select($name | IN($tuned[])) | .policy = $name + "*")))[]
    | . + {share: share, of: {mean: (.mean / $least.mean), p50: (.p50 / $least.p50), p99: (.p99 / $least.p99), itl: (.itl / $least.itl)}};
def by_load($load): map(select(.load == $load) | .of.mean) | if length == 0 then "" else geometric | two end;
def policies: ([.[].rows[] | select(.weights == "tuned") | .policy] | unique) as $tuned
    | map(relative($tuned)) | group_by(.policy) | map({policy: .[0].policy, rows: ., mean: (map(.of.mean) | geometric)}) | sort_by(.mean)[]
    | (.rows | "\(map(.of.p50) | geometric | two) | \(map(.of.p99) | geometric | two) | \(map(.of.itl) | geometric | two) | "
        + "\(map(.share) | mean | two) | \(map(.balance) | geometric | two) | \(by_load(0.25)) | \(by_load(0.5)) | \(by_load(0.75))") as $rest
    | "| `\(.policy)` | \(.mean | two) | \($rest) |";

def beside: "\(.own | whole) | \(.default.least | whole) `\(.default.policy)` | \(.default.ratio | two) | "
    + "\(.tuned.least | whole) `\(.tuned.policy)` | \(.tuned.ratio | two)";
def weight: to_entries | map("\(.key | split(".")[1]) \(.value)") | join(", ");

. as $rows
| ($rows | cells) as $drawn
| ($rows | pooled | cells) as $cells
| ($cells | map(select(.at.setting == "plain"))) as $plain
| ($cells | map(select(.at.setting == "held back"))) as $held
| ($cells | map(select(.at.setting == "fresh"))) as $fresh
| ($cells | map(select(.at.setting == "in turn"))) as $turn
| ($cells | map(select(.at.setting | IN("plain", "held back", "fresh", "in turn") | not))) as $robust
| ($plain + $held + $fresh | map(select(overloaded | not))) as $judged
| ($judged + $turn | map(select(overloaded | not))) as $all
| ($drawn | map(select((.at.setting | IN("plain", "held back", "fresh")) and (overloaded | not)))) as $once
| ($plain + $held | map(select(.at.trace == "conversation" and (overloaded | not)))) as $trace
| "# How the policies compare",
  "",
  "Made by `scripts/compare.sh TRACE OUT.md`, in virtual time, by the simulated fleet behind `warmpath replay`; absolute times say",
  "nothing of a GPU. Blocks of 512 tokens, chunks of 8 192, 256 sequences. The conversation trace is that of Mooncake (FAST \u002725,",
  "12 031 requests); loads are parts of the trace\u0027s rate for each worker, and of a rate that a worker of the `polynomial` bears where",
  ("a workload is generated. Here: \($cells | map(.at.workers) | unique | map(tostring) | join(", ")) workers, caches of "
    + "\($plain | map(.at.blocks) | unique | map(tostring) | join(" and ")) blocks, loads of \($cells | map(.at.load) | unique | map(tostring) | join(", ")), "
    + "timings \($plain | map("`" + .at.timing + "`") | unique | join(" and ")). Overloaded is a cell in which the mean time to first token of "
    + "every other policy is above \($overload / 1000) seconds." | wrapped),
  "",
  ($once | group_by(same) | map(select(length > 1)) | select(length > 0)
    | "A generated workload is drawn \(map(length) | max) times (few-shot tasks in turn, and what overloads all others, once), and a figure is the "
        + "mean over its draws. Between draws of one cell, what `predicted` is of the best other policy has a standard deviation of "
        + "\(scatter(.mean.ratio)) of a mean and \(scatter(.p99.ratio)) of a 99th percentile: most near saturation, where one queue more or less "
        + "decides whether caches still hold what is asked for." | wrapped, ""),
  "Every policy is at its source\u0027s defaults and, where it has weights, at those that `warmpath tune` finds for it as well: once for each",
  "kind of workload and timing, on eight workers with caches of 8 192 blocks, at all loads together, by mean time to first token. Of the",
  "trace that search sees the first two thirds, of a generated workload another draw; where what it finds is not better on what it",
  "held back, the defaults stand. `predicted` has nothing to set. `chwbl` takes a prompt\u0027s first block for its key, which all requests of",
  "the conversation trace share. `product` and the baselines have no weights. Searches had \($weights | map(.trials) | unique | map(tostring) | join(" or ")) choices for each policy. While all",
  "workers are at their 256 sequences, requests go to the least loaded one under every policy but `predicted`, which is asked about full",
  "workers as about others: in overloaded cells part of the others\u0027 decisions are not their own.",
  "",
  ("**Over all \($judged | length) cells below overload\($all - $judged | length
        | if . > 0 then " but \(.) of few-shot tasks in turn" else "" end), nearest to the lowest mean and the lowest 99th percentile at defaults, as geometric means: "
    + "\($judged | nearest)"
    + ($all | if length > ($judged | length) then "; over all \(length) `predicted` \(distances[] | select(.policy == "predicted")
        | "\(.mean | long) and \(.p99 | long)")" else "" end)
    + ". Of the \($trace | length) of the conversation trace and of its last third `predicted` has the lowest mean in "
    + "\($trace | map(select(.mean.default.ratio <= 1)) | length), and in \($trace | map(select(.mean.ratio <= 1)) | length) where others are tuned as well.** "
    + "\($judged | promise): of the trace and of the workloads that it was made with, \($plain + $held | map(select(overloaded | not)) | tally); of shapes that "
    + "were drawn when it was done, \($fresh | map(select(overloaded | not)) | tally)."
    + ($judged | figures | exceptions | if . == "" then "" else " These are: \(.)." end)
    + " \($judged | both)"
    + " The highest mean is \($judged | map(.mean.ratio) | max | . - 1 | [., 0] | max | percent) above the best."
    + ($all | if length > ($judged | length) then " Over all \(length) cells, those in turn among them, \(promise)." else "" end)
    + " In \($robust | map(select(.mean.ratio > 1)) | length) of the \($robust | length) cells under the conditions below, down to a worker that restarts, another policy has a lower "
    + "mean, tuned weights included. \($judged | missing)" | wrapped),
  "",
  ($once | select(length > ($judged | length)) | "Each draw by itself: \(promise), the worst mean by \(map(.mean.ratio) | max - 1 | percent), "
    + "the worst 99th percentile by \(map(.p99.ratio) | max - 1 | percent). A mean over draws is mostly that of the draw in which a fleet came nearest to its limits." | wrapped, ""),
  "## Against the best other policy of each cell",
  "",
  "A cell\u0027s best mean and its best p99 may be those of different policies. Each column tells in how many cells `predicted` is at or below",
  "the best of the others, what it is of that one as a geometric mean and, in brackets, at worst: all others at their defaults, and all at",
  "tuned weights. `busiest / mean` is of new tokens, the most in any cell at half of the rate.",
  "",
  head, ($plain | groups),
  "",
  ($plain + $held + $fresh | map(select(overloaded | not)) | apart | wrapped),
  "",
  "### On the last third of the trace",
  "",
  "Which no search has seen, by itself, with caches that begin empty:",
  "",
  head, ($held | groups),
  "",
  "### On workloads that were made last",
  "",
  "Of other shapes and from other seeds, drawn at random when `predicted` was done. No search has seen them: tuned weights are those of their kind above.",
  "",
  head, ($fresh | groups),
  "",
  "### Few-shot tasks in turn",
  "",
  "Above, few-shot requests come from their tasks in random order. Where they come from one task after the other (`order=turn`), and",
  "the number of tasks is a multiple of that of the workers, as 200 is of 4 and 8, whoever hands out workers in turn gives every task",
  "one of its own, all equally busy: the best that can be had, which no other traffic would bring about.",
  "",
  head, ($turn | groups),
  "",
  ($turn | map(select(overloaded | not)) | select(length > 0) | "Below overload, \(promise)." | wrapped),
  "",
  "## Each policy against the best of all",
  "",
  "Cells of the first group below overload, geometric means; `*` is at tuned weights, and at defaults where no search found any better.",
  "The mean time to first token once more by load.",
  "",
  "| policy | TTFT mean | p50 | p99 | ITL | hit of reachable | new tokens, busiest / mean | mean at 0.25 | at 0.5 | at 0.75 |",
  "|---|---|---|---|---|---|---|---|---|---|",
  ($plain | map(select(overloaded | not)) | policies),
  "",
  "## Robustness",
  "",
  "Conversation trace, eight workers of 8 192 blocks each, or as it is said. Of the policies only `preble` goes by output lengths; the",
  "others never see them, so for them that row is the plain cell once more. The worker that restarts dies half-way between the",
  "first arrival and the last: what has no first token there is sent elsewhere at once, what has one has failed and counts in no time.",
  "Two routers get requests in turn, hear the same events, and know of what the other has sent only by the engines\u0027 metrics.",
  "",
  "| setting | load | mean: predicted | best default | ratio | best tuned | ratio | p99: predicted | best default | ratio | best tuned | ratio |",
  "|---|---|---|---|---|---|---|---|---|---|---|---|",
  ($robust[] | "| \(.at.setting) | \(.at.load) | \(.mean | beside) | \(.p99 | beside) |"),
  "",
  ($robust[] | select(any(.rows[]; .lost > 0)) | "\(.at.setting), load \(.at.load): \(.own.lost) request\(if .own.lost == 1 then "" else "s" end) failed under `predicted`, "
      + "\(.rows | at_defaults | map(.lost) | "\(min) to \(max)") under the others."),
  "",
  "## Lost cells",
  "",
  "All in which `predicted` is above any other policy in mean or p99, the worst first:",
  "",
  "| trace | timing | blocks | workers | load | mean | best default | ratio | best tuned | ratio | p99 | best default | ratio | best tuned | ratio |",
  "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
  ($plain + $held + $fresh + $turn | map(select(.mean.ratio > 1 or .p99.ratio > 1)) | sort_by(-([.mean.ratio, .p99.ratio] | max))[]
    | "| \(.at.trace)\(if .at.setting == "plain" then "" else ", " + .at.setting end) | \(.at.timing) | \(.at.blocks) | \(.at.workers) | \(.at.load) | \(.mean | beside) | \(.p99 | beside) |"),
  "",
  "## Weights that were found",
  "",
  "Each for one kind of workload and one timing, and the change of the mean where the search looked and on what it held back:",
  "",
  "| trace | timing | policy | weights | tuned on | held back |",
  "|---|---|---|---|---|---|",
  ($weights[] | .kind as $kind | .timing as $timing | .policies[]
    | "| \($kind) | \($timing) | `\(.policy)` | \(if .weights == {} then "defaults" else .weights | weight end) | \(.change_tuned | percent) | \(.change_held_back | percent) |")
