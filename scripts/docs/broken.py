"""Documents that scripts/check-docs.py --self-test must judge right: (title, text, first lines of the faults)."""

# What runs and what is checked.

DOCUMENTS = [
    (
        "commands that work, an expectation that is met, a server that is left running",
        '```sh\nsleep 1000 &\nfolder=there\nmkdir "$folder"\n```\n\n```sh\necho "in $folder: 17 ms"\n```\n'
        "```text expect\nin there: … ms\n```\n",
        [],
    ),
    ("a command that fails", "Text.\n\n```sh\ntrue\ncat nothing.txt\n```\n", ["a.md:5: exit 1: cat nothing.txt"]),
    (
        "a program that is not there, in a pipe",
        "```sh\nno-such-program | cat\n```\n",
        ["a.md:2: exit 127: cat"],
    ),
    ("a variable that nobody set", '```sh\ntrue\necho "$UNSET_HERE"\n```\n', ["a.md:3: exit 1"]),
    ("a command with a fault of form", "```sh\nif true\n```\n", ["a.md:4: exit 2"]),
    ("a command that does not end", "```sh\ntrue\n```\n```sh\nsleep 100\n```\n", ["a.md:4: this block still runs after 2 s"]),
    (
        "an expectation that is not met",
        "```sh\necho one\n```\n```text expect\ntwo\n```\n",
        ["a.md:5: `two` was not printed"],
    ),
    ("a skip with its reason", '```sh skip="needs a GPU"\nfalse\n```\n', []),
    ("a skip without one", "```sh skip=\nfalse\n```\n", ['a.md:1: a block that is skipped says why: skip="why"']),
    (
        "a block of no kind",
        "```\nls\n```\n",
        ["a.md:1: a block is one of sh, yaml, text, json, python, dockerfile, promql, and not ``"],
    ),
    (
        "an indented block",
        "Do this:\n\n    rm -rf /\n",
        ["a.md:3: fence this block and say what it is: ```sh, ```text, …"],
    ),
    ("a block without an end", "```sh\ntrue\n", ["a.md:1: this block has no end"]),
    ("a part of a configuration", "```yaml\nrouting: {policy: kv}\n```\n", []),
    (
        "a key that does not exist",
        "Text.\n```yaml\nrouting:\n  policy: kv\n  wieght: 3\n```\n",
        ["a.md:5: unknown key `wieght`"],
    ),
]

# What is named.
NAMES = [
    (
        "names that exist",
        "`warmpath_kv_hit_rate{worker}`, `warmpath tap --count 3`, `--max-num-seqs`, `routing.kv.alpha`, `x-warmpath-worker`, "
        "`/api/v1/workers`, `WarmpathWorkerDown`, `docs/runbook.md`, [alert](runbook.md#warmpathworkerdown)\n",
        [],
    ),
    ("a metric", "`warmpath_kv_hitrate`\n", ["docs/a.md:1: there is no metric `warmpath_kv_hitrate`"]),
    ("a command", "\n`warmpath tip`\n", ["docs/a.md:2: there is no command `warmpath tip`"]),
    ("an option in the text", "`warmpath tap --counts 3`\n", ["docs/a.md:1: `warmpath tap` has no option --counts"]),
    ("an option alone", "`--max-num-sequences`\n", ["docs/a.md:1: no command has the option --max-num-sequences"]),
    (
        "an option in a block, on a second line",
        "```sh\nwarmpath replay --trace x \\\n  --worker 4 | cat\n```\n",
        ["docs/a.md:1: `warmpath replay` has no option --worker"],
    ),
    ("a key", "`routing.kv.beta`\n", ["docs/a.md:1: there is no key `routing.kv.beta`"]),
    ("a header", "`x-warmpath-node`\n", ["docs/a.md:1: no code knows the header x-warmpath-node"]),
    ("a path of the admin port", "`GET /api/v1/nodes`\n", ["docs/a.md:1: there is no /api/v1/nodes"]),
    ("an alert", "`WarmpathTooLate`\n", ["docs/a.md:1: there is no alert WarmpathTooLate"]),
    ("a file", "`scripts/nothing.sh`\n", ["docs/a.md:1: there is no scripts/nothing.sh"]),
    ("a test", "`r99_no_such_test_is_here`\n", ["docs/a.md:1: no test is called r99_no_such_test_is_here"]),
    ("a document", "[x](nothing.md)\n", ["docs/a.md:1: there is no nothing.md"]),
    ("a heading", "[x](runbook.md#nothing)\n", ["docs/a.md:1: runbook.md has no heading for #nothing"]),
]
