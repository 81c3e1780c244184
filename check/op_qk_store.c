// qk_store.
#include "check/kv.h"
#include <math.h>
#include <string.h>

#define EPS 1e-6f

struct qk_case {
    enum form form;
    int n_head, n_kv_head, head_dim, n_rot;
    int n_lane;
    struct kv_lane lanes[KV_MAX_LANES];
};

struct qk_data {
    const struct qk_case *c;
    enum dtype kv;
    int n_row, step; // 2: a gate lies behind each query; 1: block drafters have none
    float *qg, *k, *v, *q_norm, *k_norm, *inv_freq;
};

struct qk_result {
    float *q;
    struct kv_rows kv;
};

// A code has four significant bits, so it is off by 2^-4 of the value at most, and in the mean square by some 2.6 % of
// it; below 2^-6 of the codes' range the step no longer shrinks, half of which is 2^-10 / 448 of the vector's largest.
static const struct tolerance element_e4m3 = {"element-e4m3", 1.5e-5, 0.0626, 3e-2};

// Some vectors of values are zeros: they have no scale to divide by.
static struct qk_data make_data(struct run *r, const struct qk_case *c, enum dtype kv) {
    enum dtype activation = r->subject->device->activation;
    struct qk_data d = {.c = c, .kv = kv};
    for (int i = 0; i < c->n_lane; i++) d.n_row += c->lanes[i].n_row;
    size_t n = (size_t)(d.n_row * c->head_dim);
    d.qg = values_normal(r, 51, n * (size_t)(2 * c->n_head), 1, activation);
    d.k = values_normal(r, 52, n * (size_t)c->n_kv_head, 1, activation);
    d.v = values_normal(r, 53, n * (size_t)c->n_kv_head, 1, activation);
    for (size_t i = 0; i < n * (size_t)c->n_kv_head; i++)
        if (i / (size_t)c->head_dim % 5 == 3) d.v[i] = 0;
    d.q_norm = values_normal(r, 54, (size_t)c->head_dim, 0.3, DTYPE_F32);
    d.k_norm = values_normal(r, 55, (size_t)c->head_dim, 0.3, DTYPE_F32);
    for (int i = 0; i < c->head_dim; i++) {
        d.q_norm[i] += 1;
        d.k_norm[i] += 1;
    }
    d.inv_freq = values_normal(r, 56, (size_t)c->n_rot / 2, 1, DTYPE_F32);
    for (int i = 0; i < c->n_rot / 2; i++) d.inv_freq[i] = (float)pow(1e7, -2.0 * i / c->n_rot);
    return d;
}

// ---- oracle ----

static void oracle_head(const float *x, const float *weight, const struct qk_data *data, int32_t position,
                        double *out) {
    int n = data->c->head_dim, half = data->c->n_rot / 2;
    double squares = 0, normed[256];
    for (int i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    for (int i = 0; i < n; i++) normed[i] = (double)x[i] / sqrt(squares / n + (double)EPS) * (double)weight[i];
    memcpy(out, normed, (size_t)n * sizeof(double));
    for (int i = 0; i < half; i++) {
        double angle = (double)((float)position * data->inv_freq[i]);
        out[i] = normed[i] * cos(angle) - normed[half + i] * sin(angle);
        out[half + i] = normed[half + i] * cos(angle) + normed[i] * sin(angle);
    }
}

static void oracle_rows(const struct qk_data *data, double *q, double *k) {
    const struct qk_case *c = data->c;
    int n = c->head_dim, t = 0;
    for (int lane = 0; lane < c->n_lane; lane++) {
        for (int i = 0; i < c->lanes[lane].n_row; i++, t++) {
            int32_t position = c->lanes[lane].position + i;
            for (int h = 0; h < c->n_head; h++)
                oracle_head(data->qg + (t * c->n_head + h) * data->step * n, data->q_norm, data, position,
                            q + (t * c->n_head + h) * n);
            for (int h = 0; h < c->n_kv_head; h++)
                oracle_head(data->k + (t * c->n_kv_head + h) * n, data->k_norm, data, position,
                            k + (t * c->n_kv_head + h) * n);
        }
    }
}

// ---- the call, with rows [row0, row0 + ..) of the data on the given lanes ----

static struct qk_result call(struct run *r, struct device *d, const struct qk_data *data, const struct kv_lane *lanes,
                             int n_lane, int row0, int32_t page_rows) {
    const struct qk_case *c = data->c;
    int n = c->head_dim;
    struct stage s;
    stage_open(&s, r, d);
    struct kv_pool pool;
    kv_open(&pool, &s, &(struct kv_shape){c->n_kv_head, n, data->kv}, c->form, page_rows, lanes, n_lane, true, 5);
    int64_t n_row = pool.batch.n_row, q_width = (int64_t)c->n_head * n, width = (int64_t)c->n_kv_head * n;
    struct qk_store_args args = {
        .batch = &pool.batch,
        .no_gate = data->step == 1,
        .eps = EPS,
        .n_rot = c->n_rot,
        .n_head = c->n_head,
        .n_kv_head = c->n_kv_head,
        .head_dim = n,
        .qg = stage_tensor(&s, data->qg + row0 * data->step * q_width, n_row, data->step * q_width, d->activation),
        .k = stage_tensor(&s, data->k + row0 * width, n_row, width, d->activation),
        .v = stage_tensor(&s, data->v + row0 * width, n_row, width, d->activation),
        .q_norm = stage_input(&s, data->q_norm, (size_t)n * sizeof(float)),
        .k_norm = stage_input(&s, data->k_norm, (size_t)n * sizeof(float)),
        .inv_freq = stage_input(&s, data->inv_freq, (size_t)c->n_rot / 2 * sizeof(float)),
        .kv = pool.layer,
        .q_out = stage_tensor_out(&s, n_row, q_width, d->activation),
    };
    ops_of(r, d)->begin(d, &pool.batch);
    ops_of(r, d)->qk_store(d, &args);
    struct qk_result got = {.q = stage_read(&s, args.q_out)};
    kv_read_rows(&pool, &s, &got.kv);
    stage_close(&s);
    return got;
}

static void compare(struct run *r, const char *what, const struct qk_data *data, struct qk_result got,
                    struct qk_result all, int row0, int n_row) {
    size_t n_kv_head = (size_t)data->c->n_kv_head, width = n_kv_head * (size_t)data->c->head_dim;
    size_t q_width = (size_t)(data->c->n_head * data->c->head_dim), first = (size_t)row0, n = (size_t)n_row;
    expect_same_bits(r, what, got.q, all.q + first * q_width, n * q_width);
    expect_same_bits(r, what, got.kv.k, all.kv.k + first * width, n * width);
    expect_same_bits(r, what, got.kv.v, all.kv.v + first * width, n * width);
    expect_same_bits(r, what, got.kv.k_scale, all.kv.k_scale + first * n_kv_head, n * n_kv_head);
    expect_same_bits(r, what, got.kv.v_scale, all.kv.v_scale + first * n_kv_head, n * n_kv_head);
}

static void check_independence(struct run *r, const struct qk_data *data, struct qk_result all) {
    static const int32_t page_rows[] = {1, 64, 96, 256, 4096};
    const struct qk_case *c = data->c;
    struct device *d = r->subject->device;
    for (int i = 0; i < (c->head_dim > KV_LONG_PAGE_DIM ? 4 : 5); i++)
        compare(r, "another page size", data, call(r, d, data, c->lanes, c->n_lane, 0, page_rows[i]), all, 0,
                data->n_row);
    for (int i = 0; i < 2; i++)
        if (r->subject->others[i] != NULL)
            compare(r, "other threads", data, call(r, r->subject->others[i], data, c->lanes, c->n_lane, 0, 64), all, 0,
                    data->n_row);
    int row0 = 0;
    for (int i = 0; i < c->n_lane; i++) {
        struct kv_lane one = c->lanes[i];
        for (int t = 0; t < c->lanes[i].n_row && c->form == FORM_ROWS; t++) {
            one.position = c->lanes[i].position + t;
            one.n_row = 1;
            compare(r, "a row alone", data, call(r, d, data, &one, 1, row0 + t, 64), all, row0 + t, 1);
        }
        row0 += c->lanes[i].n_row;
    }
}

// Values are stored as they come, so that their codes and scales are known exactly.
static void check_values(struct run *r, const struct qk_data *data, struct qk_result all) {
    size_t n_vector = (size_t)(data->n_row * data->c->n_kv_head), n = n_vector * (size_t)data->c->head_dim;
    if (data->kv != DTYPE_E4M3) {
        expect_close(r, "values", all.kv.v, values_double(r, data->v, n), n,
                     data->kv == DTYPE_F32 ? &element_f32 : &element_bf16);
        return;
    }
    float *want = arena_alloc(r->arena, n * sizeof(float)), *scales = arena_alloc(r->arena, n_vector * sizeof(float));
    must(want != NULL && scales != NULL);
    memcpy(want, data->v, n * sizeof(float));
    kv_round_e4m3(want, (int64_t)n_vector, data->c->head_dim, scales);
    expect_same_bits(r, "scales of values", all.kv.v_scale, scales, n_vector);
    expect_same_bits(r, "values", all.kv.v, want, n);
}

// The scale of a key's vector is its largest element over the largest code.
static void check_keys(struct run *r, const struct qk_data *data, struct qk_result all, const double *want) {
    int64_t n_vector = (int64_t)data->n_row * data->c->n_kv_head, n = data->c->head_dim;
    const struct tolerance *t = data->kv == DTYPE_F32    ? &element_f32
                                : data->kv == DTYPE_BF16 ? &element_bf16
                                                         : &element_e4m3;
    expect_close(r, "keys", all.kv.k, want, (size_t)(n_vector * n), t);
    if (data->kv != DTYPE_E4M3) return;
    double *scales = arena_alloc(r->arena, (size_t)n_vector * sizeof(double));
    must(scales != NULL);
    for (int64_t v = 0; v < n_vector; v++) {
        double most = 0;
        for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(want[v * n + i]));
        scales[v] = most / 448;
    }
    expect_close(r, "scales of keys", all.kv.k_scale, scales, (size_t)n_vector, &element_f32);
}

static void qk_case(struct run *r, enum dtype kv, bool no_gate, const struct qk_case *c) {
    if (case_done(r)) return;
    case_begin(r, "%s heads %d/%d of %d%s, %d lanes, %d at %d", c->form == FORM_ROWS ? "rows" : "prompt", c->n_head,
               c->n_kv_head, c->head_dim, no_gate ? " without gates" : "", c->n_lane, c->lanes[0].n_row,
               c->lanes[0].position);
    struct qk_data data = make_data(r, c, kv);
    data.step = no_gate ? 1 : 2;
    size_t n_q = (size_t)(data.n_row * c->n_head * c->head_dim),
           n_k = (size_t)(data.n_row * c->n_kv_head * c->head_dim);
    double *q = arena_alloc(r->arena, n_q * sizeof(double)), *k = arena_alloc(r->arena, n_k * sizeof(double));
    oracle_rows(&data, q, k);
    struct qk_result all = call(r, r->subject->device, &data, c->lanes, c->n_lane, 0, 17);
    expect_close(r, "queries", all.q, q, n_q, tolerance_element(r));
    check_keys(r, &data, all, k);
    check_values(r, &data, all);
    if (!case_done(r)) check_independence(r, &data, all);
}

static void run_cases(struct run *r, enum dtype kv) {
    qk_case(
        r, kv, false,
        &(struct qk_case){
            FORM_ROWS, 4, 2, 32, 8, 3, {{.position = 70, .n_row = 3}, {.n_row = 1}, {.position = 511, .n_row = 2}}});
    qk_case(r, kv, false, &(struct qk_case){FORM_PROMPT, 2, 1, 16, 16, 1, {{.position = 64, .n_row = 70}}});
    if (r->hunting) return;
    if (r->subject->device->ops->block_attention != NULL)
        qk_case(r, kv, true,
                &(struct qk_case){FORM_ROWS, 4, 2, 128, 128, 2, {{.position = 1020, .n_row = 8}, {.n_row = 8}}});
    qk_case(r, kv, false,
            &(struct qk_case){
                FORM_ROWS, 6, 2, 256, 64, 2, {{.position = 200123, .n_row = 4}, {.position = 510, .n_row = 3}}});
    qk_case(r, kv, false, &(struct qk_case){FORM_PROMPT, 4, 1, 256, 64, 1, {{.position = 128, .n_row = 65}}});
}

static void run_qk_store(struct run *r) { run_cases(r, r->subject->device->kv); }
static void run_qk_store_e4m3(struct run *r) { run_cases(r, DTYPE_E4M3); }

// ---- faults ----

static void next_position(struct device *d, const struct qk_store_args *a) {
    struct lane lanes[KV_MAX_LANES];
    memcpy(lanes, a->batch->lanes, (size_t)a->batch->n_lane * sizeof *lanes);
    lanes[0].position ^= 1;
    struct batch batch = *a->batch;
    batch.lanes = lanes;
    struct qk_store_args b = *a;
    b.batch = &batch;
    d->ops->qk_store(d, &b);
}

static void swapped_pages(struct device *d, const struct qk_store_args *a) {
    struct lane lanes[KV_MAX_LANES];
    int32_t pages[1024];
    memcpy(lanes, a->batch->lanes, (size_t)a->batch->n_lane * sizeof *lanes);
    memcpy(pages, lanes[0].pages, (size_t)lanes[0].n_page * sizeof *pages);
    int32_t first = lanes[0].position / a->kv.page_rows, last = lanes[0].n_page - 1;
    pages[first] = lanes[0].pages[last];
    pages[last] = lanes[0].pages[first];
    lanes[0].pages = pages;
    struct batch batch = *a->batch;
    batch.lanes = lanes;
    struct qk_store_args b = *a;
    b.batch = &batch;
    d->ops->qk_store(d, &b);
}

static void swapped_norms(struct device *d, const struct qk_store_args *a) {
    struct qk_store_args b = *a;
    b.q_norm = a->k_norm;
    b.k_norm = a->q_norm;
    d->ops->qk_store(d, &b);
}

static void no_rotation(struct device *d, const struct qk_store_args *a) {
    struct qk_store_args b = *a;
    b.n_rot = 0;
    d->ops->qk_store(d, &b);
}

static void wrong_layer(struct device *d, const struct qk_store_args *a) {
    struct qk_store_args b = *a;
    b.kv.layer_offset = 0;
    d->ops->qk_store(d, &b);
}

static void scaled(struct device *d, const struct qk_store_args *a) {
    d->ops->qk_store(d, a);
    for (int64_t col = 0; col < 8; col++) corrupt_scale(d, a->q_out, a->q_out.n_row - 1, col, 1.02);
}

static void past_end(struct device *d, const struct qk_store_args *a) {
    d->ops->qk_store(d, a);
    corrupt_past_end(d, a->q_out);
}

// Of e4m3: the newest row's values of KV head 0.
static char *newest_scale(const struct qk_store_args *a) {
    const struct lane *lane = &a->batch->lanes[a->batch->n_lane - 1];
    return (char *)a->kv.pages + kv_scale_offset(&a->kv, lane, a->n_kv_head, 0, lane->position + lane->n_row - 1, true);
}

static void no_scale(struct device *d, const struct qk_store_args *a) {
    const float one = 1;
    d->ops->qk_store(d, a);
    d->copy_in(d, newest_scale(a), &one, sizeof one);
}

static void scale_of_next(struct device *d, const struct qk_store_args *a) {
    struct qk_store_args b = *a;
    b.kv.scale_offset += (int64_t)sizeof(float);
    d->ops->qk_store(d, &b);
}

static void scale_of_head(struct device *d, const struct qk_store_args *a) {
    struct qk_store_args b = *a;
    b.kv.scale_offset += (int64_t)a->kv.page_rows * (int64_t)sizeof(float);
    d->ops->qk_store(d, &b);
}

static void stale_scale(struct device *d, const struct qk_store_args *a) {
    float before;
    d->copy_out(d, &before, newest_scale(a), sizeof before);
    d->ops->qk_store(d, a);
    d->copy_in(d, newest_scale(a), &before, sizeof before);
}

static void scaled_scale(struct device *d, const struct qk_store_args *a) {
    float scale;
    d->ops->qk_store(d, a);
    d->copy_out(d, &scale, newest_scale(a), sizeof scale);
    scale *= 1.02f;
    d->copy_in(d, newest_scale(a), &scale, sizeof scale);
}

// As truncation would leave it: a code of the newest row's values is one too small.
static void not_nearest(struct device *d, const struct qk_store_args *a) {
    const struct lane *lane = &a->batch->lanes[a->batch->n_lane - 1];
    int64_t position = lane->position + lane->n_row - 1;
    int64_t row = (int64_t)a->n_kv_head * a->kv.page_rows + position % a->kv.page_rows;
    char *at = (char *)a->kv.pages + lane->pages[position / a->kv.page_rows] * a->kv.page_bytes + a->kv.layer_offset +
               row * a->head_dim;
    unsigned char code;
    d->ops->qk_store(d, a);
    d->copy_out(d, &code, at, 1);
    code--;
    d->copy_in(d, at, &code, 1);
}

static void plant_position(struct ops *o) { o->qk_store = next_position; }
static void plant_pages(struct ops *o) { o->qk_store = swapped_pages; }
static void plant_norms(struct ops *o) { o->qk_store = swapped_norms; }
static void plant_rotation(struct ops *o) { o->qk_store = no_rotation; }
static void plant_layer(struct ops *o) { o->qk_store = wrong_layer; }
static void plant_scaled(struct ops *o) { o->qk_store = scaled; }
static void plant_end(struct ops *o) { o->qk_store = past_end; }
static void plant_no_scale(struct ops *o) { o->qk_store = no_scale; }
static void plant_next_scale(struct ops *o) { o->qk_store = scale_of_next; }
static void plant_head_scale(struct ops *o) { o->qk_store = scale_of_head; }
static void plant_stale_scale(struct ops *o) { o->qk_store = stale_scale; }
static void plant_scaled_scale(struct ops *o) { o->qk_store = scaled_scale; }
static void plant_code(struct ops *o) { o->qk_store = not_nearest; }

// Those from N_FAULTS on are for e4m3 only.
#define N_FAULTS 7
static const struct fault faults[] = {
    {"positions off by one", plant_position},
    {"two pages swapped", plant_pages},
    {"norms of q and k swapped", plant_norms},
    {"no rotation", plant_rotation},
    {"another layer's plane", plant_layer},
    {"elements times 1.02", plant_scaled},
    {"one past the end", plant_end},
    {"a scale left out", plant_no_scale},
    {"the next position's scale", plant_next_scale},
    {"the next head's scale", plant_head_scale},
    {"a stale scale", plant_stale_scale},
    {"a scale times 1.02", plant_scaled_scale},
    {"a code that is not the nearest", plant_code},
};

#define LIMITS                                                                                                         \
    {                                                                                                                  \
        .max_rows = 70, .max_round_rows = 8, .head_dim = 256, .n_head = 6, .n_kv_head = 2, .max_context = 200128,      \
        /* in pages of one position */ .max_lanes = 4, .max_window = CHECK_WINDOW                                      \
    }
const struct suite suite_qk_store = {"qwen-pages", "qk_store", run_qk_store, faults, N_FAULTS, LIMITS};
const struct suite suite_qk_store_e4m3 = {
    "qwen-pages", "qk_store-e4m3", run_qk_store_e4m3, faults, sizeof faults / sizeof *faults, LIMITS};
