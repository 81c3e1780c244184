"""How many drafts of the MTP head the target keeps, on held-out answers, with the true text forced: MODEL/acceptance.json.

  python3 acceptance.py MODEL_DIR WORK [ITEMS]

For every anchor of an answer the head drafts three tokens as it does when served: the first row has the target's hidden, the others the
head's own output; all see the head's keys of the rows before, made from the target's hiddens. A draft is kept while it and those
before it equal the target's own choice. Rounds are then walked: each emits what was kept and one token of the target's.
"""

import json
import sys

import torch
import torch.nn.functional as F

import data
import export
import model
import tasks

FAMILIES = ("recall", "json", "copy-edit", "tools")
DEPTH = 3


class Head:
    def __init__(self, c, P):
        self.c, self.P = c, P
        r = c["rope_parameters"]
        self.dims, self.theta = int(c["head_dim"] * r["partial_rotary_factor"]), r["rope_theta"]

    def rows(self, hidden, ids, pos, keys, values, mask):
        """One row of each anchor, its own key and value added to keys and values [rows or 1, n, heads, D] seen where mask [rows, n]."""
        P, w = self.P, lambda n: self.P["mtp.layers.0." + n]
        e = model.rms1(P["model.embed_tokens.weight"][ids], P["mtp.pre_fc_norm_embedding.weight"])
        x = torch.cat([e, model.rms1(hidden, P["mtp.pre_fc_norm_hidden.weight"])], -1) @ P["mtp.fc.weight"].T
        q, k, v, gate = model.attention_before(
            x,
            pos,
            w("input_layernorm.weight"),
            w("self_attn.q_proj.weight"),
            w("self_attn.k_proj.weight"),
            w("self_attn.v_proj.weight"),
            w("self_attn.q_norm.weight"),
            w("self_attn.k_norm.weight"),
            self.dims,
            self.theta,
        )
        if keys is None:
            scores = torch.einsum("thd,shd->hts", q, k) * q.shape[-1] ** -0.5
            o = torch.einsum("hts,shd->thd", scores.masked_fill(~mask, -1e30).softmax(-1), v)
        else:
            shared, own = keys[0], torch.stack(keys[1] + [k], 1)
            s1 = torch.einsum("thd,shd->ths", q, shared).masked_fill(~mask[:, None], -1e30)
            p = (torch.cat([s1, torch.einsum("thd,tjhd->thj", q, own)], -1) * q.shape[-1] ** -0.5).softmax(-1)
            n = shared.shape[0]
            o = torch.einsum("ths,shd->thd", p[..., :n], values[0]) + torch.einsum(
                "thj,tjhd->thd", p[..., n:], torch.stack(values[1] + [v], 1)
            )
        x = model.attention_after(x, o, gate, w("self_attn.o_proj.weight"))
        if model.is_moe(self.c):
            x, _ = model.moe_mlp(
                x,
                w("post_attention_layernorm.weight"),
                w("mlp.gate.weight"),
                w("mlp.experts.gate_up_proj"),
                w("mlp.experts.down_proj"),
                *(w(f"mlp.shared_expert.{n}_proj.weight") for n in ("gate", "up", "down")),
                w("mlp.shared_expert_gate.weight"),
                self.c["num_experts_per_tok"],
            )
        else:
            x = model.dense_mlp(
                x,
                w("post_attention_layernorm.weight"),
                *(w(f"mlp.{n}_proj.weight") for n in ("gate", "up", "down")),
            )
        return model.rms1(x, P["mtp.norm.weight"]), k, v


def kept(c, P, head, ids):
    """For each t: how many of the drafts after tokens 0..t+1 equal the target's choices."""
    T = len(ids)
    pack = model.Packed(ids, torch.tensor([0, T], dtype=torch.int32), torch.arange(T), T)
    hidden, _, _ = model.forward(c, P, pack)
    E = P["model.embed_tokens.weight"]
    choice = (hidden @ E.T).argmax(-1)
    n = T - DEPTH - 1
    mask = torch.ones(T - 1, T - 1, dtype=torch.bool).tril()
    m, k, v = head.rows(hidden[:-1], ids[1:], torch.arange(T - 1), None, None, mask)
    m, good, total, extra = m[:n], torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.long), ([], [])
    for j in range(DEPTH):
        good = good & ((m @ E.T).argmax(-1) == choice[j + 1 : j + 1 + n])
        total = total + good
        if j + 1 < DEPTH:
            m, k2, v2 = head.rows(
                m, ids[j + 2 : j + 2 + n], torch.arange(n) + j + 1, (k, extra[0]), (v, extra[1]), mask[:n]
            )
            extra[0].append(k2), extra[1].append(v2)
    return total


@torch.no_grad()
def main():
    folder, work, items = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 40
    c, P = export.dequantised(folder)
    head, encoder, corpus = Head(c, P), data.Encoder(work), json.load(open(f"{work}/corpus.json"))
    first = anchors = emitted = rounds = 0
    for family in FAMILIES:
        for one in tasks.exam(corpus, family, items, "acceptance"):
            ids, learn = encoder.document(one)
            end = max(i for i, l in enumerate(learn) if l)
            start = end
            while learn[start - 1]:
                start -= 1
            counts = kept(c, P, head, torch.tensor(ids + [encoder.end] * (DEPTH + 2)))
            answer = [int(counts[t - 1]) for t in range(start, end)]  # t: the anchor, the last token known
            first, anchors = first + sum(a > 0 for a in answer), anchors + len(answer)
            t = 0
            while t < len(answer):
                emitted, rounds, t = emitted + answer[t], rounds + 1, t + answer[t] + 1
    result = dict(
        mtp=dict(depth_1=first / anchors, mean_kept_of_3=emitted / rounds, anchors=anchors, rounds=rounds),
        items=items * len(FAMILIES),
        families=FAMILIES,
    )
    json.dump(result, open(f"{folder}/acceptance.json", "w"), indent=1)
    print(folder, result)


if __name__ == "__main__":
    main()
