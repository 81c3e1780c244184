// The delta rule over a prompt pass: chunks of 64 rows at absolute positions. An item is a value head, which works off
// its chunks one after another: what a chunk takes and makes stays in the caches of one core, and only the state goes
// on.
#include "cpu/delta.h"
#include <string.h>

#define N CPU_DELTA_ROWS

// One chunk of one value head.
struct chunk_scratch {
    float *q, *k;                // [N][Dk]
    float *sum_g, *low_g, *beta; // [N]
    float *kk, *qk;              // [N][N]
    float *v, *o;                // [N][Dv]; v only where values are not fp32 already
    float *z;                    // [Dv]
    void *kernel;
};

static void carve_chunk(struct cpu_carver *c, const struct cpu_kernels *k, struct chunk_scratch *s, int64_t key_dim,
                        int64_t value_dim) {
    s->q = cpu_carve(c, (size_t)(N * key_dim) * sizeof(float));
    s->k = cpu_carve(c, (size_t)(N * key_dim) * sizeof(float));
    s->sum_g = cpu_carve(c, N * sizeof(float));
    s->low_g = cpu_carve(c, N * sizeof(float));
    s->beta = cpu_carve(c, N * sizeof(float));
    s->kk = cpu_carve(c, N * N * sizeof(float));
    s->qk = cpu_carve(c, N * N * sizeof(float));
    s->v = cpu_carve(c, (size_t)(N * value_dim) * sizeof(float));
    s->o = cpu_carve(c, (size_t)(N * value_dim) * sizeof(float));
    s->z = cpu_carve(c, (size_t)value_dim * sizeof(float));
    s->kernel = cpu_carve(c, k->delta_scratch((int)key_dim, (int)value_dim));
}

void cpu_need_delta_prompt(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need) {
    struct cpu_carver thread = {0};
    struct chunk_scratch s;
    carve_chunk(&thread, &d->kernels, &s, l->key_dim, l->value_dim);
    cpu_need_raise(need, 0, thread.used);
}

struct prompt_task {
    struct cpu_device *d;
    const struct delta_args *a;
    const struct cpu_delta_shape *shape;
    const struct lane *lane;
};

// Normalised q and k, gates and their cumulative sums, and the products inside the chunk. t0 is its first row.
static void prepare_chunk(const struct prompt_task *task, int head, int64_t t0, int n_row,
                          const struct chunk_scratch *s) {
    const struct delta_args *a = task->a;
    int key_head = head / (a->n_value_head / a->n_key_head);
    double sum = 0;
    for (int i = 0; i < n_row; i++) {
        float g;
        cpu_delta_qk(task->d, a, t0 + i, key_head, s->q + (int64_t)i * a->key_dim, s->k + (int64_t)i * a->key_dim);
        cpu_delta_gates(task->d, a, t0 + i, head, &g, &s->beta[i]);
        sum += g;
        s->sum_g[i] = (float)sum;
        s->low_g[i] = (float)(sum - s->sum_g[i]);
    }
    task->d->kernels.delta_scores(&(struct cpu_delta_scores){
        .n_row = n_row,
        .key_dim = a->key_dim,
        .q = s->q,
        .k = s->k,
        .sum_g = s->sum_g,
        .low_g = s->low_g,
        .beta = s->beta,
        .kk = s->kk,
        .qk = s->qk,
    });
}

// The head's values of the chunk as fp32 rows, *stride apart.
static const float *chunk_values(const struct prompt_task *task, int head, int64_t t0, int n_row,
                                 const struct chunk_scratch *s, int64_t *stride) {
    const struct delta_args *a = task->a;
    int64_t n = a->value_dim, first = 2 * (int64_t)a->n_key_head * a->key_dim + head * n;
    *stride = a->c.stride;
    if (a->c.dtype == DTYPE_F32) return cpu_row(a->c, t0, first);
    *stride = n;
    for (int i = 0; i < n_row; i++) task->d->kernels.widen(a->c.dtype, cpu_row(a->c, t0 + i, first), n, s->v + i * n);
    return s->v;
}

// Rows [row0, row0 + n_row) of the pass.
static void run_chunk(const struct prompt_task *task, int head, int64_t row0, int n_row, float *state,
                      const struct chunk_scratch *s) {
    const struct delta_args *a = task->a;
    int64_t t0 = task->lane->row0 + row0, v_stride;
    prepare_chunk(task, head, t0, n_row, s);
    const float *v = chunk_values(task, head, t0, n_row, s, &v_stride);
    task->d->kernels.delta_chunk(&(struct cpu_delta_chunk){
        .n_row = n_row,
        .key_dim = a->key_dim,
        .n_col = a->value_dim,
        .q = s->q,
        .k = s->k,
        .sum_g = s->sum_g,
        .low_g = s->low_g,
        .beta = s->beta,
        .kk = s->kk,
        .qk = s->qk,
        .v = v,
        .o = s->o,
        .state = state,
        .v_stride = v_stride,
        .o_stride = a->value_dim,
        .state_stride = a->value_dim,
        .scratch = s->kernel,
    });
    for (int i = 0; i < n_row; i++) cpu_delta_output(task->d, a, t0 + i, head, s->o + (int64_t)i * a->value_dim, s->z);
}

// Copies a state into the run of each keep at this position.
static void keep_state(const struct prompt_task *task, int64_t position, int head, const float *state) {
    const struct batch *b = task->a->batch;
    size_t bytes = (size_t)task->a->key_dim * (size_t)task->a->value_dim * sizeof *state;
    for (int i = 0; i < b->n_keep; i++)
        if (b->keeps[i].position == position) memcpy(cpu_delta_state(task->shape, b->keeps[i].run, head), state, bytes);
}

static void run_heads(void *context, long first, long last, int thread) {
    struct prompt_task *task = context;
    const struct delta_args *a = task->a;
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    struct chunk_scratch s;
    carve_chunk(&c, &task->d->kernels, &s, a->key_dim, a->value_dim);
    must(c.used <= task->d->scratch.thread_bytes);
    for (long head = first; head < last; head++) {
        float *state = cpu_delta_state(task->shape, task->lane->run, (int)head);
        if (task->lane->position == 0) memset(state, 0, (size_t)a->key_dim * (size_t)a->value_dim * sizeof *state);
        for (int64_t row = 0; row < task->lane->n_row; row += N) {
            int n_row = task->lane->n_row - row < N ? (int)(task->lane->n_row - row) : N;
            run_chunk(task, (int)head, row, n_row, state, &s);
            if (n_row == N) keep_state(task, task->lane->position + row + N, (int)head, state);
        }
    }
}

void cpu_delta_prompt(struct cpu_device *d, const struct delta_args *a, const struct cpu_delta_shape *shape) {
    must(a->batch->n_lane == 1 && a->batch->lanes[0].position % N == 0 && a->batch->lanes[0].n_pending == 0);
    struct prompt_task task = {.d = d, .a = a, .shape = shape, .lane = &a->batch->lanes[0]};
    workers_run(d->workers, a->n_value_head, 1, run_heads, &task);
}
