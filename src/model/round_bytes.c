#include "model/internal.h"

static int64_t bytes_of(const struct weight *w) {
    if (w->kind == WEIGHT_NONE) return 0;
    int64_t bytes = w->n_out * (int64_t)weight_row_bytes(w);
    if (w->kind == WEIGHT_AFFINE) bytes += 2 * w->n_out * (w->n_in / w->group) * (int64_t)dtype_bytes(w->dtype);
    return bytes;
}

// A row goes through all experts' router and n_experts_used of the experts.
static int64_t moe_bytes(const struct model_config *c, const struct layer_weights *l) {
    int64_t one = bytes_of(&l->expert_gate[0]) + bytes_of(&l->expert_up[0]) + bytes_of(&l->expert_down[0]);
    return bytes_of(&l->router) + bytes_of(&l->shared_gate) + c->n_experts_used * one;
}

int64_t model_round_bytes(const struct model *m) {
    const struct model_config *c = &m->config;
    int64_t bytes = bytes_of(&m->weights->output);
    for (int64_t i = 0; i < c->n_layers; i++) {
        const struct layer_weights *l = &m->weights->layers[i];
        if (l->kind == LAYER_ATTENTION)
            bytes += bytes_of(&l->q) + bytes_of(&l->k) + bytes_of(&l->v) + bytes_of(&l->o);
        else
            bytes += bytes_of(&l->qkv) + bytes_of(&l->z) + bytes_of(&l->b) + bytes_of(&l->a) + bytes_of(&l->out);
        bytes += bytes_of(&l->mlp.gate) + bytes_of(&l->mlp.up) + bytes_of(&l->mlp.down);
        if (c->n_experts > 0) bytes += moe_bytes(c, l);
    }
    return bytes;
}
