"""Golden outputs of checkpoints that tools/make_golden.py made, computed by transformers in double precision.

  python3 tools/golden_reference.py FOLDER...

Rewrites golden.safetensors (of which it keeps the ids) and golden.json in each folder; weights and config.json are only
read. Every value is what the files hold, dequantised, carried through the forward pass in float64, and then rounded to a
multiple of 2^-17: an error of 3.8e-6 at most, far below the gates, and a third of the bytes of unrounded values.
Needs torch, transformers (5.24 was used) and safetensors.
"""

import contextlib
import glob
import json
import os
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

LENGTHS = (1, 2, 5, 63, 64, 65, 130, 300)
GREEDY_LENGTHS = (5, 65, 300)
N_GREEDY = 48
UNIT = 2.0**-17
NARROW = (torch.float32, torch.bfloat16, torch.float16)


class OnlyDoubles(TorchDispatchMode):
    """Refuses every operation that makes a tensor of less than double precision."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor) and t.dtype in NARROW:
                raise TypeError(f"{function} gave {t.dtype}")
        return out


@contextlib.contextmanager
def double_precision():
    """transformers asks for float32 by name where it wants precision; here those names mean float64."""
    kept = torch.float32, torch.float, torch.Tensor.float
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        with torch.no_grad(), OnlyDoubles():
            yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept
        torch.set_default_dtype(torch.float32)


# ---- what the files hold ----


def unpack_codes(words, bits):
    """[..., n * bits / 32] words to [..., n] codes: a row is a string of bits, the lowest first."""
    data = words.contiguous().view(torch.uint8).numpy()
    strings = np.unpackbits(data, axis=-1, bitorder="little")
    strings = strings.reshape(*strings.shape[:-1], -1, bits).astype(np.float64)
    return torch.from_numpy(strings @ (2.0 ** np.arange(bits)))


def plain_tensors(files, quant):
    """The files' tensors in float64, with the names of the files, dequantised."""
    out = {}
    for name, t in files.items():
        path = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if path + ".scales" not in files:
            out[name] = t.double()
            continue
        how = quant.get(path, quant)
        codes = unpack_codes(t, how["bits"])
        grouped = codes.reshape(*codes.shape[:-1], -1, how["group_size"])
        scales, biases = files[path + ".scales"].double(), files[path + ".biases"].double()
        out[name] = (grouped * scales[..., None] + biases[..., None]).reshape(codes.shape)
    return out


def is_shifted_norm(name):
    return "norm" in name and not name.endswith("linear_attn.norm.weight")


def parameter(tensors, name, is_mlx):
    """The parameter of transformers with this name."""
    if not is_mlx:
        return tensors[name if name in tensors else name.replace("model.", "model.language_model.", 1)]
    path = "language_model." + name
    stem = path.rpartition("experts.")[0] + "switch_mlp."
    if name.endswith("experts.gate_up_proj"):
        return torch.cat([tensors[stem + "gate_proj.weight"], tensors[stem + "up_proj.weight"]], 1)
    if name.endswith("experts.down_proj"):
        return tensors[stem + "down_proj.weight"]
    if name.endswith("conv1d.weight"):
        return tensors[path].permute(0, 2, 1)
    return tensors[path] - 1 if is_shifted_norm(name) else tensors[path]


def new_model(config):
    config = {k: v for k, v in config.items() if not k.startswith("mtp_") and k != "model_type"}
    if "num_experts" in config:
        made = Qwen3_5MoeTextConfig(**config, attn_implementation="eager", experts_implementation="eager")
        return Qwen3_5MoeForCausalLM(made).eval()
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**config, attn_implementation="eager")).eval()


class Checkpoint:
    """A folder's model and, where it has one, its MTP head; built and called inside double_precision()."""

    def __init__(self, folder, files):
        with open(f"{folder}/config.json", encoding="utf-8") as f:
            top = json.load(f)
        config, quant = top["text_config"], top.get("quantization")
        tensors = plain_tensors(files, quant)
        self.model = new_model(config)
        for name, p in self.model.named_parameters():
            p.copy_(parameter(tensors, name, quant is not None))
        self.mtp = {n: t for n, t in tensors.items() if n.startswith("mtp.")}
        if self.mtp:
            self.head = new_model({**config, "num_hidden_layers": 1, "layer_types": ["full_attention"]})
            for name, p in self.head.model.named_parameters():
                if not name.startswith("embed_tokens"):
                    p.copy_(self.mtp["mtp." + name])

    def mtp_logits(self, ids):
        """Teacher-forced: row t takes the post-norm hidden of t and the embedding of t+1, and predicts t+2."""

        def norm(x, name):
            scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
            return x * scale * (1 + self.mtp[f"mtp.pre_fc_norm_{name}.weight"])

        hidden = self.model.model(input_ids=ids).last_hidden_state[:, :-1]
        embedded = self.model.model.embed_tokens(ids[:, 1:])
        both = torch.cat([norm(embedded, "embedding"), norm(hidden, "hidden")], -1)
        out = self.head.model(inputs_embeds=both @ self.mtp["mtp.fc.weight"].T).last_hidden_state
        return self.model.lm_head(out)

    def greedy(self, ids):
        reply, gaps = [], []
        out = self.model(input_ids=ids, use_cache=True)
        for _ in range(N_GREEDY):
            two = out.logits[0, -1].topk(2)
            reply.append(int(two.indices[0]))
            gaps.append(float(two.values[0] - two.values[1]))
            out = self.model(input_ids=torch.tensor([reply[-1:]]), past_key_values=out.past_key_values, use_cache=True)
        return dict(ids=reply, min_top2_gap=min(gaps))


# ---- the golden outputs ----


def rounded(x):
    return torch.from_numpy((np.round(x.numpy() / UNIT) * UNIT).astype(np.float32))


def outputs(checkpoint, ids):
    """Of prompts of the given ids, by length: the tensors of golden.safetensors in float64, and the greedy replies."""
    doubles, greedy = {}, {}
    for n, row in ids.items():
        prompt = row.long()[None]
        logits = checkpoint.model(input_ids=prompt).logits[0]
        doubles[f"logits.{n}"] = logits if n <= 65 else logits[-4:]
        if checkpoint.mtp and n >= 5:
            doubles[f"mtp_logits.{n}"] = checkpoint.mtp_logits(prompt)[0][-4:]
        if n in GREEDY_LENGTHS:
            greedy[str(n)] = checkpoint.greedy(prompt)
    streams = checkpoint.model(input_ids=ids[65].long()[None], output_hidden_states=True).hidden_states
    for i, stream in enumerate(streams[:-1]):
        doubles[f"hidden.{i}.65"] = stream[0]
    return doubles, greedy


def write(folder, ids):
    """ids: {length: int32 tensor}"""
    files = {}
    for path in glob.glob(f"{folder}/model*.safetensors"):
        files.update(load_file(path))
    with double_precision():
        doubles, greedy = outputs(Checkpoint(folder, files), ids)
    gold = {f"ids.{n}": row for n, row in ids.items()}
    gold.update({name: rounded(t).contiguous() for name, t in doubles.items()})
    save_file(gold, f"{folder}/golden.safetensors")
    how = f"transformers {transformers.__version__} in float64, values rounded to multiples of 2^-17"
    info = dict(reference=how, lengths=list(ids), greedy=greedy)
    with open(f"{folder}/golden.json", "w", encoding="utf-8") as f:
        json.dump(info, f, indent=1)
    gaps = {n: round(reply["min_top2_gap"], 4) for n, reply in greedy.items()}
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    print(folder, f"{size / 2**20:.2f} MiB", "smallest greedy gap", gaps, flush=True)


def main():
    for folder in sys.argv[1:]:
        old = load_file(f"{folder}/golden.safetensors")
        write(folder, {n: old[f"ids.{n}"].clone() for n in LENGTHS})


if __name__ == "__main__":
    main()
