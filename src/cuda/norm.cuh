// Owns norms of a round's rows, whoever writes them: a block has a row, a thread eight elements of it, and planes are
// left for the product that follows. Short, since instructions come from memory as a rule.
#ifndef TF_CUDA_NORM_CUH
#define TF_CUDA_NORM_CUH

#include "cuda/planes_make.cuh"

#define NORM_MOST 1024 // threads of a block

struct norm_job {
    struct tensor out;
    const float *weight;
    float eps;
    struct plane_rows planes;
};

// Whether such rows can be normed so, which follows from their form.
static inline bool make_norm_job(struct cuda_device *d, const struct tensor &out, const float *weight, float eps,
                                 struct norm_job *job) {
    *job = {out, weight, eps, {}};
    return rows_are_wide(out) && (uintptr_t)weight % 16 == 0 && out.n_col <= 8 * NORM_MOST &&
           leave_planes(d, out, 2 * PLANES_UNIT, &job->planes);
}

__device__ __forceinline__ void load_wide(const float *from, float v[8]) {
    *(float4 *)v = *(const float4 *)from;
    *(float4 *)(v + 4) = *(const float4 *)(from + 4);
}

// By all threads of a block, each with its elements of the row and their weights; shared: 33.
__device__ __forceinline__ void norm_row(const struct norm_job &job, const float weight[8], const float v[8],
                                         float *shared) {
    int lane = threadIdx.x % 32, i = threadIdx.x * 8;
    float squares = 0, y[8];
#pragma unroll
    for (int k = 0; k < 8; k++) squares += v[k] * v[k];
    float inverse = rsqrtf(block_sum(squares, shared) / (float)job.out.n_col + job.eps);
#pragma unroll
    for (int k = 0; k < 8; k++) y[k] = v[k] * inverse * weight[k];
    float4 *to = (float4 *)((float *)job.out.data + blockIdx.x * job.out.stride + i);
    to[0] = *(const float4 *)y;
    to[1] = *(const float4 *)(y + 4);
    struct planes at = planes_of_row(job.planes, blockIdx.x);
#pragma unroll 1
    for (int h = 0; h < 2; h++) { // a warp has two units: lane l of one gets what lane 16 h + l / 2 has
        float u[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float even = __shfl_sync(0xffffffffu, y[k], 16 * h + lane / 2),
                  odd = __shfl_sync(0xffffffffu, y[4 + k], 16 * h + lane / 2);
            u[k] = lane % 2 == 0 ? even : odd;
        }
        int unit = (int)threadIdx.x / 32 * 2 + h;
        plane_store<PLANES_TILE>(make_float4(u[0], u[1], u[2], u[3]), 0, at.x + unit * (PLANES_TILE * PLANES_UNIT_X),
                                 at.notes + unit * PLANES_TILE);
    }
    if (threadIdx.x == 0) job.planes.factors[blockIdx.x] = 1;
}

#endif
