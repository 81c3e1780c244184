// A mixer's output, gate and up with their activation, down, and what the next mixer begins with, one behind another as
// in a model, with copies of what they read and write: a device may put products aside and make several of them one
// launch. Each has the bits that it has when the device is waited for behind every operation, and a row those that it
// has alone.
#include "check/check.h"
#include <string.h>

#define EPS     1e-6f
#define N_TAIL  3
#define N_TAKEN 7 // tensors whose bits are compared

struct series {
    int64_t n_mixed, n_hidden, width, tail[N_TAIL];
    float *mixed, *stream, *norms[2];
    struct weight out, gate, up, down, next[N_TAIL];
    bool swiglu; // gate, up and activation as one operation
    bool copied; // a copy stands before the last product, not behind it
};

struct series_result {
    float *of[N_TAKEN];
    int64_t n_col[N_TAKEN];
};

static void copy_rows(struct device *d, struct tensor to, struct tensor from) {
    size_t size = from.dtype == DTYPE_F32 ? 4 : 2;
    for (int64_t i = 0; i < from.n_row; i++)
        d->copy(d, (char *)to.data + (size_t)(i * to.stride) * size,
                (const char *)from.data + (size_t)(i * from.stride) * size, (size_t)from.n_col * size);
}

static void pause(struct run *r, struct device *d, bool waited) {
    struct error e;
    if (waited) expect(r, d->sync(d, &e) == STATUS_OK, "the device failed");
}

// Rows first, first + 1, ..., of which there are n.
static struct series_result call_series(struct run *r, const struct series *c, bool waited, int first, int n) {
    struct device *d = r->subject->device;
    const struct ops *ops = ops_of(r, d);
    enum dtype t = d->activation;
    struct stage s;
    stage_open(&s, r, d);
    struct lane lane = {.n_row = n};
    struct batch batch = {.form = FORM_ROWS, .n_row = n, .n_lane = 1, .max_window = CHECK_WINDOW, .lanes = &lane};
    d->ops->begin(d, &batch);
    struct weight out = stage_weight(&s, &c->out), gate = stage_weight(&s, &c->gate), up = stage_weight(&s, &c->up),
                  down = stage_weight(&s, &c->down), next[N_TAIL];
    for (int p = 0; p < N_TAIL; p++) next[p] = stage_weight(&s, &c->next[p]);
    const float *post_norm = stage_input(&s, c->norms[0], (size_t)c->n_hidden * sizeof(float)),
                *input_norm = stage_input(&s, c->norms[1], (size_t)c->n_hidden * sizeof(float));
    struct tensor mixed = stage_tensor(&s, c->mixed + first * c->n_mixed, n, c->n_mixed, t),
                  x = stage_tensor_inout(&s, c->stream + first * c->n_hidden, n, c->n_hidden, t),
                  after = stage_tensor_out(&s, n, c->n_hidden, t), wide = stage_tensor_out(&s, n, c->width, t),
                  other = stage_tensor_out(&s, n, c->width, t), before = stage_tensor_out(&s, n, c->n_hidden, t),
                  copied = stage_tensor_out(&s, n, c->n_hidden, t);
    struct linear_args mix = {.form = FORM_ROWS, .x = mixed, .n_parts = 1, .part = {{&out, x}}, .residual = x};
    struct linear_swiglu_args both = {.linear = {.form = FORM_ROWS,
                                                 .x = x,
                                                 .norm_weight = post_norm,
                                                 .norm_eps = EPS,
                                                 .n_parts = 2,
                                                 .part = {{&gate, wide}, {&up, other}}},
                                      .gated = {wide, other, wide}};
    struct linear_args narrow = {.form = FORM_ROWS, .x = wide, .n_parts = 1, .part = {{&down, after}}, .residual = x};
    struct linear_args tail = {
        .form = FORM_ROWS, .x = after, .norm_weight = input_norm, .norm_eps = EPS, .n_parts = N_TAIL};
    for (int p = 0; p < N_TAIL; p++) {
        tail.part[p].w = &next[p];
        tail.part[p].out = stage_tensor_out(&s, n, c->tail[p], t);
    }
    copy_rows(d, before, x);
    ops->linear(d, &mix);
    pause(r, d, waited);
    if (!c->swiglu || ops->linear_swiglu == NULL || !ops->linear_swiglu(d, &both)) {
        ops->linear(d, &both.linear);
        pause(r, d, waited);
        ops->swiglu(d, &both.gated);
    }
    pause(r, d, waited);
    ops->linear(d, &narrow);
    pause(r, d, waited);
    if (c->copied) copy_rows(d, copied, after);
    ops->linear(d, &tail);
    if (!c->copied) copy_rows(d, copied, after);
    struct series_result got;
    struct tensor taken[N_TAKEN] = {before, x, after, copied};
    for (int p = 0; p < N_TAIL; p++) taken[4 + p] = tail.part[p].out;
    for (int i = 0; i < N_TAKEN; i++) {
        got.of[i] = stage_read(&s, taken[i]);
        got.n_col[i] = taken[i].n_col;
    }
    stage_close(&s);
    return got;
}

static struct weight weight_of(struct run *r, uint64_t seed, int bits, int64_t n_out, int64_t n_in) {
    struct weight_spec spec = {WEIGHT_AFFINE, DTYPE_BF16, bits, 64, n_out, n_in};
    double *values;
    return values_weight(r, seed, &spec, &values);
}

// bits: of up, and of the second of the last product. Others than 4 are no kind that is put aside.
struct shape {
    int64_t n_mixed, n_hidden, width;
    int bits;
};

// The operations alone are held to their oracles elsewhere. All rows together and in part, and each alone.
static void series_case(struct run *r, struct shape of, const int *n_rows, int n) {
    static const char *const names[N_TAKEN] = {
        "the copy of a stream",          "the stream behind a mixer", "the stream behind down", "its copy",
        "the first of the last product", "the second of it",          "the third of it"};
    if (case_done(r)) return;
    case_begin(r, "T=%d..%d %ld-%ld-%ld, %d bits", n_rows[0], n_rows[n - 1], (long)of.n_mixed, (long)of.n_hidden,
               (long)of.width, of.bits);
    struct series c = {.n_mixed = of.n_mixed,
                       .n_hidden = of.n_hidden,
                       .width = of.width,
                       .tail = {of.n_hidden, 2 * of.n_hidden - 40, 24}};
    enum dtype t = r->subject->device->activation;
    size_t most = (size_t)n_rows[n - 1];
    c.mixed = values_normal(r, 801, most * (size_t)of.n_mixed, 1, t);
    c.stream = values_normal(r, 802, most * (size_t)of.n_hidden, 1, t);
    for (int i = 0; i < 2; i++) c.norms[i] = values_normal(r, 803 + (uint64_t)i, (size_t)of.n_hidden, 1, DTYPE_F32);
    c.out = weight_of(r, 805, 4, of.n_hidden, of.n_mixed);
    c.gate = weight_of(r, 806, 4, of.width, of.n_hidden);
    c.up = weight_of(r, 807, of.bits, of.width, of.n_hidden);
    c.down = weight_of(r, 808, 4, of.n_hidden, of.width);
    for (int p = 0; p < N_TAIL; p++)
        c.next[p] = weight_of(r, 809 + (uint64_t)p, p == 1 ? of.bits : 4, c.tail[p], of.n_hidden);
    for (int i = 0; i < n; i++) {
        if (!case_is_mine(r)) continue;
        c.swiglu = n_rows[i] % 4 != 0;
        c.copied = n_rows[i] % 2 != 0;
        struct series_result all = call_series(r, &c, false, 0, n_rows[i]);
        struct series_result apart = call_series(r, &c, true, 0, n_rows[i]);
        for (int k = 0; k < N_TAKEN; k++)
            expect_same_bits(r, names[k], all.of[k], apart.of[k], (size_t)(n_rows[i] * all.n_col[k]));
        if (r->subject->device->arrange != NULL) {
            r->arranged = true;
            struct series_result other = call_series(r, &c, false, 0, n_rows[i]);
            r->arranged = false;
            for (int k = 0; k < N_TAKEN; k++)
                expect_same_bits(r, names[k], other.of[k], all.of[k], (size_t)(n_rows[i] * all.n_col[k]));
        }
        for (int row = 0; row < n_rows[i] && n_rows[i] > 1 && i + 1 >= n - 1; row++) {
            struct series_result one = call_series(r, &c, false, row, 1);
            for (int k = 0; k < N_TAKEN; k++)
                expect_same_bits(r, names[k], one.of[k], all.of[k] + row * all.n_col[k], (size_t)all.n_col[k]);
        }
        if (i == 0) continue;
        struct series_result fewer = call_series(r, &c, false, 0, n_rows[i - 1]);
        for (int k = 0; k < N_TAKEN; k++)
            expect_same_bits(r, names[k], fewer.of[k], all.of[k], (size_t)(n_rows[i - 1] * all.n_col[k]));
    }
}

static void run_series(struct run *r) {
    static const int n_rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16};
    static const struct shape small = {128, 256, 384, 4}, large = {1152, 2304, 4480, 4};
    static const struct shape small_mixed = {128, 256, 384, 5}, large_mixed = {1152, 2304, 4480, 5};
    bool units = r->subject->matrix_units;
    if (r->hunting) {
        series_case(r, units ? large : small, n_rows + 1, 2);
        return;
    }
    series_case(r, units ? large : small, n_rows, 10);
    series_case(r, units ? large_mixed : small_mixed, n_rows + 1, 7);
    if (!units) return;
    series_case(r, (struct shape){3072, 2560, 8704, 4}, n_rows, 10); // teams with several tiles each
    series_case(r, (struct shape){1024, 1024, 4224, 4}, n_rows, 10); // some products are none of a series
}

static void last_bit(struct device *d, const struct linear_args *a) {
    d->ops->linear(d, a);
    if (a->x.n_row > 1) corrupt_last_bit(d, a->part[0].out, a->x.n_row - 1, 3);
}
static void past_end(struct device *d, const struct linear_args *a) {
    d->ops->linear(d, a);
    corrupt_past_end(d, a->part[0].out);
}

static void plant_bit(struct ops *o) { o->linear = last_bit; }
static void plant_end(struct ops *o) { o->linear = past_end; }

static const struct fault faults[] = {
    {"a last bit that depends on T", plant_bit},
    {"one past the end", plant_end},
};

const struct suite suite_series = {
    "linear",
    "series",
    run_series,
    faults,
    2,
    {.max_rows = 1, .max_round_rows = 16, .max_in = 8704, .max_out = 8704, .max_lanes = 8, .max_window = CHECK_WINDOW}};
