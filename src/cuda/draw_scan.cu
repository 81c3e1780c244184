// The first steps of a draw: changed logits, their largest, log probabilities and alternatives. The n largest logits of
// a row lie in the n blocks whose largest are largest (of equal ones the first), so only those are looked at twice.
#include "cuda/draw_tops.cuh"
#include <float.h>

#define PER_THREAD (DRAW_BLOCK / DRAW_THREADS)

static __device__ double penalise(const struct draw_row &r, double logit, int32_t n_reply) {
    logit = logit > 0 ? logit / r.repetition : logit * r.repetition;
    if (n_reply > 0) logit -= r.frequency * (double)n_reply + r.presence;
    return logit;
}

// Steps 1 to 3 for the block's tokens [first, first + n), of which thread i has i, i + DRAW_THREADS, ...
static __device__ void change_logits(const struct draw_job &job, const struct draw_row &r, int first, int n,
                                     const float raw[PER_THREAD], double *changed) {
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) changed[threadIdx.x + i * DRAW_THREADS] = (double)raw[i];
    if (r.n_bias == 0 && r.n_seen == 0) return;
    __syncthreads();
    const struct draw_bias *bias = (const struct draw_bias *)(job.lists + r.bias_at);
    for (int i = threadIdx.x; i < r.n_bias; i += DRAW_THREADS) {
        int at = bias[i].id - first;
        if (at >= 0 && at < n) changed[at] += (double)bias[i].bias;
    }
    __syncthreads();
    const struct draw_seen *seen = (const struct draw_seen *)(job.lists + r.seen_at);
    for (int i = threadIdx.x; i < r.n_seen; i += DRAW_THREADS) {
        int at = seen[i].id - first;
        if (at >= 0 && at < n) changed[at] = penalise(r, changed[at], seen[i].n_reply);
    }
    __syncthreads();
}

static __device__ __forceinline__ const uint32_t *allowed_of(const struct draw_job &job, const struct draw_row &r) {
    return r.allowed_at == DRAW_USUAL ? job.usual : (const uint32_t *)(job.lists + r.allowed_at);
}

static __device__ __forceinline__ bool token_is_in(const struct draw_job &job, const uint32_t *allowed, int token) {
    return token < job.n_vocab && (allowed[token / 32] >> (token % 32) & 1);
}

struct scan_shared {
    float most[DRAW_WARPS], most_in[DRAW_WARPS];
    draw_key key[DRAW_WARPS];
    double sum[DRAW_WARPS], best[32];
    int32_t id[32];
};

// LISTS: some row has biases or penalties. A row that has none gets the same from both.
template <bool LISTS>
static __global__ void __launch_bounds__(DRAW_THREADS) draw_scan_kernel(const __grid_constant__ draw_job job) {
    __shared__ struct scan_shared sh;
    __shared__ double changed[LISTS ? DRAW_BLOCK : 1];
    int64_t row = blockIdx.y, n_column = job.logits.n_col;
    const struct draw_row &r = job.rows[row];
    int first = blockIdx.x * DRAW_BLOCK, n = (int)min((int64_t)DRAW_BLOCK, n_column - first), warp = threadIdx.x / 32;
    begin_kernel();
    const float *logits = (const float *)job.logits.data + row * job.logits.stride + first;
    const uint32_t *allowed = allowed_of(job, r);
    float raw[PER_THREAD], most = -INFINITY, most_in = -INFINITY;
    unsigned in = 0; // which of the thread's tokens
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int at = (int)threadIdx.x + i * DRAW_THREADS;
        raw[i] = at < n ? logits[at] : -INFINITY;
        in |= at < n && token_is_in(job, allowed, first + at) ? 1u << i : 0;
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        raw[i] = isnan(raw[i]) ? -INFINITY : raw[i];
        most = fmaxf(most, raw[i]);
        most_in = in >> i & 1 ? fmaxf(most_in, raw[i]) : most_in;
    }
    if (LISTS) change_logits(job, r, first, n, raw, changed);
    double best = 0;
    int32_t id = -1;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int at = (int)threadIdx.x + i * DRAW_THREADS;
        bool is_in = in >> i & 1;
        double l = LISTS && isnan(changed[at]) ? -INFINITY : LISTS ? changed[at] : (double)raw[i];
        if (r.temperature > 0 && at < n) job.changed[row * n_column + first + at] = is_in ? l : (double)NAN;
        if (is_in && draw_better(l, first + at, best, id)) {
            best = l;
            id = first + at;
        }
    }
    if (LISTS) draw_block_best(&best, &id, sh.best, sh.id);
    draw_key key = draw_largest_key(id < 0 ? 0 : draw_place_of((float)best, id));
    most = warp_max(most);
    most_in = warp_max(most_in);
    if (threadIdx.x % 32 == 0) {
        sh.most[warp] = most;
        sh.most_in[warp] = most_in;
        sh.key[warp] = key;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < DRAW_WARPS; i++) {
        most = fmaxf(most, sh.most[i]);
        most_in = fmaxf(most_in, sh.most_in[i]);
        key = max(key, sh.key[i]);
    }
    // A tree of fixed shape, so that the sum is the same each time.
    double sum = 0;
    if (r.n_top >= 0 && most > -INFINITY)
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) sum += (double)expf(raw[i] - most);
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) sh.sum[warp] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    sum = 0;
    for (int i = 0; i < DRAW_WARPS; i++) sum += sh.sum[i];
    if (!LISTS) {
        id = draw_key_id(key);
        best = (double)draw_key_logit(key);
    }
    job.blocks[row * job.n_block + blockIdx.x] = (struct draw_block){best, sum, id, most, most_in, 0, -1};
}

// Sets *chosen to the `place`th of a row's blocks in the order of their largest logits, if there are so many. By a
// block of threads; `some` has room for a key of each.
static __device__ void find_block(const struct draw_block *blocks, int n_block, int place, draw_key *some,
                                  int *chosen) {
    for (int first = 0; first < n_block; first += DRAW_THREADS) {
        int b = first + (int)threadIdx.x, before = 0;
        draw_key own = b < n_block ? draw_key_of(blocks[b].raw_in, b) : 0;
        for (int others = 0; others < n_block; others += DRAW_THREADS) {
            int other = others + (int)threadIdx.x, n = min(n_block - others, DRAW_THREADS);
            __syncthreads();
            some[threadIdx.x] = other < n_block ? draw_key_of(blocks[other].raw_in, other) : 0;
            __syncthreads();
            for (int i = 0; i < n; i++) before += some[i] > own;
        }
        if (own != 0 && before == place) *chosen = b;
    }
    __syncthreads();
}

// The largest raw logits among the allowed, of the block of tokens that is this block's place in their order.
static __global__ void __launch_bounds__(DRAW_THREADS) draw_tops_kernel(const __grid_constant__ draw_job job) {
    __shared__ struct draw_lists lists;
    __shared__ draw_key some[DRAW_THREADS];
    __shared__ int chosen;
    int64_t row = blockIdx.y;
    const struct draw_row &r = job.rows[row];
    begin_kernel();
    if ((int)blockIdx.x >= r.n_top) return;
    struct draw_top *tops = job.tops + (row * DRAW_MAX_TOP + blockIdx.x) * DRAW_MAX_TOP;
    if (threadIdx.x == 0) chosen = -1;
    find_block(job.blocks + row * job.n_block, job.n_block, blockIdx.x, some, &chosen);
    const uint32_t *allowed = allowed_of(job, r);
    const float *logits = (const float *)job.logits.data + row * job.logits.stride;
    draw_key keys[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int token = chosen * DRAW_BLOCK + (int)threadIdx.x + i * DRAW_THREADS;
        keys[i] = chosen >= 0 && token_is_in(job, allowed, token) ? draw_key_of(logits[token], token) : 0;
    }
    draw_list_keys<PER_THREAD>(keys, r.n_top, lists.of[threadIdx.x / 32]);
    __syncthreads();
    if (threadIdx.x >= 32) return;
    draw_join_lists(r.n_top, &lists);
    if ((int)threadIdx.x >= r.n_top) return;
    draw_key key = lists.of[0][threadIdx.x];
    tops[threadIdx.x] = (struct draw_top){draw_key_id(key), draw_key_logit(key)};
}

// Of a block's threads, in an order that is the same each time; every thread gets it.
static __device__ double block_total(double x, double *shared) {
    for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    double sum = 0;
    for (int i = 0; i < DRAW_THREADS / 32; i++) sum += shared[i];
    return sum;
}

// Every thread gets it.
static __device__ double normaliser_of(const struct draw_job &job, const struct draw_block *blocks, double *shared,
                                       int32_t *shared_id) {
    double max = -INFINITY, sum = 0;
    int32_t any = threadIdx.x;
    for (int b = threadIdx.x; b < job.n_block; b += DRAW_THREADS) max = fmax(max, (double)blocks[b].raw_max);
    draw_block_best(&max, &any, shared, shared_id);
    if (!isfinite(max)) return max;
    for (int b = threadIdx.x; b < job.n_block; b += DRAW_THREADS)
        sum += blocks[b].raw_sum * exp((double)blocks[b].raw_max - max);
    return max + log(block_total(sum, shared));
}

// The blocks' lists become one, which is the row's. A warp takes them a piece at a time, with what it has listed so
// far.
static __device__ void join_tops(const struct draw_job &job, int64_t row, int n_top, double normaliser,
                                 struct draw_lists *lists, struct draw_result *result) {
    const struct draw_top *tops = job.tops + row * DRAW_MAX_TOP * DRAW_MAX_TOP;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = n_top * n_top;
    draw_key *own = lists->of[warp], keys[PER_THREAD + 1];
    if (lane < n_top) own[lane] = 0;
    for (int piece = warp * 32 * PER_THREAD; piece < n; piece += DRAW_THREADS * PER_THREAD) {
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            int at = piece + lane + 32 * i;
            struct draw_top t = {-1, 0};
            if (at < n) t = tops[at / n_top * DRAW_MAX_TOP + at % n_top];
            keys[i] = draw_key_of(t.logprob, t.id);
        }
        __syncwarp();
        keys[PER_THREAD] = lane < n_top ? own[lane] : 0;
        __syncwarp();
        draw_list_keys<PER_THREAD + 1>(keys, n_top, own);
    }
    __syncthreads();
    if (warp > 0) return;
    draw_join_lists(n_top, lists);
    draw_key key = lane < n_top ? lists->of[0][lane] : 0;
    if (key != 0)
        result->top[lane] = (struct draw_top){draw_key_id(key), (float)((double)draw_key_logit(key) - normaliser)};
    unsigned there = __ballot_sync(0xffffffffu, key != 0);
    if (lane == 0) result->n_top = __popc(there);
}

static __device__ void find_scale(const struct draw_row &r, double max, struct draw_found *f) {
    double t = fmin(fmax(r.temperature, 1e-30), 1e30);
    f->id = -1;
    f->sampled = r.temperature > 0 && isfinite(max);
    f->listed = f->sampled && (r.top_k > 0 || r.top_p < 1);
    f->max_s = f->sampled ? max / t : 0;
    f->min_s = r.min_p > 0 ? f->max_s + log(r.min_p) : -DBL_MAX;
    f->first_best = f->sampled ? f->max_s + draw_noise(draw_bits(r.seed, r.position, (uint64_t)f->max_id)) : 0;
}

// One block a row: what its blocks found; without noise that is the answer.
static __global__ void __launch_bounds__(DRAW_THREADS)
    draw_found_kernel(const __grid_constant__ draw_job job, bool no_noise) {
    __shared__ double best_of[32];
    __shared__ int32_t id_of[32];
    __shared__ struct draw_lists lists;
    __shared__ struct draw_result known;
    int64_t row = blockIdx.x;
    const struct draw_row &r = job.rows[row];
    const struct draw_block *blocks = job.blocks + row * job.n_block;
    double best = 0;
    int32_t id = -1;
    for (int i = threadIdx.x; i < (int)(sizeof known / 4); i += DRAW_THREADS) ((uint32_t *)&known)[i] = 0;
    begin_kernel();
    for (int b = threadIdx.x; b < job.n_block; b += DRAW_THREADS)
        if (draw_better(blocks[b].max, blocks[b].max_id, best, id)) {
            best = blocks[b].max;
            id = blocks[b].max_id;
        }
    draw_block_best(&best, &id, best_of, id_of);
    __syncthreads();
    double normaliser = r.n_top >= 0 ? normaliser_of(job, blocks, best_of, id_of) : 0;
    if (r.n_top > 0) join_tops(job, row, r.n_top, normaliser, &lists, &known);
    __syncthreads();
    if (no_noise) {
        draw_answer(job, row, id, normaliser, &known);
        return;
    }
    for (int i = threadIdx.x; i < (int)(sizeof known / 4); i += DRAW_THREADS)
        ((uint32_t *)&job.results[row])[i] = ((const uint32_t *)&known)[i];
    if (threadIdx.x > 0) return;
    struct draw_found *f = &job.found[row];
    f->max_id = id;
    f->normaliser = normaliser;
    find_scale(r, best, f);
}

void draw_scan(struct cuda_device *d, const struct draw_job *job, int n_row, int n_top, bool no_noise) {
    dim3 blocks((unsigned)job->n_block, (unsigned)n_row);
    bool lists = false;
    for (int i = 0; i < n_row; i++) lists = lists || job->rows[i].n_bias > 0 || job->rows[i].n_seen > 0;
    cuda_start(d, "draw, scan", lists ? draw_scan_kernel<true> : draw_scan_kernel<false>, blocks, DRAW_THREADS, 0,
               *job);
    if (n_top > 0)
        cuda_start(d, "draw, tops", draw_tops_kernel, dim3((unsigned)n_top, (unsigned)n_row), DRAW_THREADS, 0, *job);
    cuda_start(d, "draw, findings", draw_found_kernel, dim3((unsigned)n_row), DRAW_THREADS, 0, *job, no_noise);
}
