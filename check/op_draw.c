// draw: every row against a naive re-implementation of ops/draw.h.
#include "check/check.h"
#include "base/random.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROWS 10

struct draw_case {
    const char *name;
    int n_column, n_vocab;
    double spread;        // of the logits
    struct draw_params p; // lists are filled in
    int n_bias, n_seen;
    int n_out_of; // one token in so many is out; 0: none
};

// ---- oracle ----

struct token {
    double l, s;
    int32_t id;
};

static int falling(const void *a, const void *b) {
    const struct token *x = a, *y = b;
    if (x->s != y->s) return x->s > y->s ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static bool is_in(const struct draw_params *p, int n_vocab, int32_t id) {
    return id < n_vocab && (p->allowed[id / 32] >> (id % 32) & 1);
}

// Steps 1 to 4.
static int adjusted(const float *row, int n_column, int n_vocab, const struct draw_params *p, struct token *tokens) {
    int n = 0;
    for (int32_t id = 0; id < n_column; id++) {
        if (!is_in(p, n_vocab, id)) continue;
        double l = (double)row[id];
        for (int i = 0; i < p->n_bias; i++)
            if (p->bias[i].id == id) l += (double)p->bias[i].bias;
        for (int i = 0; i < p->n_seen; i++) {
            if (p->seen[i].id != id) continue;
            l = l > 0 ? l / p->repetition : l * p->repetition;
            if (p->seen[i].n_reply > 0) l -= p->frequency * (double)p->seen[i].n_reply + p->presence;
        }
        tokens[n++] = (struct token){l, p->temperature > 0 ? l / p->temperature : l, id};
    }
    qsort(tokens, (size_t)n, sizeof *tokens, falling);
    return n;
}

static int32_t oracle_draw(const float *row, int n_column, int n_vocab, const struct draw_params *p,
                           struct token *tokens) {
    int n = adjusted(row, n_column, n_vocab, p, tokens);
    if (p->temperature == 0) return tokens[0].id;
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    if (p->top_p < 1) {
        double total = 0, mass = 0;
        for (int i = 0; i < n; i++) total += exp(tokens[i].s - tokens[0].s);
        int kept = 0;
        while (kept < n && (kept == 0 || mass < p->top_p * total)) mass += exp(tokens[kept++].s - tokens[0].s);
        n = kept;
    }
    double best = -INFINITY;
    int32_t id = -1;
    for (int i = 0; i < n; i++) {
        if (p->min_p > 0 && tokens[i].s < tokens[0].s + log(p->min_p)) continue;
        double u = random_unit(random_bits(p->seed, (uint64_t)p->position, (uint64_t)tokens[i].id));
        double value = tokens[i].s - log(-log(u));
        if (value > best || (value == best && tokens[i].id < id)) {
            best = value;
            id = tokens[i].id;
        }
    }
    return id;
}

static double oracle_normaliser(const float *row, int n) {
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) max = fmax(max, (double)row[i]);
    for (int i = 0; i < n; i++) sum += exp((double)row[i] - max);
    return max + log(sum);
}

// ---- the call ----

static void call_draw(struct run *r, struct device *d, const float *logits, int n_row, const struct draw_case *c,
                      const struct draw_params *params, struct draw_result *results) {
    struct stage s;
    stage_open(&s, r, d);
    struct draw_args args = {stage_tensor(&s, logits, n_row, c->n_column, DTYPE_F32), c->n_vocab, params, results};
    memset(results, 0xff, (size_t)n_row * sizeof *results);
    ops_of(r, d)->draw(d, &args);
    struct error e;
    must(d->sync(d, &e) == STATUS_OK);
    stage_close(&s);
}

struct draw_data {
    float *logits; // [MAX_ROWS][n_column]
    struct draw_params params[MAX_ROWS];
};

// Logits with plateaus, so that ties are common, and a few high ones.
static struct draw_data make_data(struct run *r, const struct draw_case *c) {
    struct draw_data data = {.logits = values_normal(r, 501, (size_t)(MAX_ROWS * c->n_column), c->spread, DTYPE_F32)};
    size_t n_word = (size_t)(c->n_column + 31) / 32;
    for (int i = 0; i < MAX_ROWS * c->n_column; i += 3) data.logits[i] = rintf(data.logits[i]);
    for (int t = 0; t < MAX_ROWS; t++) {
        struct draw_bias *bias = arena_alloc_zero(r->arena, (size_t)c->n_bias + 1, sizeof *bias);
        struct draw_seen *seen = arena_alloc_zero(r->arena, (size_t)c->n_seen + 1, sizeof *seen);
        uint32_t *allowed = arena_alloc_zero(r->arena, n_word, sizeof *allowed);
        for (int i = 0; i < c->n_column; i++)
            if (c->n_out_of == 0 || random_bits(502, (uint64_t)t, (uint64_t)i) % (uint64_t)c->n_out_of != 0)
                allowed[i / 32] |= 1u << (i % 32);
        allowed[0] |= 1;
        for (int i = 0; i < c->n_bias; i++)
            bias[i] = (struct draw_bias){(i * 37 + t) % c->n_column, (float)(i % 7) - 3.25f};
        for (int i = 0; i < c->n_seen; i++) seen[i] = (struct draw_seen){(i * 11 + t) % c->n_column, i % 4};
        data.params[t] = c->p;
        data.params[t].seed += (uint64_t)(t / 2);
        data.params[t].position += t;
        data.params[t].bias = bias;
        data.params[t].seen = seen;
        data.params[t].n_bias = c->n_bias;
        data.params[t].n_seen = c->n_seen;
        data.params[t].allowed = allowed;
    }
    return data;
}

static void check_logprobs(struct run *r, const struct draw_case *c, const float *row, const struct draw_params *p,
                           const struct draw_result *got) {
    double normaliser = oracle_normaliser(row, c->n_column);
    if (p->n_top < 0) return;
    expect(r, fabs((double)got->logprob - ((double)row[got->id] - normaliser)) < 1e-5, "log probability %g",
           (double)got->logprob);
    struct token *tokens = arena_alloc(r->arena, (size_t)c->n_column * sizeof *tokens);
    struct draw_params raw = {.allowed = p->allowed};
    int n = adjusted(row, c->n_column, c->n_vocab, &raw, tokens), n_top = n < p->n_top ? n : p->n_top;
    expect(r, got->n_top == n_top, "%d alternatives, not %d", got->n_top, n_top);
    for (int i = 0; i < n_top && i < got->n_top; i++) {
        expect(r, got->top[i].id == tokens[i].id, "alternative %d is %d, not %d", i, got->top[i].id, tokens[i].id);
        expect(r, fabs((double)got->top[i].logprob - (tokens[i].l - normaliser)) < 1e-5,
               "log probability of alternative %d", i);
    }
}

static void expect_same(struct run *r, const char *what, const struct draw_result *got,
                        const struct draw_result *want) {
    expect(r, memcmp(got, want, sizeof *got) == 0, "%s gives %d, not %d", what, got->id, want->id);
}

static void draw_case(struct run *r, const struct draw_case *c) {
    if (case_done(r)) return;
    case_begin(r, "%s, V=%d", c->name, c->n_column);
    struct draw_data data = make_data(r, c);
    struct draw_result all[MAX_ROWS], other[MAX_ROWS];
    struct device *d = r->subject->device;
    struct token *tokens = arena_alloc(r->arena, (size_t)c->n_column * sizeof *tokens);
    call_draw(r, d, data.logits, MAX_ROWS, c, data.params, all);
    for (int t = 0; t < MAX_ROWS; t++) {
        const float *row = data.logits + t * c->n_column;
        int32_t want = oracle_draw(row, c->n_column, c->n_vocab, &data.params[t], tokens);
        expect(r, all[t].id == want, "row %d draws %d, not %d", t, all[t].id, want);
        if (all[t].id == want) check_logprobs(r, c, row, &data.params[t], &all[t]);
        call_draw(r, d, row, 1, c, &data.params[t], other);
        expect_same(r, "a row alone", &other[0], &all[t]);
    }
    // A device may keep ids that come again and again: the first row's, while the others bring theirs.
    for (int i = 0; i < MAX_ROWS; i++) call_draw(r, d, data.logits, 1, c, data.params, other);
    call_draw(r, d, data.logits, MAX_ROWS, c, data.params, other);
    for (int t = 0; t < MAX_ROWS; t++) expect_same(r, "a row after draws of the first", &other[t], &all[t]);
    for (int i = 0; i < 2; i++) {
        if (r->subject->others[i] == NULL) continue;
        call_draw(r, r->subject->others[i], data.logits, MAX_ROWS, c, data.params, other);
        for (int t = 0; t < MAX_ROWS; t++) expect_same(r, "other threads", &other[t], &all[t]);
    }
}

// Those that notice every planted fault come first.
#define N_HUNTING 7
static const struct draw_case cases[] = {
    {"greedy", 999, 990, 3, {.temperature = 0, .top_p = 1, .repetition = 1, .n_top = 5}, 0, 0, 0},
    {"plain",
     1000,
     1000,
     3,
     {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 7, .position = 12, .n_top = 3},
     0,
     0,
     0},
    {"top-k",
     1000,
     970,
     3,
     {.temperature = 0.8, .top_p = 1, .repetition = 1, .top_k = 20, .seed = 3, .n_top = -1},
     0,
     0,
     5},
    {"top-p", 1000, 970, 2, {.temperature = 1.3, .top_p = 0.3, .repetition = 1, .seed = 4, .n_top = 0}, 5, 0, 7},
    {"min-p",
     1000,
     970,
     2,
     {.temperature = 1, .top_p = 1, .min_p = 0.05, .repetition = 1, .seed = 5, .n_top = 20},
     5,
     0,
     3},
    {"all",
     1000,
     970,
     2,
     {.temperature = 0.9,
      .top_p = 0.95,
      .min_p = 0.01,
      .repetition = 1.2,
      .presence = 0.5,
      .frequency = 0.25,
      .top_k = 40,
      .seed = 6,
      .n_top = 2},
     20,
     50,
     4},
    {"penalties, greedy",
     1000,
     970,
     2,
     {.repetition = 1, .top_p = 1, .presence = 2, .frequency = 1, .n_top = 1},
     30,
     700,
     0},
    {"wide", 20000, 19950, 3, {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 8, .n_top = 20}, 3, 0, 0},
    {"wide, few alternatives", 20000, 19950, 3, {.temperature = 0, .top_p = 1, .repetition = 1, .n_top = 4}, 3, 0, 0},
    {"wide top-p",
     20000,
     19950,
     3,
     {.temperature = 1, .top_p = 0.95, .repetition = 1.1, .seed = 9, .n_top = -1},
     0,
     40,
     9},
    {"flat top-p",
     20000,
     19950,
     0.1,
     {.temperature = 2, .top_p = 0.99, .repetition = 1, .seed = 10, .n_top = 4},
     0,
     0,
     0},
    {"wide top-k",
     20000,
     19950,
     5,
     {.temperature = 0.6, .top_p = 0.95, .repetition = 1, .top_k = 1000, .seed = 11},
     9,
     0,
     2},
};

static void run_draw(struct run *r) {
    int n = r->hunting ? N_HUNTING : (int)(sizeof cases / sizeof cases[0]);
    for (int i = 0; i < n; i++) draw_case(r, &cases[i]);
}

// ---- faults ----

static void with_params(struct device *d, const struct draw_args *a, void (*change)(struct draw_params *, int)) {
    struct draw_params params[MAX_ROWS];
    memcpy(params, a->params, (size_t)a->logits.n_row * sizeof *params);
    for (int t = 0; t < a->logits.n_row; t++) change(&params[t], t);
    struct draw_args b = *a;
    b.params = params;
    d->ops->draw(d, &b);
}

static void change_position(struct draw_params *p, int t) { p->position += t + 1; }
static void change_top_k(struct draw_params *p, int t) {
    (void)t;
    p->top_k = p->top_k > 0 ? p->top_k + 1000 : 0;
}
static void change_top_p(struct draw_params *p, int t) {
    (void)t;
    p->top_p = 1;
}
static void change_min_p(struct draw_params *p, int t) {
    (void)t;
    p->min_p = p->min_p > 0 ? 0.5 : 0;
}
static void change_bias(struct draw_params *p, int t) {
    (void)t;
    p->n_bias = 0;
}
static void change_seen(struct draw_params *p, int t) {
    (void)t;
    p->presence = p->frequency = 0;
}

static void wrong_position(struct device *d, const struct draw_args *a) { with_params(d, a, change_position); }
static void wrong_top_k(struct device *d, const struct draw_args *a) { with_params(d, a, change_top_k); }
static void wrong_top_p(struct device *d, const struct draw_args *a) { with_params(d, a, change_top_p); }
static void wrong_min_p(struct device *d, const struct draw_args *a) { with_params(d, a, change_min_p); }
static void no_bias(struct device *d, const struct draw_args *a) { with_params(d, a, change_bias); }
static void no_penalty(struct device *d, const struct draw_args *a) { with_params(d, a, change_seen); }

static void all_columns(struct device *d, const struct draw_args *a) {
    struct draw_args b = *a;
    b.n_vocab = (int32_t)a->logits.n_col;
    d->ops->draw(d, &b);
}

static void stale_row(struct device *d, const struct draw_args *a) {
    struct error e;
    d->ops->draw(d, a);
    must(d->sync(d, &e) == STATUS_OK); // results are valid from then on, and not written again
    if (a->logits.n_row > 1) a->results[1] = a->results[0];
}

static void writes_logits(struct device *d, const struct draw_args *a) {
    d->ops->draw(d, a);
    corrupt_scale(d, a->logits, 0, 0, 1.02);
}

static void plant_position(struct ops *o) { o->draw = wrong_position; }
static void plant_top_k(struct ops *o) { o->draw = wrong_top_k; }
static void plant_top_p(struct ops *o) { o->draw = wrong_top_p; }
static void plant_min_p(struct ops *o) { o->draw = wrong_min_p; }
static void plant_bias(struct ops *o) { o->draw = no_bias; }
static void plant_penalty(struct ops *o) { o->draw = no_penalty; }
static void plant_columns(struct ops *o) { o->draw = all_columns; }
static void plant_stale(struct ops *o) { o->draw = stale_row; }
static void plant_logits(struct ops *o) { o->draw = writes_logits; }

static const struct fault faults[] = {
    {"noise keyed by the row's place", plant_position},
    {"no top-k", plant_top_k},
    {"no top-p", plant_top_p},
    {"another min-p", plant_min_p},
    {"no bias", plant_bias},
    {"no penalties", plant_penalty},
    {"ids beyond the vocabulary", plant_columns},
    {"a stale row", plant_stale},
    {"writes the logits", plant_logits},
};

const struct suite suite_draw = {"draw", "draw", run_draw, faults, 9, {.n_vocab = 20000}};
