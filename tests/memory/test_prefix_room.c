// What nearly all of a pool, or of the host tier, is asked for: claims, and entries of the prompt cache.
#include "tests/memory/world.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static const struct prefix_marks no_marks = {0};

static void submit(struct world *w, int i, int32_t n, int32_t reply, int32_t id) {
    int32_t ids[WORLD_ROWS];
    for (int32_t k = 0; k < n; k++) ids[k] = id;
    assert_true(world_submit(w, &w->clients[i], 0, ids, n, reply, 0, &no_marks));
}

// Five pages; the two uppermost runs lie above them, the third one over the last page.
static struct world *open_world(bool share, int64_t *most) {
    struct world_shape shape = {.pages_all = true,
                                .share = share,
                                .parallel = 4,
                                .context = 2000,
                                .max_window = 8,
                                .page_rows = 256,
                                .pool_rows = 1024,
                                .pool_runs = 6};
    struct world *w = malloc(sizeof *w);
    world_open(w, &shape);
    assert_int_equal(ledger_check(w->ledger, 1, 1, most), LEDGER_FITS);
    assert_int_equal(*most, 5 * 256 - 8);
    return w;
}

static void close_world(struct world *w) {
    world_check(w);
    world_close(w);
    free(w);
}

// Kept states lie in the first two runs, so the one that is free first is the third: beside it there are four pages.
static void test_the_free_run_is_over_a_page_that_is_needed(void **state) {
    (void)state;
    int64_t most;
    struct world *w = open_world(true, &most);
    submit(w, 0, 100, 4, 1);
    world_admit(w, false);
    world_prompt(w, &w->clients[0]); // its state is kept in run 1
    submit(w, 1, 100, 4, 2);
    world_admit(w, false);
    world_end(w, &w->clients[0]);
    world_prompt(w, &w->clients[1]); // and this one's in run 0
    world_end(w, &w->clients[1]);
    struct prefix_counts c;
    prefix_get_counts(w->prefix, &c);
    assert_int_equal(c.n_in_pool, 2);
    assert_int_equal(pool_find_free_run(w->pool), 2);
    submit(w, 2, (int32_t)most - 4, 4, 3);
    submit(w, 3, 100, 4, 4);
    world_admit(w, false);
    assert_int_equal(w->clients[2].phase, CLIENT_PROMPT); // nobody else is seated: it would wait for ever
    world_prompt(w, &w->clients[2]);
    world_end(w, &w->clients[2]);
    world_admit(w, false);
    assert_int_equal(w->clients[3].phase, CLIENT_PROMPT);
    world_prompt(w, &w->clients[3]);
    world_end(w, &w->clients[3]);
    close_world(w);
}

// Streams have the first two runs when the claim comes: the run that is kept for it is one of these all the same, and
// no drip of short claims passes it for ever.
static void test_the_heads_run_is_one_that_it_can_have(void **state) {
    (void)state;
    int64_t most;
    struct world *w = open_world(false, &most);
    for (int i = 0; i < 2; i++) submit(w, i, 100, 4, i);
    world_admit(w, false);
    submit(w, 2, (int32_t)most - 4, 4, 2);
    world_admit(w, false);
    assert_int_equal(w->clients[2].phase, CLIENT_WAITING);
    for (int i = 0; i < 2; i++) {
        submit(w, 3 + i, 100, 4, 3);
        world_admit(w, false);
        world_end(w, &w->clients[i]);
    }
    world_admit(w, false);
    assert_int_equal(w->clients[2].phase, CLIENT_PROMPT); // all that were there before it have ended
    for (int i = 2; i < 5; i++) {
        world_prompt(w, &w->clients[i]);
        world_end(w, &w->clients[i]);
        world_admit(w, false);
    }
    close_world(w);
}

// The host tier has room for 63 pages: a beginning of 31 that others share, three ends of 4, and not for an end of 31
// beside the beginning. That end takes nobody's place.
static void test_what_cannot_fit_evicts_nothing(void **state) {
    (void)state;
    static const struct world_shape shape = {.pages_all = true,
                                             .share = true,
                                             .parallel = 4,
                                             .context = 2000,
                                             .max_window = 8,
                                             .page_rows = 64,
                                             .pool_rows = 16384,
                                             .pool_runs = 40,
                                             .host_entries = 1};
    static const int32_t rows[] = {1985, 257, 257, 257, 1985};
    static const int32_t in_host[] = {1, 2, 3, 4, 4};
    struct world *w = malloc(sizeof *w);
    struct prefix_counts c;
    int32_t ids[WORLD_ROWS];
    world_open(w, &shape);
    for (int i = 0; i < 5; i++) {
        struct prefix_marks marks = {.system_end = i == 0 ? 1984 : 0};
        for (int32_t k = 0; k < rows[i]; k++) ids[k] = 10 + i;
        assert_true(world_submit(w, &w->clients[0], 0, ids, rows[i], 4, 0, &marks));
        world_admit(w, false);
        world_prompt(w, &w->clients[0]);
        world_end(w, &w->clients[0]);
        while (world_write(w, true), w->writing) world_write(w, false);
        prefix_get_counts(w->prefix, &c);
        assert_int_equal(c.n_in_host, in_host[i]);
        assert_int_equal(c.n_in_pool, i + 1);
    }
    close_world(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_free_run_is_over_a_page_that_is_needed),
        cmocka_unit_test(test_the_heads_run_is_one_that_it_can_have),
        cmocka_unit_test(test_what_cannot_fit_evicts_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
