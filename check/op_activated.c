// A linear of what swiglu, norm or block_conv has just written, in rounds: a device may hand rows over beside it, in
// whatever form suits it. Their products have the bits of products of the tensor alone, and what is written over the
// tensor in between is what counts.
#include "check/check.h"
#include <math.h>
#include <string.h>

#define GROUP 16 // of block_conv

enum writer {
    BY_SWIGLU,
    BY_CONV, // of one tap, so that a row is what it is alone
    BY_NORM,
};
static const char *const writers[] = {"", ", convolved", ", normed"};

struct activated {
    int n_row;
    enum writer writer;
    float *base, *dyn; // of block_conv; base also weighs a norm
    int64_t width, n_out;
    float *gate, *up, *other; // other: rows that stand in the tensor in the end, or NULL
    struct weight w;
    double *values;
};

// What is done between the two operations.
enum between { NOTHING, COPIED_OVER, ACTIVATED_AGAIN, OTHER_ROWS };

static void begin_round(struct device *d, const struct ops *ops, int n_row, struct lane *lane, struct batch *batch) {
    memset(lane, 0, sizeof *lane);
    lane->n_row = n_row;
    *batch = (struct batch){.form = FORM_ROWS, .n_row = n_row, .n_lane = 1, .max_window = CHECK_WINDOW, .lanes = lane};
    ops->begin(d, batch);
}

// out: rows of gate and up, or convolved or normed rows of up.
static void write_rows(struct stage *s, const struct activated *c, const struct batch *batch, int first,
                       struct tensor gate, struct tensor up, struct tensor out) {
    struct device *d = s->device;
    if (c->writer == BY_SWIGLU) {
        ops_of(s->run, d)->swiglu(d, &(struct swiglu_args){gate, up, out});
        return;
    }
    const float *base = stage_input(s, c->base, (size_t)c->width * sizeof(float));
    if (c->writer == BY_NORM) {
        ops_of(s->run, d)->norm(d, &(struct norm_args){up, out, base, 1e-6f});
        return;
    }
    int64_t n_dyn = c->width / GROUP;
    struct block_conv_args conv = {.batch = batch,
                                   .x = up,
                                   .base = base,
                                   .dyn = stage_tensor(s, c->dyn + first * n_dyn, (int)up.n_row, n_dyn, DTYPE_F32),
                                   .n_tap = 1,
                                   .group = GROUP,
                                   .out = out};
    ops_of(s->run, d)->block_conv(d, &conv);
}

// The products of rows first, first + 1, ..., of which there are n.
static float *call_both(struct run *r, const struct activated *c, int first, int n, enum between between) {
    struct device *d = r->subject->device;
    const struct ops *ops = ops_of(r, d);
    int64_t at = first * c->width;
    struct stage s;
    struct lane lane;
    struct batch batch;
    stage_open(&s, r, d);
    begin_round(d, ops, n, &lane, &batch);
    struct tensor gate = stage_tensor_inout(&s, c->gate + at, n, c->width, d->activation);
    struct tensor up = stage_tensor(&s, c->up + at, n, c->width, d->activation);
    struct tensor other = stage_tensor(&s, c->other + at, n, c->width, d->activation);
    struct tensor spare = stage_tensor_out(&s, n, c->width, d->activation);
    struct weight w = stage_weight(&s, &c->w);
    struct linear_args product = {
        .form = FORM_ROWS, .x = gate, .n_parts = 1, .part = {{&w, stage_tensor_out(&s, n, c->n_out, d->activation)}}};
    if (between == OTHER_ROWS) product.x = other;
    write_rows(&s, c, &batch, first, gate, up, gate);
    size_t bytes = (size_t)((n - 1) * gate.stride + c->width) * dtype_bytes(gate.dtype);
    if (between == COPIED_OVER) d->copy(d, gate.data, other.data, bytes);
    if (between == ACTIVATED_AGAIN) write_rows(&s, c, &batch, first, other, other, spare);
    ops->linear(d, &product);
    float *got = stage_read(&s, product.part[0].out);
    stage_close(&s);
    return got;
}

// The same rows as a tensor that nobody has activated.
static float *call_alone(struct run *r, const struct activated *c, const float *rows) {
    struct device *d = r->subject->device;
    struct stage s;
    stage_open(&s, r, d);
    struct weight w = stage_weight(&s, &c->w);
    struct linear_args product = {.form = FORM_ROWS,
                                  .x = stage_tensor(&s, rows, c->n_row, c->width, d->activation),
                                  .n_parts = 1,
                                  .part = {{&w, stage_tensor_out(&s, c->n_row, c->n_out, d->activation)}}};
    ops_of(r, d)->linear(d, &product);
    float *got = stage_read(&s, product.part[0].out);
    stage_close(&s);
    return got;
}

static float *activated_rows(struct run *r, const struct activated *c) {
    struct device *d = r->subject->device;
    struct stage s;
    struct lane lane;
    struct batch batch;
    stage_open(&s, r, d);
    begin_round(d, d->ops, c->n_row, &lane, &batch);
    struct tensor gate = stage_tensor(&s, c->gate, c->n_row, c->width, d->activation);
    struct tensor up = stage_tensor(&s, c->up, c->n_row, c->width, d->activation);
    struct tensor out = stage_tensor_out(&s, c->n_row, c->width, d->activation);
    write_rows(&s, c, &batch, 0, gate, up, out);
    float *got = stage_read(&s, out);
    stage_close(&s);
    return got;
}

static void activated_case(struct run *r, int n_row, enum writer writer, const struct weight_spec *spec) {
    if (case_done(r) || (writer == BY_CONV && r->subject->device->ops->block_conv == NULL)) return;
    case_begin(r, "T=%d %s %ldx%ld%s", n_row, weight_name(spec), (long)spec->n_out, (long)spec->n_in, writers[writer]);
    enum dtype t = r->subject->device->activation;
    size_t n = (size_t)(n_row * spec->n_in), n_out = (size_t)(n_row * spec->n_out);
    struct activated c = {.n_row = n_row, .writer = writer, .width = spec->n_in, .n_out = spec->n_out};
    c.gate = values_normal(r, 61, n, 1, t);
    c.up = values_normal(r, 62, n, 1, t);
    c.other = values_normal(r, 63, n, 1, t);
    c.base = values_normal(r, 65, (size_t)spec->n_in, 1, DTYPE_F32);
    c.dyn = values_normal(r, 66, n / GROUP, 1, DTYPE_F32);
    c.w = values_weight(r, 64, spec, &c.values);
    float *all = call_both(r, &c, 0, n_row, NOTHING), *other = call_alone(r, &c, c.other);
    expect_same_bits(r, "rows handed over", all, call_alone(r, &c, activated_rows(r, &c)), n_out);
    expect_same_bits(r, "another tensor is multiplied", call_both(r, &c, 0, n_row, OTHER_ROWS), other, n_out);
    expect_same_bits(r, "copied over", call_both(r, &c, 0, n_row, COPIED_OVER), other, n_out);
    expect_same_bits(r, "another activation in between", call_both(r, &c, 0, n_row, ACTIVATED_AGAIN), all, n_out);
    for (int i = 0; i < n_row && n_row > 1; i++)
        expect_same_bits(r, "a row alone", call_both(r, &c, i, 1, NOTHING), all + i * spec->n_out, (size_t)spec->n_out);
}

static void run_activated(struct run *r) {
    static const int n_rows[] = {3, 1, 2, 5, 16, 33};
    for (int i = 0; i < 6; i++) {
        if (r->hunting && i > 0) return;
        struct weight_spec usual = {WEIGHT_AFFINE, DTYPE_BF16, 4, 64, 70, 384};
        activated_case(r, n_rows[i], BY_SWIGLU, &usual);
        activated_case(r, n_rows[i], BY_CONV, &usual);
        struct weight_spec other = {WEIGHT_AFFINE, DTYPE_BF16, 8, 64, 33, 256};
        activated_case(r, n_rows[i], i % 2 == 0 ? BY_CONV : BY_SWIGLU, &other);
        usual.n_in = 256;
        activated_case(r, n_rows[i], BY_NORM, i % 2 == 0 ? &usual : &other);
    }
}

// As if rows were handed over however the tensor has changed.
static void stale(struct device *d, const struct linear_args *a) {
    struct linear_args b = *a;
    if (b.x.n_row > 1) b.x = tensor_rows(b.x, 1, b.x.n_row - 1), b.part[0].out.n_row--;
    d->ops->linear(d, &b);
}
static void last_bit(struct device *d, const struct linear_args *a) {
    d->ops->linear(d, a);
    if (a->x.n_row > 1) corrupt_last_bit(d, a->part[0].out, a->x.n_row - 1, 0);
}
static void plant_stale(struct ops *o) { o->linear = stale; }
static void plant_last_bit(struct ops *o) { o->linear = last_bit; }

static const struct fault faults[] = {
    {"rows of another place", plant_stale},
    {"a last bit that depends on T", plant_last_bit},
};

const struct suite suite_activated = {
    "linear",
    "swiglu-linear",
    run_activated,
    faults,
    2,
    {.max_rows = 1, .max_round_rows = 64, .max_in = 384, .max_out = 70, .max_lanes = 8, .max_window = CHECK_WINDOW}};
