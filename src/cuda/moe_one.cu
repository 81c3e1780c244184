// Experts of a single row (moe.cuh): every block makes what it needs of the row, and the choice, itself, and weights
// are on their way while that happens. What a kernel reads before it waits is there when the kernel before has begun to
// work: each lets the next one start only when it has waited itself. Registers are kept to half a processor's, so that
// a kernel finds room beside the one before.
#include "cuda/moe.cuh"
#include "cuda/router_choice.cuh"

#define WIDEN_WARPS 12
#define WIDEN_AHEAD 3 // outputs of a warp, or as many as it has at once, whose weights are fetched together
#define DOWN_WARPS  8
#define DOWN_QUADS  4 // sets of outputs of a block; its other warps have other pairs
#define DOWN_HALVES (DOWN_WARPS / DOWN_QUADS)
#define DOWN_AHEAD  5 // pairs of a warp whose weights are fetched together
#define DOWN_EIGHTS 3 // of activations, that a thread loads together

struct choice {
    int32_t ids[MOE_MOST_PAIRS];
    float weights[MOE_MOST_PAIRS]; // of the shared expert, too
};

// By one warp.
template <int PER> static __device__ __forceinline__ void take_choice(const struct moe_job &job, struct choice *c) {
    const float *logits = job.router.logits;
    int lane = threadIdx.x % 32, mine = job.n_expert;
    float weight = 0, shared = __ldcg(logits + job.n_expert);
    float chosen = choose_experts<PER>(logits, job.n_expert, job.n_used, [&](int s, int id, float p) {
        if (lane != s) return;
        mine = id;
        weight = p;
    });
    c->ids[lane] = mine;
    c->weights[lane] = lane < job.n_used ? weight / chosen : sigmoid_of(shared);
}

static __device__ __forceinline__ void store_choice(const struct moe_job &job, const struct choice &c) {
    int lane = threadIdx.x % 32;
    if (lane < job.n_used) {
        job.router.ids[lane] = c.ids[lane];
        job.router.weights[lane] = c.weights[lane];
    }
    if (lane == job.n_used) job.router.shared[0] = c.weights[lane];
}

// ---- gate and up: a warp has an output of each, or as many as there are spans in it ----

struct widen_place {
    int pair, output;
};

static __device__ __forceinline__ struct widen_place place_of_item(const struct moe_job &job, int item, int span) {
    int n_across = job.h_groups * MOE_GROUP * span / 32;
    return (struct widen_place){item / n_across, item % n_across * (32 / span) + (int)threadIdx.x % 32 / span};
}

// Gate's and up's.
static __device__ __forceinline__ void open_item(const struct moe_job &job, const struct choice &c, int item, int span,
                                                 struct moe_codes codes[2]) {
    int group = (int)threadIdx.x % 32 % span;
    struct widen_place at = place_of_item(job, item, span);
    int expert = c.ids[at.pair];
    struct moe_matrix gate = moe_matrix_of_expert(job.gate, job.shared_gate, expert, job.n_expert);
    struct moe_matrix up = moe_matrix_of_expert(job.up, job.shared_up, expert, job.n_expert);
    moe_fetch(gate, at.output, job.x_groups, group, &codes[0]);
    moe_fetch(up, at.output, job.x_groups, group, &codes[1]);
}

template <int PER>
static __global__ void __launch_bounds__(32 * WIDEN_WARPS, 2) moe_widen_kernel(const __grid_constant__ moe_job job) {
    __shared__ __align__(16) char x[MOE_MOST_GROUPS * 9 * 16];
    __shared__ struct choice c;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, span = moe_span(job.x_groups), group = lane % span;
    int width = job.h_groups * MOE_GROUP, n_item = (job.n_used + 1) * width * span / 32;
    moe_take_row(job, 0, x);
    wait_for_earlier();
    if (warp == 0) {
        take_choice<PER>(job, &c);
        __syncwarp();
        if (blockIdx.x == 0) store_choice(job, c);
    }
    __syncthreads();
    let_next_start(); // not before: its blocks would choose beside this one
    float factor = moe_norm_factor(x, job.x_groups, job.eps);
    int step = (int)gridDim.x * WIDEN_WARPS;
    for (int first = (int)blockIdx.x * WIDEN_WARPS + warp; first < n_item; first += WIDEN_AHEAD * step) {
        struct moe_codes codes[WIDEN_AHEAD][2];
        bool exists = group < job.x_groups;
#pragma unroll
        for (int k = 0; k < WIDEN_AHEAD; k++)
            if (exists && first + k * step < n_item) open_item(job, c, first + k * step, span, codes[k]);
#pragma unroll
        for (int k = 0; k < WIDEN_AHEAD; k++) {
            if (first + k * step >= n_item) break;
            float y[2] = {};
            if (exists) moe_multiply<2>(codes[k], x, job.x_groups, group, y);
            moe_span_sum<2>(y, span);
            if (group != 0) continue;
            struct widen_place at = place_of_item(job, first + k * step, span);
            job.h[(int64_t)at.pair * width + at.output] = silu_of(y[0] * factor) * (y[1] * factor);
        }
    }
}

// ---- down and the sums: a block has some outputs of all pairs ----

template <int PER>
static __global__ void __launch_bounds__(32 * DOWN_WARPS, 2) moe_down_kernel(const __grid_constant__ moe_job job) {
    extern __shared__ __align__(16) char memory[];
    __shared__ struct choice c;
    let_next_start();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = warp % DOWN_QUADS, n_all = job.n_used + 1;
    int span = moe_span(job.h_groups), group = lane % span, rows = 32 / span, block_rows = DOWN_QUADS * rows;
    int hidden = (int)job.out.n_col, output = (int)blockIdx.x * block_rows + quad * rows + lane / span;
    char *h = memory;
    float *parts = (float *)(h + n_all * moe_row_bytes(job.h_groups)); // [pair][block_rows]
    int own = (int)blockIdx.x * block_rows + (int)threadIdx.x;         // of the sums
    bool sums = (int)threadIdx.x < block_rows && own < hidden;
    if (warp == 0) take_choice<PER>(job, &c);
    float sum = sums ? tensor_load(job.residual, 0, own) : 0.0f;
    __syncthreads();
    bool exists = group < job.h_groups && output < hidden, is_first = true;
    for (int first = warp / DOWN_QUADS; first < n_all; first += DOWN_AHEAD * DOWN_HALVES) {
        struct moe_codes codes[DOWN_AHEAD];
#pragma unroll
        for (int k = 0; k < DOWN_AHEAD; k++) {
            int pair = first + k * DOWN_HALVES;
            if (pair >= n_all || !exists) continue;
            moe_fetch(moe_matrix_of_expert(job.down, job.shared_down, c.ids[pair], job.n_expert), output, job.h_groups,
                      group, &codes[k]);
        }
        if (is_first) { // as for all warps: each has a pair
            wait_for_earlier();
            moe_take_activations<32 * DOWN_WARPS, DOWN_EIGHTS>(job, n_all, h);
            __syncthreads();
            is_first = false;
        }
#pragma unroll
        for (int k = 0; k < DOWN_AHEAD; k++) {
            int pair = first + k * DOWN_HALVES;
            if (pair >= n_all) break;
            float y[1] = {};
            if (exists) moe_multiply<1>(&codes[k], h + pair * moe_row_bytes(job.h_groups), job.h_groups, group, y);
            moe_span_sum<1>(y, span);
            if (group == 0) parts[pair * block_rows + quad * rows + lane / span] = y[0];
        }
    }
    __syncthreads();
    if (!sums) return;
    for (int pair = 0; pair < n_all; pair++) sum = fmaf(c.weights[pair], parts[pair * block_rows + threadIdx.x], sum);
    tensor_store(job.out, 0, own, sum);
}

void moe_one(struct cuda_device *d, const struct moe_job *job) {
    bool few = job->n_expert <= 8 * 32;
    int n_all = job->n_used + 1;
    int64_t rows = 32 / moe_span(job->h_groups) * DOWN_QUADS, width = (int64_t)job->h_groups * MOE_GROUP;
    int64_t n_item = n_all * width * moe_span(job->x_groups) / 32, n_block = ceil_div(n_item, WIDEN_WARPS);
    if (n_block > d->n_processors) n_block = d->n_processors;
    cuda_start(d, "experts, gate and up of a row", few ? moe_widen_kernel<8> : moe_widen_kernel<ROUTER_MOST / 32>,
               dim3((unsigned)n_block), 32 * WIDEN_WARPS, 0, *job);
    size_t bytes = (size_t)(n_all * moe_row_bytes(job->h_groups)) + (size_t)(n_all * rows) * sizeof(float);
    auto down = few ? moe_down_kernel<8> : moe_down_kernel<ROUTER_MOST / 32>;
    cudaFuncSetAttribute(down, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    cuda_start(d, "experts, down of a row", down, dim3((unsigned)ceil_div(job->out.n_col, rows)), 32 * DOWN_WARPS,
               bytes, *job);
}
