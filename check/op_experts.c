// router and experts.
#include "check/check.h"
#include <math.h>
#include <string.h>

#define MAX_ROWS    200
#define MAX_EXPERTS 260
#define MAX_WIDTH   384

// Router weights: fp32 sums in every compute mode, and one softmax.
static const struct tolerance router_weights = {"router-weights", 1e-4, 1e-4, 1e-5};
// COMPUTE_INT8 rounds x and h to 8 bits.
static const struct tolerance experts_int8 = {"experts-int8", 6e-2, 0, 2e-2};

struct experts_case {
    enum form form;
    int n_row, n_expert, n_used;
    int64_t hidden, width;
    struct weight_spec gate, down; // n_out and n_in are filled in
    bool in_place;
};

// ---- router ----

struct router_data {
    int n_row;
    float *x;
    struct weight gate, shared_gate;
    double *gate_values, *shared_values;
};

struct router_result {
    int32_t *ids;
    float *weights, *shared;
};

static struct router_result call_router(struct run *r, struct device *d, const struct experts_case *c,
                                        const struct router_data *data, int first, int n) {
    struct stage s;
    stage_open(&s, r, d);
    struct weight gate = stage_weight(&s, &data->gate), shared_gate = stage_weight(&s, &data->shared_gate);
    size_t n_pair = (size_t)(n * c->n_used);
    struct router_args args = {
        .form = c->form,
        .x = stage_tensor(&s, data->x + first * c->hidden, n, c->hidden, d->activation),
        .gate = &gate,
        .shared_gate = &shared_gate,
        .n_used = c->n_used,
        .ids = stage_output(&s, n_pair * sizeof(int32_t)),
        .weights = stage_output(&s, n_pair * sizeof(float)),
        .shared = stage_output(&s, (size_t)n * sizeof(float)),
    };
    ops_of(r, d)->router(d, &args);
    struct router_result got = {arena_alloc(r->arena, n_pair * 4), arena_alloc(r->arena, n_pair * 4),
                                arena_alloc(r->arena, (size_t)n * 4)};
    stage_read_bytes(&s, args.ids, got.ids, n_pair * 4);
    stage_read_bytes(&s, args.weights, got.weights, n_pair * 4);
    stage_read_bytes(&s, args.shared, got.shared, (size_t)n * 4);
    stage_close(&s);
    return got;
}

static void oracle_router(const struct experts_case *c, const struct router_data *data, int t, int32_t *ids,
                          double *weights, double *shared) {
    double p[MAX_EXPERTS], sum = 0, max = -INFINITY;
    *shared = 0;
    for (int e = 0; e < c->n_expert; e++) {
        p[e] = 0;
        for (int64_t i = 0; i < c->hidden; i++)
            p[e] += (double)data->x[t * c->hidden + i] * data->gate_values[e * c->hidden + i];
        max = fmax(max, p[e]);
    }
    for (int64_t i = 0; i < c->hidden; i++) *shared += (double)data->x[t * c->hidden + i] * data->shared_values[i];
    *shared = 1 / (1 + exp(-*shared));
    for (int e = 0; e < c->n_expert; e++) p[e] = exp(p[e] - max);
    for (int s = 0; s < c->n_used; s++) {
        int best = 0;
        for (int e = 1; e < c->n_expert; e++)
            if (p[e] > p[best]) best = e;
        ids[s] = best;
        sum += weights[s] = p[best];
        p[best] = -1;
    }
    for (int s = 0; s < c->n_used; s++) weights[s] /= sum;
}

static void compare_router(struct run *r, const char *what, const struct experts_case *c, struct router_result got,
                           struct router_result all, int first, int n) {
    expect(r, memcmp(got.ids, all.ids + first * c->n_used, (size_t)(n * c->n_used) * 4) == 0, "%s: other experts",
           what);
    expect_same_bits(r, what, got.weights, all.weights + first * c->n_used, (size_t)(n * c->n_used));
    expect_same_bits(r, what, got.shared, all.shared + first, (size_t)n);
}

static void router_case(struct run *r, const struct experts_case *c, bool with_ties) {
    if (case_done(r)) return;
    case_begin(r, "T=%d, %d of %d experts, %s%s", c->n_row, c->n_used, c->n_expert, weight_name(&c->gate),
               with_ties ? ", ties" : "");
    struct weight_spec gate = c->gate, shared_gate = c->gate;
    gate.n_out = c->n_expert;
    shared_gate.n_out = 1;
    gate.n_in = shared_gate.n_in = c->hidden;
    struct router_data data = {.n_row = c->n_row};
    data.x = values_normal(r, 401, (size_t)(c->n_row * c->hidden), 1, r->subject->device->activation);
    data.gate = values_weight(r, 402, &gate, &data.gate_values);
    data.shared_gate = values_weight(r, 403, &shared_gate, &data.shared_values);
    for (int e = 0; with_ties && e + 1 < c->n_expert; e += 2) { // pairs of experts with one row: only plain weights
        size_t bytes = weight_row_bytes(&data.gate);
        memcpy((char *)data.gate.data + (size_t)(e + 1) * bytes, (const char *)data.gate.data + (size_t)e * bytes,
               bytes);
        memcpy(data.gate_values + (e + 1) * c->hidden, data.gate_values + e * c->hidden,
               (size_t)c->hidden * sizeof(double));
    }
    struct device *d = r->subject->device;
    struct router_result all = call_router(r, d, c, &data, 0, c->n_row);
    for (int t = 0; t < c->n_row; t++) {
        int32_t ids[MAX_EXPERTS];
        double weights[MAX_EXPERTS], shared;
        oracle_router(c, &data, t, ids, weights, &shared);
        expect(r, memcmp(ids, all.ids + t * c->n_used, (size_t)c->n_used * 4) == 0, "row %d goes to other experts", t);
        expect_close(r, "weights", all.weights + t * c->n_used, weights, (size_t)c->n_used, &router_weights);
        expect_close(r, "shared", all.shared + t, &shared, 1, &router_weights);
    }
    for (int i = 0; i < 2; i++)
        if (r->subject->others[i] != NULL)
            compare_router(r, "other threads", c, call_router(r, r->subject->others[i], c, &data, 0, c->n_row), all, 0,
                           c->n_row);
    for (int t = 0; t < c->n_row && c->n_row > 1; t += c->n_row > 8 ? 17 : 1)
        compare_router(r, "a row alone", c, call_router(r, d, c, &data, t, 1), all, t, 1);
}

static void run_router(struct run *r) {
    struct weight_spec q8 = {WEIGHT_AFFINE, DTYPE_BF16, 8, 64, 0, 0}, bf16 = {WEIGHT_PLAIN, DTYPE_BF16, 0, 0, 0, 0};
    router_case(r, &(struct experts_case){FORM_ROWS, 5, 16, 4, 128, 0, q8, q8, false}, false);
    router_case(r, &(struct experts_case){FORM_ROWS, 5, 8, 3, 96, 0, bf16, q8, false}, true);
    if (r->hunting) return;
    router_case(r, &(struct experts_case){FORM_ROWS, 1, 16, 1, 256, 0, bf16, q8, false}, false);
    router_case(r, &(struct experts_case){FORM_PROMPT, 200, 16, 4, 128, 0, q8, q8, false}, false);
    router_case(r, &(struct experts_case){FORM_PROMPT, 65, 16, 16, 512, 0, bf16, q8, false}, true);
    // The most experts of which a lane of a warp has no more than eight.
    router_case(r, &(struct experts_case){FORM_ROWS, 9, 256, 8, 320, 0, q8, q8, false}, false);
    router_case(r, &(struct experts_case){FORM_ROWS, 5, 256, 8, 96, 0, bf16, q8, false}, true);
    router_case(r, &(struct experts_case){FORM_PROMPT, 70, 256, 8, 320, 0, q8, q8, false}, false);
    router_case(r, &(struct experts_case){FORM_ROWS, 9, 258, 8, 320, 0, q8, q8, false}, false);
    router_case(r, &(struct experts_case){FORM_PROMPT, 70, 258, 8, 320, 0, q8, q8, false}, false);
}

static void router_more(struct device *d, const struct router_args *a) {
    struct weight gate = *a->gate;
    gate.n_out--;
    struct router_args b = *a;
    b.gate = &gate;
    d->ops->router(d, &b);
}

static void router_raw(struct device *d, const struct router_args *a) {
    d->ops->router(d, a);
    struct tensor t = {a->weights, DTYPE_F32, a->x.n_row, a->n_used, a->n_used};
    for (int s = 0; s < a->n_used; s++) corrupt_scale(d, t, 0, s, 0.9);
}

static void router_swapped(struct device *d, const struct router_args *a) {
    int32_t pair[2];
    d->ops->router(d, a);
    d->copy_out(d, pair, a->ids, sizeof pair);
    int32_t swapped[2] = {pair[1], pair[0]};
    d->copy_in(d, a->ids, swapped, sizeof pair);
}

static void router_end(struct device *d, const struct router_args *a) {
    d->ops->router(d, a);
    corrupt_past_end(d, (struct tensor){a->weights, DTYPE_F32, a->x.n_row, a->n_used, a->n_used});
}

static void plant_more(struct ops *o) { o->router = router_more; }
static void plant_raw(struct ops *o) { o->router = router_raw; }
static void plant_order(struct ops *o) { o->router = router_swapped; }
static void plant_router_end(struct ops *o) { o->router = router_end; }

static const struct fault router_faults[] = {
    {"the last expert not considered", plant_more},
    {"weights that do not sum to 1", plant_raw},
    {"two experts out of order", plant_order},
    {"one past the end", plant_router_end},
};

const struct suite suite_router = {"experts",
                                   "router",
                                   run_router,
                                   router_faults,
                                   4,
                                   {.max_rows = 200,
                                    .max_round_rows = 9,
                                    .max_in = 512,
                                    .max_out = 258,
                                    .n_expert = 258,
                                    .n_used = 16,
                                    .expert_width = 1}};

// ---- experts ----

struct experts_data {
    const struct experts_case *c;
    float *x, *residual, *shared_out, *weights, *shared;
    int32_t *ids;
    struct weight gate[MAX_EXPERTS], up[MAX_EXPERTS], down[MAX_EXPERTS];
    double *gate_values[MAX_EXPERTS], *up_values[MAX_EXPERTS], *down_values[MAX_EXPERTS];
};

static const struct tolerance *tolerance_of(const struct run *r, const struct experts_case *c) {
    const struct tolerance *gate = tolerance_product(r, c->form, &c->gate),
                           *down = tolerance_product(r, c->form, &c->down);
    if (r->subject->device->compute == COMPUTE_INT8) return &experts_int8;
    return gate->rel_l2 > down->rel_l2 ? gate : down;
}

static struct experts_data make_experts(struct run *r, const struct experts_case *c) {
    enum dtype t = r->subject->device->activation;
    size_t n = (size_t)(c->n_row * c->hidden);
    struct experts_data data = {
        .c = c, .x = values_normal(r, 411, n, 1, t), .residual = values_normal(r, 412, n, 1, t)};
    data.shared_out = values_normal(r, 413, n, 1, t);
    data.shared = values_normal(r, 414, (size_t)c->n_row, 0.3, DTYPE_F32);
    data.weights = values_normal(r, 415, (size_t)(c->n_row * c->n_used), 0.4, DTYPE_F32);
    data.ids = arena_alloc(r->arena, (size_t)(c->n_row * c->n_used) * sizeof(int32_t));
    for (int i = 0; i < c->n_row * c->n_used; i++) // distinct in a row; expert 1 is never used
        data.ids[i] = (int32_t)((i / c->n_used * 5 + i % c->n_used * 2) % c->n_expert);
    for (int e = 0; e < c->n_expert; e++) {
        struct weight_spec gate = c->gate, down = c->down;
        gate.n_out = down.n_in = c->width;
        gate.n_in = down.n_out = c->hidden;
        data.gate[e] = values_weight(r, 420 + 3 * (uint64_t)e, &gate, &data.gate_values[e]);
        data.up[e] = values_weight(r, 421 + 3 * (uint64_t)e, &gate, &data.up_values[e]);
        data.down[e] = values_weight(r, 422 + 3 * (uint64_t)e, &down, &data.down_values[e]);
    }
    return data;
}

static void oracle_expert(const struct experts_data *data, int t, int e, double weight, double *sum) {
    const struct experts_case *c = data->c;
    const float *x = data->x + t * c->hidden;
    double h[MAX_WIDTH];
    for (int64_t o = 0; o < c->width; o++) {
        double gate = 0, up = 0;
        for (int64_t i = 0; i < c->hidden; i++) {
            gate += (double)x[i] * data->gate_values[e][o * c->hidden + i];
            up += (double)x[i] * data->up_values[e][o * c->hidden + i];
        }
        h[o] = gate / (1 + exp(-gate)) * up;
    }
    for (int64_t o = 0; o < c->hidden; o++) {
        double y = 0;
        for (int64_t i = 0; i < c->width; i++) y += h[i] * data->down_values[e][o * c->width + i];
        sum[o] += weight * y;
    }
}

static double *oracle_experts(struct run *r, const struct experts_data *data) {
    const struct experts_case *c = data->c;
    double *want = values_double(r, data->residual, (size_t)(c->n_row * c->hidden));
    for (int t = 0; t < c->n_row; t++) {
        for (int s = 0; s < c->n_used; s++)
            oracle_expert(data, t, data->ids[t * c->n_used + s], (double)data->weights[t * c->n_used + s],
                          want + t * c->hidden);
        for (int64_t o = 0; o < c->hidden; o++)
            want[t * c->hidden + o] += (double)data->shared[t] * (double)data->shared_out[t * c->hidden + o];
    }
    return want;
}

static float *call_experts(struct run *r, struct device *d, const struct experts_data *data, int first, int n) {
    const struct experts_case *c = data->c;
    struct weight gate[MAX_EXPERTS], up[MAX_EXPERTS], down[MAX_EXPERTS];
    struct stage s;
    stage_open(&s, r, d);
    for (int e = 0; e < c->n_expert; e++) {
        gate[e] = stage_weight(&s, &data->gate[e]);
        up[e] = stage_weight(&s, &data->up[e]);
        down[e] = stage_weight(&s, &data->down[e]);
    }
    size_t n_pair = (size_t)(n * c->n_used);
    const float *residual = data->residual + first * c->hidden;
    struct experts_args args = {
        .form = c->form,
        .n_expert = c->n_expert,
        .n_used = c->n_used,
        .gate = gate,
        .up = up,
        .down = down,
        .x = stage_tensor(&s, data->x + first * c->hidden, n, c->hidden, d->activation),
        .ids = stage_input(&s, data->ids + first * c->n_used, n_pair * sizeof(int32_t)),
        .weights = stage_input(&s, data->weights + first * c->n_used, n_pair * sizeof(float)),
        .shared = stage_input(&s, data->shared + first, (size_t)n * sizeof(float)),
        .shared_out = stage_tensor(&s, data->shared_out + first * c->hidden, n, c->hidden, d->activation),
    };
    args.out = c->in_place ? stage_tensor_inout(&s, residual, n, c->hidden, d->activation)
                           : stage_tensor_out(&s, n, c->hidden, d->activation);
    args.residual = c->in_place ? args.out : stage_tensor(&s, residual, n, c->hidden, d->activation);
    ops_of(r, d)->experts(d, &args);
    float *got = stage_read(&s, args.out);
    stage_close(&s);
    return got;
}

static void experts_case(struct run *r, const struct experts_case *c) {
    if (case_done(r)) return;
    case_begin(r, "T=%d, %d of %d experts, %ldx%ld %s", c->n_row, c->n_used, c->n_expert, (long)c->width,
               (long)c->hidden, weight_name(&c->gate));
    struct experts_data data = make_experts(r, c);
    struct device *d = r->subject->device;
    size_t n = (size_t)(c->n_row * c->hidden);
    float *all = call_experts(r, d, &data, 0, c->n_row);
    expect_close(r, "outputs", all, oracle_experts(r, &data), n, tolerance_of(r, c));
    if (case_done(r)) return;
    for (int i = 0; i < 2; i++)
        if (r->subject->others[i] != NULL)
            expect_same_bits(r, "other threads", call_experts(r, r->subject->others[i], &data, 0, c->n_row), all, n);
    for (int t = 0; t < c->n_row && c->n_row > 1; t += c->n_row > 8 ? 13 : 1)
        expect_same_bits(r, "a row alone", call_experts(r, d, &data, t, 1), all + t * c->hidden, (size_t)c->hidden);
    if (c->n_row > 3)
        expect_same_bits(r, "three rows", call_experts(r, d, &data, c->n_row - 3, 3), all + (c->n_row - 3) * c->hidden,
                         (size_t)(3 * c->hidden));
}

static void run_experts(struct run *r) {
    struct weight_spec q4 = {WEIGHT_AFFINE, DTYPE_BF16, 4, 64, 0, 0}, q8 = {WEIGHT_AFFINE, DTYPE_F16, 8, 32, 0, 0};
    struct weight_spec bf16 = {WEIGHT_PLAIN, DTYPE_BF16, 0, 0, 0, 0};
    experts_case(r, &(struct experts_case){FORM_ROWS, 5, 8, 3, 128, 64, q4, q8, false});
    experts_case(r, &(struct experts_case){FORM_ROWS, 5, 8, 3, 128, 128, q4, q4, false});
    if (r->hunting) return;
    experts_case(r, &(struct experts_case){FORM_ROWS, 1, 4, 2, 64, 128, q4, q4, true});
    experts_case(r, &(struct experts_case){FORM_ROWS, 17, 8, 2, 96, 40, bf16, bf16, true});
    experts_case(r, &(struct experts_case){FORM_ROWS, 21, 6, 2, 640, MAX_WIDTH, q4, q4, true});
    experts_case(r, &(struct experts_case){FORM_PROMPT, 65, 16, 4, 128, 128, q4, q4, true});
    experts_case(r, &(struct experts_case){FORM_PROMPT, 129, 6, 2, 192, 96, bf16, q8, false});
    experts_case(r, &(struct experts_case){FORM_PROMPT, 129, 4, 2, 640, MAX_WIDTH, q4, q4, false});
}

// ---- faults ----

static void next_expert(struct device *d, const struct experts_args *a) {
    struct experts_args b = *a;
    b.down = a->down + 1;
    b.n_expert--;
    int32_t ids[MAX_ROWS * MAX_EXPERTS];
    size_t bytes = (size_t)(a->x.n_row * a->n_used) * sizeof(int32_t);
    d->copy_out(d, ids, a->ids, bytes);
    for (size_t i = 0; i < bytes / sizeof(int32_t); i++)
        if (ids[i] == a->n_expert - 1) ids[i] = 0;
    int32_t *device = d->alloc(d, bytes);
    must(device != NULL);
    d->copy_in(d, device, ids, bytes);
    b.ids = device;
    d->ops->experts(d, &b);
    d->release(d, device);
}

static void gate_for_up(struct device *d, const struct experts_args *a) {
    struct experts_args b = *a;
    b.up = a->gate;
    d->ops->experts(d, &b);
}

static void no_shared(struct device *d, const struct experts_args *a) {
    struct experts_args b = *a;
    b.shared_out.data = NULL;
    d->ops->experts(d, &b);
}

static void x_as_residual(struct device *d, const struct experts_args *a) {
    struct experts_args b = *a;
    b.residual = a->x;
    d->ops->experts(d, &b);
}

static void stale_row(struct device *d, const struct experts_args *a) {
    d->ops->experts(d, a);
    if (a->out.n_row > 1) corrupt_copy_row(d, a->out, 1, 0);
}

static void scaled(struct device *d, const struct experts_args *a) {
    d->ops->experts(d, a);
    for (int64_t col = 0; col < 16; col++) corrupt_scale(d, a->out, a->out.n_row - 1, col, 1.02);
}

static void past_end(struct device *d, const struct experts_args *a) {
    d->ops->experts(d, a);
    corrupt_past_end(d, a->out);
}

static void plant_expert(struct ops *o) { o->experts = next_expert; }
static void plant_up(struct ops *o) { o->experts = gate_for_up; }
static void plant_shared(struct ops *o) { o->experts = no_shared; }
static void plant_residual(struct ops *o) { o->experts = x_as_residual; }
static void plant_stale(struct ops *o) { o->experts = stale_row; }
static void plant_scaled(struct ops *o) { o->experts = scaled; }
static void plant_end(struct ops *o) { o->experts = past_end; }

static const struct fault faults[] = {
    {"down of the next expert", plant_expert}, {"gate used as up", plant_up}, {"no shared expert", plant_shared},
    {"x taken as residual", plant_residual},   {"a stale row", plant_stale},  {"elements times 1.02", plant_scaled},
    {"one past the end", plant_end},
};

const struct suite suite_experts = {"experts",
                                    "experts",
                                    run_experts,
                                    faults,
                                    7,
                                    {.max_rows = 129,
                                     .max_round_rows = 21,
                                     .max_in = 640,
                                     .max_out = 640,
                                     .n_expert = 16,
                                     .n_used = 4,
                                     .expert_width = MAX_WIDTH}};
