#!/usr/bin/env python3
"""`gate --part I/N` through the real binary: the parts are the whole, and what is no part is refused. Needs nothing but
the standard library and the golden checkpoints."""
import os
import re
import subprocess
import sys

BINARY = os.environ.get("TOKENFOLD", "build/tokenfold")
MODEL = os.path.join(os.environ.get("TF_GOLDEN", "build/golden"), "dense-mlx4-g32")
failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print("FAIL", what)


def gate(*arguments):
    return subprocess.run([BINARY, "gate", "overcommit", MODEL, "--no-progress", "--threads", "1", *arguments],
                          capture_output=True, text=True, timeout=300)


def cells(*arguments):
    done = gate(*arguments)
    check(done.returncode == 0, f"{arguments}: exit code {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}")
    return [line.split(": green")[0] for line in done.stdout.splitlines() if ": green" in line]


if subprocess.run(["tools/unpack_golden.sh"]).returncode != 0:
    sys.exit("tools/unpack_golden.sh failed")
whole, parts = cells(), [cells("--part", f"{i}/3") for i in (1, 2, 3)]
check(len(whole) >= 6, f"{len(whole)} cells in all")
check(all(parts), "a part is empty")
check(sorted(sum(parts, [])) == sorted(whole), "the parts are not the whole")
for bad in ("0/2", "3/2", "1/0", "1", "1/2/3", "one/2", "-1/2", ""):
    done = gate("--part", bad)
    check(done.returncode == 2 and re.fullmatch(r"tokenfold: .*--part.*\n", done.stderr) is not None,
          f"--part {bad!r}: exit code {done.returncode}, {done.stderr!r}")
print(f"{len(whole)} cells in {len(parts)} parts")
sys.exit(1 if failures else 0)
