// Owns the choice of a row's experts from its logits.
#ifndef TF_CUDA_ROUTER_CHOICE_CUH
#define TF_CUDA_ROUTER_CHOICE_CUH

#include "cuda/router.cuh"

// The choice among n experts of one row by one warp: a lane has every 32nd expert. A key is a probability's bits and 1;
// 0 is an expert that is not there, or is taken. Ties go to the lower id. put(s, id, p) is called by all lanes, in the
// order of the slots; the sum of the probabilities chosen is returned.
template <int PER, typename PUT>
static __device__ __forceinline__ float choose_experts(const float *logits, int n, int n_used, PUT put) {
    int lane = threadIdx.x % 32;
    float p[PER], most = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        p[i] = lane + 32 * i < n ? __ldcg(logits + lane + 32 * i) : -INFINITY;
        most = fmaxf(most, p[i]);
    }
    most = warp_max(most);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        p[i] = lane + 32 * i < n ? expf(p[i] - most) : 0.0f;
        sum += p[i];
    }
    sum = warp_sum(sum);
    uint32_t key[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) key[i] = lane + 32 * i < n ? __float_as_uint(p[i] / sum) + 1 : 0;
    float chosen = 0;
    for (int s = 0; s < n_used; s++) {
        uint32_t best = 0, found = 0xffffffffu;
#pragma unroll
        for (int i = 0; i < PER; i++) best = max(best, key[i]);
        uint32_t top = __reduce_max_sync(0xffffffffu, best);
#pragma unroll
        for (int i = 0; i < PER; i++) found = min(found, key[i] == top ? (uint32_t)(lane + 32 * i) : 0xffffffffu);
        int id = (int)__reduce_min_sync(0xffffffffu, found);
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (id == lane + 32 * i) key[i] = 0;
        float value = __uint_as_float(top - 1);
        chosen += value;
        put(s, id, value);
    }
    return chosen;
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
