// A trained drafter at work in the engine: it drafts well, from prompts and from states that were kept, and what it
// drafts changes nothing but time.
#include "format/json.h"
#include "tests/engine/bed.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
// cmocka last: it needs the headers above
#include <cmocka.h>

#define MODEL     "models/fold-s"
#define DRAFTER   "models/fold-s-DFlash2"
#define PROMPTS   "tests/fixtures/models/fold-s.json" // and what the model gives after them
#define N_PROMPTS 6
#define MOST      48

static struct prompt { int32_t *ids, n; } prompts[N_PROMPTS];

static struct engine_options options_of(struct draft_options drafts) {
    return (struct engine_options){
        .model_dir = MODEL, .drafter_dir = DRAFTER, .drafter_bits = 4, .drafts = drafts, .cache_bytes = 64 << 20};
}

static const struct draft_options by_drafter = {.block = true, .forced = true, .max_window = 8};

static struct request_params params_of(const struct prompt *p, int64_t max_tokens) {
    struct request_params r = bed_params(p->ids, p->n, max_tokens);
    r.draft = true;
    r.history_end = p->n - 1;
    return r;
}

static void must_be_equal(const int32_t *got, const int32_t *want, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (got[i] != want[i]) fail_msg("token %d is %d, and %d without drafts", i, got[i], want[i]);
}

static void test_most_drafts_are_kept(void **state) {
    (void)state;
    int32_t plain[N_PROMPTS][MOST], drafted[MOST], again[MOST], n_drafted = 0, n_accepted = 0;
    struct engine *e = bed_open(options_of((struct draft_options){0}));
    for (int i = 0; i < N_PROMPTS; i++) {
        struct request_params p = params_of(&prompts[i], 24);
        assert_int_equal(bed_run(e, &p, plain[i]), 24);
    }
    engine_free(e);
    e = bed_open(options_of(by_drafter));
    for (int i = 0; i < N_PROMPTS; i++) {
        struct request_params p = params_of(&prompts[i], 24);
        struct request_view cold = bed_run_view(e, &p, drafted), warm = bed_run_view(e, &p, again);
        must_be_equal(drafted, plain[i], 24);
        must_be_equal(again, plain[i], 24);
        // From a kept state, the drafter sees what it saw.
        assert_int_equal(cold.n_cached, 0);
        assert_true(prompts[i].n <= 64 || warm.n_cached > 0);
        assert_int_equal(warm.n_drafted, cold.n_drafted);
        assert_int_equal(warm.n_accepted, cold.n_accepted);
        n_drafted += cold.n_drafted;
        n_accepted += cold.n_accepted;
    }
    if (n_accepted * 2 < n_drafted) fail_msg("of %d drafts %d were kept", n_drafted, n_accepted);
    engine_free(e);
}

// Sampled, with penalties, and with others beside it.
static void test_sampled_replies_are_the_same(void **state) {
    (void)state;
    int32_t plain[N_PROMPTS][MOST], n_accepted = 0;
    for (int k = 0; k < 2; k++) {
        struct engine *e = bed_open(options_of(k == 0 ? (struct draft_options){0} : by_drafter));
        struct request *r[N_PROMPTS];
        for (int i = 0; i < N_PROMPTS; i++) {
            struct request_params p = params_of(&prompts[i], MOST);
            p.draw.temperature = i % 2 == 0 ? 0.7 : 1;
            p.draw.top_p = 0.95;
            p.draw.top_k = i % 3 == 0 ? 0 : 20;
            if (i == 4) p.draw.repetition = 1.2, p.draw.presence = 0.5, p.draw.frequency = 0.25;
            r[i] = bed_submit(e, &p);
        }
        for (int i = 0; i < N_PROMPTS; i++) {
            struct request_view v = bed_wait_done(r[i]);
            assert_int_equal(v.n_tokens, MOST);
            for (int32_t t = 0; t < MOST && k == 0; t++) plain[i][t] = request_tokens(r[i])[t].id;
            for (int32_t t = 0; t < MOST && k == 1; t++) assert_int_equal(request_tokens(r[i])[t].id, plain[i][t]);
            n_accepted += v.n_accepted;
            request_free(r[i]);
        }
        engine_free(e);
    }
    assert_true(n_accepted > N_PROMPTS * MOST / 4);
}

static void test_requests_without_drafts(void **state) {
    (void)state;
    int32_t plain[MOST], ids[MOST];
    struct engine *e = bed_open(options_of(by_drafter));
    struct request_params p = params_of(&prompts[0], 24);
    p.draft = false;
    struct request_view v = bed_run_view(e, &p, plain);
    assert_int_equal(v.n_drafted, 0);
    p.draft = true; // from the state that the plain one left
    v = bed_run_view(e, &p, ids);
    assert_true(v.n_accepted > 0);
    must_be_equal(ids, plain, 24);
    assert_int_equal(engine_get_info(e)->drafter_block, 8);
    assert_true(engine_get_info(e)->plan.parts[PLAN_DRAFTER] > 1 << 20);
    engine_free(e);
}

// A head that fits its model is seen to be right where it does not draft, greedy and sampled; one that is taken to be
// wrong each time drafts less, and no token changes.
static void test_looking_back_sees_what_is_right(void **state) {
    (void)state;
    int32_t ids[2][N_PROMPTS][MOST];
    struct engine_counts c;
    for (int k = 0; k < 2; k++) {
        struct engine_options o = options_of((struct draft_options){.mtp = k == 1, .doubted = true});
        o.drafter_dir = NULL;
        struct engine *e = bed_open(o);
        for (int i = 0; i < N_PROMPTS; i++) {
            struct request_params p = params_of(&prompts[i], MOST);
            p.draw.temperature = i % 2 == 0 ? 0 : 1;
            bed_run_view(e, &p, ids[k][i]);
        }
        engine_get_counts(e, &c);
        engine_free(e);
    }
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
    assert_true(c.n_looked_back >= 16 && c.n_given_up > 0);
    if (c.n_seen_right * 10 < c.n_looked_back * 8)
        fail_msg("of %d rows the head is right in %d", (int)c.n_looked_back, (int)c.n_seen_right);
}

// One that counts as wrong sleeps, is given rows again in the middle of a reply, drafts from those, and sleeps again;
// no token changes.
static void test_a_drafter_is_woken_in_a_reply(void **state) {
    (void)state;
    enum { N = 130, N_REPLY = 6 };
    int32_t ids[2][N];
    struct engine_counts c[2];
    int most = 0;
    struct engine *e = bed_open(options_of((struct draft_options){0}));
    struct request_params p = params_of(&prompts[0], N);
    p.ignore_eos = true;
    bed_run_view(e, &p, ids[0]);
    engine_free(e);
    e = bed_open(options_of((struct draft_options){.block = true, .doubted = true}));
    for (int i = 0; i < N_REPLY && most < 2; i++) {
        engine_get_counts(e, &c[0]);
        struct request_view v = bed_run_view(e, &p, ids[1]);
        engine_get_counts(e, &c[1]);
        assert_memory_equal(ids[1], ids[0], sizeof ids[0]);
        int n = (int)(c[1].n_given_up - c[0].n_given_up);
        if (n > most && v.n_drafted > 1) most = n; // it has drafted before and after
    }
    assert_true(most >= 2);
    engine_free(e);
}

static void test_another_models_drafter_is_refused(void **state) {
    (void)state;
    struct engine_options o = options_of(by_drafter);
    struct engine *e = NULL;
    struct error error;
    o.model_dir = BED_MODEL;
    o.device = bed_device();
    o.parallel = 1;
    o.max_tokens = 8;
    assert_int_equal(engine_create(&o, &e, &error), STATUS_INVALID);
    assert_non_null(strstr(error.text, DRAFTER ": config.json: /hidden_size is 256, but the model has"));
}

static void read_prompts(void) {
    json_t *root = json_load_file(PROMPTS, 0, NULL), *list = json_object_get(root, "prompts");
    for (int i = 0; i < N_PROMPTS; i++) {
        json_t *ids = json_object_get(json_array_get(list, (size_t)i), "prompt");
        prompts[i].n = (int32_t)json_array_size(ids);
        prompts[i].ids = malloc((size_t)prompts[i].n * sizeof *prompts[i].ids);
        for (int32_t k = 0; k < prompts[i].n; k++)
            prompts[i].ids[k] = (int32_t)json_integer_value(json_array_get(ids, (size_t)k));
    }
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_most_drafts_are_kept),          cmocka_unit_test(test_sampled_replies_are_the_same),
        cmocka_unit_test(test_requests_without_drafts),       cmocka_unit_test(test_looking_back_sees_what_is_right),
        cmocka_unit_test(test_a_drafter_is_woken_in_a_reply), cmocka_unit_test(test_another_models_drafter_is_refused),
    };
    if (!bed_start()) return BED_SKIP;
    read_prompts();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < N_PROMPTS; i++) free(prompts[i].ids);
    bed_stop();
    return failed;
}
