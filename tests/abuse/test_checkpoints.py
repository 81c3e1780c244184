"""A thousand mangled checkpoints against the real binary, built with the address, leak and undefined-behaviour
sanitizers: every file of a checkpoint spoiled as JSON, as bytes, in its structure or in its place. `run` must either
reply, or end with one sentence that says where the fault is; never crash, leak, hang or take memory that only a header
asks for. A good checkpoint must give its ids before, between and after.

    test_checkpoints.py [COUNT [SEED]]      a failure prints the seed and keeps the checkpoint
"""
import collections
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading

import spoil

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARY = os.path.abspath(os.environ.get("TOKENFOLD_ASAN", os.path.join(ROOT, "build", "asan", "tokenfold")))
GOLDEN = os.path.join(ROOT, "build", "golden")
FOLDERS = ["dense-hf", "dense-hf-tied-text", "dense-mlx4-g32", "dense-mlx-mixed", "moe-hf", "moe-mlx4-g64"]
WORKERS = 2
BATCH = 100
SECONDS = 120
CRASHED = 99  # what a sanitizer's report ends the program with
# A header that lies about a size must not be believed: neither one allocation nor the whole program may grow to it.
SANITIZERS = (f"exitcode={CRASHED}:detect_leaks=1:allocator_may_return_null=1:"
              "max_allocation_size_mb=1024:hard_rss_limit_mb=1500")
DTYPES = ["F32", "BF16", "F16", "U8", "U32", "I64", "F64", "BOOL", "F8_E4M3", "f32", ""]
VALUES = spoil.VALUES + DTYPES + [3, 7, 8, 16, 63, 64, 65, 128, 4096, 1 << 20, 1 << 40, -64, 1e-300, "bfloat16",
                                  "linear_attention", "full_attention", "../model.safetensors", "/etc/passwd",
                                  "model.safetensors"]
NAMES = ["quantization", "text_config", "rope_parameters", "num_experts", "tie_word_embeddings", "layer_types", "model",
         "added_tokens", "merges", "__metadata__", "x" * 300]


def read(path):
    with open(path, "rb") as f:
        return f.read()


# ---- how a file is spoiled ----

def whole_json(rng, data):
    return json.dumps(spoil.spoil_json(rng, json.loads(data), NAMES, VALUES)).encode("utf-8", "surrogatepass")


def any_bytes(rng, data):
    return spoil.spoil_bytes(rng, data)


def cut(rng, data):
    return data[:rng.choice((0, 1, 7, 8, 9, len(data) // 2, len(data) - 1, rng.randrange(len(data))))]


def longer(rng, data):
    return data + rng.choice((b"\0", b"}", data, bytes(4096)))


def header_json(rng, data):
    """The header of a safetensors file spoiled as JSON, its length made right again so that the reader gets past it."""
    n, = struct.unpack_from("<Q", data)
    header = whole_json(rng, data[8:8 + n])
    return struct.pack("<Q", len(header)) + header + data[8 + n:]


def header_offsets(rng, data):
    """Shapes, dtypes and offsets only."""
    n, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + n])
    for name in rng.sample(sorted(header), min(len(header), rng.choice((1, 1, 2, 5)))):
        tensor = header[name]
        if "shape" not in tensor:
            continue
        what = rng.randrange(5)
        if what == 0:
            tensor["shape"] = [rng.choice((0, 1, 3, 64, 2**31, 2**32, 2**62, -1)) for _ in range(rng.randrange(5))]
        elif what == 1:
            tensor["dtype"] = rng.choice(DTYPES)
        elif what == 2:
            tensor["data_offsets"][rng.randrange(2)] += rng.choice((-1, 1, 64, -2**40, 2**40, 2**63))
        elif what == 3:
            tensor["data_offsets"] = rng.choice(sorted(header.values(), key=str)).get("data_offsets", [0, 0])
        else:
            header[name + rng.choice(("x", ".weight", ""))] = header.pop(name)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + n:]


def header_length(rng, data):
    n, = struct.unpack_from("<Q", data)
    n = rng.choice((0, 1, n - 1, n + 1, len(data) - 8, len(data) - 7, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 8,
                    2**64 - 1))
    return struct.pack("<Q", n) + data[8:]


def weights(rng, data):
    """Weights that no training gives: not numbers, infinities, noise. They load, and the reply is what it is."""
    n, = struct.unpack_from("<Q", data)
    data = bytearray(data)
    at = rng.randrange(8 + n, len(data))
    size = min(rng.choice((2, 64, 4096, 1 << 20)), len(data) - at)
    piece = rng.choice((b"\xff", b"\x7f\x80", b"\x00", rng.randbytes(64)))
    data[at:at + size] = (piece * size)[:size]
    return bytes(data)


def template(rng, data):
    parts = [b"{{", b"}}", b"{%", b"%}", b"{% if x %}" * 100, b"(" * 300, b"[" * 300, b"{% for a in b %}" * 80,
             b"{{ 1 // 0 }}", b"{{ 'a' * 9999999999 }}", b"{{ range(10**9) }}",
             b"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", b"{{ raise_exception('no') }}",
             b"{{ messages[2**63] }}", b"{{ '%s' % x }}", b"\xff", b"\0"]
    data = bytearray(data)
    for _ in range(rng.choice((1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        if rng.random() < 0.5:
            del data[at:at + rng.randrange(1, 200)]
        else:
            data[at:at] = rng.choice(parts)
    return bytes(data)


def ways(name):
    if name.endswith(".safetensors"):
        return [header_json, header_offsets, header_offsets, header_length, any_bytes, cut, longer, weights]
    if name.endswith(".jinja"):
        return [template, template, any_bytes, cut, longer]
    return [whole_json, whole_json, whole_json, any_bytes, cut, longer]


# ---- a mangled checkpoint ----

def copy(source, folder):
    """Links where the file system can, for links to elsewhere are refused."""
    os.makedirs(folder)
    for name in os.listdir(source):
        try:
            os.link(os.path.join(source, name), os.path.join(folder, name))
        except OSError:
            shutil.copy(os.path.join(source, name), os.path.join(folder, name))


def mangle(rng, source, folder):
    """A copy of the checkpoint with one or two of its files spoiled; what was done."""
    copy(source, folder)
    names = sorted(n for n in os.listdir(source) if not n.startswith((".", "golden.")))
    done = []
    for name in rng.sample(names, rng.choice((1, 1, 1, 2))):
        path, data = os.path.join(folder, name), read(os.path.join(source, name))
        os.unlink(path)
        way = rng.choice(ways(name))
        how = rng.randrange(30)
        if how == 0:
            done.append(f"{name}: missing")
        elif how == 1:
            os.mkdir(path)
            done.append(f"{name}: a folder")
        elif how == 2:
            os.symlink(name, path)
            done.append(f"{name}: a link to itself")
        else:
            with open(path, "wb") as f:
                f.write(way(rng, data))
            done.append(f"{name}: {way.__name__}")
    return done


# ---- running it ----

def run(folder, *arguments):
    p = subprocess.run([BINARY, "run", folder, *arguments, "--no-progress", "--threads", "1", "--context", "512"],
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=SECONDS,
                       cwd=ROOT, env={**os.environ, "ASAN_OPTIONS": SANITIZERS, "UBSAN_OPTIONS": f"exitcode={CRASHED}"})
    return p.returncode, p.stdout, p.stderr.decode(errors="replace")


def arguments_for(source):
    if os.path.exists(os.path.join(source, "tokenizer.json")):
        return ["Tell me.", "--max-tokens", "2", "--temperature", "0"]
    return ["--tokens", "5,6,7,8", "--max-tokens", "2", "--temperature", "0"]


def judge(folder, code, out, err):
    """Why an outcome is not what a mangled checkpoint may have, or None."""
    if "Sanitizer" in err or "runtime error:" in err or code not in (0, 1):
        return f"exit {code}"
    lines = err.splitlines()
    if code == 1 and (len(lines) != 1 or not lines[0].startswith("tokenfold: ")):
        return "refused with other than one sentence"
    # A template is rendered away from its file, and a sound one may still say nothing, or too much.
    known = ("tokenfold: the prompt ", "tokenfold: chat template, line ")
    if code == 1 and folder not in lines[0] and not lines[0].startswith(known):
        return "the sentence does not name the file"
    if code == 1 and (out or len(lines[0]) > 700):
        return "refused with more than a sentence"
    return None


class Abuse:
    def __init__(self, work, seed):
        self.work, self.seed = work, seed
        synth = os.path.join(work, "synth")
        subprocess.run([BINARY, "synth", "tiny", synth], check=True, stdout=subprocess.DEVNULL)
        self.sources = [synth] * 4 + [os.path.join(GOLDEN, f) for f in FOLDERS]
        self.good = {s: run(s, *arguments_for(s)) for s in set(self.sources)}
        for s, (code, _, err) in self.good.items():
            assert code == 0, f"the good checkpoint {s} does not run: {err}"
        self.lock = threading.Lock()
        self.outcomes, self.failures = collections.Counter(), []

    def one(self, number):
        rng = random.Random(f"{self.seed}-{number}")
        folder = os.path.join(self.work, str(number))
        source = rng.choice(self.sources)
        done = mangle(rng, source, folder)
        try:
            code, out, err = run(folder, *arguments_for(source))
            wrong = judge(folder, code, out, err)
        except subprocess.TimeoutExpired:
            code, out, err, wrong = -1, b"", "", f"not done after {SECONDS} s"
        with self.lock:
            self.outcomes["replied" if code == 0 else "refused"] += 1
            if wrong:
                kept = tempfile.mkdtemp(prefix="tokenfold-abuse-")
                shutil.copytree(folder, os.path.join(kept, "checkpoint"), symlinks=True)
                self.failures.append(f"seed {self.seed}, checkpoint {number} of {source} ({'; '.join(done)}), kept in "
                                     f"{kept}: {wrong}\n{err[-3000:]}")
        shutil.rmtree(folder)

    def batch(self, first, count):
        def work(k):
            for number in range(first + k, first + count, WORKERS):
                self.one(number)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(WORKERS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for source, (_, ids, _) in self.good.items():
            code, out, err = run(source, *arguments_for(source))
            assert (code, out) == (0, ids), f"the good checkpoint {source} now gives {code}: {out!r} {err}"


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = sys.argv[2] if len(sys.argv) > 2 else "1"
    for path in (BINARY, os.path.join(GOLDEN, FOLDERS[0])):
        assert os.path.exists(path), f"{path} is missing: `make abuse` makes it"
    with tempfile.TemporaryDirectory(prefix="tokenfold-test-") as work:
        abuse = Abuse(work, seed)
        for first in range(0, count, BATCH):
            abuse.batch(first, min(BATCH, count - first))
            print(f"{min(first + BATCH, count)} checkpoints: {dict(abuse.outcomes)}", flush=True)
    for failure in abuse.failures:
        print(failure)
    # Both outcomes happen, or the spoiling is not what it should be.
    few = min(abuse.outcomes["replied"], abuse.outcomes["refused"]) < count // 20
    assert not abuse.failures and not few, abuse.outcomes
    print("1 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    main()
