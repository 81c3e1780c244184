// Intervals and verdicts against known values: Wilcoxon's table, and an example that was worked out by hand.
#include "measure/statistics.h"
#include "base/random.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

// Two-sided 5 %, as the published tables of the signed-rank test have it.
static void test_critical_values(void **state) {
    (void)state;
    static const int table[][2] = {{6, 0},   {7, 2},   {8, 3},   {9, 5},   {10, 8},   {11, 10},  {12, 13}, {13, 17},
                                   {14, 21}, {15, 25}, {16, 29}, {17, 34}, {18, 40},  {19, 46},  {20, 52}, {21, 58},
                                   {22, 65}, {23, 73}, {24, 81}, {25, 89}, {30, 137}, {40, 264}, {50, 434}};
    for (int n = 1; n < 6; n++) assert_int_equal(statistics_critical(n), -1);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        assert_int_equal(statistics_critical(table[i][0]), table[i][1]);
    // The normal distribution goes on where the exact one ends.
    assert_true(statistics_critical(65) > statistics_critical(64));
    assert_true(statistics_critical(65) - statistics_critical(64) < 40);
}

static struct interval interval_of(const double *x, int n) {
    struct interval i;
    struct error e;
    assert_int_equal(statistics_interval(x, n, &i, &e), STATUS_OK);
    return i;
}

static void test_intervals(void **state) {
    (void)state;
    // Of six all means count: -1 and 9 are the ends. Means of two sorted: the 11th of 21 is the median.
    const double six[] = {9, 1, 2, 4, -1, 3};
    struct interval i = interval_of(six, 6);
    assert_true(i.is_sure);
    assert_float_equal(i.low, -1, 0);
    assert_float_equal(i.high, 9, 0);
    assert_float_equal(i.middle, 2.5, 0);
    // Of eight, three means are left out at each end: 1, 1.5, 2 (twice) ... and 8, 7.5, 7 (twice).
    const double eight[] = {1, 2, 3, 4, 5, 6, 7, 8};
    i = interval_of(eight, 8);
    assert_float_equal(i.low, 2, 0);
    assert_float_equal(i.high, 7, 0);
    assert_float_equal(i.middle, 4.5, 0);
    const double few[] = {2, 1, 4};
    i = interval_of(few, 3);
    assert_false(i.is_sure);
    assert_float_equal(i.low, 1, 0);
    assert_float_equal(i.high, 4, 0);
    assert_float_equal(i.middle, 2.25, 0);
    double one = 5;
    i = interval_of(&one, 1);
    assert_float_equal(i.middle, 5, 0);
}

// The interval must hold the truth in about 95 % of runs, also where a tenth of the measurements are far off.
static void test_coverage(void **state) {
    (void)state;
    enum { RUNS = 2000, N = 12 };
    for (int outliers = 0; outliers < 2; outliers++) {
        int held = 0;
        for (int run = 0; run < RUNS; run++) {
            double x[N];
            for (int k = 0; k < N; k++) {
                uint64_t at = (uint64_t)(run * N + k);
                x[k] = 0.25 + random_normal(3, at, 0) * (outliers && random_unit(random_bits(4, at, 0)) < 0.1 ? 20 : 1);
            }
            struct interval i = interval_of(x, N);
            held += i.low <= 0.25 && i.high >= 0.25;
        }
        assert_in_range(held, 0.94 * RUNS, 0.97 * RUNS);
    }
}

static void test_verdicts(void **state) {
    (void)state;
    const struct interval again = {0.0005, -0.001, 0.002, true};
    double seen;
    assert_int_equal(statistics_judge(&(struct interval){-0.004, -0.006, -0.002, true}, &again, &seen), VERDICT_SLOWER);
    assert_float_equal(seen, 0.004, 1e-12); // 0.002 of the A/A and half of 0.004
    assert_int_equal(statistics_judge(&(struct interval){0.004, 0.0025, 0.006, true}, &again, &seen), VERDICT_FASTER);
    // Inside the A/A, over 0, and too few.
    assert_int_equal(statistics_judge(&(struct interval){-0.002, -0.004, -0.0005, true}, &again, &seen), VERDICT_SAME);
    assert_int_equal(statistics_judge(&(struct interval){0.002, 0.001, 0.004, true}, &again, &seen), VERDICT_SAME);
    assert_int_equal(statistics_judge(&(struct interval){-0.1, -0.2, 0.0001, true}, &again, &seen), VERDICT_SAME);
    assert_int_equal(statistics_judge(&(struct interval){-0.1, -0.2, -0.05, false}, &again, &seen), VERDICT_FEW);
    // An A/A that lies beside 0 by itself does not bring the limit nearer than 0.
    const struct interval beside = {0.002, 0.001, 0.003, true};
    assert_int_equal(statistics_judge(&(struct interval){0.0005, -0.0005, 0.0008, true}, &beside, &seen), VERDICT_SAME);
    assert_string_equal(verdict_name(VERDICT_SLOWER), "slower");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_critical_values),
        cmocka_unit_test(test_intervals),
        cmocka_unit_test(test_coverage),
        cmocka_unit_test(test_verdicts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
