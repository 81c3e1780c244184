"""The shipped models' greedy ids against those of transformers in fp32 on the dequantised weights
(tools/train/golden.py)."""
import glob
import json
import os
import subprocess
import sys

TOKENFOLD = os.environ.get("TOKENFOLD", "build/tokenfold")
NEAR_TIE = 0.002  # where the two best logits are nearer, another order of summation may choose the other


def reply(model, prompt, n):
    command = [TOKENFOLD, "run", f"models/{model}", "--tokens", ",".join(map(str, prompt)), "--temperature", "0"]
    command += ["--compute", "fp32", "--max-tokens", str(n), "--json", "--no-progress"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["ids"]


def main():
    failures = ties = count = 0
    for path in sorted(glob.glob("tests/fixtures/models/*.json")):
        with open(path, encoding="utf-8") as f:
            golden = json.load(f)
        for i, item in enumerate(golden["prompts"]):
            count += 1
            got = reply(golden["model"], item["prompt"], len(item["ids"]))
            if got == item["ids"]:
                continue
            at = next((k for k, (a, b) in enumerate(zip(got, item["ids"])) if a != b), len(got))
            if at < len(item["gaps"]) and item["gaps"][at] < NEAR_TIE:
                ties += 1
                continue
            failures += 1
            print(f"FAIL {golden['model']}, prompt {i}: differs at token {at}: {got} instead of {item['ids']}")
    print(f"{count} prompts, {ties} near-ties, {failures} failures")
    return 1 if failures or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
