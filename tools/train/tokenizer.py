"""Trains the byte-level BPE tokenizer: Qwen 3.5's normaliser, pre-tokeniser and added tokens over a small vocabulary.

python3 tokenizer.py CORPUS.json OUT.json
"""

import json
import sys

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import render
import tasks

BASE = 4040  # entries of the vocabulary before the added tokens
REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>""".split()
PLAIN = """<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>
<tool_response> </tool_response> <think> </think>""".split()
LAST = """<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single>
<|audio_pad|>""".split()


def added():
    return [AddedToken(t, special=t not in PLAIN, normalized=False) for t in SPECIAL + PLAIN + LAST]


def samples(corpus, n):
    w = tasks.World(corpus, "tokenizer")
    for _ in range(n):
        one = tasks.training(w, 0.01)
        yield (
            one
            if isinstance(one, str)
            else render.text(one["messages"], one["tools"], one["thinking"]).replace(render.TOOLS_TAIL, "")
        )
    yield render.TOOLS_HEAD + render.TOOLS_TAIL


def main():
    corpus = json.load(open(sys.argv[1]))
    t = Tokenizer(models.BPE(byte_fallback=False))
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False)
    t.post_processor = processors.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=BASE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, min_frequency=2
    )
    t.train_from_iterator(samples(corpus, 30000), trainer)
    assert t.get_vocab_size() == BASE
    t.add_tokens(added())
    t.save(sys.argv[2], pretty=False)
    print(t.get_vocab_size(), t.token_to_id("<|endoftext|>"), t.token_to_id("<think>"))


if __name__ == "__main__":
    main()
