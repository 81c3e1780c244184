"""Holds model.py equal to transformers' classes, render.py equal to the chat template, and the MLX layout equal to what it was
made from, with random weights.

  python3 check.py WORK
"""

import json
import random
import sys
import tempfile

import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

import data
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
    check_template(sys.argv[1])
    for which in model.CONFIGS:
        check_model(which)
        check_export(which, sys.argv[1])
