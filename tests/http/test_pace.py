"""When things happen, seen from outside: how long running replies wait while a long prompt is computed, and how soon a
reply ends whose client has left."""
import json
import socket
import statistics
import subprocess
import threading
import time

import harness

N_PROMPT = 4000
PROMPT = [1 + i * 7 % 900 for i in range(N_PROMPT)]
RUNNING = {"prompt": [5, 6, 7, 8], "max_tokens": 6000, "ignore_eos": True, "temperature": 0}
SHORTEST = 256  # rows of a pass beside running replies
TRIALS = 5


def head(body):
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)


class Reply:
    """A streamed reply, read by a thread of its own: `times` are those at which tokens came."""

    def __init__(self, server, body):
        data = json.dumps({**body, "stream": True, "return_token_ids": True}).encode()
        self.times, self.socket = [], server.connect()
        self.socket.sendall(head(data) + data)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        rest = b""
        try:
            while piece := self.socket.recv(65536):
                now = time.monotonic()
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        ids = json.loads(line[6:])["choices"][0].get("token_ids") or []
                        self.times += [now] * len(ids)
        except OSError:
            pass

    def wait(self, n):
        deadline = time.monotonic() + 60
        while len(self.times) < n:
            assert time.monotonic() < deadline, f"{len(self.times)} of {n} tokens came"
            time.sleep(0.0005)

    def leave(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.reader.join(10)
        self.socket.close()


def gaps(times):
    return [b - a for a, b in zip(times, times[1:])]


def pass_seconds(rows):
    """What the last pass of the long prompt takes where passes have `rows` rows and nothing else runs. Of shortest
    times, since what else the machine does only adds to them; and no pass takes longer than the last."""
    def run(n):
        flags = ["--tokens", ",".join(map(str, PROMPT[:n])), "--pass-rows", str(rows), "--max-tokens", "1", "--json"]
        p = subprocess.run([harness.TOKENFOLD, "run", harness.model(), "--no-progress", *flags], check=True,
                           stdout=subprocess.PIPE)
        return json.loads(p.stdout)["timings"]["prompt_ms"] / 1000
    whole = min(run(N_PROMPT) for _ in range(TRIALS))
    return max(whole - min(run(N_PROMPT - rows) for _ in range(TRIALS)), whole * rows / N_PROMPT)


def longest_gaps(server):
    """The usual gap of three running replies, and while a long prompt is computed as many of the longest gaps of any
    as there are passes of 256 rows, in the order in which they came."""
    running = [Reply(server, RUNNING) for _ in range(3)]
    for r in running:
        r.wait(40)
    start = time.monotonic()
    usual = statistics.median(g for r in running for g in gaps(r.times[-30:]))
    status, _, body = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1})
    assert status == 200, body
    end = time.monotonic()
    for r in running:
        r.wait(len(r.times) + 2)
    inside = [[(a, b - a) for a, b in zip(r.times, r.times[1:]) if b >= start and a <= end] for r in running]
    for r in running:
        r.leave()
    server.wait_idle()
    longest = [sorted(sorted(g, key=lambda x: -x[1])[:N_PROMPT // SHORTEST]) for g in inside]
    return usual, [max(g[k][1] for g in longest if k < len(g)) for k in range(max(map(len, longest)))]


def test_a_long_prompt(server):
    """The scheduler's pass is as long as the rounds before the next one are worth, or has 256 rows if that is more: a
    gap is never longer than four usual ones and a pass of 256 rows. What delays a pass once delays another the next
    time, so each is judged by the median of what it took in several trials."""
    shortest = pass_seconds(SHORTEST)
    for share in ("0.25", "0.5"):
        s = start("--decode-share", share)
        try:
            trials = [longest_gaps(s) for _ in range(TRIALS)]
        finally:
            assert s.stop() == 0
        limit = 4 * statistics.median(usual for usual, _ in trials) + shortest
        n = min(len(longest) for _, longest in trials)
        longest = [statistics.median(longest[k] for _, longest in trials) for k in range(n)]
        assert n > 0 and max(longest) <= limit, (share, shortest, limit, longest)


def read_now(s):
    """All that has arrived."""
    data = b""
    s.setblocking(False)
    try:
        while piece := s.recv(65536):
            data += piece
    except BlockingIOError:
        pass
    s.settimeout(60)
    return data


def test_leaving_ends_the_stream(server):  # C63
    """Of a client that has left, at most what was on its way is sent: no second event. Its lane is free then."""
    server.wait_idle()
    for trial in range(20):
        body = json.dumps({**RUNNING, "stream": True, "return_token_ids": True}).encode()
        with server.connect() as s:
            s.sendall(head(body) + body)
            data = b""
            while data.count(b"data: {") < 3 + trial:
                data += s.recv(65536)
            s.shutdown(socket.SHUT_WR)
            data += read_now(s)
            after = harness.read_all(s)
        assert after.count(b"data: {") <= 1, after
        assert b"[DONE]" not in data + after
        server.wait_idle(2)


def start(*flags):
    return harness.Tokenfold("--context", "16384", *flags)


if __name__ == "__main__":
    harness.main(globals(), start)
