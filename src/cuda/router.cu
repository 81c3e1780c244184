// router: see router_product.cuh and router_choice.cuh. In a round the block that is done last makes the choice. Prompt
// passes take matrix units where they can: router_prompt.cu.
#include "cuda/router_choice.cuh"
#include "cuda/router_product.cuh"

#define WARPS 8
#define ROWS  8

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

static __device__ __forceinline__ void logits_of_block(const struct router_job &job) {
    int64_t t0 = (int64_t)blockIdx.y * ROWS;
    router_logits<ROWS>(
        job, (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, t0, []() { wait_for_earlier(); },
        [&](int r, int64_t k, float x[8]) { eight_inputs(job.x, t0 + r, k, x); });
}

template <int PER>
static __global__ void __launch_bounds__(32 * WARPS) router_rows_kernel(const __grid_constant__ router_job job) {
    __shared__ bool is_last;
    let_next_start();
    logits_of_block(job);
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
    logits_of_block(job);
}

template <int PER>
static __global__ void __launch_bounds__(32 * WARPS) router_choose_kernel(const __grid_constant__ router_job job) {
    begin_kernel();
    int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (t < job.x.n_row) router_choose<PER>(job, t);
}

size_t need_router(const struct device_limits *l) {
    return l->n_expert == 0 ? 0 : router_logits_bytes(larger(l->max_rows, l->max_round_rows), l->n_expert);
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

struct router_job router_job_of(struct cuda_device *d, const struct router_args *a, struct carver *c) {
    struct router_job job;
    must(a->n_used <= a->gate->n_out && a->gate->n_out <= ROUTER_MOST);
    job.gate = rows_view_of(a->gate);
    job.has_shared = a->shared_gate != NULL;
    job.shared_gate = job.has_shared ? rows_view_of(a->shared_gate) : job.gate;
    job.x = a->x;
    job.n_used = a->n_used;
    job.ids = a->ids;
    job.weights = a->weights;
    job.shared = a->shared;
    job.logits = (float *)carve(c, router_logits_bytes(a->x.n_row, a->gate->n_out));
    job.arrived = d->arrived;
    return job;
}

void cuda_router(struct device *base, const struct router_args *a) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure != cudaSuccess || a->x.n_row == 0) return;
    struct carver c = scratch_of(d);
    struct router_job job = router_job_of(d, a, &c);
    scratch_done(d, &c);
    int64_t per_lane = ceil_div(a->gate->n_out, 32);
    if (per_lane <= 8)
        launch<8>(d, job, a->form);
    else
        launch<ROUTER_MOST / 32>(d, job, a->form);
}
