// The order of work: rounds between prompt passes, who is seated when, and how soon a cancelled request ends. What is
// counted here does not depend on how fast the machine is or what else it does.
#include "base/clock.h"
#include "tests/engine/bed.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
// cmocka last: it needs the headers above
#include <cmocka.h>

static void every_pass_is_followed_by_a_round(void **state) {
    (void)state;
    enum { N_PROMPT = 3000, ROWS = 256, PASSES = (N_PROMPT + ROWS - 1) / ROWS };
    struct engine *e = bed_open((struct engine_options){.context = 4096, .pass_rows = ROWS});
    int32_t *small = bed_prompt(10, 1), *large = bed_prompt(N_PROMPT, 2);
    struct request_params p = bed_params(small, 10, 4000);
    struct request *running[2] = {bed_submit(e, &p), bed_submit(e, &p)};
    for (int i = 0; i < 2; i++) bed_wait_tokens(running[i], 8);
    p = bed_params(large, N_PROMPT, 1);
    int32_t before[2];
    for (int i = 0; i < 2; i++) before[i] = bed_view(running[i]).n_tokens;
    struct request *r = bed_submit(e, &p);
    bed_wait_done(r);
    for (int i = 0; i < 2; i++) {
        assert_true(bed_view(running[i]).n_tokens - before[i] >= PASSES - 1);
        request_free(running[i]);
    }
    request_free(r);
    bed_wait_idle(e);
    free(small);
    free(large);
    engine_free(e);
}

// Of a round that is being computed when a request is cancelled its token may still come; of the next one, none.
static void a_cancelled_request_ends_within_a_round(void **state) { // C63
    (void)state;
    struct engine *e = bed_open((struct engine_options){.parallel = 2});
    int32_t *prompt = bed_prompt(20, 3);
    struct request_params p = bed_params(prompt, 20, 1900);
    struct request *other = bed_submit(e, &p);
    for (int i = 0; i < 30; i++) {
        struct request *r = bed_submit(e, &p), *next = bed_submit(e, &p);
        bed_wait_tokens(r, 1 + i % 5);
        request_cancel(r);
        int32_t n = bed_view(r).n_tokens;
        struct request_view v = bed_wait_done(r);
        assert_int_equal(v.finish, FINISH_CANCELLED);
        assert_true(v.n_tokens <= n + 1);
        bed_wait_tokens(next, 1); // in the lane that became free
        request_free(r);
        request_free(next);
    }
    request_free(other);
    bed_wait_idle(e);
    free(prompt);
    engine_free(e);
}

struct waiter {
    struct request *r;
    int64_t before_ns, after_ns; // of its submission, which lies between
};

static struct waiter line_up(struct engine *e, const struct request_params *p) {
    struct waiter w = {.before_ns = clock_ns()};
    w.r = bed_submit(e, p);
    w.after_ns = clock_ns();
    return w;
}

// Whether a got its lane before b did.
static bool seated_before(const struct waiter *a, const struct waiter *b) {
    return a->before_ns + bed_view(a->r).queue_ns < b->after_ns + bed_view(b->r).queue_ns;
}

// The policy: in the order of arrival. A large request is not passed by small ones, however many come; those that come
// after it wait for it, and no longer.
static void first_come_is_first_served(void **state) { // C61
    (void)state;
    enum { SMALL = 20 };
    struct engine *e = bed_open((struct engine_options){.parallel = 1});
    int32_t *small = bed_prompt(10, 4), *large = bed_prompt(1800, 5);
    struct request_params mid_p = bed_params(small, 10, 400), large_p = bed_params(large, 1800, 200),
                          small_p = bed_params(small, 10, 2);
    struct request *mid = bed_submit(e, &mid_p);
    bed_wait_tokens(mid, 1);
    struct waiter line[1 + SMALL];
    line[0] = line_up(e, &large_p);
    for (int i = 1; i <= SMALL; i++) line[i] = line_up(e, &small_p);
    for (int i = 0; i <= SMALL; i++) assert_int_equal(bed_wait_done(line[i].r).finish, FINISH_LENGTH);
    for (int i = 1; i <= SMALL; i++) assert_true(seated_before(&line[i - 1], &line[i]));
    for (int i = 0; i <= SMALL; i++) request_free(line[i].r);
    request_free(mid);
    bed_wait_idle(e);
    free(small);
    free(large);
    engine_free(e);
}

static void the_background_lets_others_pass(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){.parallel = 1});
    int32_t *prompt = bed_prompt(10, 6);
    struct request_params busy = bed_params(prompt, 10, 400), p = bed_params(prompt, 10, 4);
    struct request *running = bed_submit(e, &busy);
    bed_wait_tokens(running, 1);
    struct waiter line[4];
    p.priority = 1;
    line[3] = line_up(e, &p);
    p.priority = 0;
    for (int i = 0; i < 3; i++) line[i] = line_up(e, &p);
    for (int i = 0; i < 4; i++) bed_wait_done(line[i].r);
    for (int i = 1; i < 4; i++) assert_true(seated_before(&line[i - 1], &line[i]));
    for (int i = 0; i < 4; i++) request_free(line[i].r);
    request_free(running);
    free(prompt);
    engine_free(e);
}

static int64_t cpu_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return ts.tv_sec * BED_SECOND + ts.tv_nsec;
}

static void an_idle_engine_sleeps(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){0});
    int32_t *prompt = bed_prompt(10, 7), ids[4];
    struct request_params p = bed_params(prompt, 10, 4);
    bed_run(e, &p, ids);
    bed_wait_idle(e);
    clock_sleep_ns(BED_SECOND / 20); // for threads to fall asleep
    int64_t start = cpu_ns();
    clock_sleep_ns(BED_SECOND / 2);
    assert_true(cpu_ns() - start < BED_SECOND / 20);
    free(prompt);
    engine_free(e);
}

int main(void) {
    if (!bed_start()) return BED_SKIP;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pass_is_followed_by_a_round),
        cmocka_unit_test(a_cancelled_request_ends_within_a_round),
        cmocka_unit_test(first_come_is_first_served),
        cmocka_unit_test(the_background_lets_others_pass),
        cmocka_unit_test(an_idle_engine_sleeps),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bed_stop();
    return failed;
}
