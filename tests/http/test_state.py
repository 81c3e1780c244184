"""GET /state of the real binary: lanes, queue and pages as they are while requests run, and as /metrics counts them."""
import os
import re
import time

import harness

os.environ.update(TF_QWEN_KV_PAGES="64", TF_QWEN_KV_SHARE="1")  # before the server starts
# Long and plain, so that it is still running when it is looked at.
BODY = {"prompt": [5 + i % 40 for i in range(200)], "max_tokens": 3000, "ignore_eos": True, "stream": True, "draft": False}


def state(server):
    server.ask("GET", "/state")  # asks for a new one
    time.sleep(0.2)
    status, _, body = server.ask("GET", "/state")
    assert status == 200
    pages = body["pages"]
    cells = [what for n, what in pages["map"] for _ in range(n)]
    assert len(cells) == pages["n"] and pages["each"] == 1, pages
    assert len({lane["lane"] for lane in body["lanes"]}) == len(body["lanes"]) <= body["n_lane"] == 2
    return body, cells


def until(server, condition, seconds=30):
    deadline = time.monotonic() + seconds
    while True:
        body, cells = state(server)
        if condition(body):
            return body, cells
        assert time.monotonic() < deadline, body


def test_while_requests_run(server):
    streams = [server.begin("/v1/completions", BODY)]
    until(server, lambda s: s["lanes"] and s["lanes"][0]["state"] == "reply")
    streams += [server.begin("/v1/completions", BODY) for _ in range(3)]
    body, cells = until(server, lambda s: len(s["lanes"]) == 2 and s["n_waiting"] == 2)
    for lane in body["lanes"]:
        assert lane["prompt"] == 200 and 0 <= lane["prompt_done"] <= 200 and 0 <= lane["reply"] <= lane["longest"] == 3000, lane
        own = [c for c in cells if c in (str(lane["lane"]), f"{lane['lane']}+")]
        assert len(own) + cells.count("shared") >= lane["pages"] >= len(own) > 0, (lane, cells)
        stored = -(-(lane["prompt_done"] + lane["reply"]) // 64)
        assert abs(own.count(str(lane["lane"])) + cells.count("shared") - stored) <= cells.count("shared") + 1, (lane, cells)
    assert [w["reason"] for w in body["waiting"]] == ["lanes busy"] * 2 and all(w["prompt"] == 200 and w["ms"] >= 0 for w in body["waiting"])
    text = server.ask("GET", "/metrics")[2].decode()
    assert re.search(r'^tokenfold_waiting\{reason="lanes"\} 2$', text, re.M), text
    for s in streams:
        s.close()
    server.wait_idle()
    body, cells = state(server)
    assert body["lanes"] == [] and body["waiting"] == [] and body["n_waiting"] == 0
    # What the prompts left behind is the prompt cache's; what is counted is what is drawn.
    assert set(cells) <= {"free", "cached", "state"} and "cached" in cells, cells
    text = server.ask("GET", "/metrics")[2].decode()
    for name in ("free", "cached"):
        count = int(re.search(rf'^tokenfold_pool_pages\{{state="{name}"\}} (\d+)$', text, re.M).group(1))
        assert cells.count(name) == count, (name, count, cells)


def test_key(server):
    s = harness.Tokenfold("--api-key", "k")
    try:
        assert s.ask("GET", "/state")[0] == 401
    finally:
        s.stop()


if __name__ == "__main__":
    harness.main(globals(), lambda: harness.Tokenfold("--context", "4096", "--parallel", "2"))
