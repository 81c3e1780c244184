#include "model/mtp.h"
#include "model/internal.h"
#include <math.h>

int64_t weight_stored_bytes(const struct weight *w) {
    if (w->kind == WEIGHT_NONE) return 0;
    int64_t bytes = w->n_out * (int64_t)weight_row_bytes(w);
    if (w->kind == WEIGHT_AFFINE) bytes += 2 * w->n_out * (w->n_in / w->group) * (int64_t)dtype_bytes(w->dtype);
    return bytes;
}

// Different experts that n_row rows choose on average.
static double count_experts(const struct model_config *c, int64_t n_row) {
    double missed = pow(1 - (double)c->n_experts_used / (double)c->n_experts, (double)n_row);
    return (double)c->n_experts * (1 - missed);
}

static int64_t layer_bytes(const struct model_config *c, const struct layer_weights *l, int64_t n_row) {
    int64_t bytes =
        weight_stored_bytes(&l->mlp.gate) + weight_stored_bytes(&l->mlp.up) + weight_stored_bytes(&l->mlp.down);
    if (l->kind == LAYER_ATTENTION)
        bytes += weight_stored_bytes(&l->q) + weight_stored_bytes(&l->k) + weight_stored_bytes(&l->v) +
                 weight_stored_bytes(&l->o);
    else
        bytes += weight_stored_bytes(&l->qkv) + weight_stored_bytes(&l->z) + weight_stored_bytes(&l->b) +
                 weight_stored_bytes(&l->a) + weight_stored_bytes(&l->out);
    if (c->n_experts == 0) return bytes;
    int64_t one = weight_stored_bytes(&l->expert_gate[0]) + weight_stored_bytes(&l->expert_up[0]) +
                  weight_stored_bytes(&l->expert_down[0]);
    return bytes + weight_stored_bytes(&l->router) + weight_stored_bytes(&l->shared_gate) +
           (int64_t)llround(count_experts(c, n_row) * (double)one);
}

int64_t model_rows_bytes(const struct model *m, int64_t n_row) {
    int64_t bytes = weight_stored_bytes(&m->weights->output);
    for (int64_t i = 0; i < m->config.n_layers; i++) bytes += layer_bytes(&m->config, &m->weights->layers[i], n_row);
    return bytes;
}

int64_t model_round_bytes(const struct model *m) { return model_rows_bytes(m, 1); }

int64_t mtp_step_bytes(const struct model *m, int64_t n_row) {
    const struct mtp_weights *mtp = &m->weights->mtp;
    int64_t bytes = weight_stored_bytes(&mtp->fc) + weight_stored_bytes(&m->weights->output);
    for (int64_t i = 0; i < mtp->n_layers; i++) bytes += layer_bytes(&m->config, &mtp->layers[i], n_row);
    return bytes;
}
