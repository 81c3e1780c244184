// A block of every lane that asks, in one pass: the last token and mask tokens through the drafter's layers, then the
// candidates of each row by the target's output matrix.
#include "model/drafter_internal.h"
#include <math.h>

// One pass over the rows of all blocks. Tensors of `s` have exactly those rows.
struct block_walk {
    struct drafter *d;
    const struct ops *ops;
    const struct batch *batch;
    const void *base; // of ring page numbers
    struct drafter_scratch s;
};

static void begin_walk(struct block_walk *w) {
    struct drafter_scratch *s = &w->s;
    struct tensor *const tensors[] = {&s->x,    &s->y,  &s->z,   &s->q, &s->attended,
                                      &s->gate, &s->up, &s->dyn, &s->k, &s->v};
    *s = w->d->scratch;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) tensors[i]->n_row = w->batch->n_row;
}

// ---- convolutions around a sublayer ----

// side 0: out = conv(x); side 1: out = residual + conv(x). The sublayer's input made the coefficients of both.
// next_norm: of the next sublayer, whose normed input goes to s.y then; NULL: there is none.
static void convolve(const struct block_walk *w, const struct drafter_conv *conv, int side, struct tensor x,
                     struct tensor residual, struct tensor out, const float *next_norm) {
    const struct drafter_config *c = &w->d->config;
    int64_t n_dyn = w->s.dyn.n_col / 2;
    struct tensor dyn = w->s.dyn;
    dyn.data = (float *)dyn.data + side * n_dyn;
    dyn.n_col = n_dyn;
    struct block_conv_args args = {.batch = w->batch,
                                   .x = x,
                                   .base = conv->base + side * c->conv_taps * c->n_hidden,
                                   .dyn = dyn,
                                   .n_tap = c->conv_taps,
                                   .group = c->conv_group,
                                   .residual = residual,
                                   .out = out};
    if (next_norm != NULL) {
        args.normed = w->s.y;
        args.norm_weight = next_norm;
        args.norm_eps = (float)c->norm_eps;
    }
    w->ops->block_conv(w->d->device, &args);
}

static void norm_input(const struct block_walk *w, const float *weight) {
    struct norm_args norm = {.x = w->s.x, .out = w->s.y, .weight = weight, .eps = (float)w->d->config.norm_eps};
    w->ops->norm(w->d->device, &norm);
}

// The input of a sublayer, of which s.y is normed: with convolutions what the first one makes of it.
static struct tensor prepare(const struct block_walk *w, const struct drafter_conv *conv) {
    if (!w->d->config.has_selector) return w->s.y;
    struct linear_args kernels = {.form = FORM_ROWS, .x = w->s.y, .n_parts = 1, .part = {{&conv->kernels, w->s.dyn}}};
    w->ops->linear(w->d->device, &kernels);
    convolve(w, conv, 0, w->s.y, (struct tensor){0}, w->s.z, NULL);
    return w->s.z;
}

// x = x + finish(out weight^T), and s.y = norm(x) where there is a next sublayer.
static void finish(const struct block_walk *w, const struct drafter_conv *conv, struct tensor out,
                   const struct weight *weight, const float *next_norm) {
    bool direct = !w->d->config.has_selector;
    struct linear_args project = {
        .form = FORM_ROWS, .x = out, .n_parts = 1, .part = {{weight, direct ? w->s.x : w->s.z}}};
    if (direct) project.residual = w->s.x;
    w->ops->linear(w->d->device, &project);
    if (!direct)
        convolve(w, conv, 1, w->s.z, w->s.x, w->s.x, next_norm);
    else if (next_norm != NULL)
        norm_input(w, next_norm);
}

// ---- layers ----

static void attend(const struct block_walk *w, int64_t layer) {
    const struct drafter_config *c = &w->d->config;
    const struct drafter_layer *l = &w->d->weights.layers[layer];
    struct tensor y = prepare(w, &l->attention_conv);
    struct linear_args project = {
        .form = FORM_ROWS, .x = y, .n_parts = 3, .part = {{&l->q, w->s.attended}, {&l->k, w->s.k}, {&l->v, w->s.v}}};
    w->ops->linear(w->d->device, &project);
    struct qk_store_args store = {
        .batch = w->batch,
        .qg = w->s.attended,
        .k = w->s.k,
        .v = w->s.v,
        .no_gate = 1,
        .q_norm = l->q_norm,
        .k_norm = l->k_norm,
        .eps = (float)c->norm_eps,
        .inv_freq = w->d->inv_freq,
        .n_rot = (int)c->head_dim,
        .n_head = (int)c->n_heads,
        .n_kv_head = (int)c->n_kv_heads,
        .head_dim = (int)c->head_dim,
        .kv = drafter_ring(w->d, w->base, layer),
        .q_out = w->s.q,
    };
    w->ops->qk_store(w->d->device, &store);
    struct block_attention_args attention = {
        .batch = w->batch,
        .q = w->s.q,
        .n_head = (int)c->n_heads,
        .n_kv_head = (int)c->n_kv_heads,
        .head_dim = (int)c->head_dim,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .first = w->d->first,
        .window = c->window[layer],
        .causal = c->causal[layer],
        .kv = drafter_ring(w->d, w->base, layer),
        .out = w->s.attended,
    };
    w->ops->block_attention(w->d->device, &attention);
    finish(w, &l->attention_conv, w->s.attended, &l->o, l->post_norm);
}

static void feed_forward(const struct block_walk *w, int64_t layer) {
    const struct drafter_layer *l = &w->d->weights.layers[layer];
    const float *next_norm = layer + 1 < w->d->config.n_layers ? w->d->weights.layers[layer + 1].input_norm : NULL;
    struct tensor y = prepare(w, &l->mlp_conv);
    struct linear_args widen = {
        .form = FORM_ROWS, .x = y, .n_parts = 2, .part = {{&l->gate, w->s.gate}, {&l->up, w->s.up}}};
    w->ops->linear(w->d->device, &widen);
    struct swiglu_args gate = {.gate = w->s.gate, .up = w->s.up, .out = w->s.gate};
    w->ops->swiglu(w->d->device, &gate);
    finish(w, &l->mlp_conv, w->s.gate, &l->down, next_norm);
}

static void run_blocks(struct drafter *d, const struct drafter_ask *asks, int32_t n, const void *base) {
    int32_t block = d->config.block;
    for (int32_t i = 0; i < n; i++) {
        struct lane lane = {.row0 = i * block, .n_row = block, .position = asks[i].position};
        drafter_set_lane(d, i, base, asks[i].own, lane);
        d->first[i] = asks[i].state->first;
        for (int32_t k = 0; k < block; k++) d->ids[i * block + k] = k == 0 ? asks[i].last : d->config.mask_id;
    }
    struct batch batch = {.form = FORM_ROWS,
                          .n_row = n * block,
                          .n_lane = n,
                          .max_window = d->limits.max_window,
                          .ids = d->ids,
                          .lanes = d->lanes};
    struct block_walk w = {.d = d, .ops = d->device->ops, .batch = &batch, .base = base};
    begin_walk(&w);
    w.ops->begin(d->device, &batch);
    struct embed_args embed = {.batch = &batch, .table = &d->target->weights->embedding, .out = w.s.x};
    w.ops->embed(d->device, &embed);
    norm_input(&w, d->weights.layers[0].input_norm);
    for (int64_t layer = 0; layer < d->config.n_layers; layer++) {
        attend(&w, layer);
        feed_forward(&w, layer);
    }
    int64_t at = 0; // the rows of drafts alone, side by side
    for (int32_t i = 0; i < n; i++) {
        struct norm_args norm = {.x = tensor_rows(w.s.x, (int64_t)i * block + 1, asks[i].n_want),
                                 .out = tensor_rows(d->scratch.drafts, at, asks[i].n_want),
                                 .weight = d->weights.norm,
                                 .eps = (float)d->config.norm_eps};
        w.ops->norm(d->device, &norm);
        at += asks[i].n_want;
    }
}

// ---- candidates ----

static bool needs_logits(const struct draw_params *p) { return p->repetition != 1 && p->n_seen > 0; }

// The likeliest tokens of rows [first, first + n) of drafts, as log probabilities; those ids only that may be drawn.
// With a selector, what it sees of the rows too.
static enum status find_candidates(struct drafter *d, int64_t first, int64_t n, bool logits_too, struct error *e) {
    struct tensor logits = tensor_rows(d->scratch.logits, 0, n);
    struct linear_args output = {.form = FORM_ROWS,
                                 .x = tensor_rows(d->scratch.drafts, first, n),
                                 .n_parts = 1,
                                 .part = {{&d->target->weights->output, logits}}};
    if (d->config.has_selector) {
        output.part[output.n_parts].w = &d->weights.hidden;
        output.part[output.n_parts++].out = tensor_rows(d->scratch.edges, first, n);
    }
    d->device->ops->linear(d->device, &output);
    struct draw_args draw = {.logits = logits,
                             .n_vocab = (int32_t)d->config.n_vocab,
                             .params = d->params + first,
                             .results = d->results + first};
    d->device->ops->draw(d->device, &draw);
    if (!logits_too) return STATUS_OK;
    enum status s = d->device->sync(d->device, e);
    for (int64_t i = first; i < first + n && s == STATUS_OK; i++) {
        const struct draw_result *r = &d->results[i];
        const float *row = (const float *)logits.data + (i - first) * logits.stride;
        if (r->n_top > 0) d->device->copy_out(d->device, &d->first_logits[i], row + r->top[0].id, sizeof *row);
    }
    return s;
}

static enum status find_all_candidates(struct drafter *d, const struct drafter_ask *asks, int32_t n, struct error *e) {
    int64_t n_row = 0, step = d->scratch.logits.n_row;
    bool logits_too = false;
    for (int32_t i = 0; i < n; i++) {
        logits_too = logits_too || needs_logits(asks[i].draw);
        for (int32_t k = 0; k < asks[i].n_want; k++) {
            bool is_later = k > 0 && asks[i].allowed_later != NULL;
            d->params[n_row++] =
                (struct draw_params){.top_p = 1,
                                     .repetition = 1,
                                     .allowed = is_later ? asks[i].allowed_later : asks[i].draw->allowed,
                                     .n_top = d->config.n_candidate};
        }
    }
    enum status s = STATUS_OK;
    for (int64_t first = 0; first < n_row && s == STATUS_OK; first += step)
        s = find_candidates(d, first, n_row - first < step ? n_row - first : step, logits_too, e);
    if (s == STATUS_OK && d->config.has_selector) // first: it waits for all that is under way
        d->device->copy_out(d->device, d->host_edges, d->scratch.edges.data,
                            (size_t)(n_row * d->config.rank) * sizeof *d->host_edges);
    return s == STATUS_OK ? d->device->sync(d->device, e) : s;
}

static enum status propose_together(struct drafter *d, struct drafter_ask *asks, int32_t n, struct error *e) {
    const void *base = drafter_lowest(asks, n);
    for (int32_t i = 0; i < n; i++) must(asks[i].n_want >= 1 && asks[i].n_want < d->config.block);
    drafter_catch_up(d, asks, n, base);
    run_blocks(d, asks, n, base);
    enum status s = find_all_candidates(d, asks, n, e);
    if (s != STATUS_OK) return s;
    int64_t row = 0;
    for (int32_t i = 0; i < n; i++) {
        drafter_walk(d, &asks[i], d->results + row, d->host_edges + row * d->config.rank, d->first_logits + row);
        row += asks[i].n_want;
    }
    return STATUS_OK;
}

enum status drafter_propose(struct drafter *d, struct drafter_ask *asks, int32_t n, struct error *e) {
    int32_t most = drafter_batch_lanes(&d->limits);
    enum status s = STATUS_OK;
    must(n > 0 && n <= d->limits.max_lanes);
    for (int32_t i = 0; i < n && s == STATUS_OK; i += most)
        s = propose_together(d, asks + i, n - i < most ? n - i : most, e);
    return s;
}
