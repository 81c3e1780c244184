// Owns what the two forms of the delta rule share: where a lane's state and log lie, and the terms of one row.
#ifndef TF_CUDA_DELTA_CUH
#define TF_CUDA_DELTA_CUH

#include "cuda/device.cuh"

#define DELTA_MAX_DIM  128 // of keys and of values
#define L2_EPS         1e-6f
#define SOFTPLUS_LIMIT 20.0f

struct delta_shape {
    int n_key_head, n_value_head, key_dim, value_dim, r; // r: value heads of a key head
    int64_t state_offset, log_offset;
    int n_slot; // of the log: 2 W
};

struct delta_job {
    struct batch_view batch;
    struct delta_shape shape;
    struct tensor c, a, b, z, out;
    const float *neg_a, *dt_bias, *out_norm;
    float eps;
    int gate_sigmoid;
};

static inline struct delta_job delta_job_of(const struct delta_args *a, const struct batch_view *b) {
    struct delta_job job = {*b,
                            {a->n_key_head, a->n_value_head, a->key_dim, a->value_dim, a->n_value_head / a->n_key_head,
                             a->state_offset, a->log_offset, 2 * a->batch->max_window},
                            a->c,
                            a->a,
                            a->b,
                            a->z,
                            a->out,
                            a->neg_a,
                            a->dt_bias,
                            a->out_norm,
                            a->eps,
                            a->gate_sigmoid};
    return job;
}

__device__ __forceinline__ float *delta_state(const struct delta_shape &s, char *run, int head) {
    return (float *)(run + s.state_offset) + (int64_t)head * s.key_dim * s.value_dim;
}
// Of the log, whose slots positions take by turns.
__device__ __forceinline__ float *delta_log_k(const struct delta_shape &s, char *run, int slot, int key_head) {
    return (float *)(run + s.log_offset) + ((int64_t)slot * s.n_key_head + key_head) * s.key_dim;
}
__device__ __forceinline__ float *delta_log_d(const struct delta_shape &s, char *run, int slot, int head) {
    return (float *)(run + s.log_offset) + (int64_t)s.n_slot * s.n_key_head * s.key_dim +
           ((int64_t)slot * s.n_value_head + head) * s.value_dim;
}
__device__ __forceinline__ float *delta_log_g(const struct delta_shape &s, char *run, int slot, int head) {
    return (float *)(run + s.log_offset) +
           (int64_t)s.n_slot * (s.n_key_head * s.key_dim + s.n_value_head * s.value_dim) +
           (int64_t)slot * s.n_value_head + head;
}

// One warp: key_dim elements of row t from column `col` on, scaled to unit length times `factor`; zeros up to
// DELTA_MAX_DIM. x is in shared memory.
__device__ __forceinline__ void unit_row(const struct tensor &c, int64_t t, int64_t col, int n, float factor,
                                         float *x) {
    int lane = threadIdx.x % 32;
    float v[DELTA_MAX_DIM / 32], squares = 0;
#pragma unroll
    for (int k = 0; k < DELTA_MAX_DIM / 32; k++) {
        int i = lane + 32 * k;
        v[k] = i < n ? tensor_load(c, t, col + i) : 0.0f;
        squares += v[k] * v[k];
    }
    float inverse = 1.0f / sqrtf(warp_sum(squares) + L2_EPS) * factor;
#pragma unroll
    for (int k = 0; k < DELTA_MAX_DIM / 32; k++) x[lane + 32 * k] = v[k] * inverse;
}

__device__ __forceinline__ void delta_gates_of(float a, float b, float neg_a, float dt_bias, float *g, float *beta) {
    float x = a + dt_bias;
    *g = neg_a * (x > SOFTPLUS_LIMIT ? x : log1pf(expf(x)));
    *beta = sigmoid_of(b);
}
__device__ __forceinline__ void delta_gates(const struct delta_job &job, int64_t t, int head, float *g, float *beta) {
    delta_gates_of(tensor_load(job.a, t, head), tensor_load(job.b, t, head), job.neg_a[head], job.dt_bias[head], g,
                   beta);
}

__device__ __forceinline__ float delta_gate(const struct delta_job &job, float z) {
    return job.gate_sigmoid ? sigmoid_of(z) : silu_of(z);
}

void delta_prompt(struct cuda_device *d, const struct delta_args *a, const struct batch_view *b);
size_t need_delta_prompt(const struct device_limits *l);

#endif
