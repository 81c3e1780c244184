#!/usr/bin/env python3
"""bench_builds.py [--turns N] NAME=PROGRAM... -- ARGUMENTS: `PROGRAM bench ARGUMENTS` of several builds by turns, there and
back N times (1), on a machine that does nothing else. Prints of each cell every run's tokens a second, and how much
faster than the first build each other one is, beside by how much the first one's own runs differ.

    tools/bench_builds.py before=/tmp/before/tokenfold now=build/tokenfold -- DIR --backend cuda --in-process --no-drafts \\
        --parallel 16 --repeats 1 --cells decode:2048+96,decode:128+64x16
"""
import json
import subprocess
import sys
from statistics import geometric_mean


def stop(text):
    print(f"bench_builds.py: {text}", file=sys.stderr)
    sys.exit(2)


def parse(words):
    if "--" not in words:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    own, arguments = words[:words.index("--")], words[words.index("--") + 1:]
    turns = 1
    if own[:1] == ["--turns"]:
        if len(own) < 2 or not own[1].isdigit() or int(own[1]) < 1:
            stop("--turns wants a number from 1 on")
        turns, own = int(own[1]), own[2:]
    builds = dict(word.split("=", 1) for word in own if "=" in word)
    if len(builds) != len(own) or len(builds) < 2:
        stop("at least two different NAME=PROGRAM are wanted before --")
    return turns, builds, arguments


def name_of(cell):
    streams = f"x{cell['streams']}" if cell["streams"] > 1 else ""
    return f"{cell['kind']}:{cell['prompt']}" + (f"+{cell['decode']}{streams}" if cell["kind"] != "prompt" else "")


def run(program, arguments):
    """Tokens a second by cell."""
    done = subprocess.run([program, "bench", *arguments, "--json", "--no-progress"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        stop(f"{program} bench {' '.join(arguments)}: exit {done.returncode}")
    cells = json.loads(done.stdout).get("cells", [])
    if not cells or any("tokens_per_s" not in cell for cell in cells):
        stop("cells with arms have a comparison of their own: leave --arm and --force-accept out")
    return {name_of(cell): cell["tokens_per_s"] for cell in cells}


def number(x):
    return f"{x:,.0f}" if x >= 1000 else f"{x:.1f}"


def main():
    turns, builds, arguments = parse(sys.argv[1:])
    names = list(builds)
    runs = {name: [] for name in names}
    for turn in range(turns):
        for name in [*names, *reversed(names)]:
            print(f"turn {turn + 1} of {turns}: {name}", file=sys.stderr)
            runs[name].append(run(builds[name], arguments))
    if any(r.keys() != runs[names[0]][0].keys() for name in names for r in runs[name]):
        stop("the builds do not have the same cells")
    for cell in runs[names[0]][0]:
        print(cell)
        first = [r[cell] for r in runs[names[0]]]
        for name in names:
            values = [r[cell] for r in runs[name]]
            against = f"{100 * (max(first) / min(first) - 1):.2f} % between its own runs"
            if name != names[0]:
                against = f"{100 * (geometric_mean(values) / geometric_mean(first) - 1):+.2f} %"
            print(f"  {name:<12} {against:<28} {', '.join(map(number, values))}")


if __name__ == "__main__":
    main()
