"""Memory as clients of the real binary meet it: the prompt cache, waiting, refusing, and what /metrics and /props say."""
import contextlib
import os
import re
import threading
import time

import harness

SYSTEM = ("You are the clerk of a small library. You answer in whole sentences, you say so when you do not know "
          "something, and you never make up a title, an author or a year. The library opens at nine. " * 3)
LONG = {"prompt": "The river", "ignore_eos": True}


@contextlib.contextmanager
def serving(*flags, **settings):
    """A server with settings in its environment."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        s = harness.Tokenfold(*flags)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    try:
        yield s
    finally:
        assert s.stop() == 0, s.log


def metrics(server):
    status, headers, text = server.ask("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain"), headers
    values = {}
    for line in text.decode().splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) tokenfold_\w+ .+", line), line
        else:
            name, value = re.fullmatch(r'(tokenfold_\w+(?:\{\w+="\w+"\})?) (\S+)', line).groups()
            assert name not in values, name
            values[name] = float(value)
    return values


def chat(server, messages, **more):
    status, _, body = server.post("/v1/chat/completions",
                                  {"messages": messages, "max_tokens": 12, "temperature": 0, **more})
    assert status == 200, body
    return body


def cached(body):
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == body["tokenfold"]["resumed_position"]
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


def turns(texts):
    messages = [{"role": "system", "content": SYSTEM}]
    for i, text in enumerate(texts):
        messages.append({"role": "assistant" if i % 2 else "user", "content": text})
    return messages


def test_next_turns_resume(server):
    for settings in ({}, {"TF_QWEN_KV_PAGES": "256", "TF_QWEN_KV_SHARE": "1"}):
        with serving(**settings) as s, serving("--prompt-cache-gib", "0") as cold:
            texts = ["When do you close?"]
            seen = []
            for turn in range(4):
                body, alone = chat(s, turns(texts)), chat(cold, turns(texts))
                assert body["tokenfold"]["token_sha256"] == alone["tokenfold"]["token_sha256"]
                assert cached(alone) == 0
                seen.append(cached(body))
                texts += [body["choices"][0]["message"].get("content") or "", f"And what about day {turn}? " * 12]
            assert seen[0] == 0 and all(a < b for a, b in zip(seen, seen[1:])), seen
            assert cached(chat(s, turns(["Something else."]))) > 0  # the same system message
            assert "resumes at token" in s.log and "resumes at token" not in cold.log
            m = metrics(s)
            assert m['tokenfold_prompt_cache_requests_total{result="hit"}'] == 4
            assert m["tokenfold_prompt_rows_resumed_total"] >= seen[-1]


def test_a_prompt_that_fills_the_pool_is_kept(server):
    del server
    for pages in ("0", "256"):
        with serving("--parallel", "1", "--context", "1000", TF_QWEN_KV_PAGES=pages) as s:
            for turn in range(2):
                body = s.post("/v1/completions", {"prompt": list(range(5, 805 + 64 * turn))})[2]
            assert cached(body) >= 768, (pages, body["usage"])


def test_keys_apart(server):
    def ask(s, key):
        return cached(s.post("/v1/chat/completions", {"messages": turns(["Hello."]), "max_tokens": 2},
                             [f"Authorization: Bearer {key}"])[2])
    keys = ("--api-key", "alpha", "--api-key", "beta")
    with serving(*keys, "--share-prefixes", "per-key") as s:
        assert ask(s, "alpha") == 0 and ask(s, "alpha") > 0 and ask(s, "beta") == 0
    with serving(*keys) as s:
        assert ask(s, "alpha") == 0 and ask(s, "beta") > 0


def test_props_and_overrides(server):
    status, _, body = server.ask("GET", "/props")
    assert status == 200 and body["overrides"] == "none", body
    assert body["sentence"] in server.log and "registered overrides: none" in server.log
    streams = body["plan"]["streams"]
    kind = "windows" if body["plan"]["memory"]["shared_with_host"] else "pages"  # of the CPU, and of a GPU
    assert streams["kind"] == kind and streams["parallel"] == 4
    with serving(TF_QWEN_KV_PAGES="96", TF_QWEN_KV_PAGES_ALL="1") as s:
        body = s.ask("GET", "/props")[2]
        assert body["overrides"] == "TF_QWEN_KV_PAGES=96, TF_QWEN_KV_PAGES_ALL=1"
        assert f"registered overrides: {body['overrides']}" in s.log and "all on pages, no window" in s.log
        assert body["plan"]["streams"]["page_rows"] == 96 and not body["plan"]["streams"]["window_set_aside"]
    m = metrics(server)
    assert abs(m["tokenfold_memory_taken_bytes"] / m["tokenfold_memory_planned_bytes"] - 1) < 0.01


def small_pool(requests):
    """Flags and settings of a server whose pool has room for about that many requests of 1,000 tokens."""
    settings = {"TF_QWEN_KV_PAGES": "64", "TF_QWEN_KV_PAGES_ALL": "1"}
    with serving(**settings) as s:
        streams = s.ask("GET", "/props")[2]["plan"]["streams"]
    each = 16 * streams["page_bytes"] + streams["run_bytes"]
    return ("--kv-memory", str(int(each * requests)), "--parallel", "8", "--prompt-cache-gib", "0"), settings


def test_waiting_for_memory(server):
    flags, settings = small_pool(2.5)
    with serving(*flags, "--keep-alive-seconds", "1", **settings) as s:
        replies = [None] * 6

        def ask(i):
            replies[i] = s.post("/v1/completions", {**LONG, "max_tokens": 1000, "seed": i, "stream": True})
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(replies))]
        for t in threads:
            t.start()
        most = 0
        while any(t.is_alive() for t in threads):
            m = metrics(s)
            most = max(most, m["tokenfold_requests_waiting"])
            time.sleep(0.02)
        for t in threads:
            t.join()
        assert most > 0
        for status, _, text in replies:
            assert status == 200 and text.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"length"' in text
        m = metrics(s)
        assert m["tokenfold_queue_wait_seconds_count"] == len(replies) and m["tokenfold_queue_wait_seconds_sum"] > 0
        assert m["tokenfold_leaked"] == 0 and m['tokenfold_pool_pages{state="used"}'] == 0


def test_never(server):
    flags, settings = small_pool(1.5)
    with serving(*flags, **settings) as s:
        status, _, body = s.post("/v1/completions", {**LONG, "max_tokens": 4000})
        assert status == 400 and body["error"]["code"] == "context_length_exceeded", body
        fits = int(re.search(r"a reply of at most (\d+) would fit", body["error"]["message"]).group(1))
        assert 900 < fits < 4000
        status, _, body = s.post("/v1/completions", {**LONG, "max_tokens": fits + 1})
        assert status == 400
        assert s.post("/v1/completions", {**LONG, "max_tokens": 4})[0] == 200
        m = metrics(s)
        assert m['tokenfold_requests_refused_total{reason="pool"}'] + \
            m['tokenfold_requests_refused_total{reason="window"}'] == 2


def test_keep_alive_and_full_queue(server):
    with serving("--parallel", "1", "--queue", "1", "--keep-alive-seconds", "1") as s:
        runs = s.begin("/v1/completions", {**LONG, "max_tokens": 6000, "stream": True})
        while s.health()[1]["running"] == 0:
            time.sleep(0.01)
        waits = s.begin("/v1/completions", {**LONG, "max_tokens": 4, "stream": True})
        while s.health()[1]["waiting"] == 0:
            time.sleep(0.01)
        status, headers, body = s.post("/v1/completions", {**LONG, "max_tokens": 4})
        assert status == 429 and body["error"]["code"] == "queue_full", body
        assert int(headers["retry-after"]) >= 1
        assert metrics(s)['tokenfold_requests_refused_total{reason="queue"}'] == 1
        text, deadline = b"", time.monotonic() + 20
        while b": keep-alive\n\n" not in text and time.monotonic() < deadline:
            text += waits.recv(4096)
        assert b": keep-alive\n\n" in text and b"200 OK" in text
        runs.close()
        waits.close()
        s.wait_idle()
        assert s.post("/v1/completions", {**LONG, "max_tokens": 4})[0] == 200


if __name__ == "__main__":
    harness.main(globals(), harness.Tokenfold)
