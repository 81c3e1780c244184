"""Turns the fetched texts into one file of word lists and passages that the task generators draw from.

python3 corpus.py TEXTS OUT.json
"""

import collections
import json
import os
import re
import sys

POS = {"1": "nouns", "2": "verbs", "3": "adjectives"}


def frequent_lemmas(path, limits):
    """The lemmas of each part of speech that WordNet's tagged texts use most, plain lower-case words only."""
    counts = {name: collections.Counter() for name in POS.values()}
    for line in open(path):
        key, _, count = line.split()
        lemma, sense = key.split("%")
        kind = {"5": "3"}.get(sense[0], sense[0])
        if kind in POS and re.fullmatch("[a-z]{3,10}", lemma):
            counts[POS[kind]][lemma] += int(count)
    words = {}
    for name, limit in limits.items():
        best = [w for w, _ in sorted(counts[name].items(), key=lambda x: (-x[1], x[0]))]
        words[name] = best[:limit]
    return words


def glosses(folder):
    """(word, part of speech, definition) of every plain one-word WordNet entry with a short gloss."""
    out = []
    for pos in ("noun", "verb", "adj"):
        for line in open(f"{folder}/data.{pos}", encoding="latin-1"):
            if line.startswith("  ") or "|" not in line:
                continue
            head, gloss = line.split("|", 1)
            word = head.split()[4].replace("_", " ")
            definition = re.split(r"; \"|;", gloss.strip())[0].strip()
            if re.fullmatch("[a-z][a-z -]{2,20}", word) and 15 < len(definition) < 110 and definition.isascii():
                out.append((word, pos, definition))
    return out


def verses(path):
    out, chapter = [], ""
    text = open(path).read()
    for block in re.split(r"\n\n+", text):
        if re.fullmatch(r"\s*[1-3]?\s?[A-Z][\w ]+ \d+\s*", block):
            chapter = block.strip()
            continue
        for verse in re.split(r"\n?  (?=\d+ )", "\n" + block):
            m = re.match(r"(\d+) (.*)", verse.replace("\n", " ").strip())
            if m:
                out.append(m.group(2).strip())
    return out


def devil(path):
    out = []
    for block in re.split(r"\n(?=[A-Z][A-Z-]+,? )", open(path).read()):
        flat = re.sub(r"\s+", " ", block).strip()
        if 60 < len(flat) < 900 and re.match(r"[A-Z-]{3,}, ", flat):
            out.append(flat)
    return out


def main():
    folder, out = sys.argv[1], sys.argv[2]
    data = frequent_lemmas(f"{folder}/cntlist.rev", {"nouns": 1600, "verbs": 500, "adjectives": 900})
    data["names"] = [w.strip() for w in open(f"{folder}/names.txt") if re.fullmatch("[A-Z][a-z]{2,8}\n", w)]
    data["glosses"] = glosses(folder)[::2][:30000]
    data["verses"] = verses(f"{folder}/kjv.txt")
    data["devil"] = devil(f"{folder}/devil.txt")
    data["state"] = [
        re.sub(r"\s+", " ", p).strip() for p in open(f"{folder}/state.txt").read().split("\n\n") if len(p) > 80
    ]
    json.dump(data, open(out, "w"))
    print({k: len(v) for k, v in data.items()}, os.path.getsize(out))


if __name__ == "__main__":
    main()
