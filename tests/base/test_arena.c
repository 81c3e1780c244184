#include "base/arena.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void test_alignment_and_contents(void **state) {
    (void)state;
    struct arena *a = arena_create(0);
    assert_non_null(a);
    unsigned char *parts[500];
    for (size_t i = 0; i < 500; i++) {
        parts[i] = arena_alloc(a, i * 37 + 1);
        assert_non_null(parts[i]);
        assert_int_equal((uintptr_t)parts[i] % 64, 0);
        memset(parts[i], (int)(i & 0xff), i * 37 + 1);
    }
    for (size_t i = 0; i < 500; i++) { // nothing overlaps
        assert_int_equal(parts[i][0], i & 0xff);
        assert_int_equal(parts[i][i * 37], i & 0xff);
    }
    assert_true(arena_used(a) >= 499 * 500 / 2 * 37);
    assert_ptr_not_equal(arena_alloc(a, 0), arena_alloc(a, 0));
    arena_free(a);
    arena_free(NULL);
}

static void test_limit(void **state) {
    (void)state;
    const size_t limit = 100000;
    struct arena *a = arena_create(limit);
    assert_null(arena_alloc(a, limit)); // no room for the block's header
    assert_non_null(arena_alloc(a, 1)); // and a refusal does no harm
    size_t n = 0;
    while (arena_alloc(a, 1000)) n++;
    assert_in_range(n, 90, 99); // a last, smaller block uses what is left
    while (arena_alloc(a, 1)) n++;
    assert_true(arena_used(a) <= limit);
    arena_reset(a);
    assert_int_equal(arena_used(a), 0);
    assert_non_null(arena_alloc(a, 50000));
    arena_free(a);

    a = arena_create(10); // below the size of any block
    assert_null(arena_alloc(a, 1));
    arena_reset(a);
    arena_free(a);
}

static void test_huge_sizes(void **state) {
    (void)state;
    struct arena *a = arena_create(0);
    assert_null(arena_alloc(a, SIZE_MAX));
    assert_null(arena_alloc(a, SIZE_MAX / 2 + 1));
    assert_null(arena_alloc_zero(a, SIZE_MAX / 2, 3));
    assert_null(arena_alloc_zero(a, (size_t)1 << 33, (size_t)1 << 33));
    assert_null(arena_copy(a, "x", SIZE_MAX));
    arena_free(a);
}

static void test_reset_keeps_first_block(void **state) {
    (void)state;
    struct arena *a = arena_create(0);
    void *first = arena_alloc(a, 100);
    memset(first, 1, 100);
    for (int i = 0; i < 100; i++) assert_non_null(arena_alloc(a, 100000));
    arena_reset(a);
    assert_ptr_equal(arena_alloc(a, 100), first);
    arena_reset(a);
    unsigned char *zero = arena_alloc_zero(a, 10, 10);
    assert_ptr_equal(zero, first);
    for (int i = 0; i < 100; i++) assert_int_equal(zero[i], 0);
    arena_free(a);
}

static void test_text(void **state) {
    (void)state;
    struct arena *a = arena_create(0);
    assert_string_equal(arena_copy(a, "hello world", 5), "hello");
    assert_string_equal(arena_copy(a, NULL, 0), "");
    assert_string_equal(arena_printf(a, "%d-%s", 42, "x"), "42-x");
    char *big = arena_printf(a, "%050000d", 1);
    assert_int_equal(strlen(big), 50000);
    arena_free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alignment_and_contents),  cmocka_unit_test(test_limit), cmocka_unit_test(test_huge_sizes),
        cmocka_unit_test(test_reset_keeps_first_block), cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
