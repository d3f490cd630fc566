"""Documents that scripts/check-docs.py --self-test must judge right: (title, text, first lines of the faults)."""

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
