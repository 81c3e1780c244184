// delta and delta_commit. The rows form: one row after another, with the log that lets rows be taken back.
#include "cpu/delta.h"
#include "cpu/kernels.h"
#include <math.h>
#include <string.h>

#define L2_EPS         1e-6f
#define SOFTPLUS_LIMIT 20.0f // above it softplus(x) is x, as in the reference implementation

void cpu_delta_qk(const struct cpu_device *d, const struct delta_args *a, int64_t t, int key_head, float *q, float *k) {
    int64_t n = a->key_dim, keys = (int64_t)a->n_key_head * n;
    const float *raw_q = cpu_floats(d, a->c.dtype, cpu_row(a->c, t, key_head * n), n, q);
    const float *raw_k = cpu_floats(d, a->c.dtype, cpu_row(a->c, t, keys + key_head * n), n, k);
    d->kernels.unit(raw_q, L2_EPS, 1.0f / sqrtf((float)n), n, q);
    d->kernels.unit(raw_k, L2_EPS, 1.0f, n, k);
}

void cpu_delta_gates(const struct cpu_device *d, const struct delta_args *a, int64_t t, int head, float *g,
                     float *beta) {
    float x, b;
    d->kernels.widen(a->a.dtype, cpu_row(a->a, t, head), 1, &x);
    d->kernels.widen(a->b.dtype, cpu_row(a->b, t, head), 1, &b);
    x += a->dt_bias[head];
    *g = a->neg_a[head] * (x > SOFTPLUS_LIMIT ? x : log1pf(expf(x)));
    *beta = 1.0f / (1.0f + expf(-b));
}

void cpu_delta_output(const struct cpu_device *d, const struct delta_args *a, int64_t t, int head, float *o, float *z) {
    int64_t n = a->value_dim;
    const float *gate = cpu_floats(d, a->z.dtype, cpu_row(a->z, t, head * n), n, z);
    float *out = a->out.dtype == DTYPE_F32 ? cpu_row(a->out, t, head * n) : o;
    d->kernels.norm(o, a->out_norm, a->eps, n, o);
    (a->gate_sigmoid ? d->kernels.mul_sigmoid : d->kernels.mul_silu)(o, gate, n, out);
    cpu_finish(d, a->out.dtype, out, n, cpu_row(a->out, t, head * n));
}

// What a thread needs for one value head.
struct rows_scratch {
    float *state, *q, *k, *v, *o, *z;
};

static void carve_rows_scratch(struct cpu_carver *c, struct rows_scratch *s, int64_t key_dim, int64_t value_dim) {
    s->state = cpu_carve(c, (size_t)(key_dim * value_dim) * sizeof(float));
    s->q = cpu_carve(c, (size_t)key_dim * sizeof(float));
    s->k = cpu_carve(c, (size_t)key_dim * sizeof(float));
    s->v = cpu_carve(c, (size_t)value_dim * sizeof(float));
    s->o = cpu_carve(c, (size_t)value_dim * sizeof(float));
    s->z = cpu_carve(c, (size_t)value_dim * sizeof(float));
}

void cpu_need_delta(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need) {
    struct cpu_carver thread = {0};
    struct rows_scratch s;
    carve_rows_scratch(&thread, &s, l->key_dim, l->value_dim);
    cpu_need_raise(need, 0, thread.used);
    cpu_need_delta_prompt(d, l, need);
}

// Brings the state in memory to the lane's position. Before the first position it is zeros and was never written.
static void fold_pending(const struct cpu_device *d, const struct cpu_delta_shape *s, const struct lane *lane,
                         int head) {
    float *state = cpu_delta_state(s, lane->run, head);
    int key_head = head / (s->n_value_head / s->n_key_head);
    int64_t first = lane->position - lane->n_pending;
    if (first == 0 && lane->n_pending > 0) memset(state, 0, (size_t)s->key_dim * (size_t)s->value_dim * sizeof(float));
    for (int64_t p = first; p < lane->position; p++) {
        d->kernels.delta_fold(&(struct cpu_delta_row){
            .key_dim = s->key_dim,
            .value_dim = s->value_dim,
            .k = cpu_delta_log_k(s, lane->run, p, key_head),
            .d = cpu_delta_log_d(s, lane->run, p, head),
            .decay = expf(*cpu_delta_log_g(s, lane->run, p, head)),
            .state = state,
        });
    }
}

struct delta_task {
    struct cpu_device *d;
    const struct delta_args *a;
    struct cpu_delta_shape shape;
};

static void run_row(struct delta_task *task, const struct lane *lane, int64_t i, int head,
                    const struct rows_scratch *s) {
    const struct delta_args *a = task->a;
    int r = a->n_value_head / a->n_key_head, key_head = head / r;
    int64_t t = lane->row0 + i, position = lane->position + i, n = a->value_dim;
    float g, beta;
    cpu_delta_qk(task->d, a, t, key_head, s->q, s->k);
    cpu_delta_gates(task->d, a, t, head, &g, &beta);
    const void *values = cpu_row(a->c, t, 2 * (int64_t)a->n_key_head * a->key_dim + head * n);
    task->d->kernels.delta_step(&(struct cpu_delta_row){
        .key_dim = a->key_dim,
        .value_dim = a->value_dim,
        .q = s->q,
        .k = s->k,
        .v = cpu_floats(task->d, a->c.dtype, values, n, s->v),
        .decay = expf(g),
        .beta = beta,
        .state = s->state,
        .d = cpu_delta_log_d(&task->shape, lane->run, position, head),
        .o = s->o,
    });
    *cpu_delta_log_g(&task->shape, lane->run, position, head) = g;
    if (head % r == 0) // one of the value heads that share the key logs it
        memcpy(cpu_delta_log_k(&task->shape, lane->run, position, key_head), s->k, (size_t)a->key_dim * sizeof(float));
    cpu_delta_output(task->d, a, t, head, s->o, s->z);
}

static void run_heads(void *context, long first, long last, int thread) {
    struct delta_task *task = context;
    const struct delta_args *a = task->a;
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    struct rows_scratch s;
    carve_rows_scratch(&c, &s, a->key_dim, a->value_dim);
    must(c.used <= task->d->scratch.thread_bytes);
    size_t state_bytes = (size_t)a->key_dim * (size_t)a->value_dim * sizeof(float);
    for (long item = first; item < last; item++) {
        const struct lane *lane = &a->batch->lanes[item / a->n_value_head];
        int head = (int)(item % a->n_value_head);
        fold_pending(task->d, &task->shape, lane, head);
        if (lane->position == 0)
            memset(s.state, 0, state_bytes);
        else
            memcpy(s.state, cpu_delta_state(&task->shape, lane->run, head), state_bytes);
        for (int64_t i = 0; i < lane->n_row; i++) run_row(task, lane, i, head, &s);
    }
}

void cpu_delta(struct device *base, const struct delta_args *a) {
    struct delta_task task = {.d = cpu_device_of(base), .a = a};
    task.shape = (struct cpu_delta_shape){
        a->n_key_head,
        a->n_value_head,
        a->key_dim,
        a->value_dim,
        a->state_offset,
        a->log_offset,
        2 * (int64_t)a->batch->max_window,
    };
    if (a->batch->form == FORM_PROMPT)
        cpu_delta_prompt(task.d, a, &task.shape);
    else
        workers_run(task.d->workers, (long)a->batch->n_lane * a->n_value_head, 1, run_heads, &task);
}

struct commit_task {
    struct cpu_device *d;
    const struct lane *lane;
    struct cpu_delta_shape shape;
};

static void commit_heads(void *context, long first, long last, int thread) {
    (void)thread;
    struct commit_task *task = context;
    for (long head = first; head < last; head++) fold_pending(task->d, &task->shape, task->lane, (int)head);
}

void cpu_delta_commit(struct device *base, const struct delta_commit_args *a) {
    struct commit_task task = {cpu_device_of(base),
                               a->lane,
                               {
                                   a->n_key_head,
                                   a->n_value_head,
                                   a->key_dim,
                                   a->value_dim,
                                   a->state_offset,
                                   a->log_offset,
                                   2 * (int64_t)a->max_window,
                               }};
    workers_run(task.d->workers, a->n_value_head, 1, commit_heads, &task);
}
