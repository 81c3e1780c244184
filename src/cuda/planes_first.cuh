// Owns planes of a round's only row, made by each block that multiplies with it (planes_make.cuh has the others).
#ifndef TF_CUDA_PLANES_FIRST_CUH
#define TF_CUDA_PLANES_FIRST_CUH

#include "cuda/planes_make.cuh"

// Brings a row's units nearer, when they are there.
__device__ __forceinline__ void near_units(const float *row, int n_unit, int warp, int n_warp) {
    int lane = threadIdx.x % 32;
    for (int unit = warp + lane / 4 * n_warp; unit < n_unit; unit += 8 * n_warp)
        asm volatile("prefetch.global.L1 [%0];" ::"l"(row + unit * PLANES_UNIT + lane % 4 * 32));
}

// Loads that stay ahead of what needs them.
__device__ __forceinline__ float4 load_ahead(const float *from) {
    float4 v;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    return v;
}

// Planes of the first row, by blocks that multiply with them and are short of registers: a warp has three units on the
// way, and the others nearer. Where all blocks make planes of their own rows, that is slower than make_planes.
__device__ __forceinline__ void make_first_planes(const struct plane_input &in, int n_unit, const struct planes &p,
                                                  int warp, int n_warp) {
    constexpr int AHEAD = 3;
    int at = threadIdx.x % 32 * 4;
    bool fast = in.wide && in.x.dtype == DTYPE_F32;
    const float *from = (const float *)in.x.data + at;
    float4 v[AHEAD] = {};
    if (fast) {
#pragma unroll
        for (int k = 0; k < AHEAD; k++) v[k] = load_ahead(from + min(warp + k * n_warp, n_unit - 1) * PLANES_UNIT);
        near_units(from - at, n_unit, warp, n_warp);
    }
#pragma unroll 1
    for (int unit = warp; unit < n_unit; unit += n_warp) {
        float4 x = fast ? v[0] : plane_load(in, 0, unit * PLANES_UNIT + at);
#pragma unroll
        for (int k = 0; k + 1 < AHEAD; k++) v[k] = v[k + 1];
        if (fast) v[AHEAD - 1] = load_ahead(from + min(unit + AHEAD * n_warp, n_unit - 1) * PLANES_UNIT);
        float squares = 0;
        if (in.norm_weight != NULL) {
            float4 w = plane_weight(in, unit * PLANES_UNIT + at);
            squares = warp_sum(fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, x.w * x.w))));
            x = make_float4(x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w);
        }
        plane_store<1>(x, squares, p.x + unit * PLANES_UNIT_X, p.notes + unit);
    }
}

// Those that whoever has written the row has left, from global memory: where a block's own lie.
__device__ __forceinline__ void copy_first_planes(const struct plane_rows &from, int n_unit, const struct planes &p) {
    constexpr int PIECES = PLANES_UNIT_X / 16;
#pragma unroll 2
    for (int i = threadIdx.x; i < n_unit * PIECES; i += blockDim.x)
        ((uint4 *)p.x)[i] = *(const uint4 *)(from.x + i / 8 * (PLANES_TILE * 128) + i % 8 * 16);
    for (int i = threadIdx.x; i < n_unit; i += blockDim.x)
        *(float4 *)(p.notes + i) = *(const float4 *)(from.notes + i * PLANES_TILE);
}

#endif
