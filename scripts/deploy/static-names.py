#!/usr/bin/env python3
"""Whether a program that is linked as docker/Dockerfile links the router finds names where there is nothing but itself.

    scripts/deploy/static-names.py

Builds a few lines with the Dockerfile's flags, and runs them in a root folder with /etc/hosts and /etc/resolv.conf only, before
a name server of ours, in namespaces of their own (unshare). Exit code 3: that cannot be had here; the last line says what.
"""
import fcntl
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Address records by name. So many that the answer has no room in a datagram, and more than musl takes.
ZONE = {"vllm.default.svc.cluster.local": 3, "many.default.svc.cluster.local": 60}
EXPECTED = {"localhost": 1, "worker-1.example": 1, "vllm.default.svc.cluster.local": 3, "vllm": 3, "many": 60, "nobody.invalid": 0}


def answer(query, tcp):
    """The answer to a query of one question: RFC 1035."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    question, kind = query[12 : at + 5], struct.unpack(">H", query[at + 1 : at + 3])[0]
    count = ZONE.get(".".join(labels).lower())
    told, truncated = (count or 0) if kind == 1 else 0, False
    if told > 25 and not tcp:
        told, truncated = 0, True
    flags = 0x8180 | (0x0200 if truncated else 0) | (3 if count is None else 0)
    head = query[:2] + struct.pack(">HHHHH", flags, 1, told, 0, 0)
    record = lambda number: b"\xc0\x0c" + struct.pack(">HHIHBBBB", 1, 1, 30, 4, 10, 0, 1, number + 1)
    return head + question + b"".join(map(record, range(told)))


def serve():
    """A name server on loopback."""
    datagrams, streams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket()
    datagrams.bind(("127.0.0.1", 53))
    streams.bind(("127.0.0.1", 53))
    streams.listen()

    def of_datagrams():
        while True:
            query, sender = datagrams.recvfrom(4096)
            datagrams.sendto(answer(query, False), sender)

    def of_stream(stream):
        with stream, stream.makefile("rb") as queries:
            while len(length := queries.read(2)) == 2:
                told = answer(queries.read(struct.unpack(">H", length)[0]), True)
                stream.sendall(struct.pack(">H", len(told)) + told)

    def of_streams():
        while True:
            threading.Thread(target=of_stream, args=(streams.accept()[0],), daemon=True).start()

    for task in (of_datagrams, of_streams):
        threading.Thread(target=task, daemon=True).start()


def inside(folder):
    """In namespaces of our own, where we are root and alone on loopback."""
    with socket.socket() as any_socket:
        up_and_running = struct.pack("16sh14x", b"lo", 0x1 | 0x40)
        fcntl.ioctl(any_socket, 0x8914, up_and_running)  # SIOCSIFFLAGS
    serve()
    done = subprocess.run(["chroot", folder, "/names", *EXPECTED], capture_output=True, text=True, check=True)
    found = {name: int(count) for name, count in (line.split() for line in done.stdout.splitlines())}
    if found != EXPECTED:
        sys.exit(f"addresses found: {found}, expected: {EXPECTED}")
    print(f"{len(found)} names: as they should be")


def main():
    if len(sys.argv) == 2:
        return inside(sys.argv[1])
    unshare = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        print("unshare with a network of its own")
        sys.exit(3)
    with open(ROOT / "docker/static.toml", "rb") as file:
        [flags] = [target["rustflags"] for target in tomllib.load(file)["target"].values()]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "etc").mkdir()
        program = folder / "names"
        subprocess.run(["rustc", "-O", *flags, ROOT / "scripts/deploy/names.rs", "-o", program], cwd=folder, check=True)
        headers = subprocess.run(["readelf", "-lW", program], capture_output=True, text=True, check=True).stdout
        if "INTERP" in headers:
            sys.exit("the Dockerfile's flags do not make a static program")
        (folder / "etc/hosts").write_text("127.0.0.1 localhost\n10.1.2.3 worker-1.example\n")
        search = "search default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
        (folder / "etc/resolv.conf").write_text(f"nameserver 127.0.0.1\n{search}")
        done = subprocess.run([*unshare, sys.executable, __file__, name], env={**os.environ, "LC_ALL": "C"}, check=False)
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
