// router: which experts a row goes to. Products are fp32 in every compute mode, so that the choice does not depend on
// it.
#include "cpu/linear.h"
#include "cpu/ops.h"
#include <math.h>

#define ROWS 512 // worked off at a time: bounds the scratch

struct router_layout {
    float *logits; // [ROWS][E + 1]: the last is the shared gate's
    char *rows;    // [ROWS] prepared for the gate, then for the shared gate
};

static void carve_router(struct cpu_carver *c, struct router_layout *r, int64_t n_row, size_t row_bytes,
                         int64_t n_expert) {
    r->logits = cpu_carve(c, (size_t)(n_row * (n_expert + 1)) * sizeof(float)); // first: stays in place for both gates
    r->rows = cpu_carve(c, (size_t)n_row * row_bytes);
}

void cpu_need_router(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need) {
    if (l->n_expert == 0) return;
    int64_t n_row = l->max_rows > l->max_round_rows ? l->max_rows : l->max_round_rows;
    for (int c = 0; c < CPU_N_CLASS; c++) {
        const struct cpu_linear_method *m = &d->kernels.exact[c];
        struct cpu_carver shared = {0}, thread = {0};
        struct router_layout r;
        size_t row_bytes = cpu_largest_row_bytes(m, c, l->max_in);
        carve_router(&shared, &r, n_row < ROWS ? n_row : ROWS, row_bytes, l->n_expert);
        cpu_carve(&thread, (size_t)(l->max_in > l->n_expert ? l->max_in : l->n_expert) * sizeof(float));
        cpu_need_raise(need, 0, cpu_method_scratch(m, l->max_in));
        cpu_need_raise(need, shared.used, thread.used);
    }
}

struct router_task {
    struct cpu_device *d;
    const struct router_args *a;
    struct router_layout r;
    int64_t row0, n_row;
    const struct weight *w; // at hand
    const struct cpu_linear_method *method;
    size_t row_bytes;
    int64_t column; // of w's first output in logits
};

static void prepare_rows(void *context, long first, long last, int thread) {
    struct router_task *task = context;
    const struct router_args *a = task->a;
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    float *x = cpu_carve(&c, (size_t)task->w->n_in * sizeof(float));
    for (long t = first; t < last; t++) {
        task->d->kernels.widen(a->x.dtype, cpu_row(a->x, task->row0 + t, 0), task->w->n_in, x);
        task->method->prepare(x, task->w->n_in, cpu_weight_group(task->w), task->r.rows + (size_t)t * task->row_bytes);
    }
}

static void multiply_blocks(void *context, long first, long last, int thread) {
    struct router_task *task = context;
    const struct cpu_linear_method *m = task->method;
    int64_t n_block = (task->w->n_out + m->out_block - 1) / m->out_block, stride = task->a->gate->n_out + 1;
    void *scratch = cpu_thread_scratch(task->d, thread).base;
    for (long item = first; item < last; item++) {
        int64_t row = item / n_block * m->row_block, o = item % n_block * m->out_block;
        int64_t n_row = task->n_row - row < m->row_block ? task->n_row - row : m->row_block;
        int64_t end = o + m->out_block < task->w->n_out ? o + m->out_block : task->w->n_out;
        m->multiply(task->w, o, end, task->r.rows + (size_t)row * task->row_bytes, n_row,
                    task->r.logits + row * stride + task->column + o, stride, scratch);
    }
}

static void compute_logits(struct router_task *task, const struct weight *w, int64_t column) {
    const struct cpu_linear_method *m = task->method = &task->d->kernels.exact[cpu_weight_class_of(w)];
    task->w = w;
    task->column = column;
    task->row_bytes = m->row_bytes(w->n_in, cpu_weight_group(w));
    struct cpu_carver c = cpu_shared_scratch(task->d);
    carve_router(&c, &task->r, task->n_row, task->row_bytes, task->a->gate->n_out);
    must(c.used <= task->d->scratch.shared_bytes);
    int64_t n_block = (w->n_out + m->out_block - 1) / m->out_block;
    int64_t n_row_block = (task->n_row + m->row_block - 1) / m->row_block;
    workers_run(task->d->workers, (long)task->n_row, 4, prepare_rows, task);
    workers_run(task->d->workers, (long)(n_block * n_row_block), 1, multiply_blocks, task);
}

static void softmax(float *p, int64_t n, float max) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += p[i] = expf(p[i] - max);
    for (int64_t i = 0; i < n; i++) p[i] /= sum;
}

// The largest remaining p each time; scanning upwards leaves a tie to the lower id.
static void choose_rows(void *context, long first, long last, int thread) {
    struct router_task *task = context;
    const struct router_args *a = task->a;
    int64_t n_expert = a->gate->n_out;
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    float *p = cpu_carve(&c, (size_t)n_expert * sizeof(float));
    for (long t = first; t < last; t++) {
        const float *logits = task->r.logits + t * (n_expert + 1);
        int32_t *ids = a->ids + (task->row0 + t) * a->n_used;
        float *weights = a->weights + (task->row0 + t) * a->n_used;
        float sum = 0;
        for (int64_t e = 0; e < n_expert; e++) p[e] = logits[e];
        softmax(p, n_expert, task->d->kernels.maximum(logits, n_expert));
        for (int s = 0; s < a->n_used; s++) {
            int64_t best = 0;
            for (int64_t e = 1; e < n_expert; e++)
                if (p[e] > p[best]) best = e;
            ids[s] = (int32_t)best;
            sum += weights[s] = p[best];
            p[best] = -1; // below every probability
        }
        for (int s = 0; s < a->n_used; s++) weights[s] /= sum;
        if (a->shared_gate != NULL) a->shared[task->row0 + t] = 1.0f / (1.0f + expf(-logits[n_expert]));
    }
}

void cpu_router(struct device *base, const struct router_args *a) {
    struct router_task task = {.d = cpu_device_of(base), .a = a};
    must(a->n_used <= a->gate->n_out);
    for (task.row0 = 0; task.row0 < a->x.n_row; task.row0 += ROWS) {
        task.n_row = a->x.n_row - task.row0 < ROWS ? a->x.n_row - task.row0 : ROWS;
        compute_logits(&task, a->gate, 0);
        if (a->shared_gate != NULL) compute_logits(&task, a->shared_gate, a->gate->n_out);
        workers_run(task.d->workers, (long)task.n_row, 4, choose_rows, &task);
    }
}
