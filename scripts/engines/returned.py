#!/usr/bin/env python3
"""returned.py ROUTER_URL MODEL WORKER ENGINE_URL: waits until the engine answers its health check again, then sends short
prompts until the router gives one to the worker, and says how long that took; the first answer must promise nothing, since
the worker began anew. Exits 1 where something was promised, or where it took more than two seconds."""
import http.client, json, random, sys, time
from urllib.parse import urlsplit

router, model, worker, engine = urlsplit(sys.argv[1]), sys.argv[2], sys.argv[3], urlsplit(sys.argv[4])
STARTS_WITHIN, USED_WITHIN = 600, 2.0


def is_healthy():
    connection = http.client.HTTPConnection(engine.hostname, engine.port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def ask():
    """The worker that answers a new prompt, and what was promised of its cache."""
    connection = http.client.HTTPConnection(router.hostname, router.port, timeout=60)
    prompt = [random.randrange(1000, 100000) for _ in range(70)]
    connection.request("POST", "/v1/completions", json.dumps({"model": model, "prompt": prompt, "max_tokens": 1}),
                       {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.headers["x-warmpath-worker"], int(answer.headers["x-warmpath-overlap-tokens"] or 0)


begun = time.monotonic()
while not is_healthy():
    if time.monotonic() - begun > STARTS_WITHIN:
        sys.exit(f"{worker} did not start within {STARTS_WITHIN} s")
    time.sleep(0.02)
healthy = time.monotonic()
while time.monotonic() - healthy < 30:
    chosen, promised = ask()
    if chosen == worker:
        took = time.monotonic() - healthy
        print(f"{worker} is used again {took:.2f} s after its health check passed, promised {promised} tokens")
        sys.exit(1 if promised or took > USED_WITHIN else 0)
    time.sleep(0.05)
sys.exit(f"{worker} was not used within 30 s")
