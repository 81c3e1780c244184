"""`tokenfold bench` as people run it: against servers by their URL, in its own process, and with servers of its own."""
import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
import threading
import time
import xml.etree.ElementTree

import harness

DELAY = 0.02  # before each event


def bench(*arguments, code=0):
    done = subprocess.run([harness.TOKENFOLD, "bench", *arguments], capture_output=True, text=True, cwd=harness.ROOT,
                          timeout=300)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout or done.stderr


@contextlib.contextmanager
def slow_way_to(port):
    """Passes bytes on to a port, and its answers with a delay before each event: a planted slowdown."""
    door = socket.create_server(("127.0.0.1", 0))

    def pass_on(near, far, delay):
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                for piece in re.split(rb"(?<=\n\n)", data) if delay else [data]:
                    time.sleep(delay)
                    far.sendall(piece)
        with contextlib.suppress(OSError):
            far.shutdown(socket.SHUT_WR)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                near = door.accept()[0]
                far = socket.create_connection(("127.0.0.1", port))
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=pass_on, args=(near, far, 0), daemon=True).start()
                threading.Thread(target=pass_on, args=(far, near, DELAY), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{door.getsockname()[1]}/v1"
    finally:
        door.close()


def compare_with_slow(server, slow, folder):
    """A twin at the same place, and the slow way: the cells of a run, whose plot and rounds lie in the folder."""
    out = bench("--url", server.url + "/v1", "--arm", f"twin:url={server.url}/v1/", "--arm", f"slow:url={slow}",
                "--cells", "prompt:64,decode:32+24", "--repeats", "8", "--json", "--svg", os.path.join(folder, "plot.svg"),
                "--append", os.path.join(folder, "rounds.jsonl"))
    return json.loads(out)["cells"]


def test_a_planted_slowdown_is_called(server):
    with slow_way_to(server.port) as slow, tempfile.TemporaryDirectory() as folder:
        cells = compare_with_slow(server, slow, folder)
        for cell in cells:
            slowed = cell["arms"][3]
            assert slowed["verdict"] == "slower" and slowed["to_base"] < -0.3, cell
            assert all(a["seen_from"] > 0 for a in cell["arms"][2:]), cell
            assert not any(a["other_tokens"] for a in cell["arms"]), cell
        text = xml.etree.ElementTree.parse(os.path.join(folder, "plot.svg")).getroot()
        assert text.tag.endswith("svg") and any("slower" in (t.text or "") for t in text.iter())
        # The twin is called what it is. An interval of 95 % may miss once, so more rounds are added then.
        for more in range(3):
            if all(c["arms"][2]["verdict"] == "same" for c in cells):
                break
            cells = compare_with_slow(server, slow, folder)
            assert all(c["rounds"] == 8 * (more + 2) for c in cells)
        assert all(c["arms"][2]["verdict"] == "same" for c in cells), cells


def test_later_runs_add_rounds(server):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rounds.jsonl")
        command = ("--url", server.url, "--cells", "prompt:64,decode:32+24", "--json", "--append", path)
        for run in range(2):
            cells = json.loads(bench(*command, "--repeats", "2"))["cells"]
            assert [c["rounds"] for c in cells] == [2 * (run + 1)] * 2
        other = json.loads(bench(*command, "--repeats", "1", "--arm", f"twin:url={server.url}"))["cells"]
        assert [c["rounds"] for c in other] == [1, 1]  # rounds of other arms stay apart
        assert len(open(path).readlines()) == 2 * 2 * 2 + 2


def test_rounds_of_other_settings_stay_apart(server):
    """Flags and settings of the base tell rounds apart, not the arms alone."""
    del server
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rounds.jsonl")
        command = ("models/fold-s", "--cells", "prompt:64", "--json", "--append", path, "--repeats", "1", "--no-progress",
                   "--backend", "cpu")
        settings = ((), ("--threads", "1"), ("--window", "2"), ("--window", "4"), ("--mtp-drafts", "1"), ("--no-drafts",),
                    ("--pass-rows", "64"), ("--kv-memory", "1GiB"), ("--compute", "int8"), ("--prompt-cache-gib", "0.1"))
        for flags in settings:
            assert [c["rounds"] for c in json.loads(bench(*command, *flags))["cells"]] == [1], flags
        os.environ["TF_QWEN_KV_PAGES"] = "64"
        try:
            assert [c["rounds"] for c in json.loads(bench(*command))["cells"]] == [1]
        finally:
            del os.environ["TF_QWEN_KV_PAGES"]
        assert [c["rounds"] for c in json.loads(bench(*command))["cells"]] == [2]  # those of the first run


def test_streams_and_warm_turns_by_url(server):
    cells = json.loads(bench("--url", server.url, "--cells", "decode:32+48x2,warm:256+32", "--json", "--repeats", "2"))
    decode, warm = cells["cells"]
    assert decode["streams"] == 2 and decode["tokens_per_s"] > 0
    assert warm["resumed"] >= 128, warm


def test_arms_in_one_process(server):
    del server
    out = bench(harness.model(), "--cells", "decode:32+16,warm:192+32", "--repeats", "2", "--no-progress", "--json",
                "--backend", "cpu", "--arm", "pages:TF_QWEN_KV_PAGES=64,TF_QWEN_KV_SHARE=1")
    for cell in json.loads(out)["cells"]:
        names = [a["name"] for a in cell["arms"]]
        assert names == ["base", "base-again", "pages"] and cell["arms"][2]["verdict"] == "too few rounds"
        assert not any(a["other_tokens"] for a in cell["arms"])
        assert all(a["tokens_per_s"] > 0 for a in cell["arms"])
    assert "TF_QWEN_KV_PAGES" not in os.environ


def test_arms_with_servers_of_their_own(server):
    """The text of an arm with other keys and values differs, which makes the run red."""
    del server
    out = bench("models/fold-s", "--cells", "decode:64+64", "--repeats", "1", "--no-progress", "--backend", "cpu",
                "--arm", f"twin:bin={harness.TOKENFOLD}", "--arm", "fp8:kv-dtype=fp8", "--json", code=1)
    base, again, twin, fp8 = json.loads(out)["cells"][0]["arms"]
    assert not again["other_tokens"] and not twin["other_tokens"] and fp8["other_tokens"]


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(child) for child in f.read().split()]


def test_a_killed_bench_leaves_no_server(server):
    del server
    run = subprocess.Popen([harness.TOKENFOLD, "bench", "models/fold-s", "--fresh", "--cells", "decode:64+20000", "--context",
                            "32000", "--repeats", "1", "--no-progress", "--backend", "cpu", "--threads", "1"], cwd=harness.ROOT)
    deadline = time.monotonic() + 60
    while not (children := children_of(run.pid)):
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)  # it is the server by now
    run.kill()
    run.wait()
    while any(os.path.exists(f"/proc/{child}/exe") for child in children):
        assert time.monotonic() < deadline, children
        time.sleep(0.05)


def test_mistakes(server):
    url = server.url + "/v1"
    for arguments, word in (
        (("--arm", "pages"), "NAME:KEY"),
        (("--arm", "p:threads=1"), "--fresh"),
        (("--arm", "p:no-such=1"), "no-such"),
        (("--arm", "p:kv-dtype=int4"), "kv-dtype"),
        (("--arm", "p:TF_QWEN_KV_PAGES=5000"), "TF_QWEN_KV_PAGES"),
        (("--arm", "p:bin=/no/such"), "/no/such"),
        (("--arm", f"p:bin={harness.TOKENFOLD}", "--in-process"), "--in-process"),
        (("--fresh", "--in-process"), "exclude"),
        (("--fresh", "--window", "4"), "--window"),
        (("--fresh", "--pass-rows", "64"), "--pass-rows"),
        (("--url", url, "--pass-rows", "64"), "--pass-rows"),
        (("--url", url, "--arm", "p:kv-dtype=fp8"), "runs already"),
        (("--url", "localhost"), "http://"),
        (("--url", url, "models/fold-s"), "models/fold-s"),
        (("--cells", "prompt"), "prompt:512"),
    ):
        said = bench("--no-progress", "--backend", "cpu", "--repeats", "1", *arguments, code=2)
        assert word in said and said.count("\n") == 1, (arguments, said)
    assert "cannot reach" in bench("--url", "http://127.0.0.1:1", "--cells", "prompt:8", code=1)


if __name__ == "__main__":
    harness.main(globals(), lambda: harness.Tokenfold("--parallel", "4", "--backend", "cpu"))
