#include "cuda/device.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#if TF_CUDA

// Runs with and without a GPU: either there is a plausible device or there is a sentence, never a crash.
static void test_probe(void **state) {
    (void)state;
    struct error e = {0};
    int n = -7;
    enum status status = cuda_device_count(&n, &e);
    struct cuda_device_info info = {.major = -7};
    if (status != STATUS_OK) {
        assert_int_equal(n, -7);
        assert_true(strlen(e.text) > 10);
        assert_int_equal(cuda_device_probe(0, &info, &e), status);
        assert_int_equal(info.major, -7);
        printf("no device: %s\n", e.text);
        return;
    }
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(cuda_device_probe(i, &info, &e), STATUS_OK);
        assert_true(info.name[0] && info.major >= 5 && info.n_processors > 0);
        assert_true(info.free_bytes > 0 && info.free_bytes <= info.total_bytes);
    }
    assert_int_equal(cuda_device_probe(n, &info, &e), STATUS_INVALID);
    assert_int_equal(cuda_device_probe(-1, &info, &e), STATUS_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_probe)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) {
    printf("SKIP the CUDA code is not part of this build\n");
    return 77;
}

#endif
