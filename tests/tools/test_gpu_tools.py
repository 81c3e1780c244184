"""The scripts for machines with a GPU, with programs that play the parts of ours: what they run, in which order, and
that nothing red is lost."""
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.getcwd()

PLAYED = f"""#!{sys.executable}
import json, os, sys
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(os.environ["PLAYED"], "a") as f:
    f.write(json.dumps([name, *arguments]) + "\\n")
if arguments == ["--list"]:
    print("linear     embed, 4 faults\\ndraw       draw, 9 faults")
elif arguments[:1] == ["bench"]:
    speed = {{"slow": 100.0, "fast": 110.0}}[name]
    print(json.dumps({{"cells": [{{"kind": "decode", "prompt": 128, "decode": 64, "streams": 4, "tokens_per_s": speed}},
                                 {{"kind": "prompt", "prompt": 512, "decode": 1, "streams": 1, "tokens_per_s": 2000.0}}]}}))
else:
    print(name, *arguments)
sys.exit(os.environ.get("RED", "nothing") in " ".join([name, *arguments]))
"""


def play(folder, *names):
    for name in names:
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(PLAYED)
        os.chmod(path, 0o755)


def called(folder):
    path = os.path.join(folder, "calls")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    os.remove(path)
    return lines


def run(folder, command, red="nothing"):
    environment = {**os.environ, "PLAYED": os.path.join(folder, "calls"), "RED": red, "TF_GPU_LOGS": os.path.join(folder, "logs"),
                   "PYTHON": os.path.join(folder, "python"),
                   "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)


def test_all_that_a_gpu_can_show(folder):
    """every suite of the contract, both tools on the suites named, fixtures, and four parts of the gate of each model"""
    play(folder, "tokenfold", "tf-cuda-test", "compute-sanitizer", "python")
    check = [os.path.join(ROOT, "tools", "gpu_check.sh"), folder, "100", "draw"]
    done = run(folder, check)
    calls = [" ".join([call[0], *call[1:]]) for call in called(folder)]
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "13 jobs, 0 failed, 0 not run", done.stdout
    for family in ("linear", "draw"):
        assert f"tf-cuda-test {family}" in calls, calls
    for tool in ("memcheck", "racecheck"):
        assert any(call.startswith("compute-sanitizer") and f"--tool {tool}" in call and call.endswith(" draw") for call in calls), calls
    gates = [call for call in calls if call.startswith("tokenfold gate all")]
    assert sorted(re.search(r"models/(\S+) .* --part (\S+)", call).groups() for call in gates) == [
        (model, f"{part}/4") for model in ("fold-moe", "fold-s") for part in (1, 2, 3, 4)], gates
    assert all(0 < int(re.search(r"--budget (\d+)$", call).group(1)) <= 40 for call in gates), gates
    for red in ("tf-cuda-test linear", "memcheck", "racecheck", "test_cuda.py", "fold-moe --backend cuda --no-progress --part 3/4"):
        done = run(folder, check, red)
        called(folder)
        assert done.returncode == 1 and "13 jobs, 1 failed, 0 not run" in done.stdout, (red, done.stdout, done.stderr)
        assert len(re.findall(r"^FAIL", done.stdout, re.M)) == 1, (red, done.stdout)


def test_too_little_time(folder):
    """gates that there is no time for are not run, and not red"""
    play(folder, "tokenfold", "tf-cuda-test", "compute-sanitizer", "python")
    done = run(folder, [os.path.join(ROOT, "tools", "gpu_check.sh"), folder, "30"])
    assert not [call for call in called(folder) if call[:2] == ["tokenfold", "gate"]]
    assert done.returncode == 0 and len(re.findall(r"^not ", done.stdout, re.M)) == 8, done.stdout
    assert done.stdout.splitlines()[-1] == "11 jobs, 0 failed, 8 not run", done.stdout


def test_no_suites(folder):
    """a contract without suites is red"""
    play(folder, "tokenfold", "tf-cuda-test", "compute-sanitizer", "python")
    with open(os.path.join(folder, "tf-cuda-test"), "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\n")
    done = run(folder, [os.path.join(ROOT, "tools", "gpu_check.sh"), folder, "30"])
    assert done.returncode == 1 and "names no suites" in done.stderr, done


def test_what_it_wants(folder):
    """a build without its programs, or no time, is refused with the usage"""
    check = os.path.join(ROOT, "tools", "gpu_check.sh")
    for command in ([check], [check, folder, "60"], [check, folder, "abc"]):
        done = run(folder, command)
        assert done.returncode == 2 and done.stderr.startswith("gpu_check.sh BUILD"), done


def test_builds_by_turns(folder):
    """there and back, as often as asked for; each build beside the first"""
    play(folder, "slow", "fast")
    slow, fast = os.path.join(folder, "slow"), os.path.join(folder, "fast")
    command = [sys.executable, os.path.join(ROOT, "tools", "bench_builds.py"), "--turns", "2", f"before={slow}", f"now={fast}"]
    done = run(folder, [*command, "--", "MODEL", "--in-process"])
    assert done.returncode == 0, done.stderr
    calls = called(folder)
    assert [call[0] for call in calls] == ["slow", "fast", "fast", "slow"] * 2, calls
    assert all(call[1:] == ["bench", "MODEL", "--in-process", "--json", "--no-progress"] for call in calls), calls
    words = " ".join(done.stdout.split())
    assert "decode:128+64x4 before 0.00 % between its own runs 100.0, 100.0, 100.0, 100.0 now +10.00 % 110.0" in words, done.stdout
    assert "prompt:512 before 0.00 % between its own runs 2,000, 2,000, 2,000, 2,000 now +0.00 % 2,000" in words, done.stdout
    done = run(folder, [*command, "--", "MODEL"], red="fast")
    assert done.returncode == 2 and "exit 1" in done.stderr, done
    for wrong in ([], ["--"], [f"a={slow}", "--", "MODEL"], [f"a={slow}", f"a={fast}", "--"], ["--turns", "0", f"a={slow}", f"b={fast}", "--"]):
        done = run(folder, [*command[:2], *wrong])
        assert done.returncode == 2 and done.stderr, (wrong, done)


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            with tempfile.TemporaryDirectory() as folder:
                test(folder)
            print(f"ok {name}: {test.__doc__}")


if __name__ == "__main__":
    main()
