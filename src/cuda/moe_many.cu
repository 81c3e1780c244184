// Experts of several rows (moe.cuh): a block works on some outputs of an expert for a tile of its pairs, whose inputs
// it has in shared memory; weights are read once a tile. The sums over a row's experts are a launch of their own.
#include "cuda/moe.cuh"

#define WARPS   8
#define THREADS (32 * WARPS)
#define BLOCKS  3 // on a processor, beside each other
#define SETS    8 // of outputs that a warp has of a tile; a set is one output, or as many as there are spans in a warp

// Tiles in order: pairs of an expert, their outputs. A block has neighbouring ones.
struct many_range {
    int first, end;
};
static __device__ __forceinline__ struct many_range range_of_block(const struct moe_job &job, int n_across) {
    int64_t n = (int64_t)*job.groups.n_tile * n_across;
    return (struct many_range){(int)(n * blockIdx.x / gridDim.x), (int)(n * (blockIdx.x + 1) / gridDim.x)};
}

static __device__ __forceinline__ int row_of_pair(const struct moe_job &job, int pair) {
    return pair < job.pairs.n_pair ? pair / job.n_used : pair - job.pairs.n_pair;
}

// Outputs of this warp's lane in set k of a tile.
struct many_place {
    int span, group, rows;
};
static __device__ __forceinline__ struct many_place many_place_of(int n_group) {
    struct many_place p;
    p.span = moe_span(n_group);
    p.group = (int)threadIdx.x % 32 % p.span;
    p.rows = 32 / p.span;
    return p;
}
static __device__ __forceinline__ int output_of(const struct many_place &p, int across, int set) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return ((across * SETS + set) * WARPS + warp) * p.rows + lane / p.span;
}

// ---- gate and up ----

// The rows of a tile's pairs, and what their norms multiply outputs with.
static __device__ __forceinline__ void take_rows(const struct moe_job &job, const struct pair_tile &t,
                                                 struct moe_group *x, float factors[WARPS]) {
    constexpr int PIECES = sizeof(struct moe_group) / 16;
    int n = job.x_groups * PIECES;
    for (int i = threadIdx.x; i < t.n * n; i += THREADS) {
        int row = row_of_pair(job, job.groups.list[t.first + i / n]);
        copy16((char *)x + (int64_t)i * 16, (const char *)(job.x + (int64_t)row * job.x_groups) + i % n * 16, 16);
    }
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    int warp = threadIdx.x / 32;
    float factor = warp < t.n ? moe_norm_factor(x + warp * job.x_groups, job.x_groups, job.eps) : 0.0f;
    if (threadIdx.x % 32 == 0) factors[warp] = factor;
}

struct gate_up {
    struct moe_codes gate, up;
};

static __global__ void __launch_bounds__(THREADS, BLOCKS) moe_many_widen_kernel(const __grid_constant__ moe_job job) {
    extern __shared__ __align__(16) char memory[];
    __shared__ float factors[WARPS];
    struct moe_group *x = (struct moe_group *)memory;
    begin_kernel();
    struct many_place p = many_place_of(job.x_groups);
    int width = job.h_groups * MOE_GROUP, n_across = (width + SETS * WARPS * p.rows - 1) / (SETS * WARPS * p.rows);
    struct many_range range = range_of_block(job, n_across);
    int has = -1; // the tile whose rows are here
    for (int i = range.first; i < range.end; i++) {
        const struct pair_tile t = job.groups.tile[i / n_across];
        struct moe_matrix gate = moe_matrix_of_expert(job.gate, job.shared_gate, t.expert, job.n_expert);
        struct moe_matrix up = moe_matrix_of_expert(job.up, job.shared_up, t.expert, job.n_expert);
        struct gate_up next = {}, now;
        auto fetch = [&](int set) {
            int o = output_of(p, i % n_across, set);
            if (set >= SETS || p.group >= job.x_groups || o >= width) return;
            moe_fetch(gate, o, job.x_groups, p.group, &next.gate);
            moe_fetch(up, o, job.x_groups, p.group, &next.up);
        };
        fetch(0);
        if (t.first != has) {
            __syncthreads();
            take_rows(job, t, x, factors);
            __syncthreads();
            has = t.first;
        }
#pragma unroll 1
        for (int set = 0; set < SETS; set++) {
            now = next;
            fetch(set + 1);
            int o = output_of(p, i % n_across, set);
            for (int n = 0; n < t.n; n++) {
                const struct moe_group *row = x + n * job.x_groups;
                bool exists = p.group < job.x_groups;
                float factor = factors[n];
                float g = moe_span_sum(exists ? moe_multiply(now.gate, row + p.group) : 0.0f, p.span) * factor;
                float u = moe_span_sum(exists ? moe_multiply(now.up, row + p.group) : 0.0f, p.span) * factor;
                if (p.group == 0 && o < width)
                    job.h[(int64_t)job.groups.list[t.first + n] * width + o] = silu_of(g) * u;
            }
        }
    }
}

// ---- down ----

// The activations of a tile's pairs.
static __device__ __forceinline__ void take_activations(const struct moe_job &job, const struct pair_tile &t,
                                                        struct moe_group *h) {
    int n = job.h_groups * 16;
    for (int i = threadIdx.x; i < t.n * n; i += THREADS) {
        const float4 *from = (const float4 *)job.h + (int64_t)job.groups.list[t.first + i / n] * n;
        moe_make_group(__ldcg(from + i % n), 0, true, h + i / 16);
    }
}

static __global__ void __launch_bounds__(THREADS, BLOCKS) moe_many_down_kernel(const __grid_constant__ moe_job job) {
    extern __shared__ __align__(16) char memory[];
    struct moe_group *h = (struct moe_group *)memory;
    begin_kernel();
    struct many_place p = many_place_of(job.h_groups);
    int hidden = (int)job.out.n_col, n_across = (hidden + SETS * WARPS * p.rows - 1) / (SETS * WARPS * p.rows);
    struct many_range range = range_of_block(job, n_across);
    int has = -1;
    for (int i = range.first; i < range.end; i++) {
        const struct pair_tile t = job.groups.tile[i / n_across];
        struct moe_matrix down = moe_matrix_of_expert(job.down, job.shared_down, t.expert, job.n_expert);
        struct moe_codes next[2] = {}, now;
        auto fetch = [&](int set, struct moe_codes *codes) {
            int o = output_of(p, i % n_across, set);
            if (set >= SETS || p.group >= job.h_groups || o >= hidden) return;
            moe_fetch(down, o, job.h_groups, p.group, codes);
        };
        fetch(0, &next[0]);
        fetch(1, &next[1]);
        if (t.first != has) {
            __syncthreads();
            take_activations(job, t, h);
            __syncthreads();
            has = t.first;
        }
#pragma unroll 2
        for (int set = 0; set < SETS; set++) {
            now = next[set % 2];
            fetch(set + 2, &next[set % 2]);
            int o = output_of(p, i % n_across, set);
            for (int n = 0; n < t.n; n++) {
                bool exists = p.group < job.h_groups;
                float y = moe_span_sum(exists ? moe_multiply(now, h + n * job.h_groups + p.group) : 0.0f, p.span);
                if (p.group == 0 && o < hidden) job.y[(int64_t)job.groups.list[t.first + n] * hidden + o] = y;
            }
        }
    }
}

// ---- sums ----

static __global__ void __launch_bounds__(THREADS) moe_sums_kernel(const __grid_constant__ moe_job job) {
    begin_kernel();
    int64_t t = blockIdx.y, i = (int64_t)blockIdx.x * THREADS + threadIdx.x, n = job.out.n_col;
    if (i >= n) return;
    const float *weights = job.router.weights + t * job.n_used;
    float sum = tensor_load(job.residual, t, i);
    for (int s = 0; s < job.n_used; s++) sum = fmaf(weights[s], job.y[(t * job.n_used + s) * n + i], sum);
    sum = fmaf(job.router.shared[t], job.y[(job.pairs.n_pair + t) * n + i], sum);
    tensor_store(job.out, t, i, sum);
}

static void launch(struct cuda_device *d, const char *name, void (*kernel)(const moe_job), const struct moe_job *job,
                   int n_group, int64_t n_out, int64_t most_tiles) {
    size_t bytes = (size_t)(EXPERT_TILE_ROWS * n_group) * sizeof(struct moe_group);
    int64_t n = most_tiles * ceil_div(n_out, SETS * WARPS * 32 / moe_span(n_group)), room = BLOCKS * d->n_processors;
    cuda_start(d, name, kernel, dim3((unsigned)(n < room ? n : room)), THREADS, bytes, *job);
}

void moe_many(struct cuda_device *d, const struct moe_job *job, int64_t most_tiles) {
    launch(d, "experts, gate and up of rows", moe_many_widen_kernel, job, job->x_groups, job->h_groups * MOE_GROUP,
           most_tiles);
    launch(d, "experts, down of rows", moe_many_down_kernel, job, job->h_groups, job->out.n_col, most_tiles);
    dim3 grid((unsigned)ceil_div(job->out.n_col, THREADS), (unsigned)job->n_row);
    cuda_start(d, "experts, sums of rows", moe_sums_kernel, grid, THREADS, 0, *job);
}
