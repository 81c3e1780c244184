// Owns how codes of e4m3 become bf16, which holds each of them exactly; their scales are applied to scores and weights.
#ifndef TF_CUDA_ATTENTION_CODES_CUH
#define TF_CUDA_ATTENTION_CODES_CUH

#include "cuda/attention_shared.cuh"

// By addresses that are held as numbers.
__device__ __forceinline__ uint4 load_shared16(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from));
    return v;
}
__device__ __forceinline__ void store_shared16(uint32_t to, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Two codes, each in the upper byte of its half, as bf16. Exponent and mantissa are moved to where bf16 has them, and
// the exponent's other bias is a product with 2^120: exact, also for the codes without leading bit.
static __device__ __forceinline__ uint32_t widen_pair(uint32_t codes) {
    uint32_t bits = (codes & 0x80008000u) | (codes >> 4 & 0x07f007f0u), bias = 0x7b807b80u, wide;
    asm("{.reg .b32 zero;\n mov.b32 zero, 0x80008000;\n fma.rn.bf16x2 %0, %1, %2, zero;}"
        : "=r"(wide)
        : "r"(bits), "r"(bias));
    return wide;
}

static __device__ __forceinline__ uint4 widen_eight(uint32_t low, uint32_t high) {
    return make_uint4(widen_pair(__byte_perm(low, 0, 0x1404)), widen_pair(__byte_perm(low, 0, 0x3424)),
                      widen_pair(__byte_perm(high, 0, 0x1404)), widen_pair(__byte_perm(high, 0, 0x3424)));
}

template <int D> __device__ __forceinline__ void widen_piece(char *tile, int i, uint4 codes) {
    int key = i * 16 / D, piece = i * 16 % D / 8;
    *(uint4 *)kv_piece<D>(tile, key, piece) = widen_eight(codes.x, codes.y);
    *(uint4 *)kv_piece<D>(tile, key, piece + 1) = widen_eight(codes.z, codes.w);
}

// Codes that have arrived, and that all threads see, become bf16. The first half of the keys goes where no codes are;
// the second half's are held while the others' places are still read.
template <int D, int THREADS> __device__ __forceinline__ void widen_tile(const struct attention_job &job, char *tile) {
    constexpr int HALF = CUDA_TILE_KEYS / 2 * D / 16, N = (HALF + THREADS - 1) / THREADS;
    if (job.kv.dtype != DTYPE_E4M3) return;
    const uint4 *codes = (const uint4 *)(tile + CUDA_TILE_KEYS * D);
    uint4 held[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        int i = threadIdx.x + j * THREADS;
        if (i >= HALF) continue;
        widen_piece<D>(tile, i, codes[i]);
        held[j] = codes[HALF + i];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; j++)
        if ((int)threadIdx.x + j * THREADS < HALF) widen_piece<D>(tile, HALF + threadIdx.x + j * THREADS, held[j]);
    __syncthreads();
}

#endif
