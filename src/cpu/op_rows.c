// Operations that work on each row alone: embed, norm, swiglu.
#include "cpu/ops.h"
#include "cpu/weights.h"

#define COLUMN_BLOCK 1024 // of swiglu: three fp32 blocks stay in the first-level cache

// One fp32 row in, one out, of the widest matrix.
void cpu_need_rows(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need) {
    (void)d;
    int64_t widest = l->max_in > l->max_out ? l->max_in : l->max_out;
    struct cpu_carver c = {0};
    cpu_carve(&c, (size_t)widest * sizeof(float));
    cpu_need_raise(need, 0, c.used);
}

struct embed_task {
    struct cpu_device *d;
    const struct embed_args *a;
};

static void embed_rows(void *context, long first, long last, int thread) {
    struct embed_task *task = context;
    const struct embed_args *a = task->a;
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    float *row = cpu_carve(&c, (size_t)a->table->n_in * sizeof(float));
    must(c.used <= task->d->scratch.thread_bytes);
    for (long t = first; t < last; t++) {
        cpu_weight_row(a->table, a->batch->ids[t], row);
        task->d->kernels.narrow(a->out.dtype, row, a->table->n_in, cpu_row(a->out, t, 0));
    }
}

void cpu_embed(struct device *base, const struct embed_args *a) {
    struct embed_task task = {cpu_device_of(base), a};
    workers_run(task.d->workers, a->out.n_row, 4, embed_rows, &task);
}

struct norm_task {
    struct cpu_device *d;
    const struct norm_args *a;
};

static void norm_rows(void *context, long first, long last, int thread) {
    struct norm_task *task = context;
    const struct norm_args *a = task->a;
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    float *row = cpu_carve(&c, (size_t)a->x.n_col * sizeof(float));
    must(c.used <= task->d->scratch.thread_bytes);
    for (long t = first; t < last; t++) {
        task->d->kernels.widen(a->x.dtype, cpu_row(a->x, t, 0), a->x.n_col, row);
        task->d->kernels.norm(row, a->weight, a->eps, a->x.n_col, row);
        task->d->kernels.narrow(a->out.dtype, row, a->x.n_col, cpu_row(a->out, t, 0));
    }
}

void cpu_norm(struct device *base, const struct norm_args *a) {
    struct norm_task task = {cpu_device_of(base), a};
    workers_run(task.d->workers, a->x.n_row, 4, norm_rows, &task);
}

struct swiglu_task {
    struct cpu_device *d;
    const struct swiglu_args *a;
    int64_t n_block; // of columns
};

static void swiglu_blocks(void *context, long first, long last, int thread) {
    (void)thread;
    struct swiglu_task *task = context;
    const struct swiglu_args *a = task->a;
    for (long item = first; item < last; item++) {
        float gate[COLUMN_BLOCK], up[COLUMN_BLOCK];
        int64_t t = item / task->n_block, col = item % task->n_block * COLUMN_BLOCK;
        int64_t n = a->gate.n_col - col < COLUMN_BLOCK ? a->gate.n_col - col : COLUMN_BLOCK;
        const float *g = cpu_floats(task->d, a->gate.dtype, cpu_row(a->gate, t, col), n, gate);
        const float *u = cpu_floats(task->d, a->up.dtype, cpu_row(a->up, t, col), n, up);
        float *out = a->out.dtype == DTYPE_F32 ? cpu_row(a->out, t, col) : gate;
        task->d->kernels.swiglu(g, u, n, out);
        cpu_finish(task->d, a->out.dtype, out, n, cpu_row(a->out, t, col));
    }
}

void cpu_swiglu(struct device *base, const struct swiglu_args *a) {
    struct swiglu_task task = {cpu_device_of(base), a, (a->gate.n_col + COLUMN_BLOCK - 1) / COLUMN_BLOCK};
    workers_run(task.d->workers, a->gate.n_row * task.n_block, 4, swiglu_blocks, &task);
}
