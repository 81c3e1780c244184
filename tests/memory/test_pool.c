// The pool against a second model of it that knows only bytes: who holds each one. Pages and runs of all size classes.
#include "base/random.h"
#include "memory/pool.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct pool *create(int64_t bytes, int64_t page_bytes, int64_t run_bytes, int32_t n_run) {
    struct pool_shape s = {.bytes = bytes, .page_bytes = page_bytes, .run_bytes = run_bytes, .n_run = n_run};
    struct pool *p = NULL;
    assert_int_equal(pool_create(&s, &p, NULL), STATUS_OK);
    return p;
}

static void test_pages_come_from_the_bottom_and_runs_from_the_top(void **state) {
    (void)state;
    struct pool *p = create(1000, 100, 250, 8);
    int32_t pages[10];
    struct pool_counts c;
    pool_get_counts(p, &c);
    assert_int_equal(c.n_page, 10);
    assert_int_equal(c.n_run, 4);
    assert_int_equal(pool_run_offset(p, 0), 750);
    assert_int_equal(pool_run_offset(p, 3), 0);
    assert_true(pool_take_pages(p, HOLDER_LANE, 3, pages));
    for (int i = 0; i < 3; i++) assert_int_equal(pages[i], i);
    assert_int_equal(pool_page_offset(p, 2), 200);
    pool_drop_page(p, HOLDER_LANE, 1);
    assert_true(pool_take_pages(p, HOLDER_LANE, 2, pages));
    assert_int_equal(pages[0], 1); // the lowest free one
    assert_int_equal(pages[1], 3);
    assert_int_equal(pool_find_free_run(p), 0);
    pool_take_run(p, HOLDER_LANE, 0); // bytes 750..999: pages 7 (half), 8, 9
    assert_int_equal(pool_find_free_run(p), 1);
    assert_false(pool_take_pages(p, HOLDER_LANE, 4, pages)); // 4, 5, 6 are left
    assert_true(pool_take_pages(p, HOLDER_LANE, 3, pages));
    assert_int_equal(pages[2], 6);
    assert_int_equal(pool_find_free_run(p), POOL_NONE);
    assert_true(pool_is_consistent(p));
    pool_free(p);
}

static void test_a_guarded_run_empties(void **state) {
    (void)state;
    struct pool *p = create(1000, 100, 300, 8);
    int32_t pages[10];
    assert_true(pool_take_pages(p, HOLDER_LANE, 8, pages));
    pool_guard_run(p, 0); // pages 7, 8, 9
    assert_int_equal(pool_count_open(p), 0);
    assert_false(pool_take_pages(p, HOLDER_LANE, 1, pages + 8));
    pool_drop_page(p, HOLDER_LANE, 7);
    pool_drop_page(p, HOLDER_LANE, 0);
    assert_true(pool_take_pages(p, HOLDER_LANE, 1, pages + 8));
    assert_int_equal(pages[8], 0);
    assert_false(pool_take_pages(p, HOLDER_LANE, 1, pages + 9));
    assert_int_equal(pool_find_free_run(p), POOL_NONE); // not for whoever passes
    pool_guard_run(p, POOL_NONE);
    assert_int_equal(pool_find_free_run(p), 0);
    assert_true(pool_is_consistent(p));
    pool_free(p);
}

static void test_what_only_the_cache_holds_is_open(void **state) {
    (void)state;
    struct pool *p = create(1000, 100, 250, 8);
    struct pool_counts c;
    int32_t pages[10];
    assert_true(pool_take_pages(p, HOLDER_LANE, 4, pages));
    for (int i = 0; i < 4; i++) pool_hold_page(p, HOLDER_CACHE, pages[i]);
    assert_int_equal(pool_count_open(p), 6);
    pool_hold_page(p, HOLDER_LANE, 0);
    pool_get_counts(p, &c);
    assert_int_equal(c.n_page_shared, 1);
    for (int i = 0; i < 4; i++) pool_drop_page(p, HOLDER_LANE, pages[i]);
    pool_get_counts(p, &c);
    assert_int_equal(c.n_page_free, 6);
    assert_int_equal(c.n_page_cached, 3); // page 0 has the second lane
    assert_int_equal(pool_count_open(p), 9);
    pool_take_run(p, HOLDER_CACHE, 0);
    assert_int_equal(pool_count_open(p), 9);
    assert_true(pool_run_is_open(p, 0));
    assert_false(pool_run_is_free(p, 0));
    assert_int_equal(pool_count_open_in_run(p, 0), 3);
    pool_pass_run(p, 0, HOLDER_LANE);
    assert_int_equal(pool_count_open(p), 6);
    assert_false(pool_run_is_open(p, 0));
    assert_true(pool_is_consistent(p));
    pool_free(p);
}

static void test_shapes(void **state) {
    (void)state;
    struct pool_shape many = {.bytes = INT64_MAX, .page_bytes = 1, .run_bytes = 1, .n_run = 1};
    struct pool *p = NULL;
    struct error e;
    assert_int_equal(pool_create(&many, &p, &e), STATUS_LIMIT);
    assert_null(p);
    p = create(0, 256, 256, 4);
    struct pool_counts c;
    pool_get_counts(p, &c);
    assert_int_equal(c.n_page + c.n_run, 0);
    assert_int_equal(pool_find_free_run(p), POOL_NONE);
    assert_true(pool_take_pages(p, HOLDER_LANE, 0, NULL));
    pool_free(p);
    pool_free(NULL);
}

// ---- the second model ----

enum { MOST_BYTES = 6000, MOST_THINGS = 6000 };

struct bytes {
    struct pool *pool;
    int64_t n, page_bytes, run_bytes;
    int32_t n_page, n_run, guarded;
    int32_t refs[2][MOST_THINGS]; // of pages
    int runs[MOST_THINGS];        // 0 free, 1 a lane's, 2 the cache's
};

static bool byte_in_run(const struct bytes *b, int64_t byte, int32_t run) {
    return byte < b->n - run * b->run_bytes && byte >= b->n - (run + 1) * b->run_bytes;
}

static bool overlap(const struct bytes *b, int32_t page, int32_t run) {
    for (int64_t i = 0; i < b->page_bytes; i++)
        if (byte_in_run(b, page * b->page_bytes + i, run)) return true;
    return false;
}

// Whether a page lies in a run that is held (by lanes only, or by anyone) or guarded.
static bool is_covered(const struct bytes *b, int32_t page, bool by_lanes) {
    for (int32_t r = 0; r < b->n_run; r++)
        if ((r == b->guarded || b->runs[r] == 1 || (b->runs[r] == 2 && !by_lanes)) && overlap(b, page, r)) return true;
    return false;
}

static bool page_free(const struct bytes *b, int32_t page) {
    return b->refs[0][page] + b->refs[1][page] == 0 && !is_covered(b, page, false);
}

static bool run_free(const struct bytes *b, int32_t run, bool of_lanes_only) {
    if (b->runs[run] == 1 || (b->runs[run] == 2 && !of_lanes_only)) return false;
    for (int32_t i = 0; i < b->n_page; i++)
        if (b->refs[HOLDER_LANE][i] + (of_lanes_only ? 0 : b->refs[HOLDER_CACHE][i]) > 0 && overlap(b, i, run))
            return false;
    return true;
}

static void check_all(const struct bytes *b) {
    struct pool_counts c;
    int32_t n_free = 0, n_open = 0, first_run = POOL_NONE;
    for (int32_t i = 0; i < b->n_page; i++) {
        n_free += page_free(b, i);
        n_open += b->refs[HOLDER_LANE][i] == 0 && !is_covered(b, i, true);
        assert_int_equal(pool_page_refs(b->pool, HOLDER_LANE, i), b->refs[HOLDER_LANE][i]);
    }
    for (int32_t r = b->n_run - 1; r >= 0; r--) {
        assert_int_equal(pool_run_is_free(b->pool, r), run_free(b, r, false));
        assert_int_equal(pool_run_is_open(b->pool, r), run_free(b, r, true));
        if (r != b->guarded && run_free(b, r, false)) first_run = r;
    }
    pool_get_counts(b->pool, &c);
    assert_int_equal(c.n_page_free, n_free);
    assert_int_equal(pool_count_open(b->pool), n_open);
    assert_int_equal(pool_find_free_run(b->pool), first_run);
    assert_true(pool_is_consistent(b->pool));
}

static void take_pages(struct bytes *b, int holder, int32_t n) {
    int32_t pages[MOST_THINGS], want[MOST_THINGS], n_free = 0;
    for (int32_t i = 0; i < b->n_page; i++)
        if (page_free(b, i)) want[n_free++] = i;
    assert_int_equal(pool_take_pages(b->pool, (enum holder)holder, n, pages), n <= n_free);
    for (int32_t i = 0; i < n && n <= n_free; i++) {
        assert_int_equal(pages[i], want[i]);
        b->refs[holder][pages[i]]++;
    }
}

static void change_page(struct bytes *b, int holder, int32_t page, bool hold) {
    if (hold && b->refs[0][page] + b->refs[1][page] > 0) {
        pool_hold_page(b->pool, (enum holder)holder, page);
        b->refs[holder][page]++;
    } else if (!hold && b->refs[holder][page] > 0) {
        pool_drop_page(b->pool, (enum holder)holder, page);
        b->refs[holder][page]--;
    }
}

static void change_run(struct bytes *b, int holder, int32_t run, uint64_t what) {
    if (b->runs[run] == 0) {
        if (!run_free(b, run, false)) return;
        pool_take_run(b->pool, (enum holder)holder, run);
        b->runs[run] = holder == HOLDER_LANE ? 1 : 2;
    } else if (what % 2 == 0) {
        pool_drop_run(b->pool, run);
        b->runs[run] = 0;
    } else {
        b->runs[run] = 3 - b->runs[run];
        pool_pass_run(b->pool, run, b->runs[run] == 1 ? HOLDER_LANE : HOLDER_CACHE);
    }
}

static void step(struct bytes *b, uint64_t bits) {
    int holder = (int)(bits >> 8 & 1);
    int32_t page = b->n_page > 0 ? (int32_t)((bits >> 16 & 0xffff) % (uint64_t)b->n_page) : 0;
    int32_t run = b->n_run > 0 ? (int32_t)((bits >> 32 & 0xffff) % (uint64_t)b->n_run) : 0;
    switch (bits & 7) {
    case 0: take_pages(b, holder, (int32_t)(bits >> 48) % (b->n_page / 4 + 2)); break;
    case 1:
    case 2:
    case 3: change_page(b, holder, page, false); break;
    case 4: change_page(b, holder, page, true); break;
    case 5:
    case 6:
        if (b->n_run > 0) change_run(b, holder, run, bits >> 48);
        break;
    default: b->guarded = bits >> 48 & 1 && b->n_run > 0 ? run : POOL_NONE; pool_guard_run(b->pool, b->guarded);
    }
}

static void test_random_walk(void **state) {
    (void)state;
    // pages smaller than runs, larger, equal, and neither a multiple of the other
    static const int64_t shapes[][3] = {{600, 10, 70}, {700, 150, 20}, {640, 64, 64}, {601, 7, 13}, {500, 120, 470}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct bytes *b = calloc(1, sizeof *b);
        *b = (struct bytes){.pool = create(shapes[s][0], shapes[s][1], shapes[s][2], 1000),
                            .n = shapes[s][0],
                            .page_bytes = shapes[s][1],
                            .run_bytes = shapes[s][2],
                            .guarded = POOL_NONE};
        b->n_page = (int32_t)(b->n / b->page_bytes);
        b->n_run = (int32_t)(b->n / b->run_bytes);
        for (uint64_t i = 0; i < 20000; i++) {
            step(b, random_bits(11, s, i));
            if (i % 16 == 0) check_all(b);
        }
        pool_free(b->pool);
        free(b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_come_from_the_bottom_and_runs_from_the_top),
        cmocka_unit_test(test_a_guarded_run_empties),
        cmocka_unit_test(test_what_only_the_cache_holds_is_open),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_random_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
