// Owns the router's logits: products in fp32, so that the choice does not depend on a rounding of the rows. One warp an
// expert and some rows; a lane sums every 32nd block of eight inputs, and the lanes' sums are added in a tree.
#ifndef TF_CUDA_ROUTER_PRODUCT_CUH
#define TF_CUDA_ROUTER_PRODUCT_CUH

#include "cuda/router.cuh"

#define ROUTER_AHEAD 8 // blocks of inputs whose weights are loaded at once

// Eight weights of a row from input k on, k a multiple of 8; zeros after the last.
static __device__ __forceinline__ void eight_weights(const struct weight_view &w, int64_t row, int64_t k,
                                                     float out[8]) {
    const char *data = w.data + row * w.row_bytes;
    bool whole = k + 8 <= w.n_in;
    if (whole && w.weight_class == CLASS_BF16 && ((uintptr_t)(data + 2 * k) & 15) == 0) {
        uint4 v = *(const uint4 *)(data + 2 * k);
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        for (int i = 0; i < 4; i++) {
            out[2 * i] = __uint_as_float(words[i] << 16);
            out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    } else if (whole && w.weight_class == CLASS_Q8) {
        int64_t g = row * w.n_group + k / w.group;
        float scale = load_float(w.scales, w.dtype, g), bias = load_float(w.biases, w.dtype, g);
        const uint32_t *words = (const uint32_t *)(data + k);
        for (int i = 0; i < 8; i++) out[i] = fmaf((float)(words[i / 4] >> (i % 4 * 8) & 0xff), scale, bias);
    } else {
        for (int i = 0; i < 8; i++) out[i] = k + i < w.n_in ? weight_element(w, row, k + i) : 0.0f;
    }
}

// Eight weights as they are stored, codes of 8 bits with a bf16 scale and bias: many loads are under way together.
struct eight_codes {
    uint2 codes;
    uint32_t scale, bias;
};

static __device__ __forceinline__ void load_codes(const struct weight_view &w, int64_t row, int64_t k,
                                                  struct eight_codes *c) {
    int64_t g = row * w.n_group + k / w.group;
    c->codes = *(const uint2 *)(w.data + row * w.row_bytes + k);
    c->scale = ((const uint16_t *)w.scales)[g];
    c->bias = ((const uint16_t *)w.biases)[g];
}

static __device__ __forceinline__ void widen_codes(const struct eight_codes &c, float out[8]) {
    float scale = __uint_as_float(c.scale << 16), bias = __uint_as_float(c.bias << 16);
    for (int i = 0; i < 8; i++) { // a code as the last bits of 2^23: conversions are slow
        uint32_t whole = __byte_perm(i < 4 ? c.codes.x : c.codes.y, 0x4b000000u, 0x7540u + (uint32_t)(i % 4));
        out[i] = fmaf(__uint_as_float(whole) - 8388608.0f, scale, bias);
    }
}

// Logits of expert e and rows [t0, t0 + ROWS) by one warp; e == n_expert is the shared expert's gate. ready() is called
// once by each warp, when its first weights are under way and before inputs(row, k, out) is asked for eight of them.
template <int ROWS, typename READY, typename INPUTS>
static __device__ __forceinline__ void router_logits(const struct router_job &job, int64_t e, int64_t t0, READY ready,
                                                     INPUTS inputs) {
    bool is_shared = e == job.gate.n_out;
    if (e > job.gate.n_out || (is_shared && !job.has_shared)) {
        ready();
        return;
    }
    const struct weight_view &w = is_shared ? job.shared_gate : job.gate;
    int64_t row = is_shared ? 0 : e, stride = job.gate.n_out + 1;
    int lane = threadIdx.x % 32;
    bool usual = w.weight_class == CLASS_Q8 && w.dtype == DTYPE_BF16 && w.n_in % 8 == 0 && (uintptr_t)w.data % 8 == 0;
    float sum[ROWS] = {};
    for (int64_t k0 = lane * 8; k0 - lane * 8 < w.n_in; k0 += ROUTER_AHEAD * 32 * 8) {
        struct eight_codes codes[ROUTER_AHEAD] = {};
#pragma unroll
        for (int a = 0; a < ROUTER_AHEAD; a++)
            if (usual && k0 + a * 256 < w.n_in) load_codes(w, row, k0 + a * 256, &codes[a]);
        if (k0 == lane * 8) ready();
#pragma unroll
        for (int a = 0; a < ROUTER_AHEAD; a++) {
            float weight[8];
            if (k0 + a * 256 >= w.n_in) continue;
            if (usual)
                widen_codes(codes[a], weight);
            else
                eight_weights(w, row, k0 + a * 256, weight);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float x[8];
                if (t0 + r >= job.x.n_row) continue;
                inputs(r, k0 + a * 256, x);
#pragma unroll
                for (int i = 0; i < 8; i++) sum[r] = fmaf(x[i], weight[i], sum[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float total = warp_sum(sum[r]);
        if (lane == 0 && t0 + r < job.x.n_row) job.logits[(t0 + r) * stride + e] = total;
    }
}

#endif
