// Admission as a client meets it: more than the pool holds, claims at its very edge, and a large request among small
// ones.
#include "base/clock.h"
#include "tests/engine/bed.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
// cmocka last: it needs the headers above
#include <cmocka.h>

#define CONTEXT 2048 // as bed_open has it

// An engine whose pool has room for that many pages beside that many lane runs, everything on pages.
static struct engine *open_pool(int32_t page_rows, int64_t n_pages, int32_t n_runs, struct engine_options o) {
    o.page_rows = page_rows;
    o.pages_all = true;
    struct engine *probe = bed_open(o);
    const struct plan *p = &engine_get_info(probe)->plan;
    o.kv_memory_bytes = n_pages * p->page_bytes + n_runs * p->run_bytes;
    engine_free(probe);
    return bed_open(o);
}

// A request that nearly fills the pool: while it runs there is no room for all that come.
static struct request *fill(struct engine *e, const int32_t *prompt, int32_t n) {
    struct request_params p = bed_params(prompt, n, CONTEXT - n - 1);
    struct request *r = bed_submit(e, &p);
    bed_wait_tokens(r, 1);
    return r;
}

static void wait_until_some_wait(struct engine *e) {
    struct engine_counts c;
    int64_t end = clock_ns() + 60 * BED_SECOND;
    do {
        clock_sleep_ns(BED_SECOND / 1000);
        engine_get_counts(e, &c);
        assert_true(clock_ns() < end);
    } while (c.n_waiting == 0);
}

static void more_than_the_pool_holds_all_finish(void **state) {
    (void)state;
    enum { N = 16, ROWS = 150, LONG = 48, SHORT = 16 };
    static const int32_t sizes[] = {256, 64, 96, 1};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int64_t each = ledger_pages_for(ROWS + LONG, 1, sizes[k]);
        struct engine *e = open_pool(sizes[k], each * N * 10 / 15, N, (struct engine_options){.parallel = N});
        struct engine *alone = bed_open((struct engine_options){.parallel = 1});
        struct request *r[N];
        int32_t *prompts[N], ids[LONG];
        int32_t *first = bed_prompt(ROWS, 39);
        struct request *before = fill(e, first, ROWS);
        for (int i = 0; i < N; i++) {
            prompts[i] = bed_prompt(ROWS, 40 + (uint32_t)i);
            struct request_params p = bed_params(prompts[i], ROWS, i % 2 == 0 ? LONG : SHORT);
            r[i] = bed_submit(e, &p);
        }
        wait_until_some_wait(e);
        request_cancel(before);
        request_free(before);
        free(first);
        for (int i = 0; i < N; i++) assert_int_equal(bed_wait_done(r[i]).finish, FINISH_LENGTH);
        for (int i = 0; i < N; i++) {
            struct request_params p = bed_params(prompts[i], ROWS, LONG);
            bed_run(alone, &p, ids); // a short reply is the start of it
            for (int t = 0; t < (i % 2 == 0 ? LONG : SHORT); t++) assert_int_equal(request_tokens(r[i])[t].id, ids[t]);
            request_free(r[i]);
            free(prompts[i]);
        }
        bed_wait_idle(e);
        engine_free(e);
        engine_free(alone);
    }
}

static void claims_at_the_edge_of_the_pool(void **state) { // C45, C59
    (void)state;
    enum { PAGES = 6, ROWS = 64 };
    int32_t *prompt = bed_prompt(PAGES * ROWS, 3), ids[64];
    struct engine *e = open_pool(ROWS, PAGES, 1, (struct engine_options){.parallel = 2});
    int64_t most = (int64_t)PAGES * ROWS - 1; // one row is for the next round
    struct request *r = NULL;
    struct error error;
    struct request_params p = bed_params(prompt, (int32_t)most - 10, 10);
    assert_int_equal(bed_run(e, &p, ids), 10);
    p.max_tokens = 9;
    assert_int_equal(bed_run(e, &p, ids), 9);
    p.max_tokens = 11;
    assert_int_equal(engine_submit(e, &p, &r, &error), STATUS_LIMIT);
    assert_non_null(strstr(error.text, "at most 10 would fit"));
    p.max_tokens = -1; // none named: what there is room for
    assert_int_equal(bed_run(e, &p, ids), 10);
    p = bed_params(prompt, (int32_t)most, 1);
    assert_int_equal(engine_submit(e, &p, &r, &error), STATUS_LIMIT);
    static const int64_t huge[] = {INT32_MAX, 4294967296, INT64_MAX};
    for (int i = 0; i < 3; i++) {
        p = bed_params(prompt, 10, huge[i]);
        assert_int_equal(engine_submit(e, &p, &r, &error), STATUS_LIMIT);
    }
    struct engine_counts c;
    engine_get_counts(e, &c);
    assert_int_equal(c.n_refused[REFUSED_POOL] + c.n_refused[REFUSED_WINDOW], 5);
    bed_wait_idle(e);
    free(prompt);
    engine_free(e);
}

// Small requests drip while a large one waits: it is seated by the time that those before it have ended, and most of
// the small ones need not wait for it.
static void a_large_request_is_not_starved(void **state) { // C61
    (void)state;
    enum { N = 40, SMALL = 60, LARGE = 900 };
    int64_t large_pages = ledger_pages_for(LARGE + 10, 1, 64);
    struct engine *e = open_pool(64, large_pages * 10 / 9, 4, (struct engine_options){.parallel = 4});
    int32_t *small = bed_prompt(SMALL, 5), *large = bed_prompt(LARGE, 6);
    struct request *r[N], *big = NULL;
    struct request_params p = bed_params(small, SMALL, 60);
    r[0] = bed_submit(e, &p); // runs when the large one comes
    bed_wait_tokens(r[0], 2);
    p = bed_params(large, LARGE, 10);
    big = bed_submit(e, &p);
    p = bed_params(small, SMALL, 12);
    for (int i = 1; i < N; i++) r[i] = bed_submit(e, &p);
    assert_int_equal(bed_wait_done(big).finish, FINISH_LENGTH);
    int n_left = 0;
    for (int i = 1; i < N; i++) {
        struct request_view v;
        request_wait(r[i], 0, REQUEST_WAITING, 0, &v);
        n_left += v.state != REQUEST_DONE;
    }
    assert_true(n_left > 0); // it did not come last
    for (int i = 0; i < N; i++) {
        assert_int_equal(bed_wait_done(r[i]).finish, FINISH_LENGTH);
        request_free(r[i]);
    }
    request_free(big);
    bed_wait_idle(e);
    free(small);
    free(large);
    engine_free(e);
}

static void the_foreground_goes_first(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){.parallel = 1});
    int32_t *prompt = bed_prompt(40, 7);
    struct request_params p = bed_params(prompt, 40, 200);
    struct request *running = bed_submit(e, &p);
    bed_wait_tokens(running, 1);
    p.max_tokens = 30;
    p.priority = 1;
    struct request *background = bed_submit(e, &p);
    p.priority = 0;
    p.max_tokens = 1900; // still runs when it is looked at, however slow this thread is
    struct request *foreground = bed_submit(e, &p);
    bed_wait_tokens(foreground, 1);
    struct request_view v;
    request_wait(background, 0, REQUEST_WAITING, 0, &v);
    assert_int_equal(v.state, REQUEST_WAITING);
    assert_non_null(v.waiting_for);
    request_cancel(foreground);
    bed_wait_done(background);
    request_free(running);
    request_free(background);
    request_free(foreground);
    free(prompt);
    engine_free(e);
}

static void an_engine_can_be_restarted(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){0});
    int32_t *prompt = bed_prompt(300, 8), first[16], ids[16];
    struct request_params p = bed_params(prompt, 300, 16);
    bed_run(e, &p, first);
    struct request *left = bed_submit(e, &p);
    static const int32_t sizes[] = {1, 4096, 0, 96};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct error error;
        struct engine_options o = {
            .parallel = 2, .context = 1024, .max_tokens = 16, .queue = 4, .decode_share = 0.25, .page_rows = sizes[i]};
        struct engine_options bad = o;
        bad.parallel = 100000;
        bad.kv_memory_bytes = 1 << 20;
        bad.page_rows = 0;
        assert_int_equal(engine_restart(e, &bad, &error), STATUS_LIMIT);
        assert_int_equal(engine_restart(e, &o, &error), STATUS_OK);
        assert_int_equal(bed_run(e, &p, ids), 16);
        assert_memory_equal(ids, first, sizeof ids);
        bed_wait_idle(e);
    }
    assert_int_equal(bed_wait_done(left).state, REQUEST_DONE); // it ended with the first settings
    request_free(left);
    free(prompt);
    engine_free(e);
}

// Who sees that a reply is there may ask for the next one: its place is free by then, also where nobody may wait.
static void a_reply_that_is_there_has_left_its_place(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){0});
    struct engine_options none_wait = {.parallel = 1, .context = 512, .max_tokens = 16, .decode_share = 0.25};
    struct error error;
    assert_int_equal(engine_restart(e, &none_wait, &error), STATUS_OK);
    int32_t prompt[1] = {7};
    struct request_params p = bed_params(prompt, 1, 1);
    for (int i = 0; i < 2000; i++) {
        struct request *r = bed_submit(e, &p); // which must not be refused
        bed_wait_done(r);
        request_free(r);
    }
    engine_free(e);
}

int main(void) {
    if (!bed_start()) return BED_SKIP;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_than_the_pool_holds_all_finish),
        cmocka_unit_test(claims_at_the_edge_of_the_pool),
        cmocka_unit_test(a_large_request_is_not_starved),
        cmocka_unit_test(the_foreground_goes_first),
        cmocka_unit_test(an_engine_can_be_restarted),
        cmocka_unit_test(a_reply_that_is_there_has_left_its_place),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bed_stop();
    return failed;
}
