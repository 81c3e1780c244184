#include "model/mtp.h"
#include "model/internal.h"

static void copy_rows(const struct walk *w, struct tensor to, int64_t to_row, struct tensor from, int64_t from_row,
                      int64_t n) {
    struct tensor target = tensor_rows(to, to_row, n), source = tensor_rows(from, from_row, n);
    w->device->copy(w->device, target.data, source.data, (size_t)(n * to.n_col) * dtype_bytes(to.dtype));
}

// ---- the hidden rows of a run ----

static void *kept_row(const struct model *m, void *run, int64_t position) {
    const struct run_layout *l = &m->run;
    return (char *)run + l->hidden_start + position % l->hidden_rows * l->hidden_row_bytes;
}

static void keep_hidden(const struct model *m, int64_t row, void *run, int64_t position) {
    struct device *d = m->device;
    d->copy(d, kept_row(m, run, position), tensor_rows(m->scratch.hidden, row, 1).data,
            (size_t)m->run.hidden_row_bytes);
}

void mtp_keep(struct model *m, const struct lane *lane, int32_t n_kept) {
    for (int32_t i = 0; i < n_kept; i++) keep_hidden(m, lane->row0 + i, lane->run, lane->position + i);
}

// ---- the head ----

// scratch.x = fc [norm(embedding) | norm(hidden)]
static void join(const struct walk *w, struct tensor hidden) {
    const struct model_config *c = &w->m->config;
    const struct mtp_weights *mtp = &w->m->weights->mtp;
    struct tensor both = w->scratch.mtp_both, halves[2] = {both, both};
    struct tensor sources[2] = {w->scratch.x, hidden};
    const float *const norms[2] = {mtp->embedding_norm, mtp->hidden_norm};
    struct embed_args embed = {.batch = w->batch, .table = &w->m->weights->embedding, .out = w->scratch.x};
    w->ops->embed(w->device, &embed);
    halves[1].data = (char *)both.data + (size_t)c->n_hidden * dtype_bytes(both.dtype);
    for (int i = 0; i < 2; i++) {
        halves[i].n_col = c->n_hidden;
        struct norm_args norm = {.x = sources[i], .out = halves[i], .weight = norms[i], .eps = (float)c->norm_eps};
        w->ops->norm(w->device, &norm);
    }
    struct linear_args project = {.form = w->batch->form, .x = both, .n_parts = 1, .part = {{&mtp->fc, w->scratch.x}}};
    w->ops->linear(w->device, &project);
}

static int64_t nth_layer(const struct walk *w) { return w->m->config.n_attention_layers; } // behind the model's own

void mtp_after_prompt(const struct walk *w) {
    struct model *m = w->m;
    const struct lane *lane = &w->batch->lanes[0];
    size_t bytes = (size_t)m->run.hidden_row_bytes;
    // The row before the pass; there is none before position 0, and nothing may be read that was not written.
    if (lane->position > 0)
        w->device->copy(w->device, w->scratch.before.data, kept_row(m, lane->run, lane->position - 1), bytes);
    else
        w->device->copy(w->device, w->scratch.before.data, w->scratch.hidden.data, bytes);
    join(w, w->scratch.before);
    layer_attention_store(w, &m->weights->mtp.layers[0], nth_layer(w));
    for (int32_t i = 0; i < w->batch->n_keep; i++) {
        const struct keep *k = &w->batch->keeps[i];
        keep_hidden(m, k->position - 1 - lane->position, k->run, k->position - 1);
    }
    keep_hidden(m, lane->n_row - 1, lane->run, lane->position + lane->n_row - 1);
}

static struct batch batch_of(const struct model *m, const struct round *rows) {
    return (struct batch){.form = FORM_ROWS,
                          .n_row = rows->n_row,
                          .n_lane = rows->n_lane,
                          .max_window = m->limits.max_window,
                          .ids = rows->ids,
                          .lanes = rows->lanes};
}

// From scratch.x to the head's own hidden rows.
static void run_layer(const struct walk *w, struct tensor hidden) {
    const struct mtp_weights *mtp = &w->m->weights->mtp;
    layer_attention(w, &mtp->layers[0], nth_layer(w));
    layer_feed_forward(w, &mtp->layers[0], nth_layer(w));
    struct norm_args norm = {
        .x = w->scratch.x, .out = hidden, .weight = mtp->norm, .eps = (float)w->m->config.norm_eps};
    w->ops->norm(w->device, &norm);
}

static struct tensor output(const struct walk *w, struct tensor hidden) {
    struct tensor logits = tensor_rows(w->scratch.logits, 0, hidden.n_row);
    struct linear_args project = {
        .form = FORM_ROWS, .x = hidden, .n_parts = 1, .part = {{&w->m->weights->output, logits}}};
    w->ops->linear(w->device, &project);
    return logits;
}

// scratch.x of rows whose hidden rows wait; returns where those are brought together.
static struct tensor join_waiting(const struct walk *w, const struct round *rows) {
    const struct model *m = w->m;
    struct tensor in = tensor_rows(w->scratch.mtp_in, 0, rows->n_row);
    for (int32_t i = 0; i < rows->n_lane; i++) {
        const struct lane *l = &rows->lanes[i];
        for (int32_t k = 0; k < l->n_row; k++)
            w->device->copy(w->device, tensor_rows(in, l->row0 + k, 1).data, kept_row(m, l->run, l->position + k - 1),
                            (size_t)m->run.hidden_row_bytes);
    }
    join(w, in);
    return in;
}

void mtp_look_back(struct model *m, const struct round *rows, struct tensor *logits) {
    struct batch b = batch_of(m, rows);
    struct walk w = walk_begin(m, &b, rows->pages);
    join_waiting(&w, rows);
    run_layer(&w, w.scratch.hidden);
    *logits = output(&w, w.scratch.hidden);
}

void mtp_absorb(struct model *m, const struct round *rows, struct tensor *logits) {
    struct batch b = batch_of(m, rows);
    struct walk w = walk_begin(m, &b, rows->pages);
    struct tensor in = join_waiting(&w, rows);
    if (logits == NULL) {
        layer_attention_store(&w, &m->weights->mtp.layers[0], nth_layer(&w));
        return;
    }
    run_layer(&w, w.scratch.hidden);
    for (int32_t i = 0; i < rows->n_lane; i++) // `in` has been used up
        copy_rows(&w, in, i, w.scratch.hidden, rows->lanes[i].row0 + rows->lanes[i].n_row - 1, 1);
    *logits = output(&w, tensor_rows(in, 0, rows->n_lane));
}

void mtp_chain(struct model *m, const struct round *rows, const int32_t *from, struct tensor *logits) {
    struct batch b = batch_of(m, rows);
    struct walk w = walk_begin(m, &b, rows->pages);
    struct tensor in = tensor_rows(w.scratch.mtp_in, 0, rows->n_row);
    for (int32_t i = 0; i < rows->n_row; i++) // in place: from[i] >= i
        if (from[i] != i) copy_rows(&w, in, i, in, from[i], 1);
    join(&w, in);
    run_layer(&w, in); // which has been used up
    *logits = output(&w, in);
}
