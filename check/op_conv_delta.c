// conv_delta: the convolution and the delta rule as one operation, which gives the bits of the two; and a linear of
// what they have written, which a device may be handed beside the tensor.
#include "check/delta.h"
#include <string.h>

#define MAX_LANES 3
#define N_TAP     4
#define RING_ROWS (DELTA_WINDOW + N_TAP - 1)
#define PRODUCTS  40 // outputs of the linear

struct pair_lane {
    int32_t position, n_pending, n_row;
};

struct pair_case {
    struct delta_shape shape;
    int n_lane;
    struct pair_lane lanes[MAX_LANES];
};

struct pair_data {
    const struct pair_case *c;
    struct delta_data lanes[MAX_LANES]; // c is what goes into the convolution
    float *runs[MAX_LANES], *weight;
    struct weight product;
};

struct pair_result {
    bool done;
    float *out[MAX_LANES], *product[MAX_LANES], *run[MAX_LANES];
};

// A lane run in floats: as the delta rule's, and the ring behind it.
static int64_t run_size(const struct delta_shape *s) { return delta_run_size(s) + RING_ROWS * delta_channels(s); }

static struct pair_data make_data(struct run *r, const struct pair_case *c) {
    struct pair_data data = {.c = c};
    int64_t width = c->shape.n_value_head * c->shape.value_dim;
    struct weight_spec product = {WEIGHT_AFFINE, DTYPE_BF16, 4, 64, PRODUCTS, width};
    double *values;
    data.weight = values_normal(r, 601, (size_t)(delta_channels(&c->shape) * N_TAP), 0.5, DTYPE_F32);
    data.product = values_weight(r, 600, &product, &values);
    for (int i = 0; i < c->n_lane; i++) {
        data.lanes[i] = delta_make(r, 610 + 20 * (uint64_t)i, &c->shape, c->lanes[i].n_row, false);
        data.lanes[i].neg_a = data.lanes[0].neg_a;
        data.lanes[i].dt_bias = data.lanes[0].dt_bias;
        data.lanes[i].out_norm = data.lanes[0].out_norm;
        data.runs[i] = values_normal(r, 602 + (uint64_t)i, (size_t)run_size(&c->shape), 0.2, DTYPE_F32);
    }
    return data;
}

static struct tensor rows_of(struct run *r, struct stage *s, const struct pair_data *data, const int *order, int n,
                             int which, int64_t width) {
    int64_t n_row = 0;
    for (int i = 0; i < n; i++) n_row += data->c->lanes[order[i]].n_row;
    float *rows = arena_alloc(r->arena, (size_t)(n_row * width) * sizeof(float)), *to = rows;
    must(rows != NULL);
    for (int i = 0; i < n; i++) {
        const struct delta_data *d = &data->lanes[order[i]];
        const float *const from[] = {d->c, d->a, d->b, d->z};
        memcpy(to, from[which], (size_t)(d->n_row * width) * sizeof(float));
        to += d->n_row * width;
    }
    return stage_tensor(s, rows, n_row, width, r->subject->device->activation);
}

static struct batch batch_of(struct run *r, struct stage *s, const struct pair_data *data, const int *order, int n,
                             struct lane *lanes) {
    struct batch b = {.form = FORM_ROWS, .n_lane = n, .max_window = DELTA_WINDOW, .lanes = lanes};
    size_t floats = (size_t)run_size(&data->c->shape);
    unsigned char *all = arena_alloc(r->arena, floats * sizeof(float));
    must(all != NULL);
    memset(all, 1, floats * sizeof(float));
    for (int i = 0; i < n; i++) {
        const struct pair_lane *l = &data->c->lanes[order[i]];
        lanes[i] = (struct lane){.row0 = b.n_row,
                                 .n_row = l->n_row,
                                 .position = l->position,
                                 .n_pending = l->n_pending,
                                 .run = stage_inout(s, data->runs[order[i]], floats * sizeof(float), all)};
        b.n_row += l->n_row;
    }
    return b;
}

static struct pair_result call(struct run *r, const struct pair_data *data, bool fused, const int *order, int n) {
    const struct delta_shape *shape = &data->c->shape;
    struct device *d = r->subject->device;
    int64_t channels = delta_channels(shape), heads = shape->n_value_head, width = heads * shape->value_dim;
    struct pair_result got = {.done = true};
    struct lane lanes[MAX_LANES];
    struct stage s;
    stage_open(&s, r, d);
    struct batch batch = batch_of(r, &s, data, order, n, lanes);
    struct conv_delta_args a = {.delta = delta_open(&s, &data->lanes[0])};
    a.conv = (struct conv_args){.batch = &batch,
                                .m = rows_of(r, &s, data, order, n, 0, channels),
                                .weight = stage_input(&s, data->weight, (size_t)(channels * N_TAP) * sizeof(float)),
                                .n_tap = N_TAP,
                                .ring_rows = RING_ROWS,
                                .ring_offset = delta_run_size(shape) * (int64_t)sizeof(float),
                                .out = stage_tensor_out(&s, batch.n_row, channels, d->activation)};
    a.delta.batch = &batch;
    a.delta.c = a.conv.out;
    a.delta.a = rows_of(r, &s, data, order, n, 1, heads);
    a.delta.b = rows_of(r, &s, data, order, n, 2, heads);
    a.delta.z = rows_of(r, &s, data, order, n, 3, width);
    a.delta.out = stage_tensor_out(&s, batch.n_row, width, d->activation);
    struct weight w = stage_weight(&s, &data->product);
    struct linear_args product = {.form = FORM_ROWS,
                                  .x = a.delta.out,
                                  .n_parts = 1,
                                  .part = {{&w, stage_tensor_out(&s, batch.n_row, PRODUCTS, d->activation)}}};
    ops_of(r, d)->begin(d, &batch);
    if (fused) {
        got.done = ops_of(r, d)->conv_delta(d, &a);
    } else {
        d->ops->conv(d, &a.conv);
        d->ops->delta(d, &a.delta);
    }
    d->ops->linear(d, &product);
    float *out = stage_read(&s, a.delta.out), *products = stage_read(&s, product.part[0].out);
    for (int i = 0; i < n; i++) {
        size_t bytes = (size_t)run_size(shape) * sizeof(float);
        got.out[order[i]] = out + lanes[i].row0 * width;
        got.product[order[i]] = products + lanes[i].row0 * PRODUCTS;
        got.run[order[i]] = arena_alloc(r->arena, bytes);
        must(got.run[order[i]] != NULL);
        stage_read_bytes(&s, lanes[i].run, got.run[order[i]], bytes);
    }
    stage_close(&s);
    return got;
}

// The products of outputs that stand in a tensor that nobody has written on the device.
static float *products_alone(struct run *r, const struct pair_data *data, const float *out, int n_row) {
    struct device *d = r->subject->device;
    struct stage s;
    stage_open(&s, r, d);
    struct weight w = stage_weight(&s, &data->product);
    struct linear_args product = {.form = FORM_ROWS,
                                  .x = stage_tensor(&s, out, n_row, w.n_in, d->activation),
                                  .n_parts = 1,
                                  .part = {{&w, stage_tensor_out(&s, n_row, PRODUCTS, d->activation)}}};
    d->ops->linear(d, &product);
    float *got = stage_read(&s, product.part[0].out);
    stage_close(&s);
    return got;
}

static void compare(struct run *r, const char *what, const struct pair_data *data, bool fused, const int *order, int n,
                    const struct pair_result *all) {
    const struct delta_shape *s = &data->c->shape;
    struct pair_result got = call(r, data, fused, order, n);
    for (int i = 0; i < n; i++) {
        int lane = order[i];
        int n_row = data->c->lanes[lane].n_row;
        expect_same_bits(r, what, got.out[lane], all->out[lane], (size_t)(n_row * s->n_value_head * s->value_dim));
        expect_same_bits(r, what, got.product[lane], all->product[lane], (size_t)(n_row * PRODUCTS));
        expect_same_bits(r, what, got.run[lane], all->run[lane], (size_t)run_size(s));
    }
}

// conv and delta are held to their oracles elsewhere.
static void pair_case(struct run *r, const struct pair_case *c) {
    static const int forwards[] = {0, 1, 2};
    if (case_done(r)) return;
    const struct delta_shape *s = &c->shape;
    case_begin(r, "%d key heads of %d, %d value heads of %d, %d lanes", s->n_key_head, s->key_dim, s->n_value_head,
               s->value_dim, c->n_lane);
    struct pair_data data = make_data(r, c);
    struct pair_result all = call(r, &data, true, forwards, c->n_lane);
    expect(r, all.done, "it was not done");
    if (!all.done) return;
    for (int i = 0; i < c->n_lane; i++)
        expect_same_bits(r, "products of outputs", all.product[i],
                         products_alone(r, &data, all.out[i], c->lanes[i].n_row),
                         (size_t)(c->lanes[i].n_row * PRODUCTS));
    compare(r, "conv and delta", &data, false, forwards, c->n_lane, &all);
    for (int i = 0; i < c->n_lane && c->n_lane > 1; i++) compare(r, "a lane alone", &data, true, &forwards[i], 1, &all);
}

static void run_pair(struct run *r) {
    pair_case(r, &(struct pair_case){{1, 2, 64, 64, false}, 2, {{5, 1, 1}, {0, 0, 2}}});
    pair_case(r, &(struct pair_case){{2, 4, 128, 128, false}, 3, {{100, 3, 8}, {2, 0, 1}, {17, 8, 4}}});
    if (r->hunting) return;
    pair_case(r, &(struct pair_case){{2, 2, 48, 32, true}, 1, {{1, 1, 3}}});
    pair_case(r, &(struct pair_case){{1, 2, 128, 128, false}, 2, {{300, 16, 16}, {20, 9, 11}}});
    // More heads than a device has processors in all lanes, fewer in one.
    pair_case(r, &(struct pair_case){{9, 36, 128, 128, true}, 3, {{40, 2, 3}, {0, 0, 1}, {16, 16, 9}}});
}

static bool next_weights(struct device *d, const struct conv_delta_args *a) {
    struct conv_delta_args b = *a;
    b.conv.weight = a->conv.weight + N_TAP;
    return d->ops->conv_delta(d, &b);
}
static bool next_in_ring(struct device *d, const struct conv_delta_args *a) {
    struct conv_delta_args b = *a;
    b.conv.ring_offset += (int64_t)sizeof(float);
    return d->ops->conv_delta(d, &b);
}
static bool forgets_pending(struct device *d, const struct conv_delta_args *a) {
    struct lane lanes[MAX_LANES];
    struct batch batch = *a->delta.batch;
    struct conv_delta_args b = *a;
    memcpy(lanes, batch.lanes, (size_t)batch.n_lane * sizeof *lanes);
    lanes[0].n_pending = 0;
    batch.lanes = lanes;
    b.conv.batch = b.delta.batch = &batch;
    d->ops->begin(d, &batch);
    bool done = d->ops->conv_delta(d, &b);
    struct error e;
    must(d->sync(d, &e) == STATUS_OK);
    return done;
}
static bool last_bit(struct device *d, const struct conv_delta_args *a) {
    bool done = d->ops->conv_delta(d, a);
    corrupt_last_bit(d, a->delta.out, a->delta.out.n_row - 1, 3);
    return done;
}
static bool past_end(struct device *d, const struct conv_delta_args *a) {
    bool done = d->ops->conv_delta(d, a);
    corrupt_past_end(d, a->delta.out);
    return done;
}

static void plant_weight(struct ops *o) { o->conv_delta = next_weights; }
static void plant_ring(struct ops *o) { o->conv_delta = next_in_ring; }
static void plant_pending(struct ops *o) { o->conv_delta = forgets_pending; }
static void plant_bit(struct ops *o) { o->conv_delta = last_bit; }
static void plant_end(struct ops *o) { o->conv_delta = past_end; }

static const struct fault faults[] = {
    {"weights of other channels", plant_weight},
    {"the ring of the next channel", plant_ring},
    {"the log not folded in", plant_pending},
    {"one bit", plant_bit},
    {"one past the end", plant_end},
};

const struct suite suite_conv_delta = {"delta",
                                       "conv_delta",
                                       run_pair,
                                       faults,
                                       5,
                                       {.max_round_rows = 32,
                                        .max_in = 36 * 128,
                                        .max_out = PRODUCTS,
                                        .key_dim = 128,
                                        .value_dim = 128,
                                        .n_key_head = 9,
                                        .n_value_head = 36,
                                        .max_lanes = MAX_LANES,
                                        .max_window = DELTA_WINDOW}};
