"""Holds model.py equal to transformers' classes, dflash.py to the definition of the drafter, render.py to the chat template, and the
MLX layout to what it was made from, with random weights.

  python3 check.py WORK
"""

import json
import random
import sys
import tempfile

sys.modules["fla"] = None  # transformers would take its GPU kernels, which refuse tensors of the CPU

import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

import data
import dflash
import export
import model
import quant
import render
import tasks


def random_parameters(c, seed):
    gen = torch.Generator().manual_seed(seed)
    out = {}
    for n, s in model.shapes(c).items():
        w = model.init(n, tuple(s), gen)
        out[n] = (
            torch.randn(s, generator=gen) / s[-1] ** 0.5
            if len(s) > 1 and "conv1d" not in n
            else w + 0.1 * torch.randn(s, generator=gen)
        )
    return out


def oracle(c, params):
    moe = model.is_moe(c)
    cls, cfg = (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig) if moe else (Qwen3_5ForCausalLM, Qwen3_5TextConfig)
    m = cls._from_config(cfg(**c), attn_implementation="eager").float().eval()
    missing, extra = m.load_state_dict({k: v for k, v in params.items() if not k.startswith("mtp.")}, strict=False)
    assert missing in ([], ["lm_head.weight"]) and not extra, (missing, extra)
    m.tie_weights()
    return m


@torch.no_grad()
def check_model(name):
    c, P = model.CONFIGS[name], random_parameters(model.CONFIGS[name], 3)
    m, ids = oracle(c, P), torch.randint(0, 4000, (150,))
    cu = torch.tensor([0, 70, 150], dtype=torch.int32)
    pos = torch.cat([torch.arange(70), torch.arange(80)])
    hidden, _, _ = model.forward(c, P, model.Packed(ids, cu, pos, 80))
    mine = hidden @ P["model.embed_tokens.weight"].T
    theirs = torch.cat([m(input_ids=ids[None, s:e]).logits[0] for s, e in ((0, 70), (70, 150))])
    error = ((mine - theirs).norm() / theirs.norm()).item()
    print(name, "relative error against transformers", error)
    assert error < 1e-4


def check_export(name, work):
    c, P = model.CONFIGS[name], random_parameters(model.CONFIGS[name], 4)
    with tempfile.TemporaryDirectory() as folder:
        export.write(c, P, work, folder)
        _, back = export.dequantised(folder)
    assert sorted(back) == sorted(P)
    for n, w in P.items():
        bits = quant.bits_of(n, w.shape)
        if bits:
            assert torch.equal(back[n], quant.fake(w, bits)), n
        else:
            assert torch.allclose(back[n], w, atol=0.01, rtol=0.01), n
    print(name, "export reads back")


def one_block(d, P, E, streams, anchor):
    """The drafter by the letter of its definition: one document, one anchor, one row at a time."""
    f, eps = d["dflash_config"], d["rms_norm_eps"]
    H, D, B, W, G = d["hidden_size"], d["head_dim"], f["block_size"], d["sliding_window"], f["conv_group_size"]
    h, kv, taps = d["num_attention_heads"], d["num_key_value_heads"], f["conv_kernel_size"]
    norm = lambda x, w: x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w

    def turn(x, at):
        half = D // 2
        angle = at * d["rope_parameters"]["rope_theta"] ** (-torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    def conv(x, dyn, base, side):
        out = torch.zeros_like(x)
        for i in range(B):
            for t in range(min(taps, i + 1)):
                out[i] += (base[side][t] + dyn[i].view(2, taps, H // G)[side, t].repeat_interleave(G)) * x[i - t]
        return out

    ids = torch.tensor([anchor[1]] + [f["mask_token_id"]] * (B - 1))
    n, u = anchor[0], E[ids]
    c = norm(torch.cat(streams, -1)[:n] @ P["fc.weight"].T, P["hidden_norm.weight"])
    for i in range(d["num_hidden_layers"]):
        w = {k[len(f"layers.{i}.") :]: v for k, v in P.items() if k.startswith(f"layers.{i}.")}
        head = lambda x, name, count: (x @ w[f"self_attn.{name}.weight"].T).view(-1, count, D)
        y = norm(u, w["input_layernorm.weight"])
        dyn, base = y @ w["attention_conv.kernel_projection.weight"].T, w["attention_conv.base_kernel"]
        y = conv(y, dyn, base, 0)
        keys = torch.cat([norm(head(x, "k_proj", kv), w["self_attn.k_norm.weight"]) for x in (c, y)])
        keys = torch.stack([turn(k, at) for at, k in enumerate(keys)])
        values = torch.cat([head(x, "v_proj", kv) for x in (c, y)])
        z = torch.zeros(B, h, D)
        for r, q in enumerate(norm(head(y, "q_proj", h), w["self_attn.q_norm.weight"])):
            q, lo = turn(q, n + r), max(0, n + r - W + 1)
            for j in range(h):
                g = j // (h // kv)
                z[r, j] = (keys[lo:, g] @ q[j] * D**-0.5).softmax(0) @ values[lo:, g]
        u = u + conv(z.flatten(1) @ w["self_attn.o_proj.weight"].T, dyn, base, 1)
        y = norm(u, w["post_attention_layernorm.weight"])
        dyn, base = y @ w["mlp_conv.kernel_projection.weight"].T, w["mlp_conv.base_kernel"]
        y = conv(y, dyn, base, 0)
        z = torch.nn.functional.silu(y @ w["mlp.gate_proj.weight"].T) * (y @ w["mlp.up_proj.weight"].T)
        u = u + conv(z @ w["mlp.down_proj.weight"].T, dyn, base, 1)
    hid, out, last = norm(u, P["norm.weight"])[1:], [], anchor[1]
    s = {k.removeprefix("candidate_selector."): v for k, v in P.items() if k.startswith("candidate_selector.")}
    for row in hid:
        value, best = (E @ row).topk(f["selector_top_k"])
        edge = s["predecessor_codebook"][last] * (s["hidden_projection.weight"] @ row)
        last = int(best[(value + s["successor_codebook"][best] @ edge).argmax()])
        out.append(last)
    return hid, out


@torch.no_grad()
def check_drafter():
    """Blocks of several documents at once, with a window that cuts, against the definition; and the export."""
    d = dflash.config(dict(model.CONFIGS["fold-s"], vocab_size=300), 299) | dict(num_hidden_layers=2, sliding_window=40)
    P = {n: w + 0.1 * torch.randn(w.shape) for n, w in dflash.initial(d, 1).items()}
    lengths, E = (64, 128), 0.3 * torch.randn(300, d["hidden_size"])
    T, taps = sum(lengths), len(d["dflash_config"]["target_layer_ids"])
    pos, at = torch.cat([torch.arange(n) for n in lengths]), [1, 9, 50, 65, 110, 170]
    streams, first = [torch.randn(T, d["hidden_size"]) for _ in range(taps)], [0, 0, 0, 64, 64, 64]
    tokens = torch.randint(0, 298, (len(at),))
    anchors = dflash.Anchors(at, first, pos[at], T, "cpu", tile=4)
    hid = dflash.block(d, P, E, tokens, anchors, dflash.context(d, P, streams, pos))
    drafts = dflash.walk(d, P, E, tokens, hid)
    for i, n in enumerate(at):
        own = [s[first[i] :] for s in streams]
        want, ids = one_block(d, P, E, own, (n - first[i], int(tokens[i])))
        error = ((hid[i] - want).norm() / want.norm()).item()
        assert error < 1e-4, (i, error)
        assert drafts[i].tolist() == ids, (i, drafts[i], ids)
    with tempfile.TemporaryDirectory() as folder:
        dflash.write(d, P, folder)
        config, back = dflash.read(folder)
    assert config["dflash_config"] == d["dflash_config"] and sorted(back) == sorted(P)
    for n, w in P.items():
        bits = quant.bits_of(n, w.shape)
        assert torch.allclose(back[n], quant.fake(w, bits) if bits else w.bfloat16().float()), n
    print("drafter blocks agree with the definition; export reads back")


def check_template(work):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda v: json.dumps(v, ensure_ascii=False)
    env.globals["raise_exception"] = lambda m: (_ for _ in ()).throw(ValueError(m))
    template = env.from_string(open("chat_template.jinja").read())
    w = tasks.World(json.load(open(f"{work}/corpus.json")), 5)
    encoder = data.Encoder(work)
    for _ in range(2000):
        one = tasks.training(w, 0.0)
        if isinstance(one, str):
            continue
        thinking = one["thinking"]
        if not thinking:
            for m in one["messages"]:
                m.pop("reasoning_content", None)
        for only in (False, True):
            messages = one["messages"][:-1] if only else one["messages"]
            mine = render.text(messages, one["tools"], thinking, only)
            theirs = template.render(
                messages=messages, tools=one["tools"], add_generation_prompt=only, enable_thinking=thinking
            )
            assert mine == theirs, (mine, theirs)
        ids, _ = encoder.document(one)
        assert ids == encoder.tokenizer.encode(render.text(one["messages"], one["tools"], thinking)).ids
    print("template and pieces agree")


if __name__ == "__main__":
    torch.manual_seed(random.randrange(1 << 30))
    check_drafter()
    check_template(sys.argv[1])
    for which in model.CONFIGS:
        check_model(which)
        check_export(which, sys.argv[1])
