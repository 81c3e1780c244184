"""What the security tests share: raw bytes to a server, and streams beside them that must not notice.

A test gets the server, its docstring says what it tries, and `tried` counts what it sent. While a test runs, two
bystanders ask for the same replies again and again: every reply must have the ids of one that was computed in peace, and
what they got meanwhile must have kept its pace.
"""
import json
import os
import re
import socket
import statistics
import sys
import threading
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http"))
import harness

MODEL = os.path.join(harness.ROOT, "models", "fold-s")
N_TOKENS = 24
# The attackers run on the same cores as the server, and so does whatever else the machine does: a reply may take this
# many times what it takes in peace, and a gap between two tokens may be this long.
SLOWER = 5
GAP_SECONDS = 1.0
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"

tried = 0


class Tokenfold(harness.Server):
    def __init__(self, *flags, key=None):
        self.key_line = b"Authorization: Bearer %s\r\n" % key.encode() if key else b""
        flags += ("--api-key", key) if key else ()
        super().__init__([harness.TOKENFOLD, "serve", MODEL, "--port", "0", "--no-progress", "--context", "2048", *flags])


# ---- bytes ----

def throw(server, data, seconds=10, hang_up=False):
    """Sends bytes on a connection of their own; (all that came back, whether the server closed it)."""
    global tried
    tried += 1
    answer = b""
    with server.connect() as s:
        s.settimeout(seconds)
        try:
            s.sendall(data)
            if hang_up:
                s.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it hung up on us, which is its right
        try:
            while piece := s.recv(65536):
                answer += piece
        except socket.timeout:
            return answer, False
        except OSError:
            pass
        return answer, True


def statuses(answer):
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


def ask(server, method, path, headers=(), body=b""):
    """(status, body as it came); the path goes out as it is."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    answer, _ = throw(server, "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
    found = statuses(answer)
    return found[0] if found else 0, answer.partition(b"\r\n\r\n")[2]


def is_clear(body):
    """An error a client can read: our JSON, one sentence, small."""
    error = json.loads(body)["error"]
    return isinstance(error["message"], str) and len(body) < 1000


# ---- those who must not notice ----

def stream(server, number):
    """A greedy reply to a prompt of its own: (its digest, the seconds it took, the longest gap between two tokens). None:
    the server said that it has no room."""
    body = json.dumps({"prompt": f"Bystander {number}: the river is", "max_tokens": N_TOKENS, "temperature": 0, "ignore_eos": True,
                       "stream": True, "return_token_ids": True}).encode()
    times, digest, rest = [], None, b""
    began = time.monotonic()
    with server.connect() as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n"
                  % (server.key_line, len(body)) + body)
        while piece := s.recv(65536):
            *lines, rest = (rest + piece).split(b"\n")
            if lines and lines[0].startswith(b"HTTP/1.1 429"):
                return None
            for line in lines:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                times.append(time.monotonic())
                digest = event.get("tokenfold", {}).get("token_sha256", digest)
    return digest, time.monotonic() - began, max([b - a for a, b in zip(times, times[1:])] or [0])


class Bystanders:
    def __init__(self, server):
        self.server, self.over, self.seen, self.wrong = server, threading.Event(), [], []
        self.turned_away = 0
        self.peace = [stream(server, i) for i in range(2)]
        both = [threading.Thread(target=self._watch, args=(i,), daemon=True) for i in range(2)]
        self.peace_seconds = 2 * max(p[1] for p in self.peace)  # each beside the other
        self.threads = both
        for t in both:
            t.start()

    def _watch(self, i):
        replies = 0
        while not self.over.is_set() or replies == 0:  # one that is turned away as long as the attack lasts gets in afterwards
            try:
                got = stream(self.server, i)
            except OSError as e:
                got = (repr(e), 0, 0)
            if got is None:
                self.turned_away += 1
                time.sleep(0.05)
                continue
            if got[0] != self.peace[i][0]:
                self.wrong.append((i, got))
                return
            self.seen.append(got)
            replies += 1

    def end(self):
        """Says what they saw; an assertion fails when they noticed."""
        self.over.set()
        for t in self.threads:
            t.join(60)
        assert not self.wrong, f"a reply beside the attack was not its own: {self.wrong} instead of {self.peace}"
        assert len(self.seen) >= 2
        usual, longest = statistics.median(s[1] for s in self.seen), max(s[2] for s in self.seen)
        assert usual <= SLOWER * self.peace_seconds, f"replies took {usual:.3f} s beside it, {self.peace_seconds:.3f} s in peace"
        assert longest <= GAP_SECONDS, f"a reply stood still for {longest:.2f} s"
        away = f"{self.turned_away} turned away, " if self.turned_away else ""
        return f"{away}{len(self.seen)} replies beside it exact, median {usual * 1e3:.0f} ms ({self.peace_seconds * 1e3:.0f} in peace), " \
               f"longest gap {longest * 1e3:.0f} ms"


# ---- running ----

def settle(server, descriptors, seconds=15):
    """Nothing is left behind: no request, no connection."""
    server.wait_idle()
    deadline = time.monotonic() + seconds
    while server.descriptors() > descriptors + 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.descriptors() <= descriptors + 3, f"{server.descriptors()} descriptors are open, {descriptors} were"


def main(names, start):
    global tried
    wanted = sys.argv[1:]
    tests = [(n, f) for n, f in names.items() if n.startswith("test_") and (not wanted or n in wanted)]
    failed = 0
    server = start()
    try:
        for name, test in tests:
            tried, began = 0, time.monotonic()
            try:
                bystanders = Bystanders(server)
                descriptors = server.descriptors()
                try:
                    test(server)
                finally:
                    remark = bystanders.end()
                settle(server, descriptors)
                print(f"passed   {name}: {' '.join(test.__doc__.split())}\n         {tried} tries, "
                      f"{time.monotonic() - began:.1f} s; {remark}", flush=True)
            except Exception:
                failed += 1
                print(f"failed   {name}\n{traceback.format_exc()}", flush=True)
        if server.process.poll() is not None:
            failed += 1
            print(f"failed   the server ended with {server.process.returncode}:\n{server.log[-4000:]}")
    finally:
        code = server.stop()
    if code != 0:
        failed += 1
        print(f"failed   the server ended with {code}:\n{server.log[-4000:]}")
    print(f"{len(tests) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
