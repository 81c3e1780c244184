// The engine over a small random checkpoint (build/golden/dense-mlx4-g32): what a request gives must not depend on
// anything but itself, and whatever ends a request must leave nothing behind.
#include "base/clock.h"
#include "tests/engine/bed.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
// cmocka last: it needs the headers above
#include <cmocka.h>

static void set_sampling(struct request_params *p, int which) {
    if (which % 2 == 0) return;
    p->draw.temperature = 1;
    p->draw.top_k = which % 4 == 1 ? 20 : 0;
    p->draw.top_p = 0.95;
    p->draw.seed = (uint64_t)which * 77;
    p->has_seed = true;
    if (which % 3 == 0) p->draw.repetition = 1.1, p->draw.presence = 0.5;
}

static void concurrent_equals_solo(void **state) { // C81
    (void)state;
    enum { N = 9 };
    struct engine *e = bed_open((struct engine_options){.parallel = 4});
    int32_t alone[N][32], n_alone[N];
    int32_t *prompts[N];
    struct request *r[N];
    for (int i = 0; i < N; i++) {
        prompts[i] = bed_prompt(5 + 61 * i, (uint32_t)i / 2);
        struct request_params p = bed_params(prompts[i], 5 + 61 * i, 20 + i);
        set_sampling(&p, i);
        n_alone[i] = bed_run(e, &p, alone[i]);
        assert_int_equal(n_alone[i], 20 + i);
    }
    for (int turn = 0; turn < 3; turn++) {
        for (int k = 0; k < N; k++) {
            int i = (k * 4 + turn) % N;
            struct request_params p = bed_params(prompts[i], 5 + 61 * i, 20 + i);
            set_sampling(&p, i);
            r[i] = bed_submit(e, &p);
        }
        for (int i = 0; i < N; i++) {
            struct request_view v = bed_wait_done(r[i]);
            assert_int_equal(v.finish, FINISH_LENGTH);
            assert_int_equal(v.n_tokens, n_alone[i]);
            for (int32_t t = 0; t < v.n_tokens; t++) assert_int_equal(request_tokens(r[i])[t].id, alone[i][t]);
            request_free(r[i]);
        }
    }
    bed_wait_idle(e);
    for (int i = 0; i < N; i++) free(prompts[i]);
    engine_free(e);
}

static void seeds_decide_and_a_resend_repeats(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){0});
    int32_t *prompt = bed_prompt(40, 9), a[32], b[32];
    struct request_params p = bed_params(prompt, 40, 32);
    p.draw.temperature = 1;
    int32_t n = bed_run(e, &p, a); // no seed: derived from the prompt
    assert_int_equal(bed_run(e, &p, b), n);
    assert_memory_equal(a, b, (size_t)n * sizeof *a);
    p.has_seed = true;
    p.draw.seed = 1;
    bed_run(e, &p, a);
    p.draw.seed = 2;
    bed_run(e, &p, b);
    assert_memory_not_equal(a, b, (size_t)n * sizeof *a);
    free(prompt);
    engine_free(e);
}

static void a_short_reply_is_a_prefix(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){0});
    int32_t *prompt = bed_prompt(70, 4), a[48], b[48];
    for (int sampled = 0; sampled < 2; sampled++) {
        struct request_params p = bed_params(prompt, 70, 48);
        p.draw.temperature = sampled;
        bed_run(e, &p, a);
        p.max_tokens = 16;
        assert_int_equal(bed_run(e, &p, b), 16);
        assert_memory_equal(a, b, 16 * sizeof *a);
    }
    free(prompt);
    engine_free(e);
}

static void passes_and_garbage_change_nothing(void **state) {
    (void)state;
    struct engine_options variants[] = {{0},
                                        {.pass_rows = 64},
                                        {.pass_rows = 256},
                                        {.garbage = true},
                                        {.garbage = true, .pass_rows = 128, .parallel = 1}};
    int32_t *prompt = bed_prompt(700, 5), first[32], ids[32];
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        struct engine *e = bed_open(variants[i]);
        struct request_params p = bed_params(prompt, 700, 32);
        p.draw.temperature = 0.7;
        bed_run(e, &p, ids); // leaves the lane used
        assert_int_equal(bed_run(e, &p, i == 0 ? first : ids), 32);
        if (i > 0) assert_memory_equal(first, ids, sizeof first);
        engine_free(e);
    }
    free(prompt);
}

static void a_cancelled_lane_leaves_no_trace(void **state) { // C99
    (void)state;
    struct engine *e = bed_open((struct engine_options){.parallel = 2, .pass_rows = 64});
    int32_t *fixed = bed_prompt(90, 1), *other = bed_prompt(1500, 2), fresh[32], again[32];
    struct request_params p = bed_params(fixed, 90, 32), long_p = bed_params(other, 1500, 500);
    bed_run(e, &p, fresh);
    for (int phase = 0; phase < 4; phase++) { // at once, in the prompt, after the first token, in mid-reply
        struct request *r[3];
        for (int i = 0; i < 3; i++) r[i] = bed_submit(e, &long_p); // two run, one waits
        struct request_view v = {0};
        if (phase == 1)
            while (v.n_prompt_done == 0) request_wait(r[0], 0, v.state, BED_SECOND / 100, &v);
        if (phase >= 2) bed_wait_tokens(r[0], phase == 2 ? 1 : 9);
        for (int i = 0; i < 3; i++) {
            if (i == 1)
                request_free(r[i]); // the client is gone
            else
                request_cancel(r[i]);
        }
        assert_int_equal(bed_wait_done(r[0]).finish, FINISH_CANCELLED);
        assert_int_equal(bed_wait_done(r[2]).finish, FINISH_CANCELLED);
        request_free(r[0]);
        request_free(r[2]);
        bed_wait_idle(e);
        assert_int_equal(bed_run(e, &p, again), 32);
        assert_memory_equal(fresh, again, sizeof fresh);
    }
    free(fixed);
    free(other);
    engine_free(e);
}

// Far sooner than a fast machine is done: that is 5 us for each of 1,900 rounds.
static void a_deadline_ends_a_request(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){.parallel = 1});
    int32_t *prompt = bed_prompt(20, 3);
    struct request_params p = bed_params(prompt, 20, 1900);
    p.draft = false;
    p.deadline_ns = clock_ns() + BED_SECOND / 100;
    struct request *running = bed_submit(e, &p), *waiting = bed_submit(e, &p);
    assert_int_equal(bed_wait_done(waiting).finish, FINISH_DEADLINE);
    assert_int_equal(bed_wait_done(running).finish, FINISH_DEADLINE);
    request_free(running);
    request_free(waiting);
    bed_wait_idle(e);
    free(prompt);
    engine_free(e);
}

static void what_can_never_be_served_is_refused(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){.context = 300});
    int32_t *prompt = bed_prompt(400, 3), ids[300];
    struct request *r = NULL;
    struct error error;
    static const struct {
        int32_t n_prompt;
        int64_t max_tokens;
        enum status want;
    } cases[] = {{0, 1, STATUS_INVALID},       {100, 201, STATUS_LIMIT}, {300, 1, STATUS_LIMIT},
                 {400, 1, STATUS_LIMIT},       {300, -1, STATUS_LIMIT},  {100, INT32_MAX, STATUS_LIMIT},
                 {1, INT64_MAX, STATUS_LIMIT}, {1, 0, STATUS_INVALID},   {100, 4294967296, STATUS_LIMIT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct request_params p = bed_params(prompt, cases[i].n_prompt, cases[i].max_tokens);
        assert_int_equal(engine_submit(e, &p, &r, &error), cases[i].want);
    }
    struct request_params p = bed_params(prompt, 299, 1); // prompt + reply == context is accepted
    assert_int_equal(bed_run(e, &p, ids), 1);
    p = bed_params(prompt, 290, -1);
    assert_int_equal(bed_run(e, &p, ids), 10);
    prompt[5] = BED_VOCAB;
    assert_int_equal(engine_submit(e, &p, &r, &error), STATUS_INVALID);
    prompt[5] = -1;
    assert_int_equal(engine_submit(e, &p, &r, &error), STATUS_INVALID);
    free(prompt);
    engine_free(e);
}

static void a_full_queue_refuses_and_recovers(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){.parallel = 1, .queue = 2});
    int32_t *prompt = bed_prompt(20, 3), ids[32];
    struct request_params p = bed_params(prompt, 20, 1900);
    struct request *r[3], *refused = NULL;
    struct error error;
    for (int i = 0; i < 3; i++) r[i] = bed_submit(e, &p);
    assert_int_equal(engine_submit(e, &p, &refused, &error), STATUS_BUSY);
    for (int i = 0; i < 3; i++) request_free(r[i]);
    bed_wait_idle(e);
    p.max_tokens = 8;
    assert_int_equal(bed_run(e, &p, ids), 8);
    engine_drain(e);
    assert_int_equal(engine_submit(e, &p, &refused, &error), STATUS_BUSY);
    free(prompt);
    engine_free(e);
}

static void the_engine_ends_with_requests_alive(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){.parallel = 2});
    int32_t *prompt = bed_prompt(200, 3);
    struct request_params p = bed_params(prompt, 200, 1500);
    struct request *r[5];
    for (int i = 0; i < 5; i++) r[i] = bed_submit(e, &p);
    bed_wait_tokens(r[0], 2);
    engine_free(e);
    for (int i = 0; i < 5; i++) {
        struct request_view v;
        request_wait(r[i], 0, REQUEST_WAITING, 0, &v);
        assert_int_equal(v.state, REQUEST_DONE);
        request_free(r[i]);
    }
    free(prompt);
}

static void bias_and_eos_are_kept_to(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){0});
    int32_t *prompt = bed_prompt(30, 6), ids[32];
    struct request_params p = bed_params(prompt, 30, 32);
    struct draw_bias bias = {.id = 77, .bias = 100};
    p.draw.bias = &bias;
    p.draw.n_bias = 1;
    bed_run(e, &p, ids);
    for (int i = 0; i < 32; i++) assert_int_equal(ids[i], 77);
    bias.id = 1; // the fixture's end of text
    p.ignore_eos = false;
    struct request *r = bed_submit(e, &p);
    struct request_view v = bed_wait_done(r);
    assert_int_equal(v.n_tokens, 1);
    assert_true(v.ended_by_eos);
    assert_int_equal(v.finish, FINISH_STOP);
    request_free(r);
    bias.id = BED_VOCAB;
    struct error error;
    assert_int_equal(engine_submit(e, &p, &r, &error), STATUS_INVALID);
    free(prompt);
    engine_free(e);
}

static void log_probabilities_are_of_the_model(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){0});
    int32_t *prompt = bed_prompt(30, 7);
    struct request_params p = bed_params(prompt, 30, 8);
    p.draw.n_top = 5;
    struct request *r = bed_submit(e, &p);
    struct request_view v = bed_wait_done(r);
    for (int32_t i = 0; i < v.n_tokens; i++) {
        const struct draw_top *top = request_tops(r) + i * 5;
        assert_int_equal(top[0].id, request_tokens(r)[i].id); // greedy
        assert_true(request_tokens(r)[i].logprob <= 0);
        for (int k = 1; k < 5; k++) assert_true(top[k].logprob <= top[k - 1].logprob);
    }
    request_free(r);
    free(prompt);
    engine_free(e);
}

static void bad_options_are_refused(void **state) { // C67
    (void)state;
    struct engine_options good = {
        .model_dir = BED_MODEL, .device = bed_device(), .parallel = 1, .queue = 4, .max_tokens = 8};
    struct engine *e = NULL;
    struct error error;
    struct engine_options o = good;
    o.pass_rows = 100;
    assert_int_equal(engine_create(&o, &e, &error), STATUS_INVALID);
    o = good, o.parallel = 100000, o.kv_memory_bytes = 1 << 20;
    assert_int_equal(engine_create(&o, &e, &error), STATUS_LIMIT);
    o = good, o.context = 1 << 20;
    assert_int_equal(engine_create(&o, &e, &error), STATUS_LIMIT);
    o = good, o.model_dir = "build/golden/none";
    assert_int_not_equal(engine_create(&o, &e, &error), STATUS_OK);
    assert_null(e);
}

int main(void) {
    if (!bed_start()) return BED_SKIP;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(concurrent_equals_solo),
        cmocka_unit_test(seeds_decide_and_a_resend_repeats),
        cmocka_unit_test(a_short_reply_is_a_prefix),
        cmocka_unit_test(passes_and_garbage_change_nothing),
        cmocka_unit_test(a_cancelled_lane_leaves_no_trace),
        cmocka_unit_test(a_deadline_ends_a_request),
        cmocka_unit_test(what_can_never_be_served_is_refused),
        cmocka_unit_test(a_full_queue_refuses_and_recovers),
        cmocka_unit_test(the_engine_ends_with_requests_alive),
        cmocka_unit_test(bias_and_eos_are_kept_to),
        cmocka_unit_test(log_probabilities_are_of_the_model),
        cmocka_unit_test(bad_options_are_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bed_stop();
    return failed;
}
