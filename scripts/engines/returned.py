#!/usr/bin/env python3
"""returned.py ROUTER_URL MODEL WORKER: sends short prompts until the worker answers one, and says how long that took; the
first answer must promise nothing, since the worker began anew. Exits 1 after 30 seconds."""
import http.client, json, random, sys, time
from urllib.parse import urlsplit

router, model, worker = urlsplit(sys.argv[1]), sys.argv[2], sys.argv[3]
started = time.monotonic()
while time.monotonic() - started < 30:
    connection = http.client.HTTPConnection(router.hostname, router.port, timeout=60)
    prompt = [random.randrange(1000, 100000) for _ in range(70)]
    connection.request("POST", "/v1/completions", json.dumps({"model": model, "prompt": prompt, "max_tokens": 1}),
                       {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    if answer.headers["x-warmpath-worker"] == worker:
        promised = int(answer.headers["x-warmpath-overlap-tokens"] or 0)
        print(f"{worker} is used again after {time.monotonic() - started:.2f} s, promised {promised} tokens")
        sys.exit(1 if promised else 0)
    time.sleep(0.05)
print(f"{worker} was not used within 30 s", file=sys.stderr)
sys.exit(1)
