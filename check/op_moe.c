// moe: the feed-forward block with experts as one operation, held to the operations that it stands for.
#include "check/check.h"
#include <stdio.h>
#include <string.h>

#define MAX_EXPERTS 256

struct moe_case {
    int n_row, n_expert, n_used;
    int64_t hidden, width;
    bool is_usual; // all weights of 4 bits, as the backends that have the operation want them
    bool is_plain; // the router's weights are bf16, not 8 bits
    bool is_even;  // the experts' matrices lie one after another, as a model's do; else each by itself
};

// SHIFTED: as FUSED, with scales and biases of one matrix that are aligned to no more than 4 bytes. Kernels that bring
// weights in larger pieces cannot have it, and those that can give the same bits.
enum how { ONE_BY_ONE, FUSED, SHIFTED };

struct moe_data {
    const struct moe_case *c;
    float *x, *norm_weight;
    struct weight router, shared_gate, gate, up, down; // the last three: the shared expert's
    struct weight experts[3][MAX_EXPERTS];             // gate, up, down
};

struct moe_result {
    bool done;
    int32_t *ids;
    float *weights, *shared, *out;
};

static struct moe_data make_data(struct run *r, const struct moe_case *c) {
    const struct weight_spec q8 = {WEIGHT_AFFINE, DTYPE_BF16, 8, 64, 0, 0},
                             bf16 = {WEIGHT_PLAIN, DTYPE_BF16, 0, 0, 0, 0};
    const struct weight_spec kind = {WEIGHT_AFFINE, DTYPE_BF16, c->is_usual ? 4 : 8, 64, 0, 0};
    struct weight_spec route = c->is_plain ? bf16 : q8, widen = kind, narrow = kind;
    double *values;
    struct moe_data data = {.c = c};
    data.x = values_normal(r, 501, (size_t)(c->n_row * c->hidden), 3, r->subject->device->activation);
    data.norm_weight = values_normal(r, 502, (size_t)c->hidden, 1, DTYPE_F32);
    route.n_in = widen.n_in = narrow.n_out = c->hidden;
    route.n_out = c->n_expert;
    widen.n_out = narrow.n_in = c->width;
    data.router = values_weight(r, 503, &route, &values);
    route.n_out = 1;
    data.shared_gate = values_weight(r, 504, &route, &values);
    data.gate = values_weight(r, 505, &widen, &values);
    data.up = values_weight(r, 506, &widen, &values);
    data.down = values_weight(r, 507, &narrow, &values);
    for (int e = 0; e < c->n_expert; e++)
        for (int k = 0; k < 3; k++)
            data.experts[k][e] =
                values_weight(r, 510 + 3 * (uint64_t)e + (uint64_t)k, k < 2 ? &widen : &narrow, &values);
    return data;
}

// What a call needs on the device.
struct moe_stage {
    struct stage s;
    struct weight router, shared_gate, gate, up, down, experts[3][MAX_EXPERTS];
    struct moe_args a;
};

static size_t note_bytes(const struct weight *w) {
    return (size_t)(w->n_out * (w->n_in / w->group)) * dtype_bytes(w->dtype);
}

static const void *stage_behind(struct stage *s, const void *data, size_t bytes, size_t shift) {
    char *shifted = arena_alloc_zero(s->run->arena, bytes + shift, 1);
    must(shifted != NULL);
    memcpy(shifted + shift, data, bytes);
    return (char *)stage_input(s, shifted, bytes + shift) + shift;
}

static struct weight stage_shifted(struct stage *s, const struct weight *host) {
    struct weight w = *host;
    w.data = stage_input(s, host->data, (size_t)w.n_out * weight_row_bytes(&w));
    w.scales = stage_behind(s, host->scales, note_bytes(host), 4);
    w.biases = stage_behind(s, host->biases, note_bytes(host), 4);
    return w;
}

// n matrices, one behind the other.
static void stage_evenly(struct stage *s, const struct weight *host, int n, struct weight *to) {
    size_t rows = (size_t)host->n_out * weight_row_bytes(host), notes = note_bytes(host), step = rows + 2 * notes;
    char *all = arena_alloc(s->run->arena, (size_t)n * step);
    char *scales = all + (size_t)n * rows, *biases = scales + (size_t)n * notes;
    must(all != NULL);
    for (int e = 0; e < n; e++) {
        memcpy(all + (size_t)e * rows, host[e].data, rows);
        memcpy(scales + (size_t)e * notes, host[e].scales, notes);
        memcpy(biases + (size_t)e * notes, host[e].biases, notes);
    }
    const char *first = stage_input(s, all, (size_t)n * rows);
    const char *first_scales = stage_input(s, scales, (size_t)n * notes);
    const char *first_biases = stage_input(s, biases, (size_t)n * notes);
    for (int e = 0; e < n; e++) {
        to[e] = host[e];
        to[e].data = first + (size_t)e * rows;
        to[e].scales = first_scales + (size_t)e * notes;
        to[e].biases = first_biases + (size_t)e * notes;
    }
}

static void fill_stage(struct moe_stage *m, struct run *r, struct device *d, const struct moe_data *data, enum how how,
                       int first, int n) {
    const struct moe_case *c = data->c;
    struct stage *s = &m->s;
    stage_open(s, r, d);
    m->router = stage_weight(s, &data->router);
    m->shared_gate = stage_weight(s, &data->shared_gate);
    m->gate = stage_weight(s, &data->gate);
    m->up = stage_weight(s, &data->up);
    m->down = stage_weight(s, &data->down);
    for (int k = 0; k < 3; k++) {
        int n_own = c->is_even ? 0 : c->n_expert; // by themselves
        for (int e = 0; e < n_own; e++) {
            bool shifts = how == SHIFTED && k == 2 && e == n_own - 1;
            m->experts[k][e] = (shifts ? stage_shifted : stage_weight)(s, &data->experts[k][e]);
        }
        if (c->is_even) stage_evenly(s, data->experts[k], c->n_expert, m->experts[k]);
    }
    struct tensor x = stage_tensor_inout(s, data->x + first * c->hidden, n, c->hidden, d->activation);
    struct tensor normed = stage_tensor_out(s, n, c->hidden, d->activation);
    struct tensor gated = stage_tensor_out(s, n, c->width, d->activation);
    struct tensor up = stage_tensor_out(s, n, c->width, d->activation);
    size_t n_pair = (size_t)(n * c->n_used);
    m->a = (struct moe_args){
        .norm = {x, normed, stage_input(s, data->norm_weight, (size_t)c->hidden * sizeof(float)), 1e-6f},
        .router = {FORM_ROWS, normed, &m->router, &m->shared_gate, c->n_used, stage_output(s, n_pair * sizeof(int32_t)),
                   stage_output(s, n_pair * sizeof(float)), stage_output(s, (size_t)n * sizeof(float))},
        .gate = &m->gate,
        .up = &m->up,
        .down = &m->down,
        .gated = {gated, up, gated},
    };
    m->a.experts = (struct experts_args){.form = FORM_ROWS,
                                         .x = normed,
                                         .n_expert = c->n_expert,
                                         .n_used = c->n_used,
                                         .ids = m->a.router.ids,
                                         .weights = m->a.router.weights,
                                         .shared = m->a.router.shared,
                                         .gate = m->experts[0],
                                         .up = m->experts[1],
                                         .down = m->experts[2],
                                         .lie_evenly = c->is_even,
                                         .shared_out = stage_tensor_out(s, n, c->hidden, d->activation),
                                         .residual = x,
                                         .out = x};
}

static void run_one_by_one(struct device *d, const struct moe_args *a) {
    struct linear_args widen = {
        .form = FORM_ROWS, .x = a->norm.out, .n_parts = 2, .part = {{a->gate, a->gated.gate}, {a->up, a->gated.up}}};
    struct linear_args narrow = {
        .form = FORM_ROWS, .x = a->gated.out, .n_parts = 1, .part = {{a->down, a->experts.shared_out}}};
    d->ops->norm(d, &a->norm);
    d->ops->router(d, &a->router);
    d->ops->linear(d, &widen);
    d->ops->swiglu(d, &a->gated);
    d->ops->linear(d, &narrow);
    d->ops->experts(d, &a->experts);
}

static struct moe_result call(struct run *r, const struct moe_data *data, enum how how, int first, int n) {
    struct device *d = r->subject->device;
    struct moe_stage *m = arena_alloc(r->arena, sizeof *m);
    must(m != NULL);
    fill_stage(m, r, d, data, how, first, n);
    size_t pairs = (size_t)(n * data->c->n_used) * 4;
    struct moe_result got = {true, arena_alloc(r->arena, pairs), arena_alloc(r->arena, pairs),
                             arena_alloc(r->arena, (size_t)n * 4), NULL};
    if (how != ONE_BY_ONE)
        got.done = ops_of(r, d)->moe(d, &m->a);
    else
        run_one_by_one(d, &m->a);
    stage_read_bytes(&m->s, m->a.router.ids, got.ids, pairs);
    stage_read_bytes(&m->s, m->a.router.weights, got.weights, pairs);
    stage_read_bytes(&m->s, m->a.router.shared, got.shared, (size_t)n * 4);
    got.out = stage_read(&m->s, m->a.experts.out);
    stage_close(&m->s);
    return got;
}

static void same_rows(struct run *r, const char *what, const struct moe_data *data, enum how how, int first, int n,
                      const struct moe_result *all) {
    const struct moe_case *c = data->c;
    struct moe_result got = call(r, data, how, first, n);
    expect(r, got.done, "%s: not done", what);
    expect(r, memcmp(got.ids, all->ids + first * c->n_used, (size_t)(n * c->n_used) * 4) == 0, "%s: other experts",
           what);
    expect_same_bits(r, what, got.weights, all->weights + first * c->n_used, (size_t)(n * c->n_used));
    expect_same_bits(r, what, got.shared, all->shared + first, (size_t)n);
    expect_same_bits(r, what, got.out, all->out + first * c->hidden, (size_t)(n * c->hidden));
}

// A device may have other kernels for one row, for a few, and for more.
static void check_rows(struct run *r, const struct moe_data *data, const struct moe_result *all) {
    static const int counts[] = {1, 2, 3, 5, 16, 17, 18, 21};
    const struct moe_case *c = data->c;
    for (int t = 0; t < c->n_row && c->n_row > 1; t += c->n_row > 8 ? 5 : 1)
        same_rows(r, "a row alone", data, FUSED, t, 1, all);
    for (int i = 0; i < (int)(sizeof counts / sizeof *counts) && counts[i] <= c->n_row; i++) {
        char what[64];
        int n = counts[i], first = c->n_row - n;
        snprintf(what, sizeof what, "%d of the rows", n);
        if (n < c->n_row) same_rows(r, what, data, FUSED, first, n, all);
        snprintf(what, sizeof what, "%d of the rows, a matrix aligned to less", n);
        if (!c->is_even) same_rows(r, what, data, SHIFTED, first, n, all);
    }
}

// The operations that it stands for are held to their oracles elsewhere.
static void moe_case(struct run *r, const struct moe_case *c) {
    if (case_done(r)) return;
    case_begin(r, "T=%d, %d of %d experts%s, %ldx%ld%s", c->n_row, c->n_used, c->n_expert,
               c->is_even ? " at equal distances" : "", (long)c->width, (long)c->hidden,
               !c->is_usual  ? ", weights that it does not take"
               : c->is_plain ? ", a router of bf16"
                             : "");
    const struct weight_spec kind = {WEIGHT_AFFINE, DTYPE_BF16, 4, 64, c->hidden, c->width};
    struct moe_data data = make_data(r, c);
    struct moe_result all = call(r, &data, FUSED, 0, c->n_row);
    expect(r, all.done == c->is_usual, "done: %d", all.done);
    if (!c->is_usual || !all.done) return;
    struct moe_result want = call(r, &data, ONE_BY_ONE, 0, c->n_row);
    size_t n = (size_t)(c->n_row * c->hidden), n_pair = (size_t)(c->n_row * c->n_used);
    expect(r, memcmp(all.ids, want.ids, n_pair * 4) == 0, "other experts");
    expect_close(r, "weights", all.weights, values_double(r, want.weights, n_pair), n_pair, &element_f32);
    expect_close(r, "shared", all.shared, values_double(r, want.shared, (size_t)c->n_row), (size_t)c->n_row,
                 &element_f32);
    expect_close(r, "outputs", all.out, values_double(r, want.out, n), n, tolerance_product(r, FORM_ROWS, &kind));
    if (case_done(r)) return;
    check_rows(r, &data, &all);
}

static void run_moe(struct run *r) {
    moe_case(r, &(struct moe_case){5, 8, 3, 256, 128, true, false, false});
    moe_case(r, &(struct moe_case){1, 8, 2, 128, 128, true, false, true});
    if (r->hunting) return;
    moe_case(r, &(struct moe_case){2, 8, 2, 128, 128, false, false, false});
    moe_case(r, &(struct moe_case){1, 16, 8, 640, 512, true, false, false});
    moe_case(r, &(struct moe_case){9, 8, 3, 256, 128, true, true, false});
    moe_case(r, &(struct moe_case){21, 20, 4, 640, 384, true, false, false});
    moe_case(r, &(struct moe_case){7, 8, 3, 1024, 512, true, false, true});
    moe_case(r, &(struct moe_case){16, 12, 5, 512, 256, true, false, false});
    moe_case(r, &(struct moe_case){18, 12, 5, 512, 256, true, false, false});
    moe_case(r, &(struct moe_case){4, 4, 2, 2048, 512, true, false, false});
    // The most experts of which a lane of a warp has no more than eight.
    moe_case(r, &(struct moe_case){18, MAX_EXPERTS, 8, 128, 128, true, false, true});
}

static bool scaled(struct device *d, const struct moe_args *a) {
    bool done = d->ops->moe(d, a);
    for (int64_t col = 0; col < 16; col++) corrupt_scale(d, a->experts.out, a->experts.out.n_row - 1, col, 1.02);
    return done;
}
static bool up_for_gate(struct device *d, const struct moe_args *a) {
    struct moe_args b = *a;
    b.gate = a->up;
    return d->ops->moe(d, &b);
}
static bool no_norm(struct device *d, const struct moe_args *a) {
    struct moe_args b = *a;
    b.norm.eps = 1;
    return d->ops->moe(d, &b);
}
static bool fewer_experts(struct device *d, const struct moe_args *a) {
    struct moe_args b = *a;
    struct weight router = *a->router.gate;
    router.n_out--;
    b.router.gate = &router;
    return d->ops->moe(d, &b);
}
static bool stale_row(struct device *d, const struct moe_args *a) {
    bool done = d->ops->moe(d, a);
    if (a->experts.out.n_row > 1) corrupt_copy_row(d, a->experts.out, 1, 0);
    return done;
}
static bool past_end(struct device *d, const struct moe_args *a) {
    bool done = d->ops->moe(d, a);
    corrupt_past_end(d, a->experts.out);
    return done;
}
static bool split_by_rows(struct device *d, const struct moe_args *a) {
    bool done = d->ops->moe(d, a);
    if (a->experts.out.n_row > 1) corrupt_last_bit(d, a->experts.out, 0, 0);
    return done;
}
static bool split_by_alignment(struct device *d, const struct moe_args *a) {
    bool done = d->ops->moe(d, a);
    if ((uintptr_t)a->experts.down[a->experts.n_expert - 1].scales % 16 != 0) corrupt_last_bit(d, a->experts.out, 0, 0);
    return done;
}
static bool never(struct device *d, const struct moe_args *a) {
    (void)d;
    (void)a;
    return false;
}

static void plant_scaled(struct ops *o) { o->moe = scaled; }
static void plant_gate(struct ops *o) { o->moe = up_for_gate; }
static void plant_norm(struct ops *o) { o->moe = no_norm; }
static void plant_fewer(struct ops *o) { o->moe = fewer_experts; }
static void plant_stale(struct ops *o) { o->moe = stale_row; }
static void plant_end(struct ops *o) { o->moe = past_end; }
static void plant_split(struct ops *o) { o->moe = split_by_rows; }
static void plant_alignment(struct ops *o) { o->moe = split_by_alignment; }
static void plant_never(struct ops *o) { o->moe = never; }

static const struct fault faults[] = {
    {"elements times 1.02", plant_scaled},
    {"the shared expert's up for its gate", plant_gate},
    {"another eps", plant_norm},
    {"the last expert not considered", plant_fewer},
    {"a stale row", plant_stale},
    {"one past the end", plant_end},
    {"never done", plant_never},
    {"a last bit that depends on T", plant_split},
    {"a last bit that depends on alignment", plant_alignment},
};

const struct suite suite_moe = {"experts",
                                "moe",
                                run_moe,
                                faults,
                                9,
                                {.max_rows = 21,
                                 .max_round_rows = 21,
                                 .max_in = 2048,
                                 .max_out = 2048,
                                 .n_expert = MAX_EXPERTS,
                                 .n_used = 8,
                                 .expert_width = 512}};
