"""Measures llama.cpp on the shape of a Qwen 3.5 checkpoint with random 4-bit weights, to set beside `tokenfold bench`.

  python3 tools/compare_llama.py qwen3.5-0.8b|qwen3.5-2b [--threads N] [--prompt 512] [--decode 64] [--rounds 3]
                                 [--tokenfold MODEL]

Needs the packages llama-cpp-python, gguf and numpy. The GGUF file (Q4_0: 4.5 bits a weight, as MLX 4-bit with groups
of 64) is made once under build/. With --tokenfold, `build/tokenfold bench MODEL` runs between the rounds, so that both
see the same machine.
"""
import argparse
import json
import os
import subprocess
import time

import gguf
import llama_cpp as L
import numpy as np

SHAPES = {  # layers, hidden, intermediate, heads, kv heads, value heads
    "qwen3.5-0.8b": (24, 1024, 3584, 8, 2, 16),
    "qwen3.5-2b": (24, 2048, 6144, 8, 2, 16),
}
VOCAB, HEAD, KEY_HEADS, STATE = 248320, 256, 16, 128


def write_gguf(path, shape):
    layers, hidden, inner, heads, kv_heads, value_heads = SHAPES[shape]
    rng = np.random.default_rng(1)
    w = gguf.GGUFWriter(path, "qwen35")
    w.add_block_count(layers)
    w.add_context_length(262144)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(inner)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(HEAD)
    w.add_value_length(HEAD)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_dimension_count(64)
    w.add_rope_dimension_sections([11, 11, 10, 0])
    w.add_rope_freq_base(1e7)
    w.add_vocab_size(VOCAB)
    w.add_ssm_conv_kernel(4)
    w.add_ssm_state_size(STATE)
    w.add_ssm_group_count(KEY_HEADS)
    w.add_ssm_time_step_rank(value_heads)
    w.add_ssm_inner_size(value_heads * STATE)
    w.add_uint32("qwen35.full_attention_interval", 4)
    w.add_tokenizer_model("none")

    def quantised(name, rows, columns):
        blocks = np.empty((rows, columns // 32, 18), np.uint8)
        blocks[:, :, :2] = np.frombuffer(np.float16(0.2 / columns**0.5).tobytes(), np.uint8)
        blocks[:, :, 2:] = rng.integers(0, 256, (rows, columns // 32, 16), np.uint8)
        w.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    def plain(name, *dims, scale=0.1, mean=0.0):
        w.add_tensor(name, (mean + scale * rng.standard_normal(dims)).astype(np.float32))

    channels = 2 * KEY_HEADS * STATE + value_heads * STATE
    quantised("token_embd.weight", VOCAB, hidden)
    plain("output_norm.weight", hidden, mean=1)
    for i in range(layers):
        p = f"blk.{i}."
        plain(p + "attn_norm.weight", hidden, mean=1)
        plain(p + "post_attention_norm.weight", hidden, mean=1)
        if i % 4 == 3:
            quantised(p + "attn_q.weight", 2 * heads * HEAD, hidden)
            quantised(p + "attn_k.weight", kv_heads * HEAD, hidden)
            quantised(p + "attn_v.weight", kv_heads * HEAD, hidden)
            quantised(p + "attn_output.weight", hidden, heads * HEAD)
            plain(p + "attn_q_norm.weight", HEAD, mean=1)
            plain(p + "attn_k_norm.weight", HEAD, mean=1)
        else:
            quantised(p + "attn_qkv.weight", channels, hidden)
            quantised(p + "attn_gate.weight", value_heads * STATE, hidden)
            quantised(p + "ssm_beta.weight", value_heads, hidden)
            quantised(p + "ssm_alpha.weight", value_heads, hidden)
            quantised(p + "ssm_out.weight", hidden, value_heads * STATE)
            plain(p + "ssm_conv1d.weight", channels, 4, scale=0.5)
            plain(p + "ssm_a", value_heads, mean=-1)
            plain(p + "ssm_dt.bias", value_heads)
            plain(p + "ssm_norm.weight", STATE, mean=1)
        quantised(p + "ffn_gate.weight", inner, hidden)
        quantised(p + "ffn_up.weight", inner, hidden)
        quantised(p + "ffn_down.weight", hidden, inner)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Peer:
    def __init__(self, path, threads, context):
        L.llama_backend_init()
        m = L.llama_model_default_params()
        self.model = L.llama_load_model_from_file(path.encode(), m)
        if not self.model:
            raise SystemExit("llama.cpp cannot load this shape")
        c = L.llama_context_default_params()
        c.n_ctx, c.n_batch, c.n_ubatch = context, 2048, 512
        c.n_threads = c.n_threads_batch = threads
        c.flash_attn_type = 1
        self.context = L.llama_new_context_with_model(self.model, c)

    def decode(self, ids):
        array = (L.llama_token * len(ids))(*ids)
        if L.llama_decode(self.context, L.llama_batch_get_one(array, len(ids))) != 0:
            raise SystemExit("llama_decode failed")
        L.llama_get_logits_ith(self.context, -1)

    def measure(self, n_prompt, n_decode):
        ids = [int(x) for x in np.random.default_rng(2).integers(0, 1000, n_prompt)]
        L.llama_memory_clear(L.llama_get_memory(self.context), True)
        start = time.perf_counter()
        self.decode(ids)
        middle = time.perf_counter()
        for i in range(n_decode):
            self.decode([i % 1000])
        end = time.perf_counter()
        return n_prompt / (middle - start), n_decode / (end - middle)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("shape", choices=SHAPES)
    a.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a.add_argument("--prompt", type=int, default=512)
    a.add_argument("--decode", type=int, default=64)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--tokenfold", metavar="MODEL")
    o = a.parse_args()
    path = f"build/{o.shape}-q4_0.gguf"
    if not os.path.exists(path):
        write_gguf(path, o.shape)
    peer = Peer(path, o.threads, o.prompt + o.decode + 64)
    peer.measure(o.prompt, 4)
    for r in range(o.rounds):
        prompt, decode = peer.measure(o.prompt, o.decode)
        print(f"round {r}: llama.cpp  prompt {prompt:8.1f} tok/s   decode {decode:7.2f} tok/s", flush=True)
        if o.tokenfold:
            cells = f"prompt:{o.prompt},decode:{o.prompt}+{o.decode}"
            command = ["build/tokenfold", "bench", o.tokenfold, "--json", "--threads", str(o.threads)]
            command += ["--cells", cells, "--repeats", "1"]
            out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
            ours = {c["kind"]: c["tokens_per_s"] for c in json.loads(out)["cells"]}
            print(f"round {r}: tokenfold  prompt {ours['prompt']:8.1f} tok/s   decode {ours['decode']:7.2f} tok/s   "
                  f"ratio {ours['prompt'] / prompt:.2f} / {ours['decode'] / decode:.2f}", flush=True)


main()
