#include "check/kv.h"
#include "base/numeric.h"
#include "base/random.h"
#include <string.h>

static size_t row_offset(const struct kv_pool *p, const struct lane *lane, int head, int64_t position, bool is_value) {
    int64_t plane = (int64_t)p->shape.n_kv_head * p->page_rows;
    int64_t row = (is_value ? plane : 0) + (int64_t)head * p->page_rows + position % p->page_rows;
    int64_t page = lane->pages[position / p->page_rows];
    return (size_t)(page * p->layer.page_bytes + p->layer.layer_offset) +
           (size_t)(row * p->shape.head_dim) * dtype_bytes(p->shape.dtype);
}

static void put_row(enum dtype t, unsigned char *to, const float *x, int n) {
    for (int i = 0; i < n; i++) {
        uint16_t half = float_to_bf16(x[i]);
        memcpy(to + (size_t)i * dtype_bytes(t), t == DTYPE_F32 ? (const void *)&x[i] : (const void *)&half,
               dtype_bytes(t));
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

static void fill_pool(const struct kv_pool *p, const struct kv_lane *lanes, unsigned char *bytes,
                      unsigned char *may_write) {
    int n = p->shape.head_dim, width = p->shape.n_kv_head * n;
    for (int i = 0; i < p->batch.n_lane; i++) {
        const struct lane *lane = &p->lanes[i];
        for (int h = 0; h < p->shape.n_kv_head; h++) {
            for (int32_t j = 0; j < lanes[i].n_stored; j++) {
                put_row(p->shape.dtype, bytes + row_offset(p, lane, h, j, false),
                        lanes[i].k + (int64_t)j * width + h * n, n);
                put_row(p->shape.dtype, bytes + row_offset(p, lane, h, j, true),
                        lanes[i].v + (int64_t)j * width + h * n, n);
            }
            for (int32_t j = lane->position; j < lane->position + lane->n_row; j++)
                for (int is_value = 0; is_value < 2; is_value++)
                    memset(may_write + row_offset(p, lane, h, j, is_value), 1, (size_t)n * dtype_bytes(p->shape.dtype));
        }
    }
}

void kv_open(struct kv_pool *p, struct stage *s, const struct kv_shape *shape, enum form form, int32_t page_rows,
             const struct kv_lane *lanes, int n_lane, bool may_store, uint64_t shuffle) {
    *p = (struct kv_pool){.shape = *shape, .page_rows = page_rows};
    p->batch = (struct batch){.form = form, .n_lane = n_lane, .max_window = CHECK_WINDOW, .lanes = p->lanes};
    for (int i = 0; i < n_lane; i++) {
        p->lanes[i] = (struct lane){.row0 = p->batch.n_row, .n_row = lanes[i].n_row, .position = lanes[i].position};
        p->batch.n_row += lanes[i].n_row;
    }
    int64_t layer_bytes =
        (int64_t)2 * shape->n_kv_head * page_rows * shape->head_dim * (int64_t)dtype_bytes(shape->dtype);
    p->layer = (struct kv_layer){.page_bytes = KV_LAYERS * layer_bytes,
                                 .layer_offset = layer_bytes,
                                 .page_rows = page_rows,
                                 .dtype = shape->dtype};
    p->bytes = (size_t)(assign_pages(p, s->run, lanes, shuffle) * p->layer.page_bytes);
    unsigned char *bytes = arena_alloc(s->run->arena, p->bytes),
                  *may_write = arena_alloc_zero(s->run->arena, p->bytes, 1);
    must(bytes != NULL && may_write != NULL);
    memset(bytes, 0xff, p->bytes);
    fill_pool(p, lanes, bytes, may_write);
    p->layer.pages = may_store ? stage_inout(s, bytes, p->bytes, may_write) : stage_input(s, bytes, p->bytes);
}

void kv_read_rows(struct kv_pool *p, struct stage *s, float *k, float *v) {
    unsigned char *bytes = arena_alloc(s->run->arena, p->bytes);
    must(bytes != NULL);
    stage_read_bytes(s, p->layer.pages, bytes, p->bytes);
    int n = p->shape.head_dim, width = p->shape.n_kv_head * n;
    for (int i = 0; i < p->batch.n_lane; i++) {
        const struct lane *lane = &p->lanes[i];
        for (int64_t e = 0; e < (int64_t)lane->n_row * width; e++) {
            int64_t t = e / width;
            for (int is_value = 0; is_value < 2; is_value++) {
                size_t at = row_offset(p, lane, (int)(e % width) / n, lane->position + t, is_value) +
                            (size_t)(e % n) * dtype_bytes(p->shape.dtype);
                float x;
                uint16_t half;
                memcpy(&half, bytes + at, sizeof half);
                if (p->shape.dtype == DTYPE_F32)
                    memcpy(&x, bytes + at, sizeof x);
                else
                    x = bf16_to_float(half);
                (is_value ? v : k)[lane->row0 * (int64_t)width + e] = x;
            }
        }
    }
}
