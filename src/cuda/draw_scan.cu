// The first steps of a draw: changed logits, their largest, log probabilities and alternatives.
#include "cuda/draw.cuh"
#include <float.h>

#define PER_THREAD (DRAW_BLOCK / DRAW_THREADS)

struct scan_shared {
    double changed[DRAW_BLOCK];
    float raw[DRAW_BLOCK];
    double best[32];
    int32_t id[32];
    float sums[33];
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
    __syncthreads();
}

// The block's largest raw logits among the allowed, one after another.
static __device__ void list_tops(const struct draw_row &r, int first, struct scan_shared *sh, struct draw_top *tops) {
    for (int k = 0; k < r.n_top; k++) {
        double best = 0;
        int32_t id = -1;
        for (int i = threadIdx.x; i < DRAW_BLOCK; i += DRAW_THREADS)
            if (sh->raw[i] > -INFINITY && draw_better((double)sh->raw[i], i, best, id)) {
                best = (double)sh->raw[i];
                id = i;
            }
        draw_block_best(&best, &id, sh->best, sh->id);
        if (threadIdx.x == 0) tops[k] = (struct draw_top){id < 0 ? -1 : first + id, (float)best};
        if (id >= 0 && threadIdx.x == 0) sh->raw[id] = -INFINITY;
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(DRAW_THREADS) draw_scan_kernel(const __grid_constant__ draw_job job) {
    __shared__ struct scan_shared sh;
    int64_t row = blockIdx.y, n_column = job.logits.n_col;
    const struct draw_row r = job.rows[row];
    int first = blockIdx.x * DRAW_BLOCK, n = (int)min((int64_t)DRAW_BLOCK, n_column - first);
    change_logits(job, r, row, first, n, &sh);
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

    const uint32_t *allowed = (const uint32_t *)(job.lists + r.allowed_at);
    double best = 0;
    int32_t id = -1;
    for (int i = threadIdx.x; i < n; i += DRAW_THREADS) {
        int token = first + i;
        bool is_in = token < job.n_vocab && (allowed[token / 32] >> (token % 32) & 1);
        double l = isnan(sh.changed[i]) ? -INFINITY : sh.changed[i];
        job.changed[row * n_column + token] = is_in ? l : (double)NAN;
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

#define LISTS_MOST 8192 // of a row: a vocabulary of 2^24

// By one warp: the blocks' lists, each of them falling, become one. A lane has every 32nd list, and the best of what
// is left of its own at hand.
static __device__ void merge_tops(const struct draw_job &job, int64_t row, int n_top, double normaliser,
                                  unsigned char *taken) {
    const struct draw_top *tops = job.tops + row * job.n_block * DRAW_MAX_TOP;
    struct draw_result *result = &job.results[row];
    int lane = threadIdx.x, from = -1, k = 0;
    bool look = true;
    float own = 0;
    int32_t own_id = -1;
    for (int b = lane; b < job.n_block; b += 32) taken[b] = 0;
    for (; k < n_top; k++) {
        if (look) {
            own_id = -1;
            for (int b = lane; b < job.n_block; b += 32) {
                struct draw_top t = {-1, 0};
                if (taken[b] < n_top) t = tops[b * DRAW_MAX_TOP + taken[b]];
                if (!draw_better((double)t.logprob, t.id, (double)own, own_id)) continue;
                own = t.logprob;
                own_id = t.id;
                from = b;
            }
        }
        double best = (double)own;
        int32_t id = own_id;
        for (int step = 16; step > 0; step >>= 1) {
            double other = __shfl_xor_sync(0xffffffffu, best, step);
            int32_t other_id = __shfl_xor_sync(0xffffffffu, id, step);
            if (draw_better(other, other_id, best, id)) {
                best = other;
                id = other_id;
            }
        }
        if (id < 0) break;
        look = own_id == id;
        if (look) taken[from]++;
        if (lane == 0) result->top[k] = (struct draw_top){id, (float)(best - normaliser)};
    }
    if (lane == 0) result->n_top = k;
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

// One block a row: what its blocks found.
static __global__ void __launch_bounds__(DRAW_THREADS) draw_found_kernel(const __grid_constant__ draw_job job) {
    __shared__ double best_of[32];
    __shared__ int32_t id_of[32];
    __shared__ unsigned char taken[LISTS_MOST];
    int64_t row = blockIdx.x;
    const struct draw_row r = job.rows[row];
    const struct draw_block *blocks = job.blocks + row * job.n_block;
    double best = 0;
    int32_t id = -1;
    for (int b = threadIdx.x; b < job.n_block; b += DRAW_THREADS)
        if (draw_better(blocks[b].max, blocks[b].max_id, best, id)) {
            best = blocks[b].max;
            id = blocks[b].max_id;
        }
    draw_block_best(&best, &id, best_of, id_of);
    struct draw_result *result = &job.results[row];
    for (int i = threadIdx.x; i < (int)(sizeof *result / 4); i += DRAW_THREADS) ((uint32_t *)result)[i] = 0;
    __syncthreads();
    double normaliser = r.n_top >= 0 ? normaliser_of(job, blocks, best_of, id_of) : 0;
    if (threadIdx.x == 0) {
        struct draw_found *f = &job.found[row];
        f->max_id = id;
        f->normaliser = normaliser;
        find_scale(r, best, f);
    }
    if (r.n_top > 0 && threadIdx.x < 32) merge_tops(job, row, r.n_top, normaliser, taken);
}

void draw_scan(struct cuda_device *d, const struct draw_job *job, int n_row) {
    must(job->n_block <= LISTS_MOST);
    draw_scan_kernel<<<dim3((unsigned)job->n_block, (unsigned)n_row), DRAW_THREADS, 0, d->stream>>>(*job);
    cuda_launched(d, "draw, scan");
    draw_found_kernel<<<(unsigned)n_row, DRAW_THREADS, 0, d->stream>>>(*job);
    cuda_launched(d, "draw, findings");
}
