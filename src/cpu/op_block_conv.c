// block_conv: a row at a time, in pieces of channels that have one dynamic coefficient a tap.
#include "cpu/ops.h"

#define CHANNELS 256
#define MAX_TAPS 8

struct block_conv_task {
    struct cpu_device *d;
    const struct block_conv_args *a;
};

// Channels [c0, c0 + n) of row t, which is the lane's row i.
static void convolve(const struct block_conv_task *task, int64_t t, int64_t i, const float *dyn, int64_t c0,
                     int64_t n) {
    const struct block_conv_args *a = task->a;
    float sum[CHANNELS] = {0}, buffer[CHANNELS];
    int64_t n_group = a->x.n_col / a->group, n_tap = i + 1 < a->n_tap ? i + 1 : a->n_tap;
    for (int64_t k = 0; k < n_tap; k++) {
        const float *x = cpu_floats(task->d, a->x.dtype, cpu_row(a->x, t - k, c0), n, buffer);
        const float *base = a->base + k * a->x.n_col + c0;
        float own = dyn[k * n_group + c0 / a->group];
        for (int64_t c = 0; c < n; c++) sum[c] += (base[c] + own) * x[c];
    }
    if (a->residual.data != NULL) {
        const float *before = cpu_floats(task->d, a->residual.dtype, cpu_row(a->residual, t, c0), n, buffer);
        for (int64_t c = 0; c < n; c++) sum[c] += before[c];
    }
    task->d->kernels.narrow(a->out.dtype, sum, n, cpu_row(a->out, t, c0));
}

static void convolve_rows(void *context, long first, long last, int thread) {
    const struct block_conv_task *task = context;
    const struct block_conv_args *a = task->a;
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    float *buffer = cpu_carve(&c, (size_t)a->dyn.n_col * sizeof(float));
    must(c.used <= task->d->scratch.thread_bytes);
    for (long t = first; t < last; t++) {
        int64_t i = t - cpu_lane_of_row(a->batch, t)->row0;
        const float *dyn = cpu_floats(task->d, a->dyn.dtype, cpu_row(a->dyn, t, 0), a->dyn.n_col, buffer);
        for (int64_t c0 = 0; c0 < a->x.n_col;) {
            int64_t left = a->group - c0 % a->group, n = left < CHANNELS ? left : CHANNELS;
            convolve(task, t, i, dyn, c0, n);
            c0 += n;
        }
    }
}

void cpu_block_conv(struct device *base, const struct block_conv_args *a) {
    must(a->n_tap >= 1 && a->n_tap <= MAX_TAPS && a->x.n_col % a->group == 0);
    struct block_conv_task task = {cpu_device_of(base), a};
    workers_run(task.d->workers, a->x.n_row, 1, convolve_rows, &task);
    if (a->normed.data == NULL) return;
    struct norm_args norm = {.x = a->out, .out = a->normed, .weight = a->norm_weight, .eps = a->norm_eps};
    cpu_norm(base, &norm);
}
