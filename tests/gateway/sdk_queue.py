"""Meets a router whose only worker is busy and whose queue is full, through OpenAI's own SDK with its default retries.

usage: sdk_queue.py ROUTER      where the tenant `greedy` has as many requests waiting as it may, and nobody else may wait

Fails with a traceback if anything is not as it should be; prints "ok" at the end.
"""

import sys
import time

import openai


def refused(router, key, kind, code, least_s, **more):
    """The error that a request ends with, and the least time that its attempts must have taken."""
    client = openai.OpenAI(base_url=router + "/v1", api_key=key, timeout=20)
    start = time.monotonic()
    try:
        client.completions.create(model="m", prompt="x", **more)
    except openai.APIStatusError as error:
        took = time.monotonic() - start
        assert type(error) is kind, repr(error)
        assert error.code == code, error
        assert least_s <= took <= least_s * 1.5 + 1.5, took
        return error
    raise AssertionError("the request was taken")


def main():
    router = sys.argv[1]
    # Two more attempts, each after the second or more that `retry-after-ms` asks for; the SDK itself would wait less.
    error = refused(router, "greedy", openai.RateLimitError, "rate_limit_exceeded", 2.0)
    assert error.response.headers["x-should-retry"] == "true", error.response.headers
    error = refused(router, "other", openai.InternalServerError, "queue_full", 2.0)
    assert error.status_code == 503, error
    # No time at all: tried once.
    headers = {"x-request-timeout-ms": "0"}
    error = refused(router, "b", openai.InternalServerError, "deadline_exceeded", 0.0, extra_headers=headers)
    assert (error.status_code, error.response.headers["x-should-retry"]) == (504, "false"), error
    print("ok")


main()
