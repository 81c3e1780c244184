"""Trains the DFlash2 drafter of a finished model, for so many seconds, and writes its checkpoint.

  python3 train_dflash.py TARGET_DIR WORK OUT SECONDS

The target is used as its files hold it and does not change; the drafter learns the target's own choices after random anchors in the
answers of the training tasks. Rows further from the anchor weigh less, since they count only if those before them are right. From 0.55
of the time on the rate falls and the weights are used as the 4-bit file will hold them, as in train.py.
"""

import argparse
import json
import os
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F

import data
import dflash
import export
import model
import train

FAMILIES = ("recall", "json", "copy-edit", "tools")
FALL = 0.8  # weight of a row over that of the one before


def places(b, B):
    """(stream index of every token that one of an answer follows, which rows of its block lie in the same answer)"""
    learn, doc = b["learn"], b["doc"]
    at = np.nonzero(learn[1:] & (doc[1:] == doc[:-1]))[0]
    at = at[at + B < len(doc)]
    ahead = at[:, None] + np.arange(1, B)
    return at, np.logical_and.accumulate(learn[ahead] & (doc[ahead] == doc[at][:, None]), 1)


def anchors_of(b, at, device):
    return dflash.Anchors(at, at - b["pos"][at], b["pos"][at], len(b["ids"]), device)


class Target:
    def __init__(self, folder, device):
        self.c, P = export.dequantised(folder)
        self.P = {n: w.to(device, torch.bfloat16) for n, w in P.items() if not n.startswith("mtp.")}
        self.embedding = self.P["model.embed_tokens.weight"]

    @torch.no_grad()
    def read(self, pack, taps):
        """(its choice after each token, its residual streams)"""
        hidden, _, streams = model.forward(self.c, self.P, pack, taps)
        choice = torch.cat([(h @ self.embedding.T).argmax(-1) for h in hidden.split(16384)])
        return choice, streams


def loss_of(d, P, target, pack, choice, streams, b, at, inside):
    """(loss, sum of the proposals kept without the selector)"""
    device = pack.ids.device
    anchors = anchors_of(b, at, device)
    labels, judged = dflash.targets(choice, pack.ids, anchors.at, torch.from_numpy(inside).to(device))
    hid = dflash.block(
        d, P, target.embedding, pack.ids[anchors.at], anchors, dflash.context(d, P, streams, pack.pos)
    )
    logits = hid @ target.embedding.T
    previous = pack.ids[anchors.at[:, None] + torch.arange(hid.shape[1], device=device)]
    weight = FALL ** torch.arange(hid.shape[1], device=device) * judged
    total = 0
    for scores in (logits, logits + dflash.follow(P, hid, previous)):
        losses = F.cross_entropy(scores.float().flatten(0, 1), labels.flatten(), reduction="none")
        total = total + (losses * weight.flatten()).sum()
    return total / weight.sum(), dflash.kept(logits.argmax(-1), labels, judged).float().mean()


@torch.no_grad()
def examine(d, P, target, batches, device):
    """Mean number of proposals kept, over all anchors of held-out answers."""
    total = count = 0
    for b in batches:
        pack, _ = train.to_device(b, device)
        choice, streams = target.read(pack, d["dflash_config"]["target_layer_ids"])
        at, inside = places(b, d["dflash_config"]["block_size"])
        at, inside = at[b["learn"][at]], inside[b["learn"][at]]
        anchors = anchors_of(b, at, device)
        labels, judged = dflash.targets(choice, pack.ids, anchors.at, torch.from_numpy(inside).to(device))
        ctx = dflash.context(d, P, streams, pack.pos)
        tokens = pack.ids[anchors.at]
        hid = dflash.block(d, P, target.embedding, tokens, anchors, ctx)
        total += dflash.kept(dflash.walk(d, P, target.embedding, tokens, hid), labels, judged).sum().item()
        count += len(at)
    return total / count


def arguments():
    a = argparse.ArgumentParser()
    a.add_argument("target"), a.add_argument("work"), a.add_argument("out"), a.add_argument("seconds", type=float)
    a.add_argument("--workers", type=int, default=13), a.add_argument("--tokens", type=int, default=train.T)
    a.add_argument("--anchors", type=int, default=2048), a.add_argument("--uses", type=int, default=2)
    a.add_argument("--seed", type=int, default=7), a.add_argument("--exam", type=int, default=100)
    return a.parse_args()


def main():
    o = arguments()
    begun, device = time.time(), "cuda" if torch.cuda.is_available() else "cpu"
    stream = data.Stream(o.work, o.seed, o.tokens, o.tokens // 4, o.workers, 0.01)
    rng = np.random.default_rng(o.seed)
    target = Target(o.target, device)
    d = dflash.config(target.c, data.Encoder(o.work).tokenizer.token_to_id("<|audio_start|>"))
    B, taps = d["dflash_config"]["block_size"], d["dflash_config"]["target_layer_ids"]
    start = dflash.initial(d, o.seed)
    start["norm.weight"] = 1 + target.P["model.norm.weight"].float().cpu()  # the scale that the target's head expects
    p = train.Parameters(dflash.shapes(d), device, start)
    if device == "cuda":
        model.compile_pieces()
    opt = train.Optimiser(p)
    families = FAMILIES if o.exam else ()
    exams = {f: list(data.exam_batches(o.work, f, o.exam, 0, o.tokens, o.tokens // 4)) for f in families}
    print(f"set up in {time.time() - begun:.1f} s; {sum(w.numel() for w in p.master.values()) / 1e6:.2f} M", flush=True)
    step, shown, examined, sums, x = 0, time.time(), time.time(), [], 0.0

    def watch():
        time.sleep(min(120, o.seconds))
        if step == 0:
            print("no step in time", flush=True)
            os._exit(3)

    if device == "cuda":
        threading.Thread(target=watch, daemon=True).start()
    while x < 1:
        b = stream.next()
        at, inside = places(b, B)
        if not len(at):  # a small batch may hold the beginning of one long text and no answer
            continue
        pack, _ = train.to_device(b, device)
        choice, streams = target.read(pack, taps)
        for _ in range(o.uses):
            x = (time.time() - begun) / o.seconds
            p.refresh(x > train.QUANT_FROM)
            some = np.sort(rng.permutation(len(at))[: o.anchors])
            loss, good = loss_of(d, p.leaf, target, pack, choice, streams, b, at[some], inside[some])
            loss.backward()
            opt.step(train.rate_at(x, (step + 1) / 100))
            step += 1
            sums.append(torch.stack([loss.detach(), good]))
        if time.time() - shown > 10 or step == o.uses:
            mean, sums, shown = torch.stack(sums).mean(0).tolist(), [], time.time()
            print(
                f"{shown - begun:6.1f} s  x {x:.3f}  step {step}  loss {mean[0]:.4f}  kept without selector {mean[1]:.3f}"
                f"  queue {stream.queue.qsize()}",
                flush=True,
            )
        if time.time() - examined > 75:
            examined = time.time()
            print({f: round(examine(d, p.leaf, target, e, device), 3) for f, e in exams.items()}, flush=True)
    p.refresh(True)
    stream.close()
    dflash.write(d, p.master, o.out)
    result = {f: round(examine(d, p.leaf, target, e, device), 3) for f, e in exams.items()}
    print("final", result, f"steps {step}", f"done after {time.time() - begun:.1f} s", flush=True)
    json.dump(dict(steps=step, seconds=o.seconds, anchors=o.anchors, kept=result), open(f"{o.out}/train.json", "w"))
    os._exit(0)


if __name__ == "__main__":
    main()
