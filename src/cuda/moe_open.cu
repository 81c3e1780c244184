// What a round's experts begin with (moe.cuh). Blocks of eight experts norm some rows into shared memory while their
// weights are on the way, and multiply. With several rows the block that is done last chooses and groups, and other
// blocks bring one row each into groups.
#include "cuda/moe.cuh"
#include "cuda/router_choice.cuh"
#include "cuda/router_product.cuh"

#define WARPS     8
#define THREADS   (32 * WARPS)
#define MANY_ROWS 4 // of a block
#define VECTORS   1 // of eight inputs a thread: MOE_MOST_GROUPS * MOE_GROUP / 8 / THREADS

struct open_shared {
    float squares[MANY_ROWS][WARPS];
    bool is_last;
};

// Rows [t0, t0 + ROWS), normed, into `rows`: [ROWS][n_col]. All warps of a block call it.
template <int ROWS>
static __device__ __forceinline__ void norm_rows(const struct moe_job &job, int64_t t0, const float weight[VECTORS][8],
                                                 struct open_shared *s, float *rows) {
    const struct tensor &x = job.router.x;
    int n = (int)x.n_col, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    wait_for_earlier();
    if (ROWS == 1) let_next_start(); // the next kernel reads the row before it waits
    float v[ROWS][VECTORS][8];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            int i = (k * THREADS + (int)threadIdx.x) * 8;
            if (t0 + r < x.n_row && i < n) load_eight(x, true, t0 + r, i, v[r][k]);
        }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float squares = 0;
#pragma unroll
        for (int k = 0; k < VECTORS; k++)
            for (int j = 0; j < 8; j++)
                if (t0 + r < x.n_row && (k * THREADS + (int)threadIdx.x) * 8 < n)
                    squares = fmaf(v[r][k][j], v[r][k][j], squares);
        squares = warp_sum(squares);
        if (lane == 0) s->squares[r][warp] = squares;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float squares = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) squares += s->squares[r][w];
        float inverse = rsqrtf(squares / (float)n + job.eps);
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            int i = (k * THREADS + (int)threadIdx.x) * 8;
            if (t0 + r >= x.n_row || i >= n) continue;
            for (int j = 0; j < 8; j++) v[r][k][j] = v[r][k][j] * inverse * weight[k][j];
            float4 *to = (float4 *)(rows + r * n + i);
            to[0] = *(float4 *)v[r][k];
            to[1] = *(float4 *)(v[r][k] + 4);
        }
    }
    __syncthreads();
}

// By one block: logits of its experts.
template <int ROWS>
static __device__ __forceinline__ void open_logits(const struct moe_job &job, struct open_shared *s, float *rows) {
    int n = (int)job.router.x.n_col;
    int64_t t0 = (int64_t)blockIdx.y * ROWS;
    float weight[VECTORS][8];
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        int i = (k * THREADS + (int)threadIdx.x) * 8;
        if (i >= n) continue;
        *(float4 *)weight[k] = *(const float4 *)(job.norm_weight + i);
        *(float4 *)(weight[k] + 4) = *(const float4 *)(job.norm_weight + i + 4);
    }
    router_logits<ROWS>(
        job.router, (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, t0,
        [&]() { norm_rows<ROWS>(job, t0, weight, s, rows); },
        [&](int r, int64_t k, float x[8]) {
            const float4 *from = (const float4 *)(rows + r * n + k);
            *(float4 *)x = from[0];
            *(float4 *)(x + 4) = from[1];
        });
}

static __global__ void __launch_bounds__(THREADS, 2) moe_logits_kernel(const __grid_constant__ moe_job job) {
    extern __shared__ __align__(16) float rows[];
    __shared__ struct open_shared s;
    open_logits<1>(job, &s, rows);
}

template <int PER>
static __global__ void __launch_bounds__(THREADS) moe_open_kernel(const __grid_constant__ moe_job job) {
    extern __shared__ __align__(16) float rows[];
    __shared__ struct open_shared s;
    let_next_start();
    int n_across = (int)gridDim.x - MANY_ROWS;
    if ((int)blockIdx.x >= n_across) {
        int64_t row = (int64_t)blockIdx.y * MANY_ROWS + (int)blockIdx.x - n_across;
        wait_for_earlier();
        if (row < job.n_row) moe_take_row(job, row, job.x + row * moe_row_bytes(job.x_groups));
        return;
    }
    open_logits<MANY_ROWS>(job, &s, rows);
    __threadfence();
    __syncthreads();
    unsigned n_block = (unsigned)n_across * gridDim.y;
    if (threadIdx.x == 0) s.is_last = atomicInc(job.router.arrived, n_block - 1) == n_block - 1;
    __syncthreads();
    if (!s.is_last) return;
    __threadfence();
    for (int64_t t = threadIdx.x / 32; t < job.n_row; t += WARPS) router_choose<PER>(job.router, t);
    __syncthreads();
    group_pairs(job.pairs, EXPERT_TILE_ROWS, job.groups, (int32_t *)rows);
}

void moe_open(struct cuda_device *d, const struct moe_job *job) {
    size_t row_bytes = (size_t)job->router.x.n_col * sizeof(float);
    unsigned n_across = (unsigned)ceil_div(job->n_expert + 1, WARPS);
    if (job->n_row == 1) {
        cuda_start(d, "experts, logits", moe_logits_kernel, dim3(n_across), THREADS, row_bytes, *job);
        return;
    }
    size_t bytes = MANY_ROWS * row_bytes, lists = group_shared_bytes(pair_kinds(job->pairs));
    auto kernel = job->n_expert <= 8 * 32 ? moe_open_kernel<8> : moe_open_kernel<ROUTER_MOST / 32>;
    dim3 grid(n_across + MANY_ROWS, (unsigned)ceil_div(job->n_row, MANY_ROWS));
    cuda_start(d, "experts, router and rows", kernel, grid, THREADS, bytes > lists ? bytes : lists, *job);
}
