// Full attention with a gated output (spec section 2.4).
#include "model/internal.h"
#include <math.h>

struct kv_layer model_kv_layer(const struct walk *w, int64_t nth) {
    return (struct kv_layer){
        .pages = w->pages,
        .page_bytes = w->m->page.page_bytes,
        .layer_offset = nth * w->m->page.layer_bytes,
        .scale_offset = w->m->page.scale_start + nth * w->m->page.scale_bytes,
        .page_rows = w->m->limits.page_rows,
        .dtype = w->m->limits.kv,
    };
}

void layer_attention_store(const struct walk *w, const struct layer_weights *weights, int64_t nth) {
    const struct model_config *c = &w->m->config;
    const struct scratch *s = &w->scratch;
    struct linear_args project = {
        .form = w->batch->form,
        .x = s->x,
        .norm_weight = weights->input_norm,
        .norm_eps = (float)c->norm_eps,
        .n_parts = 3,
        .part = {{&weights->q, s->attention.qg}, {&weights->k, s->attention.k}, {&weights->v, s->attention.v}},
    };
    w->ops->linear(w->device, &project);
    struct qk_store_args store = {
        .batch = w->batch,
        .qg = s->attention.qg,
        .k = s->attention.k,
        .v = s->attention.v,
        .q_norm = weights->q_norm,
        .k_norm = weights->k_norm,
        .eps = (float)c->norm_eps,
        .inv_freq = w->m->device_inv_freq != NULL ? w->m->device_inv_freq : w->m->inv_freq,
        .n_rot = (int)c->n_rotary,
        .n_head = (int)c->n_heads,
        .n_kv_head = (int)c->n_kv_heads,
        .head_dim = (int)c->head_dim,
        .kv = model_kv_layer(w, nth),
        .q_out = s->attention.q,
    };
    w->ops->qk_store(w->device, &store);
}

void layer_attention(const struct walk *w, const struct layer_weights *weights, int64_t nth) {
    const struct model_config *c = &w->m->config;
    const struct scratch *s = &w->scratch;
    layer_attention_store(w, weights, nth);
    struct attention_args attend = {
        .batch = w->batch,
        .q = s->attention.q,
        .qg = s->attention.qg,
        .n_head = (int)c->n_heads,
        .n_kv_head = (int)c->n_kv_heads,
        .head_dim = (int)c->head_dim,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .kv = model_kv_layer(w, nth),
        .first_key = nth < c->n_attention_layers ? 0 : 1, // an MTP head's first row does not exist (mtp.h)
        .out = s->attention.out,
    };
    w->ops->attention(w->device, &attend);
    layer_add(w, s->attention.out, &weights->o);
}
