// Owns how the results of a query's chunks become one: in the order of the chunks, whoever made them. A chunk's result
// is the maximum of its scores, the sum of its weights, and one sum of values for each column.
#ifndef TF_CUDA_ATTENTION_MERGE_CUH
#define TF_CUDA_ATTENTION_MERGE_CUH

#include "cuda/planes_make.cuh"

#define MERGE_AHEAD      8                         // chunks whose results are asked for together
#define MERGE_THREADS(D) ((D) < 64 ? 32 : (D) / 2) // each has two columns
#define MERGE_BLOCKS     9                         // of a processor, beside which blocks of the next kernel find room

// Columns col and col + 1, of which the first is even. `part` is the first chunk's result, `step` floats before the
// next one's.
static __device__ __forceinline__ float2 merge_chunks(const float *part, int64_t step, int n_chunk, int col) {
    float most = -INFINITY, sum = 0;
    float2 acc = make_float2(0, 0);
    for (int first = 0; first < n_chunk; first += MERGE_AHEAD, part += MERGE_AHEAD * step) {
        float2 of_chunk[MERGE_AHEAD], x[MERGE_AHEAD];
#pragma unroll
        for (int i = 0; i < MERGE_AHEAD; i++) {
            if (first + i >= n_chunk) continue;
            of_chunk[i] = *(const float2 *)(part + i * step);
            x[i] = *(const float2 *)(part + i * step + 2 + col);
        }
#pragma unroll
        for (int i = 0; i < MERGE_AHEAD; i++) {
            float m = of_chunk[i].x;
            if (first + i >= n_chunk || m == -INFINITY) continue; // it sees nothing of the chunk
            bool larger = m > most;
            float less = expf(larger ? most - m : m - most), fade = larger ? less : 1, weight = larger ? 1 : less;
            acc.x = acc.x * fade + x[i].x * weight;
            acc.y = acc.y * fade + x[i].y * weight;
            sum = sum * fade + of_chunk[i].y * weight;
            most = larger ? m : most;
        }
    }
    float inverse = 1.0f / sum;
    return make_float2(acc.x * inverse, acc.y * inverse);
}

// Planes of a head of row t, whose columns a block's threads have, for the product that follows; of whole units alone.
template <int D>
static __device__ __forceinline__ void leave_head(const struct plane_rows &planes, int64_t t, int head, float2 x) {
    if constexpr (D % PLANES_UNIT == 0) {
        __shared__ __align__(16) float2 values[D / 2];
        if (planes.x == NULL) return;
        values[threadIdx.x] = x;
        __syncthreads();
        int warp = threadIdx.x / 32, unit = head * (D / PLANES_UNIT) + warp;
        if (warp >= D / PLANES_UNIT) return;
        float4 v = ((const float4 *)values)[warp * 32 + threadIdx.x % 32];
        struct planes at = planes_of_row(planes, t);
        plane_store<PLANES_TILE>(v, 0, at.x + unit * (PLANES_TILE * PLANES_UNIT_X), at.notes + unit * PLANES_TILE);
        if (threadIdx.x == 0 && head == 0) planes.factors[t] = 1;
    }
}

#endif
