// Fails each allocation of the memory layer in turn: what is created says so and leaks nothing, and a prompt cache
// without memory for an entry only keeps less.
#include "memory/ledger.h"
#include "tests/alloc_fail.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const struct pool_shape shape = {.bytes = 64 * 1024, .page_bytes = 1024, .run_bytes = 2048, .n_run = 8};

struct parts {
    struct pool *pool;
    struct prefix *prefix;
    struct ledger *ledger;
    struct text *text;
};

static enum status create_all(struct parts *p, struct error *e) {
    static const int32_t ids[200] = {0};
    enum status s = pool_create(&shape, &p->pool, e);
    struct prefix_settings prefix = {.pool = p->pool,
                                     .share = true,
                                     .page_rows = 64,
                                     .page_bytes = 1024,
                                     .kept_bytes = 1024,
                                     .host_bytes = 16384,
                                     .grid_rows = 64};
    if (s == STATUS_OK) s = prefix_create(&prefix, &p->prefix, e);
    struct ledger_settings ledger = {.pages_all = true,
                                     .parallel = 4,
                                     .context = 512,
                                     .max_window = 1,
                                     .page_rows = 64,
                                     .pool = p->pool,
                                     .prefix = p->prefix};
    if (s == STATUS_OK) s = ledger_create(&ledger, &p->ledger, e);
    if (s == STATUS_OK) s = text_create(1, ids, 200, &p->text, e);
    return s;
}

static void free_all(struct parts *p) {
    ledger_free(p->ledger);
    prefix_free(p->prefix);
    pool_free(p->pool);
    text_free(p->text);
}

static void test_creation(void **state) {
    (void)state;
    long n_failed = 0;
    for (long n = 1;; n++) {
        struct parts p = {0};
        struct error e;
        alloc_fail_at(n);
        enum status s = create_all(&p, &e);
        bool failed = alloc_failed();
        alloc_fail_off();
        assert_int_equal(s, failed ? STATUS_MEMORY : STATUS_OK);
        assert_true(!failed || p.text == NULL);
        free_all(&p);
        if (!failed) break;
        n_failed++;
    }
    assert_true(n_failed >= 12);
}

// Seating, keeping and writing go on when entries find no memory.
static void test_keeping(void **state) {
    (void)state;
    for (long n = 1;; n++) {
        struct parts p = {0};
        struct prefix_cut cuts[PREFIX_MAX_CUTS];
        struct prefix_keep keeps[4];
        struct prefix_write write;
        struct prefix_counts c;
        assert_int_equal(create_all(&p, NULL), STATUS_OK);
        struct claim claim = {.prompt = 200, .reply = 1, .text = p.text, .cuts = cuts};
        claim.n_cut = prefix_choose_cuts(p.prefix, 200, &(struct prefix_marks){0}, cuts);
        assert_int_equal(claim.n_cut, 3);
        ledger_enqueue(p.ledger, &claim);
        alloc_fail_at(n);
        assert_ptr_equal(ledger_admit(p.ledger, 0), &claim);
        ledger_end_resume(p.ledger, &claim, true);
        int32_t n_keep = prefix_begin_keep(p.prefix, claim.lane, 0, 200, keeps, 4);
        prefix_end_keep(p.prefix, claim.lane, claim.pages);
        while (prefix_begin_write(p.prefix, &write)) prefix_end_write(p.prefix, &write, true);
        bool failed = alloc_failed();
        alloc_fail_off();
        prefix_get_counts(p.prefix, &c);
        assert_int_equal(n_keep, failed ? 2 : 3);
        assert_int_equal(c.n_kept, n_keep);
        assert_int_equal(c.n_no_run, failed);
        ledger_release(p.ledger, &claim);
        assert_true(pool_is_consistent(p.pool));
        free_all(&p);
        if (!failed) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_creation), cmocka_unit_test(test_keeping)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
