// The first steps of a draw: changed logits, their largest, log probabilities and alternatives.
#include "cuda/draw_tops.cuh"
#include <float.h>

#define PER_THREAD (DRAW_BLOCK / DRAW_THREADS)

struct scan_shared {
    double changed[DRAW_BLOCK];
    float raw[DRAW_BLOCK];
    double best[32];
    int32_t id[32];
    struct draw_lists lists;
};

static __device__ double penalise(const struct draw_row &r, double logit, int32_t n_reply) {
    logit = logit > 0 ? logit / r.repetition : logit * r.repetition;
    if (n_reply > 0) logit -= r.frequency * (double)n_reply + r.presence;
    return logit;
}

// Steps 1 to 4 for the block's tokens [first, first + n).
static __device__ void change_logits(const struct draw_job &job, const struct draw_row &r, int64_t row, int first,
                                     int n, struct scan_shared *sh) {
    const float *logits = (const float *)job.logits.data + row * job.logits.stride;
    for (int i = threadIdx.x; i < DRAW_BLOCK; i += DRAW_THREADS) {
        float x = i < n ? logits[first + i] : -INFINITY;
        sh->raw[i] = isnan(x) ? -INFINITY : x;
        sh->changed[i] = (double)sh->raw[i];
    }
    if (r.n_bias == 0 && r.n_seen == 0) return;
    __syncthreads();
    const struct draw_bias *bias = (const struct draw_bias *)(job.lists + r.bias_at);
    for (int i = threadIdx.x; i < r.n_bias; i += DRAW_THREADS) {
        int at = bias[i].id - first;
        if (at >= 0 && at < n) sh->changed[at] += (double)bias[i].bias;
    }
    __syncthreads();
    const struct draw_seen *seen = (const struct draw_seen *)(job.lists + r.seen_at);
    for (int i = threadIdx.x; i < r.n_seen; i += DRAW_THREADS) {
        int at = seen[i].id - first;
        if (at >= 0 && at < n) sh->changed[at] = penalise(r, sh->changed[at], seen[i].n_reply);
    }
}

// The block's largest raw logits among the allowed.
static __device__ void list_tops(const struct draw_row &r, int first, struct scan_shared *sh, struct draw_top *tops) {
    draw_key keys[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int at = (int)threadIdx.x + i * DRAW_THREADS;
        keys[i] = draw_key_of(sh->raw[at], first + at);
    }
    draw_list_keys<PER_THREAD>(keys, r.n_top, sh->lists.of[threadIdx.x / 32]);
    __syncthreads();
    if (threadIdx.x >= 32) return;
    draw_join_lists(r.n_top, &sh->lists);
    if ((int)threadIdx.x >= r.n_top) return;
    draw_key key = sh->lists.of[0][threadIdx.x];
    tops[threadIdx.x] = (struct draw_top){draw_key_id(key), draw_key_logit(key)};
}

static __global__ void __launch_bounds__(DRAW_THREADS) draw_scan_kernel(const __grid_constant__ draw_job job) {
    __shared__ struct scan_shared sh;
    int64_t row = blockIdx.y, n_column = job.logits.n_col;
    const struct draw_row &r = job.rows[row];
    int first = blockIdx.x * DRAW_BLOCK, n = (int)min((int64_t)DRAW_BLOCK, n_column - first);
    begin_kernel();
    change_logits(job, r, row, first, n, &sh);
    __syncthreads();
    float raw_max = -INFINITY;
    for (int i = threadIdx.x; i < n; i += DRAW_THREADS) raw_max = fmaxf(raw_max, sh.raw[i]);
    double most = (double)raw_max;
    int32_t any = threadIdx.x;
    draw_block_best(&most, &any, sh.best, sh.id);
    double sum = 0;
    if (r.n_top >= 0 && most > -INFINITY)
        for (int i = threadIdx.x; i < n; i += DRAW_THREADS) sum += exp((double)sh.raw[i] - most);
    // A tree of fixed shape, so that the sum is the same each time.
    __syncthreads();
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) sh.best[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < DRAW_THREADS / 32; i++) sum += sh.best[i];
    __syncthreads();

    const uint32_t *allowed = r.allowed_at == DRAW_USUAL ? job.usual : (const uint32_t *)(job.lists + r.allowed_at);
    bool is_sampled = r.temperature > 0;
    double best = 0;
    int32_t id = -1;
    for (int i = threadIdx.x; i < n; i += DRAW_THREADS) {
        int token = first + i;
        bool is_in = token < job.n_vocab && (allowed[token / 32] >> (token % 32) & 1);
        double l = isnan(sh.changed[i]) ? -INFINITY : sh.changed[i];
        if (is_sampled) job.changed[row * n_column + token] = is_in ? l : (double)NAN;
        if (!is_in) sh.raw[i] = -INFINITY;
        if (is_in && draw_better(l, token, best, id)) {
            best = l;
            id = token;
        }
    }
    draw_block_best(&best, &id, sh.best, sh.id);
    if (threadIdx.x == 0)
        job.blocks[row * job.n_block + blockIdx.x] = (struct draw_block){best, sum, id, (float)most, 0, -1};
    __syncthreads();
    if (r.n_top > 0) list_tops(r, first, &sh, job.tops + (row * job.n_block + blockIdx.x) * DRAW_MAX_TOP);
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
    const struct draw_top *tops = job.tops + row * job.n_block * DRAW_MAX_TOP;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = job.n_block * n_top;
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

void draw_scan(struct cuda_device *d, const struct draw_job *job, int n_row, bool no_noise) {
    dim3 blocks((unsigned)job->n_block, (unsigned)n_row);
    cuda_start(d, "draw, scan", draw_scan_kernel, blocks, DRAW_THREADS, 0, *job);
    cuda_start(d, "draw, findings", draw_found_kernel, dim3((unsigned)n_row), DRAW_THREADS, 0, *job, no_noise);
}
