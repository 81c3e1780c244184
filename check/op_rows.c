// embed, norm, swiglu.
#include "check/check.h"
#include <math.h>

#define MAX_ROWS 8

// ---- embed ----

static void embed_oracle(const double *table, int64_t n_in, const int32_t *ids, int n, double *want) {
    for (int t = 0; t < n; t++)
        for (int64_t i = 0; i < n_in; i++) want[t * n_in + i] = table[ids[t] * n_in + i];
}

static float *call_embed(struct run *r, struct device *d, const struct weight *table, const int32_t *ids, int n) {
    struct stage s;
    stage_open(&s, r, d);
    struct weight w = stage_weight(&s, table);
    struct tensor out = stage_tensor_out(&s, n, table->n_in, d->activation);
    struct lane lane = {.n_row = n};
    struct batch batch = {
        .form = FORM_ROWS, .n_row = n, .n_lane = 1, .max_window = MAX_ROWS, .ids = ids, .lanes = &lane};
    struct embed_args args = {&batch, &w, out};
    ops_of(r, d)->begin(d, &batch);
    ops_of(r, d)->embed(d, &args);
    float *got = stage_read(&s, out);
    stage_close(&s);
    return got;
}

static void embed_case(struct run *r, const struct weight_spec *spec) {
    static const int32_t ids[] = {3, 0, 9, 3, 7};
    const int n = 5;
    case_begin(r, "%s %ldx%ld", weight_name(spec), (long)spec->n_out, (long)spec->n_in);
    double *table, want[MAX_ROWS * 256];
    struct weight w = values_weight(r, 11, spec, &table);
    embed_oracle(table, spec->n_in, ids, n, want);
    float *all = call_embed(r, r->subject->device, &w, ids, n);
    expect_close(r, "rows", all, want, (size_t)(n * spec->n_in), tolerance_element(r));
    for (int t = 0; t < n; t++)
        expect_same_bits(r, "a row alone", call_embed(r, r->subject->device, &w, &ids[t], 1), all + t * spec->n_in,
                         (size_t)spec->n_in);
    if (r->subject->device->arrange == NULL) return;
    r->arranged = true;
    expect_same_bits(r, "of an arranged table", call_embed(r, r->subject->device, &w, ids, n), all,
                     (size_t)(n * spec->n_in));
    r->arranged = false;
}

static void run_embed(struct run *r) {
    static const struct weight_spec specs[] = {
        {WEIGHT_AFFINE, DTYPE_BF16, 4, 64, 10, 128}, {WEIGHT_AFFINE, DTYPE_BF16, 4, 64, 16, 256},
        {WEIGHT_AFFINE, DTYPE_F16, 3, 32, 10, 96},   {WEIGHT_AFFINE, DTYPE_F32, 6, 128, 10, 256},
        {WEIGHT_PLAIN, DTYPE_BF16, 0, 0, 10, 100},   {WEIGHT_PLAIN, DTYPE_F16, 0, 0, 10, 64},
        {WEIGHT_PLAIN, DTYPE_F32, 0, 0, 10, 33},
    };
    for (int i = 0; i < (int)(sizeof specs / sizeof specs[0]) && !case_done(r); i++) embed_case(r, &specs[i]);
}

static void embed_wrong_id(struct device *d, const struct embed_args *a) {
    int32_t ids[MAX_ROWS];
    for (int t = 0; t < a->batch->n_row; t++) ids[t] = a->batch->ids[t];
    ids[a->batch->n_row - 1] ^= 1;
    struct batch batch = *a->batch;
    batch.ids = ids;
    d->ops->embed(d, &(struct embed_args){&batch, a->table, a->out});
}

static void embed_no_bias(struct device *d, const struct embed_args *a) {
    struct weight w = *a->table;
    w.biases = w.scales;
    d->ops->embed(d, &(struct embed_args){a->batch, &w, a->out});
}

static void embed_scaled(struct device *d, const struct embed_args *a) {
    d->ops->embed(d, a);
    corrupt_scale(d, a->out, a->out.n_row - 1, 1, 1.02);
}

static void embed_past_end(struct device *d, const struct embed_args *a) {
    d->ops->embed(d, a);
    corrupt_past_end(d, a->out);
}

static void plant_embed_id(struct ops *o) { o->embed = embed_wrong_id; }
static void plant_embed_bias(struct ops *o) { o->embed = embed_no_bias; }
static void plant_embed_scaled(struct ops *o) { o->embed = embed_scaled; }
static void plant_embed_end(struct ops *o) { o->embed = embed_past_end; }

static const struct fault embed_faults[] = {
    {"another token's row", plant_embed_id},
    {"scale used as bias", plant_embed_bias},
    {"one element times 1.02", plant_embed_scaled},
    {"one past the end", plant_embed_end},
};

const struct suite suite_embed = {
    "linear", "embed", run_embed, embed_faults, 4, {.max_rows = 8, .max_round_rows = 8, .max_in = 256, .max_out = 1}};

// ---- norm ----

static void norm_oracle(const float *x, const float *weight, double eps, int64_t n, double *want) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    double inverse = 1 / sqrt(squares / (double)n + eps);
    for (int64_t i = 0; i < n; i++) want[i] = (double)x[i] * inverse * (double)weight[i];
}

static float *call_norm(struct run *r, struct device *d, const float *x, const float *weight, int n_row, int n,
                        bool in_place) {
    struct stage s;
    stage_open(&s, r, d);
    struct tensor out =
        in_place ? stage_tensor_inout(&s, x, n_row, n, d->activation) : stage_tensor_out(&s, n_row, n, d->activation);
    struct tensor in = in_place ? out : stage_tensor(&s, x, n_row, n, d->activation);
    struct norm_args args = {in, out, stage_input(&s, weight, (size_t)n * sizeof(float)), 1e-6f};
    ops_of(r, d)->norm(d, &args);
    float *got = stage_read(&s, out);
    stage_close(&s);
    return got;
}

static void norm_case(struct run *r, int n, double size) {
    const int n_row = 5;
    case_begin(r, "5x%d, inputs near %g", n, size);
    struct device *d = r->subject->device;
    float *x = values_normal(r, 21, (size_t)(n_row * n), size, d->activation);
    float *weight = values_normal(r, 22, (size_t)n, 1, DTYPE_F32);
    double *want = arena_alloc(r->arena, (size_t)(n_row * n) * sizeof(double));
    for (int t = 0; t < n_row; t++) norm_oracle(x + t * n, weight, (double)1e-6f, n, want + t * n);
    float *all = call_norm(r, d, x, weight, n_row, n, false);
    expect_close(r, "rows", all, want, (size_t)(n_row * n), tolerance_element(r));
    expect_same_bits(r, "in place", call_norm(r, d, x, weight, n_row, n, true), all, (size_t)(n_row * n));
    for (int t = 0; t < n_row; t++)
        expect_same_bits(r, "a row alone", call_norm(r, d, x + t * n, weight, 1, n, false), all + t * n, (size_t)n);
}

static void run_norm(struct run *r) {
    static const int sizes[] = {64, 256, 1000, 1024};
    for (int i = 0; i < 4 && !case_done(r); i++) norm_case(r, sizes[i], 1);
    if (!case_done(r)) norm_case(r, 128, 1e-3); // where eps matters
    if (!case_done(r)) norm_case(r, 128, 300);
}

static void norm_plus_one(struct device *d, const struct norm_args *a) {
    float weight[1024];
    size_t bytes = (size_t)a->x.n_col * sizeof(float);
    d->copy_out(d, weight, a->weight, bytes);
    for (int64_t i = 0; i < a->x.n_col; i++) weight[i] += 1;
    float *device = d->alloc(d, bytes);
    must(device != NULL);
    d->copy_in(d, device, weight, bytes);
    struct norm_args b = *a;
    b.weight = device;
    d->ops->norm(d, &b);
    d->release(d, device);
}

static void norm_eps(struct device *d, const struct norm_args *a) {
    struct norm_args b = *a;
    b.eps *= 128;
    d->ops->norm(d, &b);
}

static void norm_scaled(struct device *d, const struct norm_args *a) {
    d->ops->norm(d, a);
    corrupt_scale(d, a->out, a->out.n_row - 1, 1, 1.02);
}

static void norm_past_end(struct device *d, const struct norm_args *a) {
    d->ops->norm(d, a);
    corrupt_past_end(d, a->out);
}

static void norm_stale(struct device *d, const struct norm_args *a) {
    d->ops->norm(d, a);
    if (a->out.n_row > 1) corrupt_copy_row(d, a->out, 1, 0);
}

static void plant_norm_plus_one(struct ops *o) { o->norm = norm_plus_one; }
static void plant_norm_eps(struct ops *o) { o->norm = norm_eps; }
static void plant_norm_scaled(struct ops *o) { o->norm = norm_scaled; }
static void plant_norm_end(struct ops *o) { o->norm = norm_past_end; }
static void plant_norm_stale(struct ops *o) { o->norm = norm_stale; }

static const struct fault norm_faults[] = {
    {"weight taken as zero-centred", plant_norm_plus_one},
    {"eps 128 times too large", plant_norm_eps},
    {"one element times 1.02", plant_norm_scaled},
    {"one past the end", plant_norm_end},
    {"a stale row", plant_norm_stale},
};

const struct suite suite_norm = {
    "linear", "norm", run_norm, norm_faults, 5, {.max_rows = 8, .max_round_rows = 8, .max_in = 1024, .max_out = 1}};

// ---- swiglu ----

static double silu(double x) { return x / (1 + exp(-x)); }

static float *call_swiglu(struct run *r, struct device *d, const float *gate, const float *up, int n_row, int n,
                          int alias) {
    struct stage s;
    stage_open(&s, r, d);
    struct tensor g = alias == 1 ? stage_tensor_inout(&s, gate, n_row, n, d->activation)
                                 : stage_tensor(&s, gate, n_row, n, d->activation);
    struct tensor u = alias == 2 ? stage_tensor_inout(&s, up, n_row, n, d->activation)
                                 : stage_tensor(&s, up, n_row, n, d->activation);
    struct tensor out = alias == 1 ? g : alias == 2 ? u : stage_tensor_out(&s, n_row, n, d->activation);
    ops_of(r, d)->swiglu(d, &(struct swiglu_args){g, u, out});
    float *got = stage_read(&s, out);
    stage_close(&s);
    return got;
}

static void swiglu_case(struct run *r, int n, double size) {
    const int n_row = 3;
    case_begin(r, "3x%d, inputs near %g", n, size);
    struct device *d = r->subject->device;
    float *gate = values_normal(r, 31, (size_t)(n_row * n), size, d->activation);
    float *up = values_normal(r, 32, (size_t)(n_row * n), 1, d->activation);
    double *want = arena_alloc(r->arena, (size_t)(n_row * n) * sizeof(double));
    for (int i = 0; i < n_row * n; i++) want[i] = silu((double)gate[i]) * (double)up[i];
    float *all = call_swiglu(r, d, gate, up, n_row, n, 0);
    expect_close(r, "rows", all, want, (size_t)(n_row * n), tolerance_element(r));
    for (int alias = 1; alias <= 2; alias++)
        expect_same_bits(r, "in place", call_swiglu(r, d, gate, up, n_row, n, alias), all, (size_t)(n_row * n));
    for (int t = 0; t < n_row; t++)
        expect_same_bits(r, "a row alone", call_swiglu(r, d, gate + t * n, up + t * n, 1, n, 0), all + t * n,
                         (size_t)n);
}

static void run_swiglu(struct run *r) {
    swiglu_case(r, 96, 1);
    if (!case_done(r)) swiglu_case(r, 1000, 2);
    if (!case_done(r)) swiglu_case(r, 2100, 60); // gates where e^x leaves fp32
}

static void swiglu_swapped(struct device *d, const struct swiglu_args *a) {
    d->ops->swiglu(d, &(struct swiglu_args){a->up, a->gate, a->out});
}

static void swiglu_scaled(struct device *d, const struct swiglu_args *a) {
    d->ops->swiglu(d, a);
    for (int64_t col = 0; col < 8; col++) corrupt_scale(d, a->out, 0, col, 1.02);
}

static void swiglu_past_end(struct device *d, const struct swiglu_args *a) {
    d->ops->swiglu(d, a);
    corrupt_past_end(d, a->out);
}

static void plant_swiglu_swapped(struct ops *o) { o->swiglu = swiglu_swapped; }
static void plant_swiglu_scaled(struct ops *o) { o->swiglu = swiglu_scaled; }
static void plant_swiglu_end(struct ops *o) { o->swiglu = swiglu_past_end; }

static const struct fault swiglu_faults[] = {
    {"gate and up swapped", plant_swiglu_swapped},
    {"elements times 1.02", plant_swiglu_scaled},
    {"one past the end", plant_swiglu_end},
};

const struct suite suite_swiglu = {
    "linear", "swiglu", run_swiglu, swiglu_faults, 3, {.max_rows = 8, .max_round_rows = 8, .max_in = 1, .max_out = 1}};
