"""Greedy ids of transformers in fp32 on a model's dequantised weights, for held-out prompts: what the engine must give.

  python3 golden.py MODEL_DIR WORK OUT.json [PROMPTS]

Each entry has the prompt's ids, the ids that follow (at most 32, to the end of the turn) and, of each, the gap between
the two best logits: where it is tiny a different order of summation may choose the other.
"""

import json
import sys

import torch

import check
import data
import export
import render
import tasks

FAMILIES = ("recall", "json", "copy-edit", "tools", "recall")


@torch.no_grad()
def main():
    folder, work, out = sys.argv[1:4]
    n = int(sys.argv[4]) if len(sys.argv) > 4 else 50
    c, P = export.dequantised(folder)
    m, encoder, corpus = check.oracle(c, P), data.Encoder(work), json.load(open(f"{work}/corpus.json"))
    stop, entries = encoder.tokenizer.token_to_id("<|im_end|>"), []
    for i in range(n):
        one = tasks.exam(corpus, FAMILIES[i % len(FAMILIES)], 1, f"golden-{i}")[0]
        prompt = encoder.tokenizer.encode(render.text(one["messages"][:-1], one["tools"], False, True)).ids
        ids, gaps, cur, past = [], [], torch.tensor([prompt]), None
        while len(ids) < 32 and (not ids or ids[-1] != stop):
            o = m(input_ids=cur, past_key_values=past, use_cache=True)
            two, past = o.logits[0, -1].topk(2), o.past_key_values
            ids.append(int(two.indices[0]))
            gaps.append(round(float(two.values[0] - two.values[1]), 4))
            cur = torch.tensor([[ids[-1]]])
        entries.append(dict(prompt=prompt, ids=ids, gaps=gaps))
    json.dump(
        dict(model=folder.rstrip("/").split("/")[-1], prompts=entries), open(out, "w"), separators=(",", ":")
    )
    print(out, len(entries), "smallest gap", min(min(e["gaps"]) for e in entries))


if __name__ == "__main__":
    main()
