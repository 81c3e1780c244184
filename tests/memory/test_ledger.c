// The ledger by hand: what can be claimed, what is set aside, who goes first and who may pass (cases C45, C59, C61).
#include "memory/ledger.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { PAGE_BYTES = 64, RUN_BYTES = 256 }; // a run is as large as 4 pages

struct rig {
    struct pool *pool;
    struct ledger *ledger;
    struct ledger_settings settings;
};

static struct rig open_rig(struct ledger_settings s, int32_t n_page, int32_t n_run) {
    struct rig r = {.settings = s};
    struct pool_shape shape = {.bytes = n_page * PAGE_BYTES + n_run * RUN_BYTES,
                               .page_bytes = PAGE_BYTES,
                               .run_bytes = RUN_BYTES,
                               .n_run = 1000};
    assert_int_equal(pool_create(&shape, &r.pool, NULL), STATUS_OK);
    r.settings.pool = r.pool;
    assert_int_equal(ledger_create(&r.settings, &r.ledger, NULL), STATUS_OK);
    return r;
}

// One row a page, so that a claim of n rows and a window of 1 takes n + 1 pages.
static struct rig open_pages(int32_t parallel, int32_t context, int32_t n_page, int32_t n_run) {
    struct ledger_settings s = {
        .pages_all = true, .parallel = parallel, .context = context, .max_window = 1, .page_rows = 1};
    return open_rig(s, n_page, n_run);
}

static void close_rig(struct rig *r) {
    struct ledger_counts c;
    ledger_get_counts(r->ledger, &c);
    assert_int_equal(c.n_leaked, 0);
    assert_int_equal(c.n_seated + c.n_waiting, 0);
    ledger_free(r->ledger);
    struct pool_counts p;
    pool_get_counts(r->pool, &p);
    assert_int_equal(p.n_page_free, p.n_page);
    pool_free(r->pool);
}

static struct claim claim_of(int64_t rows, int32_t priority) {
    return (struct claim){.prompt = rows - 1, .reply = 1, .priority = priority};
}

static void enqueue(struct rig *r, struct claim *c, int64_t rows) {
    *c = claim_of(rows, 0);
    ledger_enqueue(r->ledger, c);
}

static struct claim *admit(struct rig *r) { return ledger_admit(r->ledger, 0); }

// ---- what can be claimed ----

static void test_pages_of_a_claim(void **state) {
    (void)state;
    static const int32_t sizes[] = {1, 64, 96, 256, 4096}, windows[] = {1, 8, 16};
    for (int s = 0; s < 5; s++)
        for (int w = 0; w < 3; w++)
            for (int64_t rows = 0; rows < 9000; rows += rows < 600 ? 1 : 61) {
                int64_t n = ledger_pages_for(rows, windows[w], sizes[s]);
                assert_true(n * sizes[s] >= rows + windows[w]);
                assert_true((n - 1) * sizes[s] < rows + windows[w]);
            }
    assert_true(ledger_pages_for(INT64_MAX - 16, 16, 1) == INT64_MAX);
    assert_int_equal(ledger_pages_for(INT64_MAX, 16, 4096), INT64_MAX / 4096 + 2);
}

static void test_claims_of_any_size(void **state) {
    (void)state;
    static const struct {
        int64_t prompt, reply;
        enum ledger_answer want;
    } cases[] = {
        {99, 1, LEDGER_FITS},
        {1, 99, LEDGER_FITS},
        {99, 2, LEDGER_OVER_WINDOW},
        {101, 0, LEDGER_OVER_WINDOW},
        {1, INT32_MAX, LEDGER_OVER_WINDOW},
        {1, (int64_t)1 << 32, LEDGER_OVER_WINDOW},
        {1, INT64_MAX, LEDGER_OVER_WINDOW},
        {INT64_MAX, INT64_MAX, LEDGER_OVER_WINDOW},
        {INT64_MAX, 1, LEDGER_OVER_WINDOW},
        {-1, 1, LEDGER_OVER_WINDOW},
        {1, -1, LEDGER_OVER_WINDOW},
    };
    struct ledger_settings s = {.windows = true, .parallel = 2, .context = 100, .max_window = 8, .page_rows = 16};
    struct rig r = open_rig(s, 2 * 7, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t most = 0;
        assert_int_equal(ledger_check(r.ledger, cases[i].prompt, cases[i].reply, &most), cases[i].want);
        assert_int_equal(most, 100);
    }
    close_rig(&r);
}

// C59: what needs exactly the pool is served, a row more is refused at once, and nothing unservable ever waits.
static void test_a_claim_of_the_whole_pool(void **state) {
    (void)state;
    struct rig r = open_pages(4, 1000, 50, 1);
    int64_t most;
    assert_int_equal(ledger_check(r.ledger, 1, 48, &most), LEDGER_FITS);
    assert_int_equal(most, 49);
    assert_int_equal(ledger_check(r.ledger, 1, 49, &most), LEDGER_OVER_POOL);
    assert_int_equal(ledger_check(r.ledger, 1, 998, &most), LEDGER_OVER_POOL);
    assert_int_equal(ledger_check(r.ledger, 1, 1000, &most), LEDGER_OVER_WINDOW);
    struct claim c, d, small;
    enqueue(&r, &c, 29);
    assert_ptr_equal(admit(&r), &c);
    enqueue(&r, &d, 49);
    enqueue(&r, &small, 2); // has room now, and would take the other's
    assert_null(admit(&r));
    assert_int_equal(d.wait, LEDGER_WAIT_PAGES);
    assert_int_not_equal(small.wait, LEDGER_WAIT_NONE);
    ledger_release(r.ledger, &c);
    assert_ptr_equal(admit(&r), &d);
    assert_int_equal(d.n_page, 50);
    assert_null(admit(&r));
    assert_int_equal(small.wait, LEDGER_WAIT_PAGES);
    ledger_release(r.ledger, &d);
    assert_ptr_equal(admit(&r), &small);
    ledger_release(r.ledger, &small);
    close_rig(&r);
}

// Pages and runs come from both ends: here every run has lost a page to somebody, and there are pages for one and more.
static void test_a_pool_in_pieces(void **state) {
    (void)state;
    struct rig r = open_pages(4, 1000, 20, 1); // 24 pages in all, or six runs of four
    struct claim a, b, c, d;
    enqueue(&r, &a, 6);
    assert_ptr_equal(admit(&r), &a);
    enqueue(&r, &b, 5);
    assert_ptr_equal(admit(&r), &b);
    ledger_release(r.ledger, &a);
    enqueue(&r, &c, 3);
    assert_ptr_equal(admit(&r), &c);
    assert_int_equal(pool_count_open(r.pool), 4 + 2);
    enqueue(&r, &d, 1);
    assert_null(admit(&r));
    assert_int_equal(d.wait, LEDGER_WAIT_RUN);
    assert_null(admit(&r)); // when it is looked at again, too
    assert_int_equal(d.wait, LEDGER_WAIT_RUN);
    ledger_release(r.ledger, &b);
    assert_ptr_equal(admit(&r), &d);
    ledger_release(r.ledger, &c);
    ledger_release(r.ledger, &d);
    close_rig(&r);
}

static void test_pools_that_are_too_small(void **state) {
    (void)state;
    struct pool_shape shape = {
        .bytes = 5 * PAGE_BYTES + RUN_BYTES, .page_bytes = PAGE_BYTES, .run_bytes = RUN_BYTES, .n_run = 10};
    struct ledger_settings s = {.parallel = 1, .context = 4, .max_window = 1, .page_rows = 1};
    struct ledger *l = NULL;
    struct error e;
    assert_int_equal(pool_create(&shape, &s.pool, NULL), STATUS_OK);
    for (int windows = 0; windows < 2; windows++) {
        s.windows = windows;
        s.context = 4;
        assert_int_equal(ledger_create(&s, &l, NULL), STATUS_OK);
        ledger_free(l);
        l = NULL;
        s.context = 5;
        assert_int_equal(ledger_create(&s, &l, &e), STATUS_LIMIT);
        assert_null(l);
    }
    s.windows = false;
    s.pages_all = true; // what is too long is refused claim by claim
    assert_int_equal(ledger_create(&s, &l, NULL), STATUS_OK);
    ledger_free(l);
    ledger_free(NULL);
    pool_free(s.pool);
}

// ---- windows, and a window set aside ----

static void test_windows(void **state) {
    (void)state;
    struct ledger_settings s = {.windows = true, .parallel = 3, .context = 40, .max_window = 2, .page_rows = 8};
    struct rig r = open_rig(s, 3 * 6, 3);
    struct claim c[4];
    for (int i = 0; i < 4; i++) enqueue(&r, &c[i], 2);
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(admit(&r), &c[i]);
        assert_int_equal(c[i].lane, i);
        assert_int_equal(c[i].n_page, 6); // whatever it asked for
        for (int k = 0; k < 6; k++) assert_int_equal(c[i].pages[k], 6 * i + k);
    }
    assert_null(admit(&r));
    assert_int_equal(c[3].wait, LEDGER_WAIT_LANES);
    ledger_release(r.ledger, &c[1]);
    assert_ptr_equal(admit(&r), &c[3]);
    assert_int_equal(c[3].lane, 1);
    ledger_release(r.ledger, &c[0]);
    ledger_release(r.ledger, &c[2]);
    ledger_release(r.ledger, &c[3]);
    close_rig(&r);
}

// Lane 0 has room for a whole window at any time; it goes to what has no room beside it.
static void test_a_window_is_set_aside(void **state) {
    (void)state;
    struct ledger_settings s = {.parallel = 4, .context = 30, .max_window = 1, .page_rows = 1};
    struct rig r = open_rig(s, 31 + 20, 4);
    struct claim small[3], more, whole;
    struct ledger_counts counts;
    for (int i = 0; i < 2; i++) {
        enqueue(&r, &small[i], 9); // 10 pages each: all that is not set aside
        assert_ptr_equal(admit(&r), &small[i]);
        assert_int_equal(small[i].lane, i + 1);
    }
    enqueue(&r, &whole, 30);
    assert_ptr_equal(admit(&r), &whole);
    assert_int_equal(whole.lane, 0);
    assert_int_equal(whole.n_page, 31);
    ledger_get_counts(r.ledger, &counts);
    assert_int_equal(counts.n_set_aside, 0);
    enqueue(&r, &small[2], 9);
    assert_null(admit(&r));
    assert_int_equal(small[2].wait, LEDGER_WAIT_PAGES);
    ledger_release(r.ledger, &whole);
    assert_ptr_equal(admit(&r), &small[2]); // better there than not at all
    assert_int_equal(small[2].lane, 0);
    ledger_get_counts(r.ledger, &counts);
    assert_int_equal(counts.n_set_aside, 21); // the rest of that window stays free
    enqueue(&r, &more, 4);
    assert_null(admit(&r));
    assert_int_equal(more.wait, LEDGER_WAIT_PAGES);
    ledger_remove(r.ledger, &more);
    for (int i = 0; i < 3; i++) ledger_release(r.ledger, &small[i]);
    close_rig(&r);
}

static void test_one_lane_has_the_window(void **state) {
    (void)state;
    struct ledger_settings s = {.parallel = 1, .context = 30, .max_window = 1, .page_rows = 1};
    struct rig r = open_rig(s, 31, 1);
    struct claim c, d;
    enqueue(&r, &c, 30);
    enqueue(&r, &d, 2);
    assert_ptr_equal(admit(&r), &c);
    assert_null(admit(&r));
    assert_int_equal(d.wait, LEDGER_WAIT_LANES);
    ledger_release(r.ledger, &c);
    assert_ptr_equal(admit(&r), &d);
    assert_int_equal(d.n_page, 3);
    ledger_release(r.ledger, &d);
    close_rig(&r);
}

// ---- who goes first ----

static void test_priorities(void **state) {
    (void)state;
    struct rig r = open_pages(1, 100, 100, 1);
    struct claim c[6];
    static const int32_t priority[] = {1, 1, 0, 1, 0, 0}, want[] = {2, 4, 5, 0, 1, 3};
    for (int i = 0; i < 6; i++) {
        c[i] = claim_of(10, priority[i]);
        ledger_enqueue(r.ledger, &c[i]);
    }
    for (int i = 0; i < 6; i++) {
        struct claim *got = admit(&r);
        assert_ptr_equal(got, &c[want[i]]);
        assert_null(admit(&r));
        ledger_release(r.ledger, got);
    }
    close_rig(&r);
}

// C61: 90 % of the pool waits for one that runs; small ones pass as long as its room stays, and no longer.
static void test_small_claims_pass_a_huge_one_within_bounds(void **state) {
    (void)state;
    struct rig r = open_pages(16, 1000, 1000, 16);
    struct claim middle, huge, small[20];
    enqueue(&r, &middle, 299);
    assert_ptr_equal(admit(&r), &middle);
    enqueue(&r, &huge, 899);
    for (int i = 0; i < 20; i++) enqueue(&r, &small[i], 19);
    // Beside the huge one there is room for 100 pages, less what of the runs' own room is not used by runs.
    int n = 0;
    struct claim *c;
    while ((c = admit(&r)) != NULL) {
        assert_ptr_equal(c, &small[n]);
        n++;
    }
    assert_in_range(n, 4, 8);
    assert_int_equal(huge.wait, LEDGER_WAIT_PAGES);
    assert_int_equal(small[n].wait, LEDGER_WAIT_TURN);
    ledger_release(r.ledger, &middle);
    assert_ptr_equal(admit(&r), &huge); // though all that passed still run
    for (int i = 0; i < n; i++) ledger_release(r.ledger, &small[i]);
    for (int i = n; i < 20; i++) ledger_remove(r.ledger, &small[i]);
    ledger_release(r.ledger, &huge);
    close_rig(&r);
}

// A drip of small claims, one for each that ends, does not keep the head out.
static void test_a_drip_does_not_starve_the_head(void **state) {
    (void)state;
    struct rig r = open_pages(8, 200, 200, 8);
    struct claim running[5], huge, drip[400];
    int n = 0, n_left = 5;
    for (int i = 0; i < 5; i++) {
        enqueue(&r, &running[i], 39);
        assert_ptr_equal(admit(&r), &running[i]);
    }
    enqueue(&r, &huge, 150);
    for (int turn = 0; turn < 300 && !huge.seated; turn++) {
        enqueue(&r, &drip[n], 9);
        n++;
        if (turn % 50 == 49) ledger_release(r.ledger, &running[--n_left]);
        while (admit(&r) != NULL)
            ;
        for (int i = 0; i < n; i++) // each runs for a few turns
            if (drip[i].seated && (turn + i) % 7 == 0) ledger_release(r.ledger, &drip[i]);
        assert_true(n_left > 0 || huge.seated);
    }
    assert_true(huge.seated);
    for (int i = 0; i < n; i++) {
        if (drip[i].seated) ledger_release(r.ledger, &drip[i]);
        if (drip[i].waiting) ledger_remove(r.ledger, &drip[i]);
    }
    while (n_left > 0) ledger_release(r.ledger, &running[--n_left]);
    ledger_release(r.ledger, &huge);
    close_rig(&r);
}

// Short of nothing but room in one piece: those that hold its place may stay, and nobody new comes into it.
static void test_the_place_of_the_heads_run_empties(void **state) {
    (void)state;
    struct rig r = open_pages(8, 40, 40, 1); // 44 pages' bytes: runs at pages 40..43, 36..39, ...
    struct claim c[9], head, late;
    for (int i = 0; i < 2; i++) {
        enqueue(&r, &c[i], 15); // pages 0..15 and 16..31; runs 0 and 1 take pages 36..43
        assert_ptr_equal(admit(&r), &c[i]);
    }
    assert_int_equal(c[1].pages[15], 31);
    ledger_release(r.ledger, &c[0]); // 16 pages and run 0 are free
    enqueue(&r, &c[2], 11);
    assert_ptr_equal(admit(&r), &c[2]); // pages 0..11 and run 0
    enqueue(&r, &head, 12);             // 13 pages and a run: 12..15 and 32..35 are 8 pages
    assert_null(admit(&r));
    assert_int_equal(head.wait, LEDGER_WAIT_PAGES);
    // There is room for this one now, but only where the head's run is to be: pages 32..35.
    enqueue(&r, &late, 2);
    assert_null(admit(&r));
    assert_int_equal(late.wait, LEDGER_WAIT_PAGES);
    ledger_release(r.ledger, &c[1]);
    assert_ptr_equal(admit(&r), &head);
    assert_ptr_equal(admit(&r), &late);
    ledger_release(r.ledger, &late);
    ledger_release(r.ledger, &head);
    ledger_release(r.ledger, &c[2]);
    close_rig(&r);
}

static void test_a_head_that_leaves_lets_the_next_in(void **state) {
    (void)state;
    struct rig r = open_pages(4, 100, 100, 4);
    struct claim a, b, c;
    enqueue(&r, &a, 60);
    assert_ptr_equal(admit(&r), &a);
    enqueue(&r, &b, 90);
    enqueue(&r, &c, 30);
    assert_null(admit(&r));
    assert_int_equal(c.wait, LEDGER_WAIT_TURN);
    ledger_remove(r.ledger, &b);
    assert_ptr_equal(admit(&r), &c);
    ledger_release(r.ledger, &a);
    ledger_release(r.ledger, &c);
    close_rig(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_of_a_claim),
        cmocka_unit_test(test_claims_of_any_size),
        cmocka_unit_test(test_a_claim_of_the_whole_pool),
        cmocka_unit_test(test_a_pool_in_pieces),
        cmocka_unit_test(test_pools_that_are_too_small),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_a_window_is_set_aside),
        cmocka_unit_test(test_one_lane_has_the_window),
        cmocka_unit_test(test_priorities),
        cmocka_unit_test(test_small_claims_pass_a_huge_one_within_bounds),
        cmocka_unit_test(test_a_drip_does_not_starve_the_head),
        cmocka_unit_test(test_the_place_of_the_heads_run_empties),
        cmocka_unit_test(test_a_head_that_leaves_lets_the_next_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
