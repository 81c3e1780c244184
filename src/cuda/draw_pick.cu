// The last steps of a draw: top-k, top-p, min-p and the noise.
//
// Rows with top-k or top-p: tokens are counted (or their probability mass summed, as integers) in bins of depth below
// the largest s; the bins that must hold the kept set are listed; one block then finds the exact last token of it by
// radix selection over (s, id), and the largest s + noise among those kept. Other rows look at every token once.
#include "cuda/draw.cuh"

#define SELECT_THREADS 1024
#define DIGITS         12 // bytes of (s as a sortable integer, inverted id)

static __device__ __forceinline__ double scaled(const struct draw_row &r, double l) {
    return l / fmin(fmax(r.temperature, 1e-30), 1e30);
}

// A token's s, if it is in and has a probability.
static __device__ __forceinline__ bool token_s(const struct draw_job &job, const struct draw_row &r, int64_t row,
                                               int token, double *s) {
    double l = job.changed[row * job.logits.n_col + token];
    *s = scaled(r, l);
    return l > -INFINITY; // false for NaN too
}

static __global__ void __launch_bounds__(DRAW_THREADS) draw_count_kernel(const __grid_constant__ draw_job job) {
    __shared__ uint32_t count[DRAW_BINS];
    __shared__ unsigned long long mass[DRAW_BINS];
    int64_t row = blockIdx.y;
    const struct draw_found &f = job.found[row];
    if (!f.listed) return;
    const struct draw_row &r = job.rows[row];
    for (int i = threadIdx.x; i < DRAW_BINS; i += DRAW_THREADS) {
        count[i] = 0;
        mass[i] = 0;
    }
    __syncthreads();
    int first = blockIdx.x * DRAW_BLOCK, end = (int)min((int64_t)first + DRAW_BLOCK, job.logits.n_col);
    for (int i = first + threadIdx.x; i < end; i += DRAW_THREADS) {
        double s;
        if (!token_s(job, r, row, i, &s)) continue;
        int bin = draw_bin(f.max_s, s);
        atomicAdd(&count[bin], 1u);
        if (r.top_k <= 0) atomicAdd(&mass[bin], draw_mass(f.max_s, s));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < DRAW_BINS; i += DRAW_THREADS) {
        if (count[i] > 0) atomicAdd(&job.count[row * DRAW_BINS + i], count[i]);
        if (mass[i] > 0) atomicAdd(&job.mass[row * DRAW_BINS + i], mass[i]);
    }
}

// The mass that a prefix must reach.
static __device__ __forceinline__ unsigned long long target_of(double top_p, unsigned long long total) {
    double target = ceil(top_p * (double)total);
    return target < 1 ? 1 : (unsigned long long)target;
}

// One block a row: the first bin with which the counts reach top-k, or the masses top-p.
static __global__ void __launch_bounds__(DRAW_THREADS) draw_cut_kernel(const __grid_constant__ draw_job job) {
    constexpr int PER = DRAW_BINS / DRAW_THREADS;
    __shared__ unsigned long long part[DRAW_THREADS];
    int64_t row = blockIdx.x;
    struct draw_found *f = &job.found[row];
    if (!f->listed) return;
    const struct draw_row &r = job.rows[row];
    unsigned long long value[PER], sum = 0;
    for (int i = 0; i < PER; i++) {
        int64_t at = row * DRAW_BINS + threadIdx.x * PER + i;
        sum += value[i] = r.top_k > 0 ? job.count[at] : job.mass[at];
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    unsigned long long before = 0, total = 0;
    for (int i = 0; i < DRAW_THREADS; i++) {
        if (i == (int)threadIdx.x) before = total;
        total += part[i];
    }
    unsigned long long target = r.top_k > 0 ? (unsigned long long)r.top_k : target_of(r.top_p, total);
    if (threadIdx.x == 0) {
        f->total = total;
        if (total < target) f->cut_bin = DRAW_BINS - 1;
    }
    for (int i = 0; i < PER; i++) {
        if (before < target && before + value[i] >= target) f->cut_bin = threadIdx.x * PER + i;
        before += value[i];
    }
}

static __global__ void __launch_bounds__(DRAW_THREADS) draw_list_kernel(const __grid_constant__ draw_job job) {
    int64_t row = blockIdx.y;
    const struct draw_found &f = job.found[row];
    if (!f.listed) return;
    const struct draw_row &r = job.rows[row];
    int first = blockIdx.x * DRAW_BLOCK, end = (int)min((int64_t)first + DRAW_BLOCK, job.logits.n_col);
    for (int i = first + threadIdx.x; i < end; i += DRAW_THREADS) {
        double s;
        if (!token_s(job, r, row, i, &s) || draw_bin(f.max_s, s) > f.cut_bin) continue;
        job.list[row * job.logits.n_col + atomicAdd(&job.n_list[row], 1)] = i;
    }
}

// ---- exact selection among the listed tokens ----

struct place {
    uint64_t key; // rises with s
    uint32_t id;  // inverted: rises as the id falls
};

static __device__ __forceinline__ struct place place_of(double s, int32_t id) {
    uint64_t bits = (uint64_t)__double_as_longlong(s + 0.0); // both zeros are equal
    return (struct place){bits >> 63 ? ~bits : bits | 1ull << 63, ~(uint32_t)id};
}
static __device__ __forceinline__ bool is_before(struct place a, struct place b) { // b itself included
    return a.key > b.key || (a.key == b.key && a.id >= b.id);
}
static __device__ __forceinline__ uint32_t digit_of(struct place p, int d) {
    return d < 8 ? (uint32_t)(p.key >> (56 - 8 * d)) & 0xff : p.id >> (24 - 8 * (d - 8)) & 0xff;
}
// The first d digits agree.
static __device__ __forceinline__ bool has_prefix(struct place p, struct place prefix, int d) {
    if (d == 0) return true;
    if (d <= 8) return p.key >> (64 - 8 * d) == prefix.key >> (64 - 8 * d);
    return p.key == prefix.key && p.id >> (32 - 8 * (d - 8)) == prefix.id >> (32 - 8 * (d - 8));
}

struct select_shared {
    unsigned long long digit[256];
    unsigned long long above;
    struct place cut;
    double best[32];
    int32_t id[32];
};

// By warp 0: the digit with which the sum from above reaches the target. Where it never does (masses of 0 at the end),
// the lowest digit that occurs would do; the sum then ends at digit 0.
static __device__ void choose_digit(struct select_shared *sh, unsigned long long target, int d) {
    int lane = threadIdx.x;
    unsigned long long part = 0, before = 0;
    for (int i = 0; i < 8; i++) part += sh->digit[255 - (8 * lane + i)];
    unsigned long long sum = part;
    for (int step = 1; step < 32; step *= 2) {
        unsigned long long other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    before = sh->above + sum - part;
    __syncwarp();
    for (int i = 0; i < 8; i++) {
        unsigned long long value = sh->digit[255 - (8 * lane + i)];
        if (before < target && before + value >= target) {
            uint64_t digit = (uint64_t)(255 - (8 * lane + i));
            if (d < 8)
                sh->cut.key |= digit << (56 - 8 * d);
            else
                sh->cut.id |= (uint32_t)digit << (24 - 8 * (d - 8));
            sh->above = before;
        }
        before += value;
    }
}

// Lowers sh->cut to the last token of the shortest prefix, in falling order, of the tokens up to `limit` whose counts
// (or masses) reach the target.
static __device__ void select_prefix(const struct draw_job &job, const struct draw_row &r, int64_t row,
                                     struct place limit, bool by_mass, unsigned long long target,
                                     struct select_shared *sh) {
    const int32_t *list = job.list + row * job.logits.n_col;
    int n = job.n_list[row];
    double max_s = job.found[row].max_s;
    __syncthreads();
    if (threadIdx.x == 0) {
        sh->cut = (struct place){0, 0};
        sh->above = 0;
    }
    for (int d = 0; d < DIGITS; d++) {
        if (threadIdx.x < 256) sh->digit[threadIdx.x] = 0;
        __syncthreads();
        struct place prefix = sh->cut;
        for (int i = threadIdx.x; i < n; i += SELECT_THREADS) {
            double s;
            token_s(job, r, row, list[i], &s);
            struct place p = place_of(s, list[i]);
            if (!is_before(p, limit) || !has_prefix(p, prefix, d)) continue;
            atomicAdd(&sh->digit[digit_of(p, d)], by_mass ? draw_mass(max_s, s) : 1ull);
        }
        __syncthreads();
        if (threadIdx.x < 32) choose_digit(sh, target, d);
        __syncthreads();
    }
}

static __device__ unsigned long long mass_up_to(const struct draw_job &job, const struct draw_row &r, int64_t row,
                                                struct place limit, struct select_shared *sh) {
    const int32_t *list = job.list + row * job.logits.n_col;
    __syncthreads();
    if (threadIdx.x == 0) sh->above = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < job.n_list[row]; i += SELECT_THREADS) {
        double s;
        token_s(job, r, row, list[i], &s);
        if (is_before(place_of(s, list[i]), limit)) atomicAdd(&sh->above, draw_mass(job.found[row].max_s, s));
    }
    __syncthreads();
    return sh->above;
}

static __global__ void __launch_bounds__(SELECT_THREADS) draw_select_kernel(const __grid_constant__ draw_job job) {
    __shared__ struct select_shared sh;
    int64_t row = blockIdx.x;
    struct draw_found *f = &job.found[row];
    if (!f->listed) return;
    const struct draw_row &r = job.rows[row];
    const int32_t *list = job.list + row * job.logits.n_col;
    struct place limit = {0, 0}; // all tokens
    if (r.top_k > 0 && r.top_k < job.n_list[row]) {
        select_prefix(job, r, row, limit, false, (unsigned long long)r.top_k, &sh);
        limit = sh.cut;
    }
    if (r.top_p < 1) {
        unsigned long long total = r.top_k > 0 ? mass_up_to(job, r, row, limit, &sh) : f->total;
        select_prefix(job, r, row, limit, true, target_of(r.top_p, total), &sh);
        limit = sh.cut;
    }
    double best = 0;
    int32_t id = -1;
    for (int i = threadIdx.x; i < job.n_list[row]; i += SELECT_THREADS) {
        double s;
        token_s(job, r, row, list[i], &s);
        if (s < f->min_s || !is_before(place_of(s, list[i]), limit)) continue;
        double x = s + draw_noise(draw_bits(r.seed, r.position, (uint64_t)list[i]));
        if (draw_better(x, list[i], best, id)) {
            best = x;
            id = list[i];
        }
    }
    draw_block_best(&best, &id, sh.best, sh.id);
    if (threadIdx.x == 0) f->id = id;
}

// ---- rows that look at every token ----

static __global__ void __launch_bounds__(DRAW_THREADS) draw_all_kernel(const __grid_constant__ draw_job job) {
    __shared__ double best_of[32];
    __shared__ int32_t id_of[32];
    int64_t row = blockIdx.y;
    begin_kernel();
    const struct draw_found &f = job.found[row];
    if (!f.sampled || f.listed) return;
    const struct draw_row &r = job.rows[row];
    int first = blockIdx.x * DRAW_BLOCK, end = (int)min((int64_t)first + DRAW_BLOCK, job.logits.n_col);
    double best = f.first_best; // what the likeliest token reaches lets most of the others be skipped
    int32_t id = f.max_id;
    for (int i = first + threadIdx.x; i < end; i += DRAW_THREADS) {
        double s;
        if (!token_s(job, r, row, i, &s) || s < f.min_s || s + NOISE_MAX < best) continue;
        uint64_t bits = draw_bits(r.seed, r.position, (uint64_t)i);
        if (s + draw_noise_limit(bits) < best) continue;
        double x = s + draw_noise(bits);
        if (draw_better(x, i, best, id)) {
            best = x;
            id = i;
        }
    }
    draw_block_best(&best, &id, best_of, id_of);
    if (threadIdx.x > 0) return;
    job.blocks[row * job.n_block + blockIdx.x].best = best;
    job.blocks[row * job.n_block + blockIdx.x].best_id = id;
}

static __global__ void __launch_bounds__(DRAW_THREADS) draw_finish_kernel(const __grid_constant__ draw_job job) {
    __shared__ double best_of[32];
    __shared__ int32_t id_of[32];
    int64_t row = blockIdx.x;
    begin_kernel();
    const struct draw_found &f = job.found[row];
    const struct draw_block *blocks = job.blocks + row * job.n_block;
    double best = 0;
    int32_t id = -1;
    for (int b = threadIdx.x; f.sampled && !f.listed && b < job.n_block; b += DRAW_THREADS)
        if (draw_better(blocks[b].best, blocks[b].best_id, best, id)) {
            best = blocks[b].best;
            id = blocks[b].best_id;
        }
    draw_block_best(&best, &id, best_of, id_of);
    if (f.listed) id = f.id;
    if (id < 0) id = f.max_id;
    draw_answer(job, row, id, f.normaliser, &job.results[row]);
}

void draw_pick(struct cuda_device *d, const struct draw_job *job, int n_row, bool any_listed, bool any_unlisted) {
    dim3 blocks((unsigned)job->n_block, (unsigned)n_row);
    unsigned rows = (unsigned)n_row;
    if (any_listed) {
        cuda_note(d, cudaMemsetAsync(job->count, 0, (size_t)n_row * DRAW_BINS * sizeof *job->count, d->stream),
                  "clear counts");
        cuda_note(d, cudaMemsetAsync(job->mass, 0, (size_t)n_row * DRAW_BINS * sizeof *job->mass, d->stream),
                  "clear counts");
        cuda_note(d, cudaMemsetAsync(job->n_list, 0, (size_t)n_row * sizeof *job->n_list, d->stream), "clear counts");
        draw_count_kernel<<<blocks, DRAW_THREADS, 0, d->stream>>>(*job);
        cuda_launched(d, "draw, counts");
        draw_cut_kernel<<<rows, DRAW_THREADS, 0, d->stream>>>(*job);
        cuda_launched(d, "draw, cut");
        draw_list_kernel<<<blocks, DRAW_THREADS, 0, d->stream>>>(*job);
        cuda_launched(d, "draw, list");
        draw_select_kernel<<<rows, SELECT_THREADS, 0, d->stream>>>(*job);
        cuda_launched(d, "draw, selection");
    }
    if (any_unlisted) cuda_start(d, "draw, noise", draw_all_kernel, blocks, DRAW_THREADS, 0, *job);
    cuda_start(d, "draw, end", draw_finish_kernel, dim3(rows), DRAW_THREADS, 0, *job);
}
