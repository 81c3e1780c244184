// The forward pass: one walk over the layers for prompt passes and rounds, dense and MoE.
#include "model/internal.h"

static layer_fn *const mixers[] = {[LAYER_DELTA] = layer_delta, [LAYER_ATTENTION] = layer_attention};
static layer_fn *const feed_forwards[] = {[MODEL_QWEN35] = layer_mlp, [MODEL_QWEN35_MOE] = layer_moe};

struct walk walk_begin(struct model *m, const struct batch *b, void *pages) {
    struct walk w = {
        .m = m, .device = m->device, .ops = m->device->ops, .batch = b, .pages = pages, .scratch = m->scratch};
    struct scratch *s = &w.scratch;
    struct tensor *const tensors[] = {
        &s->x,           &s->hidden,      &s->before,         &s->mtp_both, &s->attention.qg, &s->attention.k,
        &s->attention.v, &s->attention.q, &s->attention.out,  &s->delta.m,  &s->delta.c,      &s->delta.z,
        &s->delta.a,     &s->delta.b,     &s->delta.out,      &s->mlp.gate, &s->mlp.up,       &s->moe.x,
        &s->moe.gate,    &s->moe.up,      &s->moe.shared_out,
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) tensors[i]->n_row = b->n_row;
    w.next = s->x;
    m->n_row = b->n_row;
    w.ops->begin(w.device, b);
    return w;
}

void layer_add(const struct walk *w, struct tensor out, const struct weight *weight) {
    struct linear_args project = {
        .form = w->batch->form,
        .x = out,
        .n_parts = 1,
        .part = {{weight, w->next}},
        .residual = w->scratch.x,
    };
    w->ops->linear(w->device, &project);
}

void layer_feed_forward(const struct walk *w, const struct layer_weights *weights, int64_t nth) {
    feed_forwards[w->m->config.family](w, weights, nth);
}

// Where the stream is kept from the n-th tapped layer on, up to the next one: behind a tapped layer it goes on
// elsewhere, so that what was tapped stays without being copied.
static struct tensor stream_behind(const struct walk *w, int n) {
    struct tensor x = n < w->m->drafts.n_taps ? w->m->scratch.taps[n] : w->m->scratch.x;
    x.n_row = w->batch->n_row;
    return x;
}

// From ids to scratch.hidden, the stream after the final norm.
static void run_layers(struct walk *w) {
    const struct model_config *c = &w->m->config;
    const struct model_weights *weights = w->m->weights;
    const struct model_drafts *drafts = &w->m->drafts;
    int64_t n_of_kind[2] = {0};
    int n_tapped = 0;
    w->scratch.x = w->next = stream_behind(w, 0);
    struct embed_args embed = {
        .batch = w->batch,
        .table = &weights->embedding,
        .out = w->scratch.x,
    };
    w->ops->embed(w->device, &embed);
    for (int64_t i = 0; i < c->n_layers; i++) {
        enum layer_kind kind = c->layers[i];
        mixers[kind](w, &weights->layers[i], n_of_kind[kind]++);
        w->scratch.x = w->next;
        layer_feed_forward(w, &weights->layers[i], i);
        if (n_tapped < drafts->n_taps && drafts->taps[n_tapped] == i) w->next = stream_behind(w, ++n_tapped);
    }
    struct norm_args norm = {
        .x = w->scratch.x,
        .out = w->scratch.hidden,
        .weight = weights->final_norm,
        .eps = (float)c->norm_eps,
    };
    w->ops->norm(w->device, &norm);
    w->scratch.x = w->next = stream_behind(w, drafts->n_taps); // what was tapped is not written again
}

// Logits of n rows of scratch.hidden, by round arithmetic in both forms: of a prompt pass one row is wanted as a rule,
// and its bits must not depend on whether all rows were asked for.
static struct tensor output_logits(const struct walk *w, int64_t first, int64_t n) {
    struct tensor logits = tensor_rows(w->scratch.logits, 0, n);
    struct linear_args output = {
        .form = FORM_ROWS,
        .x = tensor_rows(w->scratch.hidden, first, n),
        .n_parts = 1,
        .part = {{&w->m->weights->output, logits}},
    };
    w->ops->linear(w->device, &output);
    return logits;
}

// All rows' logits to host memory, as many at a time as there is scratch for.
static void copy_all_logits(const struct walk *w, float *all) {
    int64_t n_vocab = w->m->config.n_vocab, step = w->m->scratch.logits.n_row;
    for (int64_t first = 0; first < w->batch->n_row; first += step) {
        int64_t n = w->batch->n_row - first < step ? w->batch->n_row - first : step;
        struct tensor logits = output_logits(w, first, n);
        w->device->copy_out(w->device, all + first * n_vocab, logits.data, (size_t)(n * n_vocab) * sizeof(float));
    }
}

static void check_pages(const struct model *m, const struct lane *l) {
    must((int64_t)l->position + l->n_row <= (int64_t)l->n_page * m->limits.page_rows);
}

static void check_prompt(const struct model *m, const struct prompt_pass *pass) {
    const struct lane *l = pass->lane;
    int64_t position = l->position;
    must(m->memory != NULL);
    must(l->row0 == 0 && l->n_pending == 0 && l->n_row > 0 && l->n_row <= m->limits.pass_rows);
    must(position >= 0 && position % PROMPT_CHUNK == 0);
    must(position / PROMPT_MAX_ROWS == (position + l->n_row - 1) / PROMPT_MAX_ROWS);
    for (int32_t i = 0; i < pass->n_keep; i++) {
        int64_t before = i == 0 ? position : pass->keeps[i - 1].position, at = pass->keeps[i].position;
        must(at > before && at <= position + l->n_row && at % PROMPT_CHUNK == 0);
    }
    check_pages(m, l);
}

int32_t model_pass_rows(int32_t position, int32_t n_left, int32_t pass_rows) {
    must(position >= 0 && position % PROMPT_CHUNK == 0 && n_left > 0 && pass_rows > 0 && pass_rows % PROMPT_CHUNK == 0);
    int32_t rows = PROMPT_MAX_ROWS - position % PROMPT_MAX_ROWS;
    if (rows > pass_rows) rows = pass_rows;
    return rows < n_left ? rows : n_left;
}

enum status model_prompt(struct model *m, const struct prompt_pass *pass, struct tensor *logits, struct error *e) {
    check_prompt(m, pass);
    struct batch b = {
        .form = FORM_PROMPT,
        .n_row = pass->lane->n_row,
        .n_lane = 1,
        .n_keep = pass->n_keep,
        .max_window = m->limits.max_window,
        .ids = pass->ids,
        .lanes = pass->lane,
        .keeps = pass->keeps,
    };
    struct walk w = walk_begin(m, &b, pass->pages);
    run_layers(&w);
    if (m->drafts.mtp) mtp_after_prompt(&w);
    if (pass->want == LOGITS_NONE) return STATUS_OK;
    if (pass->want == LOGITS_ALL) {
        copy_all_logits(&w, pass->all);
        enum status st = m->device->sync(m->device, e);
        if (st != STATUS_OK) return st;
    }
    struct tensor last = output_logits(&w, b.n_row - 1, 1);
    if (logits != NULL) *logits = last;
    return STATUS_OK;
}

static void check_round(const struct model *m, const struct round *round) {
    int32_t row = 0;
    must(m->memory != NULL);
    must(round->n_lane > 0 && round->n_lane <= m->limits.max_lanes);
    for (int32_t i = 0; i < round->n_lane; i++) {
        const struct lane *l = &round->lanes[i];
        must(l->row0 == row && l->n_row > 0 && l->n_row <= m->limits.max_window);
        must(l->n_pending >= 0 && l->n_pending <= m->limits.max_window && l->n_pending <= l->position);
        check_pages(m, l);
        row += l->n_row;
    }
    must(row == round->n_row && row <= m->scratch.logits.n_row);
}

enum status model_round(struct model *m, const struct round *round, struct tensor *logits, struct error *e) {
    (void)e; // a device's failure is sticky, and reported where the caller waits for the device
    check_round(m, round);
    struct batch b = {
        .form = FORM_ROWS,
        .n_row = round->n_row,
        .n_lane = round->n_lane,
        .max_window = m->limits.max_window,
        .ids = round->ids,
        .lanes = round->lanes,
    };
    struct walk w = walk_begin(m, &b, round->pages);
    run_layers(&w);
    *logits = output_logits(&w, 0, b.n_row);
    return STATUS_OK;
}

void model_commit(struct model *m, const struct lane *lane) {
    const struct model_config *c = &m->config;
    struct delta_commit_args commit = {
        .lane = lane,
        .max_window = m->limits.max_window,
        .n_key_head = (int)c->n_key_heads,
        .n_value_head = (int)c->n_value_heads,
        .key_dim = (int)c->key_dim,
        .value_dim = (int)c->value_dim,
    };
    for (int64_t i = 0; i < c->n_delta_layers; i++) {
        commit.state_offset = run_state_offset(&m->run, i);
        commit.log_offset = run_log_offset(&m->run, i);
        m->device->ops->delta_commit(m->device, &commit);
    }
}
