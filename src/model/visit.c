// Goes over what a stream keeps, in an order that does not depend on where it lies.
#include "model/internal.h"

struct visitor {
    struct model *m;
    const struct lane *lane;
    model_visit_fn *fn;
    void *context;
};

void visit_memory(struct device *d, const void *memory, int64_t bytes, model_visit_fn *fn, void *context) {
    char part[1 << 16];
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof part) {
        int64_t n = bytes - at < (int64_t)sizeof part ? bytes - at : (int64_t)sizeof part;
        d->copy_out(d, part, (const char *)memory + at, (size_t)n);
        fn(context, part, (size_t)n);
    }
}

static void visit(const struct visitor *v, const void *memory, int64_t bytes) {
    visit_memory(v->m->device, memory, bytes, v->fn, v->context);
}

static void visit_delta_layer(const struct visitor *v, int64_t i) {
    const struct model_config *c = &v->m->config;
    const struct run_layout *run = &v->m->run;
    const char *base = v->lane->run;
    int64_t row_bytes = config_n_channels(c) * (int64_t)dtype_bytes(v->m->device->activation);
    visit(v, base + run_state_offset(run, i), c->n_value_heads * c->key_dim * c->value_dim * (int64_t)sizeof(float));
    int64_t first = v->lane->position - (c->n_taps - 1);
    for (int64_t p = first < 0 ? 0 : first; p < v->lane->position; p++)
        visit(v, base + run_ring_offset(run, i) + p % run->ring_rows * row_bytes, row_bytes);
}

// Head by head: its rows lie together in a page, so that a copy takes all of them. In fp8, codes and then scales.
static void visit_attention_layer(const struct visitor *v, const char *pages, int64_t i, int64_t first) {
    const struct model_config *c = &v->m->config;
    const struct page_layout *l = &v->m->page;
    int64_t n_row = v->m->limits.page_rows, row_bytes = c->head_dim * (int64_t)dtype_bytes(v->m->limits.kv);
    int64_t unit[2] = {row_bytes, sizeof(float)}, start[2] = {i * l->layer_bytes, l->scale_start + i * l->scale_bytes};
    for (int64_t h = 0; h < 2 * c->n_kv_heads; h++) // keys of all heads, then values
        for (int kind = 0; kind < (l->scale_bytes > 0 ? 2 : 1); kind++)
            for (int64_t p = first, n; p < v->lane->position; p += n) {
                const char *page = pages + v->lane->pages[p / n_row] * l->page_bytes;
                n = n_row - p % n_row < v->lane->position - p ? n_row - p % n_row : v->lane->position - p;
                visit(v, page + start[kind] + (h * n_row + p % n_row) * unit[kind], n * unit[kind]);
            }
}

void model_visit_lane(struct model *m, const struct lane *lane, const void *pages, model_visit_fn *fn, void *context) {
    struct visitor v = {m, lane, fn, context};
    for (int64_t i = 0; i < m->config.n_delta_layers; i++) visit_delta_layer(&v, i);
    for (int64_t i = 0; i < m->config.n_attention_layers; i++) visit_attention_layer(&v, pages, i, 0);
}

void model_visit_mtp(struct model *m, const struct lane *lane, const void *pages, model_visit_fn *fn, void *context) {
    struct visitor v = {m, lane, fn, context};
    visit_attention_layer(&v, pages, m->config.n_attention_layers, 1); // no row sees the first
}
