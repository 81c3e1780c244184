// draw: the definition of ops/draw.h without looking at every token twice. Rows are drawn one after another, each by
// all workers over blocks of its logits. Nothing here rounds differently from the definition: blocks are skipped and
// lists are cut by bounds that hold for every token left out, so the result does not depend on how the work was
// split.
//
// Tokens with a bias or penalty ("specials") are taken out of the row and handled in double; the rest keep their fp32
// logits, whose order is the order of s = logit / temperature.
#include "cpu/draw_lists.h"
#include "cpu/noise.h"
#include "cpu/ops.h"
#include <float.h>
#include <string.h>

#define SEGMENT  256  // logits with a known maximum
#define BLOCK    4096 // logits of a work item
#define SEGMENTS (BLOCK / SEGMENT)

// Positive temperatures are taken as within these bounds (draw.h): beyond them s would lose the order of the logits.
#define TEMPERATURE_MIN 1e-30
#define TEMPERATURE_MAX 1e30

struct block_result {
    float raw_max;   // over all columns
    double sum;      // of exponentials
    double best;     // of s + noise
    int32_t best_id; // -1: none
};

struct draw_layout {
    float *work;        // [V]: the row, -inf where a token is out or special
    float *segment_max; // [V / SEGMENT], of work
    struct block_result *blocks;
    uint64_t *entries, *other;     // [V]
    struct draw_special *specials; // [V]
    int32_t *special_of;           // [V]: a biased token's place in specials; only where both lists are there
};

static void carve_draw(struct cpu_carver *c, struct draw_layout *l, int64_t n_vocab) {
    int64_t n_block = (n_vocab + BLOCK - 1) / BLOCK;
    l->work = cpu_carve(c, (size_t)n_vocab * sizeof(float));
    l->segment_max = cpu_carve(c, (size_t)(n_block * SEGMENTS) * sizeof(float));
    l->blocks = cpu_carve(c, (size_t)n_block * sizeof(struct block_result));
    l->entries = cpu_carve(c, (size_t)n_vocab * sizeof(uint64_t));
    l->other = cpu_carve(c, (size_t)n_vocab * sizeof(uint64_t));
    l->specials = cpu_carve(c, (size_t)n_vocab * sizeof(struct draw_special));
    l->special_of = cpu_carve(c, (size_t)n_vocab * sizeof(int32_t));
}

void cpu_need_draw(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need) {
    (void)d;
    struct cpu_carver shared = {0};
    struct draw_layout layout;
    carve_draw(&shared, &layout, l->n_vocab);
    cpu_need_raise(need, shared.used, 0);
}

struct draw_task {
    struct cpu_device *d;
    struct draw_layout l;
    const struct draw_params *p;
    const float *row; // [n_column]
    int64_t n_column, n_vocab, n_block;
    double temperature;
    int64_t n_special;
    // Arguments of the loop at hand.
    const float *sum_over;
    float shift;
    double scale, min_s, best;
    int32_t best_id;
};

static int64_t in_block(const struct draw_task *t, long block) {
    int64_t left = t->n_column - block * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

static bool is_allowed(const struct draw_task *t, int64_t id) {
    return id >= 0 && id < t->n_vocab && (t->p->allowed[id / 32] >> (id % 32) & 1);
}

// ---- the working copy ----

static void copy_word(const struct draw_task *t, int64_t first, int64_t n) {
    uint32_t word = first < t->n_vocab ? t->p->allowed[first / 32] : 0;
    if (word == UINT32_MAX && n == 32 && first + 32 <= t->n_vocab) {
        memcpy(t->l.work + first, t->row + first, 32 * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        bool in = (word >> i & 1) && first + i < t->n_vocab;
        t->l.work[first + i] = in ? t->row[first + i] : -INFINITY;
    }
}

static void update_segment(const struct draw_task *t, int64_t segment) {
    int64_t first = segment * SEGMENT, left = t->n_column - first;
    t->l.segment_max[segment] = t->d->kernels.maximum(t->l.work + first, left < SEGMENT ? left : SEGMENT);
}

static void copy_blocks(void *context, long first, long last, int thread) {
    (void)thread;
    struct draw_task *t = context;
    for (long block = first; block < last; block++) {
        int64_t start = (int64_t)block * BLOCK, end = start + in_block(t, block);
        for (int64_t i = start; i < end; i += 32) copy_word(t, i, end - i < 32 ? end - i : 32);
        for (int64_t i = start; i < end; i += SEGMENT) update_segment(t, i / SEGMENT);
        t->l.blocks[block].raw_max = t->d->kernels.maximum(t->row + start, end - start);
    }
}

static int64_t n_segment(const struct draw_task *t) { return (t->n_column + SEGMENT - 1) / SEGMENT; }

static float work_max(const struct draw_task *t) { return t->d->kernels.maximum(t->l.segment_max, n_segment(t)); }

// ---- sums of exponentials ----

static void sum_blocks(void *context, long first, long last, int thread) {
    (void)thread;
    struct draw_task *t = context;
    for (long block = first; block < last; block++)
        t->l.blocks[block].sum =
            t->d->kernels.sum_exp(t->sum_over + (int64_t)block * BLOCK, in_block(t, block), t->shift, t->scale);
}

// Sum of e^((x - shift) scale) over a row, blocks added in order.
static double sum_exp(struct draw_task *t, const float *x, float shift, double scale) {
    t->sum_over = x;
    t->shift = shift;
    t->scale = scale;
    workers_run(t->d->workers, t->n_block, 1, sum_blocks, t);
    double sum = 0;
    for (long block = 0; block < t->n_block; block++) sum += t->l.blocks[block].sum;
    return sum;
}

static double log_normaliser(struct draw_task *t) {
    float max = -INFINITY;
    for (long block = 0; block < t->n_block; block++)
        if (t->l.blocks[block].raw_max > max) max = t->l.blocks[block].raw_max;
    if (!isfinite(max)) return (double)max;
    return (double)max + log(sum_exp(t, t->row, max, 1.0));
}

// ---- lists of the largest logits ----

// Collects the tokens of the working row with logits >= bound (above -inf), sorted.
static const uint64_t *collect(struct draw_task *t, float bound, int64_t *n) {
    if (bound < -FLT_MAX) bound = -FLT_MAX;
    int64_t found = 0;
    for (int64_t s = 0; s < n_segment(t); s++) {
        if (!(t->l.segment_max[s] >= bound)) continue;
        int32_t ids[SEGMENT];
        float values[SEGMENT];
        int64_t first = s * SEGMENT, left = t->n_column - first;
        int64_t m =
            t->d->kernels.select(t->l.work + first, left < SEGMENT ? left : SEGMENT, bound, SEGMENT, ids, values);
        for (int64_t i = 0; i < m; i++) t->l.entries[found++] = draw_entry(values[i], (int32_t)first + ids[i]);
    }
    *n = found;
    return draw_sort_entries(t->l.entries, found, t->l.other);
}

// The k largest at least. At least k tokens reach the k-th largest of the segments' maxima.
static const uint64_t *collect_top(struct draw_task *t, int64_t k, int64_t *n) {
    float bound = -FLT_MAX;
    if (k <= n_segment(t)) {
        int64_t m = 0;
        for (int64_t s = 0; s < n_segment(t); s++) t->l.entries[m++] = draw_entry(t->l.segment_max[s], (int32_t)s);
        bound = draw_entry_logit(draw_sort_entries(t->l.entries, m, t->l.other)[k - 1]);
    }
    return collect(t, bound, n);
}

// ---- specials ----

static struct draw_special *add_special(struct draw_task *t, int32_t id) {
    struct draw_special *s = &t->l.specials[t->n_special++];
    *s = (struct draw_special){(double)t->row[id], id};
    return s;
}

static double penalise(const struct draw_params *p, double logit, int32_t n_reply) {
    logit = logit > 0 ? logit / p->repetition : logit * p->repetition;
    if (n_reply > 0) logit -= p->frequency * (double)n_reply + p->presence;
    return logit;
}

// Lists the tokens whose logits change, and takes them out of the working row.
static void list_specials(struct draw_task *t) {
    const struct draw_params *p = t->p;
    bool has_penalty = p->n_seen > 0 && (p->repetition != 1 || p->presence != 0 || p->frequency != 0);
    t->n_special = 0;
    if (has_penalty && p->n_bias > 0) memset(t->l.special_of, 0xff, (size_t)t->n_column * sizeof(int32_t));
    for (int i = 0; i < p->n_bias; i++) {
        int32_t id = p->bias[i].id;
        if (!is_allowed(t, id)) continue;
        if (has_penalty) t->l.special_of[id] = (int32_t)t->n_special;
        add_special(t, id)->logit += (double)p->bias[i].bias;
    }
    for (int i = 0; has_penalty && i < p->n_seen; i++) {
        int32_t id = p->seen[i].id;
        if (!is_allowed(t, id)) continue;
        bool is_listed = p->n_bias > 0 && t->l.special_of[id] >= 0;
        struct draw_special *s = is_listed ? &t->l.specials[t->l.special_of[id]] : add_special(t, id);
        s->logit = penalise(p, s->logit, p->seen[i].n_reply);
    }
    // A segment that loses a token is marked, so that its maximum is taken once for all of them.
    for (int64_t i = 0; i < t->n_special; i++) {
        struct draw_special *s = &t->l.specials[i];
        if (isnan(s->logit)) s->logit = -INFINITY;
        t->l.work[s->id] = -INFINITY;
        t->l.segment_max[s->id / SEGMENT] = NAN;
    }
    for (int64_t i = 0; t->n_special > 0 && i < n_segment(t); i++)
        if (isnan(t->l.segment_max[i])) update_segment(t, i);
    draw_sort_specials(t->l.specials, t->n_special);
}

// ---- picking ----

static int32_t lowest_allowed(const struct draw_task *t) {
    int32_t id = 0;
    while (id < t->n_vocab - 1 && !is_allowed(t, id)) id++;
    return id;
}

// The largest logit of the working row, ties to the lower id; -1 when all are -inf.
static int32_t work_argmax(const struct draw_task *t, float max) {
    if (!(max > -INFINITY)) return -1;
    for (int64_t s = 0;; s++) {
        if (t->l.segment_max[s] != max) continue;
        for (int64_t i = s * SEGMENT;; i++)
            if (t->l.work[i] == max) return (int32_t)i;
    }
}

static int32_t pick_greedy(const struct draw_task *t) {
    float max = work_max(t);
    int32_t id = work_argmax(t, max);
    if (t->n_special == 0) return id;
    const struct draw_special *s = &t->l.specials[0];
    if (!(s->logit > -INFINITY)) return id;
    return id < 0 || s->logit > (double)max || (s->logit == (double)max && s->id < id) ? s->id : id;
}

static bool is_better(double value, int32_t id, double best, int32_t best_id) {
    return best_id < 0 || value > best || (value == best && id < best_id);
}

// The largest s + noise of the first n of a list, and of those with s >= min_s.
static int32_t pick_from_list(const struct draw_task *t, struct draw_walk *w, int64_t n, double min_s) {
    double best = -INFINITY, s;
    int32_t best_id = -1, id;
    draw_walk_restart(w);
    for (int64_t i = 0; i < n && draw_walk_next(w, &s, &id); i++) {
        if (s < min_s || s + CPU_NOISE_MAX < best) break;
        double value = s + cpu_noise_value(t->p->seed, (uint64_t)t->p->position, id);
        if (!is_better(value, id, best, best_id)) continue;
        best = value;
        best_id = id;
    }
    return best_id;
}

static void try_token(const struct draw_task *t, double s, int32_t id, double *best, int32_t *best_id) {
    if (s < t->min_s || s + CPU_NOISE_MAX < *best) return;
    double value = s + cpu_noise_value(t->p->seed, (uint64_t)t->p->position, id);
    if (!is_better(value, id, *best, *best_id)) return;
    *best = value;
    *best_id = id;
}

static void pick_blocks(void *context, long first, long last, int thread) {
    (void)thread;
    struct draw_task *t = context;
    for (long block = first; block < last; block++) {
        double best = t->best;
        int32_t best_id = t->best_id;
        int64_t end = (int64_t)block * BLOCK + in_block(t, block);
        for (int64_t i = (int64_t)block * BLOCK; i < end; i += SEGMENT) {
            double max_s = (double)t->l.segment_max[i / SEGMENT] / t->temperature;
            if (!(max_s >= t->min_s) || max_s + CPU_NOISE_MAX < best) continue;
            int32_t survivors[SEGMENT];
            struct cpu_noise noise = {t->p->seed, (uint64_t)t->p->position, (int32_t)i, t->temperature, best};
            int64_t n =
                t->d->kernels.survivors(t->l.work + i, end - i < SEGMENT ? end - i : SEGMENT, &noise, survivors);
            for (int64_t k = 0; k < n; k++) {
                float logit = t->l.work[i + survivors[k]];
                if (logit > -INFINITY)
                    try_token(t, (double)logit / t->temperature, (int32_t)i + survivors[k], &best, &best_id);
            }
        }
        t->l.blocks[block].best = best;
        t->l.blocks[block].best_id = best_id;
    }
}

// No top-k, no top-p: the largest s + noise of all tokens with s >= min_s.
static int32_t pick_from_all(struct draw_task *t, double max_s) {
    t->min_s = t->p->min_p > 0 ? max_s + log(t->p->min_p) : -DBL_MAX;
    t->best = -INFINITY;
    t->best_id = -1;
    // The likeliest tokens first: what they reach lets most of the others be skipped.
    float max = work_max(t);
    int32_t id = work_argmax(t, max);
    if (id >= 0) try_token(t, (double)max / t->temperature, id, &t->best, &t->best_id);
    for (int64_t i = 0; i < t->n_special; i++)
        try_token(t, t->l.specials[i].logit / t->temperature, t->l.specials[i].id, &t->best, &t->best_id);
    workers_run(t->d->workers, t->n_block, 1, pick_blocks, t);
    for (long block = 0; block < t->n_block; block++) {
        const struct block_result *b = &t->l.blocks[block];
        if (b->best_id < 0 || !is_better(b->best, b->best_id, t->best, t->best_id)) continue;
        t->best = b->best;
        t->best_id = b->best_id;
    }
    return t->best_id;
}

// How many of the first n of a list make up a mass of `target`, in units of e^max_s. False when the list, which is
// complete down to `complete_s`, ends before that is known.
static bool count_top_p(struct draw_walk *w, int64_t n, double max_s, double target, double complete_s,
                        int64_t *count) {
    double mass = 0, s;
    int32_t id;
    draw_walk_restart(w);
    for (*count = 0; *count < n && draw_walk_next(w, &s, &id);) {
        if (s < complete_s) return false;
        mass += exp(s - max_s);
        ++*count;
        if (mass >= target) return true;
    }
    return complete_s == -INFINITY || *count == n;
}

static double walk_mass(struct draw_walk *w, int64_t n, double max_s) {
    double mass = 0, s;
    int32_t id;
    draw_walk_restart(w);
    for (int64_t i = 0; i < n && draw_walk_next(w, &s, &id); i++) mass += exp(s - max_s);
    return mass;
}

static int32_t pick_top_k(struct draw_task *t, struct draw_walk *w, double max_s, double min_s) {
    int64_t n = t->p->top_k, count = 0;
    w->entries = collect_top(t, n, &w->n_entry);
    if (t->p->top_p < 1) {
        count_top_p(w, n, max_s, t->p->top_p * walk_mass(w, n, max_s), -INFINITY, &count);
        n = count;
    }
    return pick_from_list(t, w, n, min_s);
}

// Top-p over all tokens: the mass of all is summed, then lists of the largest are tried until one holds enough of it.
static int32_t pick_top_p(struct draw_task *t, struct draw_walk *w, double max_s, double min_s) {
    static const double depths[] = {8, 16, 32, INFINITY}; // below the largest s
    float max = work_max(t);
    double total = 0;
    if (max > -INFINITY)
        total = sum_exp(t, t->l.work, max, 1 / t->temperature) * exp((double)max / t->temperature - max_s);
    for (int64_t i = 0; i < t->n_special; i++) total += exp(t->l.specials[i].logit / t->temperature - max_s);
    int64_t count = 0;
    for (int i = 0;; i++) {
        float bound = (float)((max_s - depths[i]) * t->temperature);
        bool is_all = !(bound >= -FLT_MAX);
        w->entries = collect(t, bound, &w->n_entry);
        double complete_s = is_all ? -INFINITY : (double)bound / t->temperature;
        if (count_top_p(w, INT64_MAX, max_s, t->p->top_p * total, complete_s, &count)) break;
    }
    return pick_from_list(t, w, count, min_s);
}

static int32_t pick_sampled(struct draw_task *t) {
    const struct draw_params *p = t->p;
    double t_low = p->temperature > TEMPERATURE_MIN ? p->temperature : TEMPERATURE_MIN;
    t->temperature = t_low < TEMPERATURE_MAX ? t_low : TEMPERATURE_MAX;
    double max = (double)work_max(t);
    if (t->n_special > 0 && t->l.specials[0].logit > max) max = t->l.specials[0].logit;
    if (!isfinite(max)) return pick_greedy(t);
    // Tokens at -inf have no probability; they leave the list so that no s is infinite.
    while (t->n_special > 0 && !(t->l.specials[t->n_special - 1].logit > -INFINITY)) t->n_special--;
    double max_s = max / t->temperature, min_s = p->min_p > 0 ? max_s + log(p->min_p) : -INFINITY;
    struct draw_walk w = {.specials = t->l.specials, .n_special = t->n_special, .temperature = t->temperature};
    if (p->top_k > 0) return pick_top_k(t, &w, max_s, min_s);
    if (p->top_p < 1) return pick_top_p(t, &w, max_s, min_s);
    return pick_from_all(t, max_s);
}

// ---- one row ----

static void list_top(struct draw_task *t, double normaliser, struct draw_result *r) {
    int64_t wanted = t->p->n_top < DRAW_MAX_TOP ? t->p->n_top : DRAW_MAX_TOP, n;
    const uint64_t *entries = collect_top(t, wanted, &n);
    r->n_top = (int32_t)(n < wanted ? n : wanted);
    for (int i = 0; i < r->n_top; i++) {
        r->top[i].id = draw_entry_id(entries[i]);
        r->top[i].logprob = (float)((double)draw_entry_logit(entries[i]) - normaliser);
    }
}

static void draw_row(struct draw_task *t, struct draw_result *r) {
    *r = (struct draw_result){0};
    workers_run(t->d->workers, t->n_block, 1, copy_blocks, t);
    double normaliser = t->p->n_top >= 0 ? log_normaliser(t) : 0;
    if (t->p->n_top > 0) list_top(t, normaliser, r);
    list_specials(t);
    r->id = t->p->temperature > 0 ? pick_sampled(t) : pick_greedy(t);
    if (r->id < 0) r->id = lowest_allowed(t);
    if (t->p->n_top >= 0) r->logprob = (float)((double)t->row[r->id] - normaliser);
}

void cpu_draw(struct device *base, const struct draw_args *a) {
    struct draw_task t = {.d = cpu_device_of(base), .n_column = a->logits.n_col};
    t.n_vocab = a->n_vocab < t.n_column ? a->n_vocab : t.n_column;
    t.n_block = (t.n_column + BLOCK - 1) / BLOCK;
    struct cpu_carver c = cpu_shared_scratch(t.d);
    carve_draw(&c, &t.l, t.n_column);
    must(c.used <= t.d->scratch.shared_bytes);
    for (int64_t i = 0; i < a->logits.n_row; i++) {
        t.row = cpu_row(a->logits, i, 0);
        t.p = &a->params[i];
        draw_row(&t, &a->results[i]);
    }
}
