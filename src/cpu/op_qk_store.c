// qk_store: norm and rotation of queries and keys, and the only writer of the page pool.
#include "base/numeric.h"
#include "cpu/ops.h"
#include "cpu/pages.h"
#include <math.h>
#include <string.h>

#define HEADS_PER_ITEM 8

static void carve_tables(struct cpu_carver *c, int64_t n_row, int64_t head_dim, float **cos_table) {
    *cos_table = cpu_carve(c, (size_t)(n_row * head_dim) * sizeof(float));
}

void cpu_need_qk_store(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need) {
    (void)d;
    int64_t n_row = l->max_rows > l->max_round_rows ? l->max_rows : l->max_round_rows;
    struct cpu_carver shared = {0}, thread = {0};
    float *table;
    int64_t head_dim = l->head_dim > l->block_head_dim ? l->head_dim : l->block_head_dim;
    carve_tables(&shared, n_row, head_dim, &table); // n_rot <= head_dim
    cpu_carve(&thread, (size_t)head_dim * sizeof(float));
    cpu_need_raise(need, shared.used, thread.used);
}

struct qk_task {
    struct cpu_device *d;
    const struct qk_store_args *a;
    float *angles; // [T][n_rot]: cosines, then sines
    long items_per_row;
};

static void fill_angles(void *context, long first, long last, int thread) {
    (void)thread;
    struct qk_task *task = context;
    const struct qk_store_args *a = task->a;
    int half = a->n_rot / 2;
    for (long t = first; t < last; t++) {
        const struct lane *lane = cpu_lane_of_row(a->batch, t);
        float *row = task->angles + t * a->n_rot;
        float position = (float)(lane->position + (t - lane->row0));
        for (int f = 0; f < half; f++) {
            float angle = position * a->inv_freq[f];
            row[f] = cosf(angle);
            row[half + f] = sinf(angle);
        }
    }
}

static void rotate(float *x, const float *angles, int n_rot) {
    int half = n_rot / 2;
    for (int i = 0; i < half; i++) {
        float low = x[i], high = x[half + i];
        x[i] = low * angles[i] - high * angles[half + i];
        x[half + i] = high * angles[i] + low * angles[half + i];
    }
}

// A head's vector as e4m3 codes, and what they are to be multiplied by.
static void store_e4m3(const float *x, int64_t n, uint8_t *codes, float *scale) {
    float most = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    *scale = most / 448.0f;
    for (int64_t i = 0; i < n; i++) codes[i] = most > 0 ? float_to_e4m3(x[i] / *scale) : 0;
}

// Heads are counted queries first, then keys, then values.
static void store_head(struct qk_task *task, int64_t t, int h, float *x) {
    const struct qk_store_args *a = task->a;
    const struct cpu_kernels *k = &task->d->kernels;
    int64_t n = a->head_dim;
    const float *angles = task->angles + t * a->n_rot;
    if (h < a->n_head) {
        k->widen(a->qg.dtype, cpu_row(a->qg, t, h * (a->no_gate ? 1 : 2) * n), n, x);
        k->norm(x, a->q_norm, a->eps, n, x);
        rotate(x, angles, a->n_rot);
        k->narrow(a->q_out.dtype, x, n, cpu_row(a->q_out, t, h * n));
        return;
    }
    bool is_key = h < a->n_head + a->n_kv_head;
    int kv_head = h - a->n_head - (is_key ? 0 : a->n_kv_head);
    struct tensor from = is_key ? a->k : a->v;
    k->widen(from.dtype, cpu_row(from, t, kv_head * n), n, x);
    if (is_key) {
        k->norm(x, a->k_norm, a->eps, n, x);
        rotate(x, angles, a->n_rot);
    }
    const struct lane *lane = cpu_lane_of_row(a->batch, t);
    int64_t position = lane->position + (t - lane->row0);
    char *stored = cpu_kv_row(&a->kv, lane, a->n_kv_head, a->head_dim, kv_head, position, !is_key);
    if (a->kv.dtype == DTYPE_E4M3)
        store_e4m3(x, n, (uint8_t *)stored, cpu_kv_scale(&a->kv, lane, a->n_kv_head, kv_head, position, !is_key));
    else
        k->narrow(a->kv.dtype, x, n, stored);
}

static void store_heads(void *context, long first, long last, int thread) {
    struct qk_task *task = context;
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    float *x = cpu_carve(&c, (size_t)task->a->head_dim * sizeof(float));
    must(c.used <= task->d->scratch.thread_bytes);
    for (long item = first; item < last; item++) {
        int h0 = (int)(item % task->items_per_row) * HEADS_PER_ITEM;
        int n_head = task->a->n_head + 2 * task->a->n_kv_head;
        for (int h = h0; h < h0 + HEADS_PER_ITEM && h < n_head; h++) store_head(task, item / task->items_per_row, h, x);
    }
}

void cpu_qk_store(struct device *base, const struct qk_store_args *a) {
    struct qk_task task = {.d = cpu_device_of(base), .a = a};
    struct cpu_carver c = cpu_shared_scratch(task.d);
    carve_tables(&c, a->batch->n_row, a->n_rot, &task.angles);
    must(c.used <= task.d->scratch.shared_bytes);
    task.items_per_row = (a->n_head + 2 * a->n_kv_head + HEADS_PER_ITEM - 1) / HEADS_PER_ITEM;
    workers_run(task.d->workers, a->batch->n_row, 16, fill_angles, &task);
    workers_run(task.d->workers, a->batch->n_row * task.items_per_row, 4, store_heads, &task);
}
