// Owns the choice of a row's experts from its logits.
#ifndef TF_CUDA_ROUTER_CHOICE_CUH
#define TF_CUDA_ROUTER_CHOICE_CUH

#include "cuda/router.cuh"

// The choice for one row by one warp: a lane has every 32nd expert. A key is a probability's bits and 1; 0 is an expert
// that is not there, or is taken. Ties go to the lower id.
template <int PER> static __device__ __forceinline__ void router_choose(const struct router_job &job, int64_t t) {
    int n = (int)job.gate.n_out, lane = threadIdx.x % 32;
    const float *logits = job.logits + t * (n + 1);
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
    float chosen = 0, mine = 0; // mine: of the slot that this lane writes
    int mine_id = 0;
    for (int s = 0; s < job.n_used; s++) {
        uint32_t best = 0;
        int id = n;
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (key[i] > best) {
                best = key[i];
                id = lane + 32 * i;
            }
        uint32_t top = __reduce_max_sync(0xffffffffu, best);
        id = (int)__reduce_min_sync(0xffffffffu, best == top ? (uint32_t)id : 0xffffffffu);
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (id == lane + 32 * i) key[i] = 0;
        float value = __uint_as_float(top - 1);
        chosen += value;
        if (lane == s % 32) {
            mine = value;
            mine_id = id;
        }
        if (s % 32 == 31 || s + 1 == job.n_used) {
            int64_t slot = t * job.n_used + s / 32 * 32 + lane;
            if (s / 32 * 32 + lane <= s) {
                job.ids[slot] = mine_id;
                job.weights[slot] = mine;
            }
        }
    }
    for (int s = lane; s < job.n_used; s += 32) job.weights[t * job.n_used + s] /= chosen;
    if (lane == 0 && job.has_shared) job.shared[t] = sigmoid_of(__ldcg(logits + n));
}

#endif
