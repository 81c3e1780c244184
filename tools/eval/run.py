"""Held-out examination of a model through the server and its API, greedy, thinking off.

  python3 tools/eval/run.py MODEL [--items 200] [--from 0] [--families needle-5k,tools,...] [--seed 1] [--seconds N] [--work build/train]
                            [--out FILE] [-- OPTIONS OF THE SERVER]

Serves MODEL with build/tokenfold on a free port, asks every item as one chat completion, and counts exact answers: the text, or
for tools the names and arguments of all calls. The items come from tools/train/tasks.py under seeds that training never draws.
The texts behind them are fetched once from Debian packages (tools/train/texts.sh) if WORK has no corpus.json.
A long examination can be cut: FILE is kept up to date, --seconds ends all early after so long, and --from starts at a later item and
adds to the counts that FILE has of the items before it.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "train"))

BINARY = os.environ.get("TOKENFOLD", os.path.join(ROOT, "build", "tokenfold"))
GOALS = {"needle-5k": 0.95, "tools": 0.9, "json": 0.9, "copy-edit": 0.9, "recall": 0.9, "needle-16k": 0.9}


def corpus(work):
    path = os.path.join(work, "corpus.json")
    if not os.path.exists(path):
        texts, here = os.path.join(work, "texts"), os.path.join(ROOT, "tools", "train")
        subprocess.run([os.path.join(here, "texts.sh"), texts], check=True)
        subprocess.run(
            [sys.executable, os.path.join(here, "corpus.py"), texts, path], check=True, stdout=subprocess.DEVNULL
        )
    return json.load(open(path))


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as r:
        return json.load(r)


def serve(model, extra):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    process = subprocess.Popen(
        [BINARY, "serve", model, "--host", "127.0.0.1", "--port", str(port), *extra],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5)
            return process, f"http://127.0.0.1:{port}/v1/chat/completions"
        except OSError:
            time.sleep(0.1)
    process.terminate()
    raise SystemExit("the server did not answer in a minute")


def api_messages(messages):
    out = []
    for m in messages:
        m = {k: v for k, v in m.items() if k != "reasoning_content"}
        if m.get("tool_calls"):
            m["tool_calls"] = [
                {
                    "id": f"call_{i}",
                    "type": "function",
                    "function": {"name": c["name"], "arguments": json.dumps(c["arguments"])},
                }
                for i, c in enumerate(m["tool_calls"])
            ]
        out.append(m)
    return out


def correct(item, message):
    want = item["messages"][-1]
    if want.get("tool_calls"):
        got = [
            {"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])}
            for c in message.get("tool_calls") or []
        ]
        return got == want["tool_calls"]
    return (message.get("content") or "").strip() == want["content"].strip()


def ask(url, model, item):
    """The server's greedy answer to an item, as a message."""
    body = dict(
        model=os.path.basename(os.path.normpath(model)),
        messages=api_messages(item["messages"][:-1]),
        temperature=0,
        max_tokens=600,
        chat_template_kwargs={"enable_thinking": False},
    )
    if item["tools"]:
        body["tools"] = item["tools"]
    return post(url, body)["choices"][0]["message"]


def arguments():
    a = argparse.ArgumentParser()
    a.add_argument("model"), a.add_argument("--items", type=int, default=200)
    a.add_argument("--from", dest="first", type=int, default=0), a.add_argument("--families", default=",".join(GOALS))
    a.add_argument("--seed", default="1"), a.add_argument("--seconds", type=float, default=float("inf"))
    a.add_argument("--work", default=os.path.join(ROOT, "build", "train")), a.add_argument("--out")
    a.add_argument("--show", type=int, default=0), a.add_argument("server", nargs="*")
    return a.parse_intermixed_args()


def examine(url, o, texts, family, count, save, end):
    """Asks items o.first to o.items until `end`, adding to `count`."""
    import tasks

    begun, shown = time.time(), 0
    for item in tasks.exam(texts, family, o.items, o.seed)[o.first :]:
        if time.time() > end:
            break
        message = ask(url, o.model, item)
        ok = correct(item, message)
        count["items"] += 1
        count["right"] += ok
        count["share"] = count["right"] / count["items"]
        save()
        if not ok and shown < o.show:
            shown += 1
            print(f"{family} wanted {item['messages'][-1]}\n got {message}")
    print(
        f"{family:12} {count['right']:4}/{count['items']}  {100 * count['share']:5.1f} %  goal {100 * count['goal']:.0f} %"
        f"  {time.time() - begun:.0f} s",
        flush=True,
    )


def main():
    o = arguments()
    texts, results = corpus(o.work), {}
    families, end = o.families.split(","), time.time() + o.seconds
    if o.out and os.path.exists(o.out):
        results = json.load(open(o.out))

    def save():
        if o.out:
            json.dump(results, open(o.out, "w"), indent=1)

    for family in families:
        if not o.first:
            results[family] = dict(items=0, right=0, share=0.0, goal=GOALS[family])
        elif results.get(family, {"items": 0})["items"] != o.first:
            raise SystemExit(f"--from {o.first}: {o.out} does not have the {o.first} items before of {family}")
    process, url = serve(o.model, o.server)
    try:
        for family in families:
            examine(url, o, texts, family, results[family], save, end)
    finally:
        process.terminate()
        process.wait()
    return any(results[family]["share"] < GOALS[family] for family in families)


if __name__ == "__main__":
    sys.exit(main())
