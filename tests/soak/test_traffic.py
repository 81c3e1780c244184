"""Mixed traffic for half an hour (TF_SOAK_SECONDS says otherwise): 64 clients on 8 lanes, random lengths, whole and
streamed, clients that leave, bad requests, conversations that go on. Every reply must be the start of what the same
request gives alone on another server; at the end nothing is held and memory has not grown.
"""
import os
import random
import re
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http"))
import harness  # noqa: E402

SECONDS = float(os.environ.get("TF_SOAK_SECONDS", "1800"))
CLIENTS, LANES, LONGEST = 64, 8, 64
WORDS = "the river ran past an old mill where nobody had ground any corn since the bridge was built".split()
BAD = ({}, {"prompt": ""}, {"prompt": "x", "max_tokens": 0}, {"prompt": "x", "temperature": -1}, {"prompt": [99999999]},
       {"prompt": "x", "max_tokens": 10 ** 12}, {"prompt": "x", "no_such_field": 1})
ARMS = ({"TF_QWEN_KV_PAGES": "64", "TF_QWEN_KV_PAGES_ALL": "1", "TF_QWEN_KV_SHARE": "1"}, {}, {"TF_QWEN_KV_PAGES": "96"})


def requests():
    """Prompts of which many begin alike, some greedy and some seeded."""
    chance = random.Random(1)
    list_ = []
    for story in range(6):
        text = f"Story {story}: "
        for part in range(8):
            text += " ".join(chance.choice(WORDS) for _ in range(chance.randint(5, 60))) + ". "
            list_.append({"prompt": text, "temperature": part % 2, "seed": 10 * story + part, "ignore_eos": True,
                          "return_token_ids": True})
    return list_


def ids_of(body):
    return body["choices"][0]["token_ids"]


class Traffic:
    def __init__(self, server, known, seconds):
        self.server, self.known, self.until = server, known, time.monotonic() + seconds
        self.lock = threading.Lock()
        self.counts = {"whole": 0, "streamed": 0, "left": 0, "bad": 0, "full": 0}
        self.wrong, self.resident = [], 0

    def note(self, what):
        with self.lock:
            self.counts[what] += 1

    def complain(self, text):
        with self.lock:
            self.wrong.append(text)

    def whole(self, request, alone, n):
        status, headers, body = self.server.post("/v1/completions", {**request, "max_tokens": n})
        if status == 429:
            assert int(headers["retry-after"]) >= 1
            return self.note("full")
        if status != 200 or ids_of(body) != alone[:n]:
            return self.complain(f"{status} {str(body)[:300]} instead of {alone[:n]}")
        self.note("whole")

    def streamed(self, request, alone, n):
        events = self.server.events("/v1/completions", {**request, "max_tokens": n})
        ids = [i for e in events for c in e.get("choices", []) for i in c.get("token_ids") or []]
        if ids != alone[:n]:
            return self.complain(f"stream {ids} instead of {alone[:n]}")
        self.note("streamed")

    def left(self, request, chance):
        s = self.server.begin("/v1/completions", {**request, "max_tokens": LONGEST, "stream": chance.random() < 0.5})
        time.sleep(chance.random() * 0.5)
        s.close()
        self.note("left")

    def bad(self, chance):
        status, _, body = self.server.post("/v1/completions", chance.choice(BAD))
        if status != 400:
            return self.complain(f"a bad request got {status} {body}")
        self.note("bad")

    def client(self, seed):
        chance = random.Random(seed)
        while time.monotonic() < self.until and len(self.wrong) < 10:
            request, alone = chance.choice(self.known)
            what = chance.random()
            try:
                if what < 0.5:
                    self.whole(request, alone, chance.randint(1, LONGEST))
                elif what < 0.75:
                    self.streamed(request, alone, chance.randint(1, LONGEST))
                elif what < 0.9:
                    self.left(request, chance)
                else:
                    self.bad(chance)
            except Exception as e:
                self.complain(f"{type(e).__name__}: {e}")

    def run(self):
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        # As it is under way: what an idle server has given back to the system differs from one time to the next.
        while any(t.is_alive() for t in threads):
            self.resident = max(self.resident, self.server.resident_kib())
            time.sleep(0.5)


def metric(server, name):
    text = server.ask("GET", "/metrics")[2].decode()
    return float(re.search(rf"^tokenfold_{re.escape(name)} (\S+)$", text, re.M).group(1))


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def soak(settings, known, seconds):
    os.environ.update(settings)
    try:
        server = harness.Tokenfold("--parallel", str(LANES), "--queue", "512", "--context", "4096",
                                   "--prompt-cache-gib", "0.02")
    finally:
        for name in settings:
            del os.environ[name]
    try:
        warm = Traffic(server, known, seconds / 4)
        warm.run()
        server.wait_idle(60)
        descriptors = server.descriptors()
        traffic = Traffic(server, known, 3 * seconds / 4)
        traffic.run()
        server.wait_idle(60)
        grown = traffic.resident - warm.resident
        print(settings or "windows", traffic.counts, f"{warm.resident} KiB resident, {grown:+} KiB", flush=True)
        wrong = warm.wrong + traffic.wrong
        assert not wrong, "\n".join(wrong[:10])
        wait_for(lambda: metric(server, 'pool_pages{state="used"}') == 0)  # entries may still go to host memory
        assert metric(server, "leaked") == 0
        assert metric(server, 'lanes{state="seated"}') == 0 and metric(server, 'requests_ended_total{how="failed"}') == 0
        assert metric(server, 'requests_ended_total{how="cancelled"}') > 0
        assert grown < max(0.02 * warm.resident, 8192), f"memory grew by {grown} KiB"
        wait_for(lambda: server.descriptors() <= descriptors + 4)
    finally:
        code = server.stop()
    assert code == 0, server.log[-4000:]


def main():
    alone = harness.Tokenfold("--parallel", "1", "--context", "4096", "--prompt-cache-gib", "0")
    try:
        known = [(r, ids_of(alone.post("/v1/completions", {**r, "max_tokens": LONGEST})[2])) for r in requests()]
    finally:
        alone.stop()
    for settings in ARMS:
        soak(settings, known, SECONDS / len(ARMS))
    print("no wrong reply")


if __name__ == "__main__":
    main()
