// linear, in both forms.
#include "check/check.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_PARTS 3
#define EPS       1e-6f

// COMPUTE_INT8 in FORM_ROWS, against an oracle that quantises x alike: a code may fall on the other side of a tie.
static const struct tolerance int8_codes = {"int8-codes", 1e-2, 0, 2e-3};
// COMPUTE_INT8 in FORM_PROMPT, against exact products: the rounding of x to 8 bits is part of the error.
static const struct tolerance int8_rounding = {"int8-rounding", 5e-2, 0, 1.5e-2};

struct linear_case {
    enum form form;
    int n_row;
    int64_t n_in;
    int n_parts;
    struct weight_spec specs[MAX_PARTS];
    bool norm, residual, up;
};

struct linear_data {
    const struct linear_case *c;
    float *x, *up, *norm_weight, *residual;
    struct weight w[MAX_PARTS];
    double *values[MAX_PARTS];
};

static enum dtype out_type(const struct device *d, int part) { return part == 1 ? DTYPE_F32 : d->activation; }

static struct linear_data make_data(struct run *r, const struct linear_case *c) {
    enum dtype activation = r->subject->device->activation;
    struct linear_data data = {.c = c};
    data.x = values_normal(r, 41, (size_t)(c->n_row * c->n_in), 1, activation);
    if (c->up) data.up = values_normal(r, 40, (size_t)(c->n_row * c->n_in), 1, activation);
    if (c->norm) {
        data.norm_weight = values_normal(r, 42, (size_t)c->n_in, 0.5, DTYPE_F32);
        for (int64_t i = 0; i < c->n_in; i++) data.norm_weight[i] += 1;
    }
    if (c->residual) data.residual = values_normal(r, 43, (size_t)(c->n_row * c->specs[0].n_out), 1, activation);
    for (int p = 0; p < c->n_parts; p++) data.w[p] = values_weight(r, 44 + (uint64_t)p, &c->specs[p], &data.values[p]);
    return data;
}

// ---- oracle ----

static void oracle_norm(const float *x, const float *weight, int64_t n, double *out) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    double inverse = 1 / sqrt(squares / (double)n + (double)EPS);
    for (int64_t i = 0; i < n; i++) out[i] = (double)x[i] * inverse * (double)weight[i];
}

// Symmetric int8 per group: the nearest of 255 steps of max |x| / 127.
static void oracle_quantise(double *x, int64_t n, int group) {
    for (int64_t g = 0; g < n; g += group) {
        double largest = 0;
        for (int i = 0; i < group; i++) largest = fmax(largest, fabs(x[g + i]));
        for (int i = 0; i < group && largest > 0; i++) x[g + i] = rint(x[g + i] * 127 / largest) * largest / 127;
    }
}

static double *oracle_linear(struct run *r, const struct linear_data *data, int part, bool quantise) {
    const struct linear_case *c = data->c;
    int64_t n_in = c->n_in, n_out = c->specs[part].n_out;
    double *want = arena_alloc(r->arena, (size_t)(c->n_row * n_out) * sizeof(double));
    double *x = arena_alloc(r->arena, (size_t)n_in * sizeof(double));
    must(want != NULL && x != NULL);
    for (int t = 0; t < c->n_row; t++) {
        for (int64_t i = 0; i < n_in; i++) x[i] = (double)data->x[t * n_in + i];
        for (int64_t i = 0; i < n_in && c->up; i++) x[i] = x[i] / (1 + exp(-x[i])) * (double)data->up[t * n_in + i];
        if (c->norm) oracle_norm(data->x + t * n_in, data->norm_weight, n_in, x);
        if (quantise) oracle_quantise(x, n_in, c->specs[part].group);
        for (int64_t o = 0; o < n_out; o++) {
            double sum = c->residual ? (double)data->residual[t * n_out + o] : 0;
            for (int64_t i = 0; i < n_in; i++) sum += x[i] * data->values[part][o * n_in + i];
            want[t * n_out + o] = sum;
        }
    }
    return want;
}

// ---- the call: rows in the given order ----

static void call_linear(struct run *r, struct device *d, const struct linear_data *data, const int *rows, int n,
                        float **got) {
    const struct linear_case *c = data->c;
    int64_t n_out = c->specs[0].n_out;
    float *x = arena_alloc(r->arena, (size_t)(n * c->n_in) * sizeof(float));
    float *residual = arena_alloc(r->arena, (size_t)(n * n_out) * sizeof(float));
    float *up = arena_alloc(r->arena, (size_t)(n * c->n_in) * sizeof(float));
    for (int t = 0; t < n; t++) {
        if (c->up) memcpy(up + t * c->n_in, data->up + rows[t] * c->n_in, (size_t)c->n_in * sizeof(float));
        memcpy(x + t * c->n_in, data->x + rows[t] * c->n_in, (size_t)c->n_in * sizeof(float));
        if (c->residual) memcpy(residual + t * n_out, data->residual + rows[t] * n_out, (size_t)n_out * sizeof(float));
    }
    struct stage s;
    stage_open(&s, r, d);
    struct weight w[MAX_PARTS];
    struct linear_args args = {.form = c->form, .n_parts = c->n_parts, .norm_eps = EPS};
    args.x = stage_tensor(&s, x, n, c->n_in, d->activation);
    if (c->up) args.up = stage_tensor(&s, up, n, c->n_in, d->activation);
    if (c->norm) args.norm_weight = stage_input(&s, data->norm_weight, (size_t)c->n_in * sizeof(float));
    for (int p = 0; p < c->n_parts; p++) {
        w[p] = stage_weight(&s, &data->w[p]);
        args.part[p].w = &w[p];
        // The residual lies in the output, as it does in a model, or apart, as behind a layer that a drafter taps.
        args.part[p].out = c->residual && n % 2 != 0 ? stage_tensor_inout(&s, residual, n, n_out, d->activation)
                                                     : stage_tensor_out(&s, n, c->specs[p].n_out, out_type(d, p));
    }
    if (c->residual)
        args.residual = n % 2 != 0 ? args.part[0].out : stage_tensor(&s, residual, n, n_out, d->activation);
    ops_of(r, d)->linear(d, &args);
    for (int p = 0; p < c->n_parts; p++) got[p] = stage_read(&s, args.part[p].out);
    stage_close(&s);
}

static const struct tolerance *tolerance_of(const struct run *r, const struct linear_case *c, int part) {
    bool is_int8 = r->subject->device->compute == COMPUTE_INT8 && c->specs[part].kind == WEIGHT_AFFINE;
    if (is_int8) return c->form == FORM_ROWS ? &int8_codes : &int8_rounding;
    return tolerance_product(r, c->form, &c->specs[part]);
}

static void compare_rows(struct run *r, struct device *d, const struct linear_data *data, const char *what,
                         const int *rows, int n, float *const *all) {
    float *got[MAX_PARTS];
    call_linear(r, d, data, rows, n, got);
    for (int p = 0; p < data->c->n_parts; p++) {
        size_t n_out = (size_t)data->c->specs[p].n_out;
        for (int t = 0; t < n; t++)
            expect_same_bits(r, what, got[p] + (size_t)t * n_out, all[p] + (size_t)rows[t] * n_out, n_out);
    }
}

static void check_independence(struct run *r, const struct linear_data *data, float *const *all) {
    int n = data->c->n_row, rows[512];
    for (int t = 0; t < n; t++) rows[t] = n - 1 - t;
    if (n > 1) compare_rows(r, r->subject->device, data, "rows in reverse", rows, n, all);
    for (int i = 0; i < 2; i++)
        if (r->subject->others[i] != NULL) compare_rows(r, r->subject->others[i], data, "other threads", rows, n, all);
    int step = n > 8 ? n / 4 : 1;
    for (int t = 0; t < n && n > 1; t += step)
        compare_rows(r, r->subject->device, data, "a row alone", &rows[t], 1, all);
    if (n > 3) compare_rows(r, r->subject->device, data, "three rows", rows, 3, all);
    bool arranged = false;
    for (int p = 0; p < data->c->n_parts; p++) arranged = arranged || is_arranged(r->subject->device, &data->w[p]);
    if (!arranged) return;
    r->arranged = true;
    compare_rows(r, r->subject->device, data, "arranged weights", rows, n, all);
    if (n > 1) compare_rows(r, r->subject->device, data, "arranged weights, a row alone", rows, 1, all);
    r->arranged = false;
}

static void linear_case(struct run *r, const struct linear_case *c) {
    char specs[64] = "";
    for (int p = 0; p < c->n_parts; p++)
        snprintf(specs + strlen(specs), sizeof specs - strlen(specs), " %s", weight_name(&c->specs[p]));
    case_begin(r, "T=%d%s %ldx%ld%s%s", c->n_row, specs, (long)c->specs[0].n_out, (long)c->n_in, c->norm ? " norm" : "",
               c->residual ? " residual" : "");
    struct linear_data data = make_data(r, c);
    int rows[512];
    for (int t = 0; t < c->n_row; t++) rows[t] = t;
    float *all[MAX_PARTS];
    call_linear(r, r->subject->device, &data, rows, c->n_row, all);
    for (int p = 0; p < c->n_parts; p++) {
        const struct tolerance *t = tolerance_of(r, c, p);
        const double *want = oracle_linear(r, &data, p, t == &int8_codes);
        expect_close(r, "outputs", all[p], want, (size_t)(c->n_row * c->specs[p].n_out), t);
    }
    if (!case_done(r)) check_independence(r, &data, all);
}

// ---- cases ----

static struct weight_spec affine(int bits, int group, enum dtype t, int64_t n_out, int64_t n_in) {
    return (struct weight_spec){WEIGHT_AFFINE, t, bits, group, n_out, n_in};
}

static struct weight_spec plain(enum dtype t, int64_t n_out, int64_t n_in) {
    return (struct weight_spec){WEIGHT_PLAIN, t, 0, 0, n_out, n_in};
}

static void one_weight(struct run *r, enum form form, int n_row, struct weight_spec spec, bool norm, bool residual) {
    if (case_done(r)) return;
    linear_case(r, &(struct linear_case){form, n_row, spec.n_in, 1, {spec}, norm, residual, false});
}

// Rows are silu(x) * up.
static void activated(struct run *r, int n_row, struct weight_spec spec, bool residual) {
    if (case_done(r)) return;
    linear_case(r, &(struct linear_case){FORM_PROMPT, n_row, spec.n_in, 1, {spec}, false, residual, true});
}

static void every_weight(struct run *r, enum form form, int n_row) {
    static const int bits[] = {4, 2, 3, 5, 6, 8}, groups[] = {32, 64, 128};
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    for (int b = 0; b < 6; b++)
        for (int g = 0; g < 3; g++)
            one_weight(r, form, n_row, affine(bits[b], groups[g], types[(b + g) % 3], 37, 256 + 128 * (g != 2)), b % 2,
                       g == 1);
    for (int t = 0; t < 3; t++) one_weight(r, form, n_row, plain(types[t], 37, 100 + 28 * t), t == 1, t == 0);
}

static void several_parts(struct run *r, enum form form, int n_row) {
    if (case_done(r)) return;
    linear_case(r, &(struct linear_case){form,
                                         n_row,
                                         256,
                                         3,
                                         {affine(4, 64, DTYPE_BF16, 100, 256), affine(8, 64, DTYPE_BF16, 50, 256),
                                          plain(DTYPE_BF16, 6, 256)},
                                         true,
                                         false,
                                         false});
    if (case_done(r)) return;
    linear_case(r, &(struct linear_case){form,
                                         n_row,
                                         128,
                                         3,
                                         {affine(4, 32, DTYPE_F16, 64, 128), affine(6, 128, DTYPE_F16, 1, 128),
                                          affine(4, 64, DTYPE_F16, 17, 128)},
                                         false,
                                         false,
                                         false});
}

// Outputs of which each processor of a large GPU has several tiles, in parts, and as few as a tile or two for each.
static void many_outputs(struct run *r, int n_row) {
    struct weight_spec spec = affine(4, 64, DTYPE_BF16, 4350, 1024), even = affine(4, 64, DTYPE_BF16, 4352, 1280);
    linear_case(r, &(struct linear_case){FORM_ROWS, n_row, 1024, 3, {spec, spec, spec}, true, false, false});
    linear_case(r, &(struct linear_case){FORM_ROWS, n_row, 1280, 3, {even, even, even}, true, false, false});
    struct weight_spec uneven = affine(4, 64, DTYPE_BF16, 4350, 1280); // is not arranged beside those that are
    linear_case(r, &(struct linear_case){FORM_ROWS, n_row, 1280, 3, {even, uneven, even}, true, false, false});
    one_weight(r, FORM_ROWS, n_row, affine(4, 64, DTYPE_BF16, 3000, 1280), false, true);
    one_weight(r, FORM_ROWS, n_row, affine(4, 64, DTYPE_BF16, 3000, 1152), false, true);
}

static void run_rows(struct run *r) {
    static const int n_rows[] = {1, 2, 3, 4, 5, 8, 16, 17, 33, 64};
    one_weight(r, FORM_ROWS, 5, affine(4, 64, DTYPE_BF16, 37, 128), true, true);
    one_weight(r, FORM_ROWS, 5, affine(4, 64, DTYPE_BF16, 40, 256), true, true);
    several_parts(r, FORM_ROWS, 5);
    if (r->hunting) return;
    every_weight(r, FORM_ROWS, 5);
    for (int i = 0; i < 10; i++) {
        one_weight(r, FORM_ROWS, n_rows[i], affine(4, 64, DTYPE_BF16, 130, 512), false, false);
        one_weight(r, FORM_ROWS, n_rows[i], affine(4, 64, DTYPE_BF16, 70, 1024 + i % 2 * 128), i % 3 == 0, i % 3 == 1);
        one_weight(r, FORM_ROWS, n_rows[i], affine(4, 64, DTYPE_BF16, 136, 256 << i % 4), i % 3 == 2, i % 3 == 0);
        one_weight(r, FORM_ROWS, n_rows[i], affine(8, 64, DTYPE_BF16, 65, 256), true, true);
        one_weight(r, FORM_ROWS, n_rows[i], affine(8, 64, DTYPE_BF16, 70, 1920 + i % 2 * 128), i % 3 == 1, i % 3 == 0);
        one_weight(r, FORM_ROWS, n_rows[i], plain(DTYPE_BF16, 65, 192), true, false);
    }
    one_weight(r, FORM_ROWS, 3, affine(4, 64, DTYPE_BF16, 700, 1024), true, true);
    // Sums that no number of workers shares evenly, and more tiles of outputs than a GPU has places.
    one_weight(r, FORM_ROWS, 20, affine(4, 64, DTYPE_BF16, 300, 2176), true, false);
    one_weight(r, FORM_ROWS, 9, affine(4, 64, DTYPE_BF16, 8800, 1024), false, true);
    for (int i = 0; i < 4 && r->subject->matrix_units; i++) many_outputs(r, (const int[]){1, 3, 7, 13}[i]);
}

// Rows that hardly fit anywhere.
static void run_wide(struct run *r) {
    one_weight(r, FORM_ROWS, 13, affine(4, 64, DTYPE_BF16, 20, 17408), false, true);
    if (r->hunting) return;
    one_weight(r, FORM_ROWS, 7, affine(4, 64, DTYPE_BF16, 20, 17408), true, false);
    if (r->subject->matrix_units) one_weight(r, FORM_ROWS, 10, affine(4, 64, DTYPE_BF16, 2200, 8448), false, true);
}

static void run_prompt(struct run *r) {
    static const int n_rows[] = {1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 200};
    one_weight(r, FORM_PROMPT, 5, affine(4, 64, DTYPE_BF16, 37, 128), true, true);
    one_weight(r, FORM_PROMPT, 5, affine(4, 64, DTYPE_BF16, 40, 256), true, true);
    activated(r, 5, affine(4, 64, DTYPE_BF16, 37, 128), true);
    several_parts(r, FORM_PROMPT, 19);
    if (r->hunting) return;
    activated(r, 130, affine(4, 64, DTYPE_BF16, 80, 640), true);
    activated(r, 66, plain(DTYPE_BF16, 35, 160), false);
    every_weight(r, FORM_PROMPT, 21);
    for (int i = 0; i < 12; i++) {
        one_weight(r, FORM_PROMPT, n_rows[i], affine(4, 64, DTYPE_BF16, 80, 256), i % 2, i % 3 == 0);
        one_weight(r, FORM_PROMPT, n_rows[i], plain(DTYPE_BF16, 35, 160), i % 3 == 1, i % 2);
    }
    one_weight(r, FORM_PROMPT, 40, affine(4, 64, DTYPE_BF16, 200, 1024), true, true);
    if (!r->subject->matrix_units) return;
    // More tiles than a GPU has processors, each with fewer steps than a pipeline is deep, or more.
    one_weight(r, FORM_PROMPT, 200, affine(4, 64, DTYPE_BF16, 8800, 128), true, false);
    one_weight(r, FORM_PROMPT, 130, affine(4, 64, DTYPE_BF16, 8800, 640), false, true);
    one_weight(r, FORM_PROMPT, 130, affine(4, 64, DTYPE_BF16, 8800, 768), false, true);
}

// ---- faults ----

static void with_weight(struct device *d, const struct linear_args *a, const struct weight *w) {
    struct linear_args b = *a;
    b.part[0].w = w;
    d->ops->linear(d, &b);
}

static void no_scale(struct device *d, const struct linear_args *a) {
    struct weight w = *a->part[0].w;
    w.scales = w.biases;
    with_weight(d, a, &w);
}

static void no_bias(struct device *d, const struct linear_args *a) {
    struct weight w = *a->part[0].w;
    w.biases = w.scales;
    with_weight(d, a, &w);
}

static void shifted_codes(struct device *d, const struct linear_args *a) {
    struct weight w = *a->part[0].w;
    w.data = (const char *)w.data + weight_row_bytes(&w);
    w.n_out--;
    with_weight(d, a, &w);
}

static void no_norm(struct device *d, const struct linear_args *a) {
    struct linear_args b = *a;
    b.norm_weight = NULL;
    d->ops->linear(d, &b);
}

static void no_up(struct device *d, const struct linear_args *a) {
    struct linear_args b = *a;
    b.up.data = NULL;
    d->ops->linear(d, &b);
}

static void no_residual(struct device *d, const struct linear_args *a) {
    struct linear_args b = *a;
    b.residual.data = NULL;
    d->ops->linear(d, &b);
}

static void stale_row(struct device *d, const struct linear_args *a) {
    d->ops->linear(d, a);
    if (a->x.n_row > 1) corrupt_copy_row(d, a->part[0].out, a->x.n_row - 1, 0);
}

static void scaled(struct device *d, const struct linear_args *a) {
    d->ops->linear(d, a);
    corrupt_scale(d, a->part[0].out, a->x.n_row - 1, a->part[0].w->n_out - 1, 1.02);
}

static void past_end(struct device *d, const struct linear_args *a) {
    d->ops->linear(d, a);
    corrupt_past_end(d, a->part[0].out);
}

static void split_by_rows(struct device *d, const struct linear_args *a) {
    d->ops->linear(d, a);
    if (a->x.n_row > 1) corrupt_last_bit(d, a->part[0].out, a->x.n_row - 1, 0);
}

static void taken_for_rows(struct device *d, const struct linear_args *a) {
    struct weight w = *a->part[0].w;
    w.arranged = false;
    with_weight(d, a, &w);
}

static void plant_scale(struct ops *o) { o->linear = no_scale; }
static void plant_bias(struct ops *o) { o->linear = no_bias; }
static void plant_shift(struct ops *o) { o->linear = shifted_codes; }
static void plant_norm(struct ops *o) { o->linear = no_norm; }
static void plant_up(struct ops *o) { o->linear = no_up; }
static void plant_residual(struct ops *o) { o->linear = no_residual; }
static void plant_stale(struct ops *o) { o->linear = stale_row; }
static void plant_scaled(struct ops *o) { o->linear = scaled; }
static void plant_end(struct ops *o) { o->linear = past_end; }
static void plant_split(struct ops *o) { o->linear = split_by_rows; }
static void plant_order(struct ops *o) { o->linear = taken_for_rows; }

static const struct fault faults[] = {
    {"missing scale", plant_scale},
    {"missing bias", plant_bias},
    {"codes of the next output", plant_shift},
    {"missing norm", plant_norm},
    {"missing residual", plant_residual},
    {"a stale row", plant_stale},
    {"one element times 1.02", plant_scaled},
    {"one past the end", plant_end},
    {"a last bit that depends on T", plant_split},
    {"rows not multiplied by up", plant_up}, // of prompts
};

const struct suite suite_linear = {
    "linear", "linear", run_rows, faults, 9, {.max_rows = 1, .max_round_rows = 64, .max_in = 2176, .max_out = 8800}};
const struct suite suite_linear_wide = {
    "linear", "linear-wide",
    run_wide, faults + 5,
    2,        {.max_rows = 1, .max_round_rows = 13, .max_in = 17408, .max_out = 2200}};
const struct suite suite_linear_prompt = {
    "prompt",   "linear-prompt",
    run_prompt, faults,
    10,         {.max_rows = 200, .max_round_rows = 1, .max_in = 1024, .max_out = 8800}};

// As a model with experts has it, where a GPU's rows have two terms. Elsewhere nothing is different.
static void run_prompt_terms(struct run *r) {
    if (r->hunting || r->subject->matrix_units) run_prompt(r);
}
const struct suite suite_linear_prompt_terms = {
    "prompt",
    "linear-prompt-experts",
    run_prompt_terms,
    faults,
    10,
    {.max_rows = 200, .max_round_rows = 1, .max_in = 1024, .max_out = 8800, .n_expert = 8}};

// Both forms of products with weights in the device's own order, as the cases of the other suites are run too.
static void run_arranged(struct run *r) {
    for (int form = 0; form < 2; form++)
        one_weight(r, form == 0 ? FORM_ROWS : FORM_PROMPT, 5, affine(4, 64, DTYPE_BF16, 40, 256), true, true);
    if (r->hunting) return;
    for (int i = 0; i < 6; i++)
        one_weight(r, FORM_ROWS, (const int[]){1, 2, 6, 12, 20, 40}[i], affine(4, 64, DTYPE_BF16, 264, 2560), i % 2,
                   true);
    one_weight(r, FORM_PROMPT, 70, affine(4, 64, DTYPE_BF16, 136, 768), true, false);
}

static const struct fault arranged_faults[] = {{"arranged weights taken for rows", plant_order}};

const struct suite suite_arranged = {
    "linear",        "arranged", run_arranged,
    arranged_faults, 1,          {.max_rows = 70, .max_round_rows = 40, .max_in = 2560, .max_out = 264}};
