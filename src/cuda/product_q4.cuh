// Owns the inner loop of products in FORM_ROWS for the usual kind of weights (units_q4.cuh): 16 MT outputs times 4 NT
// rows in planes (planes.cuh).
//
// Outputs are the M side of mma.m16n8k32 and rows its N side, the two planes of a row in neighbouring columns: a thread
// has both sums of an output and a row, and no row meets another. A word of eight codes is two operands as it lies, its
// low and its high halves of bytes. Each group is summed as integers; a unit's two groups, with their scales and
// biases, are added up, multiplied by the scale of the row's unit, and added to the sum. Warps share that: warp k of n
// takes the units k, k + n, ..., and the warps' sums are added as a tree. n follows from the number of inputs alone, so
// a row has the same bits in a round of any size.
#ifndef TF_CUDA_PRODUCT_Q4_CUH
#define TF_CUDA_PRODUCT_Q4_CUH

#include "cuda/inputs_q4.cuh"
#include "cuda/units_q4.cuh"

#define Q4_WARPS   8 // that work on a tile together
#define Q4_THREADS (32 * Q4_WARPS)

// Warps that share a sum; the others have further outputs.
__host__ __device__ static inline int q4_sharing(int n_unit) {
    return n_unit >= 8 ? 8 : n_unit >= 4 ? 4 : n_unit >= 2 ? 2 : 1;
}

__device__ __forceinline__ void mma_codes(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_codes_first(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

// The scales and biases of outputs g and g + 8 of 16, for both groups.
struct q4_scales {
    float2 scale[2], bias[2];
};

template <int MT> __device__ __forceinline__ struct q4_scales q4_scales_of(const char *unit, int t) {
    struct q4_scales s;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint2 both = *(const uint2 *)(unit + MT * Q4_CODES + (t * 16 + i * 8 + threadIdx.x % 32 / 4) * 8);
        s.scale[i] = bf16_pair(both.x);
        s.bias[i] = bf16_pair(both.y);
    }
    return s;
}

// A group of 16 outputs times all columns; sum: outputs g and g + 8, added to those of the group before.
template <int NT>
__device__ __forceinline__ void q4_multiply_group(const char *unit, int t, int group, const struct q4_scales &by,
                                                  const uint4 x[NT], float sum[NT][2]) {
    const uint32_t low = 0x0f0f0f0fu;
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, q[NT][4];
    int at = g * 64 + (c / 2 * 16 ^ q4_exchange(g)) + c % 2 * 8;
    const char *codes = unit + (at ^ group * 32) + t * Q4_CODES;
    uint2 up = *(const uint2 *)codes, down = *(const uint2 *)(codes + 512);
    const uint32_t a[2][4] = {{up.x & low, down.x & low, up.x >> 4 & low, down.x >> 4 & low},
                              {up.y & low, down.y & low, up.y >> 4 & low, down.y >> 4 & low}};
#pragma unroll
    for (int j = 0; j < NT; j++) mma_codes_first(q[j], a[0], x[j].x, x[j].y);
#pragma unroll
    for (int j = 0; j < NT; j++) mma_codes(q[j], a[1], x[j].z, x[j].w);
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float whole = (float)(q[j][2 * i] * 256 + q[j][2 * i + 1]);
            sum[j][i] = group == 0 ? by.scale[i].x * whole : fmaf(by.scale[i].y, whole, sum[j][i]);
        }
}

template <int NT>
__device__ __forceinline__ void q4_add_unit(const struct q4_scales &by, const float4 note[NT], const float sum[NT][2],
                                            float y[NT][2]) {
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float all = fmaf(by.bias[i].x, note[j].x, fmaf(by.bias[i].y, note[j].y, sum[j][i]));
            y[j][i] = fmaf(note[j].z, all, y[j][i]);
        }
}

// One unit: two groups of 64 inputs, which have been loaded. y: outputs g and g + 8 of each 16.
template <int MT, int NT>
__device__ __forceinline__ void q4_multiply(const char *unit, const struct q4_inputs<NT> &in, float y[MT][NT][2]) {
#pragma unroll
    for (int t = 0; t < MT; t++) {
        struct q4_scales by = q4_scales_of<MT>(unit, t);
        float sum[NT][2];
        q4_multiply_group<NT>(unit, t, 0, by, in.x[0], sum);
        q4_multiply_group<NT>(unit, t, 1, by, in.x[1], sum);
        q4_add_unit<NT>(by, in.note, sum, y[t]);
    }
}

// The same of inputs that are loaded group by group, where there are too many rows for the registers.
template <int MT, int NT, int R>
__device__ __forceinline__ void q4_multiply_late(const char *unit, const struct q4_rows<NT> &rows, float y[MT][NT][2]) {
    struct q4_inputs<NT> in;
    struct q4_scales by[MT];
    float sum[MT][NT][2];
#pragma unroll
    for (int t = 0; t < MT; t++) by[t] = q4_scales_of<MT>(unit, t);
#pragma unroll
    for (int s = 0; s < 2; s++) {
        q4_load_group<NT, R>(rows, s, &in);
#pragma unroll
        for (int t = 0; t < MT; t++) q4_multiply_group<NT>(unit, t, s, by[t], in.x[s], sum[t]);
    }
    q4_load_notes<NT>(rows, &in);
#pragma unroll
    for (int t = 0; t < MT; t++) q4_add_unit<NT>(by[t], in.note, sum[t], y[t]);
}

#endif
