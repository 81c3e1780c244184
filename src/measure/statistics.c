#include "measure/statistics.h"
#include <math.h>
#include <stdlib.h>

#define EXACT_MOST 64 // beyond, the sum of ranks is as good as normal
#define TAIL       0.025
#define TAIL_SIGMA 1.959963984540054 // of the normal distribution that leave TAIL behind

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of_sorted(const double *x, int n) { return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2; }

double statistics_median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    return median_of_sorted(x, n);
}

int statistics_critical(int n) {
    int most = n * (n + 1) / 2;
    if (n > EXACT_MOST) {
        double mean = most / 2.0, sigma = sqrt((double)n * (n + 1) * (2.0 * n + 1) / 24);
        return (int)floor(mean - TAIL_SIGMA * sigma);
    }
    // chance[s]: that the ranks up to i whose signs are positive have the sum s.
    double chance[EXACT_MOST * (EXACT_MOST + 1) / 2 + 1] = {1};
    for (int i = 1; i <= n; i++)
        for (int s = i * (i + 1) / 2; s >= 0; s--) chance[s] = (chance[s] + (s >= i ? chance[s - i] : 0)) / 2;
    double sum = 0;
    int t = 0;
    while (t <= most && sum + chance[t] <= TAIL) sum += chance[t++];
    return t - 1;
}

enum status statistics_interval(const double *x, int n, struct interval *out, struct error *e) {
    must(n >= 1 && n <= STATISTICS_MOST);
    int n_mean = 0, critical = statistics_critical(n);
    double *means = malloc((size_t)n * ((size_t)n + 1) / 2 * sizeof *means);
    if (means == NULL) return error_memory(e);
    for (int i = 0; i < n; i++)
        for (int j = i; j < n; j++) means[n_mean++] = (x[i] + x[j]) / 2;
    double middle = statistics_median(means, n_mean);
    int left_out = critical > 0 ? critical : 0;
    *out = (struct interval){middle, means[left_out], means[n_mean - 1 - left_out], critical >= 0};
    free(means);
    return STATUS_OK;
}

const char *verdict_name(enum verdict v) {
    static const char *const names[] = {"same", "faster", "slower", "too few rounds"};
    return names[v];
}

enum verdict statistics_judge(const struct interval *arm, const struct interval *again, double *seen) {
    *seen = fmax(fabs(again->low), fabs(again->high)) + (arm->high - arm->low) / 2;
    if (!arm->is_sure || !again->is_sure) return VERDICT_FEW;
    if (arm->low > fmax(again->high, 0)) return VERDICT_FASTER;
    if (arm->high < fmin(again->low, 0)) return VERDICT_SLOWER;
    return VERDICT_SAME;
}
