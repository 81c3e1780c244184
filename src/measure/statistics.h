// Owns the statistics of paired measurements: a middle with an interval that assumes no distribution but symmetry, and
// the verdict of an A/B beside its A/A. Too few measurements give an interval that says so. Any thread.
#ifndef TF_MEASURE_STATISTICS_H
#define TF_MEASURE_STATISTICS_H

#include "base/status.h"
#include <stdbool.h>

#define STATISTICS_MOST 2000 // measurements of one interval

// Of n measurements x: the median of all means of two of them, a measurement with itself included (Hodges and Lehmann),
// and the interval between those means whose ranks Wilcoxon's signed-rank distribution gives for 95 %. A difference of
// two arms that are exchangeable within a pair is symmetric around 0, which is all that this needs.
struct interval {
    double middle, low, high;
    bool is_sure; // 95 %; fewer than six measurements cannot say so much, and low and high are then the least and most
};

// 1 <= n <= STATISTICS_MOST.
enum status statistics_interval(const double *x, int n, struct interval *out, struct error *e);

// How many of the means' ends an interval of 95 % leaves out on each side, less one: the largest t for which at most
// 2.5 % of the signs of n ranks have a sum of t or less. -1: there is none.
int statistics_critical(int n);

double statistics_median(double *x, int n); // sorts x

enum verdict { VERDICT_SAME, VERDICT_FASTER, VERDICT_SLOWER, VERDICT_FEW };
const char *verdict_name(enum verdict v);

// Log ratios of rates, an arm's over the base's and the base's over its own. An arm is faster or slower when its
// interval lies beyond 0 and beyond the A/A's whole interval; *seen is how large a log ratio had to be for that.
enum verdict statistics_judge(const struct interval *arm, const struct interval *again, double *seen);

#endif
