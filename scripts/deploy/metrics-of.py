#!/usr/bin/env python3
"""Prints the /metrics of a router that has served one request of a simulated engine.

    scripts/deploy/metrics-of.py target/debug/warmpath
"""
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PATIENCE_S = 30


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def fetch(url, body=None):
    headers = {"content-type": "application/json"} if body else {}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=PATIENCE_S) as answer:
        return answer.read().decode()


def wait_for(url, processes):
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return fetch(url)
        except (urllib.error.URLError, OSError):
            if time.monotonic() > end or any(process.poll() is not None for process in processes):
                sys.exit(f"no answer at {url}")
            time.sleep(0.1)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    data, admin, engine = free_ports(3)
    workers = [{"id": "worker-1", "url": f"http://127.0.0.1:{engine}", "model": "m"}]
    listen = {"data": f"127.0.0.1:{data}", "admin": f"127.0.0.1:{admin}"}
    config = {"listen": listen, "models": [{"name": "m", "tokenizer": "bytes"}], "workers": workers}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WARMPATH__")}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "warmpath.yaml")
        with open(path, "w") as file:
            json.dump(config, file)
        commands = [
            ["mock-engine", "--model", "m", "--worker", "worker-1", "--listen", f"127.0.0.1:{engine}"],
            ["serve", "--config", path],
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
        processes = []
        try:
            for command in commands:
                processes.append(subprocess.Popen([sys.argv[1], *command], **quiet))
            wait_for(f"http://127.0.0.1:{admin}/readyz", processes)
            fetch(f"http://127.0.0.1:{data}/v1/completions", json.dumps({"model": "m", "prompt": "a" * 64, "max_tokens": 2}).encode())
            sys.stdout.write(fetch(f"http://127.0.0.1:{admin}/metrics"))
        finally:
            for process in processes:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
