// Owns the product of product_rows.cuh for the usual kind of weights (units_q4.cuh): the same split of the sum.
#ifndef TF_CUDA_PRODUCT_Q4_CUH
#define TF_CUDA_PRODUCT_Q4_CUH

#include "cuda/tile_rows.cuh"
#include "cuda/units_q4.cuh"

// The eight registers of a row's 16 inputs. SPLIT: the row lies in the order of the code pairs already (rows.cuh).
template <bool SPLIT> __device__ __forceinline__ void q4_inputs(const __nv_bfloat16 *row, uint32_t b[8]) {
    uint4 v[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
    if (row != NULL) {
        v[0] = ((const uint4 *)row)[0];
        v[1] = ((const uint4 *)row)[1];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        b[4 * i] = SPLIT ? v[i].x : __byte_perm(v[i].x, v[i].z, 0x5410);
        b[4 * i + 1] = SPLIT ? v[i].y : __byte_perm(v[i].x, v[i].z, 0x7632);
        b[4 * i + 2] = SPLIT ? v[i].z : __byte_perm(v[i].y, v[i].w, 0x5410);
        b[4 * i + 3] = SPLIT ? v[i].w : __byte_perm(v[i].y, v[i].w, 0x7632);
    }
}

// One unit: two groups of 64 inputs. ONES: sums of the inputs come out of products with ones.
template <int NT, bool ONES, bool SPLIT>
__device__ __forceinline__ void q4_multiply(const char *unit, int u, const struct rows_source<NT> &x, float y[NT][4]) {
    const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const uint32_t *scales = (const uint32_t *)(unit + 16 * Q4_PITCH);
    float2 scale_low = bf16_pair(scales[g]), scale_high = bf16_pair(scales[g + 8]);
    float2 bias_low = bf16_pair(scales[16 + g]), bias_high = bf16_pair(scales[24 + g]);
#pragma unroll
    for (int s = 0; s < 2; s++) {
        uint2 low = *(const uint2 *)(unit + g * Q4_PITCH + s * 32 + c * 8);
        uint2 high = *(const uint2 *)(unit + (g + 8) * Q4_PITCH + s * 32 + c * 8);
        uint32_t pairs_low[8], pairs_high[8], a[4][4];
        q4_pairs(low.x, pairs_low);
        q4_pairs(low.y, pairs_low + 4);
        q4_pairs(high.x, pairs_high);
        q4_pairs(high.y, pairs_high + 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[i][0] = pairs_low[2 * i];
            a[i][1] = pairs_high[2 * i];
            a[i][2] = pairs_low[2 * i + 1];
            a[i][3] = pairs_high[2 * i + 1];
        }
        float sl = s == 0 ? scale_low.x : scale_low.y, sh = s == 0 ? scale_high.x : scale_high.y;
        float bl = fmaf(-128.0f, sl, s == 0 ? bias_low.x : bias_low.y);
        float bh = fmaf(-128.0f, sh, s == 0 ? bias_high.x : bias_high.y);
#pragma unroll
        for (int j = 0; j < NT; j++) {
            uint32_t b[8];
            float sum[4], inputs[4];
            q4_inputs<SPLIT>(x.row[j] != NULL ? x.row[j] + u * UNIT_INPUTS + s * 64 + c * 16 : NULL, b);
            mma_bf16_first(sum, a[0], b[0], b[1]);
#pragma unroll
            for (int i = 1; i < 4; i++) mma_bf16(sum, a[i], b[2 * i], b[2 * i + 1]);
            float2 of_inputs;
            if (ONES) {
                mma_bf16_first(inputs, ones, b[0], b[1]);
#pragma unroll
                for (int i = 1; i < 4; i++) mma_bf16(inputs, ones, b[2 * i], b[2 * i + 1]);
                of_inputs = make_float2(inputs[0], inputs[1]);
            } else {
                of_inputs = *(const float2 *)(x.sums + (2 * u + s) * x.sums_stride + 8 * j);
            }
            y[j][0] = fmaf(bl, of_inputs.x, fmaf(sl, sum[0], y[j][0]));
            y[j][1] = fmaf(bl, of_inputs.y, fmaf(sl, sum[1], y[j][1]));
            y[j][2] = fmaf(bh, of_inputs.x, fmaf(sh, sum[2], y[j][2]));
            y[j][3] = fmaf(bh, of_inputs.y, fmaf(sh, sum[3], y[j][3]));
        }
    }
}

// As fetch_first_units and sum_units.
__device__ __forceinline__ struct q4_source q4_fetch_first(const struct weight_view &w, int64_t o0, char *stages,
                                                           int warp, int n_warp) {
    struct q4_source q = q4_open(w, o0, warp);
    int n_unit = (int)(w.n_in / UNIT_INPUTS);
    for (int s = 0; s < Q4_STAGES - 1; s++) {
        if (warp + s * n_warp < n_unit) q4_fetch(&q, shared_address(stages) + s * Q4_UNIT_BYTES, n_warp);
        copies_commit();
    }
    return q;
}

template <int NT, bool ONES, bool SPLIT>
__device__ __forceinline__ void q4_sum_units(struct q4_source q, int n_unit, const struct rows_source<NT> &x,
                                             char *stages, int warp, int n_warp, float y[NT][4]) {
#pragma unroll
    for (int j = 0; j < NT; j++)
        for (int i = 0; i < 4; i++) y[j][i] = 0;
    int next = warp + (Q4_STAGES - 1) * n_warp, stage = 0, ahead = Q4_STAGES - 1;
    uint32_t base = shared_address(stages);
    for (int u = warp; u < n_unit; u += n_warp, next += n_warp) {
        copies_wait<Q4_STAGES - 2>();
        __syncwarp();
        if (next < n_unit) q4_fetch(&q, base + ahead * Q4_UNIT_BYTES, n_warp);
        copies_commit();
        q4_multiply<NT, ONES, SPLIT>(stages + stage * Q4_UNIT_BYTES, u, x, y);
        ahead = stage;
        stage = stage + 1 == Q4_STAGES ? 0 : stage + 1;
    }
    copies_wait<0>();
}

template <int NT> static inline size_t q4_shared_bytes(int n_warp) {
    size_t stages = (size_t)Q4_STAGES * Q4_UNIT_BYTES, parts = (size_t)(16 * 8 * NT) * sizeof(float);
    return (size_t)n_warp * (stages > parts ? stages : parts);
}

#endif
