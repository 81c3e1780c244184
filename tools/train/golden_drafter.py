"""What a drafter makes of made-up streams of its target, by the letter of its definition in double precision: a block's final rows and
drafts, and some of the keys and values that it sees.

  python3 golden_drafter.py MODEL_DIR OUT.safetensors

Each case has a context of n rows and a window of w positions. The streams are a hash of position, tap and column, which the test
makes again (tests/model/test_drafter.c).
"""

import json
import sys

import numpy as np
import torch
from safetensors.numpy import save_file

import check
import dflash
import export

CASES = ((20, 2048), (530, 100))
LAST = 1234  # the anchor


def streams(n, taps, H):
    i = np.arange(n * taps * H, dtype=np.uint64)
    x = (i * 2654435761) % 2**32
    x ^= x >> 15
    x = (x * 2246822519) % 2**32
    x ^= x >> 13
    x = (x >> 8).astype(np.float64) / 2**23 - 1
    return list(torch.from_numpy(x).view(n, taps, H).unbind(1))


@torch.no_grad()
def main():
    folder, out = sys.argv[1:3]
    torch.set_default_dtype(torch.float64)
    _, T = export.dequantised(folder)
    d, P = dflash.read(folder + "-DFlash2")
    E = T["model.embed_tokens.weight"].double()
    P = {k: v.double() for k, v in P.items()}
    H, taps, tensors = d["hidden_size"], len(d["dflash_config"]["target_layer_ids"]), {}
    for n, window in CASES:
        s, cut = streams(n, taps, H), dict(d, sliding_window=window)
        hid, drafts = check.one_block(cut, P, E, s, (n, LAST))
        keys = dflash.context(cut, P, s, torch.arange(n))
        name = f"{n}_{window}_"
        tensors[name + "hidden"] = hid.float().numpy()
        tensors[name + "drafts"] = np.array(drafts, np.int32)
        tensors[name + "candidates"] = (hid @ E.T).topk(d["dflash_config"]["selector_top_k"], -1)[1].numpy().astype(np.int32)
        for i in (0, d["num_hidden_layers"] - 1):
            for kind, x in zip("kv", keys[i]):
                tensors[f"{name}{kind}{i}"] = x[-1].float().numpy()
        two = (hid @ E.T).topk(d["dflash_config"]["selector_top_k"] + 1, -1)[0]
        print(name, "drafts", drafts, "least gap behind the candidates", float((two[:, -2] - two[:, -1]).min()))
    save_file(tensors, out, metadata={"format": "np"})
    print(json.dumps({k: list(v.shape) for k, v in tensors.items()}))


if __name__ == "__main__":
    main()
