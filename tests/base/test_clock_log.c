// The clock and the log, which stamps each line with it.
#include "base/clock.h"
#include "base/log.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define CAPTURE_BYTES (1 << 20)

static FILE *capture_file;
static int saved_stderr;
static char captured[CAPTURE_BYTES];

static void capture_begin(void) {
    fflush(stderr);
    capture_file = tmpfile();
    saved_stderr = dup(STDERR_FILENO);
    dup2(fileno(capture_file), STDERR_FILENO);
}

static const char *capture_end(void) {
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    rewind(capture_file);
    captured[fread(captured, 1, CAPTURE_BYTES - 1, capture_file)] = '\0';
    fclose(capture_file);
    return captured;
}

static void test_clock(void **state) {
    (void)state;
    int64_t before = clock_ns();
    clock_sleep_ns(20 * 1000 * 1000);
    int64_t slept = clock_ns() - before;
    assert_true(slept >= 20 * 1000 * 1000);
    clock_sleep_ns(0);
    clock_sleep_ns(-5);
    assert_true(llabs((long long)(clock_unix_seconds() - time(NULL))) <= 1);
}

static void test_line_form(void **state) {
    (void)state;
    capture_begin();
    errno = 33;
    log_line(LOG_WARN, "disk %s is %d %% full\nFAKE line\x1b\x7f", "sda", 97);
    assert_int_equal(errno, 33);
    const char *line = capture_end();
    int year, month, day, hour, minute, second, ms, used = 0;
    assert_int_equal(
        sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &year, &month, &day, &hour, &minute, &second, &ms, &used), 7);
    assert_int_equal(used, 24);
    struct tm utc = {.tm_sec = second, .tm_min = minute, .tm_hour = hour};
    utc.tm_mday = day, utc.tm_mon = month - 1, utc.tm_year = year - 1900;
    assert_true(llabs((long long)(timegm(&utc) - time(NULL))) <= 2);
    assert_string_equal(line + used, " WARN  disk sda is 97 % full?FAKE line??\n");
}

static void test_levels(void **state) {
    (void)state;
    capture_begin();
    log_line(LOG_DEBUG, "unseen");
    log_set_level(LOG_ERROR);
    log_line(LOG_WARN, "unseen");
    log_line(LOG_ERROR, "one");
    log_set_level(LOG_DEBUG);
    log_line(LOG_DEBUG, "two");
    log_set_level(LOG_INFO);
    const char *text = capture_end();
    assert_null(strstr(text, "unseen"));
    assert_non_null(strstr(text, "ERROR one\n"));
    assert_non_null(strstr(text, "DEBUG two\n"));
}

static void test_long_line(void **state) {
    (void)state;
    char *big = malloc(100001);
    memset(big, 'a', 100000);
    big[100000] = '\0';
    capture_begin();
    log_line(LOG_INFO, "%s", big);
    const char *line = capture_end();
    free(big);
    size_t n = strlen(line);
    assert_int_equal(n, 4096);
    assert_string_equal(line + n - 5, "a...\n");
}

#define N_LINES 400

static void *write_lines(void *argument) {
    char letter = *(const char *)argument;
    char body[201];
    memset(body, letter, 200);
    body[200] = '\0';
    for (int i = 0; i < N_LINES; i++) log_line(LOG_INFO, "%s", body);
    return NULL;
}

static void test_lines_are_whole(void **state) {
    (void)state;
    static const char letters[] = "wxyz";
    pthread_t ids[4];
    capture_begin();
    for (int i = 0; i < 4; i++) pthread_create(&ids[i], NULL, write_lines, (void *)(uintptr_t)&letters[i]);
    for (int i = 0; i < 4; i++) pthread_join(ids[i], NULL);
    const char *text = capture_end();
    int n = 0;
    for (const char *line = text; *line; n++) {
        const char *end = strchr(line, '\n');
        assert_non_null(end);
        assert_int_equal(end - line, 31 + 200);
        for (const char *c = line + 31; c < end; c++) assert_int_equal(*c, line[31]);
        line = end + 1;
    }
    assert_int_equal(n, 4 * N_LINES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clock),     cmocka_unit_test(test_line_form),       cmocka_unit_test(test_levels),
        cmocka_unit_test(test_long_line), cmocka_unit_test(test_lines_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
