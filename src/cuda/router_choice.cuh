// Owns the choice of a row's experts from its logits.
#ifndef TF_CUDA_ROUTER_CHOICE_CUH
#define TF_CUDA_ROUTER_CHOICE_CUH

#include "cuda/router.cuh"

// The choice among n experts of R rows by one warp, whose steps wait for each other less than a row's: a lane has every
// 32nd expert. A key is a probability's bits and 1; 0 is an expert that is not there, or is taken. Ties go to the lower
// id. put(r, s, id, p) is called by all lanes, in the order of the slots; `chosen` are the sums of the probabilities.
template <int PER, int R, typename PUT>
static __device__ __forceinline__ void choose_experts_of(const float *const logits[R], int n, int n_used,
                                                         float chosen[R], PUT put) {
    // Code that runs once is waited for, so up to here it has no branches; with more of a row they cost registers.
    constexpr bool SHORT = PER <= 8;
    int lane = threadIdx.x % 32;
    float p[R][PER];
    uint32_t key[R][PER];
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < PER; i++) p[r][i] = lane + 32 * i < n ? __ldcg(logits[r] + lane + 32 * i) : -INFINITY;
#pragma unroll
    for (int r = 0; r < R; r++) {
        float most = -INFINITY, sum = 0;
#pragma unroll
        for (int i = 0; i < PER; i++) most = fmaxf(most, p[r][i]);
        most = warp_max(most);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            p[r][i] = SHORT || lane + 32 * i < n ? expf(p[r][i] - most) : 0.0f; // 0 of what is not there
            sum += p[r][i];
        }
        sum = warp_sum(sum);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if constexpr (SHORT) {
                uint32_t bits = __float_as_uint(p[r][i] / sum) + 1;
                key[r][i] = lane + 32 * i < n ? bits : 0;
            } else {
                key[r][i] = lane + 32 * i < n ? __float_as_uint(p[r][i] / sum) + 1 : 0;
            }
        }
        chosen[r] = 0;
    }
#pragma unroll 1
    for (int s = 0; s < n_used; s++) {
        uint32_t top[R];
        int id[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint32_t best = 0;
#pragma unroll
            for (int i = 0; i < PER; i++) best = max(best, key[r][i]);
            top[r] = __reduce_max_sync(0xffffffffu, best);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint32_t found = 0xffffffffu;
#pragma unroll
            for (int i = 0; i < PER; i++)
                found = min(found, key[r][i] == top[r] ? (uint32_t)(lane + 32 * i) : 0xffffffffu);
            id[r] = (int)__reduce_min_sync(0xffffffffu, found);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
#pragma unroll
            for (int i = 0; i < PER; i++)
                if (id[r] == lane + 32 * i) key[r][i] = 0;
            float value = __uint_as_float(top[r] - 1);
            chosen[r] += value;
            put(r, s, id[r], value);
        }
    }
}

// Of one row; the sum is returned.
template <int PER, typename PUT>
static __device__ __forceinline__ float choose_experts(const float *logits, int n, int n_used, PUT put) {
    const float *const rows[1] = {logits};
    float chosen[1];
    choose_experts_of<PER, 1>(rows, n, n_used, chosen, [&](int, int s, int id, float p) { put(s, id, p); });
    return chosen[0];
}

template <int PER> static __device__ __forceinline__ void router_choose(const struct router_job &job, int64_t t) {
    int n = (int)job.gate.n_out, lane = threadIdx.x % 32;
    const float *logits = job.logits + t * (n + 1);
    int32_t *ids = job.ids + t * job.n_used;
    float *weights = job.weights + t * job.n_used;
    float chosen = choose_experts<PER>(logits, n, job.n_used, [&](int s, int id, float p) {
        if (lane != s % 32) return;
        ids[s] = id;
        weights[s] = p;
    });
    for (int s = lane; s < job.n_used; s += 32) weights[s] /= chosen;
    if (lane == 0 && job.has_shared) job.shared[t] = sigmoid_of(__ldcg(logits + n));
}

#endif
