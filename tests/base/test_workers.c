#include "base/workers.h"
#include "base/clock.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

struct job {
    unsigned char *hits; // [n_items]
    long grain, n_items;
    int n_threads;
    _Atomic int wrong;
};

static void count_hits(void *context, long first, long last, int thread) {
    struct job *job = context;
    if (thread < 0 || thread >= job->n_threads || first < 0 || first >= last || last > job->n_items ||
        last - first > job->grain || first % job->grain != 0)
        job->wrong++;
    for (long i = first; i < last; i++) job->hits[i]++;
}

static void check_loop(struct workers *w, long n_items, long grain) {
    struct job job = {
        .hits = calloc((size_t)n_items + 1, 1), .grain = grain, .n_items = n_items, .n_threads = workers_count(w)};
    workers_run(w, n_items, grain, count_hits, &job);
    assert_int_equal(job.wrong, 0);
    for (long i = 0; i < n_items; i++) assert_int_equal(job.hits[i], 1);
    assert_int_equal(job.hits[n_items], 0);
    free(job.hits);
}

static void test_every_item_once(void **state) {
    (void)state;
    static const int thread_counts[] = {1, 2, 3, 8};
    for (size_t t = 0; t < sizeof thread_counts / sizeof *thread_counts; t++) {
        struct workers *w;
        struct error e;
        assert_int_equal(workers_create(thread_counts[t], &w, &e), STATUS_OK);
        assert_int_equal(workers_count(w), thread_counts[t]);
        for (long n = 0; n < 40; n++)
            for (long grain = 1; grain < 12; grain += 3) check_loop(w, n, grain);
        check_loop(w, 100003, 17);
        workers_free(w);
    }
    workers_free(NULL);
}

static void add_one(void *context, long first, long last, int thread) {
    (void)thread;
    long *values = context;
    for (long i = first; i < last; i++) values[i]++;
}

// Many short loops in a row, with pauses that let the helpers fall asleep now and then: no loop may lose an item, and
// what one loop wrote is seen by the next whichever thread runs it.
static void test_many_loops(void **state) {
    (void)state;
    static const int thread_counts[] = {2, 5};
    for (size_t t = 0; t < sizeof thread_counts / sizeof *thread_counts; t++) {
        struct workers *w;
        assert_int_equal(workers_create(thread_counts[t], &w, NULL), STATUS_OK);
        long values[64] = {0};
        const int n_loops = 5000;
        for (int i = 0; i < n_loops; i++) {
            workers_run(w, 64, 1 + i % 3, add_one, values);
            if (i % 500 == 0) clock_sleep_ns(500000);
        }
        for (int i = 0; i < 64; i++) assert_int_equal(values[i], n_loops);
        workers_free(w);
    }
}

static void spin_until_two(void *context, long first, long last, int thread) {
    (void)first, (void)last;
    _Atomic int *inside = context;
    atomic_fetch_add(inside, 1);
    while (atomic_load(inside) < 2) clock_sleep_ns(1000);
    if (thread != 0) clock_sleep_ns(1000000);
}

// Two items that wait for each other can only end when two threads work. The helper then takes so long that the caller
// falls asleep over it.
static void test_threads_work_together(void **state) {
    (void)state;
    struct workers *w;
    assert_int_equal(workers_create(2, &w, NULL), STATUS_OK);
    for (int i = 0; i < 20; i++) {
        _Atomic int inside = 0;
        workers_run(w, 2, 1, spin_until_two, &inside);
        if (i % 5 == 0) clock_sleep_ns(300000);
    }
    workers_free(w);
}

static void test_refusals(void **state) {
    (void)state;
    struct workers *w = NULL;
    struct error e;
    assert_int_equal(workers_create(0, &w, &e), STATUS_INVALID);
    assert_int_equal(workers_create(100000, &w, &e), STATUS_INVALID);
    assert_null(w);
    assert_int_equal(workers_create(4, &w, &e), STATUS_OK);
    workers_free(w); // without ever running
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_once),
        cmocka_unit_test(test_many_loops),
        cmocka_unit_test(test_threads_work_together),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
