// Owns the chain of a row of attention in FORM_PROMPT: how the scores of a tile of 64 keys become weights, for a warp
// that has 16 rows in the sums of m16n8k16.
#ifndef TF_CUDA_ATTENTION_CHAIN_CUH
#define TF_CUDA_ATTENTION_CHAIN_CUH

#include "cuda/attention_tiles.cuh"

// A warp's 16 rows: rows lane / 4 and lane / 4 + 8 are this thread's.
struct chain_state {
    float max[2], sum[2];
};

// Scores become weights; returns by how much earlier results fade. Row i sees keys below visible[i] of the tile.
// `rows`: the keys' and values' scales, or NULL where they have none.
__device__ __forceinline__ void weigh_tile(const struct attention_job &job, const struct tile_rows *rows,
                                           const int visible[2], float c[8][4], struct chain_state *st, float fade[2]) {
    int col0 = 2 * (threadIdx.x % 4);
    bool scaled = rows != NULL;
    float most[2] = {st->max[0], st->max[1]}, sum[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int key = 8 * j + col0 + i % 2;
            bool sees = key < visible[i / 2];
            c[j][i] = sees ? c[j][i] * (scaled ? job.scale * rows->k_scale[key] : job.scale) : -INFINITY;
            most[i / 2] = fmaxf(most[i / 2], c[j][i]);
        }
    for (int h = 0; h < 2; h++) {
        most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffffu, most[h], 1));
        most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffffu, most[h], 2));
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int key = 8 * j + col0 + i % 2;
            float p = key < visible[i / 2] ? __expf(c[j][i] - most[i / 2]) : 0.0f;
            sum[i / 2] += p;
            c[j][i] = scaled && p > 0 ? p * rows->v_scale[key] : p;
        }
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
        fade[h] = visible[h] > 0 ? __expf(st->max[h] - most[h]) : 1.0f;
        st->sum[h] = st->sum[h] * fade[h] + sum[h];
        if (visible[h] > 0) st->max[h] = most[h];
    }
}

#endif
