// A drafter against the golden blocks of its definition; and that a stream's proposals do not depend on company, on how
// its rows came, on where they lie, or on what was proposed before.
#include "base/numeric.h"
#include "base/random.h"
#include "format/safetensors.h"
#include "tests/model/drafter_rig.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN    "tests/fixtures/models/fold-s-DFlash2.safetensors"
#define LOSSY_REL 1e-2 // of bf16 keys and values

static void answers_must_equal(const struct drafter_answer *a, const struct drafter_answer *b, const char *what) {
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

// The stored key or value of a position, all heads.
static void read_stored(const struct drafter_stream *s, int64_t layer, bool is_value, int32_t position, float *out) {
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

static void check_golden(struct drafter_rig *r, struct safetensors *file, int32_t n, int32_t window, double limit) {
    static const char *const names[2][2] = {{"k0", "v0"}, {"k2", "v2"}};
    const struct drafter *d = r->drafter;
    struct drafter_stream s = {.rig = r, .own = drafter_rig_lane(r, 1)};
    struct drafter_answer got;
    float stored[512];
    while (s.position < n) {
        drafter_stream_rows(&s, 3, n - s.position < 3 ? n - s.position : 3);
        if (s.position % 60 < 3)
            drafter_rig_propose(&(struct drafter_stream *){&s}, 1, 2, 0, &got); // before its taps are too many
    }
    drafter_rig_propose(&(struct drafter_stream *){&s}, 1, d->config.block - 1, 0, &got);
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
    must_work(safetensors_open(GOLDEN, &file, &e), &e);
    for (int i = 0; i < 2; i++) {
        struct folder f = drafter_copy(cases[i][1]);
        struct drafter_rig r = drafter_rig_open(&f, compute, isa, 4);
        assert_int_equal(r.drafter->ring_rows, (cases[i][1] + 7 + 63) / 64 * 64);
        check_golden(&r, file, cases[i][0], cases[i][1], limit);
        drafter_rig_close(&r);
    }
    safetensors_free(file);
}

static void test_blocks_are_the_definitions(void **state) {
    (void)state;
    for (enum cpu_isa isa = ISA_C; isa <= cpu_isa_detect(); isa++) {
        check_goldens(COMPUTE_F32, isa, DRAFTER_EXACT_REL);
        check_goldens(COMPUTE_BF16, isa, LOSSY_REL);
    }
}

// ---- independence ----

static void open_streams(struct drafter_rig *r, struct drafter_stream *s) {
    static const int32_t lengths[DRAFTER_LANES] = {530, 20, 127, 301};
    for (int i = 0; i < DRAFTER_LANES; i++) {
        s[i] = (struct drafter_stream){.rig = r, .own = drafter_rig_lane(r, i), .shift = 31 * i};
        drafter_stream_prompt(&s[i], lengths[i] < 512 ? lengths[i] : 512, NULL, 0, NULL);
        while (s[i].position < lengths[i]) drafter_stream_rows(&s[i], 1, 1);
    }
}

static void test_company_changes_nothing(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct folder f = drafter_copy(100);
        struct drafter_rig r = drafter_rig_open(&f, k == 0 ? COMPUTE_BF16 : COMPUTE_F32, cpu_isa_detect(), 4);
        struct drafter_stream s[DRAFTER_LANES];
        struct drafter_answer alone[DRAFTER_LANES], all[DRAFTER_LANES], reverse[DRAFTER_LANES];
        struct drafter_stream *together[DRAFTER_LANES], *backwards[DRAFTER_LANES];
        open_streams(&r, s);
        for (int i = 0; i < DRAFTER_LANES; i++) {
            together[i] = &s[i];
            backwards[DRAFTER_LANES - 1 - i] = &s[i];
            drafter_rig_propose(&together[i], 1, 7, 0.8, &alone[i]);
        }
        drafter_rig_propose(together, DRAFTER_LANES, 7, 0.8, all);
        drafter_rig_propose(backwards, DRAFTER_LANES, 7, 0.8, reverse);
        for (int i = 0; i < DRAFTER_LANES; i++) {
            answers_must_equal(&alone[i], &all[i], "in company");
            answers_must_equal(&alone[i], &reverse[DRAFTER_LANES - 1 - i], "in company, backwards");
        }
        drafter_rig_close(&r);
    }
}

// However a stream's rows came (single rows, windows of which some rows were taken back, with proposals in between, or
// after a long time without), it is at the same place with the same proposals.
static void test_the_way_changes_nothing(void **state) {
    (void)state;
    struct folder f = drafter_copy(100);
    struct drafter_rig r = drafter_rig_open(&f, COMPUTE_BF16, cpu_isa_detect(), 4);
    struct drafter_answer want, got, unused;
    struct drafter_stream plain = {.rig = &r, .own = drafter_rig_lane(&r, 0)},
                          busy = {.rig = &r, .own = drafter_rig_lane(&r, 1)};
    drafter_stream_prompt(&plain, 64, NULL, 0, NULL);
    drafter_stream_prompt(&busy, 64, NULL, 0, NULL);
    for (int step = 0; busy.position < 300; step++) {
        int32_t n_row = 1 + (int32_t)(random_bits(1, 2, (uint64_t)step) % 8);
        int32_t n_kept = 1 + (int32_t)(random_bits(1, 3, (uint64_t)step) % (uint64_t)n_row);
        if (n_kept > 300 - busy.position) n_kept = 300 - busy.position;
        drafter_rig_propose(&(struct drafter_stream *){&busy}, 1, 7, 0, &unused);
        drafter_stream_rows(&busy, n_row, n_kept);
    }
    while (plain.position < 300) {
        drafter_stream_rows(&plain, 1, 1);
        if (plain.position % 64 == 0) drafter_rig_propose(&(struct drafter_stream *){&plain}, 1, 7, 0, &unused);
    }
    drafter_rig_propose(&(struct drafter_stream *){&plain}, 1, 7, 0.8, &want);
    drafter_rig_propose(&(struct drafter_stream *){&busy}, 1, 7, 0.8, &got);
    answers_must_equal(&want, &got, "after windows");
    // Elsewhere in memory.
    struct drafter_stream moved = busy;
    moved.own = drafter_rig_lane(&r, DRAFTER_LANES + 1);
    memcpy(moved.own, busy.own, (size_t)r.lane_bytes);
    drafter_rig_propose(&(struct drafter_stream *){&moved}, 1, 7, 0.8, &got);
    answers_must_equal(&want, &got, "from a copy of the run");
    drafter_rig_close(&r);
}

// A stream that was not asked for long forgets: it sees the rows that it could put aside, as one that has no others.
static void test_a_long_silence_is_bounded(void **state) {
    (void)state;
    struct folder f = drafter_copy(0);
    struct drafter_rig r = drafter_rig_open(&f, COMPUTE_BF16, cpu_isa_detect(), 4);
    struct drafter_stream s = {.rig = &r, .own = drafter_rig_lane(&r, 0)};
    struct drafter_answer want, got;
    drafter_stream_prompt(&s, 64, NULL, 0, NULL);
    while (s.position < 200) drafter_stream_rows(&s, 4, 4);
    drafter_rig_propose(&(struct drafter_stream *){&s}, 1, 7, 0, &want);
    assert_int_equal(s.state.first, 200 - DRAFTER_BACKLOG);
    struct drafter_stream other = {.rig = &r, .own = drafter_rig_lane(&r, 1), .position = 136, .state = {136, 136}};
    while (other.position < 200) drafter_stream_rows(&other, 1, 1);
    drafter_rig_propose(&(struct drafter_stream *){&other}, 1, 7, 0, &got);
    answers_must_equal(&want, &got, "after a long silence");
    drafter_rig_close(&r);
}

// Where a prompt is cut into passes, and going on from a state that was kept in the middle of one.
static void test_prompts_and_kept_states(void **state) {
    (void)state;
    static const int32_t cuts[] = {512, 64, 128};
    struct folder f = drafter_copy(100);
    struct drafter_rig r = drafter_rig_open(&f, COMPUTE_BF16, cpu_isa_detect(), 4);
    struct drafter_answer want[2], got;
    for (int c = 0; c < 3; c++) {
        struct drafter_stream s = {.rig = &r, .own = drafter_rig_lane(&r, c)};
        for (; s.position < 448;) {
            drafter_stream_prompt(&s, cuts[c] < 448 - s.position ? cuts[c] : 448 - s.position, NULL, 0, NULL);
            if (s.position != 384 && s.position != 448) continue;
            drafter_rig_propose(&(struct drafter_stream *){&s}, 1, 7, 0, &got);
            if (c == 1) want[s.position == 448] = got;
            if (s.position == 448 && c == 0) want[1] = got;
            if (c > 0) answers_must_equal(&want[s.position == 448], &got, "cut into passes");
        }
    }
    struct drafter_stream s = {.rig = &r, .own = drafter_rig_lane(&r, 3)};
    struct keep keeps[] = {{.position = 128}, {.position = 384}};
    void *kept[] = {drafter_rig_lane(&r, DRAFTER_LANES), drafter_rig_lane(&r, DRAFTER_LANES + 1)};
    drafter_stream_prompt(&s, 64, NULL, 0, NULL);
    drafter_stream_prompt(&s, 384, keeps, 2, kept);
    drafter_rig_propose(&(struct drafter_stream *){&s}, 1, 7, 0, &got);
    answers_must_equal(&want[1], &got, "a pass with kept states");
    struct drafter_stream resumed = {.rig = &r, .own = kept[1], .position = 384, .state = {0, 384}};
    drafter_rig_propose(&(struct drafter_stream *){&resumed}, 1, 7, 0, &got);
    answers_must_equal(&want[0], &got, "from a kept state");
    resumed = (struct drafter_stream){.rig = &r, .own = kept[0], .position = 128, .state = {0, 128}};
    drafter_stream_prompt(&resumed, 320, NULL, 0, NULL);
    drafter_rig_propose(&(struct drafter_stream *){&resumed}, 1, 7, 0, &got);
    answers_must_equal(&want[1], &got, "on from a kept state");
    drafter_rig_close(&r);
}

// ---- choosing ----

// Without a selector, the candidates' scores are log probabilities: what is chosen is what the draw itself gives among
// them, whatever the request asks.
static void check_choice(struct device *d, uint64_t seed) {
    enum { V = 512 };
    float logits[V];
    uint32_t allowed[V / 32] = {0};
    static uint32_t all_allowed[V / 32];
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
    must_work(cpu_device_create(COMPUTE_F32, true, 1, ISA_C, &d, &e), &e);
    struct device_limits limits = {.max_rows = 64,
                                   .max_round_rows = 1,
                                   .max_in = 64,
                                   .max_out = 64,
                                   .n_vocab = 512,
                                   .max_lanes = 1,
                                   .max_window = 1};
    must_work(d->reserve(d, &limits, &e), &e);
    for (uint64_t seed = 0; seed < 840; seed++) check_choice(d, seed);
    device_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_are_the_definitions), cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_the_way_changes_nothing),    cmocka_unit_test(test_a_long_silence_is_bounded),
        cmocka_unit_test(test_prompts_and_kept_states),    cmocka_unit_test(test_choices_are_the_draws),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
