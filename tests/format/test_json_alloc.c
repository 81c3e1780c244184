// Every allocation of parsing and writing JSON fails in turn: each call says so, and nothing leaks.
#include "format/json.h"

#include "tests/alloc_fail.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char text[] =
    "{\"a\":[1,2.5,\"x\\u00e9\",null,true,{\"b\":{\"c\":[]}}],\"d\":\"long enough to need a second buffer "
    "while it is being read, since the first is small\",\"e\":[0,1,2,3,4,5,6,7,8,9,10,11]}";

static void test_parse(void **state) {
    (void)state;
    for (long n = 1;; n++) {
        json_t *value = NULL;
        struct error e = {0};
        alloc_fail_at(n);
        enum status status = json_parse(text, sizeof text - 1, 1000, 0, &value, &e);
        bool failed = alloc_failed();
        alloc_fail_off();
        assert_int_equal(status, failed ? STATUS_MEMORY : STATUS_OK);
        assert_int_equal(value == NULL, failed);
        json_decref(value);
        if (!failed) break;
        assert_int_equal(e.code, STATUS_MEMORY);
    }
}

static void test_write(void **state) {
    (void)state;
    json_t *value = NULL;
    assert_int_equal(json_parse(text, sizeof text - 1, 1000, 0, &value, NULL), STATUS_OK);
    for (long n = 1;; n++) {
        struct buffer b;
        buffer_init(&b, 0);
        alloc_fail_at(n);
        bool ok = json_write(&b, value, JSON_STYLE_INDENT);
        bool failed = alloc_failed();
        alloc_fail_off();
        assert_int_equal(ok, !failed);
        assert_int_equal(b.failed, failed);
        buffer_free(&b);
        if (!failed) break;
    }
    json_decref(value);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parse), cmocka_unit_test(test_write)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
