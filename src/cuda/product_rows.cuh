// Owns the inner loop of products in FORM_ROWS: 16 outputs of a weight matrix times 8 * NT prepared rows.
//
// The outputs are the M side of mma.m16n8k16 and the rows its N side, so that a row is a column of the accumulator and
// meets no other row. A block's warps share the sum: the matrix is cut along its inputs into units of 128, warp w takes
// the units w, w + n_warp, ..., and partial sums are added in the order of the warps. That split depends on the shape
// of the matrix alone, so a row has the same bits in a round of any size.
//
// Rows are two terms of bf16 each (rows.cuh), which are multiplied one after the other.
//
// Codes enter the product as the integers they are, which bf16 holds exactly. Each group (or half of a group of 128) is
// summed by itself, and then y += scale * sum + bias * (sum of x over the group).
#ifndef TF_CUDA_PRODUCT_ROWS_CUH
#define TF_CUDA_PRODUCT_ROWS_CUH

#include "cuda/rows.cuh"
#include "cuda/units.cuh"

// The rows of one tile: row n is at rows + row_of[n] * stride, or at n * stride where row_of is NULL.
template <int NT> struct rows_source {
    const __nv_bfloat16 *row[NT]; // of this thread's columns n = 8 j + lane / 4; NULL beyond the last
    int64_t second;               // elements to the second term; 0: there is none
    const float *sums;            // of group 0 at this thread's column 2 (lane % 4); NULL: taken by another product
    int64_t sums_stride;          // between groups
};

// Values of one row at a thread's inputs of one group, in the order in which they are multiplied.
template <int BITS, int N> __device__ __forceinline__ void load_inputs(const __nv_bfloat16 *row, uint32_t out[N / 2]) {
    for (int i = 0; i < N / 8; i++) {
        uint4 v = row != NULL ? *(const uint4 *)(row + 8 * i) : make_uint4(0, 0, 0, 0);
        if (pairs_are_split<BITS>()) {
            out[4 * i] = __byte_perm(v.x, v.z, 0x5410);
            out[4 * i + 1] = __byte_perm(v.x, v.z, 0x7632);
            out[4 * i + 2] = __byte_perm(v.y, v.w, 0x5410);
            out[4 * i + 3] = __byte_perm(v.y, v.w, 0x7632);
        } else {
            out[4 * i] = v.x;
            out[4 * i + 1] = v.y;
            out[4 * i + 2] = v.z;
            out[4 * i + 3] = v.w;
        }
    }
}

// y of one group for one column of 8 rows: sum of products, and of inputs where nobody has summed those before.
template <int N> struct group_product {
    float sum[4] = {0, 0, 0, 0}, inputs[4] = {0, 0, 0, 0};
    __device__ __forceinline__ void add(const uint32_t (*a)[4], const uint32_t *b, bool with_inputs) {
        const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
#pragma unroll
        for (int s = 0; s < N / 4; s++) {
            mma_bf16(sum, a[s], b[2 * s], b[2 * s + 1]);
            if (with_inputs) mma_bf16(inputs, ones, b[2 * s], b[2 * s + 1]);
        }
    }
};

// One unit out of shared memory. SG is the length of a sum: 32 or 64; plain weights sum on in y.
template <int BITS, int SG, int NT, bool ONES>
__device__ __forceinline__ void multiply_unit(const char *unit, const struct weight_view &w, int64_t u,
                                              const struct rows_source<NT> &x, float y[NT][4]) {
    constexpr int N = SG / 4; // inputs of a thread in a group
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int s = 0; s < UNIT_INPUTS / SG; s++) {
        uint32_t low[N / 2], high[N / 2], a[N / 4][4];
        read_codes<BITS, N>(unit, g, s * SG + c * N, low);
        read_codes<BITS, N>(unit, g + 8, s * SG + c * N, high);
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            a[i][0] = low[2 * i];
            a[i][1] = high[2 * i];
            a[i][2] = low[2 * i + 1];
            a[i][3] = high[2 * i + 1];
        }
        float scale[2] = {0, 0}, bias[2] = {0, 0};
        if constexpr (BITS < CLASS_BF16) {
            int group = s * SG / w.group;
            read_scales<BITS>(unit, w, g, group, scale[0], bias[0]);
            read_scales<BITS>(unit, w, g + 8, group, scale[1], bias[1]);
        }
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const __nv_bfloat16 *row = x.row[j] != NULL ? x.row[j] + u * UNIT_INPUTS + s * SG + c * N : NULL;
            struct group_product<N> p;
#pragma unroll
            for (int term = 0; term < 2; term++) {
                if (term == 1 && x.second == 0) break;
                uint32_t b[N / 2];
                load_inputs<BITS, N>(row != NULL ? row + term * x.second : NULL, b);
                if constexpr (BITS < CLASS_BF16) p.add(a, b, ONES);
#pragma unroll
                for (int i = 0; i < N / 4 && BITS >= CLASS_BF16; i++) mma_bf16(y[j], a[i], b[2 * i], b[2 * i + 1]);
            }
            if constexpr (BITS >= CLASS_BF16) continue;
            float2 sums = make_float2(p.inputs[0], p.inputs[1]);
            if (!ONES) sums = *(const float2 *)(x.sums + (u * (UNIT_INPUTS / SG) + s) * x.sums_stride + 8 * j);
            y[j][0] = fmaf(bias[0], sums.x, fmaf(scale[0], p.sum[0], y[j][0]));
            y[j][1] = fmaf(bias[0], sums.y, fmaf(scale[0], p.sum[1], y[j][1]));
            y[j][2] = fmaf(bias[1], sums.x, fmaf(scale[1], p.sum[2], y[j][2]));
            y[j][3] = fmaf(bias[1], sums.y, fmaf(scale[1], p.sum[3], y[j][3]));
        }
    }
}

#endif
