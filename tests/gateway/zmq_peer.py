"""The ZeroMQ sockets of an engine, or of a router, as real ones have them: libzmq through pyzmq.

    zmq_peer.py engine EVENTS PUB ROUTER topic|plain   frames of a recording; commands on standard input:
        send FROM UNTIL      publishes these messages of the recording, byte for byte
        burst COUNT          publishes so many small ones, numbered from 0
        connect ENDPOINT TOPIC   lets a second PUB connect there; `speak SEQ` publishes on it
    zmq_peer.py router PUB ROUTER COUNT                listens, then asks for a replay from 0; prints all frames in hex
"""

import json
import sys
import threading

import zmq

context = zmq.Context()
context.linger = 0


def say(*words):
    print(*words, flush=True)


def replay(router, kept, lock, layout):
    while True:
        frames = router.recv_multipart()
        if len(frames) != 3 or frames[1] != b"":
            continue
        start = int.from_bytes(frames[2], "big")
        with lock:
            batches = [batch for batch in kept if int.from_bytes(batch[1], "big") >= start]
        envelope = [frames[0], b""]
        for topic, seq, payload in batches:
            router.send_multipart(envelope + ([topic] if layout == "topic" else []) + [seq, payload])
        end = [b""] if layout == "topic" else []
        router.send_multipart(envelope + end + [b"\xff" * 8, b""])


def engine(events, pub_at, router_at, layout):
    with open(events) as lines:
        recording = [[bytes.fromhex(frame) for frame in json.loads(line)["frames"]] for line in lines]
    pub = context.socket(zmq.PUB)
    pub.sndhwm = 100_000
    pub.bind(pub_at)
    router = context.socket(zmq.ROUTER)
    router.bind(router_at)
    kept, lock = [], threading.Lock()
    threading.Thread(target=replay, args=(router, kept, lock, layout), daemon=True).start()
    say(pub.last_endpoint.decode(), router.last_endpoint.decode())
    second, name = None, b""
    for line in sys.stdin:
        command, *args = line.split()
        if command == "send":
            for frames in recording[int(args[0]) : int(args[1])]:
                with lock:
                    kept.append(frames)
                pub.send_multipart(frames)
        elif command == "burst":
            for seq in range(int(args[0])):
                pub.send_multipart([b"", seq.to_bytes(8, "big"), b"x" * 200])
        elif command == "connect":
            second, name = context.socket(zmq.PUB), args[1].encode()
            second.connect(args[0])
        elif command == "speak":
            second.send_multipart([name, int(args[0]).to_bytes(8, "big"), b"payload"])
        say("done")


def router(pub_at, router_at, count):
    sub = context.socket(zmq.SUB)
    sub.subscribe(b"")
    sub.connect(pub_at)
    dealer = context.socket(zmq.DEALER)
    dealer.connect(router_at)
    say("ready")
    for _ in range(int(count)):
        say("live", *(frame.hex() or "-" for frame in sub.recv_multipart()))
    for line in sys.stdin:
        dealer.send_multipart([b"", int(line).to_bytes(8, "big")])
        while True:
            frames = dealer.recv_multipart()
            say("replayed", *(frame.hex() or "-" for frame in frames))
            if frames[-2] == b"\xff" * 8:
                break
        say("done")


if __name__ == "__main__":
    {"engine": engine, "router": router}[sys.argv[1]](*sys.argv[2:])
