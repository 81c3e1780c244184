// attention, in both forms; and a linear of what a round has written, which a device may be handed beside the tensor.
#include "check/kv.h"
#include <math.h>
#include <string.h>

#define MAX_CONTEXT 4200
#define PRODUCTS    40 // outputs of the linear

// fp32 scores of size 30 and more are off by some 1e-6, and so are the weights.
static const struct tolerance attention_f32 = {"attention-f32", 1e-5, 1e-5, 4e-6};

struct attention_case {
    enum form form;
    int n_head, n_kv_head, head_dim;
    double peak; // size of the queries: how far from uniform the weights are
    int n_lane;
    struct {
        int32_t position, n_row;
    } lanes[KV_MAX_LANES];
    int first_key;
};

struct attention_data {
    const struct attention_case *c;
    enum dtype kv;
    int n_row, row0[KV_MAX_LANES];
    float *q, *qg;
    struct kv_rows stored[KV_MAX_LANES];
    struct weight product; // of rows whose heads are multiples of 128, in rounds; else there is none
};

// Vectors of e4m3, of many sizes so that no scale can stand for another, and now and then of zeros.
static float *make_e4m3(struct run *r, uint64_t seed, int64_t n_vector, int head_dim, float *scales) {
    float *x = values_normal(r, seed, (size_t)(n_vector * head_dim), 1, DTYPE_F32);
    for (int64_t i = 0; i < n_vector * head_dim; i++) {
        int64_t vector = i / head_dim;
        x[i] = vector % 37 == 5 ? 0 : x[i] / (float)(1 + vector % 7);
    }
    kv_round_e4m3(x, n_vector, head_dim, scales);
    return x;
}

static struct kv_rows make_stored(struct run *r, const struct attention_case *c, enum dtype kv, int lane) {
    int64_t n_vector = (int64_t)(c->lanes[lane].position + c->lanes[lane].n_row) * c->n_kv_head;
    uint64_t k_seed = 61 + (uint64_t)lane, v_seed = 71 + (uint64_t)lane;
    size_t n = (size_t)(n_vector * c->head_dim);
    if (kv != DTYPE_E4M3)
        return (struct kv_rows){values_normal(r, k_seed, n, 1, kv), values_normal(r, v_seed, n, 1, kv), NULL, NULL};
    float *scales = arena_alloc(r->arena, (size_t)(2 * n_vector) * sizeof(float));
    must(scales != NULL);
    return (struct kv_rows){make_e4m3(r, k_seed, n_vector, c->head_dim, scales),
                            make_e4m3(r, v_seed, n_vector, c->head_dim, scales + n_vector), scales, scales + n_vector};
}

static struct attention_data make_data(struct run *r, const struct attention_case *c, enum dtype kv) {
    const struct device *d = r->subject->device;
    struct attention_data data = {.c = c, .kv = kv};
    for (int i = 0; i < c->n_lane; i++) {
        data.row0[i] = data.n_row;
        data.n_row += c->lanes[i].n_row;
        data.stored[i] = make_stored(r, c, kv, i);
    }
    size_t n = (size_t)(data.n_row * c->n_head * c->head_dim);
    // Matrix units take queries in the precision of the keys.
    data.q = values_normal(r, 81, n, c->peak, r->subject->matrix_units ? DTYPE_BF16 : d->activation);
    data.qg = values_normal(r, 82, 2 * n, 1, d->activation);
    struct weight_spec product = {WEIGHT_AFFINE, DTYPE_BF16, 4, 64, PRODUCTS, c->n_head * c->head_dim};
    double *values;
    if (c->form == FORM_ROWS && c->head_dim % 128 == 0) data.product = values_weight(r, 83, &product, &values);
    return data;
}

// ---- oracle ----

static void oracle_query(const struct attention_data *data, int lane, int t, int h, double *score, double *out) {
    const struct attention_case *c = data->c;
    int n = c->head_dim, kv_head = h / (c->n_head / c->n_kv_head), width = c->n_kv_head * n;
    int n_key = c->lanes[lane].position + t + 1;
    int64_t row = data->row0[lane] + t;
    const float *q = data->q + (row * c->n_head + h) * n, *gate = data->qg + (row * c->n_head + h) * 2 * n + n;
    double max = -INFINITY, sum = 0;
    for (int j = c->first_key; j < n_key; j++) {
        const float *k = data->stored[lane].k + (int64_t)j * width + kv_head * n;
        score[j] = 0;
        for (int i = 0; i < n; i++) score[j] += (double)q[i] * (double)k[i];
        score[j] /= sqrt(n);
        max = fmax(max, score[j]);
    }
    memset(out, 0, (size_t)n * sizeof(double));
    for (int j = c->first_key; j < n_key; j++) {
        const float *v = data->stored[lane].v + (int64_t)j * width + kv_head * n;
        double p = exp(score[j] - max);
        sum += p;
        for (int i = 0; i < n; i++) out[i] += p * (double)v[i];
    }
    for (int i = 0; i < n; i++) out[i] = out[i] / sum / (1 + exp(-(double)gate[i]));
}

static double *oracle(struct run *r, const struct attention_data *data) {
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

// ---- the call ----

// Rows [first, first + n_row) of one of the case's lanes.
struct piece {
    int lane, first, n_row;
};

static struct linear_args product_of(struct stage *s, const struct weight *w, struct tensor x) {
    return (struct linear_args){.form = FORM_ROWS,
                                .x = x,
                                .n_parts = 1,
                                .part = {{w, stage_tensor_out(s, (int)x.n_row, PRODUCTS, s->device->activation)}}};
}

// The products are those of a tensor that nobody has written on the device.
static void check_products(struct run *r, struct device *d, const struct attention_data *data, const float *rows,
                           int64_t n_row, const float *products) {
    struct stage s;
    stage_open(&s, r, d);
    struct weight w = stage_weight(&s, &data->product);
    struct linear_args product = product_of(&s, &w, stage_tensor(&s, rows, (int)n_row, w.n_in, d->activation));
    d->ops->linear(d, &product);
    expect_same_bits(r, "products of outputs", products, stage_read(&s, product.part[0].out),
                     (size_t)(n_row * PRODUCTS));
    stage_close(&s);
}

// Nothing after the last row of a piece is stored: what a row may not see is NaN.
static float *call(struct run *r, struct device *d, const struct attention_data *data, const struct piece *pieces,
                   int n_piece, int32_t page_rows, uint64_t shuffle) {
    const struct attention_case *c = data->c;
    int64_t width = (int64_t)c->n_head * c->head_dim, n_row = 0;
    struct kv_lane lanes[KV_MAX_LANES];
    for (int i = 0; i < n_piece; i++) {
        int32_t position = c->lanes[pieces[i].lane].position + pieces[i].first;
        const struct kv_rows *stored = &data->stored[pieces[i].lane];
        lanes[i] = (struct kv_lane){position,        pieces[i].n_row, position + pieces[i].n_row, stored->k, stored->v,
                                    stored->k_scale, stored->v_scale};
        n_row += pieces[i].n_row;
    }
    float *q = arena_alloc(r->arena, (size_t)(n_row * width) * sizeof(float));
    float *qg = arena_alloc(r->arena, (size_t)(2 * n_row * width) * sizeof(float));
    for (int64_t i = 0, t = 0; i < n_piece; t += pieces[i++].n_row) {
        int64_t from = data->row0[pieces[i].lane] + pieces[i].first;
        memcpy(q + t * width, data->q + from * width, (size_t)(pieces[i].n_row * width) * sizeof(float));
        memcpy(qg + 2 * t * width, data->qg + 2 * from * width, (size_t)(2 * pieces[i].n_row * width) * sizeof(float));
    }
    struct stage s;
    stage_open(&s, r, d);
    struct kv_pool pool;
    kv_open(&pool, &s, &(struct kv_shape){c->n_kv_head, c->head_dim, data->kv}, c->form, page_rows, lanes, n_piece,
            false, shuffle);
    struct attention_args args = {
        .batch = &pool.batch,
        .n_head = c->n_head,
        .n_kv_head = c->n_kv_head,
        .head_dim = c->head_dim,
        .scale = (float)(1 / sqrt(c->head_dim)),
        .kv = pool.layer,
        .first_key = c->first_key,
        .q = stage_tensor(&s, q, n_row, width, d->activation),
        .qg = stage_tensor(&s, qg, n_row, 2 * width, d->activation),
        .out = stage_tensor_out(&s, n_row, width, d->activation),
    };
    struct weight w = {0};
    struct linear_args product = {0};
    if (data->product.n_out > 0) {
        w = stage_weight(&s, &data->product);
        product = product_of(&s, &w, args.out);
    }
    ops_of(r, d)->begin(d, &pool.batch);
    ops_of(r, d)->attention(d, &args);
    if (product.n_parts > 0) d->ops->linear(d, &product);
    float *got = stage_read(&s, args.out), *products = NULL;
    if (product.n_parts > 0) products = stage_read(&s, product.part[0].out);
    stage_close(&s);
    if (products != NULL) check_products(r, d, data, got, n_row, products);
    return got;
}

static void compare(struct run *r, const char *what, struct device *d, const struct attention_data *data,
                    const struct piece *pieces, int n_piece, int32_t page_rows, const float *all) {
    int64_t width = (int64_t)data->c->n_head * data->c->head_dim;
    const float *got = call(r, d, data, pieces, n_piece, page_rows, 91 + (uint64_t)page_rows);
    for (int i = 0; i < n_piece; got += pieces[i++].n_row * width)
        expect_same_bits(r, what, got, all + (data->row0[pieces[i].lane] + pieces[i].first) * width,
                         (size_t)(pieces[i].n_row * width));
}

// Rows: each lane alone, lanes in reverse order, and each row of a window as a window of its own.
static void check_rows(struct run *r, const struct attention_data *data, const float *all) {
    const struct attention_case *c = data->c;
    struct device *d = r->subject->device;
    struct piece reverse[KV_MAX_LANES];
    for (int i = 0; i < c->n_lane; i++) {
        struct piece alone = {i, 0, c->lanes[i].n_row};
        reverse[c->n_lane - 1 - i] = alone;
        if (c->n_lane > 1) compare(r, "a lane alone", d, data, &alone, 1, 64, all);
        for (int t = 0; t < c->lanes[i].n_row; t++)
            compare(r, "a row alone", d, data, &(struct piece){i, t, 1}, 1, 256, all);
    }
    if (c->n_lane > 1) compare(r, "lanes in reverse", d, data, reverse, c->n_lane, 96, all);
}

// Prompts: cut in two at every multiple of 64, and ended early at every kind of place.
static void check_prompt(struct run *r, const struct attention_data *data, const float *all) {
    static const int ends[] = {1, 2, 5, 63, 64, 65, 127};
    int n_row = data->n_row;
    for (int cut = 64; cut < n_row; cut += 64) {
        compare(r, "the part after a cut", r->subject->device, data, &(struct piece){0, cut, n_row - cut}, 1, 96, all);
        compare(r, "the part before a cut", r->subject->device, data, &(struct piece){0, 0, cut}, 1, 256, all);
    }
    for (int i = 0; i < 7; i++)
        if (ends[i] < n_row)
            compare(r, "a shorter pass", r->subject->device, data, &(struct piece){0, 0, ends[i]}, 1, 64, all);
}

static void attention_case(struct run *r, enum dtype kv, const struct attention_case *c) {
    static const int32_t page_rows[] = {1, 64, 96, 256, 4096};
    if (case_done(r)) return;
    case_begin(r, "heads %d/%d of %d, %d lanes, %d at %d, peak %g", c->n_head, c->n_kv_head, c->head_dim, c->n_lane,
               c->lanes[0].n_row, c->lanes[0].position, c->peak);
    struct attention_data data = make_data(r, c, kv);
    struct piece whole[KV_MAX_LANES];
    for (int i = 0; i < c->n_lane; i++) whole[i] = (struct piece){i, 0, c->lanes[i].n_row};
    const float *all = call(r, r->subject->device, &data, whole, c->n_lane, 17, 90);
    const struct tolerance *t = r->subject->device->compute == COMPUTE_F32 ? &attention_f32 : tolerance_sum(r);
    expect_close(r, "outputs", all, oracle(r, &data), (size_t)(data.n_row * c->n_head * c->head_dim), t);
    if (case_done(r)) return;
    for (int i = 0; i < (c->head_dim > KV_LONG_PAGE_DIM ? 4 : 5); i++)
        compare(r, "another page size", r->subject->device, &data, whole, c->n_lane, page_rows[i], all);
    for (int i = 0; i < 2; i++)
        if (r->subject->others[i] != NULL)
            compare(r, "other threads", r->subject->others[i], &data, whole, c->n_lane, 64, all);
    if (c->form == FORM_ROWS)
        check_rows(r, &data, all);
    else
        check_prompt(r, &data, all);
}

static void rows_cases(struct run *r, enum dtype kv) {
    attention_case(r, kv, &(struct attention_case){FORM_ROWS, 4, 2, 32, 2, 3, {{70, 3}, {0, 1}, {510, 4}}, 0});
    attention_case(r, kv, &(struct attention_case){FORM_ROWS, 4, 2, 32, 2, 3, {{1, 3}, {64, 1}, {510, 4}}, 1});
    if (r->hunting) return;
    attention_case(r, kv,
                   &(struct attention_case){FORM_ROWS, 6, 2, 16, 1, 4, {{0, 5}, {63, 1}, {64, 2}, {1022, 4}}, 0});
    attention_case(r, kv, &(struct attention_case){FORM_ROWS, 4, 4, 64, 8, 2, {{127, 3}, {300, 1}}, 0});
    attention_case(r, kv, &(struct attention_case){FORM_ROWS, 6, 1, 256, 3, 2, {{511, 3}, {65, 1}}, 0});
    attention_case(r, kv, &(struct attention_case){FORM_ROWS, 6, 2, 128, 3, 3, {{511, 3}, {65, 1}, {1500, 4}}, 0});
    attention_case(r, kv, &(struct attention_case){FORM_ROWS, 2, 1, 64, 2, 1, {{4094, 5}}, 0});
}

static void prompt_cases(struct run *r, enum dtype kv) {
    static const int n_rows[] = {1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 200};
    attention_case(r, kv, &(struct attention_case){FORM_PROMPT, 4, 2, 16, 2, 1, {{64, 70}}, 0});
    if (r->hunting) return;
    for (int i = 0; i < 12; i++)
        attention_case(
            r, kv,
            &(struct attention_case){FORM_PROMPT, 4, 1 + i % 2, 32, 1 + i % 3, 1, {{i % 2 * 192, n_rows[i]}}, 0});
    attention_case(r, kv, &(struct attention_case){FORM_PROMPT, 6, 1, 256, 3, 1, {{192, 66}}, 0});
    attention_case(r, kv, &(struct attention_case){FORM_PROMPT, 2, 1, 256, 2, 1, {{448, 150}}, 0});
    attention_case(r, kv, &(struct attention_case){FORM_PROMPT, 2, 1, 256, 2, 1, {{2112, 20}}, 0}); // over 32 pages
    attention_case(r, kv, &(struct attention_case){FORM_PROMPT, 2, 1, 64, 3, 1, {{4032, 64}}, 0});
}

static void run_rows(struct run *r) { rows_cases(r, r->subject->device->kv); }
static void run_prompt(struct run *r) { prompt_cases(r, r->subject->device->kv); }
static void run_rows_e4m3(struct run *r) { rows_cases(r, DTYPE_E4M3); }
static void run_prompt_e4m3(struct run *r) { prompt_cases(r, DTYPE_E4M3); }

// ---- faults ----

static void with_lane(struct device *d, const struct attention_args *a, int index, struct lane lane) {
    struct lane lanes[KV_MAX_LANES];
    memcpy(lanes, a->batch->lanes, (size_t)a->batch->n_lane * sizeof *lanes);
    lanes[index] = lane;
    struct batch batch = *a->batch;
    batch.lanes = lanes;
    struct attention_args b = *a;
    b.batch = &batch;
    d->ops->attention(d, &b);
}

static void swapped_pages(struct device *d, const struct attention_args *a) {
    int32_t pages[8192];
    struct lane lane = a->batch->lanes[0];
    memcpy(pages, lane.pages, (size_t)lane.n_page * sizeof *pages);
    if (lane.n_page > 1) {
        pages[0] = lane.pages[1];
        pages[1] = lane.pages[0];
    }
    lane.pages = pages;
    with_lane(d, a, 0, lane);
}

static void sees_one_less(struct device *d, const struct attention_args *a) {
    struct lane lane = a->batch->lanes[0];
    if (a->batch->form == FORM_ROWS && lane.position > 0) lane.position--;
    if (a->batch->form == FORM_PROMPT && lane.position > 0) lane.position -= 64;
    with_lane(d, a, 0, lane);
}

static void wrong_head(struct device *d, const struct attention_args *a) {
    struct attention_args b = *a;
    b.kv.layer_offset -= (int64_t)a->kv.page_rows * a->head_dim * (int64_t)dtype_bytes(a->kv.dtype);
    d->ops->attention(d, &b);
}

static void wrong_scale(struct device *d, const struct attention_args *a) {
    struct attention_args b = *a;
    b.scale = 1.0f / (float)a->head_dim;
    d->ops->attention(d, &b);
}

static void query_as_gate(struct device *d, const struct attention_args *a) {
    struct attention_args b = *a;
    b.qg.data = (char *)a->qg.data - (size_t)a->head_dim * dtype_bytes(a->qg.dtype);
    d->ops->attention(d, &b);
}

static void sees_the_first(struct device *d, const struct attention_args *a) {
    struct attention_args b = *a;
    b.first_key = 0;
    d->ops->attention(d, &b);
}

static void scaled(struct device *d, const struct attention_args *a) {
    d->ops->attention(d, a);
    for (int64_t col = 0; col < 16; col++) corrupt_scale(d, a->out, a->out.n_row - 1, col, 1.02);
}

static void past_end(struct device *d, const struct attention_args *a) {
    d->ops->attention(d, a);
    corrupt_past_end(d, a->out);
}

static void stale_row(struct device *d, const struct attention_args *a) {
    d->ops->attention(d, a);
    if (a->out.n_row > 1) corrupt_copy_row(d, a->out, 1, 0);
}

static void split_by_rows(struct device *d, const struct attention_args *a) {
    d->ops->attention(d, a);
    if (a->out.n_row > 1) corrupt_last_bit(d, a->out, 0, 0);
}

// Of e4m3: with another scale for the values of KV head 0 at the first position, which is put back afterwards.
static void with_scale(struct device *d, const struct attention_args *a, float (*change)(float)) {
    char *at = (char *)a->kv.pages + kv_scale_offset(&a->kv, &a->batch->lanes[0], a->n_kv_head, 0, 0, true);
    float right, wrong;
    d->copy_out(d, &right, at, sizeof right);
    wrong = change(right);
    d->copy_in(d, at, &wrong, sizeof wrong);
    d->ops->attention(d, a);
    struct error e;
    must(d->sync(d, &e) == STATUS_OK);
    d->copy_in(d, at, &right, sizeof right);
}

static float one(float scale) {
    (void)scale;
    return 1;
}
static float twice(float scale) { return 2 * scale; }

static void no_scale(struct device *d, const struct attention_args *a) { with_scale(d, a, one); }
static void twice_the_scale(struct device *d, const struct attention_args *a) { with_scale(d, a, twice); }

static void with_scales_at(struct device *d, const struct attention_args *a, int64_t rows_off) {
    struct attention_args b = *a;
    b.kv.scale_offset += rows_off * (int64_t)sizeof(float);
    d->ops->attention(d, &b);
}

static void scale_of_next(struct device *d, const struct attention_args *a) { with_scales_at(d, a, 1); }
static void scale_of_head(struct device *d, const struct attention_args *a) { with_scales_at(d, a, a->kv.page_rows); }

// The values' scales for the keys.
static void scale_of_values(struct device *d, const struct attention_args *a) {
    with_scales_at(d, a, (int64_t)a->n_kv_head * a->kv.page_rows);
}

static void plant_pages(struct ops *o) { o->attention = swapped_pages; }
static void plant_mask(struct ops *o) { o->attention = sees_one_less; }
static void plant_head(struct ops *o) { o->attention = wrong_head; }
static void plant_scale(struct ops *o) { o->attention = wrong_scale; }
static void plant_gate(struct ops *o) { o->attention = query_as_gate; }
static void plant_first(struct ops *o) { o->attention = sees_the_first; }
static void plant_scaled(struct ops *o) { o->attention = scaled; }
static void plant_end(struct ops *o) { o->attention = past_end; }
static void plant_stale(struct ops *o) { o->attention = stale_row; }
static void plant_split(struct ops *o) { o->attention = split_by_rows; }
static void plant_no_scale(struct ops *o) { o->attention = no_scale; }
static void plant_twice(struct ops *o) { o->attention = twice_the_scale; }
static void plant_next_scale(struct ops *o) { o->attention = scale_of_next; }
static void plant_head_scale(struct ops *o) { o->attention = scale_of_head; }
static void plant_value_scale(struct ops *o) { o->attention = scale_of_values; }

// Those from N_FAULTS on are for e4m3 only; the first one is for rows only.
#define N_FAULTS 10
static const struct fault faults[] = {
    {"a key before the first one", plant_first},
    {"two pages swapped", plant_pages},
    {"the newest keys not seen", plant_mask},
    {"KV head off by one", plant_head},
    {"scale 1 / D", plant_scale},
    {"the query taken as gate", plant_gate},
    {"elements times 1.02", plant_scaled},
    {"one past the end", plant_end},
    {"a stale row", plant_stale},
    {"a last bit that depends on T", plant_split},
    {"a scale left out", plant_no_scale},
    {"a scale doubled", plant_twice},
    {"the next position's scale", plant_next_scale},
    {"the next head's scale", plant_head_scale},
    {"a value's scale for a key", plant_value_scale},
};
#define N_FAULTS_E4M3 ((int)(sizeof faults / sizeof *faults))

#define ROWS_LIMITS                                                                                                    \
    {                                                                                                                  \
        .max_round_rows = 16, .max_in = 1536, .max_out = PRODUCTS, .head_dim = 256, .n_head = 6, .n_kv_head = 1,       \
        .max_context = MAX_CONTEXT, .max_lanes = 8, .max_window = CHECK_WINDOW                                         \
    }
const struct suite suite_attention = {"qwen-pages", "attention", run_rows, faults, N_FAULTS, ROWS_LIMITS};
const struct suite suite_attention_e4m3 = {"qwen-pages", "attention-e4m3", run_rows_e4m3,
                                           faults,       N_FAULTS_E4M3,    ROWS_LIMITS};

#define PROMPT_LIMITS                                                                                                  \
    {                                                                                                                  \
        .max_rows = 200, .head_dim = 256, .n_head = 6, .n_kv_head = 1, .max_context = MAX_CONTEXT, .max_lanes = 1,     \
        .max_window = CHECK_WINDOW                                                                                     \
    }
const struct suite suite_attention_prompt = {"qwen-pages", "attention-prompt", run_prompt,
                                             faults + 1,   N_FAULTS - 1,       PROMPT_LIMITS};
const struct suite suite_attention_prompt_e4m3 = {"qwen-pages", "attention-prompt-e4m3", run_prompt_e4m3,
                                                  faults + 1,   N_FAULTS_E4M3 - 1,       PROMPT_LIMITS};
