#!/usr/bin/env python3
"""Makes the pictures of docs/tuning.md: plots of the reports of `warmpath replay`, `optimize` and `tune`, as SVG files.

    scripts/docs/plots.py ROUTER FOLDER        e.g. scripts/docs/plots.py target/release/warmpath docs/images

Half a minute with a release build. Virtual time: one version makes the same pictures on every machine.
"""
import html
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRACE = ["--trace", "tests/data/traces/mooncake-conversation.jsonl.gz"]
FLEET = "--workers 8 --cache-blocks 8192 --speed 3".split()
POLICIES = "predicted,product,affinity,blocks,kv,approx_tree,least_requests"
# (command and arguments, {title of a plot: name of the picture})
REPORTS = [
    (
        ["replay", *TRACE, *FLEET, "--policy", POLICIES],
        {
            "Time to first token": "policies-ttft",
            "Hit rate so far, against what one cache as large as all reaches": "policies-hit-rate",
        },
    ),
    (["optimize", *TRACE, "--workers", "1,4,16"], {"Token hit rate": "capacity"}),
    (
        ["tune", *TRACE, *FLEET, "--requests", "4000", "--policy", "blocks"],
        {"Mean against 99th percentile of the time to first token": "tuned"},
    ),
]
# (picture, title, policy, keys that are given the value, values)
SWEEPS = [
    ("scale", "blocks: mean time to first token in ms, and hit rate, by prefill_load_scale", "blocks", ["prefill_load_scale"],
     [0, 1, 3, 10, 30, 100]),
    ("alpha", "kv: mean time to first token in ms, and hit rate, by alpha = alpha_imbalanced", "kv",
     ["alpha", "alpha_imbalanced"], [0, 0.1, 0.3, 0.5, 0.7, 0.9]),
]
LIGHT = "--surface:#fcfcfb;--ink:#1b1b19;--soft:#56554f;--line:#e2e1dc;--axis:#b9b8b1;"
DARK = "--surface:#1a1a19;--ink:#f1f0ec;--soft:#b5b4ac;--line:#32322f;--axis:#5c5b55;"
COLOURS = re.compile(r"(--s\d):\s*(#\w+)")


def style():
    """The colours of the reports, light and dark, for a picture that stands alone."""
    css = (ROOT / "src/report/page.css").read_text()
    light, dark = ("".join(f"{name}:{value};" for name, value in COLOURS.findall(part)) for part in css.split("@media", 2)[:2])
    classes = "".join(f".c{number}{{--c:var(--s{number})}}" for number in range(8))
    return (
        f":root{{{LIGHT}{light}}}@media(prefers-color-scheme:dark){{:root{{{DARK}{dark}}}}}{classes}"
        ".ground{fill:var(--surface)}text{fill:var(--soft);font:12px system-ui,sans-serif}.title{fill:var(--ink);font-weight:600;"
        "font-size:14px}.grid{stroke:var(--line)}.axis{stroke:var(--axis)}.curve{fill:none;stroke:var(--c);stroke-width:2}"
        ".dash{stroke-dasharray:6 5}.dot{fill:var(--c);stroke:var(--surface)}.bar{fill:var(--c)}"
    )


def picture(title, names, body, height=330):
    """A picture with its title and legend above the plot. `names` are (mark, name)."""
    legend, left = "", 58
    for mark, name in names:
        legend += f'<g transform="translate({left:.0f} 32)">{mark}<text x="27" y="9">{html.escape(name)}</text></g>'
        left += 37 + 6.6 * len(name)
    top = 50 if names else 30
    title = html.escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {height + top}" role="img" aria-label="{title}">'
        f'<style>{style()}</style><rect class="ground" width="860" height="{height + top}" rx="8"/>'
        f'<text class="title" x="16" y="20">{title}</text>{legend}<g transform="translate(0 {top})">\n{body}</g></svg>\n'
    )


def pictures(report, wanted):
    """(name, picture) of the wanted plots of a report."""
    for figure in re.findall(r"<figure>.*?</figure>", report, re.S):
        title = html.unescape(re.search(r"<figcaption>(.*?)</figcaption>", figure)[1])
        if title not in wanted:
            continue
        marks = re.findall(r"<li><svg[^>]*>(.*?)</svg>(.*?)</li>", figure)
        body = re.search(r"<svg viewBox=\"0 0 860 330\"[^>]*>\n(.*)</svg></figure>", figure, re.S)[1]
        body = re.sub(r"<circle class=\"hit\".*?</circle>|<title>.*?</title>", "", body, flags=re.S)
        body = re.sub(r"<g class=\"point c\d\"></g>\n", "", body)
        yield wanted[title], picture(title, [(mark, html.unescape(name)) for mark, name in marks], body)


def run(router, *arguments):
    done = subprocess.run([router, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else sys.exit(done.stderr)


def sweep(router, folder, policy, keys, values):
    """(value, mean TTFT in ms, hit rate) for each value of the keys."""
    for value in values:
        weights = ", ".join(f"{key}: {value}" for key in keys)
        config = folder / "weights.yaml"
        config.write_text(
            f"models: [{{name: m}}]\nworkers: [{{id: w, url: 'http://h:1', model: m}}]\nrouting: {{{policy}: {{{weights}}}}}\n"
        )
        row = json.loads(run(router, "replay", *TRACE, *FLEET, "--policy", policy, "--config", str(config), "--json"))["rows"][0]
        yield value, row["ttft_ms"]["mean"], row["hit_rate"]


def bars(points):
    most, base, room = max(ms for _, ms, _ in points), 210, 784 / len(points)
    body = f'<path class="axis" d="M58 {base}H842"/>'
    for place, (value, ms, hit) in enumerate(points):
        middle, height = 58 + room * (place + 0.5), 175 * ms / most
        body += f'<rect class="bar c0" x="{middle - 35:.1f}" y="{base - height:.1f}" width="70" height="{height:.1f}" rx="2"/>'
        lines = ((base - height - 6, f"{ms:.0f} ms"), (base + 18, f"{value}"), (base + 36, f"hit rate {hit:.1%}"))
        body += "".join(f'<text x="{middle:.1f}" y="{y:.1f}" text-anchor="middle">{text}</text>' for y, text in lines)
    return body + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    router, out = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for arguments, wanted in REPORTS:
            run(router, *arguments, "--html", str(folder / "report.html"))
            made = dict(pictures((folder / "report.html").read_text(), wanted))
            if set(made) != set(wanted.values()):
                sys.exit(f"{arguments[0]} made no plot {sorted(set(wanted.values()) - set(made))}")
            for picture_name, text in made.items():
                (out / f"{picture_name}.svg").write_text(text)
        for picture_name, title, policy, keys, values in SWEEPS:
            points = list(sweep(router, folder, policy, keys, values))
            (out / f"{picture_name}.svg").write_text(picture(title, [], bars(points), 260))


if __name__ == "__main__":
    main()
