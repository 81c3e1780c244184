// Owns finding the largest of many logits, in order: what a row's alternatives and a drafter's candidates are. A logit
// and its id are one number whose order is that of the list: falling logits, ties to the lower id. Each warp of a block
// lists the largest of its own, and one warp lists the largest of those.
#ifndef TF_CUDA_DRAW_TOPS_CUH
#define TF_CUDA_DRAW_TOPS_CUH

#include "cuda/draw.cuh"

#define DRAW_WARPS (DRAW_THREADS / 32)

typedef unsigned long long draw_key; // 0: none

struct draw_lists {
    draw_key of[DRAW_WARPS][DRAW_MAX_TOP];
};

// Any logit that is a number or an infinity.
__device__ __forceinline__ draw_key draw_place_of(float x, int32_t id) {
    uint32_t bits = __float_as_uint(x + 0.0f); // both zeros are one
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (draw_key)bits << 32 | (0xffffffffu - (uint32_t)id);
}
__device__ __forceinline__ draw_key draw_key_of(float x, int32_t id) {
    return id < 0 || !(x > -INFINITY) ? 0 : draw_place_of(x, id);
}
__device__ __forceinline__ int32_t draw_key_id(draw_key key) {
    return key == 0 ? -1 : (int32_t)(0xffffffffu - (uint32_t)key);
}
__device__ __forceinline__ float draw_key_logit(draw_key key) {
    uint32_t bits = (uint32_t)(key >> 32);
    return __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

// Of a warp's.
__device__ __forceinline__ draw_key draw_largest_key(draw_key own) {
    uint32_t high = __reduce_max_sync(0xffffffffu, (uint32_t)(own >> 32));
    uint32_t low = __reduce_max_sync(0xffffffffu, (uint32_t)(own >> 32) == high ? (uint32_t)own : 0u);
    return (draw_key)high << 32 | low;
}

// The n largest of a warp's keys, each of which is there once, to `list`. Uses up the keys.
template <int PER> __device__ __forceinline__ void draw_list_keys(draw_key (&keys)[PER], int n, draw_key *list) {
    draw_key own = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) own = max(own, keys[i]);
    for (int k = 0; k < n; k++) {
        draw_key best = draw_largest_key(own);
        if (threadIdx.x % 32 == 0) list[k] = best;
        if (own != best) continue;
        own = 0;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (keys[i] == best) keys[i] = 0;
            own = max(own, keys[i]);
        }
    }
    __syncwarp();
}

// By the first warp, once all have listed theirs: the largest of all, in lists->of[0].
__device__ __forceinline__ void draw_join_lists(int n, struct draw_lists *lists) {
    constexpr int PER = (DRAW_WARPS * DRAW_MAX_TOP + 31) / 32;
    draw_key keys[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        int at = (int)threadIdx.x + 32 * i, list = at / DRAW_MAX_TOP, k = at % DRAW_MAX_TOP;
        keys[i] = list < DRAW_WARPS && k < n ? lists->of[list][k] : 0;
    }
    __syncwarp();
    draw_list_keys<PER>(keys, n, lists->of[0]);
}

#endif
