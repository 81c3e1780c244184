#include "check/kv.h"
#include "base/numeric.h"
#include "base/random.h"
#include <math.h>
#include <string.h>

static int64_t nth_row(const struct kv_layer *l, int n_kv_head, int head, int64_t position, bool is_value) {
    return ((int64_t)(is_value ? n_kv_head : 0) + head) * l->page_rows + position % l->page_rows;
}

static size_t row_offset(const struct kv_pool *p, const struct lane *lane, int head, int64_t position, bool is_value) {
    int64_t row = nth_row(&p->layer, p->shape.n_kv_head, head, position, is_value);
    int64_t page = lane->pages[position / p->page_rows];
    return (size_t)(page * p->layer.page_bytes + p->layer.layer_offset) +
           (size_t)(row * p->shape.head_dim) * dtype_bytes(p->shape.dtype);
}

size_t kv_scale_offset(const struct kv_layer *l, const struct lane *lane, int n_kv_head, int head, int64_t position,
                       bool is_value) {
    int64_t row = nth_row(l, n_kv_head, head, position, is_value), page = lane->pages[position / l->page_rows];
    return (size_t)(page * l->page_bytes + l->scale_offset) + (size_t)row * sizeof(float);
}

static size_t scale_offset(const struct kv_pool *p, const struct lane *lane, int head, int64_t position,
                           bool is_value) {
    return kv_scale_offset(&p->layer, lane, p->shape.n_kv_head, head, position, is_value);
}

void kv_round_e4m3(float *x, int64_t n_vector, int head_dim, float *scales) {
    for (int64_t v = 0; v < n_vector; v++, x += head_dim) {
        float most = 0;
        for (int i = 0; i < head_dim; i++) most = fmaxf(most, fabsf(x[i]));
        scales[v] = most / 448.0f;
        for (int i = 0; i < head_dim; i++)
            x[i] = most > 0 ? e4m3_to_float(float_to_e4m3(x[i] / scales[v])) * scales[v] : 0;
    }
}

// A vector that is already in the cache's precision; of e4m3 the scale decides the codes, which division finds again.
static void put_row(enum dtype t, unsigned char *to, const float *x, int n, float scale) {
    for (int i = 0; i < n; i++) {
        uint16_t half = float_to_bf16(x[i]);
        uint8_t code = scale > 0 ? float_to_e4m3(x[i] / scale) : 0;
        const void *from = t == DTYPE_F32 ? (const void *)&x[i] : t == DTYPE_E4M3 ? (const void *)&code : &half;
        memcpy(to + (size_t)i * dtype_bytes(t), from, dtype_bytes(t));
    }
}

// The first page of a lane that is touched: of what is stored, or else of the call's rows.
static int32_t first_page(const struct kv_pool *p, const struct kv_lane *lane) {
    return lane->n_stored > 0 ? 0 : lane->position / p->page_rows;
}

// Gives the lanes their pages out of a shuffled pool that has a few pages more than are needed. A page that holds
// nothing and receives nothing has a number far outside the pool.
static int32_t assign_pages(struct kv_pool *p, struct run *r, const struct kv_lane *lanes, uint64_t shuffle) {
    int32_t n_page = 2, next = 0;
    for (int i = 0; i < p->batch.n_lane; i++) {
        struct lane *lane = &p->lanes[i];
        lane->n_page = (lane->position + lane->n_row + p->page_rows - 1) / p->page_rows;
        n_page += lane->n_page - first_page(p, &lanes[i]);
    }
    int32_t *order = arena_alloc(r->arena, (size_t)n_page * sizeof(int32_t));
    must(order != NULL);
    for (int32_t i = 0; i < n_page; i++) order[i] = i;
    for (int32_t i = n_page - 1; i > 0; i--) {
        int32_t j = (int32_t)(random_bits(shuffle, 7, (uint64_t)i) % (uint64_t)(i + 1)), other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
    for (int i = 0; i < p->batch.n_lane; i++) {
        int32_t *pages = arena_alloc(r->arena, (size_t)p->lanes[i].n_page * sizeof(int32_t));
        must(pages != NULL);
        for (int32_t j = 0; j < p->lanes[i].n_page; j++)
            pages[j] = j < first_page(p, &lanes[i]) ? INT32_MIN : order[next++];
        p->lanes[i].pages = pages;
    }
    return n_page;
}

// Keys or values of one KV head: what is stored, and where the call's rows may be written.
static void fill_head(const struct kv_pool *p, const struct lane *lane, const struct kv_lane *what, int h,
                      bool is_value, unsigned char *bytes, unsigned char *may_write) {
    int n = p->shape.head_dim, n_head = p->shape.n_kv_head;
    const float *rows = is_value ? what->v : what->k, *scales = is_value ? what->v_scale : what->k_scale;
    bool scaled = p->shape.dtype == DTYPE_E4M3;
    for (int64_t j = 0; j < what->n_stored; j++) {
        float scale = scaled ? scales[j * n_head + h] : 1;
        put_row(p->shape.dtype, bytes + row_offset(p, lane, h, j, is_value), rows + (j * n_head + h) * n, n, scale);
        if (scaled) memcpy(bytes + scale_offset(p, lane, h, j, is_value), &scale, sizeof scale);
    }
    for (int64_t j = lane->position; j < lane->position + lane->n_row; j++) {
        memset(may_write + row_offset(p, lane, h, j, is_value), 1, (size_t)n * dtype_bytes(p->shape.dtype));
        if (scaled) memset(may_write + scale_offset(p, lane, h, j, is_value), 1, sizeof(float));
    }
}

static void fill_pool(const struct kv_pool *p, const struct kv_lane *lanes, unsigned char *bytes,
                      unsigned char *may_write) {
    for (int i = 0; i < p->batch.n_lane; i++)
        for (int h = 0; h < p->shape.n_kv_head; h++)
            for (int is_value = 0; is_value < 2; is_value++)
                fill_head(p, &p->lanes[i], &lanes[i], h, is_value, bytes, may_write);
}

// The second layer of a page: what is before it and behind it belongs to the first.
static struct kv_layer lay_out(const struct kv_shape *shape, int32_t page_rows) {
    int64_t n_vector = (int64_t)2 * shape->n_kv_head * page_rows;
    int64_t layer_bytes = n_vector * shape->head_dim * (int64_t)dtype_bytes(shape->dtype);
    int64_t scale_bytes = n_vector * (int64_t)sizeof(float), scale_start = KV_LAYERS * layer_bytes;
    struct kv_layer l = {.page_bytes = KV_LAYERS * layer_bytes,
                         .layer_offset = layer_bytes,
                         .page_rows = page_rows,
                         .dtype = shape->dtype};
    if (shape->dtype != DTYPE_E4M3) return l;
    l.scale_offset = scale_start + scale_bytes;
    l.page_bytes = (scale_start + KV_LAYERS * scale_bytes + 255) / 256 * 256;
    return l;
}

void kv_open(struct kv_pool *p, struct stage *s, const struct kv_shape *shape, enum form form, int32_t page_rows,
             const struct kv_lane *lanes, int n_lane, bool may_store, uint64_t shuffle) {
    *p = (struct kv_pool){.shape = *shape, .page_rows = page_rows};
    p->batch = (struct batch){.form = form, .n_lane = n_lane, .max_window = CHECK_WINDOW, .lanes = p->lanes};
    for (int i = 0; i < n_lane; i++) {
        p->lanes[i] = (struct lane){.row0 = p->batch.n_row, .n_row = lanes[i].n_row, .position = lanes[i].position};
        p->batch.n_row += lanes[i].n_row;
    }
    p->layer = lay_out(shape, page_rows);
    p->bytes = (size_t)(assign_pages(p, s->run, lanes, shuffle) * p->layer.page_bytes);
    unsigned char *bytes = arena_alloc(s->run->arena, p->bytes),
                  *may_write = arena_alloc_zero(s->run->arena, p->bytes, 1);
    must(bytes != NULL && may_write != NULL);
    memset(bytes, 0xff, p->bytes);
    fill_pool(p, lanes, bytes, may_write);
    p->layer.pages = may_store ? stage_inout(s, bytes, p->bytes, may_write) : stage_input(s, bytes, p->bytes);
}

static float get_element(enum dtype t, const unsigned char *at) {
    float x;
    uint16_t half;
    if (t == DTYPE_E4M3) return e4m3_to_float(*at);
    memcpy(&half, at, sizeof half);
    if (t == DTYPE_BF16) return bf16_to_float(half);
    memcpy(&x, at, sizeof x);
    return x;
}

void kv_read_rows(struct kv_pool *p, struct stage *s, struct kv_rows *out) {
    unsigned char *bytes = arena_alloc(s->run->arena, p->bytes);
    must(bytes != NULL);
    stage_read_bytes(s, p->layer.pages, bytes, p->bytes);
    int n = p->shape.head_dim, n_head = p->shape.n_kv_head;
    float *x[2], *scales[2];
    for (int is_value = 0; is_value < 2; is_value++) {
        x[is_value] = arena_alloc(s->run->arena, (size_t)(p->batch.n_row * n_head * n) * sizeof(float));
        scales[is_value] = arena_alloc(s->run->arena, (size_t)(p->batch.n_row * n_head) * sizeof(float));
        must(x[is_value] != NULL && scales[is_value] != NULL);
    }
    for (int i = 0; i < p->batch.n_lane; i++) {
        const struct lane *lane = &p->lanes[i];
        for (int64_t e = 0; e < (int64_t)lane->n_row * n_head * 2; e++) {
            int64_t t = e / (2 * n_head), vector = (lane->row0 + t) * n_head + e / 2 % n_head;
            int h = (int)(e / 2 % n_head), is_value = (int)(e % 2);
            float scale = 1;
            if (p->shape.dtype == DTYPE_E4M3)
                memcpy(&scale, bytes + scale_offset(p, lane, h, lane->position + t, is_value), sizeof scale);
            const unsigned char *row = bytes + row_offset(p, lane, h, lane->position + t, is_value);
            for (int j = 0; j < n; j++)
                x[is_value][vector * n + j] =
                    get_element(p->shape.dtype, row + (size_t)j * dtype_bytes(p->shape.dtype)) * scale;
            scales[is_value][vector] = scale;
        }
    }
    *out = (struct kv_rows){x[0], x[1], scales[0], scales[1]};
}
