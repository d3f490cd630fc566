#!/usr/bin/env python3
"""Runs the command blocks of README.md, ARCHITECTURE.md, CHANGELOG.md and docs/*.md, and looks up the names that they use.

    scripts/check-docs.py [--binary FILE] [--limit SECONDS] [DOCUMENT …]
    scripts/check-docs.py --self-test

Fenced blocks are judged by their info string:

    ```sh                       runs; the blocks of a document follow each other in one bash, with set -euo pipefail
    ```sh skip="why"            does not run; the reason is printed
    ```text expect              each line stands in one of the output of the block before it, in this order; … is any text
    ```yaml                     is a configuration, or part of one: `warmpath check` finds no fault once the rest is added
    ```yaml skip="why"          is not checked
    any other word              is only shown

Each document has a folder of its own with links to what is in the checkout (what is written beside them is gone afterwards),
`warmpath` on PATH, and loopback to itself where the kernel allows a network namespace; where not, a document whose ports
are taken is SKIPPED. What a document leaves running is ended. The router: --binary, $WARMPATH_BINARY, or the newer of
target/release and target/debug. Names: scripts/docs/names.py. Exits 1 with a line FILE:LINE: fault for each fault.
"""
import argparse
import ctypes
import fcntl
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[1]
FENCE = re.compile(r" {0,3}(`{3,})(.*)")
SHOWN = ("text", "json", "python", "dockerfile", "promql")
NEW_USER, NEW_NET = 0x10000000, 0x40000000  # of unshare(2)
SET_CHILD_SUBREAPER = 36  # of prctl(2)
PREAMBLE = """set -Eeuo pipefail
unset BASH_ENV
trap 'printf "%s\\t%s\\t%s\\n" "$LINENO" "$?" "$BASH_COMMAND" >&3' ERR
"""
MARK = "\x1eblock "


@dataclass
class Block:
    line: int  # of the opening fence
    kind: str
    skip: str | None
    expect: bool
    lines: list[str]


def parse(name, text):
    """(blocks, faults) of a document."""
    blocks, faults, fence, block, before = [], [], None, None, ""
    for number, line in enumerate(text.split("\n"), 1):
        found = FENCE.fullmatch(line)
        if fence is None and found:
            fence = found[1]
            block, fault = opened(number, found[2].strip())
            if fault:
                faults.append(f"{name}:{number}: {fault}")
            blocks.append(block)
        elif fence is not None and line.strip() == fence:
            fence = None
        elif fence is not None:
            block.lines.append(line)
        elif line.startswith("    ") and not re.match(r"\s|[-*] |\d+\. |\|", before):
            faults.append(f"{name}:{number}: fence this block and say what it is: ```sh, ```text, …")
            before = " "
        if line.strip() and fence is None:
            before = line
    if fence is not None:
        faults.append(f"{name}:{block.line}: this block has no end")
    return blocks, faults


def opened(number, info):
    try:
        words = shlex.split(info)
    except ValueError as error:
        return Block(number, "?", None, False, []), f"`{info}`: {error}"
    kind, rest = (words or [""])[0], words[1:]
    skips = [word[5:].strip() for word in rest if word.startswith("skip=")]
    block = Block(number, kind, skips[0] if skips else None, "expect" in rest, [])
    if kind not in ("sh", "yaml", *SHOWN):
        return block, f"a block is one of sh, yaml, {', '.join(SHOWN)}, and not `{kind}`"
    if any(not word.startswith("skip=") and word != "expect" for word in rest):
        return block, f"`{info}`: only skip=\"why\" and expect can follow"
    if skips and not skips[0]:
        return block, "a block that is skipped says why: skip=\"why\""
    return block, None


def whole(lines):
    """A configuration of these lines, with what every one must have."""
    text = "\n".join(lines)
    keys = re.findall(r"^(\w+):", text, re.M)
    names = re.findall(r"\bmodel: *([^\s,}#]+)", text) or ["m"]
    if "models" not in keys:
        text += "\nmodels: [" + ", ".join(f"{{name: {name}}}" for name in dict.fromkeys(names)) + "]"
    if "workers" not in keys and "discovery" not in keys:
        names = re.findall(r"\bname: *([^\s,}#]+)", text)
        text += "\nworkers: [{id: w, url: 'http://127.0.0.1:1', model: " + names[0] + "}]"
    return text + "\n"


def check_yaml(name, block, binary, folder):
    """Faults of a configuration, at their lines of the document."""
    path = folder / "part.yaml"
    path.write_text("\n" * block.line + whole(block.lines))
    done = subprocess.run([binary, "check", str(path)], cwd=folder, env=environment(folder), capture_output=True, text=True)
    path.unlink()
    found = re.findall(re.escape(str(path)) + r":(\d+):\d+: (?!warning: )(.*)", done.stderr)
    last = block.line + len(block.lines)
    faults = [f"{name}:{min(int(line), last)}: {fault}" for line, fault in found]
    if done.returncode and not faults:
        faults.append(f"{name}:{block.line}: {done.stderr.strip()}")
    return faults


def environment(folder):
    kept = {key: os.environ[key] for key in ("LANG", "TERM", "TMPDIR") if key in os.environ}
    path = f"{folder}/.bin:{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    return {**kept, "PATH": path, "HOME": str(folder), "no_proxy": "*", "NO_COLOR": "1"}


def own_network():
    """Gives this process loopback of its own. False where the kernel does not allow it."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(NEW_NET) != 0:
        if libc.unshare(NEW_USER | NEW_NET) != 0:
            return False
        pathlib.Path("/proc/self/setgroups").write_text("deny")
        pathlib.Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        pathlib.Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket() as any_socket:
        request = struct.pack("16sh", b"lo", 1)  # IFF_UP
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS
    return True


def may_own_network():
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if own_network() else 1)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def taken_ports(script):
    """Ports that a document names and somebody else has."""
    taken = []
    for port in sorted({8080, 9090, *map(int, re.findall(r"127\.0\.0\.1:(\d{4,5})", script))}):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                taken.append(port)
    return taken


def end_group(group):
    """Ends what is left of a process group: politely, then not. Orphans of it are this process's children by now."""
    for now, patience_s in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            try:
                os.killpg(group, now)
                while os.waitpid(-group, os.WNOHANG)[0]:
                    pass
            except (ProcessLookupError, ChildProcessError):
                return
            now = 0
            time.sleep(0.01)


def checkout(binary):
    """A folder that looks like the checkout, with the router on its PATH."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="warmpath-docs-"))
    (folder / ".bin").mkdir()
    (folder / ".bin" / "warmpath").symlink_to(binary)
    for entry in ROOT.iterdir():
        if entry.name not in (".git", ".cache", "target"):
            (folder / entry.name).symlink_to(entry)
    return folder


def run(name, blocks, binary, limit_s):
    """(faults, whether it was left out) of a document's commands."""
    runs = [block for block in blocks if block.kind == "sh" and block.skip is None]
    lines = [""] * (max((block.line + len(block.lines) for block in blocks), default=0) + 1)
    for block in runs:
        lines[block.line - 1] = f"printf '\\n{MARK}{block.line}\\n'"
        lines[block.line : block.line + len(block.lines)] = block.lines
    script = "\n".join(lines) + "\n"
    network = may_own_network()
    if not network and (taken := taken_ports(script)):
        return [], f"port {taken[0]} is in use, and the kernel allows no network namespace"
    folder = checkout(binary)
    try:
        (folder / ".bin/preamble").write_text(PREAMBLE)
        (folder / ".bin/script").write_text(script)
        faults = execute(name, runs, blocks, folder, network, limit_s)
        faults += [
            fault
            for block in blocks
            if block.kind == "yaml" and block.skip is None
            for fault in check_yaml(name, block, binary, folder)
        ]
        return faults, None
    finally:
        shutil.rmtree(folder)


def execute(name, runs, blocks, folder, network, limit_s):
    if not runs:
        return []
    output, failures = folder / ".bin/output", folder / ".bin/failures"
    with open(output, "wb") as out, open(failures, "wb") as failed:

        def before():
            os.setsid()
            if network:
                own_network()
            os.dup2(failed.fileno(), 3)

        process = subprocess.Popen(
            ["bash", ".bin/script"],
            cwd=folder,
            env={**environment(folder), "BASH_ENV": f"{folder}/.bin/preamble"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            pass_fds=(3,),
            preexec_fn=before,
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        end_group(process.pid)
    said = output.read_text(errors="replace")
    parts = {int(part.split("\n", 1)[0]): part.split("\n", 1)[1] for part in said.split(MARK)[1:]}
    at = max(parts, default=runs[0].line)
    said = "".join(f"\n    | {line}" for line in parts.get(at, said).strip().split("\n")[-15:])
    if status is None:
        return [f"{name}:{at}: this block still runs after {limit_s} s{said}"]
    if status != 0:
        first = failures.read_text(errors="replace").split("\n")[0].split("\t", 2)
        if len(first) == 3:
            return [f"{name}:{first[0]}: exit {first[1]}: {first[2]}{said}"]
        line = re.findall(r"^\.bin/script: line (\d+): ", said.replace("\n    | ", "\n"), re.M)
        return [f"{name}:{line[0] if line else at}: exit {status}{said}"]
    return [fault for block in blocks if block.expect for fault in unexpected(name, block, runs, parts)]


def unexpected(name, block, runs, parts):
    """Lines of an `expect` block that do not stand in the output before it."""
    before = [run.line for run in runs if run.line < block.line]
    said = [" ".join(line.split()) for line in parts.get(before[-1], "").split("\n")] if before else []
    for offset, wanted in enumerate((" ".join(line.split()) for line in block.lines), 1):
        form = re.compile(".*".join(re.escape(part) for part in wanted.split("…")))
        place = next((at for at, line in enumerate(said) if form.search(line)), None)
        if place is None:
            shown = "".join(f"\n    | {line[:160]}" for line in said[:20])
            yield f"{name}:{block.line + offset}: `{wanted}` was not printed{shown}"
            return
        said = said[place + 1 :] if wanted else said


def judge(name, text, binary, limit_s):
    """(faults, what was skipped, what was done) of a document."""
    blocks, faults = parse(name, text)
    skipped = [f"{name}:{block.line}: {block.skip}" for block in blocks if block.skip]
    ran, checked = (sum(block.kind == kind and block.skip is None for block in blocks) for kind in ("sh", "yaml"))
    if not faults and ran + checked:
        faults, left_out = run(name, blocks, binary, limit_s)
        skipped += [f"{name}: {left_out}"] if left_out else []
    return faults, skipped, f"{ran} blocks run, {checked} configurations checked"


def report(name, binary, limit_s):
    """Prints how a document fared; the number of its faults."""
    start = time.monotonic()
    faults, skipped, done = judge(name, (ROOT / name).read_text(), binary, limit_s)
    print(f"{name}: {done}, {time.monotonic() - start:.1f} s", flush=True)
    for what in skipped:
        print(f"SKIPPED: {what}", flush=True)
    for fault in faults:
        print(fault, file=sys.stderr, flush=True)
    return len(faults)


def program(given):
    if given:
        return pathlib.Path(given).resolve()
    built = [ROOT / "target" / kind / "warmpath" for kind in ("release", "debug")]
    built = sorted((path for path in built if path.exists()), key=lambda path: path.stat().st_mtime)
    return built[-1] if built else sys.exit("the router is not built: cargo build")


def self_test(binary):
    """Documents with known faults are found out, and those without pass."""
    sys.path.insert(0, str(ROOT / "scripts/docs"))
    import broken
    import names

    found = [(title, judge("a.md", text, binary, 2)[0], wanted) for title, text, wanted in broken.DOCUMENTS]
    found += [(title, list(names.faults("docs/a.md", text, str(binary))), wanted) for title, text, wanted in broken.NAMES]
    wrong = 0
    for title, faults, wanted in found:
        if [fault.split("\n")[0].split(" (known: ")[0] for fault in faults] != wanted:
            wrong += 1
            print(f"self-test: {title}: {faults} instead of {wanted}", file=sys.stderr)
    print(f"self-test: {len(found)} documents, {wrong} judged wrongly")
    return wrong


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--binary", default=os.environ.get("WARMPATH_BINARY"))
    options.add_argument("--limit", type=float, default=90, help="seconds that a document may take")
    options.add_argument("--self-test", action="store_true")
    options.add_argument("documents", nargs="*")
    given = options.parse_args()
    binary = program(given.binary)
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1)
    if given.self_test:
        sys.exit(1 if self_test(binary) else 0)
    pages = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
    documents = given.documents or ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", *pages]
    faults = sum(report(name, binary, given.limit) for name in documents)
    names = subprocess.run([sys.executable, ROOT / "scripts/docs/names.py", str(binary), *documents], check=False)
    print(f"{len(documents)} documents, {faults} faults in blocks")
    sys.exit(1 if faults or names.returncode else 0)


if __name__ == "__main__":
    main()
