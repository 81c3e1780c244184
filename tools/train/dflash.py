"""The DFlash2 drafter: its configuration, its forward pass over anchors of a packed stream, and its checkpoint.

A drafter reads the target's residual streams after the tapped layers, as keys and values of its own layers. From an anchor, the last
token known, whose own streams are not computed yet, it proposes the tokens after it in one pass over a block: the anchor and one mask
token for each proposal. Embedding and output head are the target's. Parameters are a dictionary with the names of a published
checkpoint; all norms are plain (not zero-centred).
"""

import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import export
import model
import quant

EPS = 1e-6


def config(target, mask_token_id):
    """config.json of the drafter of a target with this text configuration."""
    layers, L = 3, target["num_hidden_layers"]
    return dict(
        architectures=["DFlash2DraftModel"],
        model_type="qwen3",
        hidden_size=target["hidden_size"],
        intermediate_size=2 * target["hidden_size"],
        num_hidden_layers=layers,
        num_attention_heads=target["num_attention_heads"],
        num_key_value_heads=target["num_key_value_heads"],
        head_dim=target["head_dim"],
        hidden_act="silu",
        rms_norm_eps=EPS,
        rope_parameters=dict(rope_type="default", rope_theta=target["rope_parameters"]["rope_theta"]),
        max_position_embeddings=target["max_position_embeddings"],
        vocab_size=target["vocab_size"],
        num_target_layers=L,
        layer_types=["sliding_attention"] * layers,
        sliding_window=2048,
        use_sliding_window=True,
        is_causal=False,
        attention_bias=False,
        attention_dropout=0.0,
        tie_word_embeddings=True,
        dtype="bfloat16",
        dflash_config=dict(
            block_size=8,
            mask_token_id=mask_token_id,
            target_layer_ids=list(range(1, L, 3)),
            conv_kernel_size=2,
            conv_group_size=16,
            selector_rank=16,
            selector_top_k=16,
        ),
    )


def shapes(d):
    f, H, D, I = d["dflash_config"], d["hidden_size"], d["head_dim"], d["intermediate_size"]
    q, kv, V, R = d["num_attention_heads"] * D, d["num_key_value_heads"] * D, d["vocab_size"], f["selector_rank"]
    K, G = f["conv_kernel_size"], H // f["conv_group_size"]
    s = {"fc.weight": [H, len(f["target_layer_ids"]) * H], "hidden_norm.weight": [H], "norm.weight": [H]}
    for i in range(d["num_hidden_layers"]):
        layer = {
            "input_layernorm.weight": [H],
            "post_attention_layernorm.weight": [H],
            "self_attn.q_proj.weight": [q, H],
            "self_attn.k_proj.weight": [kv, H],
            "self_attn.v_proj.weight": [kv, H],
            "self_attn.o_proj.weight": [H, q],
            "self_attn.q_norm.weight": [D],
            "self_attn.k_norm.weight": [D],
            "mlp.gate_proj.weight": [I, H],
            "mlp.up_proj.weight": [I, H],
            "mlp.down_proj.weight": [H, I],
        }
        for conv in ("attention_conv", "mlp_conv"):
            layer |= {f"{conv}.base_kernel": [2, K, H], f"{conv}.kernel_projection.weight": [2 * K * G, H]}
        s |= {f"layers.{i}.{k}": v for k, v in layer.items()}
    return s | {
        "candidate_selector.predecessor_codebook": [V, R],
        "candidate_selector.successor_codebook": [V, R],
        "candidate_selector.hidden_projection.weight": [R, H],
    }


def initial(d, seed):
    """Sublayers start by adding nothing, the convolutions by passing each row on, the selector by changing nothing."""
    gen, out = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes(d).items():
        if "norm" in name:
            w = torch.ones(shape)
        elif name.endswith("base_kernel"):
            w = torch.zeros(shape)
            w[:, 0] = 1
        elif name.endswith(("o_proj.weight", "down_proj.weight", "kernel_projection.weight", "successor_codebook")):
            w = torch.zeros(shape)
        elif name.endswith("predecessor_codebook"):
            w = torch.randn(shape, generator=gen)
        else:
            w = torch.randn(shape, generator=gen) / shape[-1] ** 0.5
        out[name] = w
    return out


def rms(x, w):
    x32 = x.float()
    return (x32 * torch.rsqrt((x32 * x32).mean(-1, keepdim=True) + EPS) * w.float()).to(x.dtype)


def rope(d, x, pos):
    return model.rope(x, pos, d["head_dim"], d["rope_parameters"]["rope_theta"])


def context(d, P, streams, pos):
    """Keys and values of each layer for every token of a stream; streams: its residual streams at the taps, [T, H] each."""
    c, out = rms(torch.cat(streams, -1) @ P["fc.weight"].T, P["hidden_norm.weight"]), []
    for i in range(d["num_hidden_layers"]):
        w = lambda n: P[f"layers.{i}.self_attn.{n}.weight"]
        heads = lambda y: y.unflatten(-1, (-1, d["head_dim"]))
        out.append((rope(d, rms(heads(c @ w("k_proj").T), w("k_norm")), pos), heads(c @ w("v_proj").T)))
    return out


def convolve(x, base, dyn):
    """x [A, B, H], base [taps, H], dyn [A, B, taps, groups]: each row mixed with those before it in its block."""
    B, out = x.shape[1], 0
    for t in range(base.shape[0]):
        k = base[t] + dyn[:, :, t].repeat_interleave(x.shape[-1] // dyn.shape[-1], -1)
        out = out + k * F.pad(x, (0, 0, t, 0))[:, :B]
    return out


def kernels(y, base, projection):
    """The coefficients of both sides of a sublayer that has the input y."""
    return (y @ projection.T).unflatten(-1, (2, base.shape[1], -1)).unbind(2)


class Anchors:
    """Where blocks start: stream indices `at`, in rising order, and the first index of the document of each."""

    def __init__(self, at, first, pos, T, device, tile=64):
        self.at, self.first = torch.as_tensor(at).to(device), torch.as_tensor(first).to(device)
        self.pos = torch.as_tensor(pos).to(device)
        self.tiles = []
        for s in range(0, len(at), tile):
            e = min(len(at), s + tile)
            self.tiles.append((s, e, int(min(first[s:e])), int(at[e - 1]), int(at[s])))
        self.T = T


def attend(d, q, k, v, K, V, anchors):
    """Rows of a block see all rows of it and the tokens before its anchor that the window still holds. q, k, v [A, B, heads, D];
    K, V [T, heads, D]. Anchors are taken some at a time with the slice of the stream that they see together."""
    B, W, group, out = q.shape[1], d["sliding_window"], q.shape[2] // k.shape[2], []
    for s, e, first, last, least in anchors.tiles:
        lo, hi = max(first, least - W + 1) // 64 * 64, min(anchors.T, -(-last // 64) * 64)
        j = torch.arange(lo, hi, device=q.device)
        at, start = anchors.at[s:e, None, None], anchors.first[s:e, None, None]
        oldest = at + torch.arange(B, device=q.device)[:, None] - W + 1
        seen = (j < at) & (j >= start) & (j >= oldest)
        own = torch.eye(e - s, dtype=torch.bool, device=q.device).repeat_interleave(B, 0).repeat_interleave(B, 1)
        mask = torch.cat([seen.flatten(0, 1), own], 1)
        heads = lambda x: x.transpose(0, 1)[None]
        rows = lambda X, x: heads(torch.cat([X[lo:hi], x[s:e].flatten(0, 1)]).repeat_interleave(group, 1))
        o = F.scaled_dot_product_attention(heads(q[s:e].flatten(0, 1)), rows(K, k), rows(V, v), attn_mask=mask)
        out.append(o[0].transpose(0, 1).unflatten(0, (-1, B)))
    return torch.cat(out)


def block(d, P, embedding, tokens, anchors, ctx):
    """Normed output of the rows after each anchor, [A, B - 1, H]; tokens [A] are the anchors', ctx is what context() gave."""
    B = d["dflash_config"]["block_size"]
    ids = torch.full((len(tokens), B), d["dflash_config"]["mask_token_id"], device=tokens.device)
    ids[:, 0] = tokens
    pos = anchors.pos[:, None] + torch.arange(B, device=tokens.device)
    heads = lambda y: y.unflatten(-1, (-1, d["head_dim"]))
    turn = lambda y: rope(d, y.flatten(0, 1), pos.flatten()).unflatten(0, pos.shape)
    u = embedding[ids]
    for i, (K, V) in enumerate(ctx):
        w = lambda n: P[f"layers.{i}.{n}"]
        base = w("attention_conv.base_kernel")
        y = rms(u, w("input_layernorm.weight"))
        before, after = kernels(y, base, w("attention_conv.kernel_projection.weight"))
        y = convolve(y, base[0], before)
        q = turn(rms(heads(y @ w("self_attn.q_proj.weight").T), w("self_attn.q_norm.weight")))
        k = turn(rms(heads(y @ w("self_attn.k_proj.weight").T), w("self_attn.k_norm.weight")))
        v = heads(y @ w("self_attn.v_proj.weight").T)
        z = attend(d, q, k, v, K, V, anchors).flatten(2) @ w("self_attn.o_proj.weight").T
        u = u + convolve(z, base[1], after)
        base = w("mlp_conv.base_kernel")
        y = rms(u, w("post_attention_layernorm.weight"))
        before, after = kernels(y, base, w("mlp_conv.kernel_projection.weight"))
        y = convolve(y, base[0], before)
        z = model.swiglu(y, *(w(f"mlp.{n}_proj.weight") for n in ("gate", "up", "down")))
        u = u + convolve(z, base[1], after)
    return rms(u, P["norm.weight"])[:, 1:]


def follow(P, hid, previous):
    """What the selector adds to the logits of rows hid [..., H] if the token before is `previous` [...]: [..., V]."""
    s = "candidate_selector."
    h = hid @ P[s + "hidden_projection.weight"].T
    return (P[s + "predecessor_codebook"][previous] * h) @ P[s + "successor_codebook"].T


def walk(d, P, embedding, tokens, hid):
    """The proposals, [A, B - 1]: in each row the best of the likeliest tokens, given the one chosen in the row before."""
    value, ids = (hid @ embedding.T).float().topk(d["dflash_config"]["selector_top_k"], -1)
    chosen, previous = [], tokens
    for i in range(hid.shape[1]):
        score = value[:, i] + follow(P, hid[:, i], previous).float().gather(-1, ids[:, i])
        previous = ids[:, i].gather(-1, score.argmax(-1, keepdim=True))[:, 0]
        chosen.append(previous)
    return torch.stack(chosen, 1)


def targets(choice, ids, at, inside):
    """(what the rows of each block should propose, which of them can be judged), both [A, B - 1]. `choice` [T] is the target's likeliest
    token after each one of the text, `inside` marks the rows whose tokens lie in the answer. Past a choice that is not the text's own
    token nothing is judged: the choices there are for another text."""
    ahead = at[:, None] + torch.arange(1, inside.shape[1] + 1, device=at.device)
    labels = choice[ahead - 1]
    same = (labels == ids[ahead]).long()
    follows = torch.cat([torch.ones_like(same[:, :1]), same[:, :-1]], 1).cumprod(1)
    return labels, inside & (follows > 0)


def kept(proposed, labels, judged):
    """How many proposals of each block the target keeps."""
    return ((proposed == labels) & judged).long().cumprod(1).sum(1)


def write(d, params, folder):
    """The drafter's folder, its matrices in MLX layout; the codebooks and convolutions' bases stay bf16."""
    os.makedirs(folder, exist_ok=True)
    tensors, table = export.mlx_tensors(params, lambda name: name.removesuffix(".weight"), centred=())
    save_file(
        {k: tensors[k].contiguous() for k in sorted(tensors)},
        f"{folder}/model.safetensors",
        metadata={"format": "mlx"},
    )
    json.dump(
        dict(d, quantization=table, quantization_config=table), open(f"{folder}/config.json", "w"), indent=1
    )


def read(folder):
    """(configuration, the values that the files hold, in fp32)"""
    return json.load(open(f"{folder}/config.json")), export.values(folder)
