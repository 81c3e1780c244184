#!/usr/bin/env python3
"""What cannot be written or read is said, and is a failure. Needs nothing but the standard library."""
import os
import stat
import subprocess
import sys
import tempfile

BINARY = os.environ.get("TOKENFOLD", "build/tokenfold")
MODEL = "models/fold-s"
RUN = ("run", MODEL, "Hello", "--max-tokens", "2")
failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print("FAIL", what)


def call(*arguments, **more):
    return subprocess.run([BINARY, *arguments], stderr=subprocess.PIPE, text=True, timeout=60, **more)


if not os.path.exists("/dev/full"):
    print("SKIP there is no /dev/full")
    sys.exit(77)

# A full disk: the command has not done what it was asked for.
for words in (("help",), ("help", "serve"), ("version",), ("profiles",), ("models",), ("info", MODEL), ("plan", MODEL),
              ("plan", MODEL, "--json"), RUN):
    with open("/dev/full", "w") as full:
        done = call(*words, stdout=full)
    check(done.returncode == 1 and "cannot be written: No space left" in done.stderr, f"{words}: {done}")
    done = call(*words, stdout=subprocess.DEVNULL)
    check(done.returncode == 0, f"{words}: {done}")

for verb in ("profiles", "version", "info"):
    done = call(verb, "--help", stdout=subprocess.PIPE)
    check(done.returncode == 0 and f"tokenfold {verb}" in done.stdout, f"{verb} --help: {done}")

done = call(*RUN, "--chat-template", "/nowhere/x", stdout=subprocess.DEVNULL)
check(done.returncode == 1 and "/nowhere/x" in done.stderr, f"a template that is not there: {done}")

# --logits: what is no file is not replaced by one.
with tempfile.TemporaryDirectory() as folder:
    pipe = os.path.join(folder, "pipe")
    os.mkfifo(pipe)
    done = call(*RUN, "--logits", pipe, stdout=subprocess.DEVNULL)
    check(done.returncode == 1 and "no regular file" in done.stderr, f"--logits to a pipe: {done}")
    check(stat.S_ISFIFO(os.stat(pipe).st_mode), "the pipe is gone")

print("output:", "FAILED" if failures else "ok")
sys.exit(bool(failures))
