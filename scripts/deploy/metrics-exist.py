#!/usr/bin/env python3
"""Fails for every metric that an alert or a panel names and that the router does not have.

    scripts/deploy/metrics-exist.py [METRICS.txt]

The router's metrics are those declared in src/telemetry/metrics/definitions.rs, under the prefix `warmpath`. With the text
of a /metrics, what that shows must be declared, too. It also sees that every alert has a severity, all annotations, a
section in the runbook, and tests in which it fires and is silent.
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = re.compile(r"\bwarmpath_[a-z_]+[a-z]\b")
LABELS = re.compile(r"\{[^{}]*\}")


def declared():
    """Names of all series that the code can make."""
    text = (ROOT / "src/telemetry/metrics/definitions.rs").read_text()
    found = re.findall(r'^ +[A-Z_]+ = "([a-z_]+)", Kind::(\w+)', text, re.M)
    names = set()
    for name, kind in found:
        ends = ("_bucket", "_sum", "_count") if kind == "Histogram" else ("",)
        names.update(f"warmpath_{name}{end}" for end in ends)
    return names


def expressions():
    """(where, expression) of every alert and panel."""
    alerts = (ROOT / "deploy/prometheus/alerts.yaml").read_text()
    for block in re.split(r"\n      - alert: ", alerts)[1:]:
        name = block.split("\n", 1)[0]
        yield f"alert {name}", block.split("expr:", 1)[1].split("labels: {severity", 1)[0]
    dashboard = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["expr"]
    for variable in dashboard["templating"]["list"]:
        if isinstance(variable.get("query"), str):
            yield f"variable {variable['name']}", variable["query"]


def alert_faults():
    alerts = (ROOT / "deploy/prometheus/alerts.yaml").read_text()
    tests = (ROOT / "deploy/prometheus/alerts_test.yaml").read_text()
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs/runbook.md").read_text(), re.M)
    names = []
    for block in re.split(r"\n      - alert: ", alerts)[1:]:
        name = block.split("\n", 1)[0]
        names.append(name)
        for word in ("severity: ", "summary: ", "description: ", f"runbook: docs/runbook.md#{name.lower()}\n"):
            if word not in block + "\n":
                yield f"alert {name}: no `{word.strip()}`"
        if name not in headings:
            yield f"alert {name}: docs/runbook.md has no section `### {name}`"
        for verb in ("fires", "is silent"):
            if f"- name: '{name} {verb}: " not in tests:
                yield f"alert {name}: no test in which it {verb}"
    yield from (f"docs/runbook.md: no alert is called {name}" for name in headings if name not in names)


def main():
    known = declared()
    if len(known) < 50:
        sys.exit("src/telemetry/metrics/definitions.rs is not read right: too few metrics are declared")
    faults, uses = [], 0
    for where, expression in expressions():
        for name in NAME.findall(LABELS.sub("", expression)):
            uses += 1
            if name not in known:
                faults.append(f"{where}: no metric is called {name}")
    for path in sys.argv[1:]:
        shown = {re.split(r"[{ ]", line)[0] for line in open(path) if line.startswith("warmpath_")}
        if not shown:
            faults.append(f"{path}: no metrics in it")
        faults += [f"{path}: {name} is not declared" for name in sorted(shown - known)]
    faults += alert_faults()
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{uses} uses of metrics, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
