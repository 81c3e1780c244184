#include "tests/model/rig.h"
#include "base/random.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need(enum status st, const struct error *e) {
    if (st == STATUS_OK) return;
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

static int64_t all_pages(const struct rig *r) { return (int64_t)r->n_page * RIG_LANES; }

struct rig *rig_open(const char *dir, const struct rig_options *o) {
    struct rig *r = calloc(1, sizeof *r);
    struct error e;
    must(r != NULL);
    need(model_open(dir, &r->model, &e), &e);
    r->config = model_get_config(r->model);
    int n_threads = o->n_threads != 0 ? o->n_threads : 2;
    need(cpu_device_create(o->compute, model_is_quantised(r->model), n_threads, o->isa, &r->device, &e), &e);
    if (o->prepare != NULL) o->prepare(r->device);
    int32_t context = o->context != 0 ? o->context : 512;
    r->limits = (struct model_limits){
        .max_lanes = RIG_LANES,
        .max_window = RIG_WINDOW,
        .max_context = context,
        .page_rows = o->page_rows != 0 ? o->page_rows : 256,
        .pass_rows = context < PROMPT_MAX_ROWS ? (context + 63) / 64 * 64 : PROMPT_MAX_ROWS,
        .kv = o->fp8 ? DTYPE_E4M3 : r->device->kv,
    };
    int64_t scratch = model_scratch_bytes(r->model, r->device, &r->limits);
    must(scratch > 0);
    need(model_load(r->model, r->device, &r->limits, NULL, NULL, &e), &e);
    r->run_layout = run_lay_out(r->config, RIG_WINDOW, r->device->activation);
    r->page_layout = page_lay_out(r->config, r->limits.page_rows, r->limits.kv);
    r->page_bytes = model_page_bytes(r->model, r->limits.page_rows, r->limits.kv);
    must(r->page_bytes == r->page_layout.page_bytes);
    r->run_bytes = model_run_bytes(r->model, RIG_WINDOW, r->device->activation);
    must(r->run_bytes == r->run_layout.bytes);
    r->n_page = (context + RIG_WINDOW + r->limits.page_rows - 1) / r->limits.page_rows;
    r->pages = r->device->alloc(r->device, (size_t)(all_pages(r) * r->page_bytes));
    r->runs = r->device->alloc(r->device, (size_t)(RIG_RUNS * r->run_bytes));
    must(r->pages != NULL && r->runs != NULL);
    r->fill = o->fill == 0 ? 0xff : 0;
    rig_fill(r);
    return r;
}

void rig_close(struct rig *r) {
    r->device->release(r->device, r->pages);
    r->device->release(r->device, r->runs);
    model_free(r->model);
    device_free(r->device);
    free(r);
}

void rig_fill(struct rig *r) {
    memset(r->pages, r->fill, (size_t)(all_pages(r) * r->page_bytes));
    memset(r->runs, r->fill, (size_t)(RIG_RUNS * r->run_bytes));
    if (r->fill != 0) model_poison(r->model);
}

void *rig_run(const struct rig *r, int32_t index) {
    must(index >= 0 && index < RIG_RUNS);
    return r->runs + index * r->run_bytes;
}

// ---- streams ----

void stream_open(struct stream *s, struct rig *r, int32_t lane, uint64_t shuffle) {
    *s = (struct stream){.rig = r, .n_page = r->n_page, .run = rig_run(r, lane)};
    must(lane < RIG_LANES && (size_t)r->n_page <= sizeof s->table / sizeof *s->table);
    int32_t n = r->n_page * RIG_LANES;
    int32_t *all = malloc((size_t)n * sizeof *all);
    must(all != NULL);
    for (int32_t i = 0; i < n; i++) all[i] = i;
    for (int32_t i = n - 1; i > 0 && shuffle != 0; i--) {
        int32_t j = (int32_t)(random_bits(shuffle, 0, (uint64_t)i) % (uint64_t)(i + 1)), t = all[i];
        all[i] = all[j];
        all[j] = t;
    }
    memcpy(s->table, all + lane * r->n_page, (size_t)r->n_page * sizeof *all);
    free(all);
}

struct lane stream_lane(const struct stream *s) {
    return (struct lane){
        .position = s->position, .n_pending = s->n_pending, .pages = s->table, .n_page = s->n_page, .run = s->run};
}

void stream_prompt(struct stream *s, const int32_t *ids, int32_t n, int32_t pass_rows, enum logits_wanted want,
                   float *logits) {
    struct rig *r = s->rig;
    int64_t n_vocab = r->config->n_vocab;
    struct error e;
    if (pass_rows > r->limits.pass_rows) pass_rows = r->limits.pass_rows;
    while (s->position < n) {
        struct lane lane = stream_lane(s);
        lane.n_row = model_pass_rows(s->position, n - s->position, pass_rows);
        bool last = s->position + lane.n_row == n;
        struct prompt_pass pass = {
            .lane = &lane,
            .ids = ids + s->position,
            .pages = r->pages,
            .want = want == LOGITS_LAST && !last ? LOGITS_NONE : want,
            .all = logits,
        };
        struct tensor row;
        need(model_prompt(r->model, &pass, &row, &e), &e);
        if (want == LOGITS_ALL) logits += lane.n_row * n_vocab;
        if (want == LOGITS_LAST && last) memcpy(logits, row.data, (size_t)n_vocab * sizeof *logits);
        s->position += lane.n_row;
    }
}

void streams_round(struct stream *const *streams, int32_t n_stream, const int32_t *n_rows, const int32_t *ids,
                   float *logits) {
    struct rig *r = streams[0]->rig;
    struct lane lanes[RIG_LANES];
    struct error e;
    int32_t n_row = 0;
    for (int32_t i = 0; i < n_stream; i++) {
        lanes[i] = stream_lane(streams[i]);
        lanes[i].row0 = n_row;
        lanes[i].n_row = n_rows[i];
        n_row += n_rows[i];
    }
    struct round round = {.lanes = lanes, .n_lane = n_stream, .n_row = n_row, .ids = ids, .pages = r->pages};
    struct tensor out;
    need(model_round(r->model, &round, &out, &e), &e);
    must(out.n_row == n_row && out.n_col == r->config->n_vocab && out.stride == out.n_col && out.dtype == DTYPE_F32);
    memcpy(logits, out.data, (size_t)(n_row * out.n_col) * sizeof *logits);
}

void stream_accept(struct stream *s, int32_t n) {
    s->position += n;
    s->n_pending = n;
}

// ---- what a stream's memory holds ----

int64_t stream_state_bytes(const struct rig *r) {
    int64_t conv = (r->config->n_taps - 1) * config_n_channels(r->config) * (int64_t)dtype_bytes(r->device->activation);
    return r->config->n_delta_layers * (r->run_layout.state_bytes + conv);
}

void run_read_state(const struct rig *r, void *run, int32_t position, void *out) {
    const struct run_layout *l = &r->run_layout;
    size_t row_bytes = (size_t)config_n_channels(r->config) * dtype_bytes(r->device->activation);
    char *to = out;
    memset(out, 0, (size_t)stream_state_bytes(r));
    for (int64_t i = 0; i < r->config->n_delta_layers; i++) {
        int64_t used = r->config->n_value_heads * r->config->key_dim * r->config->value_dim * (int64_t)sizeof(float);
        memcpy(to, (char *)run + run_state_offset(l, i), (size_t)used);
        to += l->state_bytes;
        for (int64_t p = position - (r->config->n_taps - 1); p < position; p++, to += row_bytes)
            if (p >= 0)
                memcpy(to, (char *)run + run_ring_offset(l, i) + (size_t)(p % l->ring_rows) * row_bytes, row_bytes);
    }
}

void stream_read_state(const struct stream *s, void *out) {
    struct rig *r = s->rig;
    struct lane lane = stream_lane(s);
    lane.run = rig_run(r, RIG_RUNS - 1);
    memcpy(lane.run, s->run, (size_t)r->run_bytes);
    if (lane.n_pending > 0) model_commit(r->model, &lane);
    run_read_state(r, lane.run, s->position, out);
}

static size_t vector_bytes(const struct rig *r) { return (size_t)r->config->head_dim * dtype_bytes(r->limits.kv); }

static size_t scale_bytes(const struct rig *r) { return r->limits.kv == DTYPE_E4M3 ? sizeof(float) : 0; }

static int64_t n_planes(const struct rig *r) { return r->config->n_attention_layers * 2 * r->config->n_kv_heads; }

int64_t stream_kv_bytes(const struct rig *r, int32_t n) {
    return n_planes(r) * n * (int64_t)(vector_bytes(r) + scale_bytes(r));
}

void stream_read_kv(const struct stream *s, int32_t n, void *out) {
    const struct rig *r = s->rig;
    int32_t rows = r->limits.page_rows;
    char *to = out;
    for (int64_t plane = 0; plane < n_planes(r); plane++)
        for (int32_t p = 0; p < n; p++) {
            const char *page = r->pages + s->table[p / rows] * r->page_bytes;
            size_t row = (size_t)(plane * rows + p % rows);
            memcpy(to, page + row * vector_bytes(r), vector_bytes(r));
            to += vector_bytes(r);
            memcpy(to, page + r->page_layout.scale_start + row * scale_bytes(r), scale_bytes(r));
            to += scale_bytes(r);
        }
}

int32_t argmax(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}
