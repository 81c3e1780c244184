"""Starting and ending the real binary: flags, keys, names, signals."""
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time

import harness

LONG = {"prompt": "The river", "max_tokens": 3000, "ignore_eos": True}


def run(*flags):
    """A start that must fail: (exit code, what was printed)."""
    command = [harness.TOKENFOLD, "serve", harness.model(), "--port", "0", "--no-progress", *flags]
    p = subprocess.run(command, timeout=60, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return p.returncode, p.stdout.decode()


def test_start_lines(server):
    assert f"listening on http://127.0.0.1:{server.port}" in server.log
    deadline = time.monotonic() + 5
    while "curl" not in server.log and time.monotonic() < deadline:
        time.sleep(0.01)
    assert f"curl http://127.0.0.1:{server.port}/v1/chat/completions" in server.log, server.log
    assert "WARN" not in server.log, server.log


def test_refused_starts(server):
    assert run("--no-such-flag")[0] == 2
    assert run("--parallel", "0")[0] == 2
    code, text = run("--port", str(server.port))
    assert code == 1 and str(server.port) in text, text
    code, text = run("--host", "no such host.invalid")
    assert code == 1 and text.count("\n") <= 3, text


def test_key_file(server):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        with open(path, "w") as f:
            f.write("# ours\nalpha\nbeta\n")
        os.chmod(path, 0o644)
        code, text = run("--api-key-file", path)
        assert code == 1 and "chmod 600" in text and "alpha" not in text, text
        os.chmod(path, 0o600)
        s = harness.Tokenfold("--api-key-file", path, "--api-key", "gamma", "--log-requests")
        try:
            assert s.ask("GET", "/health")[0] == 200
            assert s.ask("GET", "/v1/models")[0] == 401
            assert s.ask("GET", "/v1/models", headers=["Authorization: Bearer alphabet"])[0] == 401
            for key in ("alpha", "beta", "gamma"):
                assert s.ask("GET", "/v1/models", headers=[f"Authorization: Bearer {key}"])[0] == 200
        finally:
            assert s.stop() == 0
        assert not any(k in s.log for k in ("alpha", "beta", "gamma")), s.log
        assert "GET /v1/models 401" in s.log and "GET /v1/models 200" in s.log, s.log


def test_open_to_others(server):
    s = harness.Tokenfold("--host", "0.0.0.0")
    assert s.stop() == 0 and "WARN" in s.log and "--api-key-file" in s.log
    s = harness.Tokenfold("--host", "0.0.0.0", "--api-key", "k")
    assert s.stop() == 0 and "WARN" not in s.log


def test_names(server):
    s = harness.Tokenfold("--name", "river", "--alias", "org/brook", "--alias", "creek")
    try:
        _, _, body = s.ask("GET", "/v1/models")
        assert [m["id"] for m in body["data"]] == ["river", "org/brook", "creek"]
        assert s.ask("GET", "/v1/models/org/brook")[2]["id"] == "org/brook"
        for name in ("river", "org/brook", "creek", "default"):
            assert s.post("/v1/completions", {"model": name, "prompt": "x", "max_tokens": 1})[0] == 200
        assert s.post("/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 1})[0] == 404
    finally:
        s.stop()


def test_limits(server):
    s = harness.Tokenfold("--max-body", "1000", "--max-header", "400", "--receive-seconds", "1", "--queue", "0",
                          "--parallel", "1", "--context", "4096")
    try:
        assert s.post("/tokenize", {"prompt": "x" * 2000})[0] == 413
        assert s.ask("GET", "/health", headers=["X-Long: " + "y" * 500])[0] == 431
        with s.connect() as c:
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
            assert harness.parse(harness.read_all(c))[0] == 408
        with s.connect() as c:
            body = json.dumps(LONG).encode()
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(0.3)
            status, headers, error = s.post("/v1/completions", LONG)
            assert status == 429 and "retry-after" in headers, error
        s.wait_idle(5)
    finally:
        assert s.stop() == 0


def ask_in_background(server, body):
    result = {}
    t = threading.Thread(target=lambda: result.update(answer=server.post("/v1/completions", body)))
    t.start()
    deadline = time.monotonic() + 10
    while server.health()[1]["running"] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    return t, result


def test_drain(server):
    s = harness.Tokenfold("--context", "4096")
    t, result = ask_in_background(s, {**LONG, "max_tokens": 300})
    s.process.send_signal(signal.SIGTERM)
    time.sleep(0.4)
    try:
        socket.create_connection(("127.0.0.1", s.port), timeout=1).close()
        refused = False
    except OSError:
        refused = True
    t.join(60)
    assert result["answer"][0] == 200, result
    assert result["answer"][2]["usage"]["completion_tokens"] == 300
    assert s.process.wait(20) == 0
    assert refused or s.process.returncode == 0
    s.stop()


def test_drain_limit(server):
    """Whoever still waits when the time is over is told, in the middle of a stream too."""
    s = harness.Tokenfold("--context", "32768", "--drain-seconds", "1")
    body = {**LONG, "max_tokens": 30000}
    with socket.create_connection(("127.0.0.1", s.port), timeout=20) as stream:
        text = json.dumps({**body, "stream": True}).encode()
        stream.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        t, result = ask_in_background(s, body)
        began = time.monotonic()
        assert s.stop() == 0
        assert time.monotonic() - began < 6
        t.join()
        status, _, answer = result["answer"]
        assert status == 503 and answer["error"]["code"] == "shutting_down", result
        seen = b""
        while piece := stream.recv(1 << 16):
            seen += piece
    assert b'"code":"shutting_down"' in seen[-300:] and b"data: [DONE]" in seen[-40:], seen[-400:]


def test_second_signal(server):
    s = harness.Tokenfold("--context", "32768")
    t, _ = ask_in_background(s, {**LONG, "max_tokens": 30000})
    s.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    began = time.monotonic()
    assert s.stop(signal.SIGINT) == 1
    assert time.monotonic() - began < 2
    t.join()


if __name__ == "__main__":
    harness.main(globals(), harness.Tokenfold)
