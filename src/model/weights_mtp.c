#include "model/weights_internal.h"

#include <inttypes.h>
#include <stdio.h>

// Exporters do not agree on whether the head's norms keep their zero-centred form. A trained norm may have a mean far
// from where it began, so one tensor proves little; all norms of a head are in the same form, and most of them tell it.
static bool norms_are_shifted(const float *const *norms, const int64_t *lengths, int n) {
    int votes = 0;
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < lengths[i]; j++) sum += norms[i][j];
        votes += sum / (double)lengths[i] > 0.5 ? 1 : -1;
    }
    return votes > 0;
}

// The norms are loaded as the file has them, then 1 is added to all if the file had them zero-centred.
static void settle_norms(const struct model_config *c, struct mtp_weights *m) {
    const float *norms[3 + 4 * MODEL_MTP_LAYERS_MAX];
    int64_t lengths[3 + 4 * MODEL_MTP_LAYERS_MAX];
    int n = 0;
    const float *const ends[] = {m->embedding_norm, m->hidden_norm, m->norm};
    for (int i = 0; i < 3; i++) norms[n] = ends[i], lengths[n++] = c->n_hidden;
    for (int64_t i = 0; i < m->n_layers; i++) {
        const struct layer_weights *layer = &m->layers[i];
        norms[n] = layer->input_norm, lengths[n++] = c->n_hidden;
        norms[n] = layer->post_norm, lengths[n++] = c->n_hidden;
        norms[n] = layer->q_norm, lengths[n++] = c->head_dim;
        norms[n] = layer->k_norm, lengths[n++] = c->head_dim;
    }
    m->file_norms_shifted = norms_are_shifted(norms, lengths, n);
    if (m->file_norms_shifted) return;
    for (int i = 0; i < n; i++)
        for (int64_t j = 0; j < lengths[i]; j++) ((float *)norms[i])[j] += 1; // the loader's own copies
}

enum status loader_take_mtp(struct weights_loader *l, struct mtp_weights *m) {
    const struct model_config *c = l->config;
    const char *prefix = l->mtp_prefix;
    if (!prefix || c->mtp_own_embedding) {
        snprintf(m->absence, sizeof m->absence, "%s",
                 prefix ? "the MTP head needs an embedding of its own, which is not supported"
                        : "the checkpoint has no mtp.* tensors");
        return STATUS_OK;
    }
    l->census = &l->weights->mtp_census;
    int64_t n = c->n_mtp_layers > 0 ? c->n_mtp_layers : 1; // some exporters keep the tensors and drop the count
    m->layers = loader_alloc(l, n, sizeof *m->layers);
    if (!m->layers) return error_memory(l->error);
    m->n_layers = n;
    struct matrix_shape fc = {0, c->n_hidden, 2 * c->n_hidden, false};
    enum status status = loader_take_matrix(l, prefix, "fc", fc, &m->fc);
    if (!status)
        status = loader_take_vector(l, prefix, "pre_fc_norm_embedding.weight", c->n_hidden, 0, 0, &m->embedding_norm);
    if (!status)
        status = loader_take_vector(l, prefix, "pre_fc_norm_hidden.weight", c->n_hidden, 0, 0, &m->hidden_norm);
    if (!status) status = loader_take_vector(l, prefix, "norm.weight", c->n_hidden, 0, 0, &m->norm);
    for (int64_t i = 0; i < n && !status; i++) {
        char layer[TENSOR_NAME_BYTES];
        snprintf(layer, sizeof layer, "%slayers.%" PRId64 ".", prefix, i);
        status = loader_take_layer(l, layer, LAYER_ATTENTION, 0, &m->layers[i]);
    }
    if (status) return status;
    settle_norms(c, m);
    m->present = true;
    return STATUS_OK;
}
