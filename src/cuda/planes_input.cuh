// Owns how rows are read for planes (planes.cuh).
#ifndef TF_CUDA_PLANES_INPUT_CUH
#define TF_CUDA_PLANES_INPUT_CUH

#include "cuda/device.cuh"

// Rows as an operation gives them; norm_weight: NULL, or they are normed first.
struct plane_input {
    struct tensor x;
    const float *norm_weight;
    float eps;
    bool wide; // fp32 or bf16, and rows begin at 16-byte boundaries
};

static inline struct plane_input plane_input_of(const struct tensor &x, const float *norm_weight, float eps) {
    int64_t size = x.dtype == DTYPE_F32 ? 4 : 2;
    bool wide = x.dtype != DTYPE_F16 && (uintptr_t)x.data % 16 == 0 && x.stride * size % 16 == 0;
    return (struct plane_input){x, norm_weight, eps, wide && (uintptr_t)norm_weight % 16 == 0};
}

#define PLANES_AHEAD 4 // vectors of four inputs that a thread loads at once

// Inputs i, i + step, ..., each with the three that follow; zeros from n_col on. The loads are under way together.
__device__ __forceinline__ void plane_load(const struct plane_input &in, int64_t row, int i, int step,
                                           float4 v[PLANES_AHEAD]) {
    int n = (int)in.x.n_col;
#pragma unroll
    for (int k = 0; k < PLANES_AHEAD; k++) v[k] = make_float4(0, 0, 0, 0);
    if (in.wide && in.x.dtype == DTYPE_F32) {
        const float *from = (const float *)in.x.data + row * in.x.stride + i;
#pragma unroll
        for (int k = 0; k < PLANES_AHEAD; k++)
            if (i + k * step < n) v[k] = *(const float4 *)(from + k * step);
    } else if (in.wide) {
        const __nv_bfloat16 *from = (const __nv_bfloat16 *)in.x.data + row * in.x.stride + i;
        uint2 w[PLANES_AHEAD] = {};
#pragma unroll
        for (int k = 0; k < PLANES_AHEAD; k++)
            if (i + k * step < n) w[k] = *(const uint2 *)(from + k * step);
#pragma unroll
        for (int k = 0; k < PLANES_AHEAD; k++)
            v[k] = make_float4(__uint_as_float(w[k].x << 16), __uint_as_float(w[k].x & 0xffff0000u),
                               __uint_as_float(w[k].y << 16), __uint_as_float(w[k].y & 0xffff0000u));
    } else {
        for (int k = 0; k < PLANES_AHEAD; k++)
            if (i + k * step < n)
                v[k] = make_float4(tensor_load(in.x, row, i + k * step), tensor_load(in.x, row, i + k * step + 1),
                                   tensor_load(in.x, row, i + k * step + 2), tensor_load(in.x, row, i + k * step + 3));
    }
}

__device__ __forceinline__ void plane_weigh(const struct plane_input &in, int i, int step, float4 v[PLANES_AHEAD]) {
    if (in.norm_weight == NULL) return;
    float4 w[PLANES_AHEAD] = {};
#pragma unroll
    for (int k = 0; k < PLANES_AHEAD; k++)
        if (i + k * step < (int)in.x.n_col) {
            const float *from = in.norm_weight + i + k * step;
            w[k] = in.wide ? *(const float4 *)from : make_float4(from[0], from[1], from[2], from[3]);
        }
#pragma unroll
    for (int k = 0; k < PLANES_AHEAD; k++)
        v[k] = make_float4(v[k].x * w[k].x, v[k].y * w[k].y, v[k].z * w[k].z, v[k].w * w[k].w);
}

#endif
