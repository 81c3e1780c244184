#!/usr/bin/env python3
"""`plan` through the real binary: the real shapes from headers alone, refusals whose numbers fit, and what is really
taken on the small models. Needs nothing but the standard library."""
import json
import os
import re
import subprocess
import sys
import tempfile

BINARY = os.environ.get("TOKENFOLD", "build/tokenfold")
SETTINGS = ("TF_QWEN_KV_PAGES", "TF_QWEN_KV_PAGES_ALL", "TF_QWEN_KV_SHARE", "TF_MEMORY_RESERVE_GIB")
GIB = 1 << 30
failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print("FAIL", what)


def call(*arguments, **settings):
    env = {k: v for k, v in os.environ.items() if k not in SETTINGS} | settings
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=300, env=env)


def plan(*arguments, **settings):
    done = call("plan", *arguments, "--json", **settings)
    check(done.returncode == 0, f"plan {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return json.loads(done.stdout) if done.returncode == 0 else None


def streams(p, tokens):
    return next(s for s in p["streams"] if s["tokens"] == tokens)


def check_shape(folder, kib, kib_mtp, most_run_mib, *drafts):
    gpu = ("--backend", "cuda", "--kv-memory", "88GiB", *drafts)
    p = plan(folder, *gpu, "--parallel", 4, "--context", 131072)
    check(p["position_bytes"] == kib * 1024, f"{folder}: {p['position_bytes']} bytes a position")
    check(p["position_bytes_with_mtp"] == kib_mtp * 1024, f"{folder}: {p['position_bytes_with_mtp']} with MTP")
    check(p["run_bytes"] <= most_run_mib << 20, f"{folder}: a run of {p['run_bytes']} bytes")
    check(p["left_bytes"] == 88 * GIB and p["device"] is None, f"{folder}: what is left")
    check(sum(p["parts"].values()) == p["used_bytes"], f"{folder}: the parts are not the whole")
    # By hand: pages of 256 positions, one more round of rows, and a run.
    page = 256 * kib * 1024
    for tokens in (8192, 32768, 131072):
        pages = -(-(tokens + p["max_window"]) // 256)
        window = -(-(131072 + p["max_window"]) // 256)
        s = streams(p, tokens)
        check(s["pages"] == 88 * GIB // (pages * page + p["run_bytes"]), f"{folder}: {tokens} on pages")
        check(s["windows"] == 88 * GIB // (window * page + p["run_bytes"]), f"{folder}: {tokens} in windows")
    fp8 = plan(folder, *gpu, "--kv-dtype", "fp8", "--context", 131072)
    check(kib * 512 < fp8["position_bytes"] < kib * 512 * 1.02, f"{folder}: {fp8['position_bytes']} bytes in fp8")
    # More windows than fit are refused, with numbers that do fit and are the largest that do.
    windows = {"TF_QWEN_KV_PAGES": "0"}
    done = call("plan", folder, *gpu, "--parallel", 64, "--context", 131072, **windows)
    found = re.search(r"need (\S+) GiB and (\S+) GiB are left: use --parallel (\d+) or --context (\d+)", done.stderr)
    check(done.returncode == 1 and found is not None, f"{folder}: refused with {done.stderr!r}")
    n, context = int(found[3]), int(found[4])
    check(plan(folder, *gpu, "--parallel", n, "--context", 131072, **windows)["lanes"] == "windows", "as many windows")
    plan(folder, *gpu, "--parallel", 64, "--context", context, **windows)
    for more in (("--parallel", n + 1, "--context", 131072), ("--parallel", 64, "--context", context + 1)):
        check(call("plan", folder, *gpu, *more, **windows).returncode == 1, f"{folder}: windows of {more}")
    # On pages, which a GPU has unless it is told otherwise, the count is a cap: all 64 have a lane, and the pool is
    # what is left.
    p = plan(folder, *gpu, "--parallel", 64, "--context", 131072)
    check(p["lanes"] == "pages" and p["page_rows"] == 256 and p["overrides"] == "none", f"{folder}: {p['lanes']}")
    check(p["parallel"] == 64 and p["window_set_aside"] and p["pool_bytes"] == 88 * GIB, f"{folder}: on pages")
    p = plan(folder, *gpu, "--parallel", 100000 // 25, "--context", 131072, TF_QWEN_KV_PAGES_ALL="1")
    check(0 < p["parallel"] < 4000 and not p["window_set_aside"], f"{folder}: no more lanes than runs")


def check_taken(*arguments, **settings):
    p = plan(*arguments, "--check", "--no-progress", **settings)
    if p is None:
        return
    planned = p["used_bytes"] - p["parts"]["prompt_cache"]
    check(abs(p["taken_bytes"] - planned) <= planned / 100, f"{arguments} {settings}: {p['taken_bytes']} of {planned}")


with tempfile.TemporaryDirectory() as top:
    for shape, figures in {"qwen3.8-27b": (64, 68, 230), "qwen3.6-35b-a3b": (20, 22, 85)}.items():
        made = call("synth", "--headers-only", shape, f"{top}/{shape}")
        check(made.returncode == 0, made.stderr)
        check_shape(f"{top}/{shape}", *figures, "--no-drafts")
        check_shape(f"{top}/{shape}", figures[1], *figures[1:])  # the head drafts unless it is told not to
    nothing = call("plan", f"{top}/qwen3.8-27b", "--backend", "cuda")
    check(nothing.returncode in (0, 1), "no GPU and no size")
    check(nothing.returncode == 0 or "--kv-memory" in nothing.stderr, f"it says {nothing.stderr!r}")
    small = call("plan", f"{top}/qwen3.8-27b", "--backend", "cuda", "--memory", "12GiB")
    check(small.returncode == 1 and "do not fit" in small.stderr, f"weights that do not fit: {small.stderr!r}")
    int8 = call("plan", f"{top}/qwen3.8-27b", "--backend", "cuda", "--kv-memory", "88GiB", "--compute", "int8")
    check(int8.returncode == 1 and "computes in bf16" in int8.stderr, f"int8 on a GPU: {int8.stderr!r}")
    for tiny in ("tiny", "tiny-moe"):
        check(call("synth", tiny, f"{top}/{tiny}").returncode == 0, f"synth {tiny}")
        check_taken(f"{top}/{tiny}", "--context", 2000)
        for pages in ("1", "64", "96", "256", "4096"):
            check_taken(f"{top}/{tiny}", "--context", 2000, TF_QWEN_KV_PAGES=pages)
        check_taken(f"{top}/{tiny}", "--context", 2000, "--parallel", 16, "--kv-dtype", "fp8", "--memory", "1GiB",
                    TF_QWEN_KV_PAGES="256", TF_QWEN_KV_PAGES_ALL="1")
    wrong = call("plan", f"{top}/tiny", TF_QWEN_KV_PAGES="4097")
    check(wrong.returncode == 1 and "TF_QWEN_KV_PAGES" in wrong.stderr, f"pages of 4097: {wrong.stderr!r}")

print("plan:", "FAILED" if failures else "ok")
sys.exit(bool(failures))
