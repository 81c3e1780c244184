// Every allocation of reading a reply and of searching for stop strings fails in turn: each call says so, and nothing
// leaks or is reported wrongly.
#include "format/stopper.h"
#include "format/toolcall.h"

#include "tests/alloc_fail.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char tools_text[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
                                 "\"s\":{\"type\":\"string\"},\"o\":{\"type\":\"object\"}}}}}]";

static const char reply[] =
    "Well.\n</think>\n\nSure, this is long enough to need more than the first buffer. "
    "<tool_call>\n<function=f>\n<parameter=s>\nA text that is longer than the first buffer of the "
    "arguments.\n</parameter>\n"
    "<parameter=o>\n{\"a\": [1, 2.5, null, "
    "\"x\"]}\n</parameter>\n<parameter=q>\n\"\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"o\": {\"b\": [true, \"y\"]}}}\n</tool_call>\nDone.";

static void *allocate(size_t n) { return malloc(n); }

static enum status count_bytes(void *user, const struct toolcall_event *e) { // allocates nothing itself
    size_t *sum = user;
    for (size_t i = 0; i < e->n; i++) *sum = *sum * 31 + (unsigned char)e->text[i];
    *sum = *sum * 31 + e->kind;
    return STATUS_OK;
}

static enum status read_reply(const json_t *tools, size_t *sum, struct error *e) {
    struct toolcall_options o = {.starts_in_think = true, .tools = tools};
    struct toolcall_parser *p = NULL;
    enum status status = toolcall_parser_create(&o, count_bytes, sum, &p, e);
    for (size_t at = 0; status == STATUS_OK && at < sizeof reply - 1; at += 16) {
        size_t left = sizeof reply - 1 - at;
        status = toolcall_parser_feed(p, reply + at, left < 16 ? left : 16);
    }
    if (status == STATUS_OK) status = toolcall_parser_finish(p);
    toolcall_parser_free(p);
    return status;
}

static void test_toolcall(void **state) {
    (void)state;
    json_t *tools = json_loads(tools_text, 0, NULL);
    assert_non_null(tools);
    size_t whole = 0;
    assert_int_equal(read_reply(tools, &whole, NULL), STATUS_OK);
    for (long n = 1;; n++) {
        struct error e = {0};
        size_t sum = 0;
        alloc_fail_at(n);
        enum status status = read_reply(tools, &sum, &e);
        bool failed = alloc_failed();
        alloc_fail_off();
        assert_int_equal(status, failed ? STATUS_MEMORY : STATUS_OK);
        if (!failed) {
            assert_int_equal(sum, whole);
            assert_true(n > 20);
            break;
        }
    }
    json_decref(tools);
}

static void test_stopper(void **state) {
    (void)state;
    json_t *stop = json_loads("[\"END\", \"STOP\"]", 0, NULL);
    assert_non_null(stop);
    struct json_view view = json_root(stop);
    for (long n = 1;; n++) {
        struct stopper *s = NULL;
        struct buffer out;
        struct error e = {0};
        size_t used;
        buffer_init(&out, 0);
        alloc_fail_at(n);
        enum status status = stopper_create(&view, &s, &e);
        if (status == STATUS_OK) {
            stopper_feed(s, reply, sizeof reply - 1, &out, &used);
            stopper_flush(s, &out);
        }
        bool failed = alloc_failed();
        alloc_fail_off();
        assert_int_equal(failed, status == STATUS_MEMORY || out.failed);
        stopper_free(s);
        buffer_free(&out);
        if (!failed) break;
    }
    json_decref(stop);
}

int main(void) {
    json_set_alloc_funcs(allocate, free);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_toolcall), cmocka_unit_test(test_stopper)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
