"""Writes small random Qwen 3.5 checkpoints with golden outputs that transformers computes in float64.

  python3 tools/make_golden.py OUTDIR SEED

Needs torch, transformers and safetensors. tests/fixtures/golden/*.tar.xz hold what it wrote;
tools/unpack_golden.sh unpacks them. Each case is a folder: config.json, model*.safetensors (Hugging Face or MLX
layout), golden.safetensors and golden.json.
Weights are made so that a missing +1, swapped a/b, a wrong head mapping, or a lost state cannot pass.
The reference (tools/golden_reference.py) runs on exactly the values that the files hold.
"""

import json, math, os, sys
import numpy as np, torch
import golden_reference
from safetensors.torch import save_file
from transformers import Qwen3_5TextConfig, Qwen3_5ForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM

torch.set_grad_enabled(False)
OUT, SEED = sys.argv[1], int(sys.argv[2])
bf = lambda t: t.to(torch.bfloat16).float()


def base(**kw):
    d = dict(
        vocab_size=512,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        hidden_act="silu",
        rms_norm_eps=1e-6,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        rope_parameters=dict(
            rope_type="default",
            rope_theta=10000000.0,
            partial_rotary_factor=0.25,
            mrope_section=[2, 1, 1],
            mrope_interleaved=True,
        ),
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    d.update(kw)
    return d


real = dict(
    hidden_size=256,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=256,
    linear_num_key_heads=2,
    linear_num_value_heads=6,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    rope_parameters=dict(
        rope_type="default",
        rope_theta=10000000.0,
        partial_rotary_factor=0.25,
        mrope_section=[11, 11, 10],
        mrope_interleaved=True,
    ),
)


def build(kind, cfg, gen):
    if kind == "dense":
        m = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**cfg))
    else:
        m = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**cfg))
    m = m.float().eval()
    for n, p in m.named_parameters():
        r = lambda: torch.randn(p.shape, generator=gen)
        if n.endswith("linear_attn.norm.weight"):
            v = 1 + 0.2 * r()
        elif "norm" in n:
            v = 0.2 * r()
        elif n.endswith("dt_bias"):
            v = r()
        elif n.endswith("A_log"):
            v = torch.log(torch.rand(p.shape, generator=gen) * 16 + 0.01)
        elif "conv1d" in n:
            v = 0.5 * r()
        elif "embed_tokens" in n:
            v = r()
        else:
            v = r() / math.sqrt(p.shape[-1])
        p.copy_(bf(v))
    return m


# ---- MLX affine quantisation, as section 4.1 of the model spec states it
def quantise(w, bits, group):
    shp = w.shape
    g = w.reshape(-1, group).double()
    lo, hi = g.min(1, keepdim=True).values, g.max(1, keepdim=True).values
    n = 2**bits - 1
    neg = lo.abs() > hi.abs()
    scale = ((hi - lo) / n).clamp_min(1e-7)
    scale = torch.where(neg, scale, -scale)
    edge = torch.where(neg, lo, hi)
    q0 = torch.round(edge / scale)
    nz = q0 != 0
    scale = torch.where(nz, edge / torch.where(nz, q0, torch.ones_like(q0)), scale)
    bias = torch.where(nz, edge, torch.zeros_like(edge))
    q = torch.round((g - bias) / scale).clamp(0, n)
    s, b = scale.to(torch.bfloat16), bias.to(torch.bfloat16)
    deq = (q.float() * s.float() + b.float()).reshape(shp)
    codes = q.reshape(*shp).to(torch.int64).numpy().astype(np.uint64)
    rows = codes.reshape(-1, shp[-1])
    bitsarr = ((rows[:, :, None] >> np.arange(bits, dtype=np.uint64)) & 1).astype(np.uint8).reshape(rows.shape[0], -1)
    packed = np.packbits(bitsarr, axis=1, bitorder="little").view("<u4").reshape(*shp[:-1], shp[-1] * bits // 32)
    return (
        torch.from_numpy(packed.astype(np.uint32).view(np.int32).copy()).view(torch.uint32),
        s.reshape(*shp[:-1], -1),
        b.reshape(*shp[:-1], -1),
        deq,
    )


def to_mlx(m, kind, default, override):
    """returns tensors in MLX layout and sets the model's own weights to what a reader must see"""
    out, quant = {}, dict(group_size=default[1], bits=default[0], mode="affine")
    params = dict(m.named_parameters())

    def put(path, p, w):
        bits, group = override(path) or default
        if bits is None or w.shape[-1] % group:
            out[path + ".weight"] = w.to(torch.bfloat16)
            return w
        if (bits, group) != default:
            quant[path] = dict(bits=bits, group_size=group)
        q, s, b, deq = quantise(w, bits, group)
        out[path + ".weight"], out[path + ".scales"], out[path + ".biases"] = q, s, b
        return deq

    for n, p in params.items():
        path = "language_model." + n
        if n.endswith("conv1d.weight"):
            out[path] = p.permute(0, 2, 1).contiguous().to(torch.bfloat16)
        elif n.endswith(("A_log",)):
            out[path] = p.clone()
        elif n.endswith("dt_bias"):
            out[path] = p.to(torch.bfloat16)
        elif n.endswith("linear_attn.norm.weight"):
            out[path] = p.to(torch.bfloat16)
        elif "norm" in n:
            w = bf(1 + p)
            out[path] = w.to(torch.bfloat16)
            p.copy_(w - 1)
        elif n.endswith("experts.gate_up_proj"):
            half = p.shape[1] // 2
            stem = path[: -len("experts.gate_up_proj")]
            g = put(stem + "switch_mlp.gate_proj", p, p[:, :half].contiguous())
            u = put(stem + "switch_mlp.up_proj", p, p[:, half:].contiguous())
            p.copy_(torch.cat([g, u], 1))
        elif n.endswith("experts.down_proj"):
            p.copy_(put(path[: -len("experts.down_proj")] + "switch_mlp.down_proj", p, p.contiguous()))
        else:
            p.copy_(put(path[: -len(".weight")], p, p.contiguous()))
    return out, quant


def to_hf(m, multimodal):
    out = {}
    for n, p in m.named_parameters():
        name = n.replace("model.", "model.language_model.", 1) if multimodal and n.startswith("model.") else n
        out[name] = p.to(torch.bfloat16) if not n.endswith("A_log") else p.clone()
    return out


def mtp_parts(kind, cfg, m, gen):
    c = dict(cfg)
    c.update(num_hidden_layers=1, layer_types=["full_attention"])
    one = build(kind, c, gen)
    H = cfg["hidden_size"]
    r = lambda *s: torch.randn(*s, generator=gen)
    fc, ne, nh = bf(r(H, 2 * H) / math.sqrt(2 * H)), bf(0.2 * r(H)), bf(0.2 * r(H))
    return one, fc, ne, nh


def case(name, kind, cfg, layout, gen, default=(4, 32), override=lambda p: None, mtp=True, multimodal=True, shards=1):
    d = os.path.join(OUT, name)
    os.makedirs(d, exist_ok=True)
    m = build(kind, cfg, gen)
    parts = mtp_parts(kind, cfg, m, gen) if mtp else None
    conf = dict(cfg)
    conf["model_type"] = "qwen3_5_text" if kind == "dense" else "qwen3_5_moe_text"
    conf["mtp_num_hidden_layers"] = 1 if mtp else 0
    arch = "Qwen3_5ForConditionalGeneration" if kind == "dense" else "Qwen3_5MoeForConditionalGeneration"
    top = dict(
        architectures=[arch],
        model_type="qwen3_5" if kind == "dense" else "qwen3_5_moe",
        text_config=conf,
        tie_word_embeddings=cfg["tie_word_embeddings"],
    )
    if layout == "hf":
        t = to_hf(m, multimodal)
    else:
        t, q = to_mlx(m, kind, default, override)
        top["quantization"] = q
        top["quantization_config"] = q
    if mtp:
        one, fc, ne, nh = parts
        pre = {}
        for n, p in one.named_parameters():
            if n.startswith("model.layers.0."):
                pre["mtp." + n[len("model.") :]] = p.to(torch.bfloat16)
            elif n == "model.norm.weight":
                pre["mtp.norm.weight"] = p.to(torch.bfloat16)
        pre["mtp.fc.weight"], pre["mtp.pre_fc_norm_embedding.weight"], pre["mtp.pre_fc_norm_hidden.weight"] = (
            fc.to(torch.bfloat16),
            ne.to(torch.bfloat16),
            nh.to(torch.bfloat16),
        )
        t.update(pre)  # raw HF form (norms zero-centred), bf16, in every layout
    json.dump(top, open(d + "/config.json", "w"), indent=1)
    meta = {"format": "mlx" if layout == "mlx" else "pt"}
    keys = sorted(t)
    if shards == 1:
        save_file({k: t[k].contiguous() for k in keys}, d + "/model.safetensors", metadata=meta)
    else:
        wm = {}
        for i in range(shards):
            f = f"model-{i+1:05d}-of-{shards:05d}.safetensors"
            part = keys[i::shards]
            save_file({k: t[k].contiguous() for k in part}, f"{d}/{f}", metadata=meta)
            wm.update({k: f for k in part})
        json.dump({"metadata": {}, "weight_map": wm}, open(d + "/model.safetensors.index.json", "w"), indent=1)
    golden_reference.write(
        d, {n: torch.randint(3, cfg["vocab_size"], (n,), generator=gen).to(torch.int32) for n in golden_reference.LENGTHS}
    )


g = torch.Generator().manual_seed(SEED)
moe = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64)
case("dense-hf", "dense", base(intermediate_size=128), "hf", g)
case(
    "dense-hf-tied-text",
    "dense",
    base(intermediate_size=128, tie_word_embeddings=True, layer_types=["linear_attention", "full_attention"] * 2),
    "hf",
    g,
    multimodal=False,
)
case("dense-mlx4-g32", "dense", base(intermediate_size=128), "mlx", g, (4, 32))


def mixed(p):
    if "layers.0." in p:
        return (3, 64)
    if "layers.1." in p:
        return (6, 64)
    if "layers.2." in p:
        return (5, 32)
    if "down_proj" in p:
        return (8, 32)
    if "lm_head" in p:
        return (2, 32)
    return None


case("dense-mlx-mixed", "dense", base(intermediate_size=128), "mlx", g, (4, 64), mixed, shards=3)
case("moe-hf", "moe", base(**moe), "hf", g)
gate8 = lambda p: (8, 64) if p.endswith(("mlp.gate", "shared_expert_gate")) else None
case("moe-mlx4-g64", "moe", base(**moe), "mlx", g, (4, 64), gate8, shards=2)
case("dense-realdims-mlx4", "dense", base(**{**real, "intermediate_size": 512}), "mlx", g, (4, 64))
case(
    "moe-realdims-mlx4",
    "moe",
    base(
        **{
            **real,
            **dict(
                num_experts=16, num_experts_per_tok=4, moe_intermediate_size=128, shared_expert_intermediate_size=128
            ),
        }
    ),
    "mlx",
    g,
    (4, 64),
    gate8,
)
