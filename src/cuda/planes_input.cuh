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

// Inputs i to i + 3 of a row.
__device__ __forceinline__ float4 plane_load(const struct plane_input &in, int64_t row, int i) {
    if (in.wide && in.x.dtype == DTYPE_F32) return *(const float4 *)((const float *)in.x.data + row * in.x.stride + i);
    if (in.wide) {
        uint2 w = *(const uint2 *)((const __nv_bfloat16 *)in.x.data + row * in.x.stride + i);
        float2 a = unpack_bf16(w.x), b = unpack_bf16(w.y);
        return make_float4(a.x, a.y, b.x, b.y);
    }
    return make_float4(tensor_load(in.x, row, i), tensor_load(in.x, row, i + 1), tensor_load(in.x, row, i + 2),
                       tensor_load(in.x, row, i + 3));
}

// The norm's weight for them; there is one.
__device__ __forceinline__ float4 plane_weight(const struct plane_input &in, int i) {
    const float *from = in.norm_weight + i;
    return in.wide ? *(const float4 *)from : make_float4(from[0], from[1], from[2], from[3]);
}

#endif
