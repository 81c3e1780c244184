#include "measure/rounds.h"
#include "base/clock.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TRIES 5 // of a measurement

static const struct cell warm_up = {.kind = CELL_DECODE, .n_prompt = 64, .n_decode = 4, .n_streams = 1};

void cell_rounds_init(struct cell_rounds *c, const struct cell *cell) { *c = (struct cell_rounds){.cell = *cell}; }

void cell_rounds_free(struct cell_rounds *c) { free(c->rates); }

enum status cell_rounds_add(struct cell_rounds *c, const double rates[ARMS_MAX], struct error *e) {
    if (c->n == STATISTICS_MOST)
        return error_set(e, STATUS_LIMIT, "a cell has %d rounds, and no more are added up", STATISTICS_MOST);
    if (c->n == c->capacity) {
        int capacity = c->capacity > 0 ? 2 * c->capacity : 16;
        void *more = realloc(c->rates, (size_t)capacity * sizeof *c->rates);
        if (more == NULL) return error_memory(e);
        c->rates = more;
        c->capacity = capacity;
    }
    memcpy(c->rates[c->n++], rates, sizeof *c->rates);
    return STATUS_OK;
}

// ---- running ----

struct visits {
    const struct rounds_options *o;
    struct cell_rounds *cells;
    int n_cells, round;
    bool apart; // prompts of the arms differ: replies are compared before the rounds
    struct sample samples[CELLS_MAX][ARMS_MAX][2];
};

static uint64_t key_of(const struct visits *v, int cell, int arm, int visit) {
    uint64_t key = (((uint64_t)v->round + 1) * 2 + (uint64_t)visit) * CELLS_MAX + (uint64_t)cell;
    return v->apart ? key * ARMS_MAX + (uint64_t)arm + v->o->seed : key;
}

// On a machine that is busy with other things a reply may be over before all streams have begun: then once more.
static enum status measure_cell(const struct target *t, const struct cell *c, uint64_t key, struct sample *out,
                                struct error *e) {
    enum status s = STATUS_OK;
    out->tokens_per_s = 0;
    for (int i = 0; i < TRIES && s == STATUS_OK && !(out->tokens_per_s > 0); i++)
        s = t->measure(t->context, c, key, out, e);
    if (s != STATUS_OK || out->tokens_per_s > 0) return s;
    char name[CELL_TEXT];
    cell_name(c, name);
    return error_set(e, STATUS_IO,
                     "%s could not be measured: one reply ended before all had begun; ask for longer ones, or for "
                     "fewer streams where memory makes them wait",
                     name);
}

// One arm's cells [first, last).
static enum status visit_arm(struct visits *v, int arm, int visit, int first, int last, struct error *e) {
    const struct target *t = &v->o->targets[arm];
    struct cell cells[CELLS_MAX];
    struct sample unused;
    for (int i = first; i < last; i++) cells[i - first] = v->cells[i].cell;
    enum status s = t->start(t->context, cells, last - first, e);
    // Brings the weights into memory.
    if (s == STATUS_OK && !(t->keeps && v->round > 0))
        s = t->measure(t->context, &warm_up, v->apart ? v->o->seed + (uint64_t)arm : 0, &unused, e);
    for (int i = first; i < last && s == STATUS_OK; i++)
        s = measure_cell(t, &cells[i - first], key_of(v, i, arm, visit), &v->samples[i][arm][visit], e);
    t->stop(t->context);
    return s;
}

static bool is_same(const struct sample *a, const struct sample *b) {
    if (a->ids != 0 && b->ids != 0) return a->ids == b->ids;
    return a->text == b->text || a->text == 0 || b->text == 0;
}

// Where prompts of the arms differ, all arms answer the same ones once. What they take for it is not looked at.
static enum status compare_replies(struct visits *v, struct error *e) {
    const struct rounds_options *o = v->o;
    enum status s = STATUS_OK;
    for (int i = 0; i < v->n_cells && s == STATUS_OK; i++) {
        const struct cell *c = &v->cells[i].cell;
        struct sample base = {0}, sample;
        for (int arm = 0; arm < o->n_arms && s == STATUS_OK; arm++) {
            const struct target *t = &o->targets[arm];
            s = t->start(t->context, c, 1, e);
            if (s == STATUS_OK) s = t->measure(t->context, c, (uint64_t)i, &sample, e);
            t->stop(t->context);
            if (s != STATUS_OK) break;
            if (arm == 0) base = sample;
            v->cells[i].differs[arm] |= !is_same(&base, &sample);
        }
    }
    return s;
}

static void add_drafted(struct drafted *sum, const struct drafted *d) {
    sum->n_rounds += d->n_rounds;
    sum->n_drafted += d->n_drafted;
    sum->n_kept += d->n_kept;
    sum->round_bytes = d->round_bytes;
}

static enum status finish_round(struct visits *v, struct error *e) {
    enum status s = STATUS_OK;
    int n_visit = v->o->n_arms == 1 ? 1 : 2;
    for (int i = 0; i < v->n_cells && s == STATUS_OK; i++) {
        struct cell_rounds *c = &v->cells[i];
        double rates[ARMS_MAX] = {0};
        for (int arm = 0; arm < v->o->n_arms; arm++) {
            const struct sample *there = &v->samples[i][arm][0], *back = &v->samples[i][arm][n_visit - 1];
            rates[arm] = sqrt(there->tokens_per_s * back->tokens_per_s);
            c->n_cached[arm] = back->n_cached;
            for (int k = 0; k < n_visit; k++) add_drafted(&c->drafted[arm], &v->samples[i][arm][k].drafted);
            for (int k = 0; k < n_visit && !v->apart; k++)
                c->differs[arm] |= !is_same(&v->samples[i][0][k], &v->samples[i][arm][k]);
        }
        s = cell_rounds_add(c, rates, e);
        if (s == STATUS_OK && v->o->on_round != NULL) s = v->o->on_round(v->o->on_round_context, c, e);
    }
    return s;
}

static enum status run_round(struct visits *v, struct error *e) {
    int n_arms = v->o->n_arms, n_visit = n_arms == 1 ? 1 : 2 * n_arms, step = v->o->all_cells_a_visit ? v->n_cells : 1;
    enum status s = STATUS_OK;
    for (int first = 0; first < v->n_cells && s == STATUS_OK; first += step)
        for (int i = 0; i < n_visit && s == STATUS_OK; i++) {
            int place = i < n_arms ? i : 2 * n_arms - 1 - i;
            s = visit_arm(v, (place + v->round) % n_arms, i / n_arms, first, first + step, e);
        }
    return s == STATUS_OK ? finish_round(v, e) : s;
}

enum status rounds_run(const struct rounds_options *o, struct cell_rounds *cells, int n, struct error *e) {
    struct visits *v = calloc(1, sizeof *v);
    if (v == NULL) return error_memory(e);
    *v = (struct visits){.o = o, .cells = cells, .n_cells = n};
    for (int arm = 0; arm < o->n_arms; arm++) v->apart |= o->targets[arm].keeps;
    int64_t start = clock_ns(), longest = 0;
    enum status s = v->apart && o->n_arms > 1 ? compare_replies(v, e) : STATUS_OK;
    for (; s == STATUS_OK && (o->repeats == 0 || v->round < o->repeats); v->round++) {
        int64_t begun = clock_ns();
        if (o->budget_s > 0 && v->round > 0 && (double)(begun - start + longest) * 1e-9 > o->budget_s) break;
        s = run_round(v, e);
        if (clock_ns() - begun > longest) longest = clock_ns() - begun;
    }
    free(v);
    return s;
}

// ---- what they say ----

static enum status judge_arm(const struct cell_rounds *c, int arm, struct arm_result *r, double *x, struct error *e) {
    struct interval rate;
    for (int i = 0; i < c->n; i++) x[i] = log(c->rates[i][arm]);
    enum status s = statistics_interval(x, c->n, &rate, e);
    for (int i = 0; i < c->n; i++) x[i] = log(c->rates[i][arm] / c->rates[i][0]);
    if (s == STATUS_OK) s = statistics_interval(x, c->n, &r->difference, e);
    if (s != STATUS_OK) return s;
    r->tokens_per_s = exp(rate.middle);
    r->low = exp(rate.low);
    r->high = exp(rate.high);
    return STATUS_OK;
}

enum status rounds_judge(const struct cell_rounds *c, int n_arms, struct arm_result out[ARMS_MAX], struct error *e) {
    double *x = calloc((size_t)c->n, sizeof *x);
    if (x == NULL) return error_memory(e);
    enum status s = STATUS_OK;
    memset(out, 0, ARMS_MAX * sizeof *out);
    for (int arm = 0; arm < n_arms && s == STATUS_OK; arm++) {
        s = judge_arm(c, arm, &out[arm], x, e);
        if (s == STATUS_OK && arm > 1)
            out[arm].verdict = statistics_judge(&out[arm].difference, &out[1].difference, &out[arm].seen);
    }
    free(x);
    return s;
}
