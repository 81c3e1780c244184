// What a round's experts begin with (moe.cuh). Blocks of eight experts norm some rows into shared memory while their
// weights are on the way, and multiply. With several rows other blocks bring one row each into groups, and with many
// the block that is done last chooses and lists the pairs.
#include "cuda/moe.cuh"
#include "cuda/router_choice.cuh"
#include "cuda/router_product.cuh"

#define WARPS     8
#define THREADS   (32 * WARPS)
#define MANY_ROWS 4 // of a block
static_assert(MOE_MOST_GROUPS * MOE_GROUP <= THREADS * 8, "a thread norms eight inputs of a row");

struct open_shared {
    float squares[MANY_ROWS][WARPS];
    int totals[WARPS];
    bool is_last;
};

// Rows [t0, t0 + ROWS), normed, into `rows`: [ROWS][n_col]. All warps of a block call it; a thread has eight inputs.
template <int ROWS>
static __device__ __forceinline__ void norm_rows(const struct moe_job &job, int64_t t0, const float weight[8],
                                                 struct open_shared *s, float *rows) {
    const struct tensor &x = job.router.x;
    int n = (int)x.n_col, warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = (int)threadIdx.x * 8;
    wait_for_earlier();
    if (ROWS == 1) let_next_start(); // the next kernel reads the row before it waits
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float v[8] = {}, squares = 0;
        if (t0 + r < x.n_row && i < n) load_eight(x, true, t0 + r, i, v);
        for (int j = 0; j < 8; j++) squares = fmaf(v[j], v[j], squares);
        squares = warp_sum(squares);
        if (lane == 0) s->squares[r][warp] = squares;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) { // reads the rows again rather than hold them: registers are few
        if (t0 + r >= x.n_row || i >= n) continue;
        float v[8], squares = 0;
        load_eight(x, true, t0 + r, i, v);
#pragma unroll
        for (int w = 0; w < WARPS; w++) squares += s->squares[r][w];
        float inverse = rsqrtf(squares / (float)n + job.eps);
        for (int j = 0; j < 8; j++) v[j] = v[j] * inverse * weight[j];
        float4 *to = (float4 *)(rows + r * n + i);
        to[0] = *(float4 *)v;
        to[1] = *(float4 *)(v + 4);
    }
    __syncthreads();
}

// ---- weights of the usual kind for a router: 8 bits, groups of 64, bf16 scales; through shared memory, since a loop
// that is short is fetched in less time than it takes to run ----

static __host__ __device__ inline size_t expert_bytes(int64_t n_in) { return (size_t)(n_in + n_in / 16); }

// A warp's copy of its expert's weights: codes, scales, biases.
static __device__ __forceinline__ void copy_expert(const struct weight_view &w, int64_t row, char *to) {
    int lane = threadIdx.x % 32, n = (int)w.n_in, n_group = n / 64;
    const char *codes = w.data + row * n;
    for (int k = lane * 8; k < n; k += 256) copy8(to + k, codes + k);
    for (int g = lane * 2; g < 2 * n_group; g += 64) {
        bool is_scale = g < n_group;
        const char *from = (is_scale ? w.scales : w.biases) + (row * n_group + g - (is_scale ? 0 : n_group)) * 2;
        copy4(to + n + g * 2, from, 4);
    }
    copies_commit();
}

// As router_logits.
template <int ROWS>
static __device__ __forceinline__ void expert_logits(const struct moe_job &job, int e, int64_t t0, const char *codes,
                                                     const float *rows) {
    int lane = threadIdx.x % 32, n = (int)job.router.x.n_col, stride = (int)job.router.gate.n_out + 1;
    const uint16_t *scales = (const uint16_t *)(codes + n), *biases = scales + n / 64;
    float sum[ROWS] = {};
#pragma unroll 1
    for (int k = lane * 8; k < n; k += 256) {
        struct eight_codes c = {*(const uint2 *)(codes + k), scales[k / 64], biases[k / 64]};
        float weight[8];
        widen_codes(c, weight);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (t0 + r >= job.n_row) continue;
            float x[8];
            *(float4 *)x = *(const float4 *)(rows + r * n + k);
            *(float4 *)(x + 4) = *(const float4 *)(rows + r * n + k + 4);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[r] = fmaf(x[i], weight[i], sum[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float total = warp_sum(sum[r]);
        if (lane == 0 && t0 + r < job.n_row) job.router.logits[(t0 + r) * stride + e] = total;
    }
}

static bool is_usual_router(const struct weight_view &w) {
    return w.weight_class == CLASS_Q8 && w.dtype == DTYPE_BF16 && w.group == 64 && w.n_in % 128 == 0 &&
           (uintptr_t)w.data % 8 == 0 && (uintptr_t)w.scales % 4 == 0 && (uintptr_t)w.biases % 4 == 0;
}

// By one block: logits of its experts. memory: normed rows, and weights where they are of the usual kind.
template <int ROWS>
static __device__ __forceinline__ void open_logits(const struct moe_job &job, struct open_shared *s, float *rows) {
    int n = (int)job.router.x.n_col, i = (int)threadIdx.x * 8, n_expert = (int)job.router.gate.n_out;
    int e = (int)(blockIdx.x * WARPS + threadIdx.x / 32);
    int64_t t0 = (int64_t)blockIdx.y * ROWS;
    float weight[8];
    if (i < n) {
        *(float4 *)weight = *(const float4 *)(job.norm_weight + i);
        *(float4 *)(weight + 4) = *(const float4 *)(job.norm_weight + i + 4);
    }
    if (!job.usual_router) {
        router_logits<ROWS>(
            job.router, e, t0, [&]() { norm_rows<ROWS>(job, t0, weight, s, rows); },
            [&](int r, int64_t k, float x[8]) {
                const float4 *from = (const float4 *)(rows + r * n + k);
                *(float4 *)x = from[0];
                *(float4 *)(x + 4) = from[1];
            });
        return;
    }
    char *codes = (char *)(rows + ROWS * n) + threadIdx.x / 32 * expert_bytes(n);
    if (e < n_expert)
        copy_expert(job.router.gate, e, codes);
    else if (e == n_expert)
        copy_expert(job.router.shared_gate, 0, codes);
    norm_rows<ROWS>(job, t0, weight, s, rows);
    copies_wait<0>();
    __syncwarp();
    if (e <= n_expert) expert_logits<ROWS>(job, e, t0, codes, rows);
}

static __global__ void __launch_bounds__(THREADS, 2) moe_logits_kernel(const __grid_constant__ moe_job job) {
    extern __shared__ __align__(16) float rows[];
    __shared__ struct open_shared s;
    open_logits<1>(job, &s, rows);
}

// ---- several rows ----

// Where a pair stands: its expert, and how many pairs of that come before it.
struct pair_places {
    int32_t *count;  // [n_expert]: pairs; then which of the list is the first
    uint32_t *place; // [n_pair]
};

// Chooses for all rows, AT_ONCE of them in a warp.
template <int PER, int AT_ONCE>
static __device__ __forceinline__ void choose_rows(const struct moe_job &job, const struct pair_places &to) {
    const struct router_job &r = job.router;
    int n_used = job.n_used, n_expert = (int)r.gate.n_out, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int t = warp; t < job.n_row; t += AT_ONCE * WARPS) {
        const float *logits[AT_ONCE];
        int mine[AT_ONCE] = {};
        float weight[AT_ONCE] = {}, shared[AT_ONCE], chosen[AT_ONCE];
#pragma unroll
        for (int a = 0; a < AT_ONCE; a++) {
            logits[a] = r.logits + (int64_t)min(t + a * WARPS, job.n_row - 1) * (n_expert + 1);
            shared[a] = __ldcg(logits[a] + n_expert);
        }
        choose_experts_of<PER, AT_ONCE>(logits, n_expert, n_used, chosen, [&](int a, int k, int id, float p) {
            if (lane != k) return;
            mine[a] = id;
            weight[a] = p;
        });
#pragma unroll
        for (int a = 0; a < AT_ONCE; a++) {
            int row = t + a * WARPS;
            if (row >= job.n_row) continue;
            if (lane == n_used) r.shared[row] = sigmoid_of(shared[a]);
            if (lane >= n_used) continue;
            r.ids[row * n_used + lane] = mine[a];
            r.weights[row * n_used + lane] = weight[a] / chosen[a];
            to.place[row * n_used + lane] = (uint32_t)mine[a] << 16 | (uint32_t)atomicAdd(&to.count[mine[a]], 1);
        }
    }
}

// Tiles of an expert's n pairs, of which the list's `first` is the first.
static __device__ __forceinline__ void cut_tiles(const struct moe_job &job, int expert, int first, int n,
                                                 struct pair_tile *to) {
    for (int k = 0; k < n; k += job.tile_pairs, to++)
        *to = (struct pair_tile){expert, first + k, min(job.tile_pairs, n - k)};
}

// Lists the pairs by expert, in tiles: the shared expert's first, which have the most pairs. Which pair of another
// expert comes first is left to chance.
static __device__ __forceinline__ void list_pairs(const struct moe_job &job, const struct pair_places &from,
                                                  struct open_shared *s) {
    const struct pair_groups &to = job.groups;
    int n_pair = job.n_row * job.n_used, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < job.n_row; i += THREADS) to.list[i] = n_pair + i;
    if (threadIdx.x == 0) cut_tiles(job, job.n_expert, 0, job.n_row, to.tile);
    int before = (job.n_row + job.tile_pairs - 1) / job.tile_pairs << 16 | job.n_row; // tiles, and pairs
    for (int e0 = 0; e0 < job.n_expert; e0 += THREADS) {
        int e = e0 + (int)threadIdx.x, n = e < job.n_expert ? from.count[e] : 0;
        int own = (n + job.tile_pairs - 1) / job.tile_pairs << 16 | n, sum = own;
        for (int step = 1; step < 32; step *= 2) {
            int more = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += more;
        }
        if (lane == 31) s->totals[warp] = sum;
        __syncthreads();
        int at = before + sum - own;
        for (int w = 0; w < WARPS; w++) {
            if (w < warp) at += s->totals[w];
            before += s->totals[w];
        }
        if (e < job.n_expert) from.count[e] = at & 0xffff;
        cut_tiles(job, e, at & 0xffff, n, to.tile + (at >> 16));
        __syncthreads();
    }
    if (threadIdx.x == 0) *to.n_tile = before >> 16;
    for (int i = threadIdx.x; i < n_pair; i += THREADS)
        to.list[from.count[from.place[i] >> 16] + (int)(from.place[i] & 0xffff)] = i;
}

// A row in groups, and its norm's factor.
static __device__ __forceinline__ void open_row(const struct moe_job &job, int64_t row) {
    char *to = job.x + row * moe_row_bytes(job.x_groups);
    moe_take_row(job, row, to);
    __syncthreads();
    if (threadIdx.x >= 32) return;
    float factor = moe_norm_factor(to, job.x_groups, job.eps);
    if (threadIdx.x == 0) job.factors[row] = factor;
}

template <int PER>
static __global__ void __launch_bounds__(THREADS) moe_open_kernel(const __grid_constant__ moe_job job) {
    extern __shared__ __align__(16) float memory[];
    __shared__ struct open_shared s;
    let_next_start();
    int n_across = (int)gridDim.x - MANY_ROWS;
    if ((int)blockIdx.x >= n_across) {
        int64_t row = (int64_t)blockIdx.y * MANY_ROWS + (int)blockIdx.x - n_across;
        wait_for_earlier();
        if (row < job.n_row) open_row(job, row);
        return;
    }
    open_logits<MANY_ROWS>(job, &s, memory);
    __threadfence();
    __syncthreads();
    unsigned n_block = (unsigned)n_across * gridDim.y;
    if (threadIdx.x == 0) s.is_last = atomicInc(job.router.arrived, n_block - 1) == n_block - 1;
    __syncthreads();
    if (!s.is_last) return;
    __threadfence();
    struct pair_places places = {(int32_t *)memory, (uint32_t *)memory + job.n_expert};
    for (int e = threadIdx.x; e < job.n_expert; e += THREADS) places.count[e] = 0;
    __syncthreads();
    constexpr int AT_ONCE = PER <= 8 ? 2 : 1; // as many as there are registers for
    if (job.n_row <= WARPS)
        choose_rows<PER, 1>(job, places);
    else
        choose_rows<PER, AT_ONCE>(job, places);
    __syncthreads();
    list_pairs(job, places, &s);
}

// Of a few rows, ROWS of them in a block: all blocks of the next kernel choose.
template <int ROWS>
static __global__ void __launch_bounds__(THREADS, 2) moe_few_logits_kernel(const __grid_constant__ moe_job job) {
    extern __shared__ __align__(16) float memory[];
    __shared__ struct open_shared s;
    let_next_start();
    int n_across = (int)gridDim.x - ROWS;
    if ((int)blockIdx.x < n_across) {
        open_logits<ROWS>(job, &s, memory);
        return;
    }
    int64_t row = (int64_t)blockIdx.y * ROWS + (int)blockIdx.x - n_across;
    wait_for_earlier();
    if (row < job.n_row) open_row(job, row);
}

template <int ROWS>
static void launch_few(struct cuda_device *d, const struct moe_job *job, size_t row_bytes, size_t weights) {
    unsigned n_across = (unsigned)ceil_div(job->n_expert + 1, WARPS);
    size_t bytes = ROWS * row_bytes + weights;
    cudaFuncSetAttribute(moe_few_logits_kernel<ROWS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    cuda_start(d, "experts, logits and rows", moe_few_logits_kernel<ROWS>,
               dim3(n_across + ROWS, (unsigned)ceil_div(job->n_row, ROWS)), THREADS, bytes, *job);
}

void moe_open(struct cuda_device *d, struct moe_job *job) {
    int64_t n = job->router.x.n_col;
    job->usual_router = is_usual_router(job->router.gate) && is_usual_router(job->router.shared_gate);
    size_t row_bytes = (size_t)n * sizeof(float), weights = job->usual_router ? WARPS * expert_bytes(n) : 0;
    unsigned n_across = (unsigned)ceil_div(job->n_expert + 1, WARPS);
    if (job->is_few) {
        if (job->n_row > 2 * MANY_ROWS)
            launch_few<MANY_ROWS>(d, job, row_bytes, weights);
        else if (job->n_row > MANY_ROWS)
            launch_few<2>(d, job, row_bytes, weights);
        else
            launch_few<1>(d, job, row_bytes, weights);
        return;
    }
    if (job->n_row == 1) {
        cuda_start(d, "experts, logits", moe_logits_kernel, dim3(n_across), THREADS, row_bytes + weights, *job);
        return;
    }
    size_t bytes = MANY_ROWS * row_bytes + weights;
    size_t lists = (size_t)(job->n_expert + job->n_row * job->n_used) * sizeof(int32_t);
    if (bytes < lists) bytes = lists;
    auto kernel = job->n_expert <= 8 * 32 ? moe_open_kernel<8> : moe_open_kernel<ROUTER_MOST / 32>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    dim3 grid(n_across + MANY_ROWS, (unsigned)ceil_div(job->n_row, MANY_ROWS));
    cuda_start(d, "experts, router and rows", kernel, grid, THREADS, bytes, *job);
}
