// linear_swiglu: gate, up and swiglu as one operation, which gives the bits of the two; and a linear of what it has
// written, which a device may be handed beside the tensor.
#include "check/check.h"
#include <string.h>

#define EPS 1e-6f

struct gated {
    int n_row;
    int64_t n_in, width, n_out;
    float *x, *norm;
    struct weight gate, up, down;
};

struct gated_result {
    bool done;
    float *activated, *product;
};

// Rows first, first + 1, ..., of which there are n.
static struct gated_result call_block(struct run *r, const struct gated *c, bool fused, int first, int n) {
    struct device *d = r->subject->device;
    enum dtype t = d->activation;
    struct gated_result got = {.done = true};
    struct stage s;
    stage_open(&s, r, d);
    struct lane lane = {.n_row = n};
    struct batch batch = {.form = FORM_ROWS, .n_row = n, .n_lane = 1, .max_window = CHECK_WINDOW, .lanes = &lane};
    d->ops->begin(d, &batch);
    struct weight gate = stage_weight(&s, &c->gate), up = stage_weight(&s, &c->up), down = stage_weight(&s, &c->down);
    struct linear_swiglu_args a = {.linear = {.form = FORM_ROWS,
                                              .x = stage_tensor(&s, c->x + first * c->n_in, n, c->n_in, t),
                                              .norm_eps = EPS,
                                              .n_parts = 2,
                                              .part = {{&gate, stage_tensor_out(&s, n, c->width, t)},
                                                       {&up, stage_tensor_out(&s, n, c->width, t)}}}};
    if (c->norm != NULL) a.linear.norm_weight = stage_input(&s, c->norm, (size_t)c->n_in * sizeof(float));
    a.gated = (struct swiglu_args){a.linear.part[0].out, a.linear.part[1].out, a.linear.part[0].out};
    struct linear_args narrow = {
        .form = FORM_ROWS, .x = a.gated.out, .n_parts = 1, .part = {{&down, stage_tensor_out(&s, n, c->n_out, t)}}};
    if (fused) {
        got.done = ops_of(r, d)->linear_swiglu(d, &a);
    } else {
        d->ops->linear(d, &a.linear);
        d->ops->swiglu(d, &a.gated);
    }
    d->ops->linear(d, &narrow);
    got.activated = stage_read(&s, a.gated.out);
    got.product = stage_read(&s, narrow.part[0].out);
    stage_close(&s);
    return got;
}

// linear and swiglu are held to their oracles elsewhere.
static void gated_case(struct run *r, int n_row, int64_t n_in, int64_t width, bool norm) {
    if (case_done(r)) return;
    case_begin(r, "T=%d %ldx%ld%s", n_row, (long)width, (long)n_in, norm ? ", normed" : "");
    struct gated c = {.n_row = n_row, .n_in = n_in, .width = width, .n_out = 50};
    struct weight_spec wide = {WEIGHT_AFFINE, DTYPE_BF16, 4, 64, width, n_in}, narrow = wide;
    narrow.n_out = c.n_out;
    narrow.n_in = width;
    double *values;
    c.x = values_normal(r, 701, (size_t)(n_row * n_in), 1, r->subject->device->activation);
    if (norm) c.norm = values_normal(r, 702, (size_t)n_in, 1, DTYPE_F32);
    c.gate = values_weight(r, 703, &wide, &values);
    c.up = values_weight(r, 704, &wide, &values);
    c.down = values_weight(r, 705, &narrow, &values);
    struct gated_result all = call_block(r, &c, true, 0, n_row), two = call_block(r, &c, false, 0, n_row);
    expect(r, all.done, "it was not done");
    if (!all.done) return;
    expect_same_bits(r, "linear and swiglu", all.activated, two.activated, (size_t)(n_row * width));
    expect_same_bits(r, "the linear behind them", all.product, two.product, (size_t)(n_row * c.n_out));
    if (r->subject->device->arrange != NULL) {
        r->arranged = true;
        struct gated_result of = call_block(r, &c, true, 0, n_row);
        expect_same_bits(r, "of arranged weights", of.activated, all.activated, (size_t)(n_row * width));
        expect_same_bits(r, "the linear of arranged weights", of.product, all.product, (size_t)(n_row * c.n_out));
        r->arranged = false;
    }
    for (int i = 0; i < n_row && n_row > 1; i++) {
        struct gated_result one = call_block(r, &c, true, i, 1);
        expect_same_bits(r, "a row alone", one.activated, all.activated + i * width, (size_t)width);
        expect_same_bits(r, "the product of a row alone", one.product, all.product + i * c.n_out, (size_t)c.n_out);
    }
}

static void run_gated(struct run *r) {
    gated_case(r, 9, 1024, 256, true);
    if (r->hunting) return;
    static const int n_rows[] = {1, 1, 9, 12, 16};
    for (int i = 0; i < 5; i++) gated_case(r, n_rows[i], 1152, 384, i % 2 == 0);
    if (!r->subject->matrix_units) return;
    gated_case(r, 16, 2048, 8192, true); // blocks with several tiles each
    gated_case(r, 1, 1024, 8192, false);
    gated_case(r, 9, 1024, 6144, true);
    static const int few[] = {2, 4, 5, 8};
    for (int i = 0; i < 4; i++) gated_case(r, few[i], 1152, 4224, i % 2 == 0);
    for (int i = 0; i < 4; i++) gated_case(r, few[i], 1280, 4352, i % 2 == 0);
}

static bool swapped(struct device *d, const struct linear_swiglu_args *a) {
    struct linear_swiglu_args b = *a;
    b.linear.part[0] = a->linear.part[1];
    b.linear.part[1] = a->linear.part[0];
    return d->ops->linear_swiglu(d, &b);
}
static bool last_bit(struct device *d, const struct linear_swiglu_args *a) {
    bool done = d->ops->linear_swiglu(d, a);
    if (a->gated.out.n_row > 1) corrupt_last_bit(d, a->gated.out, a->gated.out.n_row - 1, 3);
    return done;
}
static bool past_end(struct device *d, const struct linear_swiglu_args *a) {
    bool done = d->ops->linear_swiglu(d, a);
    corrupt_past_end(d, a->gated.out);
    return done;
}

static void plant_swapped(struct ops *o) { o->linear_swiglu = swapped; }
static void plant_bit(struct ops *o) { o->linear_swiglu = last_bit; }
static void plant_end(struct ops *o) { o->linear_swiglu = past_end; }

static const struct fault faults[] = {
    {"gate and up swapped", plant_swapped},
    {"a last bit that depends on T", plant_bit},
    {"one past the end", plant_end},
};

const struct suite suite_gated = {
    "linear",
    "linear_swiglu",
    run_gated,
    faults,
    3,
    {.max_rows = 1, .max_round_rows = 16, .max_in = 8192, .max_out = 8192, .max_lanes = 8, .max_window = CHECK_WINDOW}};
