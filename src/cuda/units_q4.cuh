// Owns units (units.cuh) of the usual kind: 4-bit codes in groups of 64 with bf16 scales and biases, inputs in whole
// units, everything aligned. Addresses are taken once and only moved on; scales come with the codes.
//
// Codes enter the product as 128 + q, which is exact in bf16, and 128 times the sum of the inputs is taken away with
// the bias: y += scale * sum((128 + q) x) + (bias - 128 scale) * sum(x).
#ifndef TF_CUDA_UNITS_Q4_CUH
#define TF_CUDA_UNITS_Q4_CUH

#include "cuda/units.cuh"

#define Q4_PITCH      96 // of an output's 64 bytes: quarter warps meet different banks
#define Q4_UNIT_BYTES (16 * Q4_PITCH + 32 * 4)
#define Q4_STAGES     5

static inline bool is_usual_q4(const struct weight_view &w) {
    bool aligned = (uintptr_t)w.data % 16 == 0 && (uintptr_t)w.scales % 4 == 0 && (uintptr_t)w.biases % 4 == 0;
    return w.weight_class == CLASS_Q4 && w.group == 64 && w.dtype == DTYPE_BF16 && w.n_in % UNIT_INPUTS == 0 && aligned;
}

// What this thread copies of each unit: 16 bytes of two outputs, and one output's two scales or two biases.
struct q4_source {
    const char *low, *high, *scales;
};

// Of this warp's first unit. Outputs behind the last are copies of it, and nobody stores them.
__device__ __forceinline__ struct q4_source q4_open(const struct weight_view &w, int64_t o0, int unit) {
    int lane = threadIdx.x % 32, piece = lane % 4 * 16;
    int64_t last = w.n_out - 1, m = lane / 4, s = lane % 16;
    const char *scales = lane < 16 ? w.scales : w.biases;
    struct q4_source q;
    q.low = w.data + min(o0 + m, last) * w.row_bytes + unit * 64 + piece;
    q.high = w.data + min(o0 + m + 8, last) * w.row_bytes + unit * 64 + piece;
    q.scales = scales + (min(o0 + s, last) * w.n_group + 2 * unit) * 2;
    return q;
}

// Starts the copy of the unit that is next, and moves on by n_warp units.
__device__ __forceinline__ void q4_fetch(struct q4_source *q, uint32_t unit, int n_warp) {
    int lane = threadIdx.x % 32;
    uint32_t to = unit + lane / 4 * Q4_PITCH + lane % 4 * 16;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(q->low));
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to + 8 * Q4_PITCH), "l"(q->high));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(unit + 16 * Q4_PITCH + lane * 4), "l"(q->scales));
    q->low += n_warp * 64;
    q->high += n_warp * 64;
    q->scales += n_warp * 4;
}

// Eight codes as four pairs (j, j + 4) of 128 + q.
__device__ __forceinline__ void q4_pairs(uint32_t word, uint32_t out[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) out[j] = ((word >> 4 * j) & 0x000f000fu) | 0x43004300u;
}

__device__ __forceinline__ float2 bf16_pair(uint32_t word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

#endif
