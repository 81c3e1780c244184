"""A small hub on the loopback, good or hostile, and what tests ask of `tokenfold pull`."""
import hashlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http"))
import harness

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", "tokenizer.json")  # what lies in large file storage


def digest(name, data):
    if name.endswith(LARGE):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def checkpoint():
    """The files of a small checkpoint that tokenfold can open."""
    folder = harness.model()
    files = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            files[name] = f.read()
    return files


class Hub:
    """Serves `files` as org/tiny. A test changes the listing through `listing` and answers through `answer`."""

    def __init__(self, files):
        self.files = dict(files)
        self.commit = COMMIT
        self.listing = lambda listing: listing  # changes what the API says
        self.answer = lambda request, name, data: False  # True when it has answered a file's request itself
        self.requests = []  # (path, headers)
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self.hub = hub
                hub.requests.append((self.path, dict(self.headers)))
                try:
                    hub.serve(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # clients that leave are what is tested
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def siblings(self):
        out = []
        for name, data in self.files.items():
            entry = {"rfilename": name, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
            if name.endswith(LARGE):
                entry["lfs"] = {"sha256": digest(name, data), "size": len(data), "pointerSize": 134}
            else:
                entry["blobId"] = digest(name, data)
            out.append(entry)
        return out

    def serve(self, request):
        path = urllib.parse.urlsplit(request.path).path
        steps = [urllib.parse.unquote(s) for s in path.strip("/").split("/")]
        if steps[:4] == ["api", "models", "org", "tiny"]:
            if steps[5] not in ("main", "v1.0", "feature/x", self.commit):
                return send(request, 404, b'{"error": "no such revision"}')
            listing = self.listing({"id": "org/tiny", "sha": self.commit, "siblings": self.siblings()})
            return send(request, 200, listing if isinstance(listing, bytes) else json.dumps(listing).encode())
        if steps[:3] == ["org", "tiny", "resolve"] and steps[-1].endswith(LARGE):
            return send(request, 302, b"", {"Location": "/cdn/" + steps[-1]})
        if steps[0] not in ("org", "cdn") or steps[-1] not in self.files:
            return send(request, 404, b"")
        data = self.files[steps[-1]]
        if not self.answer(request, steps[-1], data):
            send_file(request, data)

    def asked(self, name):
        return [(p, h) for p, h in self.requests if p.endswith("/" + name)]


def send(request, status, body, headers=(), length=None):
    request.send_response(status)
    for k, v in dict(headers).items():
        request.send_header(k, v)
    request.send_header("Content-Length", str(len(body) if length is None else length))
    request.end_headers()
    request.wfile.write(body)


def range_of(request, size):
    asked = request.headers.get("Range")
    return int(asked[len("bytes="):].split("-")[0]) if asked else None


def send_file(request, data):
    first = range_of(request, len(data))
    if first is None:
        return send(request, 200, data)
    if first >= len(data):
        return send(request, 416, b"")
    send(request, 206, data[first:], {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"})


class Home:
    """A cache of its own, and runs of tokenfold with it."""

    def __init__(self, hub):
        self.hub = hub
        self.folder = tempfile.TemporaryDirectory(prefix="tokenfold-hub-")
        self.cache = os.path.join(self.folder.name, "hub")
        self.repo = os.path.join(self.cache, "models--org--tiny")

    def run(self, *arguments, seconds=60, **environment):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING")) and "proxy" not in k.lower()}
        clean.update({"HF_HOME": self.folder.name, "HF_ENDPOINT": self.hub.url, "HOME": self.folder.name, "NO_PROXY": "*"})
        clean.update(environment)
        p = subprocess.run([harness.TOKENFOLD, *arguments], env=clean, timeout=seconds, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return p.returncode, p.stdout, p.stderr

    def pull(self, *arguments, **environment):
        return self.run("pull", "--no-progress", *(arguments or ("org/tiny",)), **environment)

    def blobs(self):
        folder = os.path.join(self.repo, "blobs")
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def blob(self, name):
        return os.path.join(self.repo, "blobs", digest(name, self.hub.files[name]))

    def snapshot(self, commit=COMMIT):
        return os.path.join(self.repo, "snapshots", commit)

    def everything(self):
        """All files below the folder, links not followed, but for locks."""
        return sorted(os.path.relpath(os.path.join(at, f), self.folder.name)
                      for at, _, files in os.walk(self.folder.name) for f in files if not f.endswith(".lock"))


def refused(home, *words, arguments=(), **environment):
    """A pull that must fail, with one sentence that has these words, and without a file that got its name."""
    code, out, err = home.pull("--retries", "0", *(arguments or ("org/tiny",)), **environment)
    lines = [l for l in err.splitlines() if l.startswith("tokenfold: ")]
    assert code == 1 and out == "" and len(lines) == 1, (code, out, err)
    for word in words:
        assert word in lines[0], (word, lines[0])
    assert not os.path.isdir(home.snapshot()), home.everything()
    return lines[0]


def main(names, start=lambda: None):
    """Runs the test_* functions of `names`, each with a good hub and an empty cache of its own, and says what it did."""
    files, failed = checkpoint(), 0
    tests = [(n, f) for n, f in names.items() if n.startswith("test_") and (len(sys.argv) < 2 or n in sys.argv[1:])]
    for name, test in tests:
        with Hub(files) as hub:
            home = Home(hub)
            try:
                test(hub, home)
                print(f"passed   {name}: {(test.__doc__ or '').strip()}", flush=True)
            except Exception:
                import traceback
                failed += 1
                print(f"failed   {name}\n{traceback.format_exc()}", flush=True)
    print(f"{len(tests) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
