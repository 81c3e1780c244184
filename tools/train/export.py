"""Writes and reads the MLX layout of the models, and the Hugging Face layout of the same weights.

python3 export.py MODEL_DIR HF_DIR      writes MODEL_DIR's dequantised weights as a Hugging Face checkpoint (fp32)
"""

import json
import os
import shutil
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import quant

CENTRED = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "q_norm.weight",
    "k_norm.weight",
    "model.norm.weight",
)


def mlx_path(name):
    return name if name.startswith("mtp.") else "language_model." + name


def mlx_modules(name, path):
    """(module path in the file, how to cut the parameter) of each module that a parameter becomes."""
    if name.endswith("experts.gate_up_proj"):
        stem = path[: -len("experts.gate_up_proj")] + "switch_mlp."
        return [
            (stem + "gate_proj", lambda w: w[:, : w.shape[1] // 2]),
            (stem + "up_proj", lambda w: w[:, w.shape[1] // 2 :]),
        ]
    if name.endswith("experts.down_proj"):
        return [(path[: -len("experts.down_proj")] + "switch_mlp.down_proj", lambda w: w)]
    return [(path.removesuffix(".weight"), lambda w: w)]


def mlx_tensors(params, path_of=mlx_path, centred=CENTRED):
    """(tensors, quantization) of fp32 parameters under their Hugging Face names; path_of gives each its path in the file. Norms whose
    names end as one of `centred` are written with 1 added; those of the MTP head stay zero-centred."""
    out, table = {}, dict(group_size=quant.GROUP, bits=4, mode="affine")
    for name, w in params.items():
        w, bits = w.detach().float().cpu(), quant.bits_of(name, w.shape)
        for path, cut in mlx_modules(name, path_of(name)):
            part = cut(w).contiguous()
            if bits:
                q, s, b = quant.codes(part, bits)
                rows = list(part.shape[:-1])
                out[path + ".weight"] = quant.pack(q, part.shape, bits)
                out[path + ".scales"], out[path + ".biases"] = s.reshape(*rows, -1), b.reshape(*rows, -1)
                if bits != 4:
                    table[path] = dict(group_size=quant.GROUP, bits=bits)
            elif name.endswith("conv1d.weight"):
                out[path + ".weight"] = part.permute(0, 2, 1).contiguous().to(torch.bfloat16)
            elif name.endswith("A_log"):
                out[path] = part
            else:
                tail = ".weight" if name.endswith(".weight") else ""
                shift = 1 if name.endswith(centred) and not name.startswith("mtp.") else 0
                out[path + tail] = (part + shift).to(torch.bfloat16)
    return out, table


def unpack(words, bits):
    rows = words.view(torch.int32).numpy().view("<u1").reshape(words.shape[:-1].numel(), -1)
    import numpy as np

    stream = np.unpackbits(rows, axis=1, bitorder="little").reshape(rows.shape[0], -1, bits)
    return torch.from_numpy((stream * (1 << np.arange(bits))).sum(-1)).float().reshape(*words.shape[:-1], -1)


def values(folder):
    """What the files hold, in fp32, under the names and in the shapes that they have there."""
    with safe_open(f"{folder}/model.safetensors", "pt") as f:
        raw = {k: f.get_tensor(k) for k in f.keys()}
    out = {}
    for key, t in raw.items():
        stem = key.removesuffix(".weight")
        if stem + ".scales" in raw:
            s, b = raw[stem + ".scales"].float(), raw[stem + ".biases"].float()
            bits = t.shape[-1] * 32 // (s.shape[-1] * quant.GROUP)
            q = unpack(t, bits)
            out[key] = (q.reshape(*s.shape, quant.GROUP) * s[..., None] + b[..., None]).reshape(q.shape)
        elif not key.endswith((".scales", ".biases")):
            out[key] = t.float()
    return out


def dequantised(folder):
    """(text_config, the values that the files hold, in fp32 under Hugging Face names)."""
    config, out = json.load(open(f"{folder}/config.json")), {}
    for key, t in values(folder).items():
        name = key.removeprefix("language_model.")
        if name.endswith("conv1d.weight"):
            t = t.permute(0, 2, 1).contiguous()
        elif name.endswith(CENTRED) and not name.startswith("mtp."):
            t = t - 1
        out[name] = t
    for gate in [n for n in out if n.endswith("switch_mlp.gate_proj.weight")]:
        stem = gate[: -len("switch_mlp.gate_proj.weight")]
        out[stem + "experts.gate_up_proj"] = torch.cat(
            [out.pop(gate), out.pop(stem + "switch_mlp.up_proj.weight")], 1
        )
        out[stem + "experts.down_proj"] = out.pop(stem + "switch_mlp.down_proj.weight")
    return config["text_config"], out


def published_config(c, ids, quantization=None):
    """config.json nested as the published checkpoints are."""
    kind = "qwen3_5_moe" if "num_experts" in c else "qwen3_5"
    name = "Qwen3_5Moe" if "num_experts" in c else "Qwen3_5"
    text = dict(
        c,
        model_type=kind + "_text",
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"],
        dtype="bfloat16",
    )
    top = dict(
        architectures=[name + "ForConditionalGeneration"],
        model_type=kind,
        text_config=text,
        tie_word_embeddings=True,
        language_model_only=False,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    if quantization:
        top |= dict(quantization=quantization, quantization_config=quantization)
    return top


def write(c, params, work, out):
    """A complete model folder: weights in MLX layout, configuration, tokenizer and chat template."""
    from tokenizers import Tokenizer

    os.makedirs(out, exist_ok=True)
    tokenizer = Tokenizer.from_file(f"{work}/tokenizer.json")
    ids = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items()}
    tensors, table = mlx_tensors(params)
    save_file(
        {k: tensors[k].contiguous() for k in sorted(tensors)},
        f"{out}/model.safetensors",
        metadata={"format": "mlx"},
    )
    dump = lambda name, value: json.dump(value, open(f"{out}/{name}", "w"), indent=1)
    dump("config.json", published_config(c, ids, table))
    dump(
        "generation_config.json",
        dict(
            bos_token_id=ids["<|endoftext|>"],
            pad_token_id=ids["<|endoftext|>"],
            do_sample=True,
            eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]],
            temperature=0.7,
            top_k=20,
            top_p=0.8,
        ),
    )
    template = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat_template.jinja")).read()
    open(f"{out}/chat_template.jinja", "w").write(template)
    shutil.copy(f"{work}/tokenizer.json", f"{out}/tokenizer.json")
    decoder = {
        str(i): dict(
            content=t.content, lstrip=False, normalized=False, rstrip=False, single_word=False, special=t.special
        )
        for i, t in tokenizer.get_added_tokens_decoder().items()
    }
    dump(
        "tokenizer_config.json",
        dict(
            tokenizer_class="Qwen2Tokenizer",
            add_prefix_space=False,
            added_tokens_decoder=decoder,
            bos_token=None,
            eos_token="<|im_end|>",
            pad_token="<|endoftext|>",
            unk_token=None,
            model_max_length=32768,
            clean_up_tokenization_spaces=False,
            errors="replace",
            split_special_tokens=False,
        ),
    )


def main():
    source, out = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    c, params = dequantised(source)
    config = json.load(open(f"{source}/config.json"))
    for key in ("quantization", "quantization_config"):
        config.pop(key, None)
    json.dump(config, open(f"{out}/config.json", "w"), indent=1)
    rename = lambda n: n.replace("model.", "model.language_model.", 1) if n.startswith("model.") else n
    save_file(
        {rename(k): v.contiguous() for k, v in params.items()},
        f"{out}/model.safetensors",
        metadata={"format": "pt"},
    )
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(f"{source}/{name}", out)


if __name__ == "__main__":
    main()
