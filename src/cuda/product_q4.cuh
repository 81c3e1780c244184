// Owns the inner loop of products in FORM_ROWS for the usual kind of weights (units_q4.cuh): 16 MT outputs times 8 NT
// rows in planes (planes.cuh).
//
// Outputs are the M side of mma.m16n8k32 and rows its N side: a row is a column of the accumulator and meets no other.
// A word of eight codes is two operands as it lies, its low and its high halves of bytes. Each group is summed as
// integers, for either plane, and then y += scale * (256 high + low); biases enter as a product of their own, with the
// groups' sums. A block's warps share the sum: warp k of n takes the units k, k + n, ..., and the warps' sums are added
// in order. n follows from the number of inputs alone, so a row has the same bits in a round of any size.
#ifndef TF_CUDA_PRODUCT_Q4_CUH
#define TF_CUDA_PRODUCT_Q4_CUH

#include "cuda/units_q4.cuh"

#define Q4_WARPS 8

// Warps that share a sum; the others of a block have further outputs.
__host__ __device__ static inline int q4_sharing(int n_unit) {
    return n_unit >= 8 ? 8 : n_unit >= 4 ? 4 : n_unit >= 2 ? 2 : 1;
}

__device__ __forceinline__ void mma_codes(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_codes_first(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%10,%10,%10,%10};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

// Where a thread finds its columns' rows, n = 8 j + lane / 4: any row that exists will do for those that do not.
template <int NT> struct q4_rows {
    const char *x[NT], *sums[NT]; // of group 0, at the thread's inputs
};

__device__ __forceinline__ void q4_take_row(const struct planes &p, const char **x, const char **sums) {
    int c = threadIdx.x % 4;
    *x = p.x + c * 16;
    *sums = p.sums + c * 8;
}

// One unit: two groups of 64 inputs.
template <int MT, int NT, int R>
__device__ __forceinline__ void q4_multiply(const char *unit, const char *const x[NT], float y[MT][NT][4]) {
    const uint32_t low = 0x0f0f0f0fu;
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    int at = g * 64 + (c / 2 * 16 ^ q4_exchange(g)) + c % 2 * 8;
#pragma unroll
    for (int s = 0; s < 2; s++) {
        uint4 b[NT][2];
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int p = 0; p < 2; p++) b[j][p] = *(const uint4 *)(x[j] + s * (R * 128) + p * (R * 64));
#pragma unroll
        for (int t = 0; t < MT; t++) {
            const char *codes = unit + (at ^ s * 32) + t * Q4_CODES;
            uint2 top = *(const uint2 *)codes, bottom = *(const uint2 *)(codes + 512);
            const uint32_t a[2][4] = {{top.x & low, bottom.x & low, top.x >> 4 & low, bottom.x >> 4 & low},
                                      {top.y & low, bottom.y & low, top.y >> 4 & low, bottom.y >> 4 & low}};
            const uint32_t *scales = (const uint32_t *)(unit + MT * Q4_CODES + t * 64) + g;
            float2 top_scale = bf16_pair(scales[0]), bottom_scale = bf16_pair(scales[8]);
            float scale[2] = {s == 0 ? top_scale.x : top_scale.y, s == 0 ? bottom_scale.x : bottom_scale.y};
#pragma unroll
            for (int j = 0; j < NT; j++) {
                int h[4], l[4];
                mma_codes_first(h, a[0], b[j][0].x, b[j][0].y);
                mma_codes_first(l, a[0], b[j][1].x, b[j][1].y);
                mma_codes(h, a[1], b[j][0].z, b[j][0].w);
                mma_codes(l, a[1], b[j][1].z, b[j][1].w);
#pragma unroll
                for (int i = 0; i < 4; i++) y[t][j][i] = fmaf(scale[i / 2], (float)(h[i] * 256 + l[i]), y[t][j][i]);
            }
        }
    }
}

// Biases of 16 groups as an operand.
__device__ __forceinline__ void q4_read_biases(const struct q4_matrix &w, int t, int step, int n_group, uint32_t a[4]) {
    int lane = threadIdx.x % 32, group = step * 16 + lane % 4 * 2;
    const char *top = w.biases + (int64_t)min(t * 16 + lane / 4, w.last) * w.scale_bytes + group * 2;
    const char *bottom = w.biases + (int64_t)min(t * 16 + lane / 4 + 8, w.last) * w.scale_bytes + group * 2;
    a[0] = group < n_group ? *(const uint32_t *)top : 0;
    a[1] = group < n_group ? *(const uint32_t *)bottom : 0;
    a[2] = group + 8 < n_group ? *(const uint32_t *)(top + 16) : 0;
    a[3] = group + 8 < n_group ? *(const uint32_t *)(bottom + 16) : 0;
}

template <int NT, int R>
__device__ __forceinline__ void q4_add_biases(const uint32_t a[4], const char *const sums[NT], int step,
                                              float y[NT][4]) {
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int term = 0; term < 3; term++) {
            uint2 b = *(const uint2 *)(sums[j] + (step * 3 + term) * (R * 32));
            mma_bf16(y[j], a, b.x, b.y);
        }
}

// The warps' sums of one tile, and how far they have come. parts: [warp][column][16 MT].
template <int MT, int NT>
__device__ __forceinline__ void q4_put_part(float *parts, int warp, int n_column, const float y[MT][NT][4]) {
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    float *mine = parts + warp * n_column * 16 * MT + g;
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int n = 8 * j + 2 * c + i % 2;
                if (n < n_column) mine[n * 16 * MT + t * 16 + i / 2 * 8] = y[t][j][i];
            }
}

// Calls out(m, n, sum) once an element, by neighbouring threads for neighbouring outputs m of the block's.
template <int MT, typename OUT>
__device__ __forceinline__ void q4_add_parts(const float *parts, int n_column, int n_sharing, OUT out) {
    int n_output = Q4_WARPS / n_sharing * 16 * MT, stride = n_column * 16 * MT;
    for (int e = threadIdx.x; e < n_output * n_column; e += Q4_WARPS * 32) {
        int m = e % n_output, n = e / n_output;
        const float *part = parts + m / (16 * MT) * n_sharing * stride + n * 16 * MT + m % (16 * MT);
        float sum = 0;
        for (int k = 0; k < n_sharing; k++) sum += part[k * stride];
        out(m, n, sum);
    }
}

#endif
