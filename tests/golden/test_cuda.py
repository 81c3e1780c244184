#!/usr/bin/env python3
"""The fixtures and the shipped models on the first GPU: logits within the gates of bf16 whatever the length of prompt
passes, and greedy replies that are the CPU's but for counted near-ties. Needs nothing but the standard library; skips
where there is no GPU. `test_cuda.py cpu` compares the CPU with itself."""
import concurrent.futures
import glob
import json
import os
import subprocess
import sys
import tempfile

from test_run import BINARY, FOLDERS, Safetensors, behind, relative_error

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "cuda"
ROOT = os.environ.get("TF_GOLDEN")
NO_GPU = ("this build has no CUDA code", "no NVIDIA driver is installed", "no NVIDIA GPU was found")
TOGETHER = 4           # a process waits for its start most of the time
LENGTHS = (1, 2, 5, 63, 64, 65, 130, 300)
REL_L2, GAP = 3e-2, 0.1  # the gates of bf16: relative error, and how far the best token may be behind
REPLY, NEAR_TIE, TIES_MOST = 32, 0.02, 3


def run(model, backend, ids, *arguments):
    command = [BINARY, "run", model, "--backend", backend, "--no-progress", "--tokens", ",".join(map(str, ids))]
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{model}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def logits_of(model, backend, ids, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "logits.safetensors")
        run(model, backend, ids, "--max-tokens", 0, "--logits", path, *arguments)
        return Safetensors(path)


def check_logits(folder, length):
    """What is wrong, or None; the relative error; how far the best token is behind."""
    golden, model = Safetensors(f"{ROOT}/{folder}/golden.safetensors"), f"{ROOT}/{folder}"
    ids, want = golden.values(f"ids.{length}"), golden.values(f"logits.{length}")
    n_vocab = golden.shape(f"logits.{length}")[1]
    file = logits_of(model, BACKEND, ids)
    if file.shape("logits") != [length, n_vocab]:
        return f"{folder}, prompt of {length}: logits of shape {file.shape('logits')}", 0, 0
    got = file.values("logits")[-len(want):]
    error, gap = relative_error(got, want), max(behind(got, want, n_vocab))
    name = f"{folder}, prompt of {length}"
    if not (error <= REL_L2 and gap < GAP):
        return f"{name}: relative error {error:.2e}, the best token is behind by {gap:.3f}", error, gap
    for rows in (64, 128) if length == 300 else ():
        if logits_of(model, BACKEND, ids, "--pass-rows", rows).bytes != file.bytes:
            return f"{name}: passes of {rows} rows change bits", error, gap
    return None, error, gap


def reply(model, backend, prompt):
    usual = ["--temperature", 0, "--max-tokens", REPLY, "--ignore-eos", "--json"]
    return json.loads(run(model, backend, prompt, *usual))["ids"]


def check_reply(model, prompt):
    """What is wrong, or None; whether there was a near-tie."""
    got, want = reply(model, BACKEND, prompt), reply(model, "cpu", prompt)
    if got == want:
        return None, False
    if len(got) != len(want):
        return f"{model}: a reply of {len(got)} tokens, and {len(want)} on the CPU", False
    at = next(k for k in range(len(want)) if got[k] != want[k])
    file = logits_of(model, "cpu", [*prompt, *want[:at]])
    last = file.values("logits")[-file.shape("logits")[1]:]
    ahead = last[want[at]] - last[got[at]]
    if ahead < NEAR_TIE:
        return None, True
    return f"{model}: token {at} is {got[at]}, and {want[at]} on the CPU, which is ahead by {ahead:.3f}", False


def outcome(future, otherwise):
    try:
        return future.result()
    except Exception as e:  # whatever it is, the other results count as well
        return (f"{type(e).__name__}: {e}", *otherwise)


def main():
    global ROOT
    try:
        run("models/fold-s", BACKEND, [1], "--max-tokens", 1)
    except RuntimeError as e:
        reason = next((r for r in NO_GPU if r in str(e)), None)
        if reason is not None:
            print(f"SKIP {reason}")
            return 77
        raise
    if ROOT is None:
        subprocess.run(["tools/unpack_golden.sh"], check=True)
        ROOT = "build/golden"
    prompts = []
    for path in sorted(glob.glob("tests/fixtures/models/*.json")):
        with open(path, encoding="utf-8") as f:
            golden = json.load(f)
        prompts += [(f"models/{golden['model']}", item["prompt"]) for item in golden["prompts"]]
    with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
        logits = [pool.submit(check_logits, folder, length) for folder in FOLDERS for length in LENGTHS]
        replies = [pool.submit(check_reply, *p) for p in prompts]
        logits = [outcome(f, (0, 0)) for f in logits]
        replies = [outcome(f, (False,)) for f in replies]
    wrong = [r[0] for r in logits + replies if r[0] is not None]
    ties = sum(r[1] for r in replies)
    if ties > TIES_MOST:
        wrong.append(f"{ties} near-ties are too many to be that")
    for line in wrong:
        print("FAIL", line)
    print(f"{len(logits)} prompts' logits, relative error {max(r[1] for r in logits):.2e}, best token behind by "
          f"{max(r[2] for r in logits):.4f}; {len(replies)} replies, {ties} near-ties; {len(wrong)} failures")
    return 1 if wrong or not prompts else 0


if __name__ == "__main__":
    sys.exit(main())
