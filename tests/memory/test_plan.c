// The memory plan: what fits, what is refused, and that every number a refusal names really fits (cases C45, C59, C67).
#include "base/random.h"
#include "memory/ledger.h"
#include "memory/plan.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB ((int64_t)1 << 20)
#define GIB ((int64_t)1 << 30)

// The 0.8B shape, roughly: 6 attention layers with 2 heads of 256, 18 states of 1 MiB.
static struct plan_request small_model(void) {
    return (struct plan_request){.available_bytes = 8 * GIB,
                                 .reserve_bytes = 1 * GIB,
                                 .weight_bytes = 500 * MIB,
                                 .scratch_bytes = 300 * MIB,
                                 .page_bytes = 3 * MIB,
                                 .run_bytes = 20 * MIB,
                                 .page_rows = 256,
                                 .max_window = 8,
                                 .windows = true,
                                 .parallel = 4,
                                 .context_max = 262144};
}

// The budget by hand: pages of one window, times streams, beside weights and scratch.
static int64_t need(const struct plan_request *r, int64_t parallel, int64_t context) {
    int64_t pages = (context + r->max_window + r->page_rows - 1) / r->page_rows;
    return parallel * (pages * r->page_bytes + r->run_bytes) + r->weight_bytes + r->scratch_bytes;
}

static void test_context_that_fits_is_the_longest(void **state) {
    (void)state;
    struct plan_request r = small_model();
    struct plan p;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    int64_t budget = r.available_bytes - r.reserve_bytes;
    assert_int_equal(p.parallel, 4);
    assert_true(need(&r, 4, p.context) <= budget);
    assert_true(need(&r, 4, p.context + 1) > budget);
    assert_int_equal(p.used_bytes, need(&r, 4, p.context));
    assert_int_equal(p.pool_bytes, 4 * p.window_bytes);
}

static void test_context_is_bounded_by_the_checkpoint_and_the_family(void **state) {
    (void)state;
    struct plan_request r = small_model();
    struct plan p;
    r.available_bytes = 4096 * GIB;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    assert_int_equal(p.context, 262144);
    r.context_max = 1000000;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    assert_int_equal(p.context, PLAN_CONTEXT_MAX);
    r.context_max = 100;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    assert_int_equal(p.context, 100);
    r.context = 101;
    struct error e;
    assert_int_equal(plan_make(&r, &p, &e), STATUS_LIMIT);
    assert_non_null(strstr(e.text, "101"));
    assert_non_null(strstr(e.text, "100"));
}

static void test_caps(void **state) {
    (void)state;
    struct plan_request r = small_model();
    struct plan p;
    r.memory_cap = 2 * GIB;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    assert_true(p.used_bytes <= 2 * GIB);
    r.memory_cap = 0;
    r.kv_cap = 200 * MIB;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    assert_true(p.pool_bytes <= 200 * MIB);
    r.memory_cap = 100 * GIB; // a cap gives nothing that is not there
    r.kv_cap = 100 * GIB;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    assert_true(p.used_bytes <= r.available_bytes - r.reserve_bytes);
}

static void test_exactly_enough_is_enough(void **state) {
    (void)state;
    for (int32_t context = 1; context < 2000; context += 37) {
        struct plan_request r = small_model();
        struct plan p;
        r.context = context;
        r.available_bytes = r.reserve_bytes + need(&r, r.parallel, context);
        assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
        assert_int_equal(p.context, context);
        assert_int_equal(p.used_bytes, r.available_bytes - r.reserve_bytes);
        r.available_bytes--;
        assert_int_equal(plan_make(&r, &p, NULL), STATUS_LIMIT);
    }
}

// The number after `word` in a sentence, or 0.
static long number_after(const char *text, const char *word) {
    const char *at = strstr(text, word);
    return at == NULL ? 0 : strtol(at + strlen(word), NULL, 10);
}

static void test_what_a_refusal_names_fits(void **state) {
    (void)state;
    static const int32_t parallel[] = {1, 8, 64, 256, 1024, INT32_MAX}, context[] = {256, 4096, 131072, 262144};
    for (int64_t available = GIB; available <= 512 * GIB; available *= 2)
        for (int i = 0; i < 6; i++)
            for (int j = 0; j < 4; j++) {
                struct plan_request r = small_model();
                struct plan p;
                struct error e;
                r.available_bytes = available + r.reserve_bytes;
                r.parallel = parallel[i];
                r.context = context[j];
                enum status st = plan_make(&r, &p, &e);
                if (st == STATUS_OK) continue;
                assert_int_equal(st, STATUS_LIMIT);
                long n = number_after(e.text, "--parallel "), c = number_after(e.text, "--context ");
                struct plan_request fewer = r, shorter = r;
                fewer.parallel = (int32_t)n;
                shorter.context = (int32_t)c;
                if (n > 0) assert_int_equal(plan_make(&fewer, &p, NULL), STATUS_OK);
                fewer.parallel++;
                if (n > 0) assert_int_equal(plan_make(&fewer, &p, NULL), STATUS_LIMIT);
                if (c > 0) assert_int_equal(plan_make(&shorter, &p, NULL), STATUS_OK);
                shorter.context++;
                if (c > 0) assert_int_equal(plan_make(&shorter, &p, NULL), STATUS_LIMIT);
                assert_true(n > 0 || c > 0 || strstr(e.text, "not even one") != NULL);
            }
}

static void test_weights_alone_too_large(void **state) {
    (void)state;
    struct plan_request r = small_model();
    struct plan p;
    struct error e;
    r.weight_bytes = 15 * GIB;
    assert_int_equal(plan_make(&r, &p, &e), STATUS_LIMIT);
    assert_non_null(strstr(e.text, "15.00 GiB"));
    r.available_bytes = 0; // less than the reserve
    assert_int_equal(plan_make(&r, &p, &e), STATUS_LIMIT);
}

// Numbers of any size give a plan or a refusal, never an overflow (undefined behaviour is caught in the asan variant).
static void test_numbers_of_any_size(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 200000; i++) {
        struct plan_request r = small_model();
        r.available_bytes = (int64_t)(random_bits(1, i, 0) >> (1 + random_bits(1, i, 1) % 60));
        r.reserve_bytes = (int64_t)(random_bits(1, i, 2) >> (1 + random_bits(1, i, 3) % 60));
        r.memory_cap =
            random_bits(1, i, 4) % 3 ? 0 : (int64_t)(random_bits(1, i, 5) >> (1 + random_bits(1, i, 6) % 60));
        r.kv_cap = random_bits(1, i, 7) % 3 ? 0 : (int64_t)(random_bits(1, i, 8) >> (1 + random_bits(1, i, 9) % 60));
        r.parallel = 1 + (int32_t)(random_bits(1, i, 10) % INT32_MAX) / (1 << random_bits(1, i, 11) % 31);
        r.context = (int32_t)(random_bits(1, i, 12) % ((uint64_t)INT32_MAX + 1)) >> random_bits(1, i, 13) % 31;
        r.context_max = 1 + (int32_t)(random_bits(1, i, 14) % INT32_MAX);
        r.page_rows = 1 << random_bits(1, i, 15) % 13;
        r.page_bytes = r.page_rows * (int64_t)(1 + random_bits(1, i, 16) % 200000);
        r.windows = random_bits(1, i, 17) % 2;
        r.pages_all = random_bits(1, i, 18) % 2;
        r.host_is_device = random_bits(1, i, 19) % 2;
        r.cache_bytes = (int64_t)(random_bits(1, i, 20) % 3) - 1;
        if (r.cache_bytes > 0) r.cache_bytes = (int64_t)(random_bits(1, i, 21) >> (1 + random_bits(1, i, 22) % 60));
        struct plan p;
        struct error e;
        enum status st = plan_make(&r, &p, &e);
        if (st == STATUS_OK) {
            assert_true(p.pool_bytes >= 0 && p.pool_bytes <= p.left_bytes);
            assert_true(p.used_bytes <= r.available_bytes - r.reserve_bytes);
            assert_true(p.context > 0 && p.context <= r.context_max);
        } else {
            assert_int_equal(st, STATUS_LIMIT);
        }
    }
}

// ---- pages ----

static struct plan_request on_pages(bool all) {
    struct plan_request r = small_model();
    r.windows = false;
    r.pages_all = all;
    r.parallel = 8;
    r.context = 4096;
    return r;
}

static void test_the_pool_is_what_lanes_could_claim_or_what_is_left(void **state) {
    (void)state;
    for (int all = 0; all < 2; all++) {
        struct plan_request r = on_pages(all);
        struct plan p;
        assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
        assert_int_equal(p.window_bytes, 17 * 3 * MIB + 20 * MIB); // 4096 rows and 8 more
        assert_int_equal(p.pool_bytes, 8 * p.window_bytes);
        assert_int_equal(p.parts[PLAN_RUNS], 8 * 20 * MIB);
        assert_int_equal(p.n_pages, 8 * 17);
        assert_int_equal(p.n_run, 8 + PLAN_KEPT_RUNS);
        assert_int_equal(p.unused_bytes, p.left_bytes - p.pool_bytes);
        assert_int_equal(p.parallel, 8);
        r.kv_cap = 300 * MIB + 77; // less than all windows
        assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
        assert_int_equal(p.pool_bytes, 300 * MIB);
        // A lane of the least length takes 23 MiB; beside a window of 71 there is room for 9 of them.
        assert_int_equal(p.parallel, 8);
        r.kv_cap = 120 * MIB;
        assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
        assert_int_equal(p.parallel, all ? 5 : 3);
        r.kv_cap = 71 * MIB;
        assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
        assert_int_equal(p.parallel, all ? 3 : 1);
        r.kv_cap--;
        struct error e;
        assert_int_equal(plan_make(&r, &p, &e), all ? STATUS_OK : STATUS_LIMIT);
        if (!all) assert_non_null(strstr(e.text, "--context"));
        r.kv_cap = 20 * MIB; // a run and no page
        assert_int_equal(plan_make(&r, &p, &e), STATUS_LIMIT);
        r.kv_cap = 0;
        r.context = 0;
        assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
        assert_int_equal(p.context, 262144); // 3.02 GiB of 6.22
        assert_int_equal(p.parallel, 8);
    }
}

// Who names no context gets the longest that leaves as much to the other lanes, and to prompts that are kept.
static void test_a_context_that_nobody_named(void **state) {
    (void)state;
    struct plan_request r = on_pages(false);
    struct plan p, windows;
    r.context = 0;
    for (int staging = 0; staging < 3; staging += 2)
        for (int parallel = 1; parallel < 9; parallel++) {
            r.kv_cap = GIB;
            r.n_staging = staging;
            r.parallel = parallel;
            assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
            int64_t room = (p.left_bytes - staging * r.run_bytes) / (parallel > 1 ? 2 : 1);
            assert_true(p.window_bytes <= room && p.window_bytes + r.page_bytes > room);
            assert_int_equal(p.parallel, parallel);
            r.windows = true;
            assert_int_equal(plan_make(&r, &windows, NULL), STATUS_OK);
            assert_true(parallel > 2 ? p.context > windows.context : p.context == windows.context);
            r.windows = false;
        }
    r.kv_cap = 40 * MIB; // half of it holds no window: one lane has it all
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    assert_int_equal(p.parallel, 1);
    assert_true(p.window_bytes + r.page_bytes > p.left_bytes);
    r.pages_all = true; // nothing is set aside
    r.kv_cap = GIB;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    assert_true(p.window_bytes + r.page_bytes > p.left_bytes);
}

// Lanes that hold all they may leave runs for prompts that are kept, as far as there is memory.
static void test_staging_beside_pages(void **state) {
    (void)state;
    for (int all = 0; all < 2; all++) {
        struct plan_request r = on_pages(all);
        struct plan p;
        r.n_staging = 3;
        assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
        assert_int_equal(p.parts[PLAN_STAGING], 3 * 20 * MIB);
        assert_int_equal(p.pool_bytes, 8 * p.window_bytes + 3 * 20 * MIB);
        assert_int_equal(p.n_pages, 8 * 17);
        r.kv_cap = 8 * p.window_bytes + 50 * MIB;
        assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
        assert_int_equal(p.parts[PLAN_STAGING], 2 * 20 * MIB);
        r.kv_cap = 300 * MIB; // less than the lanes could claim
        assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
        assert_int_equal(p.parts[PLAN_STAGING], 0);
        assert_int_equal(p.pool_bytes, 300 * MIB);
    }
}

// A window of one position is shorter than the shortest prompt and reply.
static void test_the_shortest_window(void **state) {
    (void)state;
    struct plan_request r = small_model();
    struct plan p;
    r.windows = false;
    r.page_rows = r.max_window = 1;
    r.page_bytes = 64 * 1024;
    r.context = 1;
    for (int all = 0; all < 2; all++) {
        r.pages_all = all == 1;
        r.kv_cap = 0;
        assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
        r.kv_cap = p.window_bytes;
        assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
        assert_int_equal(p.parallel, 1);
    }
}

static void test_the_prompt_cache_in_the_plan(void **state) {
    (void)state;
    struct plan_request r = small_model();
    struct plan p;
    struct error e;
    r.context = 1024; // four windows of 35 MiB
    r.cache_bytes = PLAN_CACHE_DEFAULT;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    assert_int_equal(p.cache_bytes, PLAN_CACHE_BYTES); // a GPU's: host memory is no part of the plan
    assert_int_equal(p.parts[PLAN_CACHE], 0);
    r.host_bytes = 12 * GIB; // but what the host has bounds it
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    assert_int_equal(p.cache_bytes, 3 * GIB);
    assert_int_equal(p.parts[PLAN_CACHE], 0);
    r.cache_bytes = 12 * GIB;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    assert_int_equal(p.cache_bytes, 12 * GIB);
    r.cache_bytes = 12 * GIB + 1;
    assert_int_equal(plan_make(&r, &p, &e), STATUS_LIMIT);
    assert_non_null(strstr(e.text, "12.00 GiB of host memory"));
    r.cache_bytes = PLAN_CACHE_DEFAULT;
    r.host_is_device = true;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    int64_t left = r.available_bytes - r.reserve_bytes - r.weight_bytes - r.scratch_bytes;
    assert_int_equal(p.cache_bytes, left / 4);
    assert_int_equal(p.parts[PLAN_CACHE], left / 4);
    r.available_bytes = r.reserve_bytes + need(&r, 4, 1024) + MIB; // it makes way for streams
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    assert_int_equal(p.cache_bytes, MIB);
    assert_int_equal(p.unused_bytes, 0); // what it has, nobody else has
    assert_int_equal(p.used_bytes, r.available_bytes - r.reserve_bytes);
    r.cache_bytes = 2 * MIB; // but not when somebody asked for it
    assert_int_equal(plan_make(&r, &p, &e), STATUS_LIMIT);
    r.cache_bytes = 100 * GIB;
    assert_int_equal(plan_make(&r, &p, &e), STATUS_LIMIT);
    assert_non_null(strstr(e.text, "prompt cache"));
    r.cache_bytes = 0;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    r.available_bytes -= MIB;
    r.n_staging = 1; // and the staging of one state needs a run
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_LIMIT);
    r.available_bytes += 20 * MIB;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    assert_int_equal(p.parts[PLAN_STAGING], 20 * MIB);
    assert_int_equal(p.used_bytes, r.available_bytes - r.reserve_bytes);
    assert_int_equal(p.n_run, 5);
}

static void test_counts_of_streams(void **state) {
    (void)state;
    struct plan_request r = on_pages(true);
    struct plan p;
    r.context = 8192;
    assert_int_equal(plan_make(&r, &p, NULL), STATUS_OK);
    // 1000 rows and 8 more: 4 pages of 3 MiB and 20 MiB; a window: 33 pages
    assert_int_equal(plan_count_streams(&p, false, 1000, 320 * MIB), 10);
    assert_int_equal(plan_count_streams(&p, false, 1000, 320 * MIB - 1), 9);
    assert_int_equal(plan_count_streams(&p, true, 1000, 119 * 3 * MIB), 3);
    assert_int_equal(plan_count_streams(&p, true, 8193, GIB), 0);
    assert_int_equal(plan_count_streams(&p, false, 131072, 512 * 3 * MIB + 20 * MIB), 0);
    // The model takes no stream that is longer than its context, however much memory there is.
    assert_true(plan_count_streams(&p, false, r.context_max, 1024 * GIB) > 0);
    assert_int_equal(plan_count_streams(&p, false, r.context_max + 1, 1024 * GIB), 0);
}

// What the plan says fits makes a pool and a ledger, in which as many as it says are seated at once.
static void test_plans_can_be_followed(void **state) {
    (void)state;
    int n_made = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        struct plan_request r = small_model();
        r.windows = random_bits(5, i, 0) % 3 == 0;
        r.pages_all = random_bits(5, i, 1) % 2;
        r.page_rows = 1 + (int32_t)(random_bits(5, i, 2) % 600);
        r.page_bytes = 256 * (1 + (int64_t)(random_bits(5, i, 3) % 300));
        r.run_bytes = 256 * (1 + (int64_t)(random_bits(5, i, 4) % 3000));
        r.max_window = 1 + (int32_t)(random_bits(5, i, 5) % 16);
        r.parallel = 1 + (int32_t)(random_bits(5, i, 6) % 40);
        r.context = random_bits(5, i, 7) % 4 ? 2 + (int32_t)(random_bits(5, i, 8) % 3000) : 0;
        r.kv_cap = 1 + (int64_t)(random_bits(5, i, 9) % (uint64_t)(64 * MIB));
        r.n_staging = (int32_t)(random_bits(5, i, 10) % 4);
        struct plan p;
        if (plan_make(&r, &p, NULL) != STATUS_OK) continue;
        n_made++;
        struct pool_shape shape = {
            .bytes = p.pool_bytes, .page_bytes = p.page_bytes, .run_bytes = p.run_bytes, .n_run = p.n_run};
        struct ledger_settings s = {.windows = p.windows,
                                    .pages_all = p.pages_all,
                                    .parallel = p.parallel,
                                    .context = p.context,
                                    .max_window = p.max_window,
                                    .page_rows = p.page_rows};
        struct ledger *l = NULL;
        struct claim claims[64];
        assert_int_equal(pool_create(&shape, &s.pool, NULL), STATUS_OK);
        assert_int_equal(ledger_create(&s, &l, NULL), STATUS_OK);
        for (int k = 0; k < p.parallel; k++) {
            int64_t most, rows = p.windows || (k == p.parallel - 1 && !p.pages_all) ? p.context : 2;
            claims[k] = (struct claim){.prompt = rows - 1, .reply = 1};
            assert_int_equal(ledger_check(l, rows - 1, 1, &most), LEDGER_FITS);
            ledger_enqueue(l, &claims[k]);
            assert_ptr_equal(ledger_admit(l, 0), &claims[k]);
        }
        for (int k = 0; k < p.parallel; k++) ledger_release(l, &claims[k]);
        ledger_free(l);
        pool_free(s.pool);
    }
    assert_true(n_made > 1000);
}

static void test_reserve(void **state) {
    (void)state;
    int64_t reserve = 0;
    unsetenv("TF_MEMORY_RESERVE_GIB");
    assert_int_equal(plan_reserve(4 * GIB, PLAN_RESERVE_CPU, &reserve, NULL), STATUS_OK);
    assert_int_equal(reserve, GIB);
    assert_int_equal(plan_reserve(64 * GIB, PLAN_RESERVE_CPU, &reserve, NULL), STATUS_OK);
    assert_int_equal(reserve, 64 * GIB / 10);
    static const struct {
        const char *text;
        int64_t want;
    } good[] = {{"0", 0}, {"2", 2 * GIB}, {"0.5", GIB / 2}};
    for (int i = 0; i < 3; i++) {
        setenv("TF_MEMORY_RESERVE_GIB", good[i].text, 1);
        assert_int_equal(plan_reserve(64 * GIB, PLAN_RESERVE_CPU, &reserve, NULL), STATUS_OK);
        assert_int_equal(reserve, good[i].want);
    }
    static const char *const bad[] = {"", " ", "-1", "x", "2x", "nan", "inf", "1e30"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error e;
        setenv("TF_MEMORY_RESERVE_GIB", bad[i], 1);
        assert_int_equal(plan_reserve(64 * GIB, PLAN_RESERVE_CPU, &reserve, &e), STATUS_INVALID);
        assert_non_null(strstr(e.text, "TF_MEMORY_RESERVE_GIB"));
    }
    unsetenv("TF_MEMORY_RESERVE_GIB");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context_that_fits_is_the_longest),
        cmocka_unit_test(test_context_is_bounded_by_the_checkpoint_and_the_family),
        cmocka_unit_test(test_caps),
        cmocka_unit_test(test_exactly_enough_is_enough),
        cmocka_unit_test(test_what_a_refusal_names_fits),
        cmocka_unit_test(test_weights_alone_too_large),
        cmocka_unit_test(test_numbers_of_any_size),
        cmocka_unit_test(test_the_pool_is_what_lanes_could_claim_or_what_is_left),
        cmocka_unit_test(test_a_context_that_nobody_named),
        cmocka_unit_test(test_staging_beside_pages),
        cmocka_unit_test(test_the_shortest_window),
        cmocka_unit_test(test_the_prompt_cache_in_the_plan),
        cmocka_unit_test(test_counts_of_streams),
        cmocka_unit_test(test_plans_can_be_followed),
        cmocka_unit_test(test_reserve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
