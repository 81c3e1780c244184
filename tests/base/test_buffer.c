#include "base/buffer.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void test_append(void **state) {
    (void)state;
    struct buffer b;
    buffer_init(&b, 0);
    assert_null(b.data);
    for (int i = 0; i < 10000; i++) assert_true(buffer_append(&b, "ab\0d", 4));
    assert_int_equal(b.n, 40000);
    for (size_t i = 0; i < b.n; i += 4) assert_memory_equal(b.data + i, "ab\0d", 4);
    assert_int_equal(b.data[b.n], 0);
    buffer_clear(&b);
    assert_int_equal(b.n, 0);
    assert_true(buffer_append_text(&b, "text"));
    assert_true(buffer_printf(&b, "<%d%s>", 12, "x"));
    assert_string_equal(b.data, "text<12x>");
    assert_true(buffer_append(&b, NULL, 0));
    buffer_free(&b);
    assert_null(b.data);
}

static void test_limit(void **state) {
    (void)state;
    struct buffer b;
    buffer_init(&b, 100);
    char block[101];
    memset(block, 'x', sizeof block);
    assert_true(buffer_append(&b, block, 60));
    assert_false(buffer_append(&b, block, 41));
    assert_true(b.failed);
    assert_int_equal(b.n, 60);
    assert_false(buffer_append(&b, block, 1)); // a hole would be worse than a stop
    assert_false(buffer_printf(&b, "y"));
    assert_int_equal(b.n, 60);
    buffer_clear(&b);
    assert_false(b.failed);
    assert_true(buffer_append(&b, block, 60));
    assert_true(buffer_append(&b, block, 40)); // the limit itself fits
    assert_int_equal(strlen(b.data), 100);
    assert_false(buffer_printf(&b, "%d", 1));
    assert_int_equal(b.n, 100);
    assert_null(buffer_take(&b, NULL));
    assert_int_equal(b.n, 0);
    assert_false(b.failed);
    assert_int_equal(b.limit, 100);
    assert_false(buffer_append(&b, block, SIZE_MAX)); // refused before a byte is read
    buffer_free(&b);
}

static void test_remove_front(void **state) {
    (void)state;
    struct buffer b;
    buffer_init(&b, 0);
    buffer_remove_front(&b, 5);
    buffer_append_text(&b, "0123456789");
    buffer_remove_front(&b, 4);
    assert_string_equal(b.data, "456789");
    buffer_remove_front(&b, 100);
    assert_string_equal(b.data, "");
    assert_int_equal(b.n, 0);
    buffer_free(&b);
}

static void test_take(void **state) {
    (void)state;
    struct buffer b;
    buffer_init(&b, 0);
    size_t n = 9;
    char *text = buffer_take(&b, &n);
    assert_string_equal(text, "");
    assert_int_equal(n, 0);
    free(text);
    buffer_append_text(&b, "mine");
    text = buffer_take(&b, &n);
    assert_string_equal(text, "mine");
    assert_int_equal(n, 4);
    assert_null(b.data);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_remove_front),
        cmocka_unit_test(test_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
