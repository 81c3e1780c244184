#!/usr/bin/env python3
"""The real binary on every fixture: `run --tokens` gives transformers' greedy replies, and `run --logits` its logits,
in fp32 and by default; neither depends on the length of prompt passes nor on the number of threads. Needs nothing but
the standard library."""
import array
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

BINARY = os.environ.get("TOKENFOLD", "build/tokenfold")
ROOT = os.environ.get("TF_GOLDEN")
FULL = "--full" in sys.argv
FOLDERS = ["dense-hf", "dense-hf-tied-text", "dense-mlx4-g32", "dense-mlx-mixed", "moe-hf", "moe-mlx4-g64",
           "dense-realdims-mlx4", "moe-realdims-mlx4"]
failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print("FAIL", what)


class Safetensors:
    """The tensors of a file, as flat arrays."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.bytes = f.read()
        n = struct.unpack_from("<Q", self.bytes)[0]
        self.header = json.loads(self.bytes[8:8 + n])
        self.start = 8 + n

    def shape(self, name):
        return self.header[name]["shape"]

    def values(self, name):
        first, last = self.header[name]["data_offsets"]
        values = array.array({"F32": "f", "I32": "i"}[self.header[name]["dtype"]])
        values.frombytes(self.bytes[self.start + first:self.start + last])
        return values


def run(folder, *arguments):
    command = [BINARY, "run", f"{ROOT}/{folder}", "--no-progress", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    check(done.returncode == 0, f"{' '.join(command[:8])} ...: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def logits_of(folder, ids, directory, *arguments):
    """The file's tensor, whose bytes are what counts when two runs are to be equal."""
    path = os.path.join(directory, "logits.safetensors")
    run(folder, "--tokens", ids, "--max-tokens", 0, "--logits", path, *arguments)
    return Safetensors(path)


# As in tests/model/test_golden_logits.c.
GAP = {"fp32": 2e-3, "auto": 2e-2}
LOSSY_REL_L2 = 3e-3
ROUTED_REL_L2 = 3e-2
FP8_REL_L2 = 1.5e-2  # from 63 rows on


def relative_error(got, want):
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(got, want)) / math.fsum(b * b for b in want))


def behind(got, want, n_vocab):
    """Of each row, by how much what `got` has for the best token is behind the best of `want`."""
    for row in range(0, len(want), n_vocab):
        ours = max(range(n_vocab), key=lambda i: got[row + i])
        yield max(want[row:row + n_vocab]) - want[row + ours]


def compare(name, got, want, n_vocab, precise):
    """Within max abs 1e-4, or the gates of the default."""
    if precise:
        largest = max(abs(a - b) for a, b in zip(got, want))
        check(largest <= 1e-4, f"{name}: largest error {largest:.2e}")
        return
    relative = relative_error(got, want)
    limit = ROUTED_REL_L2 if name.startswith("moe") else LOSSY_REL_L2
    check(relative <= limit, f"{name}: relative error {relative:.2e}")
    for row, gap in enumerate(behind(got, want, n_vocab)):
        check(gap < GAP["auto"], f"{name}: row {row}: the best token is behind by {gap:.3f}")


def check_logits(folder, golden, directory):
    for length in (5, 65, 300) if not FULL else (1, 2, 5, 63, 64, 65, 130, 300):
        ids = ",".join(map(str, golden.values(f"ids.{length}")))
        want, n_vocab = golden.values(f"logits.{length}"), golden.shape(f"logits.{length}")[1]
        for compute in ("fp32", "auto"):
            name = f"{folder}, prompt of {length}, {compute}"
            file = logits_of(folder, ids, directory, "--compute", compute)
            check(file.shape("logits") == [length, n_vocab], f"{name}: shape {file.shape('logits')}")
            compare(name, file.values("logits")[-len(want):], want, n_vocab, compute == "fp32")
            if length != 300 and not FULL:
                continue
            for more in (["--pass-rows", 64], ["--pass-rows", 128], ["--threads", 1], ["--threads", 3]):
                other = logits_of(folder, ids, directory, "--compute", compute, *more)
                check(other.bytes == file.bytes, f"{name}: {more} changes bits")


def check_fp8(folder, golden, directory):
    """Keys and values in 8 bits change logits, by no more than codes of four bits may, and are as exact as others."""
    ids = ",".join(map(str, golden.values("ids.300")))
    usual = logits_of(folder, ids, directory).values("logits")
    file = logits_of(folder, ids, directory, "--kv-dtype", "fp8")
    got = file.values("logits")
    relative = relative_error(got, usual)
    check(relative > 0, f"{folder}: --kv-dtype fp8 changes nothing")
    if not folder.startswith("moe"):  # where near-ties in the router change whole rows
        check(relative <= FP8_REL_L2, f"{folder}: --kv-dtype fp8 changes logits by {relative:.2e}")
    check(logits_of(folder, ids, directory, "--kv-dtype", "bf16").values("logits") == usual,
          f"{folder}: --kv-dtype bf16 is not the default")
    for more in (["--pass-rows", 64], ["--threads", 1]):
        other = logits_of(folder, ids, directory, "--kv-dtype", "fp8", *more)
        check(other.bytes == file.bytes, f"{folder}, fp8 keys and values: {more} changes bits")
    reply = ["--tokens", ids, "--temperature", 0, "--ignore-eos", "--kv-dtype", "fp8"]
    long = run(folder, *reply, "--max-tokens", 24).strip().split(",")
    short = run(folder, *reply, "--max-tokens", 8, "--pass-rows", 64, "--threads", 1).strip().split(",")
    check(len(long) == 24 and short == long[:8], f"{folder}, fp8: the short reply is not a prefix of the long one")


def check_replies(folder, golden):
    with open(f"{ROOT}/{folder}/golden.json", encoding="utf-8") as f:
        greedy = json.load(f)["greedy"]
    for length, want in greedy.items():
        ids = ",".join(map(str, golden.values(f"ids.{length}")))
        usual = ["--tokens", ids, "--temperature", 0, "--ignore-eos"]
        name = f"{folder}, reply to {length}"
        for compute in ("fp32", "auto"):
            got = json.loads(run(folder, *usual, "--compute", compute, "--max-tokens", 48, "--json"))
            if want["min_top2_gap"] >= GAP[compute]:
                check(got["ids"] == want["ids"], f"{name}, {compute}: {got['ids']} instead of {want['ids']}")
            check(got["finish_reason"] == "length" and got["prompt_tokens"] == int(length), f"{name}: {got}")
        long = run(folder, *usual, "--max-tokens", 48).strip().split(",")
        short = run(folder, *usual, "--max-tokens", 16, "--pass-rows", 64, "--threads", 1).strip().split(",")
        check(len(long) == 48 and short == long[:16], f"{name}: the short reply is not a prefix of the long one")


def main():
    global ROOT
    if ROOT is None:
        subprocess.run(["tools/unpack_golden.sh"], check=True)
        ROOT = "build/golden"
    with tempfile.TemporaryDirectory() as directory:
        for folder in FOLDERS:
            golden = Safetensors(f"{ROOT}/{folder}/golden.safetensors")
            check_logits(folder, golden, directory)
            check_replies(folder, golden)
            if FULL or folder in ("dense-hf-tied-text", "moe-realdims-mlx4"):
                check_fp8(folder, golden, directory)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
