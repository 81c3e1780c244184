#include "model/weights_device.h"
#include "model/layout.h"

static void move_bytes(struct weights_mover *m, const void **data, int64_t bytes) {
    if (*data == NULL || bytes == 0) return;
    if (m->memory != NULL) {
        m->device->copy_in(m->device, m->memory + m->used, *data, (size_t)bytes);
        *data = m->memory + m->used;
    }
    m->used += (bytes + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN;
}

void weights_move_vector(struct weights_mover *m, const float **v, int64_t n) {
    const void *data = *v;
    move_bytes(m, &data, n * (int64_t)sizeof(float));
    *v = data;
}

void weights_move_matrix(struct weights_mover *m, struct weight *w) {
    if (w->kind == WEIGHT_NONE) return;
    move_bytes(m, &w->data, w->n_out * (int64_t)weight_row_bytes(w));
    if (w->kind == WEIGHT_AFFINE) {
        int64_t bytes = w->n_out * (w->n_in / w->group) * (int64_t)dtype_bytes(w->dtype);
        move_bytes(m, &w->scales, bytes);
        move_bytes(m, &w->biases, bytes);
    }
    if (m->memory != NULL && m->progress != NULL) m->progress(m->context, m->used);
}

void weights_move_linear(struct weights_mover *m, struct weight *w) {
    weights_move_matrix(m, w);
    if (m->memory != NULL && m->device->arrange != NULL && w->kind != WEIGHT_NONE) m->device->arrange(m->device, w);
}

static void move_experts(struct weights_mover *m, const struct weight *experts, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        weights_move_matrix(m, (struct weight *)&experts[i]); // they lie in the weights' own arena
}

static bool lie_evenly(const struct weight *w, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        if (w[i].kind != w[0].kind || w[i].dtype != w[0].dtype || w[i].bits != w[0].bits || w[i].group != w[0].group)
            return false;
        if ((const char *)w[i].data - (const char *)w[i - 1].data != (const char *)w[1].data - (const char *)w[0].data)
            return false;
        if (w[0].kind != WEIGHT_AFFINE) continue;
        if ((const char *)w[i].scales - (const char *)w[i - 1].scales !=
                (const char *)w[1].scales - (const char *)w[0].scales ||
            (const char *)w[i].biases - (const char *)w[i - 1].biases !=
                (const char *)w[1].biases - (const char *)w[0].biases)
            return false;
    }
    return true;
}

static void move_layer(struct weights_mover *m, const struct model_config *c, struct layer_weights *l) {
    struct weight *const matrices[] = {&l->q, &l->k, &l->v, &l->o, &l->qkv, &l->z, &l->b, &l->a, &l->out};
    struct weight *const widths[] = {&l->mlp.gate, &l->mlp.up, &l->mlp.down};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) weights_move_linear(m, matrices[i]);
    // Beside other experts the shared one is read by what reads those.
    for (int i = 0; i < 3; i++) (c->n_experts == 0 ? weights_move_linear : weights_move_matrix)(m, widths[i]);
    weights_move_matrix(m, &l->router);
    weights_move_matrix(m, &l->shared_gate);
    move_experts(m, l->expert_gate, c->n_experts);
    move_experts(m, l->expert_up, c->n_experts);
    move_experts(m, l->expert_down, c->n_experts);
    l->experts_lie_evenly = m->memory != NULL && lie_evenly(l->expert_gate, c->n_experts) &&
                            lie_evenly(l->expert_up, c->n_experts) && lie_evenly(l->expert_down, c->n_experts);
    weights_move_vector(m, &l->input_norm, c->n_hidden);
    weights_move_vector(m, &l->post_norm, c->n_hidden);
    if (l->kind == LAYER_ATTENTION) {
        weights_move_vector(m, &l->q_norm, c->head_dim);
        weights_move_vector(m, &l->k_norm, c->head_dim);
        return;
    }
    weights_move_vector(m, &l->conv, config_n_channels(c) * c->n_taps);
    weights_move_vector(m, &l->neg_a, c->n_value_heads);
    weights_move_vector(m, &l->dt_bias, c->n_value_heads);
    weights_move_vector(m, &l->out_norm, c->value_dim);
}

static void move_mtp(struct weights_mover *m, const struct model_config *c, struct mtp_weights *mtp) {
    weights_move_linear(m, &mtp->fc);
    weights_move_vector(m, &mtp->embedding_norm, c->n_hidden);
    weights_move_vector(m, &mtp->hidden_norm, c->n_hidden);
    weights_move_vector(m, &mtp->norm, c->n_hidden);
    for (int64_t i = 0; i < mtp->n_layers; i++) move_layer(m, c, &mtp->layers[i]);
}

static void move_all(struct weights_mover *m, const struct model_config *c, struct model_weights *w, bool mtp) {
    m->used = 0;
    if (c->tied) {
        weights_move_linear(m, &w->embedding);
        w->output = w->embedding;
    } else {
        weights_move_matrix(m, &w->embedding);
        weights_move_linear(m, &w->output);
    }
    weights_move_vector(m, &w->final_norm, c->n_hidden);
    for (int64_t i = 0; i < c->n_layers; i++) move_layer(m, c, &w->layers[i]);
    if (mtp) move_mtp(m, c, &w->mtp);
}

enum status weights_to_device(struct model_weights *w, const struct model_config *c, bool mtp, struct device *d,
                              weights_progress_fn *progress, void *context, void **memory, struct error *e) {
    struct weights_mover m = {.device = d, .progress = progress, .context = context};
    move_all(&m, c, w, mtp);
    m.memory = d->alloc(d, (size_t)m.used);
    if (m.memory == NULL)
        return error_set(e, STATUS_MEMORY, "%s has no %.2f GiB for the weights", d->name,
                         (double)m.used / (1024.0 * 1024.0 * 1024.0));
    *memory = m.memory;
    move_all(&m, c, w, mtp);
    return d->sync(d, e);
}
