// Owns what the parts of tf-cuda-bench share: the pool, shapes, and arms in turn.
#ifndef TF_BENCH_KERNELS_CUDA_H
#define TF_BENCH_KERNELS_CUDA_H

#include "bench/timer_cuda.h"
#include "measure/statistics.h"

#define POOL_BYTES ((size_t)1 << 30) // larger than any cache
#define LANES_MAX  16
#define ARMS_MAX   3

struct shape {
    const char *name;
    int64_t hidden, inner, n_head, n_kv_head, n_value_head;
};

struct bench {
    struct device *d;
    char *pool;
    char *activations; // what operations read and write beside the pool
    double copy_rate, peak;
    int n_rounds;
    bool red;
};

struct timing {
    double seconds[ARMS_MAX];            // medians
    struct interval against_a[ARMS_MAX]; // log of an arm's time over the first's
};

void bench_stop(const struct error *e);
// Rounds of all arms there and back, beginning with another arm each time.
struct timing bench_time_arms(struct bench *b, struct recording **arms, int n_arm);
void bench_print_time(const struct bench *b, double seconds, double bytes, double operations);
double bench_percent(double log_ratio);
struct tensor bench_next_tensor(struct bench *b, char **at, int64_t n_row, int64_t n_col);
void bench_wait(struct bench *b);

// What stands between the products of a round, and experts: kernels_cuda_layers.c.
void bench_layers(struct bench *b, const struct shape *shapes, int n_shape);

#endif
