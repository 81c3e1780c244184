"""Packed batches from the task generators, made by worker processes, and examinations in the same form."""

import json
import multiprocessing
import os

import numpy as np


class Encoder:
    def __init__(self, folder):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.end = self.tokenizer.token_to_id("<|endoftext|>")

    def document(self, one):
        """(ids, whether each is to be learned) of an item or a plain text."""
        import render

        if isinstance(one, str):
            ids = self.tokenizer.encode(one).ids + [self.end]
            return ids, [True] * len(ids)
        parts = render.pieces(one["messages"], one["tools"], one["thinking"])
        ids, learn = [], []
        for (_, mark), e in zip(parts, self.tokenizer.encode_batch([t for t, _ in parts])):
            ids += e.ids
            learn += [mark] * len(e.ids)
        return ids, learn


def marked(learn, doc, ahead, limit):
    """Positions whose token `ahead` places on is in the same document and to be learned, padded to limit, with their
    weights."""
    t = np.nonzero(learn[ahead:] & (doc[ahead:] == doc[:-ahead]))[0][:limit]
    idx, w = np.zeros(limit, np.int64), np.zeros(limit, np.float32)
    idx[: len(t)], w[: len(t)] = t, 1
    return idx, w


def finish(ids, learn, doc, limit, depths=(1, 2)):
    """The arrays of one packed batch; documents are runs of equal doc."""
    bounds = np.nonzero(np.diff(doc))[0] + 1
    cu = np.concatenate([[0], bounds, [len(ids)]]).astype(np.int32)
    lengths = np.diff(cu)
    pos = np.arange(len(ids)) - np.repeat(cu[:-1], lengths)
    return dict(
        ids=ids.astype(np.int64),
        cu=cu,
        pos=pos.astype(np.int32),
        longest=int(lengths.max()),
        marks=[marked(learn, doc, d, limit) for d in depths],
        learn=learn,
        doc=doc,
    )


def pack(documents, T, limit, depths=(1, 2)):
    """Fills one batch from an iterator of (ids, learn); documents start at multiples of 64 and the last one is cut."""
    ids, learn, doc, n = np.zeros(T, np.int32), np.zeros(T, bool), np.zeros(T, np.int32), 0
    at = 0
    for i, l in documents:
        m = min(len(i), T - at)
        ids[at : at + m], learn[at : at + m] = i[:m], l[:m]
        m = min(-(-m // 64) * 64, T - at)
        doc[at : at + m] = n
        at, n = at + m, n + 1
        if at == T:
            break
    doc[at:] = n
    return finish(ids, learn, doc, limit, depths)


def _work(folder, seed, T, limit, depths, long_share, queue):
    import tasks

    world, encoder = tasks.World(json.load(open(os.path.join(folder, "corpus.json"))), seed), Encoder(folder)

    def documents():
        while True:
            yield encoder.document(tasks.training(world, long_share.value))

    while True:
        queue.put(pack(documents(), T, limit, depths))


class Stream:
    """Batches without end, from `workers` processes."""

    def __init__(self, folder, seed, T, limit, workers, long_share, depths=(1, 2)):
        context = multiprocessing.get_context("spawn")
        self.long_share = context.Value("d", long_share)
        self.queue = context.Queue(workers * 2)
        self.processes = [
            context.Process(
                target=_work,
                args=(folder, seed * 1000 + i, T, limit, depths, self.long_share, self.queue),
                daemon=True,
            )
            for i in range(workers)
        ]
        for p in self.processes:
            p.start()

    def next(self):
        return self.queue.get()

    def close(self):
        for p in self.processes:
            p.terminate()


def exam_batches(folder, family, n, seed, T, limit, depths=(1, 2)):
    """Batches of whole items of one family; only the last answer of each is marked. `doc` numbers the items of each
    batch."""
    import tasks

    encoder, corpus = Encoder(folder), json.load(open(os.path.join(folder, "corpus.json")))
    todo = []
    for one in tasks.exam(corpus, family, n, seed):
        ids, learn = encoder.document(one)
        last = len(learn) - 1
        while not learn[last]:
            last -= 1
        first = last
        while learn[first - 1]:
            first -= 1
        todo.append((ids, [first <= i <= last for i in range(len(ids))]))
    if any(len(ids) + 63 > T or sum(learn) > limit for ids, learn in todo):
        raise ValueError(f"an item of {family} does not fit in a batch of {T} tokens")
    while todo:
        batch, size = [], 0
        while (
            todo and size + len(todo[0][0]) + 63 <= T and sum(sum(l) for _, l in batch) + sum(todo[0][1]) <= limit
        ):
            size += -(-len(todo[0][0]) // 64) * 64
            batch.append(todo.pop(0))
        b = pack(iter(batch), T, limit, depths)
        b["items"] = len(batch)
        yield b
