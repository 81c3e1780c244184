#include "tests/model/drafter_rig.h"
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void must_work(enum status s, const struct error *e) {
    if (s != STATUS_OK) fail_msg("%s", e->text);
}

struct folder drafter_copy(int32_t window) {
    struct folder f = folder_create();
    folder_copy(&f, DRAFTER_SHIPPED);
    if (window == 0) return f;
    json_t *config = json_load_file(folder_file(&f, "config.json"), 0, NULL);
    assert_non_null(config);
    json_object_set_new(config, "sliding_window", json_integer(window));
    char *text = json_dumps(config, 0);
    folder_write_text(&f, "config.json", text);
    free(text);
    json_decref(config);
    return f;
}

static void make_taps(struct drafter_rig *r) {
    int64_t n = (int64_t)DRAFTER_LONGEST * r->drafter->config.n_tap * r->drafter->config.n_hidden;
    r->taps = malloc((size_t)n * sizeof *r->taps);
    assert_non_null(r->taps);
    for (int64_t i = 0; i < n; i++) { // as tools/train/golden_drafter.py makes them
        uint32_t x = (uint32_t)i * 2654435761u;
        x ^= x >> 15;
        x *= 2246822519u;
        x ^= x >> 13;
        r->taps[i] = (float)(x >> 8) / (float)(1 << 23) - 1;
    }
}

struct drafter_rig drafter_rig_open(const struct folder *f, enum compute compute, enum cpu_isa isa, int bits) {
    struct drafter_rig r = {.folder = *f};
    struct error e;
    must_work(model_open(DRAFTER_TARGET, &r.model, &e), &e);
    must_work(drafter_open(f->path, r.model, bits, &r.drafter, &e), &e);
    must_work(cpu_device_create(compute, true, 2, isa, &r.device, &e), &e);
    r.limits = (struct model_limits){.max_lanes = DRAFTER_LANES,
                                     .max_window = 8,
                                     .max_context = DRAFTER_LONGEST + 64,
                                     .page_rows = 256,
                                     .pass_rows = 512};
    r.limits.kv = r.device->kv;
    must_work(model_load(r.model, r.device, &r.limits, NULL, NULL, &e), &e);
    const struct model_config *c = model_get_config(r.model);
    struct device_limits limits = {.n_vocab = c->n_vocab, .max_lanes = DRAFTER_LANES, .max_window = 8};
    drafter_raise_limits(r.drafter, &r.limits, &limits);
    must_work(r.device->reserve(r.device, &limits, &e), &e);
    must_work(drafter_load(r.drafter, r.device, &r.limits, &e), &e);
    r.lane_bytes = drafter_lane_bytes(r.drafter, r.device->kv, r.device->activation);
    assert_int_equal(r.lane_bytes % 256, 0);
    r.lanes = r.device->alloc(r.device, (size_t)(r.lane_bytes * (DRAFTER_LANES + 2)));
    assert_non_null(r.lanes);
    memset(r.lanes, 0xff, (size_t)(r.lane_bytes * (DRAFTER_LANES + 2)));
    drafter_poison(r.drafter);
    r.device->poison(r.device);
    make_taps(&r);
    return r;
}

void drafter_rig_close(struct drafter_rig *r) {
    r->device->release(r->device, r->lanes);
    drafter_free(r->drafter);
    model_free(r->model);
    device_free(r->device);
    free(r->taps);
    folder_remove(&r->folder);
}

void *drafter_rig_lane(const struct drafter_rig *r, int i) { return r->lanes + i * r->lane_bytes; }

// Taps of positions [first, first + n) of the made-up streams, shifted by `shift` positions so that streams differ.
static struct drafter_taps taps_of(const struct drafter_rig *r, int32_t first, int32_t n, int32_t shift) {
    struct drafter_taps t = {0};
    int32_t n_tap = r->drafter->config.n_tap;
    int64_t H = r->drafter->config.n_hidden;
    for (int32_t k = 0; k < n_tap; k++) {
        float *rows = malloc((size_t)(n * H) * sizeof *rows);
        assert_non_null(rows);
        for (int32_t i = 0; i < n; i++)
            memcpy(rows + i * H, r->taps + ((int64_t)((first + i + shift) % DRAFTER_LONGEST) * n_tap + k) * H,
                   (size_t)H * sizeof *rows);
        t.rows[k] = (struct tensor){.data = rows, .dtype = DTYPE_F32, .n_row = n, .n_col = H, .stride = H};
    }
    return t;
}

static void free_taps(struct drafter_taps *t) {
    for (int k = 0; k < DRAFTER_MAX_TAPS; k++) free(t->rows[k].data);
}

void drafter_stream_rows(struct drafter_stream *s, int32_t n_row, int32_t n_kept) {
    struct drafter_taps taps = taps_of(s->rig, s->position, n_row, s->shift);
    struct lane lane = {.n_row = n_row, .position = s->position};
    drafter_absorb(s->rig->drafter, &lane, n_kept, &taps, s->own);
    s->position += n_kept;
    free_taps(&taps);
}

void drafter_stream_prompt(struct drafter_stream *s, int32_t n, const struct keep *keeps, int32_t n_keep,
                           void *const *kept) {
    struct drafter_taps taps = taps_of(s->rig, s->position, n, s->shift);
    struct lane lane = {.n_row = n, .position = s->position};
    struct prompt_pass pass = {.lane = &lane, .keeps = keeps, .n_keep = n_keep};
    drafter_prompt(s->rig->drafter, &pass, &taps, s->own, kept, &s->state);
    s->position += n;
    free_taps(&taps);
}

static uint32_t all_allowed[4096 / 32];

void drafter_rig_propose(struct drafter_stream *const *streams, int32_t n, int32_t n_want, double temperature,
                         struct drafter_answer *answers) {
    struct drafter_ask asks[DRAFTER_LANES];
    struct draw_params draws[DRAFTER_LANES];
    struct error e;
    memset(all_allowed, 0xff, sizeof all_allowed);
    for (int32_t i = 0; i < n; i++) {
        struct drafter_stream *s = streams[i];
        draws[i] = (struct draw_params){.temperature = temperature,
                                        .top_p = 1,
                                        .repetition = 1,
                                        .seed = 7 + (uint64_t)s->shift,
                                        .position = s->position + 1,
                                        .allowed = all_allowed};
        asks[i] = (struct drafter_ask){.position = s->position,
                                       .last = DRAFTER_LAST,
                                       .own = s->own,
                                       .state = &s->state,
                                       .draw = &draws[i],
                                       .n_want = n_want,
                                       .ids = answers[i].ids,
                                       .confidence = answers[i].confidence};
    }
    must_work(drafter_propose(streams[0]->rig->drafter, asks, n, &e), &e);
    for (int32_t i = 0; i < n; i++) answers[i].n = asks[i].n;
}

double rel_l2(const float *got, const float *want, int64_t n) {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += (double)want[i] * want[i];
    }
    return sqrt(error / norm);
}
