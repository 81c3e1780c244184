"""Two replicas behind a proxy with the configuration that ships in deploy/: conversations stay with a replica, one that is
killed in mid-load takes nothing with it but the streams it held, and one that is restarted takes nothing at all."""
import collections
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http"))
import harness

MODEL = os.path.join(harness.ROOT, "models", "fold-s")
CLIENTS = 12
CONVERSATIONS = 16
TURNS = 3
LOAD_SECONDS = 4  # before and after each event


def program(name):
    unpacked = os.path.join(harness.ROOT, ".setup", "proxies", "usr")
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", os.path.join(unpacked, "sbin")]))
    if found and found.startswith(unpacked):  # with the libraries that came with it
        os.environ["LD_LIBRARY_PATH"] = os.path.join(unpacked, "lib", os.uname().machine + "-linux-gnu")
    if found is None:
        print(f"SKIP {name} is not installed (./setup.sh replicas)")
        sys.exit(77)
    return found


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Replica(harness.Server):
    def __init__(self, port):
        super().__init__([harness.TOKENFOLD, "serve", MODEL, "--port", str(port), "--no-progress", "--context", "4096",
                          "--drain-seconds", "20"])

    def count(self, metric):
        text = self.ask("GET", "/metrics")[2].decode()
        return int(re.search(rf"^{re.escape('tokenfold_' + metric)} (\d+)$", text, re.M).group(1))


class Proxy:
    """`command(folder, configuration)` starts it; its configuration is that of deploy/ with other ports."""

    def __init__(self, name, ports, command):
        self.folder = tempfile.TemporaryDirectory(prefix="tokenfold-replicas-")
        self.port = free_port()
        with open(os.path.join(harness.ROOT, "deploy", name)) as f:
            text = f.read()
        for old, new in zip((8080, 8081, 8082), (self.port, *ports)):
            assert f"127.0.0.1:{old}" in text
            text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
        path = os.path.join(self.folder.name, name)
        with open(path, "w") as f:
            f.write(text)
        self.log = open(os.path.join(self.folder.name, "log"), "w+")
        self.process = subprocess.Popen(command(self.folder.name, path), stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 10
        while not self._answers():
            assert time.monotonic() < deadline and self.process.poll() is None, open(self.log.name).read()
            time.sleep(0.05)

    def _answers(self):
        try:
            return ask(self.port, "GET", "/health")[0] == 200
        except OSError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait(10)
        self.log.close()
        self.folder.cleanup()


def ask(port, method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        return r.status, r.read()
    finally:
        c.close()


def reply(port, messages, stream):
    """(the reply's digest, its message, cached tokens). Broken: a stream that began and did not end. Lost: no answer."""
    status, data = 0, b""
    body = {"messages": messages, "max_tokens": 24, "temperature": 0, "stream": stream, "stream_options": {"include_usage": True}}
    if not stream:
        del body["stream_options"]
    try:
        status, data = ask(port, "POST", "/v1/chat/completions", body)
    except http.client.IncompleteRead as e:
        status, data = 200, e.partial
    except (OSError, http.client.HTTPException) as e:
        raise (Broken if stream else Lost)(repr(e)) from e
    if status != 200:
        raise Lost(f"{status} {data[:200]}")
    if not stream:
        whole = json.loads(data)
        return whole["tokenfold"]["token_sha256"], whole["choices"][0]["message"], whole["usage"]["prompt_tokens_details"]["cached_tokens"]
    if not data.endswith(b"data: [DONE]\n\n"):
        raise Broken(f"ends in {data[-80:]}")
    events = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
    digest = next(e["tokenfold"]["token_sha256"] for e in events if "tokenfold" in e)
    return digest, None, next(e["usage"] for e in events if e.get("usage"))["prompt_tokens_details"]["cached_tokens"]


class Lost(Exception):
    pass


class Broken(Exception):
    pass


SYSTEM = "You are the keeper of a small library by the river. Answer in one sentence. " * 3


def conversations(replica):
    """What each turn of each conversation sends, and the digest that one replica alone gives for it."""
    out = []
    for i in range(CONVERSATIONS):
        messages = [{"role": "system", "content": SYSTEM}] if i % 2 else []
        turns = []
        for turn in range(TURNS):
            about = f"Reader {i}, visit {turn}: the book number {i * 7 + turn} is about boats, bridges, herons and old maps. "
            messages = messages + [{"role": "user", "content": about * 2 + "What is it about?"}]
            digest, message, _ = reply(replica.port, messages, False)
            turns.append((messages, digest))
            messages = messages + [{"role": "assistant", "content": message["content"] or "?"}]
        out.append(turns)
    return out


class Load:
    """Clients that go through the conversations for ever, whole and streamed in turn, and check every reply."""

    def __init__(self, port, known):
        self.port, self.known, self.over, self.counts = port, known, threading.Event(), collections.Counter()
        self.remarks = []
        self.threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(CLIENTS)]
        for t in self.threads:
            t.start()

    def _run(self, number):
        k = number
        while not self.over.is_set():
            for turn, (messages, digest) in enumerate(self.known[k % len(self.known)]):
                stream = (k + turn) % 2 == 0
                again = False
                while True:
                    try:
                        got = reply(self.port, messages, stream)[0]
                    except (Lost, Broken) as e:
                        self.counts[type(e).__name__.lower()] += 1
                        self.remarks.append(str(e))
                        if again:
                            self.counts["lost twice"] += 1
                            break
                        again = True
                        continue
                    self.counts["right" if got == digest else "wrong"] += 1
                    self.counts["right when asked again"] += again and got == digest
                    break
            k += CLIENTS

    def end(self):
        self.over.set()
        for t in self.threads:
            t.join(60)
            assert not t.is_alive(), "a client waits for ever"
        return self.counts


def wait_for_traffic(replica, seconds=20):
    """Until the proxy sends it requests again: before that, the other one must not be stopped."""
    deadline = time.monotonic() + seconds
    while replica.count("requests_total") == 0:
        assert time.monotonic() < deadline, "the proxy sends nothing to the replica that came back"
        time.sleep(0.1)


def check_affinity(proxy, replicas, known):
    before = [r.count("requests_total") for r in replicas]
    cached = [[reply(proxy.port, messages, False)[2] for messages, _ in turns] for turns in known]
    share = [r.count("requests_total") - b for r, b in zip(replicas, before)]
    resumed = sum(c > 0 for turns in cached for c in turns[1:])
    print(f"affinity: {share[0]} and {share[1]} of {CONVERSATIONS * TURNS} requests; {resumed} of {CONVERSATIONS * (TURNS - 1)} later turns resumed")
    assert min(share) > 0 and sum(share) == CONVERSATIONS * TURNS, share
    assert resumed >= 0.9 * CONVERSATIONS * (TURNS - 1), cached


def check_kill(proxy, replicas, known):
    load = Load(proxy.port, known)
    time.sleep(LOAD_SECONDS)
    held = replicas[0].health()[1]
    before = load.counts["right"]
    replicas[0].process.kill()
    replicas[0].process.wait()
    time.sleep(LOAD_SECONDS)
    beside = load.counts["right"]
    replicas[0] = Replica(replicas[0].port)
    wait_for_traffic(replicas[0])
    time.sleep(LOAD_SECONDS / 2)
    counts = load.end()
    back = replicas[0].count("requests_total")
    print(f"killed with about {held['running']} running and {held['waiting']} waiting: {counts['right']} right, {counts['wrong']} wrong, "
          f"{counts['lost']} lost; {counts['broken']} streams broken off, {counts['right when asked again']} right when asked again; "
          f"the other answered {beside - before} meanwhile, and the one that came back {back}")
    assert counts["wrong"] == 0 and counts["lost"] == 0 and counts["lost twice"] == 0, (counts, load.remarks[:5])
    assert counts["broken"] <= CLIENTS and counts["right when asked again"] == counts["broken"], (counts, load.remarks[:5])
    assert beside > before and back > 0


def check_restart(proxy, replicas, known):
    load, drained = Load(proxy.port, known), []
    for i in range(2):
        time.sleep(LOAD_SECONDS / 2)
        began = time.monotonic()
        code = replicas[i].stop(signal.SIGTERM, 30)
        assert code == 0, code
        drained.append(f"{time.monotonic() - began:.1f}")
        replicas[i] = Replica(replicas[i].port)
        wait_for_traffic(replicas[i])
    counts = load.end()
    print(f"restarted one after the other, drained in {' and '.join(drained)} s: "
          f"{counts['right']} right, {counts['wrong']} wrong, {counts['lost']} lost, {counts['broken']} broken off")
    assert counts["right"] > 0 and counts["wrong"] == counts["lost"] == counts["broken"] == 0, (counts, load.remarks[:5])


def main(name, command):
    replicas, proxy = [], None
    try:
        for _ in range(2):
            replicas.append(Replica(free_port()))
        known = conversations(replicas[0])
        for i, r in enumerate(replicas):  # with empty caches
            r.stop()
            replicas[i] = Replica(r.port)
        proxy = Proxy(name, [r.port for r in replicas], command)
        check_affinity(proxy, replicas, known)
        check_kill(proxy, replicas, known)
        check_restart(proxy, replicas, known)
    finally:
        if proxy:
            proxy.stop()
        for r in replicas:
            r.stop()
