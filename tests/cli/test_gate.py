#!/usr/bin/env python3
"""`gate --budget`, `--from` and `--part` through the real binary: several runs, each of which goes on where the one before
ended, are one run of all cells, and so are several parts. Needs nothing but the standard library."""
import os
import re
import subprocess
import sys
import tempfile

BINARY = os.environ.get("TOKENFOLD", "build/tokenfold")
SUITE, N_CELLS = "overcommit", 24
failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print("FAIL", what)


def gate(folder, *flags):
    """The exit status, the cells that ran, those that did not, and where the next run is to go on."""
    done = subprocess.run([BINARY, "gate", SUITE, folder, "--no-progress", *map(str, flags)], capture_output=True,
                          text=True, timeout=600)
    ran = re.findall(rf"^({SUITE} .*): green", done.stdout, re.M)
    left = re.findall(r"^not run: (.*)$", done.stdout, re.M)
    on = re.findall(r"^--from (\d+) goes on there$", done.stdout, re.M)
    return done.returncode, ran, left, int(on[0]) if on else None


def main():
    with tempfile.TemporaryDirectory() as top:
        folder = f"{top}/tiny-moe"
        subprocess.run([BINARY, "synth", "tiny-moe", folder, "--no-progress"], check=True)
        status, first, left, on = gate(folder, "--budget", 1)
        check(status == 0 and len(first) >= 1, "a second is enough for a cell")
        check(on == len(first) and len(left) == N_CELLS - on, f"{len(first)} ran, {len(left)} did not, on at {on}")
        cells = first + left
        check(len(set(cells)) == N_CELLS, "no cell comes twice")
        # Its order is that of the cells which the first run named, and with the budget spent it says so again.
        status, ran, left, on = gate(folder, "--budget", 1, "--from", N_CELLS - 3)
        check(status == 0 and ran + left == cells[-3:], "the last three")
        check(on == (None if not left else N_CELLS - len(left)), f"on at {on}")
        status, ran, left, on = gate(folder, "--from", N_CELLS - 1)
        check(status == 0 and ran == cells[-1:] and not left and on is None, "the last cell")
        status, ran, left, on = gate(folder, "--from", N_CELLS)
        check(status != 0 and not ran and not left, "nothing that ran is nothing that is green")
        whole = sorted(cells)
        parts = [gate(folder, "--part", f"{i}/3")[1] for i in (1, 2, 3)]
        check(all(parts) and sorted(sum(parts, [])) == whole, "three parts are the whole")
        for bad in ("0/2", "3/2", "1/0", "1", "1/2/3", "one/2", "-1/2", ""):
            done = subprocess.run([BINARY, "gate", SUITE, folder, "--part", bad], capture_output=True, text=True)
            check(done.returncode == 2 and re.fullmatch(r"tokenfold: .*--part.*\n", done.stderr) is not None,
                  f"--part {bad!r}: exit code {done.returncode}, {done.stderr!r}")
    print("FAIL" if failures else "ok")
    return 1 if failures else 0


sys.exit(main())
