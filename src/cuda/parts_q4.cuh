// Owns adding up the warps that share the sums of a tile (product_q4.cuh), in shared memory.
#ifndef TF_CUDA_PARTS_Q4_CUH
#define TF_CUDA_PARTS_Q4_CUH

#include "cuda/product_q4.cuh"

// The warps' sums of one tile. parts: [warp][column][16 MT].
template <int MT, int NT>
__device__ __forceinline__ void q4_put_part(float *parts, int warp, int n_column, const float y[MT][NT][2]) {
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    float *mine = parts + warp * n_column * 16 * MT + g;
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int n = 4 * j + c;
                if (n < n_column) mine[n * 16 * MT + t * 16 + i * 8] = y[t][j][i];
            }
}

// Calls out(m, n, sum) once an element, by neighbouring threads for neighbouring outputs m of the tile.
template <int MT, typename OUT>
__device__ __forceinline__ void q4_add_some(const float *parts, int n_column, int n_sharing, OUT out) {
    int n_output = Q4_WARPS / n_sharing * 16 * MT, stride = n_column * 16 * MT;
    for (int e = threadIdx.x % Q4_THREADS; e < n_output * n_column; e += Q4_THREADS) {
        int m = e % n_output, n = e / n_output;
        const float *part = parts + m / (16 * MT) * n_sharing * stride + n * 16 * MT + m % (16 * MT);
        float p[Q4_WARPS];
#pragma unroll
        for (int k = 0; k < Q4_WARPS; k++) p[k] = k < n_sharing ? part[k * stride] : 0.0f;
        out(m, n, ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7])));
    }
}
template <int MT, typename OUT>
__device__ __forceinline__ void q4_add_parts(const float *parts, int n_column, int n_sharing, OUT out) {
    if (n_sharing == Q4_WARPS)
        q4_add_some<MT>(parts, n_column, Q4_WARPS, out);
    else
        q4_add_some<MT>(parts, n_column, n_sharing, out);
}

#endif
