// A drafter's life: opening, sizes, loading, and the scratch of its calls.
#include "model/drafter_internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t align_up(int64_t bytes) { return (bytes + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN; }

// ---- opening ----

// The block's own rows lie in the ring too, behind the rows that it sees. Whole tiles of 64 keys, so that none of them
// goes over the ring's end.
static int32_t find_ring_rows(const struct drafter_config *c) {
    int32_t window = 1;
    for (int64_t i = 0; i < c->n_layers; i++) window = c->window[i] > window ? c->window[i] : window;
    return (window - 1 + c->block + 63) / 64 * 64;
}

enum status drafter_open(const char *dir, const struct model *target, int bits, struct drafter **out, struct error *e) {
    must(bits == 0 || bits == 4);
    struct drafter *d = calloc(1, sizeof *d);
    if (d == NULL) return error_memory(e);
    d->target = target;
    d->bits = bits;
    enum status s = checkpoint_open(dir, &d->checkpoint, e);
    if (s == STATUS_OK) {
        s = drafter_parse_config(checkpoint_config(d->checkpoint), &target->config, &d->config, e);
        if (s != STATUS_OK) error_prefix(e, "%s", dir);
    }
    if (s == STATUS_OK) s = drafter_take_weights(d, e);
    if (s != STATUS_OK) {
        drafter_free(d);
        return s;
    }
    d->ring_rows = find_ring_rows(&d->config);
    d->weight_bytes = drafter_count_bytes(d);
    *out = d;
    return STATUS_OK;
}

static void free_calls(struct drafter *d) {
    if (d->memory != NULL) d->device->release(d->device, d->memory);
    free(d->lanes);
    free(d->ids);
    free(d->first);
    free(d->pages);
    free(d->params);
    free(d->results);
    free(d->first_logits);
    free(d->host_edges);
    d->memory = NULL;
    d->lanes = NULL;
    d->ids = d->first = d->pages = NULL;
    d->params = NULL;
    d->results = NULL;
    d->first_logits = d->host_edges = NULL;
}

void drafter_free(struct drafter *d) {
    if (d == NULL) return;
    free_calls(d);
    if (d->device_weights != NULL) d->device->release(d->device, d->device_weights);
    if (d->inv_freq != NULL) d->device->release(d->device, d->inv_freq);
    arena_free(d->matrices);
    weights_free(d->loaded);
    drafter_config_free(&d->config);
    checkpoint_free(d->checkpoint);
    free(d);
}

// ---- sizes ----

const char *drafter_kind(const struct drafter *d) { return d->config.has_selector ? "DFlash2" : "DFlash"; }

int32_t drafter_block(const struct drafter *d) { return d->config.block; }

const int32_t *drafter_tap_layers(const struct drafter *d, int32_t *n) {
    *n = d->config.n_tap;
    return d->config.taps;
}

int64_t drafter_weight_bytes(const struct drafter *d) { return d->weight_bytes; }

// The codebooks are read a few rows at a time, and by the host.
int64_t drafter_round_bytes(const struct drafter *d) {
    const struct weight *const codebooks[] = {&d->weights.predecessor, &d->weights.successor};
    int64_t bytes = d->weight_bytes + weight_stored_bytes(&d->target->weights->output);
    for (int i = 0; i < 2 && d->config.has_selector; i++) bytes -= weight_stored_bytes(codebooks[i]);
    return bytes;
}

static int64_t ring_layer_bytes(const struct drafter *d, enum dtype kv) {
    const struct drafter_config *c = &d->config;
    return align_up(2 * c->n_kv_heads * c->head_dim * (int64_t)d->ring_rows * (int64_t)dtype_bytes(kv));
}

int64_t drafter_ring_bytes(const struct drafter *d, enum dtype kv) {
    return d->config.n_layers * ring_layer_bytes(d, kv);
}

int64_t drafter_lane_bytes(const struct drafter *d, enum dtype kv, enum dtype activation) {
    int64_t row = d->config.n_tap * d->config.n_hidden * (int64_t)dtype_bytes(activation);
    return drafter_ring_bytes(d, kv) + align_up(DRAFTER_BACKLOG * row);
}

// A ring is one page of ring_rows rows that a page table names again and again: position p lies in its row
// p % ring_rows. Page numbers count LAYOUT_ALIGN bytes from `base`.
struct kv_layer drafter_ring(const struct drafter *d, const void *base, int64_t layer) {
    return (struct kv_layer){.pages = (void *)(uintptr_t)base,
                             .page_bytes = LAYOUT_ALIGN,
                             .layer_offset = layer * ring_layer_bytes(d, d->device->kv),
                             .page_rows = d->ring_rows,
                             .dtype = d->device->kv};
}

static int64_t batch_rows(const struct drafter *d, const struct model_limits *l) {
    return most((int64_t)drafter_batch_lanes(l) * d->config.block, DRAFTER_BACKLOG);
}

void drafter_raise_limits(const struct drafter *d, const struct model_limits *limits, struct device_limits *out) {
    const struct drafter_config *c = &d->config;
    int64_t width = most(c->n_heads * c->head_dim, most(c->n_hidden, c->n_intermediate));
    int64_t kernels = c->has_selector ? 2 * c->conv_taps * (c->n_hidden / c->conv_group) : 0;
    out->max_rows = most(out->max_rows, limits->pass_rows);
    out->max_round_rows = most(out->max_round_rows, batch_rows(d, limits));
    out->max_in = most(out->max_in, width);
    out->max_out = most(out->max_out, most(width, most(kernels, c->rank)));
    out->block_rows = c->block;
    out->block_window = d->ring_rows; // no layer sees more
    out->block_head_dim = c->head_dim;
    out->block_n_head = c->n_heads;
    out->block_n_kv_head = c->n_kv_heads;
}

struct cursor {
    char *base;
    int64_t used;
};

static struct tensor take(struct cursor *cur, enum dtype dtype, int64_t n_row, int64_t n_col) {
    void *data = cur->base == NULL ? NULL : cur->base + cur->used;
    cur->used += align_up(n_row * n_col * (int64_t)dtype_bytes(dtype));
    return (struct tensor){.data = data, .dtype = dtype, .n_row = n_row, .n_col = n_col, .stride = n_col};
}

static int64_t lay_out(const struct drafter *d, enum dtype activation, const struct model_limits *l, void *base,
                       struct drafter_scratch *s) {
    const struct drafter_config *c = &d->config;
    int64_t rows = batch_rows(d, l), H = c->n_hidden, Q = c->n_heads * c->head_dim, K = c->n_kv_heads * c->head_dim;
    int64_t features = most(rows, l->pass_rows),
            logits = most(1, rows < DRAFTER_LOGITS_ROWS ? rows : DRAFTER_LOGITS_ROWS);
    struct cursor cur = {.base = base};
    *s = (struct drafter_scratch){0};
    s->x = take(&cur, activation, rows, H);
    s->y = take(&cur, activation, rows, H);
    s->z = take(&cur, activation, rows, H);
    s->q = take(&cur, activation, rows, Q);
    s->attended = take(&cur, activation, rows, Q);
    s->gate = take(&cur, activation, rows, c->n_intermediate);
    s->up = take(&cur, activation, rows, c->n_intermediate);
    s->drafts = take(&cur, activation, rows, H);
    s->logits = take(&cur, DTYPE_F32, logits, c->n_vocab);
    s->features = take(&cur, activation, features, H);
    s->k = take(&cur, activation, features, K);
    s->v = take(&cur, activation, features, K);
    for (int i = 0; i < c->n_tap; i++) s->backlog[i] = take(&cur, activation, rows, H);
    if (!c->has_selector) return cur.used;
    s->dyn = take(&cur, DTYPE_F32, rows, 2 * c->conv_taps * (H / c->conv_group));
    s->edges = take(&cur, DTYPE_F32, rows, c->rank);
    return cur.used;
}

int64_t drafter_scratch_bytes(const struct drafter *d, const struct device *device, const struct model_limits *limits) {
    struct drafter_scratch unplaced;
    return lay_out(d, device->activation, limits, NULL, &unplaced);
}

// ---- loading ----

static enum status make_inv_freq(struct drafter *d, struct error *e) {
    int64_t n = d->config.head_dim / 2;
    float *values = malloc((size_t)n * sizeof *values);
    d->inv_freq = d->device->alloc(d->device, (size_t)n * sizeof *values);
    if (values == NULL || d->inv_freq == NULL) {
        free(values);
        return error_memory(e);
    }
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)pow(d->config.rope_theta, -2.0 * (double)i / (double)d->config.head_dim);
    d->device->copy_in(d->device, d->inv_freq, values, (size_t)n * sizeof *values);
    free(values);
    return STATUS_OK;
}

enum status drafter_set_limits(struct drafter *d, const struct model_limits *limits, struct error *e) {
    struct drafter_scratch s;
    size_t lanes = (size_t)drafter_batch_lanes(limits), rows = (size_t)batch_rows(d, limits);
    free_calls(d);
    d->limits = *limits;
    d->n_page = (limits->max_context + d->config.block) / d->ring_rows + 1;
    int64_t bytes = lay_out(d, d->device->activation, limits, NULL, &s);
    d->memory = d->device->alloc(d->device, (size_t)bytes);
    d->lanes = calloc(lanes, sizeof *d->lanes);
    d->ids = calloc(rows, sizeof *d->ids);
    d->first = calloc(lanes, sizeof *d->first);
    d->pages = calloc(lanes * (size_t)d->n_page, sizeof *d->pages);
    d->params = calloc(rows, sizeof *d->params);
    d->results = calloc(rows, sizeof *d->results);
    d->first_logits = calloc(rows, sizeof *d->first_logits);
    d->host_edges = calloc(rows * (size_t)most(d->config.rank, 1), sizeof *d->host_edges);
    if (d->memory == NULL)
        return error_set(e, STATUS_MEMORY, "%s has no %.1f MiB for the drafter's results between operations",
                         d->device->name, (double)bytes / (1 << 20));
    if (d->lanes == NULL || d->ids == NULL || d->first == NULL || d->pages == NULL || d->params == NULL ||
        d->results == NULL || d->first_logits == NULL || d->host_edges == NULL)
        return error_memory(e);
    lay_out(d, d->device->activation, limits, d->memory, &d->scratch);
    return STATUS_OK;
}

enum status drafter_load(struct drafter *d, struct device *device, const struct model_limits *limits, struct error *e) {
    must(d->device == NULL);
    if (device->ops->block_conv == NULL || device->ops->block_attention == NULL)
        return error_set(e, STATUS_UNSUPPORTED, "%s: drafters of this kind do not run on %s yet",
                         checkpoint_folder(d->checkpoint), device->name);
    d->device = device;
    enum status s = drafter_bring_weights(d, e);
    if (s == STATUS_OK) s = make_inv_freq(d, e);
    return s == STATUS_OK ? drafter_set_limits(d, limits, e) : s;
}

void drafter_poison(struct drafter *d) {
    struct drafter_scratch s;
    int64_t bytes = lay_out(d, d->device->activation, &d->limits, NULL, &s);
    device_fill(d->device, d->memory, 0xffff, (size_t)bytes);
}
