// Every allocation of the base layer fails in turn: each call says so, and nothing leaks.
#include "base/arena.h"
#include "base/buffer.h"
#include "base/mapped_file.h"
#include "base/queue.h"
#include "base/workers.h"
#include "tests/alloc_fail.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

// An operation: true when it succeeded. It frees what it made either way.
typedef bool operation(void);

static bool use_arena(void) {
    struct arena *a = arena_create(0);
    bool ok =
        a && arena_alloc(a, 10) && arena_alloc(a, 100000) && arena_printf(a, "%0200000d", 1) && arena_copy(a, "x", 1);
    if (a) arena_reset(a);
    arena_free(a);
    return ok;
}

static bool use_buffer(void) {
    struct buffer b;
    buffer_init(&b, 0);
    for (int i = 0; i < 100; i++) {
        size_t before = b.n;
        if (!buffer_printf(&b, "number %d;", i)) assert_int_equal(b.n, before);
    }
    char *text = buffer_take(&b, NULL);
    free(text);
    return text;
}

static bool use_queue(void) {
    struct queue *q = NULL;
    struct error e;
    enum status status = queue_create(10, 10, &q, &e);
    if (status != STATUS_OK) assert_int_equal(e.code, STATUS_MEMORY);
    if (status != STATUS_OK) assert_null(q);
    queue_free(q);
    return status == STATUS_OK;
}

static bool use_workers(void) {
    struct workers *w = NULL;
    struct error e;
    enum status status = workers_create(3, &w, &e);
    if (status != STATUS_OK) assert_int_equal(e.code, STATUS_MEMORY);
    if (status != STATUS_OK) assert_null(w);
    workers_free(w);
    return status == STATUS_OK;
}

static bool use_file_read(void) {
    char *data = NULL;
    size_t n;
    struct error e;
    enum status status = file_read("LICENSE", 1 << 20, &data, &n, &e);
    if (status != STATUS_OK) assert_int_equal(e.code, STATUS_MEMORY);
    if (status != STATUS_OK) assert_null(data);
    free(data);
    return status == STATUS_OK;
}

static void sweep(operation *run, long at_least) {
    for (long n = 1;; n++) {
        alloc_fail_at(n);
        bool ok = run();
        bool failed = alloc_failed();
        long asked = alloc_count();
        alloc_fail_off();
        assert_int_equal(ok, !failed);
        if (failed) continue;
        assert_true(asked >= at_least && asked == n - 1);
        return;
    }
}

static void test_sweep(void **state) {
    (void)state;
    sweep(use_arena, 4);
    sweep(use_buffer, 4);
    sweep(use_queue, 2);
    sweep(use_workers, 2);
    sweep(use_file_read, 1);
}

static void test_shim(void **state) {
    (void)state;
    alloc_fail_from(2);
    void *first = malloc(10);
    void *second = calloc(1, 1), *third = strdup("x"), *fourth = aligned_alloc(64, 64);
    void *grown = realloc(NULL, 20);
    long count = alloc_count();
    alloc_fail_off();
    assert_non_null(first);
    assert_null(second);
    assert_null(third);
    assert_null(fourth);
    assert_null(grown);
    assert_int_equal(count, 5);
    free(first);
    char *copy = strndup("hello", 3);
    assert_string_equal(copy, "hel");
    free(copy);
    assert_int_equal(alloc_count(), 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shim), cmocka_unit_test(test_sweep)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
