"""Requests whose bytes are the attack: keys, smuggling, huge heads and bodies, paths, pipelines."""
import json
import os
import tempfile

import attack
from attack import SMUGGLED, ask, is_clear, statuses, throw

KEY = "correct-horse-battery"
CLOSED = ["/v1/models", "/v1/models/x", "/metrics", "/props", "/v1/chat/completions", "/v1/completions", "/v1/responses",
          "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/nothing"]
HEAD = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n"
BODY = b'{"prompt":"x"}'
GOOD = b"Content-Length: 14\r\n\r\n" + BODY
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"e\r\n" + BODY + b"\r\n0\r\n\r\n"


def refused(answer, status):
    """An answer of this status, and the connection ends: what follows is not taken for a request, which has no key."""
    data, was_closed = answer
    assert statuses(data)[:1] == [status] and 401 not in statuses(data) and was_closed, (status, data[:300])


# ---- keys ----

def test_keys(server):
    """no key, wrong ones, parts of it, other schemes, the key in other places, two keys, on every route and method; none is told back"""
    wrong = [None, "", KEY[:-1], KEY + "x", KEY.upper(), "x" * 4000, " " + KEY + " x", "\xff" * 20, "null", KEY[:-1] + "\x7f"]
    for path in CLOSED:
        for key in wrong:
            for form in ("Authorization: Bearer {}", "X-Api-Key: {}"):
                for method in ("GET", "POST"):
                    headers = [] if key is None else [form.format(key)]
                    status, body = ask(server, method, path, headers)
                    assert status in (401, 400), (path, key, status)
                    assert is_clear(body) and KEY.encode() not in body, body
    for line in ("Authorization: Basic {}", "Authorization: {}", "Proxy-Authorization: Bearer {}", "Cookie: key={}", "X-Key: {}",
                 "Authorization: Bearer\t{}", "Authorization: Bearer:{}"):
        assert ask(server, "GET", "/metrics", [line.format(KEY)])[0] == 401, line
    assert ask(server, "GET", f"/metrics?key={KEY}")[0] == 401 and ask(server, "GET", f"/metrics?Authorization=Bearer%20{KEY}")[0] == 401
    for two in (["Authorization: Bearer no", f"Authorization: Bearer {KEY}"], [f"X-Api-Key: {KEY}", "X-Api-Key: no"]):
        assert ask(server, "GET", "/metrics", two)[0] == 400
    for good in (f"Authorization: Bearer {KEY}", f"authorization: bearer {KEY}", f"X-API-KEY: {KEY}"):
        assert ask(server, "GET", "/metrics", [good])[0] == 200, good
    # A wrong key's body is not kept, and a declared giant is not waited for.
    assert ask(server, "POST", "/tokenize", ["Content-Length: 900000000"])[0] == 401
    for method in ("HEAD", "PUT", "DELETE", "PATCH", "TRACE", "get"):
        assert ask(server, method, "/metrics")[0] in (401, 405), method
    assert KEY not in server.log


def test_key_paths(server):
    """paths that lead around the key: dots, encodings, slashes, NUL, parameters, cases, absolute forms"""
    for path in ("/health/../metrics", "/./metrics", "//metrics", "/%6detrics", "/metrics/", "/metrics?x", "/metrics;x", "/METRICS",
                 "/health%00/metrics", "/metrics%00", "/page.js/../metrics", "/page.js%2f..%2fmetrics", "/..%2fmetrics", "/%2e%2e/metrics",
                 "http://x/metrics", "http://x//metrics", "/health\\..\\metrics", "/metrics#/health", "/health#/metrics", "/%2fmetrics",
                 "/metrics%20", "/metrics%0d%0aX:%20y", "/health;/../metrics", "/v1/models%2f..%2f..%2fmetrics"):
        status, body = ask(server, "GET", path)
        assert status in (400, 401, 404) or b"tokenfold_" not in body, (path, status, body[:100])


# ---- paths ----

def test_paths(server):
    """traversal, absolute files, encodings, long and empty paths, unknown methods, with the right key: no file, no echo, no 5xx"""
    secret = tempfile.NamedTemporaryFile(mode="w", suffix=".txt")
    secret.write("cannot-be-read")
    secret.flush()
    name = os.path.basename(secret.name)
    up = "../" * 12
    paths = [f"/{up}tmp/{name}", secret.name, "//" + secret.name, f"/{up}etc/passwd", "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/..%c0%af..%c0%afetc/passwd",
             "/..%252f..%252fetc/passwd", "/page.js/../../../../etc/passwd", "/page/page.js", "/page.html", "/src/server/page.c",
             "/.git/config",
             "/.env", "/%00", "/%", "/%zz", "/%ff%fe", "/\xff\xfe", "*", "", "/" + "a/" * 4000, "/" + "%41" * 3000, "/" + "../" * 4000,
             "file:///etc/passwd", "http://127.0.0.1:1/", "//evil.example/", "/<script>alert(1)</script>", "/{{7*7}}", "/$(id)",
             "/v1/models/" + "x" * 5000,
             "/v1/models/../../../etc/passwd", "/v1/models/%00", "/v1/models/", "/\x1b[31m", "/a\tb", "/?" + "q=1&" * 3000]
    for path in paths:
        for method in ("GET", "POST", "HEAD"):
            status, body = ask(server, method, path, [f"Authorization: Bearer {KEY}"])
            assert status == 0 or 400 <= status < 500 or (status == 200 and path in ("//evil.example/", "http://127.0.0.1:1/")) \
                or path == "/v1/models/", (path[:60], status)
            for leak in (b"cannot-be-read", b"root:", b"<script>alert", b"[core]", b"49"):
                assert leak not in body or path.startswith("/?"), (path[:60], body[:200])
    for method in ("TRACE", "CONNECT", "PROPFIND", "BREW", "get", "G" * 300, "G\x00T", "\x16\x03\x01", "PRI"):
        data, _ = throw(server, method.encode("latin-1") + b" / HTTP/1.1\r\nHost: x\r\nCookie: told-back\r\n\r\n", 3)
        assert b"told-back" not in data and all(400 <= s < 600 and s != 500 for s in statuses(data)), (method, data[:200])


# ---- smuggling ----

def test_two_lengths(server):
    """both Content-Length and Transfer-Encoding, lengths twice, in lists, signed, hexadecimal, over 2^64, of HTTP/1.0: refused, and
    the connection ends"""
    n = b"Content-Length: %d\r\n"
    for head in (n % 14 + CHUNKED, CHUNKED[:-2] + n % 14 + b"\r\n", n % 14 + n % 14 + b"\r\n", n % 14 + n % 0 + b"\r\n",
                 b"Content-Length: 14, 14\r\n\r\n", b"Content-Length: 14 14\r\n\r\n", b"Content-Length: +14\r\n\r\n",
                 b"Content-Length: -14\r\n\r\n",
                 b"Content-Length: 0xe\r\n\r\n", b"Content-Length: 14;x\r\n\r\n", b"Content-Length: \r\n\r\n",
                 b"Content-Length: 1e1\r\n\r\n",
                 b"Content-Length : 14\r\n\r\n", b"Content-Length\t: 14\r\n\r\n",
                 b"Content_Length: 14\r\nContent-Length: 14\r\nContent-Length: 14\r\n\r\n"):
        refused(throw(server, HEAD + head + BODY + SMUGGLED), 400)
        refused(throw(server, HEAD + head + CHUNKS + SMUGGLED), 400)
    for length in (2 ** 63, 2 ** 64, 2 ** 64 + 14, 10 ** 40):
        refused(throw(server, HEAD + n % length + b"\r\n" + BODY + SMUGGLED), 413)
    for value in (b"identity", b"chunked, identity", b"identity, chunked", b"gzip, chunked", b"xchunked", b"chunked;q=1", b"\x0bchunked",
                  b'"chunked"', b"chunked, chunked", b"chunk\0ed", b"chunked\x0b", b", chunked"):
        refused(throw(server, HEAD + b"Transfer-Encoding: " + value + b"\r\n\r\n" + CHUNKS + SMUGGLED), 400)
    refused(throw(server, HEAD + CHUNKED[:-2] + CHUNKED + CHUNKS + SMUGGLED), 400)
    refused(throw(server, HEAD.replace(b"1.1", b"1.0") + b"Connection: keep-alive\r\n" + CHUNKED + CHUNKS + SMUGGLED), 400)
    refused(throw(server, HEAD + b"Host: y\r\n" + GOOD + SMUGGLED), 400)
    refused(throw(server, HEAD.replace(b"Host: x\r\n", b"") + GOOD + SMUGGLED), 400)


def test_lines(server):
    """folded headers, bare LF and CR, NUL, control characters, blanks before colons, lines without one: refused, or read as every
    other reader would"""
    for line in (b"X: a\rContent-Length: 3\r\n", b"X: a\rY: b\r\n", b"X: a\x01b\r\n", b"X: a\x7f\r\n", b"X : a\r\n", b"X\t: a\r\n",
                b" X: a\r\n", b": a\r\n",
                 b"X\r\n", b"X Y: a\r\n", b"X\x00: a\r\n", b"\x00\r\n"):
        first = HEAD.replace(b"Host: x\r\n", line + b"Host: x\r\n")
        refused(throw(server, first + GOOD + SMUGGLED), 400)
    # The library takes a line feed for a line's end, which the standard allows: what matters is that the body ends where
    # such a reader has it end, so that the next request is the next request. So it is with a folded line of no account.
    for head in (HEAD + b"X: a\r\n b\r\n" + GOOD, (HEAD + GOOD[:-14]).replace(b"\r\n", b"\n") + BODY, HEAD + b"X: a\n" + GOOD):
        data, _ = throw(server, head + SMUGGLED.replace(b"Host", b"Connection: close\r\nHost"))
        assert statuses(data) == [200, 401], data
    for head in (b"Content-Length: 1\r\n 4\r\n\r\n", b"Content-Length:\r\n 14\r\nContent-Length: 14\r\n\r\n",
                b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 14\r\n\r\n",
                 b"Transfer-Encoding:\r\n\tchunked\r\n\r\n", b"X: a\r\n Content-Length: 3\r\nContent-Length: 14\r\n\r\n",
                 b"Content-Length: 1\r\n \r\n 4\r\n\r\n",
                 b"content-length: 1\r\n\t4\r\n\r\n", b"Host:\r\n y\r\nHost: x\r\nContent-Length: 14\r\n\r\n"):
        refused(throw(server, HEAD + head + BODY + SMUGGLED), 400)


def test_chunks(server):
    """chunk sizes signed, hexadecimal, blank, over 2^64, extended and ended by LF, chunks without ends, trailers: nothing behind them
    is taken for a request"""
    data, closed = throw(server, HEAD + CHUNKED + CHUNKS)
    assert statuses(data) == [200] and closed, data
    sizes = [b"0xe", b"+e", b"-e", b" e", b"e ", b"e\t", b"eg", b"e x", b"", b"g", b"0_e", b"1000000000000000e", b"ffffffffffffffff",
    b"7fffffffffffffff",
             b"e;x", b'e;x="\n"', b"e;x\ry", b"e;" + b"x" * 9000, b"0" * 300 + b"e", b"0", b"00", b"d", b"f"]
    for size in sizes:
        for end in (b"\r\n", b"\n", b"\r", b"\r\r\n", b"\n\r\n"):
            data, closed = throw(server, HEAD + CHUNKED + size + end + BODY + b"\r\n0\r\n\r\n" + SMUGGLED, 6)
            assert 401 not in statuses(data) and statuses(data)[0] in (200, 400, 408, 413, 431) and closed, (size, end, data)
    for tail in (b"XX0\r\n\r\n", b"\n0\r\n\r\n", b"\r\n0\n\n", b"0\r\n\r\n", b"\r\n0\r\nContent-Length: 5\r\n\r\n",
                b"\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
                 b"\r\n0\r\nAuthorization: Bearer x\r\n\r\n", b"\r\n0\r\nGET /smuggled HTTP/1.1\r\n\r\n",
                 b"\r\n0\r\n" + b"x: y\r\n" * 5000 + b"\r\n", b"\r\n00000\r\n\r\n"):
        data, closed = throw(server, HEAD + CHUNKED + b"e\r\n" + BODY + tail + SMUGGLED, 6)
        assert len(statuses(data)) <= 1 and 401 not in statuses(data) and closed, (tail[:50], data)


def test_first_lines(server):
    """first lines with tabs, blanks, other versions, without any, TLS and HTTP/2 openings: one answer at most, and the end"""
    rest = b"\r\nHost: x\r\n\r\n"
    for line in (b"GET\t/health\tHTTP/1.1", b" GET /health HTTP/1.1", b"GET /health", b"GET", b"", b"GET /health HTTP/0.9",
                b"GET /health HTTP/2.0", b"GET /health HTTP/3",
                 b"GET /health HTTP/1.11", b"GET /health http/1.1", b"GET /health HTTP/1.1 x",
                 b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n",
                 b"\x00" * 100, b"SSH-2.0-x", b"GET /health HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade",
                 b"GET  /health  HTTP/1.1"):
        data, _ = throw(server, line + rest, 3.5)
        assert len(statuses(data)) <= 1 and not any(s >= 500 and s != 505 for s in statuses(data)), (line, data)
        assert b"101 Switching" not in data


# ---- sizes ----

def test_huge_heads(server):
    """lines and headers of 20 KB to 4 MB, tens of thousands of headers, endless ones: 431 or the end, in words where it is near the
    limit"""
    for extra in (b"X: " + b"y" * 17000 + b"\r\n", (b"X: " + b"y" * 100 + b"\r\n") * 170, b"X" * 17000 + b": y\r\n", b"a:\r\n" * 6000):
        data, closed = throw(server, b"GET /health HTTP/1.1\r\nHost: x\r\n" + extra + b"\r\n" + SMUGGLED)
        assert statuses(data) == [431] and closed, data[:300]
    refused(throw(server, b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n" + SMUGGLED), 431)
    for extra in (b"X: " + b"y" * 4000000, b"a:\r\n" * 200000, b"X" * 1000000 + b": y"):
        data, closed = throw(server, b"GET /health HTTP/1.1\r\nHost: x\r\n" + extra + b"\r\n\r\n" + SMUGGLED)
        assert statuses(data) in ([], [431]) and closed, data[:300]
    data, closed = throw(server, b"GET /" + b"a" * 2000000)
    assert statuses(data) in ([], [414], [431]) and closed, data[:300]


def test_huge_bodies(server):
    """bodies over the limit, declared and chunked, endless, nested, wide, of one long string or number, compressed: a clear 4xx"""
    auth = [f"Authorization: Bearer {KEY}"]
    big = 1100000
    for body, status in ((b'{"prompt":"' + b"x" * big + b'"}', 413), (b"[" * 900000, 400), (b'{"a":' * 150000, 400),
                (b"[" + b"1," * 400000 + b"1]", 400),
                         (b'{"prompt":' + b"9" * 900000 + b"}", 400), (b'{"temperature":1e' + b"9" * 4000 + b',"prompt":"x"}', 400),
                         (b'{"prompt":"' + b"\\u0041" * 150000 + b'"}', None), (b'{"prompt":"x","prompt":"y"}', 400),
                         (b'{"' + b"k" * 900000 + b'":1}', 400),
                         (b'{"prompt":"\xff\xfe"}', 400), (b"\x1f\x8b" + b"\0" * 1000, 400), (b" " * 900000, 400), (b"\0" * 900000, 400)):
        got, text = ask(server, "POST", "/v1/completions", auth, body)
        assert got == (status or got) and 400 <= got < 500 and is_clear(text), (body[:40], got, text[:200])
    assert ask(server, "POST", "/v1/completions", auth + ["Content-Encoding: gzip"], b"\x1f\x8b" + b"\0" * 1000)[0] == 415
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    data, closed = throw(server, HEAD + CHUNKED + chunk * 40 + b"0\r\n\r\n")
    assert statuses(data) == [413] and closed
    data, closed = throw(server, HEAD + CHUNKED + chunk * 2000)  # never ends
    assert statuses(data) in ([], [413]) and closed
    data, closed = throw(server, HEAD + b"Expect: 100-continue\r\nContent-Length: 99000000\r\n\r\n")
    assert statuses(data) == [413]


# ---- pipelines ----

def test_pipelines(server):
    """hundreds of requests in one write, good and bad ones, replies and streams between them: answered in order, and none after a
    refusal that ends the connection"""
    auth = f"Authorization: Bearer {KEY}\r\n".encode()
    get = b"GET /health HTTP/1.1\r\nHost: x\r\n" + auth + b"\r\n"
    last = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + auth + b"\r\n"
    data, _ = throw(server, get * 500 + last, 30)
    assert statuses(data) == [200] * 501
    reply = json.dumps({"prompt": "x", "max_tokens": 3, "stream": True}).encode()
    post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + auth + b"Content-Length: %d\r\n\r\n" % len(reply) + reply
    data, _ = throw(server, (post + get) * 3 + last, 30)
    assert statuses(data) == [200] * 7 and data.count(b"[DONE]") == 3, statuses(data)
    data, _ = throw(server, (HEAD + GOOD) * 20 + b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + auth + b"Content-Length: 2\r\n\r\n{}"
                     + get + HEAD + GOOD.replace(b"14", b"+14") + get, 10)
    assert statuses(data)[:22] == [200] * 20 + [400, 200] and statuses(data)[22:] in ([400], [400, 400]), statuses(data)
    data, _ = throw(server, HEAD + CHUNKED + CHUNKS + get, 10)
    assert statuses(data) == [200]


def start():
    return attack.Tokenfold("--max-body", "1MiB", "--receive-seconds", "2", "--log-requests", key=KEY)


if __name__ == "__main__":
    attack.main(globals(), start)
