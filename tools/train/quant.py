"""MLX's affine quantisation: what a weight becomes in the file, for training against it and for export."""

import numpy as np
import torch

GROUP = 64


def bits_of(name, shape):
    """Width of a parameter in the exported model; None where it stays bf16. What routes, decays, or
    makes a kernel is small and touchy."""
    if "norm" in name or len(shape) < 2:
        return None
    if name.endswith(("A_log", "dt_bias", "conv1d.weight", "base_kernel", "codebook")):
        return None
    if name.endswith(
        (
            "embed_tokens.weight",
            "in_proj_a.weight",
            "in_proj_b.weight",
            "mlp.gate.weight",
            "shared_expert_gate.weight",
            "kernel_projection.weight",
            "hidden_projection.weight",
        )
    ):
        return 8
    return 4


def codes(w, bits):
    """(codes, scales, biases) of groups of 64 along the last axis, scales and biases rounded to bf16."""
    g = w.float().reshape(-1, GROUP)
    lo, hi = g.min(1, keepdim=True).values, g.max(1, keepdim=True).values
    n = 2**bits - 1
    low = lo.abs() > hi.abs()
    scale = ((hi - lo) / n).clamp_min(1e-7)
    scale = torch.where(low, scale, -scale)
    edge = torch.where(low, lo, hi)
    q0 = torch.round(edge / scale)
    some = q0 != 0
    scale = torch.where(some, edge / torch.where(some, q0, torch.ones_like(q0)), scale)
    bias = torch.where(some, edge, torch.zeros_like(edge))
    q = torch.round((g - bias) / scale).clamp(0, n)
    return q, scale.to(torch.bfloat16), bias.to(torch.bfloat16)


def fake(w, bits):
    """The value that a reader of the file gets."""
    q, s, b = codes(w, bits)
    return (q * s.float() + b.float()).reshape(w.shape)


def pack(q, shape, bits):
    """Codes as little-endian 32-bit words, [..., in * bits / 32]."""
    rows = q.reshape(-1, shape[-1]).to(torch.int64).numpy().astype(np.uint64)
    stream = (
        ((rows[:, :, None] >> np.arange(bits, dtype=np.uint64)) & 1).astype(np.uint8).reshape(rows.shape[0], -1)
    )
    words = np.packbits(stream, axis=1, bitorder="little").view("<u4").reshape(*shape[:-1], shape[-1] * bits // 32)
    return torch.from_numpy(words.view(np.int32).copy()).view(torch.uint32)
