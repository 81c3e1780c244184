// router: products in fp32, so that the choice does not depend on a rounding of the rows. One warp an expert and eight
// rows; a lane sums every 32nd block of eight inputs, and the lanes' sums are added in a tree. In a round the block
// that is done last makes the choice. Prompt passes take matrix units where they can: router_prompt.cu.
#include "cuda/router.cuh"

#define WARPS       8
#define ROWS        8
#define ROUTER_MOST 1024 // experts
#define AHEAD       8    // blocks of inputs whose weights are loaded at once

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
    if (x.dtype == DTYPE_F32 && k + 8 <= x.n_col && ((uintptr_t)x.data & 15) == 0 && (x.stride & 3) == 0) {
        const float4 *row = (const float4 *)((const float *)x.data + t * x.stride + k);
        *(float4 *)out = row[0];
        *(float4 *)(out + 4) = row[1];
        return;
    }
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

// Eight weights as they are stored, codes of 8 bits with a bf16 scale and bias: many loads are under way together.
struct eight_codes {
    uint2 codes;
    uint32_t scale, bias;
};

static __device__ __forceinline__ void load_codes(const struct weight_view &w, int64_t row, int64_t k,
                                                  struct eight_codes *c) {
    int64_t g = row * w.n_group + k / w.group;
    c->codes = *(const uint2 *)(w.data + row * w.row_bytes + k);
    c->scale = ((const uint16_t *)w.scales)[g];
    c->bias = ((const uint16_t *)w.biases)[g];
}

static __device__ __forceinline__ void widen_codes(const struct eight_codes &c, float out[8]) {
    float scale = __uint_as_float(c.scale << 16), bias = __uint_as_float(c.bias << 16);
    for (int i = 0; i < 8; i++)
        out[i] = fmaf((float)((i < 4 ? c.codes.x : c.codes.y) >> (i % 4 * 8) & 0xff), scale, bias);
}

// Logits of expert e and rows [t0, t0 + ROWS) by one warp; e == n_expert is the shared expert's gate.
static __device__ __forceinline__ void router_logits(const struct router_job &job, int64_t e, int64_t t0) {
    bool is_shared = e == job.gate.n_out;
    if (e > job.gate.n_out || (is_shared && !job.has_shared)) {
        wait_for_earlier();
        return;
    }
    const struct weight_view &w = is_shared ? job.shared_gate : job.gate;
    int64_t row = is_shared ? 0 : e, stride = job.gate.n_out + 1;
    int lane = threadIdx.x % 32;
    bool usual = w.weight_class == CLASS_Q8 && w.dtype == DTYPE_BF16 && w.n_in % 8 == 0 && (uintptr_t)w.data % 8 == 0;
    float sum[ROWS] = {};
    for (int64_t k0 = lane * 8; k0 - lane * 8 < w.n_in; k0 += AHEAD * 32 * 8) {
        float weight[AHEAD][8];
        struct eight_codes codes[AHEAD] = {};
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (k0 + a * 256 >= w.n_in) continue;
            if (usual)
                load_codes(w, row, k0 + a * 256, &codes[a]);
            else
                eight_weights(w, row, k0 + a * 256, weight[a]);
        }
        if (k0 == lane * 8) wait_for_earlier();
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (usual) widen_codes(codes[a], weight[a]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (t0 + r >= job.x.n_row) continue;
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                float x[8];
                if (k0 + a * 256 >= w.n_in) continue;
                eight_inputs(job.x, t0 + r, k0 + a * 256, x);
#pragma unroll
                for (int i = 0; i < 8; i++) sum[r] = fmaf(x[i], weight[a][i], sum[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float total = warp_sum(sum[r]);
        if (lane == 0 && t0 + r < job.x.n_row) job.logits[(t0 + r) * stride + e] = total;
    }
}

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

template <int PER>
static __global__ void __launch_bounds__(32 * WARPS) router_rows_kernel(const __grid_constant__ router_job job) {
    __shared__ bool is_last;
    let_next_start();
    router_logits(job, (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, (int64_t)blockIdx.y * ROWS);
    __threadfence();
    __syncthreads();
    unsigned n_block = gridDim.x * gridDim.y;
    if (threadIdx.x == 0) is_last = atomicInc(job.arrived, n_block - 1) == n_block - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (int64_t t = threadIdx.x / 32; t < job.x.n_row; t += WARPS) router_choose<PER>(job, t);
}

static __global__ void __launch_bounds__(32 * WARPS) router_logits_kernel(const __grid_constant__ router_job job) {
    let_next_start();
    router_logits(job, (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, (int64_t)blockIdx.y * ROWS);
}

template <int PER>
static __global__ void __launch_bounds__(32 * WARPS) router_choose_kernel(const __grid_constant__ router_job job) {
    begin_kernel();
    int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (t < job.x.n_row) router_choose<PER>(job, t);
}

size_t need_router(const struct device_limits *l) {
    return l->n_expert == 0 ? 0 : (size_t)(larger(l->max_rows, l->max_round_rows) * (l->n_expert + 1)) * sizeof(float);
}

template <int PER> static void launch(struct cuda_device *d, const struct router_job &job, enum form form) {
    dim3 grid((unsigned)ceil_div(job.gate.n_out + 1, WARPS), (unsigned)ceil_div(job.x.n_row, ROWS));
    if (form == FORM_ROWS) {
        cuda_start(d, "router", router_rows_kernel<PER>, grid, 32 * WARPS, 0, job);
        return;
    }
    if (router_prompt_fits(&job))
        router_prompt_logits(d, &job);
    else
        cuda_start(d, "router, logits", router_logits_kernel, grid, 32 * WARPS, 0, job);
    cuda_start(d, "router, choice", router_choose_kernel<PER>, dim3((unsigned)ceil_div(job.x.n_row, WARPS)), 32 * WARPS,
               0, job);
}

void cuda_router(struct device *base, const struct router_args *a) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure != cudaSuccess || a->x.n_row == 0) return;
    must(a->n_used <= a->gate->n_out && a->gate->n_out <= ROUTER_MOST);
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
    job.arrived = d->arrived;
    int64_t per_lane = ceil_div(a->gate->n_out, 32);
    if (per_lane <= 8)
        launch<8>(d, job, a->form);
    else
        launch<ROUTER_MOST / 32>(d, job, a->form);
}
