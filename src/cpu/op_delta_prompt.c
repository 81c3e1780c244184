// The delta rule over a prompt pass: chunks of 64 rows at absolute positions. A pass is worked off in blocks of a few
// chunks, which bounds the scratch, in three steps:
//   1. each (chunk, key head): normalised q and k, decays, and the products inside the chunk
//   2. each (value head, block of columns): the chunks one after another on the state; columns never mix
//   3. each row: output norm and gate
#include "cpu/delta.h"
#include <string.h>

#define BLOCK_CHUNKS 4
#define COLUMNS      64
#define N            CPU_DELTA_ROWS

struct block_layout {
    float *q, *k;        // [chunk][Hk][N][Dk]
    float *sum_g, *beta; // [chunk][Hv][N]
    float *kk, *qk;      // [chunk][Hv][N][N]
    float *v, *o;        // [chunk * N][Hv * Dv]
};

static void carve_block(struct cpu_carver *c, struct block_layout *b, int64_t n_chunk, int64_t n_key_head,
                        int64_t n_value_head, int64_t key_dim, int64_t value_dim) {
    size_t keys = (size_t)(n_chunk * n_key_head * N * key_dim) * sizeof(float);
    size_t heads = (size_t)(n_chunk * n_value_head * N) * sizeof(float);
    b->q = cpu_carve(c, keys);
    b->k = cpu_carve(c, keys);
    b->sum_g = cpu_carve(c, heads);
    b->beta = cpu_carve(c, heads);
    b->kk = cpu_carve(c, heads * N);
    b->qk = cpu_carve(c, heads * N);
    b->v = cpu_carve(c, heads * (size_t)value_dim);
    b->o = cpu_carve(c, heads * (size_t)value_dim);
}

void cpu_need_delta_prompt(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need) {
    struct cpu_carver shared = {0}, thread = {0};
    struct block_layout b;
    int64_t n_chunk = (l->max_rows + N - 1) / N;
    carve_block(&shared, &b, n_chunk < BLOCK_CHUNKS ? n_chunk : BLOCK_CHUNKS, l->n_key_head, l->n_value_head,
                l->key_dim, l->value_dim);
    cpu_carve(&thread, (size_t)l->value_dim * sizeof(float)); // z, in step 3
    size_t kernel = d->kernels.delta_scratch((int)l->key_dim, COLUMNS);
    cpu_need_raise(need, shared.used, kernel > thread.used ? kernel : thread.used);
}

struct prompt_task {
    struct cpu_device *d;
    const struct delta_args *a;
    const struct cpu_delta_shape *shape;
    const struct lane *lane;
    struct block_layout b;
    int64_t row0, n_row; // of the block, in the pass
    int64_t n_chunk;
    int64_t n_column_block;
};

static int chunk_rows(const struct prompt_task *task, int64_t chunk) {
    int64_t left = task->n_row - chunk * N;
    return left < N ? (int)left : N;
}

static float *of_key_head(const struct prompt_task *task, float *array, int64_t chunk, int key_head) {
    return array + (chunk * task->a->n_key_head + key_head) * N * task->a->key_dim;
}

static float *of_head(const struct prompt_task *task, float *array, int64_t chunk, int head, int64_t size) {
    return array + (chunk * task->a->n_value_head + head) * size;
}

// The value head's gates, their cumulative sums, and its values as fp32.
static void prepare_head(struct prompt_task *task, int64_t chunk, int head) {
    const struct delta_args *a = task->a;
    float *sum_g = of_head(task, task->b.sum_g, chunk, head, N);
    float *beta = of_head(task, task->b.beta, chunk, head, N);
    int64_t n = a->value_dim, values = 2 * (int64_t)a->n_key_head * a->key_dim;
    float sum = 0;
    for (int i = 0; i < chunk_rows(task, chunk); i++) {
        int64_t row = chunk * N + i, t = task->lane->row0 + task->row0 + row;
        float g;
        cpu_delta_gates(task->d, a, t, head, &g, &beta[i]);
        sum_g[i] = sum += g;
        task->d->kernels.widen(a->c.dtype, cpu_row(a->c, t, values + head * n), n,
                               task->b.v + (row * a->n_value_head + head) * n);
    }
}

static void prepare_chunks(void *context, long first, long last, int thread) {
    (void)thread;
    struct prompt_task *task = context;
    const struct delta_args *a = task->a;
    int r = a->n_value_head / a->n_key_head;
    for (long item = first; item < last; item++) {
        int64_t chunk = item / a->n_key_head;
        int key_head = (int)(item % a->n_key_head), n_row = chunk_rows(task, chunk);
        float *q = of_key_head(task, task->b.q, chunk, key_head), *k = of_key_head(task, task->b.k, chunk, key_head);
        for (int i = 0; i < n_row; i++)
            cpu_delta_qk(task->d, a, task->lane->row0 + task->row0 + chunk * N + i, key_head,
                         q + (int64_t)i * a->key_dim, k + (int64_t)i * a->key_dim);
        for (int head = key_head * r; head < (key_head + 1) * r; head++) {
            prepare_head(task, chunk, head);
            task->d->kernels.delta_scores(&(struct cpu_delta_scores){
                .n_row = n_row,
                .key_dim = a->key_dim,
                .q = q,
                .k = k,
                .sum_g = of_head(task, task->b.sum_g, chunk, head, N),
                .beta = of_head(task, task->b.beta, chunk, head, N),
                .kk = of_head(task, task->b.kk, chunk, head, N * N),
                .qk = of_head(task, task->b.qk, chunk, head, N * N),
            });
        }
    }
}

// Copies columns [col, col + n) of a state into the run of each keep at this position.
static void keep_state(const struct prompt_task *task, int64_t position, int head, int64_t col, int n,
                       const float *state) {
    const struct batch *b = task->a->batch;
    for (int i = 0; i < b->n_keep; i++) {
        if (b->keeps[i].position != position) continue;
        float *to = cpu_delta_state(task->shape, b->keeps[i].run, head) + col;
        for (int64_t row = 0; row < task->a->key_dim; row++)
            memcpy(to + row * task->a->value_dim, state + row * task->a->value_dim, (size_t)n * sizeof(float));
    }
}

static void run_chunk(struct prompt_task *task, int64_t chunk, int head, int64_t col, int n_col, float *state,
                      void *scratch) {
    const struct delta_args *a = task->a;
    int key_head = head / (a->n_value_head / a->n_key_head);
    int64_t width = (int64_t)a->n_value_head * a->value_dim, offset = chunk * N * width + head * a->value_dim + col;
    task->d->kernels.delta_chunk(&(struct cpu_delta_chunk){
        .n_row = chunk_rows(task, chunk),
        .key_dim = a->key_dim,
        .n_col = n_col,
        .q = of_key_head(task, task->b.q, chunk, key_head),
        .k = of_key_head(task, task->b.k, chunk, key_head),
        .sum_g = of_head(task, task->b.sum_g, chunk, head, N),
        .beta = of_head(task, task->b.beta, chunk, head, N),
        .kk = of_head(task, task->b.kk, chunk, head, N * N),
        .qk = of_head(task, task->b.qk, chunk, head, N * N),
        .v = task->b.v + offset,
        .o = task->b.o + offset,
        .state = state,
        .v_stride = width,
        .o_stride = width,
        .state_stride = a->value_dim,
        .scratch = scratch,
    });
}

static void run_columns(void *context, long first, long last, int thread) {
    struct prompt_task *task = context;
    const struct delta_args *a = task->a;
    void *scratch = cpu_thread_scratch(task->d, thread).base;
    for (long item = first; item < last; item++) {
        int head = (int)(item / task->n_column_block);
        int64_t col = item % task->n_column_block * COLUMNS;
        int n_col = a->value_dim - col < COLUMNS ? (int)(a->value_dim - col) : COLUMNS;
        float *state = cpu_delta_state(task->shape, task->lane->run, head) + col;
        int64_t start = task->lane->position + task->row0;
        if (start == 0)
            for (int64_t i = 0; i < a->key_dim; i++) memset(state + i * a->value_dim, 0, (size_t)n_col * sizeof(float));
        for (int64_t chunk = 0; chunk < task->n_chunk; chunk++) {
            run_chunk(task, chunk, head, col, n_col, state, scratch);
            if (chunk_rows(task, chunk) == N) keep_state(task, start + (chunk + 1) * N, head, col, n_col, state);
        }
    }
}

static void finish_rows(void *context, long first, long last, int thread) {
    struct prompt_task *task = context;
    const struct delta_args *a = task->a;
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    float *z = cpu_carve(&c, (size_t)a->value_dim * sizeof(float));
    for (long row = first; row < last; row++)
        for (int head = 0; head < a->n_value_head; head++)
            cpu_delta_output(task->d, a, task->lane->row0 + task->row0 + row, head,
                             task->b.o + ((int64_t)row * a->n_value_head + head) * a->value_dim, z);
}

void cpu_delta_prompt(struct cpu_device *d, const struct delta_args *a, const struct cpu_delta_shape *shape) {
    must(a->batch->n_lane == 1 && a->batch->lanes[0].position % N == 0 && a->batch->lanes[0].n_pending == 0);
    struct prompt_task task = {.d = d, .a = a, .shape = shape, .lane = &a->batch->lanes[0]};
    task.n_column_block = (a->value_dim + COLUMNS - 1) / COLUMNS;
    for (task.row0 = 0; task.row0 < task.lane->n_row; task.row0 += BLOCK_CHUNKS * N) {
        int64_t left = task.lane->n_row - task.row0;
        task.n_row = left < BLOCK_CHUNKS * N ? left : BLOCK_CHUNKS * N;
        task.n_chunk = (task.n_row + N - 1) / N;
        struct cpu_carver c = cpu_shared_scratch(d);
        carve_block(&c, &task.b, task.n_chunk, a->n_key_head, a->n_value_head, a->key_dim, a->value_dim);
        must(c.used <= d->scratch.shared_bytes);
        workers_run(d->workers, (long)(task.n_chunk * a->n_key_head), 1, prepare_chunks, &task);
        workers_run(d->workers, (long)(a->n_value_head * task.n_column_block), 1, run_columns, &task);
        workers_run(d->workers, (long)task.n_row, 4, finish_rows, &task);
    }
}
