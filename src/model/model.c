#include "model/drafter.h"
#include "model/internal.h"
#include "model/weights_device.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// ---- opening ----

static enum status make_inv_freq(struct model *m, struct error *e) {
    int64_t n = m->config.n_rotary / 2;
    m->inv_freq = malloc((size_t)most(n, 1) * sizeof *m->inv_freq);
    if (m->inv_freq == NULL) return error_memory(e);
    for (int64_t i = 0; i < n; i++)
        m->inv_freq[i] = (float)pow(m->config.rope_theta, -2.0 * (double)i / (double)m->config.n_rotary);
    return STATUS_OK;
}

static int64_t matrix_bytes(const struct weight *w) {
    if (w->kind == WEIGHT_NONE) return 0;
    int64_t row = (int64_t)weight_row_bytes(w);
    if (w->kind == WEIGHT_AFFINE) row += 2 * (w->n_in / w->group) * (int64_t)dtype_bytes(w->dtype);
    return w->n_out * row;
}

static int64_t layer_bytes(const struct model_config *c, const struct layer_weights *l) {
    const struct weight *const matrices[] = {&l->q,      &l->k,        &l->v,      &l->o,          &l->qkv,
                                             &l->z,      &l->b,        &l->a,      &l->out,        &l->mlp.gate,
                                             &l->mlp.up, &l->mlp.down, &l->router, &l->shared_gate};
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) bytes += matrix_bytes(matrices[i]);
    for (int64_t i = 0; i < c->n_experts; i++)
        bytes += matrix_bytes(&l->expert_gate[i]) + matrix_bytes(&l->expert_up[i]) + matrix_bytes(&l->expert_down[i]);
    return bytes;
}

// Of the matrices; the vectors are too small to matter in a plan.
static int64_t count_weight_bytes(const struct model_config *c, const struct model_weights *w) {
    int64_t bytes = matrix_bytes(&w->embedding) + (c->tied ? 0 : matrix_bytes(&w->output));
    for (int64_t i = 0; i < c->n_layers; i++) bytes += layer_bytes(c, &w->layers[i]);
    return bytes;
}

static int64_t count_mtp_bytes(const struct model_config *c, const struct mtp_weights *mtp) {
    if (!mtp->present) return 0;
    int64_t bytes = matrix_bytes(&mtp->fc);
    for (int64_t i = 0; i < mtp->n_layers; i++) bytes += layer_bytes(c, &mtp->layers[i]);
    return bytes;
}

enum status model_open(const char *dir, struct model **out, struct error *e) {
    struct model *m = calloc(1, sizeof *m);
    if (m == NULL) return error_memory(e);
    enum status st = checkpoint_open(dir, &m->checkpoint, e);
    if (st == STATUS_OK) st = config_load(m->checkpoint, &m->config, e);
    if (st == STATUS_OK) st = weights_load(m->checkpoint, &m->config, &m->weights, e);
    if (st == STATUS_OK) st = make_inv_freq(m, e);
    if (st != STATUS_OK) {
        model_free(m);
        return st;
    }
    m->weight_bytes = count_weight_bytes(&m->config, m->weights);
    m->mtp_bytes = count_mtp_bytes(&m->config, &m->weights->mtp);
    *out = m;
    return STATUS_OK;
}

void model_free(struct model *m) {
    if (m == NULL) return;
    if (m->memory != NULL) m->device->release(m->device, m->memory);
    if (m->device_weights != NULL) m->device->release(m->device, m->device_weights);
    if (m->device_inv_freq != NULL) m->device->release(m->device, m->device_inv_freq);
    free(m->inv_freq);
    weights_free(m->weights);
    config_free(&m->config);
    checkpoint_free(m->checkpoint);
    free(m);
}

// ---- sizes ----

const struct model_config *model_get_config(const struct model *m) { return &m->config; }

bool model_is_quantised(const struct model *m) {
    int64_t n = 0;
    for (int bits = 2; bits <= 8; bits++) n += m->weights->census.n_by_bits[bits];
    return n > 0;
}

int64_t model_weight_bytes(const struct model *m) { return m->weight_bytes; }

void model_set_drafts(struct model *m, const struct model_drafts *drafts) {
    must(m->memory == NULL || !drafts->mtp || m->mtp_is_there);
    must(drafts->n_taps >= 0 && drafts->n_taps <= MODEL_TAPS_MAX);
    m->drafts = *drafts;
    for (int i = 0; i < drafts->n_taps; i++)
        must(drafts->taps[i] > (i > 0 ? drafts->taps[i - 1] : -1) && drafts->taps[i] < m->config.n_layers);
}

const char *model_mtp_absence(const struct model *m) {
    const struct mtp_weights *mtp = &m->weights->mtp;
    if (!mtp->present) return mtp->absence;
    return mtp->n_layers == 1 ? NULL : "the MTP head has more than one layer, which is not supported";
}

// A head's keys and values are one more attention layer's.
static struct page_layout page_of(const struct model *m, int32_t page_rows, enum dtype kv) {
    struct model_config c = m->config;
    if (m->drafts.mtp) c.n_attention_layers++;
    return page_lay_out(&c, page_rows, kv);
}

static struct run_layout run_of(const struct model *m, int32_t max_window, enum dtype activation) {
    struct run_layout l = run_lay_out(&m->config, max_window, activation);
    run_add_drafts(&l, &m->config, max_window, activation, m->drafts.mtp, m->drafts.lane_bytes);
    return l;
}

int64_t model_page_bytes(const struct model *m, int32_t page_rows, enum dtype kv) {
    return page_of(m, page_rows, kv).page_bytes;
}

int64_t model_run_bytes(const struct model *m, int32_t max_window, enum dtype activation) {
    return run_of(m, max_window, activation).bytes;
}

int64_t model_kept_bytes(const struct model *m, int32_t max_window, enum dtype activation) {
    return run_of(m, max_window, activation).kept_bytes;
}

int64_t model_mtp_bytes(const struct model *m) { return m->drafts.mtp ? m->mtp_bytes : 0; }

void *model_lane_drafter(const struct model *m, void *run) { return (char *)run + m->run.drafter_start; }

struct tensor model_tap(const struct model *m, int i) {
    must(i >= 0 && i < m->drafts.n_taps);
    return tensor_rows(m->scratch.taps[i], 0, m->n_row);
}

static int64_t round_rows(const struct model_limits *l) {
    return l->max_rows > 0 ? l->max_rows : (int64_t)l->max_lanes * l->max_window;
}

static struct device_limits limits_of_device(const struct model *m, const struct model_limits *l) {
    const struct model_config *c = &m->config;
    int64_t n_query = c->n_heads * c->head_dim, n_value = c->n_value_heads * c->value_dim;
    int64_t width = most(c->n_hidden, most(c->n_intermediate, most(c->shared_width, c->expert_width)));
    struct device_limits limits = {
        .max_rows = l->pass_rows,
        .max_round_rows = round_rows(l),
        .max_in = most(2 * c->n_hidden, most(width, most(n_query, n_value))), // 2 H: the MTP head's
        .max_out = most(most(width, c->n_experts), most(2 * n_query, config_n_channels(c))),
        .n_vocab = c->n_vocab,
        .head_dim = c->head_dim,
        .n_head = c->n_heads,
        .n_kv_head = c->n_kv_heads,
        .key_dim = c->key_dim,
        .value_dim = c->value_dim,
        .n_key_head = c->n_key_heads,
        .n_value_head = c->n_value_heads,
        .n_expert = c->n_experts,
        .n_used = c->n_experts_used,
        .expert_width = c->expert_width,
        .max_context = l->max_context,
        .max_lanes = l->max_lanes,
        .max_window = l->max_window,
    };
    if (m->drafts.drafter != NULL) drafter_raise_limits(m->drafts.drafter, l, &limits);
    return limits;
}

static int64_t lay_out_scratch(const struct model *m, enum dtype activation, const struct model_limits *l, void *base,
                               struct scratch *out) {
    struct scratch_shape shape = {.activation = activation,
                                  .n_rows = most(l->pass_rows, round_rows(l)),
                                  .n_logits = round_rows(l),
                                  .mtp = m->drafts.mtp,
                                  .n_taps = m->drafts.n_taps};
    return scratch_lay_out(&m->config, &shape, base, out);
}

int64_t model_scratch_bytes(const struct model *m, struct device *d, const struct model_limits *limits) {
    struct scratch unplaced;
    struct device_limits of_device = limits_of_device(m, limits);
    return lay_out_scratch(m, d->activation, limits, NULL, &unplaced) + (int64_t)d->reserve_bytes(d, &of_device);
}

// ---- loading ----

struct progress {
    model_progress_fn *fn;
    void *context;
};

static bool report_progress(void *context, uint64_t bytes_done, uint64_t bytes_total) {
    const struct progress *p = context;
    p->fn(p->context, (int64_t)bytes_done, (int64_t)bytes_total);
    return true;
}

static enum status take_scratch(struct model *m, const struct model_limits *limits, struct error *e) {
    struct device *d = m->device;
    struct scratch s;
    must(limits->pass_rows >= PROMPT_CHUNK && limits->pass_rows <= PROMPT_MAX_ROWS);
    must(limits->max_lanes > 0 && limits->max_window > 0 && limits->page_rows > 0);
    struct device_limits of_device = limits_of_device(m, limits);
    enum status st = d->reserve(d, &of_device, e);
    if (st != STATUS_OK) return st;
    int64_t bytes = lay_out_scratch(m, d->activation, limits, NULL, &s);
    void *memory = d->alloc(d, (size_t)bytes);
    if (memory == NULL)
        return error_set(e, STATUS_MEMORY, "%s has no %.1f MiB for the results between operations", d->name,
                         (double)bytes / (1 << 20));
    lay_out_scratch(m, d->activation, limits, memory, &m->scratch);
    m->memory = memory;
    m->limits = *limits;
    m->run = run_of(m, limits->max_window, d->activation);
    m->page = page_of(m, limits->page_rows, limits->kv);
    return STATUS_OK;
}

// What the forward pass reads, where it can read it: in the mapped files, or in the device's own memory.
struct device_progress {
    model_progress_fn *fn;
    void *context;
    int64_t total;
};

static void report_copied(void *context, int64_t bytes_done) {
    const struct device_progress *p = context;
    p->fn(p->context, bytes_done < p->total ? bytes_done : p->total, p->total);
}

static enum status bring_weights(struct model *m, struct device *d, model_progress_fn *progress, void *context,
                                 struct error *e) {
    if (d->memory == NULL) {
        struct progress p = {progress, context};
        return checkpoint_prefetch(m->checkpoint, progress == NULL ? NULL : report_progress, &p, e);
    }
    struct device_progress p = {progress, context, m->weight_bytes};
    enum status st = weights_to_device(m->weights, &m->config, m->drafts.mtp, d,
                                       progress == NULL ? NULL : report_copied, &p, &m->device_weights, e);
    if (st != STATUS_OK) return st;
    size_t bytes = (size_t)(m->config.n_rotary / 2) * sizeof *m->inv_freq;
    m->device_inv_freq = d->alloc(d, bytes);
    if (m->device_inv_freq == NULL) return error_memory(e);
    d->copy_in(d, m->device_inv_freq, m->inv_freq, bytes);
    return STATUS_OK;
}

enum status model_load(struct model *m, struct device *d, const struct model_limits *limits,
                       model_progress_fn *progress, void *context, struct error *e) {
    must(m->memory == NULL);
    m->mtp_is_there = m->drafts.mtp || d->memory == NULL;
    m->device = d; // what is taken from here on is given back with the model
    enum status st = bring_weights(m, d, progress, context, e);
    return st == STATUS_OK ? take_scratch(m, limits, e) : st;
}

enum status model_set_limits(struct model *m, const struct model_limits *limits, struct error *e) {
    must(m->device != NULL);
    if (m->memory != NULL) m->device->release(m->device, m->memory);
    m->memory = NULL;
    return take_scratch(m, limits, e);
}

void model_poison(struct model *m) {
    struct scratch s;
    int64_t bytes = lay_out_scratch(m, m->device->activation, &m->limits, NULL, &s);
    device_fill(m->device, m->memory, 0xffff, (size_t)bytes);
    m->device->poison(m->device);
}
