// Windows of drafts at the ends of replies: end of text and limits inside a window, penalties and biases along it, what
// is counted, and requests that ask for plain rounds.
#include "tests/engine/bed.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
// cmocka last: it needs the headers above
#include <cmocka.h>

#define N_PROMPT 90
#define MOST     64

static int32_t *prompt;

static const struct draft_options kinds[] = {
    {.expected = true, .forced = true, .max_window = 16},
    {.expected = true, .forced = true, .max_window = 3, .pattern = DRAFTS_ALL_WRONG},
    {.expected = true, .forced = true, .max_window = 16, .pattern = DRAFTS_ANY_WIDTH},
    {.mtp = true, .copies = true, .forced = true, .max_window = 6},
    {.mtp = true, .copies = true},
    {.mtp = true, .doubted = true},
};
#define N_KINDS ((int)(sizeof kinds / sizeof *kinds))

struct reply {
    int32_t ids[MOST], n;
    struct request_view view;
};

static struct reply run(const struct draft_options *drafts, struct request_params p, const struct reply *expected) {
    struct reply got;
    struct engine *e = bed_open((struct engine_options){.drafts = *drafts});
    p.draft = true;
    p.expected = expected != NULL ? expected->ids : NULL;
    p.n_expected = expected != NULL ? expected->n : 0;
    got.view = bed_run_view(e, &p, got.ids);
    got.n = got.view.n_tokens;
    bed_wait_idle(e);
    engine_free(e);
    return got;
}

static struct reply run_plain(struct request_params p) { return run(&(struct draft_options){0}, p, NULL); }

static void must_equal_plain(struct request_params p) {
    struct reply plain = run_plain(p);
    assert_int_equal(plain.view.n_drafted, 0);
    for (int i = 0; i < N_KINDS; i++) {
        struct reply got = run(&kinds[i], p, &plain);
        assert_int_equal(got.n, plain.n);
        assert_memory_equal(got.ids, plain.ids, (size_t)plain.n * sizeof *plain.ids);
        assert_int_equal(got.view.finish, plain.view.finish);
        assert_int_equal(got.view.ended_by_eos, plain.view.ended_by_eos);
    }
}

static void limits_cut_windows(void **state) {
    (void)state;
    for (int64_t n = 1; n <= 18; n += n < 5 ? 1 : 13) must_equal_plain(bed_params(prompt, N_PROMPT, n));
}

// A bias is looked for that lets the reply end by itself, and not at once.
static void end_of_text_cuts_windows(void **state) {
    (void)state;
    struct request_params p = bed_params(prompt, N_PROMPT, 40);
    struct engine *e = bed_open((struct engine_options){0});
    struct draw_bias bias = {.id = engine_get_info(e)->config->eos_ids[0]};
    struct request_view v = {0};
    int32_t ids[MOST];
    p.ignore_eos = false;
    p.draw.temperature = 1;
    p.draw.bias = &bias;
    p.draw.n_bias = 1;
    for (bias.bias = 0; bias.bias < 30 && !(v.ended_by_eos && v.n_tokens > 3); bias.bias += 0.25f)
        v = bed_run_view(e, &p, ids);
    bias.bias -= 0.25f;
    engine_free(e);
    assert_true(v.ended_by_eos && v.n_tokens > 3 && v.n_tokens < 40);
    must_equal_plain(p);
}

static void penalties_hold_along_windows(void **state) {
    (void)state;
    struct draw_bias bias = {.id = 17, .bias = 3};
    struct request_params p = bed_params(prompt, N_PROMPT, 40);
    p.draw.repetition = 1.3;
    p.draw.frequency = 0.4;
    p.draw.presence = 0.3;
    p.draw.bias = &bias;
    p.draw.n_bias = 1;
    must_equal_plain(p);
    p.draw.temperature = 0.7;
    p.draw.top_k = 40;
    must_equal_plain(p);
}

static void drafts_are_counted(void **state) {
    (void)state;
    struct request_params p = bed_params(prompt, N_PROMPT, 21);
    struct reply plain = run_plain(p);
    assert_int_equal(plain.view.n_rounds, 20);
    struct reply right = run(&(struct draft_options){.expected = true, .forced = true, .max_window = 5}, p, &plain);
    assert_int_equal(right.view.n_rounds, 4); // the first token comes from the prompt's last pass
    assert_int_equal(right.view.n_drafted, 16);
    assert_int_equal(right.view.n_accepted, 16);
    struct reply wrong = run(&kinds[1], p, &plain);
    assert_int_equal(wrong.view.n_rounds, 20);
    assert_int_equal(wrong.view.n_drafted, 2 * 18 + 1); // the last windows are cut
    assert_int_equal(wrong.view.n_accepted, 0);
}

static void plain_rounds_can_be_asked_for(void **state) {
    (void)state;
    struct request_params p = bed_params(prompt, N_PROMPT, 21);
    struct reply plain = run_plain(p), got;
    struct engine *e = bed_open((struct engine_options){.drafts = kinds[0]});
    p.expected = plain.ids;
    p.n_expected = plain.n;
    got.view = bed_run_view(e, &p, got.ids);
    assert_int_equal(got.view.n_drafted, 0);
    assert_int_equal(got.view.n_rounds, 20);
    assert_memory_equal(got.ids, plain.ids, (size_t)plain.n * sizeof *plain.ids);
    engine_free(e);
}

// More windows than a round has room for.
static void many_streams_share_a_round(void **state) {
    (void)state;
    enum { N = 40, N_IDS = 70, REPLY = 12 };
    static const struct draft_options off, wide = {.mtp = true, .copies = true, .forced = true, .max_window = 16};
    int32_t ids[2][N][REPLY];
    for (int arm = 0; arm < 2; arm++) {
        struct request *r[N];
        struct engine *e = bed_open((struct engine_options){.drafts = arm == 0 ? off : wide, .parallel = N});
        for (int i = 0; i < N; i++) {
            int32_t *own = bed_prompt(N_IDS, (uint32_t)i);
            struct request_params p = bed_params(own, N_IDS, REPLY);
            p.draft = true;
            r[i] = bed_submit(e, &p);
            free(own);
        }
        for (int i = 0; i < N; i++) {
            assert_int_equal(bed_wait_done(r[i]).n_tokens, REPLY);
            for (int k = 0; k < REPLY; k++) ids[arm][i][k] = request_tokens(r[i])[k].id;
            request_free(r[i]);
        }
        engine_free(e);
    }
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
}

static void the_head_drafts_and_is_planned(void **state) {
    (void)state;
    struct request_params p = bed_params(prompt, N_PROMPT, 21);
    struct reply got = run(&(struct draft_options){.mtp = true, .forced = true, .max_window = 4}, p, NULL);
    assert_true(got.view.n_drafted > 0);
    struct engine *e = bed_open((struct engine_options){.drafts = {.mtp = true}});
    const struct engine_info *i = engine_get_info(e);
    assert_true(i->plan.parts[PLAN_DRAFTER] > 0);
    assert_int_equal(i->plan.used_bytes, i->taken_bytes);
    assert_non_null(strstr(i->start_sentence, "the MTP head in windows of 8 rows"));
    engine_free(e);
}

// A head that is taken to be wrong each time is looked back at, given up, and tried again; what it drafted is kept.
static void a_useless_head_is_given_up(void **state) {
    (void)state;
    enum { N = 60, N_REPLY = 5 };
    struct request_params p = bed_params(prompt, N_PROMPT, N);
    struct reply plain = run_plain(p), got;
    struct engine *e = bed_open((struct engine_options){.drafts = {.mtp = true, .doubted = true}});
    struct engine_counts c;
    p.draft = true;
    for (int i = 0; i < N_REPLY; i++) {
        got.view = bed_run_view(e, &p, got.ids);
        assert_int_equal(got.view.n_tokens, N);
        assert_memory_equal(got.ids, plain.ids, N * sizeof *plain.ids);
        engine_get_counts(e, &c);
        if (i > 0) continue; // 16 rows wait until half of them are given to the head
        assert_true(c.n_looked_back >= 8);
        assert_int_equal(c.n_given_up, 1);
    }
    assert_true(c.n_looked_back >= 16);
    assert_true(c.n_given_up >= N_REPLY - 1);
    assert_true(c.n_looked_back <= 8 * N_REPLY);
    engine_free(e);
}

// What is measured at the start holds nothing afterwards, and is not counted.
static void nothing_is_left_of_measurements(void **state) {
    (void)state;
    for (int32_t page_rows = 0; page_rows <= 3; page_rows += 3) {
        struct engine *e = bed_open((struct engine_options){.drafts = kinds[4], .page_rows = page_rows, .parallel = 9});
        struct engine_counts c = {0};
        while (c.pool.n_page == 0) engine_get_counts(e, &c); // until the engine's thread has told of them
        assert_int_equal(c.n_rounds + c.n_passes + c.n_prompt_tokens, 0);
        // Of windows each lane has its run from the start, and of pages one.
        assert_int_equal(c.pool.n_run_lane, page_rows == 0 ? 9 : 1);
        assert_int_equal(c.pool.n_page_lane + c.pool.n_page_cached + c.pool.n_run_cached, 0);
        engine_free(e);
    }
}

static int start(void **state) {
    (void)state;
    prompt = bed_prompt(N_PROMPT, 5);
    for (int i = 60; i < N_PROMPT; i++) prompt[i] = prompt[i - 20]; // something to copy from
    return 0;
}

static int stop(void **state) {
    (void)state;
    free(prompt);
    bed_stop();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_cut_windows),
        cmocka_unit_test(end_of_text_cuts_windows),
        cmocka_unit_test(penalties_hold_along_windows),
        cmocka_unit_test(drafts_are_counted),
        cmocka_unit_test(a_useless_head_is_given_up),
        cmocka_unit_test(plain_rounds_can_be_asked_for),
        cmocka_unit_test(many_streams_share_a_round),
        cmocka_unit_test(the_head_drafts_and_is_planned),
        cmocka_unit_test(nothing_is_left_of_measurements),
    };
    if (!bed_start()) return BED_SKIP;
    return cmocka_run_group_tests(tests, start, stop);
}
