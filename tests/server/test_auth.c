// API keys: who may ask, and which key files are refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "server/auth.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[] = "/tmp/tokenfold-keys-XXXXXX";

static int setup(void **state) {
    (void)state;
    int fd = mkstemp(path);
    if (fd >= 0) close(fd);
    return fd >= 0 ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    return unlink(path);
}

static void write_file(const char *text, mode_t mode) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(path, mode), 0);
}

static void test_open(void **state) {
    (void)state;
    struct auth *a;
    assert_int_equal(auth_create(NULL, 0, NULL, &a, NULL), STATUS_OK);
    assert_true(auth_is_open(a));
    assert_true(auth_allows(a, NULL));
    assert_true(auth_allows(a, "Bearer whatever"));
    auth_free(a);
}

static void test_keys(void **state) {
    (void)state;
    static const char *const keys[] = {"first-key", "second"};
    struct auth *a;
    assert_int_equal(auth_create(keys, 2, NULL, &a, NULL), STATUS_OK);
    assert_false(auth_is_open(a));
    assert_true(auth_allows(a, "Bearer first-key"));
    assert_true(auth_allows(a, "bearer  second"));
    static const char *const wrong[] = {NULL,
                                        "",
                                        "Bearer",
                                        "Bearer ",
                                        "Bearer first-ke",
                                        "Bearer first-key2",
                                        "Basic first-key",
                                        "first-key",
                                        "Bearer first-key "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_false(auth_allows(a, wrong[i]));
    auth_free(a);
}

static void test_file(void **state) {
    (void)state;
    struct auth *a;
    write_file("# keys of the team\n\nalpha\r\nbeta\ngamma", 0600);
    assert_int_equal(auth_create(NULL, 0, path, &a, NULL), STATUS_OK);
    assert_true(auth_allows(a, "Bearer alpha"));
    assert_true(auth_allows(a, "Bearer beta"));
    assert_true(auth_allows(a, "Bearer gamma"));
    assert_false(auth_allows(a, "Bearer # keys of the team"));
    auth_free(a);
}

static void test_refused(void **state) {
    (void)state;
    struct auth *a = (struct auth *)&a;
    struct error e;
    write_file("alpha\n", 0644);
    assert_int_equal(auth_create(NULL, 0, path, &a, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, path));
    write_file("alpha\n", 0620);
    assert_int_equal(auth_create(NULL, 0, path, &a, &e), STATUS_INVALID);
    write_file("# nothing\n\n", 0600);
    assert_int_equal(auth_create(NULL, 0, path, &a, &e), STATUS_INVALID);
    write_file("with blank\n", 0600);
    assert_int_equal(auth_create(NULL, 0, path, &a, &e), STATUS_INVALID);
    assert_null(strstr(e.text, "with blank")); // a sentence may end up in a log
    assert_int_equal(auth_create(NULL, 0, "/nonexistent/keys", &a, &e), STATUS_NOT_FOUND);
    assert_int_equal(auth_create((const char *const[]){""}, 1, NULL, &a, &e), STATUS_INVALID);
    assert_ptr_equal(a, &a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
