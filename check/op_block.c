// The operations of block drafters: the convolution within a block, and attention to a block and a window before it.
#include "check/kv.h"
#include <math.h>
#include <string.h>

// ---- block_conv ----

#define MAX_LANES 3

struct conv_case {
    int n_channel, group, n_tap, n_lane, n_row[MAX_LANES];
    bool has_residual, is_normed;
};

struct conv_data {
    const struct conv_case *c;
    int64_t n_row, row0[MAX_LANES], n_dyn;
    float *x, *base, *dyn, *residual, *weight;
};

static struct conv_data make_conv(struct run *r, const struct conv_case *c) {
    enum dtype activation = r->subject->device->activation;
    struct conv_data data = {.c = c, .n_dyn = c->n_tap * (c->n_channel / c->group)};
    for (int i = 0; i < c->n_lane; i++) {
        data.row0[i] = data.n_row;
        data.n_row += c->n_row[i];
    }
    size_t n = (size_t)(data.n_row * c->n_channel);
    data.x = values_normal(r, 201, n, 1, activation);
    data.base = values_normal(r, 202, (size_t)(c->n_tap * c->n_channel), 1, DTYPE_F32);
    data.dyn = values_normal(r, 203, (size_t)(data.n_row * data.n_dyn), 0.5, DTYPE_F32);
    data.residual = values_normal(r, 204, n, 1, activation);
    data.weight = values_normal(r, 205, (size_t)c->n_channel, 1, DTYPE_F32);
    return data;
}

static double *conv_oracle(struct run *r, const struct conv_data *data) {
    const struct conv_case *c = data->c;
    double *want = arena_alloc(r->arena, (size_t)(data->n_row * c->n_channel) * sizeof(double));
    must(want != NULL);
    for (int lane = 0; lane < c->n_lane; lane++)
        for (int64_t i = 0; i < c->n_row[lane]; i++)
            for (int64_t ch = 0; ch < c->n_channel; ch++) {
                int64_t t = data->row0[lane] + i;
                double sum = c->has_residual ? (double)data->residual[t * c->n_channel + ch] : 0;
                for (int k = 0; k < c->n_tap && k <= i; k++) {
                    double own = data->dyn[t * data->n_dyn + k * (c->n_channel / c->group) + ch / c->group];
                    sum += (data->base[k * c->n_channel + ch] + own) * data->x[(t - k) * c->n_channel + ch];
                }
                want[t * c->n_channel + ch] = sum;
            }
    return want;
}

// The lanes of `order` in one batch; their rows come back where they are in the data.
static float *call_conv(struct run *r, struct device *d, const struct conv_data *data, const int *order, int n) {
    const struct conv_case *c = data->c;
    struct lane lanes[MAX_LANES];
    struct batch batch = {.form = FORM_ROWS, .n_lane = n, .max_window = CHECK_WINDOW, .lanes = lanes};
    size_t bytes = (size_t)(data->n_row * c->n_channel) * sizeof(float);
    float *x = arena_alloc(r->arena, bytes), *residual = arena_alloc(r->arena, bytes);
    float *dyn = arena_alloc(r->arena, (size_t)(data->n_row * data->n_dyn) * sizeof(float));
    for (int i = 0; i < n; i++) {
        int64_t from = data->row0[order[i]], to = batch.n_row, rows = c->n_row[order[i]];
        lanes[i] = (struct lane){.row0 = batch.n_row, .n_row = (int32_t)rows, .position = 1000};
        size_t wide = (size_t)(rows * c->n_channel) * sizeof(float);
        memcpy(x + to * c->n_channel, data->x + from * c->n_channel, wide);
        memcpy(residual + to * c->n_channel, data->residual + from * c->n_channel, wide);
        memcpy(dyn + to * data->n_dyn, data->dyn + from * data->n_dyn, (size_t)(rows * data->n_dyn) * sizeof(float));
        batch.n_row += (int32_t)rows;
    }
    struct stage s;
    stage_open(&s, r, d);
    struct block_conv_args args = {
        .batch = &batch,
        .x = stage_tensor(&s, x, batch.n_row, c->n_channel, d->activation),
        .base = stage_input(&s, data->base, (size_t)(c->n_tap * c->n_channel) * sizeof(float)),
        .dyn = stage_tensor(&s, dyn, batch.n_row, data->n_dyn, DTYPE_F32),
        .n_tap = c->n_tap,
        .group = c->group,
    };
    if (c->has_residual)
        args.residual = args.out = stage_tensor_inout(&s, residual, batch.n_row, c->n_channel, d->activation);
    else
        args.out = stage_tensor_out(&s, batch.n_row, c->n_channel, d->activation);
    if (c->is_normed) {
        args.normed = stage_tensor_out(&s, batch.n_row, c->n_channel, d->activation);
        args.norm_weight = stage_input(&s, data->weight, (size_t)c->n_channel * sizeof(float));
        args.norm_eps = 1e-6f;
    }
    ops_of(r, d)->begin(d, &batch);
    ops_of(r, d)->block_conv(d, &args);
    if (c->is_normed) {
        float *normed = stage_read(&s, args.normed);
        d->ops->norm(d, &(struct norm_args){args.out, args.normed, args.norm_weight, args.norm_eps});
        expect_same_bits(r, "rows normed at once", normed, stage_read(&s, args.normed),
                         (size_t)(batch.n_row * c->n_channel)); // a norm's own test has the rest
    }
    float *got = stage_read(&s, args.out), *out = arena_alloc_zero(r->arena, bytes, 1);
    stage_close(&s);
    for (int i = 0; i < n; i++)
        memcpy(out + data->row0[order[i]] * c->n_channel, got + (int64_t)lanes[i].row0 * c->n_channel,
               (size_t)(lanes[i].n_row * c->n_channel) * sizeof(float));
    return out;
}

static void conv_case(struct run *r, const struct conv_case *c) {
    static const int forwards[] = {0, 1, 2};
    if (case_done(r)) return;
    case_begin(r, "%d channels by %d, %d taps, %d lanes%s%s", c->n_channel, c->group, c->n_tap, c->n_lane,
               c->has_residual ? ", onto a residual" : "", c->is_normed ? ", normed" : "");
    struct conv_data data = make_conv(r, c);
    int backwards[MAX_LANES];
    for (int i = 0; i < c->n_lane; i++) backwards[c->n_lane - 1 - i] = i;
    size_t n = (size_t)(data.n_row * c->n_channel);
    float *all = call_conv(r, r->subject->device, &data, forwards, c->n_lane);
    expect_close(r, "outputs", all, conv_oracle(r, &data), n, tolerance_sum(r));
    expect_same_bits(r, "lanes in reverse", call_conv(r, r->subject->device, &data, backwards, c->n_lane), all, n);
    for (int i = 0; i < 2; i++)
        if (r->subject->others[i] != NULL)
            expect_same_bits(r, "other threads", call_conv(r, r->subject->others[i], &data, forwards, c->n_lane), all,
                             n);
    for (int i = 0; i < c->n_lane; i++) {
        int64_t at = data.row0[i] * c->n_channel;
        float *alone = call_conv(r, r->subject->device, &data, &forwards[i], 1);
        expect_same_bits(r, "a lane alone", alone + at, all + at, (size_t)(c->n_row[i] * c->n_channel));
    }
}

static void run_conv(struct run *r) {
    conv_case(r, &(struct conv_case){96, 16, 2, 3, {8, 1, 3}, true, false});
    conv_case(r, &(struct conv_case){96, 16, 2, 2, {8, 8}, false, false});
    if (r->hunting) return;
    conv_case(r, &(struct conv_case){1200, 400, 3, 2, {2, 16}, true, false});
    conv_case(r, &(struct conv_case){640, 16, 2, 3, {8, 1, 3}, true, false});
    conv_case(r, &(struct conv_case){256, 8, 3, 2, {8, 5}, false, false});
    conv_case(r, &(struct conv_case){40, 1, 1, 1, {8}, false, false});
    conv_case(r, &(struct conv_case){77, 7, 8, 2, {16, 4}, true, true});
    conv_case(r, &(struct conv_case){512, 16, 2, 3, {8, 1, 3}, true, true});
}

static void conv_one_block(struct device *d, const struct block_conv_args *a) {
    struct lane whole = a->batch->lanes[0];
    whole.n_row = a->batch->n_row;
    struct batch batch = *a->batch;
    batch.n_lane = 1;
    batch.lanes = &whole;
    struct block_conv_args b = *a;
    b.batch = &batch;
    d->ops->block_conv(d, &b);
}

static void conv_wrong_group(struct device *d, const struct block_conv_args *a) {
    struct block_conv_args b = *a;
    b.group = a->group * 2;
    d->ops->block_conv(d, &b);
}

static void conv_one_tap(struct device *d, const struct block_conv_args *a) {
    struct block_conv_args b = *a;
    b.n_tap = 1;
    d->ops->block_conv(d, &b);
}

static void conv_scaled(struct device *d, const struct block_conv_args *a) {
    d->ops->block_conv(d, a);
    for (int64_t col = 0; col < 16; col++) corrupt_scale(d, a->out, a->out.n_row - 1, col, 1.02);
}

static void conv_past_end(struct device *d, const struct block_conv_args *a) {
    d->ops->block_conv(d, a);
    corrupt_past_end(d, a->out);
}

static void plant_conv_block(struct ops *o) { o->block_conv = conv_one_block; }
static void plant_conv_group(struct ops *o) { o->block_conv = conv_wrong_group; }
static void plant_conv_tap(struct ops *o) { o->block_conv = conv_one_tap; }
static void plant_conv_scaled(struct ops *o) { o->block_conv = conv_scaled; }
static void plant_conv_end(struct ops *o) { o->block_conv = conv_past_end; }

static const struct fault conv_faults[] = {
    {"lanes that run into each other", plant_conv_block},
    {"groups twice as wide", plant_conv_group},
    {"a tap left out", plant_conv_tap},
    {"elements times 1.02", plant_conv_scaled},
    {"one past the end", plant_conv_end},
};

const struct suite suite_block_conv = {"draft",  "block_conv",
                                       run_conv, conv_faults,
                                       5,        {.max_rows = 64, .max_round_rows = 20, .max_in = 64, .max_out = 1200}};

// ---- block_attention ----

#define MAX_CONTEXT 1300

static const struct tolerance attention_f32 = {"block-attention-f32", 1e-5, 1e-5, 4e-6};

struct attention_case {
    int n_head, n_kv_head, head_dim, window, causal, n_lane;
    struct {
        int32_t position, n_row, first;
    } lanes[KV_MAX_LANES];
};

struct attention_data {
    const struct attention_case *c;
    int n_row, row0[KV_MAX_LANES];
    float *q, *k[KV_MAX_LANES], *v[KV_MAX_LANES]; // keys and values: NaN where no row of the lane may see them
};

static int first_seen(const struct attention_case *c, int lane, int t) {
    int oldest = c->lanes[lane].position + t - c->window + 1;
    return oldest > c->lanes[lane].first ? oldest : c->lanes[lane].first;
}

static struct attention_data make_attention(struct run *r, const struct attention_case *c) {
    struct device *d = r->subject->device;
    struct attention_data data = {.c = c};
    for (int i = 0; i < c->n_lane; i++) {
        data.row0[i] = data.n_row;
        data.n_row += c->lanes[i].n_row;
        size_t width = (size_t)(c->n_kv_head * c->head_dim), n_key = (size_t)(c->lanes[i].position + c->lanes[i].n_row);
        data.k[i] = values_normal(r, 211 + (uint64_t)i, n_key * width, 1, d->kv);
        data.v[i] = values_normal(r, 221 + (uint64_t)i, n_key * width, 1, d->kv);
        memset(data.k[i], 0xff, (size_t)first_seen(c, i, 0) * width * sizeof(float));
        memset(data.v[i], 0xff, (size_t)first_seen(c, i, 0) * width * sizeof(float));
    }
    data.q = values_normal(r, 231, (size_t)(data.n_row * c->n_head * c->head_dim), 1, d->activation);
    return data;
}

static void oracle_query(const struct attention_data *data, int lane, int t, int h, double *score, double *out) {
    const struct attention_case *c = data->c;
    int n = c->head_dim, kv_head = h / (c->n_head / c->n_kv_head), width = c->n_kv_head * n;
    int first = first_seen(c, lane, t), end = c->lanes[lane].position + (c->causal ? t + 1 : c->lanes[lane].n_row);
    const float *q = data->q + ((int64_t)(data->row0[lane] + t) * c->n_head + h) * n;
    double max = -INFINITY, sum = 0;
    for (int j = first; j < end; j++) {
        const float *k = data->k[lane] + (int64_t)j * width + kv_head * n;
        score[j] = 0;
        for (int i = 0; i < n; i++) score[j] += (double)q[i] * (double)k[i];
        score[j] /= sqrt(n);
        max = fmax(max, score[j]);
    }
    memset(out, 0, (size_t)n * sizeof(double));
    for (int j = first; j < end; j++) {
        const float *v = data->v[lane] + (int64_t)j * width + kv_head * n;
        double p = exp(score[j] - max);
        sum += p;
        for (int i = 0; i < n; i++) out[i] += p * (double)v[i];
    }
    for (int i = 0; i < n; i++) out[i] /= sum;
}

static double *attention_oracle(struct run *r, const struct attention_data *data) {
    const struct attention_case *c = data->c;
    double *want = arena_alloc(r->arena, (size_t)(data->n_row * c->n_head * c->head_dim) * sizeof(double));
    double *score = arena_alloc(r->arena, (size_t)MAX_CONTEXT * sizeof(double));
    must(want != NULL && score != NULL);
    for (int lane = 0; lane < c->n_lane; lane++)
        for (int t = 0; t < c->lanes[lane].n_row; t++)
            for (int h = 0; h < c->n_head; h++)
                oracle_query(data, lane, t, h, score,
                             want + ((int64_t)(data->row0[lane] + t) * c->n_head + h) * c->head_dim);
    return want;
}

#define N_PRODUCT 16 // outputs of the product behind attention

// A device may hand the rows of `out` to the product behind it in another form: that of the tensor alone is the same.
// Both are staged before attention, so that the product comes right behind it.
struct product {
    struct weight w;
    struct tensor other, direct, alone; // other: a copy of out
};

static struct product stage_product(struct run *r, struct stage *s, struct tensor out) {
    struct weight_spec spec = {WEIGHT_AFFINE, DTYPE_BF16, 4, 64, N_PRODUCT, out.n_col};
    double *values;
    struct weight w = values_weight(r, 241, &spec, &values);
    enum dtype t = s->device->activation;
    return (struct product){.w = stage_weight(s, &w),
                            .other = stage_tensor_out(s, out.n_row, out.n_col, t),
                            .direct = stage_tensor_out(s, out.n_row, N_PRODUCT, t),
                            .alone = stage_tensor_out(s, out.n_row, N_PRODUCT, t)};
}

static void expect_product(struct run *r, struct stage *s, const struct product *p, struct tensor out) {
    struct device *d = s->device;
    d->ops->linear(d, &(struct linear_args){.form = FORM_ROWS, .x = out, .n_parts = 1, .part = {{&p->w, p->direct}}});
    d->copy(d, p->other.data, out.data, (size_t)((out.n_row - 1) * out.stride + out.n_col) * dtype_bytes(out.dtype));
    d->ops->linear(d,
                   &(struct linear_args){.form = FORM_ROWS, .x = p->other, .n_parts = 1, .part = {{&p->w, p->alone}}});
    expect_same_bits(r, "the product behind it", stage_read(s, p->direct), stage_read(s, p->alone),
                     (size_t)(out.n_row * N_PRODUCT));
}

static float *call_attention(struct run *r, struct device *d, const struct attention_data *data, const int *order,
                             int n_lane, int32_t page_rows) {
    const struct attention_case *c = data->c;
    int64_t width = (int64_t)c->n_head * c->head_dim, n_row = 0;
    struct kv_lane lanes[KV_MAX_LANES];
    int32_t first[KV_MAX_LANES];
    float *q = arena_alloc(r->arena, (size_t)(data->n_row * width) * sizeof(float));
    for (int i = 0; i < n_lane; i++) {
        int lane = order[i], rows = c->lanes[lane].n_row;
        lanes[i] = (struct kv_lane){.position = c->lanes[lane].position,
                                    .n_row = rows,
                                    .n_stored = c->lanes[lane].position + rows,
                                    .k = data->k[lane],
                                    .v = data->v[lane]};
        first[i] = c->lanes[lane].first;
        memcpy(q + n_row * width, data->q + data->row0[lane] * width, (size_t)(rows * width) * sizeof(float));
        n_row += rows;
    }
    struct stage s;
    stage_open(&s, r, d);
    struct kv_pool pool;
    kv_open(&pool, &s, &(struct kv_shape){c->n_kv_head, c->head_dim, d->kv}, FORM_ROWS, page_rows, lanes, n_lane, false,
            91 + (uint64_t)page_rows);
    struct block_attention_args args = {
        .batch = &pool.batch,
        .q = stage_tensor(&s, q, n_row, width, d->activation),
        .n_head = c->n_head,
        .n_kv_head = c->n_kv_head,
        .head_dim = c->head_dim,
        .scale = (float)(1 / sqrt(c->head_dim)),
        .first = first,
        .window = c->window,
        .causal = c->causal,
        .kv = pool.layer,
        .out = stage_tensor_out(&s, n_row, width, d->activation),
    };
    struct product product = stage_product(r, &s, args.out);
    ops_of(r, d)->begin(d, &pool.batch);
    ops_of(r, d)->block_attention(d, &args);
    expect_product(r, &s, &product, args.out);
    float *got = stage_read(&s, args.out);
    float *out = arena_alloc_zero(r->arena, (size_t)(data->n_row * width), sizeof(float));
    stage_close(&s);
    for (int i = 0; i < n_lane; got += c->lanes[order[i++]].n_row * width)
        memcpy(out + data->row0[order[i]] * width, got, (size_t)(c->lanes[order[i]].n_row * width) * sizeof(float));
    return out;
}

static void attention_case(struct run *r, const struct attention_case *c) {
    static const int forwards[] = {0, 1, 2, 3};
    static const int32_t page_rows[] = {1, 64, 96, 256};
    if (case_done(r)) return;
    case_begin(r, "heads %d/%d of %d, window %d, %d lanes, %d at %d%s", c->n_head, c->n_kv_head, c->head_dim, c->window,
               c->n_lane, c->lanes[0].n_row, c->lanes[0].position, c->causal ? ", causal" : "");
    struct attention_data data = make_attention(r, c);
    int backwards[KV_MAX_LANES];
    for (int i = 0; i < c->n_lane; i++) backwards[c->n_lane - 1 - i] = i;
    size_t width = (size_t)(c->n_head * c->head_dim), n = (size_t)data.n_row * width;
    struct device *d = r->subject->device;
    float *all = call_attention(r, d, &data, forwards, c->n_lane, 192);
    const struct tolerance *t = d->compute == COMPUTE_F32 ? &attention_f32 : tolerance_sum(r);
    expect_close(r, "outputs", all, attention_oracle(r, &data), n, t);
    if (case_done(r)) return;
    expect_same_bits(r, "lanes in reverse", call_attention(r, d, &data, backwards, c->n_lane, 192), all, n);
    for (int i = 0; i < 4 && !r->hunting; i++)
        expect_same_bits(r, "other pages", call_attention(r, d, &data, forwards, c->n_lane, page_rows[i]), all, n);
    for (int i = 0; i < 2; i++)
        if (r->subject->others[i] != NULL)
            expect_same_bits(r, "other threads",
                             call_attention(r, r->subject->others[i], &data, forwards, c->n_lane, 192), all, n);
    for (int i = 0; i < c->n_lane; i++) {
        size_t at = (size_t)data.row0[i] * width;
        float *alone = call_attention(r, d, &data, &forwards[i], 1, 192);
        expect_same_bits(r, "a lane alone", alone + at, all + at, (size_t)c->lanes[i].n_row * width);
    }
}

static void run_attention(struct run *r) {
    attention_case(r, &(struct attention_case){4, 2, 32, 100, 0, 3, {{150, 8, 0}, {5, 3, 2}, {0, 8, 0}}});
    attention_case(r, &(struct attention_case){4, 2, 32, 60, 1, 1, {{70, 8, 12}}});
    if (r->hunting) return;
    attention_case(r, &(struct attention_case){4, 1, 128, 700, 0, 2, {{1210, 8, 0}, {515, 8, 505}}});
    attention_case(r, &(struct attention_case){2, 2, 64, 62, 0, 2, {{512, 8, 0}, {1021, 8, 0}}});
    attention_case(r, &(struct attention_case){6, 2, 64, 1, 0, 2, {{300, 8, 0}, {64, 1, 0}}});
    attention_case(r,
                   &(struct attention_case){8, 2, 128, 2048, 1, 4, {{640, 8, 0}, {1, 2, 0}, {63, 8, 63}, {64, 8, 0}}});
}

static void other_window(struct device *d, const struct block_attention_args *a, int more, int causal) {
    struct block_attention_args b = *a;
    b.window = a->window + more;
    b.causal = causal;
    d->ops->block_attention(d, &b);
}

static void short_window(struct device *d, const struct block_attention_args *a) { other_window(d, a, -1, a->causal); }
static void long_window(struct device *d, const struct block_attention_args *a) { other_window(d, a, 1, a->causal); }
static void other_sight(struct device *d, const struct block_attention_args *a) { other_window(d, a, 0, !a->causal); }

static void no_first(struct device *d, const struct block_attention_args *a) {
    static const int32_t zeros[KV_MAX_LANES];
    struct block_attention_args b = *a;
    b.first = zeros;
    d->ops->block_attention(d, &b);
}

static void attention_scaled(struct device *d, const struct block_attention_args *a) {
    d->ops->block_attention(d, a);
    for (int64_t col = 0; col < 16; col++) corrupt_scale(d, a->out, a->out.n_row - 1, col, 1.02);
}

static void attention_past_end(struct device *d, const struct block_attention_args *a) {
    d->ops->block_attention(d, a);
    corrupt_past_end(d, a->out);
}

static void plant_short(struct ops *o) { o->block_attention = short_window; }
static void plant_long(struct ops *o) { o->block_attention = long_window; }
static void plant_sight(struct ops *o) { o->block_attention = other_sight; }
static void plant_first(struct ops *o) { o->block_attention = no_first; }
static void plant_scaled(struct ops *o) { o->block_attention = attention_scaled; }
static void plant_end(struct ops *o) { o->block_attention = attention_past_end; }

static const struct fault attention_faults[] = {
    {"a window one key short", plant_short},
    {"a window one key long", plant_long},
    {"rows that see less or more of their block", plant_sight},
    {"keys before a lane's first", plant_first},
    {"elements times 1.02", plant_scaled},
    {"one past the end", plant_end},
};

const struct suite suite_block_attention = {"draft",
                                            "block_attention",
                                            run_attention,
                                            attention_faults,
                                            6,
                                            {.max_rows = 64,
                                             .max_round_rows = 32,
                                             .max_in = 1024,
                                             .max_out = N_PRODUCT,
                                             .max_lanes = KV_MAX_LANES,
                                             .max_window = CHECK_WINDOW,
                                             .block_rows = 8,
                                             .block_window = 2048,
                                             .block_n_head = 8,
                                             .block_n_kv_head = 2,
                                             .block_head_dim = 128,
                                             .max_context = MAX_CONTEXT}};
