// What may be part of a path or a URL.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "hub/name.h"
#include <string.h>

#define COUNT(list) (sizeof(list) / sizeof *(list))

static void test_names(void **state) {
    (void)state;
    struct hub_name name;
    struct error e;
    assert_int_equal(hub_name_read("Qwen/Qwen3.5-27B", &name, &e), STATUS_OK);
    assert_string_equal(name.repo, "Qwen/Qwen3.5-27B");
    assert_string_equal(name.revision, "main");
    assert_int_equal(hub_name_read("a/b_c.d@refs/pr/1", &name, &e), STATUS_OK);
    assert_string_equal(name.revision, "refs/pr/1");
    assert_int_equal(hub_name_read("a/b@v1--2", &name, &e), STATUS_OK);
    static const char *const bad[] = {
        "",       "a",       "/",       "a/",       "/b",     "a/b/c",  "a//b",   "../b",
        "a/..",   "a/.b",    "-a/b",    "a/-b",     "a/b--c", "a/b..c", "a b/c",  "a/b\n",
        "a/b?",   "a/b%2f",  "a\\b/c",  "a/b@",     "a/b@..", "a/b@/x", "a/b@x/", "a/b@x//y",
        "a/b@-x", "a/b@x?y", "a/b@x y", "a/b@x/..", "a/b@@x", "@",      "a@b/c",  "a/b@x\\y",
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        if (hub_name_read(bad[i], &name, &e) != STATUS_INVALID) fail_msg("accepted \"%s\"", bad[i]);
    char length[2 * HUB_REPO_BYTES];
    memset(length, 'x', sizeof length);
    length[sizeof length - 1] = 0;
    length[1] = '/';
    assert_int_equal(hub_name_read(length, &name, &e), STATUS_INVALID);
    length[3] = '@';
    assert_int_equal(hub_name_read(length, &name, &e), STATUS_INVALID);
}

static void test_hashes(void **state) {
    (void)state;
    assert_true(hub_is_commit("0123456789abcdef0123456789abcdef01234567"));
    assert_true(hub_is_commit("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"));
    assert_false(hub_is_commit("0123456789abcdef0123456789abcdef0123456"));
    assert_false(hub_is_commit("0123456789ABCDEF0123456789abcdef01234567"));
    assert_false(hub_is_commit("0123456789abcdef0123456789abcdef0123456/"));
    assert_false(hub_is_commit(""));
}

static void test_paths(void **state) {
    (void)state;
    static const char *const good[] = {"a", "a/b.json", "a b", ".hidden", "...", "a..b", "\xc3\xa9"};
    static const char *const bad[] = {"",     "/",      "/a",  "a/",  "a//b", ".",    "..",  "a/..",
                                      "../a", "a/../b", "./a", "a/.", "a\\b", "a\nb", "\x7f"};
    for (size_t i = 0; i < COUNT(good); i++) assert_true(hub_is_safe_path(good[i], strlen(good[i])));
    for (size_t i = 0; i < COUNT(bad); i++)
        if (hub_is_safe_path(bad[i], strlen(bad[i]))) fail_msg("accepted \"%s\"", bad[i]);
    assert_false(hub_is_safe_path("a\0b", 3));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_hashes),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
