"""Writes the held-out items of the small examination (tests/golden/test_eval.py), which needs neither texts nor generators.

  python3 tools/eval/items.py [--work build/train] tests/fixtures/eval/items.json.gz
"""

import argparse
import gzip
import json
import os

import run

COUNTS = {"recall": 5, "json": 5, "copy-edit": 5, "tools": 5, "needle-5k": 2}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("out"), a.add_argument("--work", default=os.path.join(run.ROOT, "build", "train"))
    o = a.parse_args()
    texts = run.corpus(o.work)
    import tasks

    chosen = {family: tasks.exam(texts, family, n, "small") for family, n in COUNTS.items()}
    text = json.dumps(chosen, separators=(",", ":"), ensure_ascii=False)
    with open(o.out, "wb") as f:
        f.write(gzip.compress(text.encode(), mtime=0))
    print(o.out, os.path.getsize(o.out), "bytes")


if __name__ == "__main__":
    main()
