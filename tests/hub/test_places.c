// Where other programs keep downloads and their token, by the variables that they go by.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "hub/cache.h"
#include <stdlib.h>

static const char *const variables[] = {"HF_HUB_CACHE", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME", "HOME"};
enum { N_VARIABLES = sizeof variables / sizeof *variables };

static void test_places(void **state) {
    (void)state;
    // In the order of the variables; "" is as good as unset. NULL: there is no place.
    static const struct {
        const char *values[N_VARIABLES], *folder, *token;
    } rows[] = {
        {{"/c", "/t/file", "/h", "/x", "/u"}, "/c", "/t/file"},
        {{NULL, NULL, "/h", "/x", "/u"}, "/h/hub", "/h/token"},
        {{"/c", NULL, NULL, "/x", "/u"}, "/c", "/x/huggingface/token"},
        {{"", "", "", "/x", "/u"}, "/x/huggingface/hub", "/x/huggingface/token"},
        {{NULL, NULL, NULL, NULL, "/u"}, "/u/.cache/huggingface/hub", "/u/.cache/huggingface/token"},
        {{NULL, "/t/file", NULL, NULL, NULL}, NULL, "/t/file"},
        {{NULL, NULL, NULL, NULL, NULL}, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[HUB_PATH_BYTES];
        struct error e;
        for (int k = 0; k < N_VARIABLES; k++) {
            unsetenv(variables[k]);
            if (rows[i].values[k] != NULL) setenv(variables[k], rows[i].values[k], 1);
        }
        enum status want = rows[i].folder != NULL ? STATUS_OK : STATUS_NOT_FOUND;
        assert_int_equal(hub_cache_folder(path, &e), want);
        if (want == STATUS_OK) assert_string_equal(path, rows[i].folder);
        want = rows[i].token != NULL ? STATUS_OK : STATUS_NOT_FOUND;
        assert_int_equal(hub_token_file(path, &e), want);
        if (want == STATUS_OK) assert_string_equal(path, rows[i].token);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
