"""The matrices that the loader gives, against the golden checkpoints read by a few lines of Python: names, shapes,
unpacking and dequantisation, in every layout and at every width."""
import json
import os
import struct
import subprocess
import sys
import zlib

golden = os.environ.get("TF_GOLDEN", "build/golden")
if "TF_GOLDEN" not in os.environ:
    subprocess.run(["tools/unpack_golden.sh"], check=True)
driver = os.path.join(os.environ.get("TF_BUILD", "build/release"), "tests/model/drive_weights")
folders = ["dense-hf", "dense-hf-tied-text", "dense-mlx4-g32", "dense-mlx-mixed", "moe-hf", "moe-mlx4-g64"]


def read_checkpoint(folder):
    """{name without the text model's prefix: (dtype, shape, bytes)}"""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if not name.startswith("model") or not name.endswith(".safetensors"):
            continue
        data = open(os.path.join(folder, name), "rb").read()
        n = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + n])
        header.pop("__metadata__", None)
        for key, t in header.items():
            for prefix in ("model.language_model.", "language_model.model.", "language_model.", "model."):
                if key.startswith(prefix):
                    key = key[len(prefix) :]
                    break
            first, last = t["data_offsets"]
            tensors[key] = (t["dtype"], t["shape"], data[8 + n + first : 8 + n + last])
    return tensors


def bf16(data):
    return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]


def matrix(tensors, module, n_in, suffix=".weight"):
    """All values of a module, row-major; n_in is the length of its rows."""
    dtype, shape, data = tensors[module + suffix]
    if dtype == "BF16":
        return bf16(data)
    assert dtype == "U32"
    bits = shape[-1] * 32 // n_in
    scales, biases = bf16(tensors[module + ".scales"][2]), bf16(tensors[module + ".biases"][2])
    group = n_in // tensors[module + ".scales"][1][-1]
    row_bytes = shape[-1] * 4
    values = []
    for r in range(len(data) // row_bytes):
        row = int.from_bytes(data[r * row_bytes : (r + 1) * row_bytes], "little")
        for i in range(n_in):
            g = (r * n_in + i) // group
            values.append((row >> (i * bits) & ((1 << bits) - 1)) * scales[g] + biases[g])
    return values


def crc(values):
    # A code times a bf16 scale is exact in double, so packing rounds once, as fp32 arithmetic does.
    return format(zlib.crc32(struct.pack(f"<{len(values)}f", *values)), "08x")


checked = 0
for folder in folders:
    path = os.path.join(golden, folder)
    tensors = read_checkpoint(path)
    done = subprocess.run([driver, path], capture_output=True, text=True, check=True)
    stacks = {}
    for line in done.stdout.splitlines():
        name, n_out, n_in, got = line.split()
        n_out, n_in = int(n_out), int(n_in)
        if ".expert." in name:
            layer, rest = name.split("expert.")
            e, part = rest.split(".")
            mlx = layer + "mlp.switch_mlp.gate_proj.weight" in tensors
            module = {"gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj"}[part]
            module = layer + ("mlp.switch_mlp." + part + "_proj" if mlx else "mlp.experts." + module)
            if module not in stacks:
                stacks[module] = matrix(tensors, module, n_in, ".weight" if mlx else "")
            rows = n_out * (2 if module.endswith("gate_up_proj") else 1)
            first = (int(e) * rows + (n_out if part == "up" and not mlx else 0)) * n_in
            want = stacks[module][first : first + n_out * n_in]
        elif name == "lm_head" and "lm_head.weight" not in tensors:
            want = matrix(tensors, "embed_tokens", n_in)
        else:
            want = matrix(tensors, name, n_in)
        if len(want) != n_out * n_in or crc(want) != got:
            sys.exit(f"{folder}: {name} differs")
        checked += 1
print(f"{checked} matrices of {len(folders)} checkpoints")
