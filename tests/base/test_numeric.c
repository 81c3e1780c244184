#include "base/numeric.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

// The value of a small float from its definition, in double: sign, exponent field and fraction.
static double defined_value(uint32_t code, int exponent_bits, int fraction_bits, int bias) {
    uint32_t fraction = code & ((1u << fraction_bits) - 1);
    int exponent = (int)((code >> fraction_bits) & ((1u << exponent_bits) - 1));
    double sign = code >> (exponent_bits + fraction_bits) ? -1 : 1;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(1 + ldexp(fraction, -fraction_bits), exponent - bias);
}

static bool same_float(float a, float b) { return float_to_bits(a) == float_to_bits(b); }

static bool is_nan_f16(uint32_t h) { return (h & 0x7fff) > 0x7c00; }

static void test_f16_every_code(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = f16_to_float((uint16_t)h);
        if (is_nan_f16(h)) {
            assert_true(isnan(f));
            assert_true(is_nan_f16(float_to_f16(f)));
            continue;
        }
        float expected = (h & 0x7fff) == 0x7c00 ? (h >> 15 ? -INFINITY : INFINITY) : (float)defined_value(h, 5, 10, 15);
        assert_true(same_float(f, expected));
        assert_int_equal(float_to_f16(f), h);
    }
}

static void test_e4m3_every_code(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x100; h++) {
        float f = e4m3_to_float((uint8_t)h);
        if ((h & 0x7f) == 0x7f)
            assert_true(isnan(f));
        else
            assert_true(same_float(f, (float)defined_value(h, 4, 3, 7)));
        assert_int_equal(float_to_e4m3(f), h);
    }
    assert_true(e4m3_to_float(0x7e) == 448.0f);
}

// Between two neighbours: below, at and above the midpoint, and the midpoint goes to the even code.
static void check_rounding(uint32_t code, float low, float high, uint32_t (*convert)(float)) {
    float middle = low + (high - low) / 2;
    uint32_t even = code & 1 ? code + 1 : code;
    assert_int_equal(convert(middle), even);
    assert_int_equal(convert(nextafterf(middle, low)), code);
    assert_int_equal(convert(nextafterf(middle, high)), code + 1);
}

static uint32_t to_f16(float f) { return float_to_f16(f); }
static uint32_t to_e4m3(float f) { return float_to_e4m3(f); }
static uint32_t to_bf16(float f) { return float_to_bf16(f); }

static void test_rounding(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++)
        check_rounding(h, f16_to_float((uint16_t)h), f16_to_float((uint16_t)(h + 1)), to_f16);
    for (uint32_t h = 0; h < 0x7e; h++)
        check_rounding(h, e4m3_to_float((uint8_t)h), e4m3_to_float((uint8_t)(h + 1)), to_e4m3);
    for (uint32_t h = 0; h < 0x7f7f; h++)
        check_rounding(h, bf16_to_float((uint16_t)h), bf16_to_float((uint16_t)(h + 1)), to_bf16);
}

// The nearest code by trying all, in double, where everything is exact; of two that are as near, the even one. NaN
// codes are not numbers, and nothing is larger than the largest.
static uint32_t nearest_e4m3(double x) {
    uint32_t best = 0;
    double distance = INFINITY;
    for (uint32_t code = 0; code < 0x7f; code++) {
        double d = fabs(fabs(x) - defined_value(code, 4, 3, 7));
        if (d < distance || (d == distance && code % 2 == 0)) best = code;
        if (d < distance) distance = d;
    }
    return best | (signbit(x) ? 0x80u : 0);
}

static void test_e4m3_of_every_bf16(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = bf16_to_float((uint16_t)h);
        if (isnan(f))
            assert_int_equal(float_to_e4m3(f) & 0x7f, 0x7f);
        else
            assert_int_equal(float_to_e4m3(f), nearest_e4m3(isinf(f) ? copysign(1e9, (double)f) : (double)f));
    }
    // Halfway between the largest and what would come next, and beyond.
    assert_int_equal(float_to_e4m3(463.99f), 0x7e);
    assert_int_equal(float_to_e4m3(464.0f), 0x7e);
    assert_int_equal(float_to_e4m3(-480.0f), 0xfe);
}

static void test_ends(void **state) {
    (void)state;
    assert_int_equal(float_to_f16(65519.99f), 0x7bff);
    assert_int_equal(float_to_f16(65520.0f), 0x7c00);
    assert_int_equal(float_to_f16(-1e30f), 0xfc00);
    assert_int_equal(float_to_f16(-0.0f), 0x8000);
    assert_int_equal(float_to_f16(0x1p-149f), 0);
    assert_int_equal(float_to_e4m3(1e30f), 0x7e);
    assert_int_equal(float_to_e4m3(-INFINITY), 0xfe);
    assert_int_equal(float_to_e4m3(-0.0f), 0x80);
    assert_int_equal(float_to_bf16(INFINITY), 0x7f80);
    assert_int_equal(float_to_bf16(3.4e38f), 0x7f80);
    assert_true(isnan(bf16_to_float(float_to_bf16(bits_to_float(0x7f800001u))))); // a NaN of low bits only
    assert_true(isnan(f16_to_float(float_to_f16(bits_to_float(0xff800001u)))));
    assert_true(same_float(round_bf16(1.0f + 0x1p-9f), 1.0f));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_every_code), cmocka_unit_test(test_e4m3_every_code),
        cmocka_unit_test(test_rounding),       cmocka_unit_test(test_e4m3_of_every_bf16),
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
