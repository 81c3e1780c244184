// Digests of ids against those of sha256sum over the same bytes.
#include "engine/digest.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void test_digests(void **state) {
    (void)state;
    char hex[DIGEST_BYTES];
    struct request_token tokens[] = {{.id = 1, .logprob = -1}, {.id = 248319}, {.id = 0x01020304}};
    static const char *const want[] = {
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "67abdd721024f0ff4e0b3f4c2fc13bc5bad42d0b7851d456d88d203d15aaa450",
        "9bf084e16b1bab2c1ccf9303c0cb580dbe36b66f3146a85daa734968c5a2b2c9",
        "99aa17bef2cfcf5f28b3f04a41e94c204a6f2425c12997426efd38f213c85bd1",
    };
    for (int32_t n = 0; n < 4; n++) {
        assert_true(digest_tokens(tokens, n, hex));
        assert_string_equal(hex, want[n]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_digests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
