// Owns adding up the warps that share the sums of a tile (product_q4.cuh), in shared memory.
#ifndef TF_CUDA_PARTS_Q4_CUH
#define TF_CUDA_PARTS_Q4_CUH

#include "cuda/product_q4.cuh"

__device__ __forceinline__ int q4_team() { return threadIdx.x / Q4_THREADS; }

// Of a team. Barriers by constant numbers, since a kernel is given all that it might use.
template <int TEAMS> __device__ __forceinline__ void q4_barrier() {
    static_assert(TEAMS <= 4, "a barrier for each team");
    int team = q4_team();
    if (TEAMS == 1)
        __syncthreads();
    else if (team == 0)
        asm volatile("bar.sync 1, %0;" ::"n"(Q4_THREADS) : "memory");
    else if (TEAMS == 2 || team == 1)
        asm volatile("bar.sync 2, %0;" ::"n"(Q4_THREADS) : "memory");
    else if (TEAMS == 3 || team == 2)
        asm volatile("bar.sync 3, %0;" ::"n"(Q4_THREADS) : "memory");
    else
        asm volatile("bar.sync 4, %0;" ::"n"(Q4_THREADS) : "memory");
}

template <int MT, int NT> __host__ __device__ constexpr int q4_part_buffers() { return MT * NT <= 2 ? 2 : 1; }

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

// The sum of those at `part`, `stride` floats from each other.
__device__ __forceinline__ float q4_sum_parts(const float *part, int stride, int n_sharing) {
    float p[Q4_WARPS];
#pragma unroll
    for (int k = 0; k < Q4_WARPS; k++) p[k] = k < n_sharing ? part[k * stride] : 0.0f;
    return ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
}

// Calls out(m, n, sum) once an element, by neighbouring threads for neighbouring outputs m of the tile.
template <int MT, typename OUT>
__device__ __forceinline__ void q4_add_some(const float *parts, int n_column, int n_sharing, OUT out) {
    int n_output = Q4_WARPS / n_sharing * 16 * MT, stride = n_column * 16 * MT;
    for (int e = threadIdx.x % Q4_THREADS; e < n_output * n_column; e += Q4_THREADS) {
        int m = e % n_output, n = e / n_output;
        const float *part = parts + m / (16 * MT) * n_sharing * stride + n * 16 * MT + m % (16 * MT);
        out(m, n, q4_sum_parts(part, stride, n_sharing));
    }
}
template <int MT, typename OUT>
__device__ __forceinline__ void q4_add_parts(const float *parts, int n_column, int n_sharing, OUT out) {
    if (n_sharing == Q4_WARPS)
        q4_add_some<MT>(parts, n_column, Q4_WARPS, out);
    else
        q4_add_some<MT>(parts, n_column, n_sharing, out);
}

// Of tiles of two matrices (q4_open): out(m, n, first, second). All warps share a sum.
template <int MT, typename OUT>
__device__ __forceinline__ void q4_add_pairs(const float *parts, int n_column, OUT out) {
    int stride = n_column * 16 * MT;
    for (int e = threadIdx.x % Q4_THREADS; e < 8 * MT * n_column; e += Q4_THREADS) {
        int m = e % (8 * MT), n = e / (8 * MT);
        const float *part = parts + n * 16 * MT + m / 8 * 16 + m % 8;
        out(m, n, q4_sum_parts(part, stride, Q4_WARPS), q4_sum_parts(part + 8, stride, Q4_WARPS));
    }
}

// The team's sums of a tile, which is its `turn`th, go where the job wants them.
template <int MT, int NT, int TEAMS, bool PAIR, typename JOB>
__device__ __forceinline__ void q4_finish_tile(JOB &job, int tile, int turn, int sharing, int n_column_most,
                                               float *parts, const float y[MT][NT][2]) {
    if (q4_part_buffers<MT, NT>() == 2)
        parts += turn % 2 * (Q4_WARPS * n_column_most * 16 * MT);
    else
        q4_barrier<TEAMS>(); // the tile before has been read
    int n_column = job.n_column(tile);
    q4_put_part<MT, NT>(parts, threadIdx.x / 32 % Q4_WARPS, n_column, y);
    q4_barrier<TEAMS>();
    if constexpr (PAIR)
        q4_add_pairs<MT>(parts, n_column, [&](int m, int n, float a, float b) { job.store(tile, m, n, a, b); });
    else
        q4_add_parts<MT>(parts, n_column, sharing, [&](int m, int n, float sum) { job.store(tile, m, n, sum); });
}

#endif
