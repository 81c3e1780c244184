// A drafter against the golden blocks of its definition; and that a stream's proposals do not depend on company, on how
// its rows came, on where they lie, or on what was proposed before.
#include "base/numeric.h"
#include "base/random.h"
#include "cpu/device_cpu.h"
#include "format/safetensors.h"
#include "model/drafter_internal.h"
#include "tests/format/folder.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TARGET    "models/fold-s"
#define DRAFTER   "models/fold-s-DFlash2"
#define GOLDEN    "tests/fixtures/models/fold-s-DFlash2.safetensors"
#define LAST      1234 // the golden blocks' anchor
#define LANES     4
#define LONGEST   900
#define EXACT_REL 2e-5 // of fp32: the angles of rotations are rounded to it too
#define LOSSY_REL 1e-2 // of bf16 keys and values

struct rig {
    struct folder folder;
    struct device *device;
    struct model *model;
    struct drafter *drafter;
    struct model_limits limits;
    int64_t lane_bytes;
    char *lanes; // [LANES + 2]
    float *taps; // [LONGEST][n_tap][H]: made-up streams
};

static void need(enum status s, const struct error *e) {
    if (s != STATUS_OK) fail_msg("%s", e->text);
}

// The shipped drafter with another window, 0: its own.
static struct folder copy_drafter(int32_t window) {
    struct folder f = folder_create();
    folder_copy(&f, DRAFTER);
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

static void make_taps(struct rig *r) {
    int64_t n = (int64_t)LONGEST * r->drafter->config.n_tap * r->drafter->config.n_hidden;
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

static struct rig rig_open(const struct folder *f, enum compute compute, enum cpu_isa isa, int bits) {
    struct rig r = {.folder = *f};
    struct error e;
    need(model_open(TARGET, &r.model, &e), &e);
    need(drafter_open(f->path, r.model, bits, &r.drafter, &e), &e);
    need(cpu_device_create(compute, true, 2, isa, &r.device, &e), &e);
    r.limits = (struct model_limits){
        .max_lanes = LANES, .max_window = 8, .max_context = LONGEST + 64, .page_rows = 256, .pass_rows = 512};
    r.limits.kv = r.device->kv;
    need(model_load(r.model, r.device, &r.limits, NULL, NULL, &e), &e);
    const struct model_config *c = model_get_config(r.model);
    struct device_limits limits = {.n_vocab = c->n_vocab, .max_lanes = LANES, .max_window = 8};
    drafter_raise_limits(r.drafter, &r.limits, &limits);
    need(r.device->reserve(r.device, &limits, &e), &e);
    need(drafter_load(r.drafter, r.device, &r.limits, &e), &e);
    r.lane_bytes = drafter_lane_bytes(r.drafter, r.device->kv, r.device->activation);
    assert_int_equal(r.lane_bytes % 256, 0);
    r.lanes = r.device->alloc(r.device, (size_t)(r.lane_bytes * (LANES + 2)));
    assert_non_null(r.lanes);
    memset(r.lanes, 0xff, (size_t)(r.lane_bytes * (LANES + 2)));
    drafter_poison(r.drafter);
    r.device->poison(r.device);
    make_taps(&r);
    return r;
}

static void rig_close(struct rig *r) {
    r->device->release(r->device, r->lanes);
    drafter_free(r->drafter);
    model_free(r->model);
    device_free(r->device);
    free(r->taps);
    folder_remove(&r->folder);
}

static void *lane_of(const struct rig *r, int i) { return r->lanes + i * r->lane_bytes; }

// Taps of positions [first, first + n) of the made-up streams, shifted by `shift` positions so that streams differ.
static struct drafter_taps taps_of(const struct rig *r, int32_t first, int32_t n, int32_t shift) {
    struct drafter_taps t = {0};
    int32_t n_tap = r->drafter->config.n_tap;
    int64_t H = r->drafter->config.n_hidden;
    for (int32_t k = 0; k < n_tap; k++) {
        float *rows = malloc((size_t)(n * H) * sizeof *rows);
        assert_non_null(rows);
        for (int32_t i = 0; i < n; i++)
            memcpy(rows + i * H, r->taps + ((int64_t)((first + i + shift) % LONGEST) * n_tap + k) * H,
                   (size_t)H * sizeof *rows);
        t.rows[k] = (struct tensor){.data = rows, .dtype = DTYPE_F32, .n_row = n, .n_col = H, .stride = H};
    }
    return t;
}

static void free_taps(struct drafter_taps *t) {
    for (int k = 0; k < DRAFTER_MAX_TAPS; k++) free(t->rows[k].data);
}

struct stream {
    struct rig *rig;
    void *own;
    struct drafter_lane state;
    int32_t position, shift;
};

static void stream_rows(struct stream *s, int32_t n_row, int32_t n_kept) {
    struct drafter_taps taps = taps_of(s->rig, s->position, n_row, s->shift);
    struct lane lane = {.n_row = n_row, .position = s->position};
    drafter_absorb(s->rig->drafter, &lane, n_kept, &taps, s->own);
    s->position += n_kept;
    free_taps(&taps);
}

static void stream_prompt(struct stream *s, int32_t n, const struct keep *keeps, int32_t n_keep, void *const *kept) {
    struct drafter_taps taps = taps_of(s->rig, s->position, n, s->shift);
    struct lane lane = {.n_row = n, .position = s->position};
    struct prompt_pass pass = {.lane = &lane, .keeps = keeps, .n_keep = n_keep};
    drafter_prompt(s->rig->drafter, &pass, &taps, s->own, kept, &s->state);
    s->position += n;
    free_taps(&taps);
}

struct answer {
    int32_t ids[DRAFTER_MAX_BLOCK];
    float confidence[DRAFTER_MAX_BLOCK];
    int32_t n;
};

static uint32_t all_allowed[4096 / 32];

static void propose(struct stream *const *streams, int32_t n, int32_t n_want, double temperature,
                    struct answer *answers) {
    struct drafter_ask asks[LANES];
    struct draw_params draws[LANES];
    struct error e;
    memset(all_allowed, 0xff, sizeof all_allowed);
    for (int32_t i = 0; i < n; i++) {
        struct stream *s = streams[i];
        draws[i] = (struct draw_params){.temperature = temperature,
                                        .top_p = 1,
                                        .repetition = 1,
                                        .seed = 7 + (uint64_t)s->shift,
                                        .position = s->position + 1,
                                        .allowed = all_allowed};
        asks[i] = (struct drafter_ask){.position = s->position,
                                       .last = LAST,
                                       .own = s->own,
                                       .state = &s->state,
                                       .draw = &draws[i],
                                       .n_want = n_want,
                                       .ids = answers[i].ids,
                                       .confidence = answers[i].confidence};
    }
    need(drafter_propose(streams[0]->rig->drafter, asks, n, &e), &e);
    for (int32_t i = 0; i < n; i++) answers[i].n = asks[i].n;
}

static void answers_must_equal(const struct answer *a, const struct answer *b, const char *what) {
    if (a->n != b->n || memcmp(a->ids, b->ids, (size_t)a->n * sizeof *a->ids) != 0 ||
        memcmp(a->confidence, b->confidence, (size_t)a->n * sizeof *a->confidence) != 0)
        fail_msg("%s: proposals differ: %d %d %g against %d %d %g", what, a->ids[0], a->ids[1],
                 (double)a->confidence[1], b->ids[0], b->ids[1], (double)b->confidence[1]);
}

// ---- golden ----

static const void *golden(struct safetensors *file, int32_t n, int32_t window, const char *name) {
    char full[64];
    snprintf(full, sizeof full, "%d_%d_%s", n, window, name);
    for (size_t i = 0; i < safetensors_count(file); i++)
        if (!strcmp(safetensors_tensor_at(file, i)->name, full)) return safetensors_tensor_at(file, i)->data;
    fail_msg("%s has no %s", GOLDEN, full);
    return NULL;
}

static double rel_l2(const float *got, const float *want, int64_t n) {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += (double)want[i] * want[i];
    }
    return sqrt(error / norm);
}

// The stored key or value of a position, all heads.
static void read_stored(const struct stream *s, int64_t layer, bool is_value, int32_t position, float *out) {
    const struct drafter *d = s->rig->drafter;
    struct kv_layer kv = drafter_ring(d, s->own, layer);
    int64_t D = d->config.head_dim;
    for (int64_t h = 0; h < d->config.n_kv_heads; h++) {
        int64_t row = ((is_value ? d->config.n_kv_heads : 0) + h) * d->ring_rows + position % d->ring_rows;
        const char *at = (const char *)s->own + kv.layer_offset + row * D * (int64_t)dtype_bytes(kv.dtype);
        for (int64_t i = 0; i < D; i++)
            out[h * D + i] = kv.dtype == DTYPE_F32 ? ((const float *)(const void *)at)[i]
                                                   : bf16_to_float(((const uint16_t *)(const void *)at)[i]);
    }
}

static void check_golden(struct rig *r, struct safetensors *file, int32_t n, int32_t window, double limit) {
    static const char *const names[2][2] = {{"k0", "v0"}, {"k2", "v2"}};
    const struct drafter *d = r->drafter;
    struct stream s = {.rig = r, .own = lane_of(r, 1)};
    struct answer got;
    float stored[512];
    while (s.position < n) {
        stream_rows(&s, 3, n - s.position < 3 ? n - s.position : 3);
        if (s.position % 60 < 3) propose(&(struct stream *){&s}, 1, 2, 0, &got); // before its taps are too many
    }
    propose(&(struct stream *){&s}, 1, d->config.block - 1, 0, &got);
    const int32_t *ids = golden(file, n, window, "drafts");
    double error = rel_l2(d->scratch.drafts.data, golden(file, n, window, "hidden"), 7 * d->config.n_hidden);
    if (!(error <= limit)) fail_msg("block after %d rows: error %g, and %g is allowed", n, error, limit);
    for (int i = 0; i < 2; i++)
        for (int v = 0; v < 2; v++) {
            read_stored(&s, i * (d->config.n_layers - 1), v == 1, n - 1, stored);
            error = rel_l2(stored, golden(file, n, window, names[i][v]), 256);
            if (!(error <= limit)) fail_msg("%s after %d rows: error %g", names[i][v], n, error);
        }
    assert_int_equal(got.n, 7);
    for (int i = 0; i < 7; i++) assert_int_equal(got.ids[i], ids[i]);
}

static void check_goldens(enum compute compute, enum cpu_isa isa, double limit) {
    static const int32_t cases[][2] = {{20, 2048}, {530, 100}};
    struct safetensors *file;
    struct error e;
    need(safetensors_open(GOLDEN, &file, &e), &e);
    for (int i = 0; i < 2; i++) {
        struct folder f = copy_drafter(cases[i][1]);
        struct rig r = rig_open(&f, compute, isa, 4);
        assert_int_equal(r.drafter->ring_rows, (cases[i][1] + 7 + 63) / 64 * 64);
        check_golden(&r, file, cases[i][0], cases[i][1], limit);
        rig_close(&r);
    }
    safetensors_free(file);
}

static void test_blocks_are_the_definitions(void **state) {
    (void)state;
    for (enum cpu_isa isa = ISA_C; isa <= cpu_isa_detect(); isa++) {
        check_goldens(COMPUTE_F32, isa, EXACT_REL);
        check_goldens(COMPUTE_BF16, isa, LOSSY_REL);
    }
}

// ---- independence ----

static void open_streams(struct rig *r, struct stream *s) {
    static const int32_t lengths[LANES] = {530, 20, 127, 301};
    for (int i = 0; i < LANES; i++) {
        s[i] = (struct stream){.rig = r, .own = lane_of(r, i), .shift = 31 * i};
        stream_prompt(&s[i], lengths[i] < 512 ? lengths[i] : 512, NULL, 0, NULL);
        while (s[i].position < lengths[i]) stream_rows(&s[i], 1, 1);
    }
}

static void test_company_changes_nothing(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct folder f = copy_drafter(100);
        struct rig r = rig_open(&f, k == 0 ? COMPUTE_BF16 : COMPUTE_F32, cpu_isa_detect(), 4);
        struct stream s[LANES];
        struct answer alone[LANES], all[LANES], reverse[LANES];
        struct stream *together[LANES], *backwards[LANES];
        open_streams(&r, s);
        for (int i = 0; i < LANES; i++) {
            together[i] = &s[i];
            backwards[LANES - 1 - i] = &s[i];
            propose(&together[i], 1, 7, 0.8, &alone[i]);
        }
        propose(together, LANES, 7, 0.8, all);
        propose(backwards, LANES, 7, 0.8, reverse);
        for (int i = 0; i < LANES; i++) {
            answers_must_equal(&alone[i], &all[i], "in company");
            answers_must_equal(&alone[i], &reverse[LANES - 1 - i], "in company, backwards");
        }
        rig_close(&r);
    }
}

// However a stream's rows came (single rows, windows of which some rows were taken back, with proposals in between, or
// after a long time without), it is at the same place with the same proposals.
static void test_the_way_changes_nothing(void **state) {
    (void)state;
    struct folder f = copy_drafter(100);
    struct rig r = rig_open(&f, COMPUTE_BF16, cpu_isa_detect(), 4);
    struct answer want, got, unused;
    struct stream plain = {.rig = &r, .own = lane_of(&r, 0)}, busy = {.rig = &r, .own = lane_of(&r, 1)};
    stream_prompt(&plain, 64, NULL, 0, NULL);
    stream_prompt(&busy, 64, NULL, 0, NULL);
    for (int step = 0; busy.position < 300; step++) {
        int32_t n_row = 1 + (int32_t)(random_bits(1, 2, (uint64_t)step) % 8);
        int32_t n_kept = 1 + (int32_t)(random_bits(1, 3, (uint64_t)step) % (uint64_t)n_row);
        if (n_kept > 300 - busy.position) n_kept = 300 - busy.position;
        propose(&(struct stream *){&busy}, 1, 7, 0, &unused);
        stream_rows(&busy, n_row, n_kept);
    }
    while (plain.position < 300) {
        stream_rows(&plain, 1, 1);
        if (plain.position % 64 == 0) propose(&(struct stream *){&plain}, 1, 7, 0, &unused);
    }
    propose(&(struct stream *){&plain}, 1, 7, 0.8, &want);
    propose(&(struct stream *){&busy}, 1, 7, 0.8, &got);
    answers_must_equal(&want, &got, "after windows");
    // Elsewhere in memory.
    struct stream moved = busy;
    moved.own = lane_of(&r, LANES + 1);
    memcpy(moved.own, busy.own, (size_t)r.lane_bytes);
    propose(&(struct stream *){&moved}, 1, 7, 0.8, &got);
    answers_must_equal(&want, &got, "from a copy of the run");
    rig_close(&r);
}

// A stream that was not asked for long forgets: it sees the rows that it could put aside, as one that has no others.
static void test_a_long_silence_is_bounded(void **state) {
    (void)state;
    struct folder f = copy_drafter(0);
    struct rig r = rig_open(&f, COMPUTE_BF16, cpu_isa_detect(), 4);
    struct stream s = {.rig = &r, .own = lane_of(&r, 0)};
    struct answer want, got;
    stream_prompt(&s, 64, NULL, 0, NULL);
    while (s.position < 200) stream_rows(&s, 4, 4);
    propose(&(struct stream *){&s}, 1, 7, 0, &want);
    assert_int_equal(s.state.first, 200 - DRAFTER_BACKLOG);
    struct stream other = {.rig = &r, .own = lane_of(&r, 1), .position = 136, .state = {136, 136}};
    while (other.position < 200) stream_rows(&other, 1, 1);
    propose(&(struct stream *){&other}, 1, 7, 0, &got);
    answers_must_equal(&want, &got, "after a long silence");
    rig_close(&r);
}

// Where a prompt is cut into passes, and going on from a state that was kept in the middle of one.
static void test_prompts_and_kept_states(void **state) {
    (void)state;
    static const int32_t cuts[] = {512, 64, 128};
    struct folder f = copy_drafter(100);
    struct rig r = rig_open(&f, COMPUTE_BF16, cpu_isa_detect(), 4);
    struct answer want[2], got;
    for (int c = 0; c < 3; c++) {
        struct stream s = {.rig = &r, .own = lane_of(&r, c)};
        for (; s.position < 448;) {
            stream_prompt(&s, cuts[c] < 448 - s.position ? cuts[c] : 448 - s.position, NULL, 0, NULL);
            if (s.position != 384 && s.position != 448) continue;
            propose(&(struct stream *){&s}, 1, 7, 0, &got);
            if (c == 1) want[s.position == 448] = got;
            if (s.position == 448 && c == 0) want[1] = got;
            if (c > 0) answers_must_equal(&want[s.position == 448], &got, "cut into passes");
        }
    }
    struct stream s = {.rig = &r, .own = lane_of(&r, 3)};
    struct keep keeps[] = {{.position = 128}, {.position = 384}};
    void *kept[] = {lane_of(&r, LANES), lane_of(&r, LANES + 1)};
    stream_prompt(&s, 64, NULL, 0, NULL);
    stream_prompt(&s, 384, keeps, 2, kept);
    propose(&(struct stream *){&s}, 1, 7, 0, &got);
    answers_must_equal(&want[1], &got, "a pass with kept states");
    struct stream resumed = {.rig = &r, .own = kept[1], .position = 384, .state = {0, 384}};
    propose(&(struct stream *){&resumed}, 1, 7, 0, &got);
    answers_must_equal(&want[0], &got, "from a kept state");
    resumed = (struct stream){.rig = &r, .own = kept[0], .position = 128, .state = {0, 128}};
    stream_prompt(&resumed, 320, NULL, 0, NULL);
    propose(&(struct stream *){&resumed}, 1, 7, 0, &got);
    answers_must_equal(&want[1], &got, "on from a kept state");
    rig_close(&r);
}

// ---- choosing ----

// Without a selector, the candidates' scores are log probabilities: what is chosen is what the draw itself gives among
// them, whatever the request asks.
static void check_choice(struct device *d, uint64_t seed) {
    enum { V = 512 };
    float logits[V];
    uint32_t allowed[V / 32] = {0};
    memset(all_allowed, 0xff, sizeof all_allowed);
    for (int i = 0; i < V; i++) logits[i] = (float)(4 * random_normal(seed, 1, (uint64_t)i));
    struct draw_seen seen[40];
    struct draw_bias bias[40];
    for (int i = 0; i < 40; i++) {
        seen[i] = (struct draw_seen){i * 12, i % 3};
        bias[i] = (struct draw_bias){i * 12 + 1, (float)random_normal(seed, 2, (uint64_t)i)};
    }
    static const double temperatures[] = {0, 0.3, 0.7, 1, 1.7};
    struct draw_params p = {.temperature = temperatures[seed % 5],
                            .top_p = seed % 2 ? 1 : 0.9,
                            .min_p = seed % 3 ? 0 : 0.05,
                            .top_k = seed % 7 < 3 ? 0 : 5,
                            .repetition = seed % 4 ? 1 : 1.3,
                            .presence = seed % 6 < 3 ? 0 : 0.5,
                            .frequency = seed % 5 < 3 ? 0 : 0.25,
                            .seed = seed,
                            .position = 100,
                            .bias = bias,
                            .n_bias = 40,
                            .seen = seen,
                            .n_seen = 40,
                            .allowed = all_allowed,
                            .n_top = DRAW_MAX_TOP};
    struct draw_params plain = {.top_p = 1, .repetition = 1, .allowed = all_allowed, .n_top = DRAW_MAX_TOP};
    struct tensor row = {.data = logits, .dtype = DTYPE_F32, .n_row = 1, .n_col = V, .stride = V};
    struct draw_result found, want;
    d->ops->draw(d, &(struct draw_args){.logits = row, .n_vocab = V, .params = &plain, .results = &found});
    for (int i = 0; i < found.n_top; i++) allowed[found.top[i].id / 32] |= 1u << found.top[i].id % 32;
    p.allowed = allowed;
    d->ops->draw(d, &(struct draw_args){.logits = row, .n_vocab = V, .params = &p, .results = &want});
    struct drafter drafter = {.config = {.output_multiplier = 1, .n_candidate = DRAW_MAX_TOP}};
    int32_t id = -1;
    float confidence, first = logits[found.top[0].id];
    struct drafter_ask ask = {.draw = &p, .n_want = 1, .ids = &id, .confidence = &confidence};
    drafter_walk(&drafter, &ask, &found, NULL, &first);
    assert_int_equal(ask.n, 1);
    if (id != want.id) fail_msg("choice %d, and the draw gives %d, seed %d", id, want.id, (int)seed);
    assert_true(confidence > 0 && confidence <= 1);
}

static void test_choices_are_the_draws(void **state) {
    (void)state;
    struct device *d;
    struct error e;
    need(cpu_device_create(COMPUTE_F32, true, 1, ISA_C, &d, &e), &e);
    struct device_limits limits = {.max_rows = 64,
                                   .max_round_rows = 1,
                                   .max_in = 64,
                                   .max_out = 64,
                                   .n_vocab = 512,
                                   .max_lanes = 1,
                                   .max_window = 1};
    need(d->reserve(d, &limits, &e), &e);
    for (uint64_t seed = 0; seed < 840; seed++) check_choice(d, seed);
    device_free(d);
}

// ---- refusals ----

static void must_refuse(const char *pointer, const char *value, const char *sentence) {
    struct folder f = copy_drafter(0);
    struct model *m;
    struct drafter *d;
    struct error e = {0};
    need(model_open(TARGET, &m, &e), &e);
    json_t *config = json_load_file(folder_file(&f, "config.json"), 0, NULL), *at = config;
    const char *name = pointer;
    if (!strncmp(pointer, "dflash_config/", 14)) {
        at = json_object_get(config, "dflash_config");
        name = pointer + 14;
    }
    if (value == NULL)
        json_object_del(at, name);
    else
        json_object_set_new(at, name, json_loads(value, JSON_DECODE_ANY, NULL));
    char *text = json_dumps(config, 0);
    folder_write_text(&f, "config.json", text);
    enum status s = drafter_open(f.path, m, 4, &d, &e);
    if (s == STATUS_OK) fail_msg("%s = %s is not refused", pointer, value == NULL ? "nothing" : value);
    if (strstr(e.text, sentence) == NULL) fail_msg("%s = %s is refused with: %s", pointer, value, e.text);
    assert_non_null(strstr(e.text, f.path));
    free(text);
    json_decref(config);
    model_free(m);
    folder_remove(&f);
}

static void test_what_does_not_fit_is_refused(void **state) {
    (void)state;
    must_refuse("hidden_size", "512",
                "/hidden_size is 512, but the model has 256: the drafter was made for another model");
    must_refuse("vocab_size", "248320", "made for another model");
    must_refuse("num_target_layers", "64", "made for another model");
    must_refuse("architectures", "[\"LlamaForCausalLM\"]", "\"LlamaForCausalLM\"; drafters are");
    must_refuse("architectures", "[]", "\"\"; drafters are");
    must_refuse("architectures", "[\"DFlashDraftModel\"]", "has no place in the drafter");
    must_refuse("hidden_act", "\"gelu\"", "supported is silu");
    must_refuse("attention_bias", "true", "not supported");
    must_refuse("rope_scaling", "{}", "scaled rotary positions");
    must_refuse("num_attention_heads", "3", "must be a multiple");
    must_refuse("num_attention_heads", "8", "is no affine form of a matrix of 1024 rows");
    must_refuse("intermediate_size", "1024", "is no affine form of a matrix of 1024 rows");
    must_refuse("num_hidden_layers", "2", "3 entries for 2 layers");
    must_refuse("layer_types", "[\"sliding_attention\", \"full_attention\", \"linear_attention\"]", "linear_attention");
    must_refuse("sliding_window", NULL, "/sliding_window is missing");
    must_refuse("dflash_config", NULL, "/dflash_config is missing");
    must_refuse("dflash_config/block_size", NULL, "block_size is missing");
    must_refuse("dflash_config/block_size", "1", "integer from 2 to 32");
    must_refuse("dflash_config/mask_token_id", "4096", "integer from 0 to 4095");
    must_refuse("dflash_config/target_layer_ids", "[1, 4, 7, 12]", "integer from 0 to 11");
    must_refuse("dflash_config/target_layer_ids", "[1, 4, 4, 10]", "must rise");
    must_refuse("dflash_config/target_layer_ids", "[]", "not 1 to 16");
    must_refuse("dflash_config/target_layer_ids", "[1, 4, 7]", "256 rows and 768 columns");
    must_refuse("dflash_config/conv_group_size", "24", "not a multiple");
    must_refuse("dflash_config/conv_kernel_size", "3", "by config.json it must be [2, 3, 256]");
    must_refuse("dflash_config/selector_rank", "8", "by config.json it must be [4096, 8]");
    must_refuse("dflash_config/selector_top_k", "64", "integer from 1 to 20");
    must_refuse("dflash_config/final_logit_softcapping", "30.0", "not supported");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_are_the_definitions),   cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_the_way_changes_nothing),      cmocka_unit_test(test_a_long_silence_is_bounded),
        cmocka_unit_test(test_prompts_and_kept_states),      cmocka_unit_test(test_choices_are_the_draws),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
