"""Trains a model and its MTP head, for so many seconds, and writes the exported model and what the next piece
resumes from.

  python3 train.py MODEL WORK OUT SECONDS [--resume DIR] [--from 0.0] [--to 1.0]

MODEL is fold-s or fold-moe. WORK has corpus.json and tokenizer.json. The schedule runs from --from to --to over
SECONDS, so a training of several pieces gives each its part: a short warm-up, a constant rate, and from 0.55 on a
linear fall during which the weights are used as they will be in the 4-bit file (their gradients pass to the exact
ones).
Matrices inside the layers follow Muon, everything else Adam. DIR's weights are bf16; the optimisers start afresh in
each piece.
"""

import argparse
import json
import os
import threading
import time

import numpy as np
import torch

import data
import export
import model
import quant

T, LIMIT = 65536, 16384
MUON_LR, ADAM_LR, QUANT_FROM = 0.012, 0.003, 0.55


class Parameters:
    """fp32 values, and the bf16 leaves that the model is run with; the leaves of one width lie in one buffer."""

    def __init__(self, shapes, device, start=None):
        gen = torch.Generator().manual_seed(1)
        self.groups, self.master, self.leaf = {}, {}, {}
        for bits in (4, 8, None):
            names = [n for n, s in shapes.items() if quant.bits_of(n, s) == bits]
            values = [
                (start[n].float() if start else model.init(n, tuple(shapes[n]), gen)).flatten() for n in names
            ]
            flat = torch.cat(values).to(device)
            leaf = flat.bfloat16()
            self.groups[bits] = (flat, leaf)
            at = 0
            for n in names:
                size = int(np.prod(shapes[n]))
                self.master[n] = flat[at : at + size].view(shapes[n])
                self.leaf[n] = leaf[at : at + size].view(shapes[n]).detach().requires_grad_()
                at += size

    @torch.no_grad()
    def refresh(self, quantised):
        for bits, (flat, leaf) in self.groups.items():
            leaf.copy_(quant.fake(flat, bits) if quantised and bits else flat)


def orthogonalise(g):
    """Five Newton-Schulz steps towards the nearest orthogonal matrices; g [n, rows, columns]."""
    x = g.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Optimiser:
    def __init__(self, p, frozen=lambda name: False):
        self.p = p
        names = [n for n in p.master if not frozen(n)]
        matrix = lambda n: quant.bits_of(n, p.master[n].shape) == 4
        by_shape = {}
        for n in filter(matrix, names):
            by_shape.setdefault(tuple(p.master[n].shape[-2:]), []).append(n)
        self.muon = [
            (
                names,
                torch.zeros(
                    sum(p.master[n].shape[:-2].numel() for n in names), *shape, device=p.master[names[0]].device
                ),
            )
            for shape, names in by_shape.items()
        ]
        self.adam = [n for n in names if not matrix(n)]
        self.m = [torch.zeros_like(p.master[n]) for n in self.adam]
        self.v = [torch.zeros_like(p.master[n]) for n in self.adam]
        self.t = 0

    @torch.no_grad()
    def step(self, rate):
        self.t += 1
        p = self.p
        for names, momentum in self.muon:
            g = (
                torch.cat([p.leaf[n].grad.reshape(-1, *momentum.shape[1:]) for n in names])
                .float()
                .nan_to_num_(0, 0, 0)
            )
            momentum.lerp_(g, 0.05)
            lr = MUON_LR * rate * max(1, momentum.shape[1] / momentum.shape[2]) ** 0.5
            update = orthogonalise(g.lerp_(momentum, 0.95)).float()
            at = 0
            for n in names:
                w = p.master[n]
                k = w.shape[:-2].numel()
                w.mul_(1 - lr * 0.05).sub_(update[at : at + k].reshape(w.shape), alpha=lr)
                at += k
        grads = [p.leaf[n].grad.float().nan_to_num_(0, 0, 0) for n in self.adam]
        torch._foreach_lerp_(self.m, grads, 0.1)
        torch._foreach_mul_(self.v, 0.95)
        torch._foreach_addcmul_(self.v, grads, grads, 0.05)
        down = torch._foreach_sqrt(torch._foreach_div(self.v, 1 - 0.95**self.t))
        torch._foreach_add_(down, 1e-10)
        torch._foreach_addcdiv_(
            [p.master[n] for n in self.adam], self.m, down, -ADAM_LR * rate / (1 - 0.9**self.t)
        )
        for leaf in p.leaf.values():
            leaf.grad = None


def to_device(b, device):
    move = lambda a: (
        torch.from_numpy(a).pin_memory().to(device, non_blocking=True) if device == "cuda" else torch.from_numpy(a)
    )
    pack = model.Packed(move(b["ids"]), move(b["cu"]), move(b["pos"]), b["longest"])
    return pack, [(move(i), move(w)) for i, w in b["marks"]]


def losses(c, P, pack, marks):
    """(main loss, MTP loss, balance, share of marked tokens the main head gets right)"""
    hidden, balances, _ = model.forward(c, P, pack)
    next_ids = torch.cat([pack.ids[1:], pack.ids[:1]])
    drafted = model.mtp(c, P, pack, hidden, next_ids, balances)
    E, out = P["model.embed_tokens.weight"], []
    for h, (idx, w), ahead in ((hidden, marks[0], 1), (drafted, marks[1], 2)):
        out.append(model.PIECES["token_loss"](h[idx], E, pack.ids[(idx + ahead) % len(pack.ids)], w) + (w.sum(),))
    balance = sum(balances) / max(1, len(balances))
    return out[0][0] / out[0][2], out[1][0] / out[1][2].clamp_min(1), balance, out[0][1] / out[0][2]


def examine(c, P, batches, device):
    """Share of items whose last answer greedy decoding would give exactly: every token of it is the best one."""
    right = total = 0
    for b in batches:
        pack, marks = to_device(b, device)
        idx, w = marks[0]
        hidden, _, _ = model.forward(c, P, pack)
        wrong = (
            (hidden[idx] @ P["model.embed_tokens.weight"].T).argmax(-1) != pack.ids[(idx + 1) % len(pack.ids)]
        ) & (w > 0)
        bad = set(b["doc"][b["marks"][0][0][wrong.cpu().numpy()]].tolist())
        total += b["items"]
        right += b["items"] - len(bad)
    return right / total


def rate_at(x, warm):
    fall = 1 - max(0.0, x - QUANT_FROM) / (1 - QUANT_FROM)
    return min(1.0, warm) * max(0.02, fall)


def save(c, p, work, out):
    export.write(c, p.master, work, os.path.join(out, "model"))
    flat = torch.cat([v.detach().flatten() for v in p.master.values()]).bfloat16().cpu()
    size = 7 * 2**20
    for i in range(0, len(flat), size):
        torch.save(flat[i : i + size].clone(), os.path.join(out, f"weights-{i // size}.pt"))


def load(c, folder):
    parts = sorted(f for f in os.listdir(folder) if f.startswith("weights-"))
    flat, out, at = torch.cat([torch.load(os.path.join(folder, f)) for f in parts]), {}, 0
    order = []
    for bits in (4, 8, None):
        order += [(n, s) for n, s in model.shapes(c).items() if quant.bits_of(n, s) == bits]
    for n, s in order:
        size = int(np.prod(s))
        out[n] = flat[at : at + size].view(s)
        at += size
    return out


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model"), a.add_argument("work"), a.add_argument("out"), a.add_argument("seconds", type=float)
    a.add_argument("--resume"), a.add_argument("--from", dest="start", type=float, default=0.0)
    a.add_argument("--to", dest="stop", type=float, default=1.0), a.add_argument("--seed", type=int, default=1)
    a.add_argument("--workers", type=int, default=13), a.add_argument("--tokens", type=int, default=T)
    a.add_argument("--probe", action="store_true"), a.add_argument("--exam", type=int, default=200)
    o = a.parse_args()
    begun, device = time.time(), "cuda" if torch.cuda.is_available() else "cpu"
    c, size = model.CONFIGS[o.model], o.tokens
    limit = size // 4
    stream = data.Stream(o.work, o.seed, size, limit, o.workers, 0.004)
    torch.manual_seed(o.seed)
    p = Parameters(model.shapes(c), device, load(c, o.resume) if o.resume else None)
    opt = Optimiser(p)
    if device == "cuda":
        model.compile_pieces()
    import tasks

    exams = (
        {
            f: list(data.exam_batches(o.work, f, o.exam // 4 if "16k" in f else o.exam, 0, size, limit))
            for f in tasks.EXAMS
        }
        if o.exam
        else {}
    )
    print(
        f"set up in {time.time() - begun:.1f} s; {sum(v.numel() for v in p.master.values()) / 1e6:.2f} M parameters",
        flush=True,
    )
    step, clock, quantised, seen, shown, examined, sums = 0, time.time(), False, 0, time.time(), time.time(), []

    def watch():
        time.sleep(min(170, o.seconds))
        if step < 5:
            print("no step in time", flush=True)
            os._exit(3)

    if device == "cuda":
        threading.Thread(target=watch, daemon=True).start()
    while True:
        x = o.start + (o.stop - o.start) * (time.time() - begun) / o.seconds
        if x >= o.stop and step:
            break
        stream.long_share.value = 0.003 if x < 0.15 else 0.012 if x < 0.4 else 0.02
        quantised = x > QUANT_FROM
        p.refresh(quantised)
        pack, marks = to_device(stream.next(), device)
        main_loss, mtp_loss, balance, right = losses(c, p.leaf, pack, marks)
        (main_loss + 0.2 * mtp_loss + 0.01 * balance).backward()
        opt.step(rate_at(x, (step + 1) / 100))
        step, seen = step + 1, seen + size
        sums.append(
            torch.stack(
                [
                    t.detach().float() if torch.is_tensor(t) else torch.tensor(float(t), device=device)
                    for t in (main_loss, mtp_loss, balance, right)
                ]
            )
        )
        if step == 5:
            clock, seen = time.time(), 0
            torch.cuda.synchronize() if device == "cuda" else None
            clock = time.time()
            print(f"first steps after {clock - begun:.1f} s, loss {main_loss.item():.3f}", flush=True)
            if not torch.isfinite(main_loss):
                os._exit(4)
        if step % 50 == 0 and time.time() - shown > 10:
            mean = torch.stack(sums).mean(0).tolist()
            shown, sums = time.time(), []
            print(
                f"{shown - begun:6.1f} s  x {x:.3f}  step {step}  {seen / (shown - clock) / 1e3:.0f} k/s"
                f"  loss {mean[0]:.4f}  mtp {mean[1]:.4f}  balance {mean[2]:.3f}"
                f"  right {mean[3]:.4f}  queue {stream.queue.qsize()}",
                flush=True,
            )
        if exams and time.time() - examined > 75:
            examined = time.time()
            print(
                {f: round(examine(c, p.leaf, b, device), 3) for f, b in exams.items()},
                f"{time.time() - examined:.1f} s",
                flush=True,
            )
    p.refresh(True)
    stream.close()
    os.makedirs(o.out, exist_ok=True)
    result = {f: examine(c, p.leaf, b, device) for f, b in exams.items()}
    print("final", {k: round(v, 3) for k, v in result.items()}, "tokens", step * size, flush=True)
    if not o.probe:
        save(c, p, o.work, o.out)
        json.dump(
            dict(steps=step, tokens=step * size, seconds=o.seconds, resumed=bool(o.resume), teacher_forced=result),
            open(os.path.join(o.out, "train.json"), "w"),
        )
    print(f"done after {time.time() - begun:.1f} s", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
