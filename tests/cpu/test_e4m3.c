// e4m3 codes as floats, on every instruction set: the bits of code times scale, rounded once.
#include "base/numeric.h"
#include "cpu/internal.h"
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void check_scale(const struct cpu_kernels *k, float scale) {
    uint8_t codes[256];
    float out[256];
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
    k->widen_e4m3(codes, scale, 256, out);
    for (int i = 0; i < 256; i++) {
        float want = e4m3_to_float((uint8_t)i) * scale;
        if (isnan(want))
            assert_true(isnan(out[i]));
        else
            assert_int_equal(float_to_bits(out[i]), float_to_bits(want));
    }
}

// Codes and results end where they say, so that the address sanitizer sees what goes past them.
static void check_length(const struct cpu_kernels *k, int64_t n) {
    uint8_t *codes = malloc((size_t)n + 1);
    float *out = malloc((size_t)n * sizeof *out + 1);
    assert_true(codes != NULL && out != NULL);
    uint8_t *end = codes + 1; // not aligned
    for (int64_t i = 0; i < n; i++) end[i] = (uint8_t)(i * 37 % 127);
    k->widen_e4m3(end, 0.25f, n, out);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(float_to_bits(out[i]), float_to_bits(e4m3_to_float(end[i]) * 0.25f));
    free(codes);
    free(out);
}

static void test_widen(void **state) {
    (void)state;
    // The largest scale is that of a vector that holds the largest float; below the normal floats products round.
    static const float scales[] = {1,       0,           1.0f / 448, 3.1f / 448,      0x1p-100f,
                                   0x1p20f, FLT_MIN / 3, 0x1p-149f,  FLT_MAX / 448.0f};
    for (int isa = ISA_C; isa <= (int)cpu_isa_detect(); isa++) {
        struct cpu_kernels k;
        cpu_kernels_fill(&k, COMPUTE_F32);
#if defined(__x86_64__)
        if (isa != ISA_C) cpu_x86_overlay(&k, (enum cpu_isa)isa, COMPUTE_F32);
#endif
        for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) check_scale(&k, scales[i]);
        for (int64_t n = 1; n <= 70; n++) check_length(&k, n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_widen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
