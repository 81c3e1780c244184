"""json_write against Python's own json on random documents: every style byte for byte, every number the same."""
import json
import os
import random
import struct
import subprocess
import sys

driver = os.path.join(os.environ.get("TF_BUILD", "build/release"), "tests/format/drive_json")
rng = random.Random(7)


def number():
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randrange(-2**63, 2**63)
    if kind == 1:
        return rng.randrange(-1000, 1000)
    if kind == 2:
        return rng.uniform(-1000, 1000)
    if kind == 3:
        return round(rng.uniform(-1000, 1000), rng.randrange(8))
    if kind == 4:
        return float(rng.randrange(10**rng.randrange(1, 22))) * 10.0 ** rng.randrange(-30, 30)
    while True:
        x = struct.unpack("<d", struct.pack("<Q", rng.getrandbits(64)))[0]
        if x == x and abs(x) != float("inf"):
            return x


def text():
    pool = "ab \"\\/\n\t\r\b\f\x00\x01\x1f\x7f\u00e9\u4e2d\u2028\U0001f600{}[],:"
    return "".join(rng.choice(pool) for _ in range(rng.randrange(12)))


def value(depth):
    kind = rng.randrange(8) if depth < 5 else rng.randrange(4)
    if kind < 2:
        return number()
    if kind == 2:
        return text()
    if kind == 3:
        return rng.choice([True, False, None])
    if kind < 6:
        return [value(depth + 1) for _ in range(rng.randrange(5))]
    return {text().replace("\x00", ""): value(depth + 1) for _ in range(rng.randrange(5))}


def run(style, lines):
    text = "\n".join(lines) + "\n"
    done = subprocess.run([driver, style], input=text, capture_output=True, encoding="utf-8", check=True)
    return done.stdout


documents = [value(0) for _ in range(2000)] + [number() for _ in range(20000)]
options = {
    "compact": dict(separators=(",", ":")),
    "spaced": dict(),
    "indent": dict(indent=2),
}
for style, how in options.items():
    got = run(style, [json.dumps(d) for d in documents])
    want = "".join(json.dumps(d, ensure_ascii=False, **how) + "\n" for d in documents)
    if got != want:
        for d in documents:
            one = run(style, [json.dumps(d)])
            if one != json.dumps(d, ensure_ascii=False, **how) + "\n":
                sys.exit(f"{style}: {json.dumps(d)} came back as {one}")
        sys.exit(f"{style}: the outputs differ")
print(f"{len(documents)} documents in {len(options)} styles")
