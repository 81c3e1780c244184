"""The documents on which acceptance.py measures, as ids, for `tokenfold bench acceptance --documents FILE`.

  python3 acceptance_ids.py WORK FILE [ITEMS]

WORK has corpus.json and tokenizer.json. Each document is {"ids": [...], "first": index of the answer's first token}; it ends with the
answer's last one.
"""

import json
import sys

import data
import tasks

FAMILIES = ("recall", "json", "copy-edit", "tools")  # acceptance.py's


def main():
    work, path, items = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 40
    encoder, corpus = data.Encoder(work), json.load(open(f"{work}/corpus.json"))
    documents = []
    for family in FAMILIES:
        for one in tasks.exam(corpus, family, items, "acceptance"):
            ids, learn = encoder.document(one)
            last = max(i for i, l in enumerate(learn) if l)
            first = last
            while learn[first - 1]:
                first -= 1
            documents.append({"ids": ids[: last + 1], "first": first})
    json.dump(documents, open(path, "w"), separators=(",", ":"))


if __name__ == "__main__":
    main()
