"""What the tests over HTTP share: a server to ask, raw sockets, and a runner that prints a line a test.

A test file defines functions test_*(server) and ends with harness.main(globals(), harness.Tokenfold) or another way to
start a server. It runs by itself: build/tokenfold and the build folder are found in the environment or the usual place.
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOKENFOLD = os.path.abspath(os.environ.get("TOKENFOLD", os.path.join(ROOT, "build", "tokenfold")))
BUILD = os.path.abspath(os.environ.get("TF_BUILD", os.path.join(ROOT, "build", "release")))
START_SECONDS = 60


class Skip(Exception):
    pass


def need(package):
    """Imports a package, or ends the program as skipped."""
    try:
        return __import__(package)
    except ImportError:
        print(f"SKIP the Python package {package} is not installed")
        sys.exit(77)


class Server:
    """A server process. `port` is where it listens; `log` is what it has written so far."""

    def __init__(self, command):
        self.log = ""
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, cwd=ROOT)
        self.listening = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        deadline = time.monotonic() + START_SECONDS
        while not self.listening.wait(0.05):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the server did not start:\n{self.log}")
        self.url = f"http://127.0.0.1:{self.port}"

    def _read(self):
        for line in self.process.stdout:
            self.log += line.decode(errors="replace")
            found = re.search(r"listening on \S*:(\d+)", self.log)
            if found and not self.listening.is_set():
                self.port = int(found.group(1))
                self.listening.set()

    def stop(self, number=signal.SIGTERM, seconds=20):
        """Ends this process, and no other; returns its exit code."""
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.send_signal(number)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.reader.join(5)
        return code

    # ---- asking ----

    def connect(self):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def ask(self, method, path, body=None, headers=(), raw=None):
        """One request on a connection of its own; (status, headers, body as JSON or bytes)."""
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", "Host: test", "Connection: close", *headers]
        if body is not None or raw is not None:
            head += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        with self.connect() as s:
            s.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + data)
            return parse(read_all(s))

    def post(self, path, body, headers=()):
        return self.ask("POST", path, body, headers)

    def begin(self, path, body):
        """Sends a request and reads nothing: the connection."""
        data = json.dumps(body).encode()
        s = self.connect()
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return s

    def events(self, path, body):
        """The data of a stream's events, without [DONE], which must be the last one."""
        status, headers, text = self.post(path, {**body, "stream": True})
        assert status == 200, (status, text)
        assert headers["content-type"].startswith("text/event-stream"), headers
        parts = [p for p in text.decode().split("\n\n") if p]
        assert parts[-1] == "data: [DONE]", parts[-1]
        return [json.loads(p[len("data: "):]) for p in parts[:-1] if not p.startswith(":")]

    def health(self):
        status, _, body = self.ask("GET", "/health")
        return status, body

    def wait_idle(self, seconds=10):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            _, body = self.health()
            if body["running"] == 0 and body["waiting"] == 0:
                return
            time.sleep(0.02)
        raise AssertionError(f"still busy: {body}")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident_kib(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))


class Scripted(Server):
    def __init__(self, *flags):
        super().__init__([os.path.join(BUILD, "tests", "server", "drive_server"), *flags])


_model = None


def model():
    """A checkpoint with random weights, made once a run."""
    global _model
    if _model is None:
        _model = tempfile.TemporaryDirectory(prefix="tokenfold-test-")
        subprocess.run([TOKENFOLD, "synth", "tiny", os.path.join(_model.name, "tiny")], check=True,
                       stdout=subprocess.DEVNULL)
    return os.path.join(_model.name, "tiny")


class Tokenfold(Server):
    def __init__(self, *flags):
        super().__init__([TOKENFOLD, "serve", model(), "--port", "0", "--no-progress", *flags])


# ---- bytes ----

def read_all(s):
    data = b""
    while True:
        try:
            piece = s.recv(65536)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


def parse(data):
    """A response: (status, headers, body). Status 0: there was none."""
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    if not lines[0].startswith("HTTP/1."):
        return 0, {}, b""
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        body = dechunk(body)
    if headers.get("content-type") == "application/json" and body:
        body = json.loads(body)
    return int(lines[0].split()[1]), headers, body


def dechunk(data):
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        n = int(size or b"0", 16)
        out, data = out + data[:n], data[n + 2:]
        if n == 0:
            break
    return out


# ---- running ----

def main(names, start):
    """Starts a server, runs the test_* functions of `names` against it, prints a line each, and ends the program."""
    wanted = sys.argv[1:]
    tests = [(n, f) for n, f in names.items() if n.startswith("test_") and (not wanted or n in wanted)]
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    server = start()
    try:
        for name, test in tests:
            began = time.monotonic()
            try:
                test(server)
                outcome, remark = "passed", ""
            except Skip as e:
                outcome, remark = "skipped", str(e)
            except Exception:
                outcome, remark = "failed", traceback.format_exc()
            counts[outcome] += 1
            print(f"{outcome:8} {name} {time.monotonic() - began:.2f} s {remark}", flush=True)
        if server.process.poll() is not None:
            counts["failed"] += 1
            print(f"failed   the server ended with {server.process.returncode}:\n{server.log}")
    finally:
        code = server.stop()
    if code not in (0, -signal.SIGTERM):
        counts["failed"] += 1
        print(f"failed   the server ended with {code}:\n{server.log[-4000:]}")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    sys.exit(1 if counts["failed"] else 0)
