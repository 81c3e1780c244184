#include "base/random.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

// Known answers published with Random123 (file kat_vectors, philox4x32 10).
static void test_known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct random_block block = random_philox(cases[i].counter, cases[i].key);
        for (int w = 0; w < 4; w++) assert_int_equal(block.word[w], cases[i].answer[w]);
    }
}

static void test_bits(void **state) {
    (void)state;
    assert_true(random_bits(0, 0, 0) == UINT64_C(0xe169c58d6627e8d5));
    assert_true(random_bits(UINT64_C(0x299f31d0a4093822), UINT64_C(0x85a308d3243f6a88), UINT64_C(0x0370734413198a2e)) ==
                UINT64_C(0x94fdccebd16cfe09));
}

static void test_unit(void **state) {
    (void)state;
    assert_true(random_unit(0) == 0x1p-53);
    assert_true(random_unit(UINT64_MAX) == 1.0 - 0x1p-53);
    assert_true(random_unit(UINT64_C(1) << 63) == 0.5 + 0x1p-53);
    assert_true(random_unit((UINT64_C(1) << 12) - 1) == 0x1p-53); // the low 12 bits play no part
}

static void test_unit_is_uniform(void **state) {
    (void)state;
    int counts[16] = {0};
    const int n = 160000;
    for (int i = 0; i < n; i++) counts[(int)(16 * random_unit(random_bits(7, (uint64_t)i, 3)))]++;
    double chi = 0;
    for (int i = 0; i < 16; i++) chi += (counts[i] - n / 16.0) * (counts[i] - n / 16.0) / (n / 16.0);
    assert_true(chi < 37.7); // the 99.9 % point for 15 degrees of freedom; the numbers are always the same ones
}

static void test_normal(void **state) {
    (void)state;
    double sum = 0, squares = 0, fourth = 0;
    const int n = 200000;
    for (int i = 0; i < n; i++) {
        double x = random_normal(1, 2, (uint64_t)i);
        assert_true(isfinite(x));
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
    }
    assert_true(fabs(sum / n) < 0.01);
    assert_true(fabs(squares / n - 1) < 0.02);
    assert_true(fabs(fourth / n - 3) < 0.1);
    assert_true(random_normal(1, 2, 3) == random_normal(1, 2, 3));
    assert_true(random_normal(1, 2, 3) != random_normal(1, 3, 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),   cmocka_unit_test(test_bits),   cmocka_unit_test(test_unit),
        cmocka_unit_test(test_unit_is_uniform), cmocka_unit_test(test_normal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
