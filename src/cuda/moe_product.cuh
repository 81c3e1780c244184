// Owns the arithmetic of experts in rounds (moe.cuh). A group of 64 inputs is one lane's: their codes are two loads. An
// output of 32 groups or fewer is one warp's, or one of several that a warp has at once. Inputs are integers of 16
// bits with one scale a group, in two planes of int8, so that a group's sum is an integer, and exact.
#ifndef TF_CUDA_MOE_PRODUCT_CUH
#define TF_CUDA_MOE_PRODUCT_CUH

#include "cuda/weights.cuh"

#define MOE_GROUP   64
#define MOE_LARGEST 32639.0f // 127 * 256 + 127

// A row of G groups is 9 G pieces of 16 bytes: piece j G + g has the planes of group g's inputs 8 j to 8 j + 7 (the
// even ones' high and low bytes, then the odd ones'), and piece 8 G + g is its note.
struct moe_note {
    float scale, sum; // from integers back; of the integers
    float squares;    // of the inputs as they were before their norm's weight
    float unused;
};

static __host__ __device__ inline int moe_row_bytes(int n_group) { return n_group * 9 * 16; }

// Eight neighbouring lanes make a group of their 64 inputs, eight each: a, b. All lanes of a warp call it together;
// those without a group name the one behind the last. SQUARES: the note has the sum of the lanes' `squares`.
template <bool SQUARES>
__device__ __forceinline__ void moe_make_group(float4 a, float4 b, float squares, char *row, int n_group, int group) {
    const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) top = max(top, __float_as_uint(fabsf(v[i])));
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
        top = max(top, __shfl_xor_sync(0xffffffffu, top, step));
        if (SQUARES) squares += __shfl_xor_sync(0xffffffffu, squares, step);
    }
    float largest = __uint_as_float(top), forth = 0, back = 0;
    if (top >= 0x7f800000u)
        back = __uint_as_float(0x7fffffffu); // something that is no number: none comes out
    else if (largest >= 1e-30f) {
        forth = MOE_LARGEST / largest;
        back = largest / MOE_LARGEST;
    }
    int q[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        q[i] = __float2int_rn(v[i] * forth);
        sum += q[i];
    }
#pragma unroll
    for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (group >= n_group) return;
    uint32_t piece[4];
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
        const int *p = q + odd;
        uint32_t high = __byte_perm(__byte_perm(p[0] + 128, p[2] + 128, 0x0051),
                                    __byte_perm(p[4] + 128, p[6] + 128, 0x0051), 0x5410);
        piece[2 * odd] = high;
        piece[2 * odd + 1] = __byte_perm(__byte_perm(p[0], p[2], 0x0040), __byte_perm(p[4], p[6], 0x0040), 0x5410);
    }
    int c = threadIdx.x % 8;
    *(uint4 *)(row + (c * n_group + group) * 16) = *(const uint4 *)piece;
    if (c != 0) return;
    *(float4 *)(row + (8 * n_group + group) * 16) = make_float4(back, (float)sum, SQUARES ? squares : 0.0f, 0);
}

// What a row's outputs are multiplied with by its norm. By any warp, when all groups are there.
__device__ __forceinline__ float moe_norm_factor(const char *row, int n_group, float eps) {
    int lane = threadIdx.x % 32;
    float squares = lane < n_group ? ((const struct moe_note *)(row + 8 * n_group * 16))[lane].squares : 0.0f;
    return rsqrtf(warp_sum(squares) / (float)(n_group * MOE_GROUP) + eps);
}

// A matrix of the usual kind (units_q4.cuh) as its lanes see it.
struct moe_matrix {
    const char *data, *scales, *biases;
};
static inline struct moe_matrix moe_matrix_of(const struct weight_view &w) {
    return (struct moe_matrix){w.data, w.scales, w.biases};
}

// A group's codes, scale and bias.
struct moe_codes {
    uint4 a, b;
    uint32_t scale, bias;
};

__device__ __forceinline__ uint4 moe_load(const char *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "l"(read_once()));
    return v;
}

// Group `group` of row `row`, counted over the matrix.
__device__ __forceinline__ void moe_fetch(const struct moe_matrix &w, int64_t row, int n_group, int group,
                                          struct moe_codes *c) {
    int64_t at = row * n_group + group;
    c->a = moe_load(w.data + at * 32);
    c->b = moe_load(w.data + at * 32 + 16);
    c->scale = __ldg((const uint16_t *)w.scales + at);
    c->bias = __ldg((const uint16_t *)w.biases + at);
}

// The group's part of M outputs.
template <int M>
__device__ __forceinline__ void moe_multiply(const struct moe_codes *c, const char *row, int n_group, int group,
                                             float y[M]) {
    const uint32_t low = 0x0f0f0f0fu;
    const uint4 *x = (const uint4 *)row + group;
    int high_sum[M] = {}, low_sum[M] = {};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint4 p = x[j * n_group];
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint4 &half = j < 4 ? c[m].a : c[m].b;
            uint32_t word = j % 4 == 0 ? half.x : j % 4 == 1 ? half.y : j % 4 == 2 ? half.z : half.w;
            int even = (int)(word & low), odd = (int)(word >> 4 & low);
            high_sum[m] = __dp4a((int)p.x, even, high_sum[m]);
            low_sum[m] = __dp4a((int)p.y, even, low_sum[m]);
            high_sum[m] = __dp4a((int)p.z, odd, high_sum[m]);
            low_sum[m] = __dp4a((int)p.w, odd, low_sum[m]);
        }
    }
    uint4 note = x[8 * n_group];
#pragma unroll
    for (int m = 0; m < M; m++) {
        float scale = __uint_as_float(c[m].scale << 16), bias = __uint_as_float(c[m].bias << 16);
        float sum = fmaf(scale, (float)(high_sum[m] * 256 + low_sum[m]), __fmul_rn(bias, __uint_as_float(note.y)));
        y[m] = __fmul_rn(__uint_as_float(note.x), sum);
    }
}

// Lanes that share an output: a power of two.
static __host__ __device__ inline int moe_span(int n_group) {
    int span = 1;
    while (span < n_group) span *= 2;
    return span;
}

// Over the lanes of a span; each gets it.
template <int M> __device__ __forceinline__ void moe_span_sum(float x[M], int span) {
    for (int step = span / 2; step > 0; step /= 2)
#pragma unroll
        for (int m = 0; m < M; m++) x[m] += __shfl_xor_sync(0xffffffffu, x[m], step);
}

#endif
