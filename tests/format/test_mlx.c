#include "format/mlx.h"

#include "base/numeric.h"
#include "base/random.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_OF(a) (sizeof(a) / sizeof *(a))

static const int widths[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};

static void test_valid(void **state) {
    (void)state;
    for (int bits = -1; bits < 40; bits++)
        assert_int_equal(mlx_width_valid(bits),
                         bits == 2 || bits == 3 || bits == 4 || bits == 5 || bits == 6 || bits == 8);
    for (int group = -1; group < 300; group++)
        assert_int_equal(mlx_group_valid(group), group == 32 || group == 64 || group == 128);
}

// Bit i * bits + k of the little-endian stream is bit k of code i: the definition, one bit at a time.
static void test_packing(void **state) {
    (void)state;
    for (size_t b = 0; b < N_OF(widths); b++) {
        enum { N = 160 };
        int bits = widths[b];
        uint8_t codes[N], packed[N], again[N], expected[N] = {0};
        for (int i = 0; i < N; i++)
            codes[i] = (uint8_t)(random_bits(5, (uint64_t)i, (uint64_t)bits) & ((1u << bits) - 1));
        for (int i = 0; i < N * bits; i++)
            if (codes[i / bits] >> (i % bits) & 1) expected[i / 8] |= (uint8_t)(1 << (i % 8));
        uint8_t *exact = malloc((size_t)(N * bits / 8)); // so that a sanitizer sees a step past the end
        memset(packed, 0xee, sizeof packed);
        mlx_pack_row(codes, bits, N, exact);
        assert_memory_equal(exact, expected, (size_t)(N * bits / 8));
        mlx_unpack_row(exact, bits, N, again);
        assert_memory_equal(again, codes, N);
        free(exact);
    }
    // 4 bits: word w holds elements 8 w .. 8 w + 7 in nibbles from low to high.
    const uint32_t word = 0x76543210;
    uint8_t codes[8];
    mlx_unpack_row(&word, 4, 8, codes);
    for (int i = 0; i < 8; i++) assert_int_equal(codes[i], i);
}

static void test_dequantise(void **state) {
    (void)state;
    for (size_t b = 0; b < N_OF(widths); b++)
        for (size_t g = 0; g < N_OF(groups); g++) {
            int bits = widths[b], group = groups[g], n = 3 * group;
            uint8_t codes[384], packed[384];
            float scales[3] = {0.5f, -0.25f, 1e-3f}, biases[3] = {-1, 3, 0}, out[384];
            for (int i = 0; i < n; i++) codes[i] = (uint8_t)(i * 7 & ((1 << bits) - 1));
            mlx_pack_row(codes, bits, n, packed);
            mlx_dequantise_row(packed, scales, biases, bits, group, n, out);
            for (int i = 0; i < n; i++) assert_true(out[i] == (float)codes[i] * scales[i / group] + biases[i / group]);
        }
}

// Quantised and dequantised: no value is off by more than half a step (a whole one at the clamped end), the extreme of
// larger magnitude comes back, and so does zero.
static void test_quantise(void **state) {
    (void)state;
    for (size_t b = 0; b < N_OF(widths); b++)
        for (size_t g = 0; g < N_OF(groups); g++)
            for (int round = 0; round < 20; round++) {
                int bits = widths[b], group = groups[g];
                float w[128], scale, bias, out[128];
                uint8_t packed[128];
                float shift = (float)(round % 5 - 2), extreme = 0;
                for (int i = 0; i < group; i++) {
                    w[i] = shift + (float)random_normal((uint64_t)round, (uint64_t)i, (uint64_t)bits);
                    if (i == 3) w[i] = 0;
                    if (fabsf(w[i]) > fabsf(extreme)) extreme = w[i];
                }
                mlx_quantise_row(w, bits, group, group, packed, &scale, &bias);
                mlx_dequantise_row(packed, &scale, &bias, bits, group, group, out);
                float low = INFINITY, high = -INFINITY;
                for (int i = 0; i < group; i++) low = fminf(low, w[i]), high = fmaxf(high, w[i]);
                float step = (high - low) / (float)((1 << bits) - 1);
                for (int i = 0; i < group; i++) {
                    assert_true(fabsf(out[i] - w[i]) <= step * 1.01f);
                    if (w[i] == extreme) assert_true(fabsf(out[i] - extreme) <= 1e-6f * fabsf(extreme));
                }
                assert_true(fabsf(out[3]) <= 1e-5f * fabsf(extreme));
            }
    // A constant group, and one of zeros.
    float w[32], scale, bias, out[32];
    uint8_t packed[32];
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 32; i++) w[i] = (float)(k - 1) * 2.5f;
        mlx_quantise_row(w, 4, 32, 32, packed, &scale, &bias);
        mlx_dequantise_row(packed, &scale, &bias, 4, 32, 32, out);
        for (int i = 0; i < 32; i++) assert_true(fabsf(out[i] - w[i]) < 1e-6f);
    }
}

// Codes, scale and bias of one group as mlx 4-bit gives them, worked out by hand from the definition.
static void test_quantise_known(void **state) {
    (void)state;
    float w[32] = {0}, scale, bias;
    uint8_t packed[32], codes[32];
    w[0] = -0.7f; // low edge: |-0.7| > |0.8| is false, so the edge is 0.8 and the scale negative
    w[1] = 0.8f;
    w[2] = 0.75f;
    mlx_quantise_row(w, 4, 32, 32, packed, &scale, &bias);
    mlx_unpack_row(packed, 4, 32, codes);
    assert_true(fabsf(scale - -0.1f) < 1e-6f); // -(1.5 / 15); rint(0.8 / -0.1) = -8; 0.8 / -8
    assert_true(bias == 0.8f);
    assert_int_equal(codes[0], 15);
    assert_int_equal(codes[1], 0);
    assert_int_equal(codes[3], 8);
    w[0] = -0.9f; // now the low edge: scale 1.7 / 15, zero code rint(-7.94) = -8, scale 0.1125
    mlx_quantise_row(w, 4, 32, 32, packed, &scale, &bias);
    mlx_unpack_row(packed, 4, 32, codes);
    assert_true(fabsf(scale - 0.1125f) < 1e-6f);
    assert_true(bias == -0.9f);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[1], 15);
    assert_int_equal(codes[3], 8);
}

static void test_find_widths(void **state) {
    (void)state;
    for (size_t b = 0; b < N_OF(widths); b++)
        for (size_t g = 0; g < N_OF(groups); g++)
            for (int64_t n_in = groups[g]; n_in <= 128 * 40; n_in += groups[g]) {
                int bits = 0, group = 0;
                assert_true(mlx_find_widths(n_in, n_in * widths[b] / 32, n_in / groups[g], &bits, &group));
                assert_int_equal(bits, widths[b]);
                assert_int_equal(group, groups[g]);
            }
    static const int64_t bad[][3] = {
        {64, 7, 1},
        {64, 14, 1},
        {64, 16, 0},
        {64, 0, 1},
        {64, 64, 1},
        {64, 8, 4},
        {64, 8, 3},
        {0, 8, 1},
        {-64, 8, 1},
        {256, 32, 1},
        {64, 8, 64},
        {64, INT64_MAX, 1},
        {64, INT64_MAX / 32 + 3, 1},
        {64, 8, INT64_MAX},
        {64, -8, 1},
        {64, 8, -1},
        {48, 6, 1},
    };
    for (size_t i = 0; i < N_OF(bad); i++) {
        int bits = -1, group = -1;
        assert_false(mlx_find_widths(bad[i][0], bad[i][1], bad[i][2], &bits, &group));
        assert_int_equal(bits, -1);
        assert_int_equal(group, -1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid),    cmocka_unit_test(test_packing),        cmocka_unit_test(test_dequantise),
        cmocka_unit_test(test_quantise), cmocka_unit_test(test_quantise_known), cmocka_unit_test(test_find_widths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
