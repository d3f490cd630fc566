"""Reads broken streams and failing answers through OpenAI's own SDK.

usage: sdk_faults.py TWO ONE STREAMS    where TWO is a router before two engines and ONE one before a single engine,
all of which do what a prompt says

Fails with a traceback if anything is not as it should be.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import openai

HOWS = {
    "reset": "upstream_broken",
    "close": "upstream_broken",
    "clean": "upstream_broken",
    "idle": "upstream_idle",
}


def client(base, **options):
    return openai.OpenAI(base_url=base + "/v1", api_key="any", timeout=20, **options)


def broken(router, number):
    """One stream that breaks, mostly within an event: returns what came, or None where the SDK took it for whole. Half an event
    would make the SDK fail on its JSON, which is no error of its own."""
    how = "idle" if number % 20 == 0 else ("reset", "close", "clean")[number % 3]
    tokens = 1 + number % 5
    texts = []
    try:
        # A prompt of its own, so that nothing is held against others.
        prompt = "%s %d %d %d" % (how, tokens, number * 7 % 64, number)
        for chunk in router.completions.create(model="m", prompt=prompt, stream=True):
            texts.append(chunk.choices[0].text)
    except openai.APIError as error:
        assert error.code == HOWS[how], (prompt, error)
        return texts
    return None


def streams(router, count):
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda number: broken(router, number), range(count)))
    silent = [number for number, texts in enumerate(results) if texts is None]
    assert not silent, "taken for whole: %r" % silent[:20]
    short = [number for number, texts in enumerate(results) if set(texts) != {"a"} or len(texts) != 1 + number % 5]
    assert not short, "not all that was whole: %r" % [(number, results[number]) for number in short[:20]]


def raises(router, prompt, error):
    try:
        router.completions.create(model="m", prompt=prompt)
    except error as raised:
        return raised
    raise AssertionError("%s was answered" % prompt)


def failures(two, one):
    error = raises(two, "die", openai.InternalServerError)
    assert (error.status_code, error.code) == (502, "request_suspect"), error
    error = raises(two, "error", openai.InternalServerError)
    assert (error.status_code, error.response.headers["x-should-retry"]) == (500, "false"), error
    raises(two, "bad", openai.BadRequestError)
    start = time.monotonic()
    error = raises(two, "full", openai.RateLimitError)
    assert error.response.headers["retry-after-ms"] == "50", error.response.headers
    assert time.monotonic() - start < 2, "the SDK waited for longer than it was told"
    # The only engine is back when it said, which is too long for the router and not for the SDK.
    start = time.monotonic()
    answer = "".join(chunk.choices[0].text for chunk in one.completions.create(model="m", prompt="once", stream=True))
    assert (answer, time.monotonic() - start >= 1.5) == ("a", True), answer


def main():
    count = int(sys.argv[3])
    # First, while no connection is kept: what is sent again over a new one would count, too.
    failures(client(sys.argv[1]), client(sys.argv[2]))
    streams(client(sys.argv[1], max_retries=0), count)
    print("%d broken streams, all raised, none silent" % count)


if __name__ == "__main__":
    main()
