"""Connections that are the attack: slow ones, many, half-open and abandoned ones, clients that do not read."""
import json
import os
import re
import signal
import socket
import struct
import time

import attack
import harness
from attack import statuses

CONNECTIONS, RECEIVE, IDLE, SEND = 64, 2, 3, 3
GET = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


def open_all(server, n, data=b""):
    out = []
    for _ in range(n):
        attack.tried += 1
        s = server.connect()
        s.settimeout(20)
        try:
            s.sendall(data)
        except OSError:
            pass
        out.append(s)
    return out


def close_all(sockets, reset=False):
    for s in sockets:
        if reset:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()


def read(s):
    try:
        return harness.read_all(s)
    except (socket.timeout, OSError):
        return None


def drip(sockets, pieces, seconds):
    """A byte or so on each of them, again and again."""
    until = time.monotonic() + seconds
    for piece in pieces:
        for s in sockets:
            try:
                s.sendall(piece)
            except OSError:
                pass
        time.sleep(0.1)
        if time.monotonic() > until:
            return


def threads(server):
    return len(os.listdir(f"/proc/{server.process.pid}/task"))


def healthy(server, patience=0):
    """Who asks is answered; with patience, once the server has seen how many of its connections have ended."""
    until = time.monotonic() + patience
    while server.ask("GET", "/health")[0] == 429 and time.monotonic() < until:
        time.sleep(0.1)
    for _ in range(3):
        assert server.ask("GET", "/health")[0] == 200


def test_slow_heads(server):
    """heads that come a byte at a time, and first lines that do: 408 or the end after the limit, and others get in"""
    slow = open_all(server, 25, b"GET /health HTTP/1.1\r\nX: ") + open_all(server, 10, b"GE")
    began = time.monotonic()
    drip(slow, [b"y"] * 100, RECEIVE + 0.5)
    healthy(server)
    answers = [read(s) for s in slow]
    assert time.monotonic() - began < IDLE + 5
    assert all(statuses(a) == [408] for a in answers[:25]), answers[:25]
    assert all(a == b"" for a in answers[25:]), answers[25:]
    close_all(slow)


def test_slow_bodies(server):
    """bodies that come a byte at a time, by length and by chunks: 408 after the limit"""
    slow = open_all(server, 20, HEAD + b"Content-Length: 100000\r\n\r\n") + open_all(server, 20,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    began = time.monotonic()
    until = began + RECEIVE + 0.5
    while time.monotonic() < until:
        drip(slow[:20], [b" "], 0.1)
        drip(slow[20:], [b"1\r\n \r\n"], 0.1)
    healthy(server)
    answers = [read(s) for s in slow]
    assert all(statuses(a) == [408] for a in answers), answers
    assert time.monotonic() - began < RECEIVE + 5
    close_all(slow)


def test_unread_replies(server):
    """clients that ask for long streams, or for hundreds of answers at once, and read nothing: they are dropped, and their lanes freed"""
    # A window that holds little, so that what is not read stays with the server.
    unread = []
    for data in [GET.replace(b"Connection: close\r\n", b"").replace(b"/health", b"/page.js") * 60] * 10:
        attack.tried += 1
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        s.connect(("127.0.0.1", server.port))
        s.sendall(data)
        unread.append(s)
    body = json.dumps({"prompt": "The river", "max_tokens": 1000, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.connect(("127.0.0.1", server.port))
    s.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    unread.append(s)
    deadline, left = time.monotonic() + 60, len(unread)
    while left and time.monotonic() < deadline:  # a connection that is dropped is no longer one of the server's
        time.sleep(0.2)
        left = established(server, unread)
    assert left == 0, f"{left} clients that read nothing are still served"
    healthy(server)
    close_all(unread)


def established(server, sockets):
    ours = {f"{s.getsockname()[1]:04X}" for s in sockets}
    with open("/proc/net/tcp") as f:
        rows = [line.split() for line in f.readlines()[1:]]
    return sum(1 for r in rows if r[1].endswith(f":{server.port:04X}") and r[2].split(":")[1] in ours and r[3] == "01")


def test_many_idle(server):
    """many times more connections than are allowed, silent or with half a first line: the oldest give way, so that who asks is answered"""
    n = threads(server)
    for data in (b"", b"GET /heal", b"GET /health HTTP/1.1\r\nHost: x\r\n"):
        many = []
        for _ in range(8):
            many += open_all(server, CONNECTIONS // 2, data)
            time.sleep(0.3)
            healthy(server)
        assert threads(server) <= n + CONNECTIONS + 70
        close_all(many)


def test_many_at_work(server):
    """as many connections as are allowed, each with a body under way: another gets a clear 429, and in they are again once these are
    over"""
    many = open_all(server, CONNECTIONS, HEAD + b"Content-Length: 1000\r\n\r\n{")
    time.sleep(0.3)
    answers = [server.ask("GET", "/health") for _ in range(5)]
    assert any(a[0] == 429 for a in answers), answers
    for status, _, body in answers:
        assert status == 200 or (status == 429 and body["error"]["code"] == "too_many_connections"), (status, body)
    close_all(many)
    time.sleep(0.3)
    healthy(server)


def test_comings_and_goings(server):
    """thousands of connections opened and closed, reset, half-closed and left in the middle, on the way in and out"""
    body = json.dumps({"prompt": "The river", "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
    post = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    starts = [b"", b"G", GET[:20], GET[:-2], GET, HEAD, HEAD + b"Content-Length: 100\r\n\r\n{", post[:-5], post, GET * 3,
              HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"]
    for turn in range(60):
        for start in starts:
            for reset in (False, True):
                sockets = open_all(server, 1, start)
                if turn % 3 == 0:
                    try:
                        sockets[0].shutdown(socket.SHUT_WR)
                    except OSError:
                        pass
                close_all(sockets, reset)
    healthy(server, 5)


def test_half_open(server):
    """requests whose client closes its sending half, and peers that vanish without a word in the middle of a reply"""
    body = json.dumps({"prompt": "The river", "max_tokens": 1500, "ignore_eos": True}).encode()
    post = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    for data in (post, post.replace(b'"ignore_eos"', b'"stream": true, "ignore_eos"').replace(b"Length: %d" % len(body),
                b"Length: %d" % (len(body) + 16)),
                 GET[:-2], HEAD + b"Content-Length: 100\r\n\r\n{"):
        sockets = open_all(server, 8, data)
        time.sleep(0.1)
        for s in sockets:
            s.shutdown(socket.SHUT_WR)
        began = time.monotonic()
        for s in sockets:
            read(s)
        assert time.monotonic() - began < RECEIVE + 3
        close_all(sockets)


def test_memory(server):
    """what the attacks above and a thousand refused requests leave in memory"""
    for _ in range(50):
        server.ask("POST", "/tokenize", raw=b'{"prompt":"' + b"x" * 200000)
    before = server.resident_kib()
    for i in range(1000):
        attack.throw(server, [GET + GET, b"\x00" * 50 + b"\r\n\r\n", HEAD + b"Content-Length: x\r\n\r\n", GET.replace(b"/health",
        b"/?" + b"a&" * 4000),
                              HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", GET[:30]][i % 6], hang_up=True)
    grown = server.resident_kib() - before
    assert grown < 16 * 1024, f"{grown} KiB more are resident"


def test_drain(server):
    """SIGTERM while slow, idle and abandoned connections are held: running replies are finished, and the process ends soon"""
    other = start()
    held = open_all(other, 10) + open_all(other, 10, GET[:-2]) + open_all(other, 10, HEAD + b"Content-Length: 100\r\n\r\n{")
    reply = other.begin("/v1/completions", {"prompt": "The river", "max_tokens": 300, "ignore_eos": True, "stream": True})
    reply.recv(1)
    began = time.monotonic()
    other.process.send_signal(signal.SIGTERM)
    data = harness.read_all(reply)
    assert data.rstrip(b"\r\n0").endswith(b"data: [DONE]"), data[-200:]
    code = other.process.wait(20)
    assert code == 0 and time.monotonic() - began < RECEIVE + 6, (code, time.monotonic() - began)
    assert re.search(r"shutting down", other.log)
    close_all(held)


def start():
    return attack.Tokenfold("--connections", str(CONNECTIONS), "--receive-seconds", str(RECEIVE), "--idle-seconds", str(IDLE),
                            "--send-seconds", str(SEND), "--max-body", "1MiB")


if __name__ == "__main__":
    attack.main(globals(), start)
