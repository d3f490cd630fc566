#!/usr/bin/env python3
"""Looks up what documents name: metrics, options, keys, headers, paths, tests, alerts, and the targets of links.

    scripts/docs/names.py ROUTER [DOCUMENT …]

A name counts where it stands in backquotes or in a block of commands. Options are those of the command before them, or of
any command where they stand alone; those of other programs are listed below. Exits 1 with a line FILE:LINE: fault for each.
"""
import functools
import importlib.util
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
# Options of engines and of other programs that documents speak of.
FOREIGN = set(
    """--kv-events-config --enable-prompt-tokens-details --enable-cache-report --enable-priority-scheduling
    --schedule-low-priority-values-first --exclude-tools-when-tool-choice-none --enable-metrics --enable-prefix-caching
    --served-model-name --chat-template --default-chat-template-kwargs --page-size --data-parallel-start-rank --api-key
    --max-num-seqs --block-size --port
    --router-mode --release --locked --build --lora-modules --enable-lora --no-enable-prefix-caching --quick --peers --max-running-requests
    --prefix-caching-hash-algo""".split()
)
FOLDERS = ("docs", "scripts", "tests", "src", "deploy", "docker", "config", "indexer", "router-core", "simulator")
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@functools.cache
def metrics():
    spec = importlib.util.spec_from_file_location("metrics_exist", ROOT / "scripts/deploy/metrics-exist.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    of_bridges = re.findall(r'^ +\("([a-z_]+)", "(?:counter|gauge)"', (ROOT / "src/bridge/exposition.rs").read_text(), re.M)
    found = module.declared() | {f"warmpath_bridge_{name}" for name in of_bridges}
    return found | {name.removesuffix("_bucket") for name in found}


@functools.cache
def keys():
    """Every key of the configuration and every section, lists as `models[].name`."""
    headings = re.findall(r"^##+ `([^`]+)`", (ROOT / "docs/configuration.md").read_text(), re.M)
    return {*headings, *(heading.rsplit(".", place)[0] for heading in headings for place in range(1, 4))}


@functools.cache
def helps(router):
    """Options of every command, by its name; those of `events decode` by that."""
    def told(*command):
        return subprocess.run([router, *command, "--help"], capture_output=True, text=True, check=True).stdout

    found = {}
    for name in re.findall(r"^  ([a-z-]+) ", told().split("Commands:")[1].split("Options:")[0], re.M):
        text = told(name) if name != "help" else ""
        for inner in re.findall(r"^  ([a-z-]+) ", text.partition("Commands:")[2].partition("Options:")[0], re.M):
            text += told(name, inner) if inner != "help" else ""
        found[name] = set(OPTION.findall(text))
    return found


@functools.cache
def source():
    """All of the program's code, and all tests."""
    folders = ("src", "router-core", "indexer", "simulator", "tests")
    return "\n".join(path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.rs"))


def anchors(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def of_options(text, router):
    """Faults of options in a command or a span."""
    known = helps(router)
    for command in re.split(r"[|;&]|\$\(", text):
        words = command.replace("\\\n", " ").split()
        name = next((words[at + 1] for at, word in enumerate(words[:-1]) if word.split("/")[-1] == "warmpath"), None)
        if name and name not in known and re.fullmatch(r"[a-z][a-z-]*", name):
            yield f"there is no command `warmpath {name}`"
        elif name in known:
            own = set(OPTION.findall(command)) - known[name]
            yield from (f"`warmpath {name}` has no option {option}" for option in sorted(own))


def of_span(span, router):
    """Faults of one piece of code in the text."""
    for name in re.findall(r"\bwarmpath_[a-z_]*[a-z]\b", span):
        if name not in metrics() and name not in ("warmpath_workers", "warmpath_core"):
            yield f"there is no metric `{name}`"
    if re.match(r"(\S*/)?warmpath [a-z]", span):
        yield from of_options(span, router)
    elif re.match(r"--[a-z]", span):
        known = set().union(FOREIGN, *helps(router).values())
        yield from (f"no command has the option {option}" for option in OPTION.findall(span) if option not in known)
    top = {key.split(".")[0].removesuffix("[]") for key in keys() if "." in key}
    key = re.fullmatch(r"([a-z_]+)(\[\])?((?:\.[a-z_]+(?:\[\])?)+)(:.*)?", span)
    if key and key[1] in top and not re.search(r"\.(rs|md|py|sh|json|yaml|html|txt|toml|lock|conf)$", span):
        name = span.split(":")[0]
        if name not in keys():
            yield f"there is no key `{name}`"
    path = re.match(r"([\w.-]+)/[\w./-]*[\w/]", span)
    if path and path[1] in FOLDERS and not (ROOT / path[0]).exists():
        yield f"there is no {path[0]}"
    for header in re.findall(r"(?<![\w-])x-(?:warmpath|request|should|session)[a-z-]*", span):
        if f'"{header}"' not in source():
            yield f"no code knows the header {header}"
    api = re.search(r"/api/v1/[a-z]+", span)
    if api and api[0] not in source():
        yield f"there is no {api[0]}"
    if re.fullmatch(r"Warmpath[A-Z]\w+", span) and f"alert: {span}\n" not in (ROOT / "deploy/prometheus/alerts.yaml").read_text():
        yield f"there is no alert {span}"
    # Metrics stand without the prefix where it is plain of what is spoken.
    metric = {span, f"warmpath_{span}"} & metrics()
    if re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+){4,}", span) and f"fn {span}(" not in source() and not metric:
        yield f"no test is called {span}"


def of_link(target, document):
    if re.match(r"https?://", target):
        return None
    path, _, anchor = target.partition("#")
    file = (document.parent / path).resolve() if path else document
    if not file.exists():
        return f"there is no {target}"
    if anchor and anchor not in anchors(file):
        return f"{path or document.name} has no heading for #{anchor}"
    return None


def faults(name, text, router):
    document, inside, block, start = ROOT / name, None, [], 0
    for number, line in enumerate(text.split("\n"), 1):
        fence = re.match(r" {0,3}```(\w*)", line)
        if fence and inside is None:
            inside, block, start = fence[1], [], number
        elif fence:
            if inside == "sh":
                for command in re.sub(r"\\\n", "  ", "\n".join(block)).split("\n"):
                    yield from (f"{name}:{start}: {fault}" for fault in of_options(command, router))
            inside = None
        elif inside is not None:
            block.append(line)
        else:
            for span in SPAN.findall(line):
                yield from (f"{name}:{number}: {fault}" for fault in of_span(span, router))
            for target in LINK.findall(line):
                fault = of_link(target, document)
                if fault:
                    yield f"{name}:{number}: {fault}"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    router, documents = sys.argv[1], sys.argv[2:]
    found = [fault for name in documents for fault in faults(name, (ROOT / name).read_text(), router)]
    for fault in found:
        print(fault, file=sys.stderr)
    print(f"names in {len(documents)} documents, {len(found)} faults")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
