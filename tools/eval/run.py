"""Held-out examination of a model through the server and its API, greedy, thinking off.

  python3 tools/eval/run.py MODEL [--items 200] [--families needle-5k,tools,...] [--seed 1] [--work build/train] [--out FILE]

Serves MODEL with build/tokenfold on a free port, asks every item as one chat completion, and counts exact answers: the text, or
for tools the names and arguments of all calls. The items come from tools/train/tasks.py under seeds that training never draws.
The texts behind them are fetched once from Debian packages (tools/train/texts.sh) if WORK has no corpus.json.
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
import tasks  # noqa: E402

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
        [
            os.path.join(ROOT, "build", "tokenfold"),
            "serve",
            model,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            *extra,
        ],
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


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model"), a.add_argument("--items", type=int, default=200), a.add_argument(
        "--families", default=",".join(GOALS)
    )
    a.add_argument("--seed", default="1"), a.add_argument("--work", default=os.path.join(ROOT, "build", "train"))
    a.add_argument("--out"), a.add_argument("--show", type=int, default=0), a.add_argument("server", nargs="*")
    o = a.parse_args()
    texts, results, failed = corpus(o.work), {}, False
    if o.out and os.path.exists(o.out):
        results = json.load(open(o.out))
    process, url = serve(o.model, o.server)
    try:
        for family in o.families.split(","):
            begun, right, shown = time.time(), 0, 0
            for item in tasks.exam(texts, family, o.items, o.seed):
                body = dict(
                    model=os.path.basename(os.path.normpath(o.model)),
                    messages=api_messages(item["messages"][:-1]),
                    temperature=0,
                    max_tokens=600,
                    chat_template_kwargs={"enable_thinking": False},
                )
                if item["tools"]:
                    body["tools"] = item["tools"]
                message = post(url, body)["choices"][0]["message"]
                ok = correct(item, message)
                right += ok
                if not ok and shown < o.show:
                    shown += 1
                    print(f"{family} wanted {item['messages'][-1]}\n got {message}")
            share = right / o.items
            results[family] = dict(items=o.items, right=right, share=share, goal=GOALS[family])
            failed |= share < GOALS[family]
            print(
                f"{family:12} {right:4}/{o.items}  {100 * share:5.1f} %  goal {100 * GOALS[family]:.0f} %  {time.time() - begun:.0f} s",
                flush=True,
            )
            if o.out:
                json.dump(results, open(o.out, "w"), indent=1)
    finally:
        process.terminate()
        process.wait()
    return failed


if __name__ == "__main__":
    sys.exit(main())
