#!/usr/bin/env python3
"""drive.py ROUTER_URL MODEL [--json]: completions and chats through a Warmpath router, whose answers must carry its
routing headers, to real engines. Prints what the router predicted, what the engines reported and how long first tokens
took; exits 1 where a share is too low."""
import concurrent.futures, http.client, json, random, statistics, sys, time
from urllib.parse import urlsplit

router, model = urlsplit(sys.argv[1]), sys.argv[2]
as_json = "--json" in sys.argv
draw = random.Random(7)
WORDS = "river stone lantern quiet harbor copper meadow thunder violet anchor willow ember glacier saffron orchard".split()


def tokens(count):
    return [draw.randrange(1000, 100000) for _ in range(count)]


def post(path, body):
    """The answer's worker, promised tokens, usage, and the seconds until its first data."""
    connection = http.client.HTTPConnection(router.hostname, router.port, timeout=300)
    body = dict(body, model=model, temperature=0, stream=True, stream_options={"include_usage": True})
    started = time.perf_counter()
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status} {answer.read()[:500]}")
    first, usage = None, None
    for line in answer:
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - started
            usage = json.loads(line[6:]).get("usage") or usage
    reported = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "worker": answer.headers["x-warmpath-worker"],
        "promised": int(answer.headers["x-warmpath-overlap-tokens"] or 0),
        "reported": reported, "prompt": usage["prompt_tokens"], "ttft": first,
    }


def complete(ids):
    return post("/v1/completions", {"prompt": ids, "max_tokens": 4})


def chat(messages):
    return post("/v1/chat/completions", {"messages": messages, "max_tokens": 16})


def settle():
    """Events of the last step need some milliseconds."""
    time.sleep(0.15)


def exact(answers):
    return sum(answer["promised"] == answer["reported"] for answer in answers) / len(answers)


def warm_and_cold(prefixes):
    """Each prefix once, then again with another end: (cold answers, warm answers, share sent to the warm engine)."""
    cold = []
    for prefix in prefixes:
        cold.append(complete(prefix + tokens(24)))
        settle()
    warm = []
    for prefix in prefixes:
        warm.append(complete(prefix + tokens(24)))
        settle()
    same = sum(one["worker"] == other["worker"] for one, other in zip(cold, warm)) / len(warm)
    return cold, warm, same


def conversations(count, turns):
    answers = []
    for number in range(count):
        messages = [{"role": "system", "content": " ".join(draw.choice(WORDS) for _ in range(120))}]
        for turn in range(turns):
            messages.append({"role": "user", "content": " ".join(draw.choice(WORDS) for _ in range(60))})
            answers.append(chat(messages))
            messages.append({"role": "assistant", "content": f"Answer {number} {turn}."})
            settle()
    return answers


def at_once(prefixes, requests):
    work = [prefix + tokens(24) for prefix in prefixes for _ in range(requests)]
    draw.shuffle(work)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return list(pool.map(complete, work))


def median_ms(answers):
    return statistics.median(answer["ttft"] for answer in answers) * 1000


prefixes = [tokens(1500) for _ in range(5)]
cold, warm, same = warm_and_cold(prefixes)
chats = conversations(3, 4)
settle()
parallel = at_once(prefixes, 6)
settle()
evicting = [complete(tokens(1500) if n % 3 else prefixes[n % 5] + tokens(24)) for n in range(30)]
figures = {
    "warm_engine_chosen": same,
    "ttft_cold_ms": median_ms(cold), "ttft_warm_ms": median_ms(warm),
    "exact_sequential": exact(cold + warm), "exact_chat": exact(chats), "exact_at_once": exact(parallel),
    "exact_with_evictions": exact(evicting),
    "cached_share_at_once": sum(a["reported"] for a in parallel) / sum(a["prompt"] for a in parallel),
    "requests": len(cold + warm + chats + parallel + evicting),
}
figures["ttft_warm_over_cold"] = figures["ttft_warm_ms"] / figures["ttft_cold_ms"]
if as_json:
    print(json.dumps(figures))
else:
    for name, value in figures.items():
        print(f"{name:22s} {value:.3f}" if isinstance(value, float) else f"{name:22s} {value}")
wanted = [("warm_engine_chosen", 0.99), ("exact_sequential", 0.99), ("exact_chat", 0.99), ("exact_at_once", 0.99),
          ("exact_with_evictions", 0.95)]
low = [f"{name} is {figures[name]:.3f}, wanted {least}" for name, least in wanted if figures[name] < least]
if figures["ttft_warm_over_cold"] > 0.7:
    low.append(f"a warm first token takes {figures['ttft_warm_over_cold']:.2f} of a cold one")
for line in low:
    print(line, file=sys.stderr)
sys.exit(1 if low else 0)
