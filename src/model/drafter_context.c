// What a drafter keeps of a stream: the target's tapped rows, projected to keys and values of its layers in a ring, or
// put aside until they are needed.
#include "model/drafter_internal.h"
#include <string.h>

static size_t row_bytes(const struct drafter *d) {
    return (size_t)d->config.n_hidden * dtype_bytes(d->device->activation);
}

// The row of `position` of a tap among those that a lane has put aside.
static char *aside_row(const struct drafter *d, void *own, int32_t tap, int64_t position) {
    int64_t row = (int64_t)tap * DRAFTER_BACKLOG + position % DRAFTER_BACKLOG;
    return (char *)own + drafter_ring_bytes(d, d->device->kv) + row * (int64_t)row_bytes(d);
}

void drafter_set_lane(struct drafter *d, int32_t i, const void *base, const void *own, struct lane lane) {
    int64_t page = ((const char *)own - (const char *)base) / LAYOUT_ALIGN;
    int64_t n = ((int64_t)lane.position + lane.n_row - 1) / d->ring_rows + 1;
    int32_t *table = d->pages + (int64_t)i * d->n_page;
    must(page >= 0 && page <= INT32_MAX && n <= d->n_page);
    for (int64_t p = 0; p < n; p++) table[p] = (int32_t)page;
    lane.pages = table;
    lane.n_page = (int32_t)n;
    d->lanes[i] = lane;
}

// ---- features ----

// features[rows] = norm(sum over taps of fc_tap x_tap)
static struct tensor make_features(struct drafter *d, enum form form, const struct tensor *taps, int64_t n_row) {
    const struct ops *ops = d->device->ops;
    struct tensor features = tensor_rows(d->scratch.features, 0, n_row);
    for (int i = 0; i < d->config.n_tap; i++) {
        struct linear_args project = {.form = form,
                                      .x = tensor_rows(taps[i], 0, n_row),
                                      .n_parts = 1,
                                      .part = {{&d->weights.fc_of[i], features}}};
        if (i > 0) project.residual = features;
        ops->linear(d->device, &project);
    }
    struct norm_args norm = {
        .x = features, .out = features, .weight = d->weights.hidden_norm, .eps = (float)d->config.norm_eps};
    ops->norm(d->device, &norm);
    return features;
}

#define LAYERS_AT_ONCE (LINEAR_MAX_PARTS / 2)

// Keys and values of n layers, one layer's rows behind the other's in scratch.
static void project_layers(struct drafter *d, enum form form, int64_t first, int64_t n, struct tensor features) {
    struct linear_args project = {.form = form, .x = features, .n_parts = (int)(2 * n)};
    for (int64_t i = 0; i < n; i++) {
        const struct drafter_layer *l = &d->weights.layers[first + i];
        int64_t row0 = i * features.n_row;
        project.part[2 * i].w = &l->k;
        project.part[2 * i].out = tensor_rows(d->scratch.k, row0, features.n_row);
        project.part[2 * i + 1].w = &l->v;
        project.part[2 * i + 1].out = tensor_rows(d->scratch.v, row0, features.n_row);
    }
    d->device->ops->linear(d->device, &project);
}

// Rows [row0, row0 + batch->n_row) of the layer's keys and values go to the batch's lanes.
static void store_layer(struct drafter *d, const struct batch *batch, int64_t layer, int64_t row0, const void *base) {
    const struct drafter_config *c = &d->config;
    struct qk_store_args store = {
        .batch = batch,
        .k = tensor_rows(d->scratch.k, row0, batch->n_row),
        .v = tensor_rows(d->scratch.v, row0, batch->n_row),
        .no_gate = 1,
        .k_norm = d->weights.layers[layer].k_norm,
        .eps = (float)c->norm_eps,
        .inv_freq = d->inv_freq,
        .n_rot = (int)c->head_dim,
        .n_kv_head = (int)c->n_kv_heads,
        .head_dim = (int)c->head_dim,
        .kv = drafter_ring(d, base, layer),
    };
    d->device->ops->qk_store(d->device, &store);
}

// ---- prompt passes ----

// Rows of a pass that a run's ring is to have: those before `end`, as many as it holds.
static void store_part(struct drafter *d, const struct prompt_pass *pass, int64_t layer, int32_t end, void *own,
                       int32_t computed_from) {
    int32_t start = pass->lane->position;
    int32_t from = end - start > d->ring_rows ? end - d->ring_rows : start;
    struct lane lane = {.n_row = end - from, .position = from};
    drafter_set_lane(d, 0, own, own, lane);
    struct batch batch = {
        .form = FORM_PROMPT, .n_row = lane.n_row, .n_lane = 1, .max_window = d->limits.max_window, .lanes = d->lanes};
    d->device->ops->begin(d->device, &batch);
    store_layer(d, &batch, layer, from - computed_from, own);
}

void drafter_prompt(struct drafter *d, const struct prompt_pass *pass, const struct drafter_taps *taps, void *own,
                    void *const *kept, struct drafter_lane *state) {
    int32_t start = pass->lane->position, end = start + pass->lane->n_row;
    // What a kept state has of the rows before this pass, it takes from the lane before the pass overwrites them.
    for (int32_t i = 0; i < pass->n_keep && start > 0; i++)
        d->device->copy(d->device, kept[i], own, (size_t)drafter_ring_bytes(d, d->device->kv));
    int32_t first_end = pass->n_keep > 0 ? pass->keeps[0].position : end;
    int32_t from = first_end - start > d->ring_rows ? first_end - d->ring_rows : start;
    struct tensor rows[DRAFTER_MAX_TAPS];
    for (int i = 0; i < d->config.n_tap; i++) rows[i] = tensor_rows(taps->rows[i], from - start, end - from);
    struct tensor features = make_features(d, FORM_PROMPT, rows, end - from);
    for (int64_t layer = 0; layer < d->config.n_layers; layer++) {
        project_layers(d, FORM_PROMPT, layer, 1, features);
        for (int32_t i = 0; i < pass->n_keep; i++) store_part(d, pass, layer, pass->keeps[i].position, kept[i], from);
        store_part(d, pass, layer, end, own, from);
    }
    if (start == 0) state->first = 0;
    state->absorbed = end;
}

// ---- rounds ----

void drafter_absorb(struct drafter *d, const struct lane *lane, int32_t n_kept, const struct drafter_taps *taps,
                    void *own) {
    must(n_kept <= lane->n_row);
    for (int32_t tap = 0; tap < d->config.n_tap; tap++) {
        for (int32_t i = 0; i < n_kept;) {
            int32_t left = DRAFTER_BACKLOG - (lane->position + i) % DRAFTER_BACKLOG;
            int32_t n = left < n_kept - i ? left : n_kept - i;
            struct tensor from = tensor_rows(taps->rows[tap], lane->row0 + i, n);
            must(from.stride == from.n_col);
            d->device->copy(d->device, aside_row(d, own, tap, lane->position + i), from.data, (size_t)n * row_bytes(d));
            i += n;
        }
    }
}

// Rows [position, position + n) that a lane has put aside, to rows [row0, row0 + n) of the backlog.
static void gather(struct drafter *d, void *own, int32_t position, int32_t n, int64_t row0) {
    for (int32_t tap = 0; tap < d->config.n_tap; tap++) {
        for (int32_t i = 0; i < n;) {
            int32_t left = DRAFTER_BACKLOG - (position + i) % DRAFTER_BACKLOG;
            int32_t m = left < n - i ? left : n - i;
            struct tensor to = tensor_rows(d->scratch.backlog[tap], row0 + i, m);
            d->device->copy(d->device, to.data, aside_row(d, own, tap, position + i), (size_t)m * row_bytes(d));
            i += m;
        }
    }
}

static void store_batch(struct drafter *d, const struct tensor *taps, int32_t n_lane, int32_t n_row, const void *base) {
    struct batch batch = {
        .form = FORM_ROWS, .n_row = n_row, .n_lane = n_lane, .max_window = d->limits.max_window, .lanes = d->lanes};
    struct tensor features = make_features(d, FORM_ROWS, taps, n_row);
    d->device->ops->begin(d->device, &batch);
    int64_t room = d->scratch.k.n_row / n_row, n_layers = d->config.n_layers;
    for (int64_t first = 0, n; first < n_layers; first += n) {
        n = n_layers - first < LAYERS_AT_ONCE ? n_layers - first : LAYERS_AT_ONCE;
        if (n > room) n = room;
        project_layers(d, FORM_ROWS, first, n, features);
        for (int64_t i = 0; i < n; i++) store_layer(d, &batch, first + i, i * n_row, base);
    }
}

const void *drafter_lowest(const struct drafter_ask *asks, int32_t n) {
    const char *lowest = asks[0].own;
    for (int32_t i = 1; i < n; i++)
        if ((const char *)asks[i].own < lowest) lowest = asks[i].own;
    return lowest;
}

void drafter_catch_up(struct drafter *d, struct drafter_ask *asks, int32_t n, const void *base) {
    int32_t n_row = 0, n_lane = 0;
    for (int32_t i = 0; i < n; i++) {
        struct drafter_lane *state = asks[i].state;
        int32_t end = asks[i].position;
        must(state->absorbed <= end);
        if (end - state->absorbed > DRAFTER_BACKLOG) state->first = state->absorbed = end - DRAFTER_BACKLOG;
        while (state->absorbed < end) {
            int32_t left = (int32_t)d->scratch.x.n_row - n_row, m = end - state->absorbed;
            if (m > left) m = left;
            gather(d, asks[i].own, state->absorbed, m, n_row);
            drafter_set_lane(d, n_lane++, base, asks[i].own,
                             (struct lane){.row0 = n_row, .n_row = m, .position = state->absorbed});
            n_row += m;
            state->absorbed += m;
            if (n_row < d->scratch.x.n_row && n_lane < drafter_batch_lanes(&d->limits)) continue;
            store_batch(d, d->scratch.backlog, n_lane, n_row, base);
            n_row = n_lane = 0;
        }
    }
    if (n_row > 0) store_batch(d, d->scratch.backlog, n_lane, n_row, base);
}

void drafter_store_windows(struct drafter *d, const struct lane *lanes, int32_t n, int32_t n_row,
                           const struct drafter_taps *taps, void *const *own) {
    const char *base = own[0];
    must(n <= drafter_batch_lanes(&d->limits) && n_row <= d->scratch.x.n_row);
    for (int32_t i = 1; i < n; i++)
        if ((const char *)own[i] < base) base = own[i];
    for (int32_t i = 0; i < n; i++) {
        struct lane lane = {.row0 = lanes[i].row0, .n_row = lanes[i].n_row, .position = lanes[i].position};
        must(lane.n_row <= d->config.block);
        drafter_set_lane(d, i, base, own[i], lane);
    }
    store_batch(d, taps->rows, n, n_row, base);
}

void drafter_make_room(struct drafter *d, struct drafter_ask *asks, int32_t n, int32_t n_more) {
    int32_t n_full = 0;
    for (int32_t i = 0; i < n; i++) // those that are full to the front
        if (asks[i].position - asks[i].state->absorbed > DRAFTER_BACKLOG - n_more) asks[n_full++] = asks[i];
    if (n_full > 0) drafter_catch_up(d, asks, n_full, drafter_lowest(asks, n_full));
}

void drafter_visit(struct drafter *d, const struct drafter_ask *ask, model_visit_fn *fn, void *context) {
    const struct drafter_config *c = &d->config;
    int64_t first = ask->position - d->ring_rows + c->block, end = ask->state->absorbed;
    int64_t row_bytes = (int64_t)c->head_dim * (int64_t)dtype_bytes(d->device->kv);
    if (first < ask->state->first) first = ask->state->first;
    for (int64_t i = 0; i < c->n_layers * 2 * c->n_kv_heads; i++) {
        struct kv_layer kv = drafter_ring(d, ask->own, i / (2 * c->n_kv_heads));
        for (int64_t p = first, n; p < end; p += n) { // as far as rows lie together
            int64_t at = p % d->ring_rows, row = i % (2 * c->n_kv_heads) * d->ring_rows + at;
            n = d->ring_rows - at < end - p ? d->ring_rows - at : end - p;
            visit_memory(d->device, (char *)kv.pages + kv.layer_offset + row * row_bytes, n * row_bytes, fn, context);
        }
    }
}
