"""The Qwen 3.5 text model with its MTP head, over packed sequences, for training.

One stream of T tokens holds many documents; `cu` are their bounds and `pos` the position of each token in its own
document, and nothing crosses a bound. Parameters are a dictionary with the names of a published text-only checkpoint,
`mtp.*` included. check.py holds this forward pass equal to transformers' Qwen3_5ForCausalLM and Qwen3_5MoeForCausalLM.

On a GPU the delta rule is flash-linear-attention's kernel and attention is PyTorch's own flash kernel; on a CPU both
are plain.
"""

import math

import torch
import torch.nn.functional as F


def one_configuration():
    """Trying every tile size of every kernel takes minutes at each start; a middling one of each is within a few per
    cent."""
    from triton.runtime import autotuner

    plain = autotuner.Autotuner.__init__

    def better(config):
        return (
            config.num_warps == 4,
            config.num_stages == 3,
            config.num_stages == 2,
            -abs(config.kwargs.get("BT", 32) - 32),
            config.kwargs.get("BK", 0) == 64,
            config.kwargs.get("BV", 0) == 32,
        )

    def init(self, fn, arg_names, configs, *args, **kwargs):
        plain(self, fn, arg_names, [max(configs, key=better)] if configs else configs, *args, **kwargs)

    autotuner.Autotuner.__init__ = init


def chunk_backward(q, k, v, do, h, dh, w=None, g=None, dv=None, scale=None, **_):
    """One step of the delta rule's gradient, inside chunks of 64 that all are full, in place of a Triton kernel that
    some versions of Triton miscompile on Hopper. g is the running sum of the log2 decays in each chunk; h and dh are
    the states at chunk starts and the gradients of those at chunk ends."""
    n, hv = q.shape[1] // 64, v.shape[2]
    cut = lambda t: t[0].unflatten(0, (n, 64)).transpose(1, 2)
    whole = lambda t: t.transpose(1, 2).flatten(0, 1)[None]
    r = hv // q.shape[2]
    q, k, v, do, dv, G = (
        cut(q).repeat_interleave(r, 1),
        cut(k).repeat_interleave(r, 1),
        cut(v),
        cut(do),
        cut(dv),
        cut(g),
    )
    h, dh = h[0], dh[0]
    last, kind = G[..., -1:], q.dtype
    dw = -(dv.to(kind) @ h.to(kind).mT)
    end = (h.float() * dh.float()).sum((-1, -2)) * torch.exp2(last[..., 0])
    dq = (do @ h.to(do.dtype).mT).float() * torch.exp2(G)[..., None] * scale
    dk = (v @ dh.to(v.dtype).mT).float() * torch.exp2(last - G)[..., None]
    end = end + (dk * k).sum((-1, -2))
    decay = torch.exp2((G[..., :, None] - G[..., None, :]).clamp(max=0)).tril()
    ds = ((do @ v.mT).float() * decay * scale).to(kind)
    dq, dk = dq + (ds @ k).float(), dk + (ds.mT @ q).float()
    dg = (dq * q).sum(-1) - (dk * k).sum(-1)
    dg = torch.cat([dg[..., :-1], dg[..., -1:] + end[..., None]], -1)
    group = lambda t: whole(t.unflatten(1, (-1, r)).sum(2)).to(kind)
    return group(dq), group(dk), whole(dw), whole(dg).contiguous()


try:
    if torch.cuda.is_available():
        one_configuration()
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    import fla.ops.gated_delta_rule.chunk as fla_chunk

    fla_chunk.chunk_bwd_dqkwg = torch.compile(chunk_backward, dynamic=False)
except ImportError:
    chunk_gated_delta_rule = None

EPS = 1e-6


def text_config(**kw):
    c = dict(
        vocab_size=4096,
        hidden_size=256,
        num_hidden_layers=12,
        intermediate_size=768,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        hidden_act="silu",
        rms_norm_eps=EPS,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        attn_output_gate=True,
        attention_bias=False,
        attention_dropout=0.0,
        full_attention_interval=4,
        mamba_ssm_dtype="float32",
        rope_parameters=dict(
            rope_type="default",
            rope_theta=10000000,
            partial_rotary_factor=0.25,
            mrope_section=[6, 5, 5],
            mrope_interleaved=True,
        ),
        partial_rotary_factor=0.25,
        mtp_num_hidden_layers=1,
        mtp_use_dedicated_embeddings=False,
    )
    c.update(kw)
    c["layer_types"] = [
        "full_attention" if i % 4 == 3 else "linear_attention" for i in range(c["num_hidden_layers"])
    ]
    return c


CONFIGS = {
    "fold-s": text_config(),
    "fold-moe": {
        k: v
        for k, v in text_config(
            num_hidden_layers=8,
            num_experts=16,
            num_experts_per_tok=4,
            moe_intermediate_size=128,
            shared_expert_intermediate_size=256,
            router_aux_loss_coef=0.001,
        ).items()
        if k != "intermediate_size"
    },
}


def is_moe(c):
    return "num_experts" in c


def layer_shapes(c, prefix, full):
    H, D = c["hidden_size"], c["head_dim"]
    kd, vd = (
        c["linear_num_key_heads"] * c["linear_key_head_dim"],
        c["linear_num_value_heads"] * c["linear_value_head_dim"],
    )
    hv = c["linear_num_value_heads"]
    s = {"input_layernorm.weight": [H], "post_attention_layernorm.weight": [H]}
    if full:
        q, kv = c["num_attention_heads"] * D, c["num_key_value_heads"] * D
        s |= {
            "self_attn.q_proj.weight": [2 * q, H],
            "self_attn.k_proj.weight": [kv, H],
            "self_attn.v_proj.weight": [kv, H],
            "self_attn.o_proj.weight": [H, q],
            "self_attn.q_norm.weight": [D],
            "self_attn.k_norm.weight": [D],
        }
    else:
        s |= {
            "linear_attn.in_proj_qkv.weight": [2 * kd + vd, H],
            "linear_attn.in_proj_z.weight": [vd, H],
            "linear_attn.in_proj_b.weight": [hv, H],
            "linear_attn.in_proj_a.weight": [hv, H],
            "linear_attn.conv1d.weight": [2 * kd + vd, 1, c["linear_conv_kernel_dim"]],
            "linear_attn.A_log": [hv],
            "linear_attn.dt_bias": [hv],
            "linear_attn.norm.weight": [c["linear_value_head_dim"]],
            "linear_attn.out_proj.weight": [H, vd],
        }
    if is_moe(c):
        E, I, S = c["num_experts"], c["moe_intermediate_size"], c["shared_expert_intermediate_size"]
        s |= {
            "mlp.gate.weight": [E, H],
            "mlp.experts.gate_up_proj": [E, 2 * I, H],
            "mlp.experts.down_proj": [E, H, I],
            "mlp.shared_expert.gate_proj.weight": [S, H],
            "mlp.shared_expert.up_proj.weight": [S, H],
            "mlp.shared_expert.down_proj.weight": [H, S],
            "mlp.shared_expert_gate.weight": [1, H],
        }
    else:
        I = c["intermediate_size"]
        s |= {"mlp.gate_proj.weight": [I, H], "mlp.up_proj.weight": [I, H], "mlp.down_proj.weight": [H, I]}
    return {prefix + k: v for k, v in s.items()}


def shapes(c):
    """Name and shape of every parameter of the model and its MTP head."""
    H = c["hidden_size"]
    s = {"model.embed_tokens.weight": [c["vocab_size"], H]}
    for i, kind in enumerate(c["layer_types"]):
        s |= layer_shapes(c, f"model.layers.{i}.", kind == "full_attention")
    s |= {
        "model.norm.weight": [H],
        "mtp.fc.weight": [H, 2 * H],
        "mtp.pre_fc_norm_embedding.weight": [H],
        "mtp.pre_fc_norm_hidden.weight": [H],
        "mtp.norm.weight": [H],
    }
    return s | layer_shapes(c, "mtp.layers.0.", True)


def init(name, shape, gen):
    """Sublayers start by adding nothing; the decays start spread over short and long memories."""
    if name.endswith("A_log"):
        return torch.log(torch.linspace(1, 16, shape[0]))
    if name.endswith("dt_bias"):
        dt = torch.exp(torch.linspace(math.log(0.001), math.log(0.1), shape[0]))
        return dt + torch.log(-torch.expm1(-dt))
    if name.endswith("linear_attn.norm.weight"):
        return torch.ones(shape)
    if "norm" in name:
        return torch.zeros(shape)
    if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")):
        return torch.zeros(shape)
    if name.endswith("conv1d.weight"):
        w = 0.1 * torch.randn(shape, generator=gen)
        w[:, 0, -1] += 1
        return w
    if name.endswith("embed_tokens.weight"):
        return 0.04 * torch.randn(shape, generator=gen)
    return torch.randn(shape, generator=gen) / math.sqrt(shape[-1])


def rms1(x, w):
    x32 = x.float()
    return (x32 * torch.rsqrt((x32 * x32).mean(-1, keepdim=True) + EPS) * (1 + w.float())).to(x.dtype)


def rope(x, pos, dims, theta):
    """Rotates the first `dims` of each head; x [T, heads, D]."""
    inv = theta ** (-torch.arange(0, dims, 2, device=x.device, dtype=torch.float32) / dims)
    angle = pos.float()[:, None] * inv
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b, rest = x[..., : dims // 2].float(), x[..., dims // 2 : dims].float(), x[..., dims:]
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], -1)


# ---- the pieces between the two kernels that are not plain; each is compiled once and used for every layer
def delta_before(x, pos, norm, wqkv, wz, wb, wa, conv, a_log, dt_bias):
    h = rms1(x, norm)
    C, V, n = wqkv.shape[0], wz.shape[0], wb.shape[0]
    m, z, b, a = (h @ torch.cat([wqkv, wz, wb, wa]).T).split([C, V, n, n], -1)
    K = conv.shape[-1]
    c = m * conv[:, 0, K - 1]
    for back in range(1, K):
        shifted = F.pad(m, (0, 0, back, 0))[: m.shape[0]]
        c = c + torch.where((pos >= back)[:, None], shifted, 0) * conv[:, 0, K - 1 - back]
    beta = torch.sigmoid(b.float())
    g = -torch.exp(a_log.float()) * F.softplus(a.float() + dt_bias.float())
    return F.silu(c), z, beta, g


def delta_after(x, o, z, norm, wo):
    o32 = o.float()
    n = o32 * torch.rsqrt((o32 * o32).mean(-1, keepdim=True) + EPS) * norm.float()
    y = (n * F.silu(z.reshape(o.shape).float())).to(x.dtype)
    return x + y.flatten(1) @ wo.T


def attention_before(x, pos, norm, wq, wk, wv, qn, kn, dims, theta):
    h, D = rms1(x, norm), qn.shape[0]
    qg, k, v = (h @ torch.cat([wq, wk, wv]).T).split([wq.shape[0], wk.shape[0], wv.shape[0]], -1)
    qg = qg.reshape(x.shape[0], -1, 2 * D)
    q, gate = qg[..., :D], qg[..., D:]
    k, v = k.reshape(x.shape[0], -1, D), v.reshape(x.shape[0], -1, D)
    q, k = rope(rms1(q, qn), pos, dims, theta), rope(rms1(k, kn), pos, dims, theta)
    group = q.shape[1] // k.shape[1]
    return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), gate


def attention_after(x, o, gate, wo):
    return x + (o * torch.sigmoid(gate)).flatten(1) @ wo.T


def swiglu(h, wg, wu, wd):
    g, u = (h @ torch.cat([wg, wu]).T).split([wg.shape[0], wu.shape[0]], -1)
    return (F.silu(g) * u) @ wd.T


def dense_mlp(x, norm, wg, wu, wd):
    return x + swiglu(rms1(x, norm), wg, wu, wd)


def moe_mlp(x, norm, router, gate_up, down, sg, su, sd, shared_gate, k):
    """Every expert is computed and the unchosen ones weigh nothing: at this size that is faster than sorting rows."""
    h = rms1(x, norm)
    E, two, H = gate_up.shape
    p = torch.softmax((h @ router.T).float(), -1)
    w, ids = p.topk(k, -1)
    w = w / w.sum(-1, keepdim=True)
    dense = torch.zeros_like(p).scatter(1, ids, w)
    balance = E * ((dense > 0).float().mean(0) / k * p.mean(0)).sum()
    gu = (h @ gate_up.reshape(E * two, H).T).reshape(-1, E, 2, two // 2)
    act = F.silu(gu[:, :, 0]) * gu[:, :, 1] * dense.to(h.dtype)[..., None]
    y = act.flatten(1) @ down.permute(1, 0, 2).reshape(H, -1).T
    y = y + torch.sigmoid(h @ shared_gate.T) * swiglu(h, sg, su, sd)
    return x + y, balance


def token_loss(h, weight, targets, mask):
    """(sum of the losses of marked rows, how many of them the best token gets right)"""
    logits = (h @ weight.T).float()
    losses = F.cross_entropy(logits, targets, reduction="none")
    return (losses * mask).sum(), ((logits.argmax(-1) == targets) * mask).sum()


PIECES = dict(
    delta_before=delta_before,
    delta_after=delta_after,
    attention_before=attention_before,
    attention_after=attention_after,
    dense_mlp=dense_mlp,
    moe_mlp=moe_mlp,
    token_loss=token_loss,
    rms1=rms1,
)


def compile_pieces():
    torch._dynamo.config.cache_size_limit = 64
    for name, f in list(PIECES.items()):
        PIECES[name] = torch.compile(f, dynamic=False)


# ---- the two kernels
def delta_rule(q, k, v, g, beta, cu):
    """q, k [T, Hk, D]; v [T, Hv, D]; g, beta [T, Hv]."""
    if q.is_cuda:
        o, _ = chunk_gated_delta_rule(
            q[None], k[None], v[None], g[None], beta[None], use_qk_l2norm_in_kernel=True, cu_seqlens=cu.long()
        )
        return o[0]
    return torch.cat(
        [
            delta_rule_plain(q[s:e], k[s:e], v[s:e], g[s:e], beta[s:e])
            for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())
        ]
    )


def delta_rule_plain(q, k, v, g, beta):
    """The delta rule of one document in chunks of 64, in fp32."""
    T, kind, r, C = q.shape[0], v.dtype, v.shape[1] // q.shape[1], 64
    q, k = (F.normalize(t.float(), dim=-1, eps=1e-6).repeat_interleave(r, 1) for t in (q, k))
    q = q * q.shape[-1] ** -0.5
    cut = lambda t: F.pad(t.float(), (0, 0) * (t.dim() - 1) + (0, -T % C)).unflatten(0, (-1, C)).movedim(2, 0)
    q, k, v, g, beta = cut(q), cut(k), cut(v), cut(g), cut(beta)
    G = g.cumsum(-1)
    decay = (G[..., :, None] - G[..., None, :]).tril().exp().tril()
    A = (beta[..., None] * (k @ k.mT) * decay).tril(-1)
    eye = torch.eye(C, device=q.device)
    Tm = torch.linalg.solve_triangular(eye + A, eye.expand(A.shape), upper=False, unitriangular=True)
    U, W = Tm @ (beta[..., None] * v), Tm @ ((beta * G.exp())[..., None] * k)
    S, out, P = torch.zeros(q.shape[0], q.shape[-1], v.shape[-1], device=q.device), [], decay * (q @ k.mT)
    for i in range(q.shape[1]):
        D = U[:, i] - W[:, i] @ S
        out.append(G[:, i].exp()[..., None] * (q[:, i] @ S) + P[:, i] @ D)
        last = G[:, i, -1:]
        S = last.exp()[..., None] * S + ((last - G[:, i]).exp()[..., None] * k[:, i]).mT @ D
    return torch.cat(out, 1).movedim(0, 1)[:T].to(kind)


def attend(q, k, v, cu, longest):
    """Causal attention in each document; all [T, heads, D]."""
    if q.is_cuda:
        return torch.ops.aten._flash_attention_forward(
            q, k, v, cu, cu, longest, longest, 0.0, True, False, scale=q.shape[-1] ** -0.5
        )[0]
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = [t[s:e].transpose(0, 1)[None] for t in (q, k, v)]
        out.append(F.scaled_dot_product_attention(*row, is_causal=True)[0].transpose(0, 1))
    return torch.cat(out)


class Packed:
    """What the layers need to know about the packing."""

    def __init__(self, ids, cu, pos, longest):
        self.ids, self.cu, self.pos, self.longest = ids, cu, pos, longest


def layer(c, P, prefix, full, x, pack, balances):
    w = lambda name: P[prefix + name]
    if full:
        r = c["rope_parameters"]
        q, k, v, gate = PIECES["attention_before"](
            x,
            pack.pos,
            w("input_layernorm.weight"),
            w("self_attn.q_proj.weight"),
            w("self_attn.k_proj.weight"),
            w("self_attn.v_proj.weight"),
            w("self_attn.q_norm.weight"),
            w("self_attn.k_norm.weight"),
            int(c["head_dim"] * r["partial_rotary_factor"]),
            r["rope_theta"],
        )
        x = PIECES["attention_after"](
            x, attend(q, k, v, pack.cu, pack.longest), gate, w("self_attn.o_proj.weight")
        )
    else:
        mix, z, beta, g = PIECES["delta_before"](
            x,
            pack.pos,
            w("input_layernorm.weight"),
            *(w(f"linear_attn.in_proj_{n}.weight") for n in ("qkv", "z", "b", "a")),
            w("linear_attn.conv1d.weight"),
            w("linear_attn.A_log"),
            w("linear_attn.dt_bias"),
        )
        hk, dk, hv, dv = (
            c[f"linear_{n}"] for n in ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim")
        )
        q, k, v = mix.split([hk * dk, hk * dk, hv * dv], -1)
        T = x.shape[0]
        o = delta_rule(q.reshape(T, hk, dk), k.reshape(T, hk, dk), v.reshape(T, hv, dv), g, beta, pack.cu)
        x = PIECES["delta_after"](x, o, z, w("linear_attn.norm.weight"), w("linear_attn.out_proj.weight"))
    if is_moe(c):
        x, balance = PIECES["moe_mlp"](
            x,
            w("post_attention_layernorm.weight"),
            w("mlp.gate.weight"),
            w("mlp.experts.gate_up_proj"),
            w("mlp.experts.down_proj"),
            *(w(f"mlp.shared_expert.{n}_proj.weight") for n in ("gate", "up", "down")),
            w("mlp.shared_expert_gate.weight"),
            c["num_experts_per_tok"],
        )
        balances.append(balance)
        return x
    return PIECES["dense_mlp"](
        x, w("post_attention_layernorm.weight"), *(w(f"mlp.{n}_proj.weight") for n in ("gate", "up", "down"))
    )


def forward(c, P, pack, taps=()):
    """(hidden after the final norm, balance terms, residual streams after the layers in taps)"""
    x, balances, kept = P["model.embed_tokens.weight"][pack.ids], [], []
    for i, kind in enumerate(c["layer_types"]):
        x = layer(c, P, f"model.layers.{i}.", kind == "full_attention", x, pack, balances)
        if i in taps:
            kept.append(x)
    return PIECES["rms1"](x, P["model.norm.weight"]), balances, kept


def mtp(c, P, pack, hidden, next_ids, balances):
    """One step of the MTP head over the stream: row t has the hidden of t and the token after it. Its normed output."""
    e = PIECES["rms1"](P["model.embed_tokens.weight"][next_ids], P["mtp.pre_fc_norm_embedding.weight"])
    n = PIECES["rms1"](hidden, P["mtp.pre_fc_norm_hidden.weight"])
    u = torch.cat([e, n], -1) @ P["mtp.fc.weight"].T
    u = layer(c, P, "mtp.layers.0.", True, u, pack, balances)
    return PIECES["rms1"](u, P["mtp.norm.weight"])
