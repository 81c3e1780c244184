"""How many drafts the target keeps, on held-out answers with the true text forced: MODEL/acceptance.json.

  python3 acceptance.py MODEL_DIR WORK [ITEMS]

Of every token of an answer but the last, as an anchor, the tokens after it are drafted as they are when served: by the MTP head, three
in a chain, whose first row has the target's hidden and the others the head's own output, and all see the head's keys of the rows
before, made from the target's hiddens; and, if MODEL_DIR-DFlash2 exists, by that drafter, seven at once. A draft is kept while it and
those before it equal the target's own choice and lie in the answer. Rounds are then walked: each emits what was kept and one token of
the target's. Means over all rounds include the last ones of answers, which have less to draft than the head proposes; `mean_kept_with_room`
leaves those out.
"""

import json
import os
import sys

import torch

import data
import dflash
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


def mtp_drafts(P, head, ids, hidden):
    """[T - DEPTH - 1, DEPTH]: the drafts after tokens 0..t+1, for each t."""
    T, E = len(ids), P["model.embed_tokens.weight"]
    n = T - DEPTH - 1
    mask = torch.ones(T - 1, T - 1, dtype=torch.bool).tril()
    m, k, v = head.rows(hidden[:-1], ids[1:], torch.arange(T - 1), None, None, mask)
    m, drafts, extra = m[:n], [], ([], [])
    for j in range(DEPTH):
        drafts.append((m @ E.T).argmax(-1))
        if j + 1 < DEPTH:
            m, k2, v2 = head.rows(
                m, ids[j + 2 : j + 2 + n], torch.arange(n) + j + 1, (k, extra[0]), (v, extra[1]), mask[:n]
            )
            extra[0].append(k2), extra[1].append(v2)
    return torch.stack(drafts, 1)


class Tally:
    """Counts of one drafter that proposes n tokens."""

    def __init__(self, n):
        self.n, self.reached, self.possible = n, [0] * n, [0] * n
        self.emitted = self.rounds = self.roomy_emitted = self.roomy_rounds = self.anchors = 0

    def add(self, counts):
        """counts[t]: how many drafts were kept after the t-th token of an answer; the last token has none."""
        self.anchors += len(counts)
        for t, count in enumerate(counts):
            for k in range(min(self.n, len(counts) - t)):
                self.possible[k] += 1
                self.reached[k] += count > k
        t = 0
        while t < len(counts):
            self.emitted, self.rounds = self.emitted + counts[t], self.rounds + 1
            if t + self.n <= len(counts):
                self.roomy_emitted, self.roomy_rounds = self.roomy_emitted + counts[t], self.roomy_rounds + 1
            t += counts[t] + 1

    def result(self):
        return {
            "depth_1": self.reached[0] / self.possible[0],
            f"mean_kept_of_{self.n}": self.emitted / self.rounds,
            "mean_kept_with_room": self.roomy_emitted / max(1, self.roomy_rounds),
            "kept_to_depth": [r / p for r, p in zip(self.reached, self.possible)],
            "anchors": self.anchors,
            "rounds": self.rounds,
        }


def answer_of(learn):
    """(first, last) token of the last answer"""
    last = max(i for i, l in enumerate(learn) if l)
    first = last
    while learn[first - 1]:
        first -= 1
    return first, last


@torch.no_grad()
def main():
    folder, work, items = sys.argv[1].rstrip("/"), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 40
    c, P = export.dequantised(folder)
    d, D = dflash.read(folder + "-DFlash2") if os.path.exists(folder + "-DFlash2/model.safetensors") else (None, None)
    taps = d["dflash_config"]["target_layer_ids"] if d else ()
    head, encoder, corpus = Head(c, P), data.Encoder(work), json.load(open(f"{work}/corpus.json"))
    E, tallies = P["model.embed_tokens.weight"], {"mtp": Tally(DEPTH)}
    if d:
        tallies["dflash2"] = Tally(d["dflash_config"]["block_size"] - 1)
    for family in FAMILIES:
        for one in tasks.exam(corpus, family, items, "acceptance"):
            ids, learn = encoder.document(one)
            first, last = answer_of(learn)
            ids = torch.tensor(ids + [encoder.end] * (16 + -(len(ids) + 16) % 64))
            T, at = len(ids), torch.arange(first, last)
            pack = model.Packed(ids, torch.tensor([0, T], dtype=torch.int32), torch.arange(T), T)
            hidden, _, streams = model.forward(c, P, pack, taps)
            choice = (hidden @ E.T).argmax(-1)
            drafts = {"mtp": mtp_drafts(P, head, ids, hidden)[at - 1]}
            if d:
                anchors = dflash.Anchors(at.tolist(), [0] * len(at), at, T, "cpu")
                hid = dflash.block(d, D, E, ids[at], anchors, dflash.context(d, D, streams, pack.pos))
                drafts["dflash2"] = dflash.walk(d, D, E, ids[at], hid)
            for name, proposed in drafts.items():
                inside = at[:, None] + torch.arange(1, proposed.shape[1] + 1) <= last
                tallies[name].add(dflash.kept(proposed, *dflash.targets(choice, ids, at, inside)).tolist())
    result = {name: t.result() for name, t in tallies.items()}
    result |= dict(items=items * len(FAMILIES), families=FAMILIES)
    json.dump(result, open(f"{folder}/acceptance.json", "w"), indent=1)
    print(folder, result)


if __name__ == "__main__":
    main()
