// Experts of several rows (moe.cuh). Warps work by themselves: each has a few outputs of an expert for all pairs of a
// tile, and the weights of its next outputs on the way. Tiles with many pairs come first. Inputs come through the first
// cache, where the rows of a round have room. Activations are brought into groups, and the sums over a row's experts
// made, by launches of their own.
#include "cuda/moe.cuh"

#define WARPS   8
#define THREADS (32 * WARPS)
#define BLOCKS  2 // on a processor, beside each other
#define SETS    2 // of outputs of gate and up at once; a set is one output, or as many as there are spans in a warp
#define DOWNS   4 // of down
static_assert(2 * SETS == 4 && DOWNS == 4, "span_sums_of_four");

// Pieces of work in order: tiles of pairs, their outputs.
struct many_work {
    int span, group, sets, n_across, n, first, step; // sets: of a piece; n: pieces
};

static __device__ __forceinline__ struct many_work work_of_warp(const struct moe_job &job, int n_group, int n_out,
                                                                int sets) {
    struct many_work w;
    w.span = moe_span(n_group);
    w.group = (int)threadIdx.x % 32 % w.span;
    w.sets = sets;
    w.n_across = (n_out * w.span / 32 + sets - 1) / sets;
    w.n = *job.groups.n_tile * w.n_across;
    w.first = (int)(blockIdx.x + threadIdx.x / 32 * gridDim.x);
    w.step = (int)gridDim.x * WARPS;
    return w;
}

static __device__ __forceinline__ int output_of(const struct many_work &w, int piece, int set) {
    return (piece % w.n_across * w.sets + set) * (32 / w.span) + (int)threadIdx.x % 32 / w.span;
}

static __device__ __forceinline__ int row_of_pair(const struct moe_job &job, int pair) {
    int n_pair = job.n_row * job.n_used;
    return pair < n_pair ? pair / job.n_used : pair - n_pair;
}

// Sums over the lanes of a span of four values each, in the tree of moe_span_sum: x[0] and x[1] become those of the
// first two in the span's lower half, of the other two in its upper half.
static __device__ __forceinline__ void span_sums_of_four(float x[4], int span) {
    int step = span / 2;
    bool upper = (threadIdx.x & step) != 0;
    float a = upper ? x[0] : x[2], b = upper ? x[1] : x[3];
    x[0] = (upper ? x[2] : x[0]) + __shfl_xor_sync(0xffffffffu, a, step);
    x[1] = (upper ? x[3] : x[1]) + __shfl_xor_sync(0xffffffffu, b, step);
    for (step /= 2; step > 0; step /= 2) {
        x[0] += __shfl_xor_sync(0xffffffffu, x[0], step);
        x[1] += __shfl_xor_sync(0xffffffffu, x[1], step);
    }
}

// The codes of a piece: gate and up of each set.
static __device__ __forceinline__ void fetch_gate_up(const struct moe_job &job, const struct many_work &w, int piece,
                                                     int width, struct moe_codes codes[2 * SETS]) {
    if (piece >= w.n || w.group >= job.x_groups) return;
    int expert = job.groups.tile[piece / w.n_across].expert;
    struct moe_matrix gate = moe_matrix_of_expert(job.gate, job.shared_gate, expert, job.n_expert);
    struct moe_matrix up = moe_matrix_of_expert(job.up, job.shared_up, expert, job.n_expert);
#pragma unroll
    for (int s = 0; s < SETS; s++) {
        int o = output_of(w, piece, s);
        if (o >= width) continue;
        moe_fetch(gate, o, job.x_groups, w.group, &codes[2 * s]);
        moe_fetch(up, o, job.x_groups, w.group, &codes[2 * s + 1]);
    }
}

static __global__ void __launch_bounds__(THREADS, BLOCKS) moe_many_widen_kernel(const __grid_constant__ moe_job job) {
    begin_kernel();
    int width = job.h_groups * MOE_GROUP;
    struct many_work w = work_of_warp(job, job.x_groups, width, SETS);
    struct moe_codes next[2 * SETS] = {};
    fetch_gate_up(job, w, w.first, width, next);
#pragma unroll 1
    for (int piece = w.first; piece < w.n; piece += w.step) {
        struct moe_codes now[2 * SETS];
#pragma unroll
        for (int m = 0; m < 2 * SETS; m++) now[m] = next[m];
        const struct pair_tile t = job.groups.tile[piece / w.n_across];
        fetch_gate_up(job, w, piece + w.step, width, next);
#pragma unroll 1
        for (int n = 0; n < t.n; n++) {
            int pair = job.groups.list[t.first + n];
            int r = row_of_pair(job, pair);
            const char *row = job.x + (int64_t)r * moe_row_bytes(job.x_groups);
            float factor = job.factors[r], y[2 * SETS] = {};
            if (w.group < job.x_groups) moe_multiply<2 * SETS>(now, row, job.x_groups, w.group, y);
            span_sums_of_four(y, w.span);
            int o = output_of(w, piece, w.group / (w.span / 2));
            if (w.group % (w.span / 2) == 0 && o < width)
                job.h[(int64_t)pair * width + o] = silu_of(y[0] * factor) * (y[1] * factor);
        }
    }
}

// Activations into groups: eight lanes a group.
static __global__ void __launch_bounds__(THREADS) moe_many_turn_kernel(const __grid_constant__ moe_job job) {
    begin_kernel();
    int n_group = job.h_groups, n = job.n_row * (job.n_used + 1) * n_group * 8;
    int i = (int)blockIdx.x * THREADS + (int)threadIdx.x, pair = i / (8 * n_group);
    if (i - (int)threadIdx.x % 32 >= n) return;
    struct moe_eight v = {};
    if (i < n) v = moe_load_eight(job.h, i);
    moe_make_group<false>(v.a, v.b, 0, job.h_rows + (int64_t)pair * moe_row_bytes(n_group), n_group,
                          i < n ? i / 8 - pair * n_group : n_group);
}

static __device__ __forceinline__ void fetch_down(const struct moe_job &job, const struct many_work &w, int piece,
                                                  int hidden, struct moe_codes codes[DOWNS]) {
    if (piece >= w.n || w.group >= job.h_groups) return;
    int expert = job.groups.tile[piece / w.n_across].expert;
    struct moe_matrix down = moe_matrix_of_expert(job.down, job.shared_down, expert, job.n_expert);
#pragma unroll
    for (int s = 0; s < DOWNS; s++) {
        int o = output_of(w, piece, s);
        if (o < hidden) moe_fetch(down, o, job.h_groups, w.group, &codes[s]);
    }
}

static __global__ void __launch_bounds__(THREADS, BLOCKS) moe_many_down_kernel(const __grid_constant__ moe_job job) {
    begin_kernel();
    int hidden = (int)job.out.n_col;
    struct many_work w = work_of_warp(job, job.h_groups, hidden, DOWNS);
    struct moe_codes next[DOWNS] = {};
    fetch_down(job, w, w.first, hidden, next);
#pragma unroll 1
    for (int piece = w.first; piece < w.n; piece += w.step) {
        struct moe_codes now[DOWNS];
#pragma unroll
        for (int m = 0; m < DOWNS; m++) now[m] = next[m];
        const struct pair_tile t = job.groups.tile[piece / w.n_across];
        fetch_down(job, w, piece + w.step, hidden, next);
#pragma unroll 1
        for (int n = 0; n < t.n; n++) {
            int64_t pair = job.groups.list[t.first + n];
            float y[DOWNS] = {};
            if (w.group < job.h_groups)
                moe_multiply<DOWNS>(now, job.h_rows + pair * moe_row_bytes(job.h_groups), job.h_groups, w.group, y);
            span_sums_of_four(y, w.span);
            int half = w.group / (w.span / 2);
#pragma unroll
            for (int s = 0; s < DOWNS / 2; s++) {
                int o = output_of(w, piece, half * (DOWNS / 2) + s);
                if (w.group % (w.span / 2) == 0 && o < hidden) job.y[pair * hidden + o] = y[s];
            }
        }
    }
}

static __global__ void __launch_bounds__(THREADS) moe_sums_kernel(const __grid_constant__ moe_job job) {
    begin_kernel();
    int64_t t = blockIdx.y, i = (int64_t)blockIdx.x * THREADS + threadIdx.x, n = job.out.n_col;
    if (i >= n) return;
    const float *weights = job.router.weights + t * job.n_used;
    float sum = tensor_load(job.residual, t, i);
    for (int s = 0; s < job.n_used; s++) sum = fmaf(weights[s], job.y[(t * job.n_used + s) * n + i], sum);
    sum = fmaf(job.router.shared[t], job.y[((int64_t)job.n_row * job.n_used + t) * n + i], sum);
    tensor_store(job.out, t, i, sum);
}

static void launch(struct cuda_device *d, const char *name, void (*kernel)(const moe_job), const struct moe_job *job,
                   int64_t n_piece) {
    int64_t n = ceil_div(n_piece, WARPS), room = (int64_t)BLOCKS * d->n_processors;
    cuda_start(d, name, kernel, dim3((unsigned)(n < room ? n : room)), THREADS, 0, *job);
}

void moe_many(struct cuda_device *d, const struct moe_job *job, int64_t most_tiles) {
    int64_t width = (int64_t)job->h_groups * MOE_GROUP, hidden = job->out.n_col;
    int64_t n_pair = (int64_t)job->n_row * (job->n_used + 1);
    launch(d, "experts, gate and up of rows", moe_many_widen_kernel, job,
           most_tiles * ceil_div(width * moe_span(job->x_groups), 32 * SETS));
    cuda_start(d, "experts, activations of rows", moe_many_turn_kernel,
               dim3((unsigned)ceil_div(n_pair * job->h_groups * 8, THREADS)), THREADS, 0, *job);
    launch(d, "experts, down of rows", moe_many_down_kernel, job,
           most_tiles * ceil_div(hidden * moe_span(job->h_groups), 32 * DOWNS));
    dim3 grid((unsigned)ceil_div(hidden, THREADS), (unsigned)job->n_row);
    cuda_start(d, "experts, sums of rows", moe_sums_kernel, grid, THREADS, 0, *job);
}
