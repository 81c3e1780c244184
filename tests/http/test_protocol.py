"""Bytes on sockets against the real binary: paths, methods, malformed and hostile requests, clients that leave."""
import json
import socket
import struct
import time

import harness

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
LONG = {"prompt": "The river", "max_tokens": 3000, "ignore_eos": True}


def refused(answer, status=400, code=None):
    got, headers, body = answer
    assert got == status, (got, body)
    assert headers["content-type"] == "application/json", headers
    assert set(body["error"]) == {"message", "type", "param", "code"}, body
    assert code is None or body["error"]["code"] == code, body
    assert len(json.dumps(body)) < 1000
    return body["error"]


def test_paths(server):  # C07
    for path in ("/v1/models", "/v1//models", "//v1/models//", "/v1/models/"):
        assert server.ask("GET", path)[0] == 200, path
    assert server.post("//v1/chat/completions/", CHAT)[0] == 200
    for path, right in (("/v1/v1/models", "/v1/models"), ("/models", "/v1/models"), ("/api/v1/models", "/v1/models"),
                        ("/v1/v1/chat/completions", "/v1/chat/completions"), ("/completions", "/v1/completions")):
        for method in ("GET", "POST"):
            assert right in refused(server.ask(method, path), 404)["message"], path
    refused(server.ask("GET", "/v1/chat/completions"), 405)
    refused(server.ask("DELETE", "/v1/models"), 405)


def test_surrogates(server):  # C01
    for text in (rb"\ud83d", rb"x \ude00 y", rb"\udcf0", rb"\ud83d\ud83d"):
        refused(server.ask("POST", "/v1/chat/completions", raw=b'{"messages":[{"role":"user","content":"%s"}]}' % text))
        refused(server.ask("POST", "/v1/completions", raw=b'{"prompt":"%s"}' % text))
    body = rb'{"messages":[{"role":"user","content":"\ud83d\ude00"}],"max_tokens":1}'
    assert server.ask("POST", "/v1/chat/completions", raw=body)[0] == 200


def test_depth(server):  # C03
    for opening in (b"[", b'{"a":'):
        for depth in (3000, 300000):
            for frame in (b"%s", b'{"tools":%s', b'{"messages":[{"role":"user","content":%s',
                          b'{"chat_template_kwargs":%s'):
                refused(server.ask("POST", "/v1/chat/completions", raw=frame % (opening * depth)))


def test_same_refusals(server):  # C09
    bad = [{"model": ""}, {"top_p": 2}, {"n": 0}, {"n": 2},
           {"stream": True, "stream_options": {"include_usage": "yes"}}, {"temperature": "hot"}, {"seed": -1},
           {"seed": 1.5}, {"stop": ""}, {"stop": [1]}, {"stop": ["a"] * 5},
           {"logit_bias": {"x": 1}}, {"max_tokens": 0}, {"unheard_of": 1}, {"response_format": {"type": "xml"}}]
    for more in bad:
        a = refused(server.post("/v1/chat/completions", {**CHAT, **more}))
        b = refused(server.post("/v1/completions", {"prompt": "x", **more}))
        assert a == b, (a, b)


def test_pipelined(server):
    one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with server.connect() as s:
        s.sendall(one * 20 + last)
        assert harness.read_all(s).count(b"HTTP/1.1 200") == 21


def test_old_http(server):
    body = json.dumps({**CHAT, "stream": True}).encode()
    with server.connect() as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        status, headers, data = harness.parse(harness.read_all(s))
    assert status == 200 and "transfer-encoding" not in headers and data.endswith(b"data: [DONE]\n\n")


def test_byte_by_byte(server):
    body = json.dumps({"prompt": "x"}).encode()
    data = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with server.connect() as s:
        for i in range(len(data)):
            s.sendall(data[i:i + 1])
        assert harness.parse(harness.read_all(s))[0] == 200


def leave(s, how):
    if how == "half":
        s.shutdown(socket.SHUT_WR)
        return
    if how == "reset":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def test_leaving(server):  # C63
    server.wait_idle()
    before = server.descriptors()
    for how in ("close", "half", "reset"):
        for stream in (False, True):
            body = json.dumps({**LONG, "stream": stream}).encode()
            sockets = []
            for _ in range(8):  # more than there are lanes: some wait
                s = server.connect()
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                sockets.append(s)
            time.sleep(0.3)
            began = time.monotonic()
            for s in sockets:
                leave(s, how)
            server.wait_idle(5)
            assert time.monotonic() - began < 3, how
            for s in sockets:
                s.close()
    deadline = time.monotonic() + 5
    while server.descriptors() > before + 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.descriptors() <= before + 2, "descriptors leak"
    assert server.post("/v1/chat/completions", CHAT)[0] == 200


def test_many_idle_connections(server):
    sockets = [server.connect() for _ in range(300)]
    assert server.post("/v1/chat/completions", CHAT)[0] == 200
    for s in sockets:
        s.close()


if __name__ == "__main__":
    harness.main(globals(), lambda: harness.Tokenfold("--context", "4096"))
