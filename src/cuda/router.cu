// router: products in fp32, so that the choice does not depend on a rounding to bf16. One warp an expert and eight
// rows; a lane sums every 32nd block of eight inputs, and the lanes' sums are added in a tree.
#include "cuda/weights.cuh"

#define WARPS 8
#define ROWS  8

struct router_job {
    struct weight_view gate, shared_gate;
    struct tensor x;
    bool has_shared;
    int n_used;
    float *logits; // [T][E + 1]: the last is the shared gate's
    int32_t *ids;
    float *weights, *shared;
};

// Eight weights of a row from input k on, k a multiple of 8; zeros after the last.
static __device__ __forceinline__ void eight_weights(const struct weight_view &w, int64_t row, int64_t k,
                                                     float out[8]) {
    const char *data = w.data + row * w.row_bytes;
    bool whole = k + 8 <= w.n_in;
    if (whole && w.weight_class == CLASS_BF16 && ((uintptr_t)(data + 2 * k) & 15) == 0) {
        uint4 v = *(const uint4 *)(data + 2 * k);
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        for (int i = 0; i < 4; i++) {
            out[2 * i] = __uint_as_float(words[i] << 16);
            out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    } else if (whole && w.weight_class == CLASS_Q8) {
        int64_t g = row * w.n_group + k / w.group;
        float scale = load_float(w.scales, w.dtype, g), bias = load_float(w.biases, w.dtype, g);
        const uint32_t *words = (const uint32_t *)(data + k);
        for (int i = 0; i < 8; i++) out[i] = fmaf((float)(words[i / 4] >> (i % 4 * 8) & 0xff), scale, bias);
    } else {
        for (int i = 0; i < 8; i++) out[i] = k + i < w.n_in ? weight_element(w, row, k + i) : 0.0f;
    }
}

static __device__ __forceinline__ void eight_inputs(const struct tensor &x, int64_t t, int64_t k, float out[8]) {
    const __nv_bfloat16 *row = (const __nv_bfloat16 *)x.data + t * x.stride + k;
    if (x.dtype == DTYPE_BF16 && ((uintptr_t)row & 15) == 0 && k + 8 <= x.n_col) {
        uint4 v = *(const uint4 *)row;
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        for (int i = 0; i < 4; i++) {
            out[2 * i] = __uint_as_float(words[i] << 16);
            out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
        return;
    }
    for (int i = 0; i < 8; i++) out[i] = k + i < x.n_col ? tensor_load(x, t, k + i) : 0.0f;
}

static __global__ void __launch_bounds__(32 * WARPS) router_logits_kernel(const __grid_constant__ router_job job) {
    begin_kernel();
    int64_t e = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, t0 = (int64_t)blockIdx.y * ROWS;
    int64_t n_expert = job.gate.n_out, stride = n_expert + 1;
    bool is_shared = e == n_expert;
    if (e > n_expert || (is_shared && !job.has_shared)) return;
    const struct weight_view &w = is_shared ? job.shared_gate : job.gate;
    int lane = threadIdx.x % 32;
    float sum[ROWS] = {};
    for (int64_t k = lane * 8; k < w.n_in; k += 32 * 8) {
        float weight[8], x[8];
        eight_weights(w, is_shared ? 0 : e, k, weight);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (t0 + r >= job.x.n_row) continue;
            eight_inputs(job.x, t0 + r, k, x);
            for (int i = 0; i < 8; i++) sum[r] = fmaf(x[i], weight[i], sum[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float total = warp_sum(sum[r]);
        if (lane == 0 && t0 + r < job.x.n_row) job.logits[(t0 + r) * stride + e] = total;
    }
}

// The largest p, ties to the lower id; every lane gets both.
static __device__ __forceinline__ void warp_largest(float *p, int *id) {
    for (int step = 16; step > 0; step >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, *p, step);
        int other_id = __shfl_xor_sync(0xffffffffu, *id, step);
        if (other > *p || (other == *p && other_id < *id)) {
            *p = other;
            *id = other_id;
        }
    }
}

// One warp a row.
static __global__ void router_choose_kernel(const __grid_constant__ router_job job) {
    extern __shared__ float p[];
    begin_kernel();
    int n = (int)job.gate.n_out, lane = threadIdx.x;
    int64_t t = blockIdx.x;
    const float *logits = job.logits + t * (n + 1);
    float most = -INFINITY, sum = 0;
    for (int e = lane; e < n; e += 32) most = fmaxf(most, logits[e]);
    most = warp_max(most);
    for (int e = lane; e < n; e += 32) sum += p[e] = expf(logits[e] - most);
    sum = warp_sum(sum);
    for (int e = lane; e < n; e += 32) p[e] /= sum;
    __syncwarp();
    float chosen = 0;
    for (int s = 0; s < job.n_used; s++) {
        float best = -2;
        int id = n;
        for (int e = lane; e < n; e += 32)
            if (p[e] > best) {
                best = p[e];
                id = e;
            }
        warp_largest(&best, &id);
        chosen += best;
        if (lane == 0) {
            job.ids[t * job.n_used + s] = id;
            job.weights[t * job.n_used + s] = best;
            p[id] = -1; // below every probability
        }
        __syncwarp();
    }
    for (int s = lane; s < job.n_used; s += 32) job.weights[t * job.n_used + s] /= chosen;
    if (lane == 0 && job.has_shared) job.shared[t] = sigmoid_of(logits[n]);
}

size_t need_router(const struct device_limits *l) {
    return l->n_expert == 0 ? 0 : (size_t)(larger(l->max_rows, l->max_round_rows) * (l->n_expert + 1)) * sizeof(float);
}

void cuda_router(struct device *base, const struct router_args *a) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure != cudaSuccess || a->x.n_row == 0) return;
    must(a->n_used <= a->gate->n_out);
    struct router_job job;
    job.gate = weight_view_of(a->gate);
    job.has_shared = a->shared_gate != NULL;
    job.shared_gate = job.has_shared ? weight_view_of(a->shared_gate) : job.gate;
    job.x = a->x;
    job.n_used = a->n_used;
    job.ids = a->ids;
    job.weights = a->weights;
    job.shared = a->shared;
    struct carver c = scratch_of(d);
    job.logits = (float *)carve(&c, (size_t)(a->x.n_row * (a->gate->n_out + 1)) * sizeof(float));
    scratch_done(d, &c);
    dim3 grid((unsigned)ceil_div(a->gate->n_out + 1, WARPS), (unsigned)ceil_div(a->x.n_row, ROWS));
    cuda_start(d, "router, logits", router_logits_kernel, grid, 32 * WARPS, 0, job);
    cuda_start(d, "router, choice", router_choose_kernel, dim3((unsigned)a->x.n_row), 32,
               (size_t)a->gate->n_out * sizeof(float), job);
}
