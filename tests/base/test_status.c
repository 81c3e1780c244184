#include "base/status.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
// cmocka wants the four standard headers first.
#include <cmocka.h>

static void test_set(void **state) {
    (void)state;
    struct error e;
    assert_int_equal(error_set(&e, STATUS_INVALID, "%s: bad %d", "a.json", 7), STATUS_INVALID);
    assert_int_equal(e.code, STATUS_INVALID);
    assert_string_equal(e.text, "a.json: bad 7");
    assert_int_equal(error_set(NULL, STATUS_IO, "nobody reads this"), STATUS_IO);
    assert_int_equal(error_memory(&e), STATUS_MEMORY);
    assert_string_equal(e.text, "out of memory");
}

static void test_cleans_text(void **state) {
    (void)state;
    static const struct {
        const char *raw, *clean;
    } cases[] = {
        {"line\nbreak\ttab\x7f", "line?break?tab?"},
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xff\xfe", "??"},
        {"\xc0\xaf", "??"},           // overlong
        {"\xe0\x80\xaf", "???"},      // overlong
        {"\xed\xa0\x80", "???"},      // a surrogate
        {"\xf4\x90\x80\x80", "????"}, // past U+10FFFF
        {"\xc2\x85", "??"},           // a control character of two bytes
        {"cut \xe2\x82", "cut ??"},
        {"\x1b[31m", "?[31m"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error e;
        error_set(&e, STATUS_INVALID, "%s", cases[i].raw);
        assert_string_equal(e.text, cases[i].clean);
    }
}

static void test_cuts_at_characters(void **state) {
    (void)state;
    for (int lead = 0; lead < 8; lead++) {
        char raw[2048];
        memset(raw, 'x', (size_t)lead);
        for (size_t i = (size_t)lead; i + 4 < sizeof raw; i += 4) memcpy(raw + i, "\xf0\x9f\x98\x80\0", 5);
        struct error e;
        error_set(&e, STATUS_INVALID, "%s", raw);
        size_t n = strlen(e.text);
        assert_in_range(n, ERROR_TEXT_BYTES - 4, ERROR_TEXT_BYTES - 1);
        assert_int_equal((n - (size_t)lead) % 4, 0);
        assert_null(strchr(e.text, '?'));
    }
}

static void test_prefix(void **state) {
    (void)state;
    struct error e;
    error_set(&e, STATUS_NOT_FOUND, "no such tensor");
    assert_int_equal(error_prefix(&e, "%s[%d]", "shard", 2), STATUS_NOT_FOUND);
    assert_string_equal(e.text, "shard[2]: no such tensor");
    assert_int_equal(error_prefix(&e, "%s", e.text), STATUS_NOT_FOUND); // its own text as an argument
    assert_string_equal(e.text, "shard[2]: no such tensor: shard[2]: no such tensor");
    for (int i = 0; i < 200; i++) error_prefix(&e, "0123456789");
    assert_int_equal(strlen(e.text), ERROR_TEXT_BYTES - 1);
}

static void test_names(void **state) {
    (void)state;
    for (int code = STATUS_OK; code <= STATUS_DEVICE; code++) {
        assert_string_not_equal(status_name((enum status)code), "unknown");
        for (int other = STATUS_OK; other < code; other++)
            assert_string_not_equal(status_name((enum status)code), status_name((enum status)other));
    }
    assert_string_equal(status_name((enum status)99), "unknown");
}

static void test_must(void **state) {
    (void)state;
    must(1 + 1 == 2);
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        must(1 + 1 == 3);
        _exit(0);
    }
    close(pipes[1]);
    char text[256] = "";
    assert_true(read(pipes[0], text, sizeof text - 1) > 0);
    close(pipes[0]);
    int result;
    waitpid(child, &result, 0);
    assert_false(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    assert_non_null(strstr(text, "1 + 1 == 3"));
    assert_non_null(strstr(text, "test_status.c:"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set),    cmocka_unit_test(test_cleans_text), cmocka_unit_test(test_cuts_at_characters),
        cmocka_unit_test(test_prefix), cmocka_unit_test(test_names),       cmocka_unit_test(test_must),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
