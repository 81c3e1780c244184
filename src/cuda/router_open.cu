// What a round's experts begin with (router_open.cuh). Blocks of eight experts norm some rows into shared memory while
// their weights are on the way, and multiply; other blocks make the planes of one row each. The block of experts that
// is done last chooses and groups.
#include "cuda/planes_make.cuh"
#include "cuda/router_choice.cuh"
#include "cuda/router_open.cuh"
#include "cuda/router_product.cuh"

#define WARPS     8
#define THREADS   (32 * WARPS)
#define MOST_ROWS 4    // of a block
#define WIDEST    4096 // inputs
#define VECTORS   (WIDEST / 8 / THREADS)

struct open_shared {
    float squares[MOST_ROWS][WARPS];
    bool is_last;
};

// Rows [t0, t0 + ROWS), normed, into `rows`: [ROWS][n_col]. All warps of a block call it.
template <int ROWS>
static __device__ __forceinline__ void norm_rows(const struct router_open_job &job, int64_t t0, bool wide,
                                                 const float weight[VECTORS][8], struct open_shared *s, float *rows) {
    const struct tensor &x = job.router.x;
    int n = (int)x.n_col, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    wait_for_earlier();
    float v[ROWS][VECTORS][8];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            int i = (k * THREADS + (int)threadIdx.x) * 8;
            if (t0 + r < x.n_row && i < n) load_eight(x, wide, t0 + r, i, v[r][k]);
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

// A single row's pairs are their own tiles; by the warp that chose.
static __device__ __forceinline__ void list_one_row(const struct router_open_job &job) {
    const struct pair_ids &p = job.pairs;
    __syncwarp();
    for (int i = threadIdx.x % 32; i < p.n_pair + p.n_shared; i += 32) {
        job.groups.list[i] = i;
        job.groups.tile[i] = (struct pair_tile){expert_of_pair(p, i), i, 1};
    }
    if (threadIdx.x % 32 == 0) *job.groups.n_tile = p.n_pair + p.n_shared;
}

template <int PER>
static __device__ __forceinline__ void choose_and_group(const struct router_open_job &job, int32_t *lists) {
    int warp = threadIdx.x / 32;
    for (int64_t t = warp; t < job.router.x.n_row; t += WARPS) router_choose<PER>(job.router, t);
    if (job.router.x.n_row == 1) {
        if (warp == 0) list_one_row(job);
        return;
    }
    __syncthreads();
    group_pairs(job.pairs, EXPERT_TILE_ROWS, job.groups, lists);
}

template <int PER, int ROWS>
static __global__ void __launch_bounds__(THREADS)
    router_open_kernel(const __grid_constant__ router_open_job job, const __grid_constant__ plane_input in) {
    extern __shared__ __align__(16) float rows[];
    __shared__ struct open_shared s;
    __shared__ uint2 room[PLANES_THREADS / 32];
    let_next_start();
    int n_across = (int)gridDim.x - ROWS, n = (int)job.router.x.n_col;
    int64_t t0 = (int64_t)blockIdx.y * ROWS;
    if ((int)blockIdx.x >= n_across) {
        int64_t row = t0 + (int)blockIdx.x - n_across;
        wait_for_earlier();
        if (row < job.router.x.n_row) make_planes<PLANES_TILE>(in, row, planes_of_row(job.planes, row), room);
        return;
    }
    float weight[VECTORS][8];
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        int i = (k * THREADS + (int)threadIdx.x) * 8;
        for (int j = 0; j < 8; j++) weight[k][j] = i + j < n ? job.norm_weight[i + j] : 0.0f;
    }
    router_logits<ROWS>(
        job.router, (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, t0,
        [&]() { norm_rows<ROWS>(job, t0, in.wide, weight, &s, rows); },
        [&](int r, int64_t k, float x[8]) {
            const float4 *from = (const float4 *)(rows + r * n + k);
            *(float4 *)x = from[0];
            *(float4 *)(x + 4) = from[1];
        });
    __threadfence();
    __syncthreads();
    unsigned n_block = (unsigned)n_across * gridDim.y;
    if (threadIdx.x == 0) s.is_last = atomicInc(job.router.arrived, n_block - 1) == n_block - 1;
    __syncthreads();
    if (!s.is_last) return;
    __threadfence();
    choose_and_group<PER>(job, (int32_t *)rows);
}

template <int PER, int ROWS>
static void launch(struct cuda_device *d, const struct router_open_job *job, const struct plane_input &in) {
    size_t bytes = (size_t)(ROWS * job->router.x.n_col) * sizeof(float);
    size_t lists = group_shared_bytes(pair_kinds(job->pairs));
    if (lists > bytes) bytes = lists;
    cudaFuncSetAttribute(router_open_kernel<PER, ROWS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    dim3 grid((unsigned)ceil_div(job->router.gate.n_out + 1, WARPS) + ROWS,
              (unsigned)ceil_div(job->router.x.n_row, ROWS));
    cuda_start(d, "experts, router and planes", router_open_kernel<PER, ROWS>, grid, THREADS, bytes, *job, in);
}

bool router_open(struct cuda_device *d, const struct router_open_job *job) {
    if (job->router.x.n_col > WIDEST || job->router.x.n_col % 8 != 0) return false;
    struct plane_input in = plane_input_of(job->router.x, job->norm_weight, job->eps);
    in.wide = in.wide && rows_are_wide(job->router.x);
    bool few = job->router.gate.n_out <= 8 * 32, single = job->router.x.n_row == 1;
    if (few)
        (single ? launch<8, 1> : launch<8, MOST_ROWS>)(d, job, in);
    else
        (single ? launch<ROUTER_MOST / 32, 1> : launch<ROUTER_MOST / 32, MOST_ROWS>)(d, job, in);
    return true;
}
