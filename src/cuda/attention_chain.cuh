// Owns the chain of a row of attention in FORM_PROMPT: how the scores of a tile of 64 keys become weights, for a warp
// that has 16 rows in the sums of m16n8k16.
#ifndef TF_CUDA_ATTENTION_CHAIN_CUH
#define TF_CUDA_ATTENTION_CHAIN_CUH

#include "cuda/attention_tiles.cuh"

// A warp's 16 rows: rows lane / 4 and lane / 4 + 8 are this thread's. max is of scores that are not scaled yet.
struct chain_state {
    float max[2], sum[2];
};

// A tile's scales of keys and of values; NULL where they have none.
struct tile_scales {
    const float *k, *v;
};

static __device__ __forceinline__ float2 scales_of(const float *scales, int key) {
    return scales != NULL ? *(const float2 *)(scales + key) : make_float2(1, 1);
}

// As weigh_tile. A tile that all rows of the warp see whole is weighed without MASKED, to the same bits.
template <bool MASKED>
__device__ __forceinline__ void weigh_keys(float factor, const struct tile_scales &scales, const int visible[2],
                                           float c[8][4], struct chain_state *st, float fade[2]) {
    int col0 = 2 * (threadIdx.x % 4);
    float most[2] = {st->max[0], st->max[1]}, sum[2] = {0, 0}, shift[2];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 of_keys = scales_of(scales.k, 8 * j + col0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (scales.k != NULL) c[j][i] *= i % 2 == 0 ? of_keys.x : of_keys.y;
            if (MASKED && 8 * j + col0 + i % 2 >= visible[i / 2]) c[j][i] = -INFINITY;
            most[i / 2] = fmaxf(most[i / 2], c[j][i]);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffffu, most[h], 1));
        most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffffu, most[h], 2));
        shift[h] = -most[h] * factor;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 of_values = scales_of(scales.v, 8 * j + col0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bool sees = !MASKED || 8 * j + col0 + i % 2 < visible[i / 2];
            float p = sees ? power_of_two(fmaf(c[j][i], factor, shift[i / 2])) : 0.0f;
            sum[i / 2] += p;
            if (scales.v != NULL && sees) p *= i % 2 == 0 ? of_values.x : of_values.y;
            c[j][i] = p;
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
        bool any = !MASKED || visible[h] > 0;
        fade[h] = any ? power_of_two((st->max[h] - most[h]) * factor) : 1.0f;
        st->sum[h] = st->sum[h] * fade[h] + sum[h];
        if (any) st->max[h] = most[h];
    }
}

// Scores become weights; returns by how much earlier results fade. The warp's first row sees n_visible keys of the tile
// if those are in it, each row after it one more.
__device__ __forceinline__ void weigh_tile(const struct attention_job &job, const struct tile_scales &scales,
                                           int n_visible, float c[8][4], struct chain_state *st, float fade[2]) {
    float factor = job.scale * LOG2_E;
    int visible[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        visible[h] = max(0, min(CUDA_TILE_KEYS, n_visible + (int)(threadIdx.x % 32 / 4) + 8 * h));
    if (n_visible >= CUDA_TILE_KEYS)
        weigh_keys<false>(factor, scales, visible, c, st, fade);
    else
        weigh_keys<true>(factor, scales, visible, c, st, fade);
}

#endif
