"""A few held-out items of each skill, asked of both shipped models through the server (`make eval` asks hundreds)."""
import gzip
import json
import os
import sys

sys.path.insert(0, "tools/eval")
import run  # noqa: E402

MODELS = ("models/fold-s", "models/fold-moe")
MISSES = 1  # what a skill may get wrong: the goals of the long examination are 90 % and more, not all


def main():
    with gzip.open("tests/fixtures/eval/items.json.gz", "rt", encoding="utf-8") as f:
        chosen = json.load(f)
    failed = 0
    for model in MODELS:
        process, url = run.serve(model, ["--no-progress"])
        try:
            for family, items in chosen.items():
                answers = [(item, run.ask(url, model, item)) for item in items]
                wrong = [(item, answer) for item, answer in answers if not run.correct(item, answer)]
                print(f"{os.path.basename(model)} {family}: {len(items) - len(wrong)} of {len(items)}")
                # The long texts are few, and looking things up in them is what broken pages and states show in first.
                if len(wrong) > (0 if family.startswith("needle") else MISSES):
                    failed += 1
                    for item, answer in wrong:
                        print(f"FAIL wanted {item['messages'][-1]}\n     got {answer}")
        finally:
            process.terminate()
            process.wait()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
