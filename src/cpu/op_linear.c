// linear: rows are prepared once, then blocks of outputs are computed in parallel.
#include "cpu/linear.h"
#include "cpu/ops.h"
#include <string.h>

// A thread holds a row to prepare and what it is multiplied by, or the kernel's scratch and a block of outputs.
static size_t thread_bytes(const struct cpu_linear_method *m, int64_t n_in, int64_t n_row) {
    struct cpu_carver c = {0};
    int64_t rows = n_row < m->row_block ? n_row : m->row_block;
    cpu_carve(&c, cpu_method_scratch(m, n_in));
    cpu_carve(&c, (size_t)rows * (size_t)m->out_block * sizeof(float));
    cpu_carve(&c, (size_t)m->out_block * sizeof(float));
    size_t prepare = 2 * ((size_t)n_in * sizeof(float) + CPU_ROW_ALIGN);
    return c.used > prepare ? c.used : prepare;
}

void cpu_need_linear(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need) {
    const int64_t n_row[CPU_N_FORM] = {l->max_rows, l->max_round_rows};
    for (int form = 0; form < CPU_N_FORM; form++) {
        for (int c = 0; c < CPU_N_CLASS; c++) {
            const struct cpu_linear_method *m = &d->kernels.linear[form][c];
            size_t shared = cpu_largest_row_bytes(m, c, l->max_in) * (size_t)n_row[form];
            cpu_need_raise(need, shared, thread_bytes(m, l->max_in, n_row[form]));
        }
    }
}

struct linear_task {
    struct cpu_device *d;
    const struct linear_args *a;
    int64_t n_in;
    int group;
    char *rows; // prepared
    size_t row_bytes;
    // The parts that share the prepared rows, and where their items start.
    int n_parts, parts[LINEAR_MAX_PARTS];
    const struct cpu_linear_method *methods[LINEAR_MAX_PARTS];
    long first_item[LINEAR_MAX_PARTS + 1];
};

// row = round(silu(row) * up)
static void activate_row(struct linear_task *task, long t, float *row, float *other) {
    const struct cpu_kernels *k = &task->d->kernels;
    struct tensor up = task->a->up;
    const float *u = cpu_floats(task->d, up.dtype, cpu_row(up, t, 0), task->n_in, other);
    k->swiglu(row, u, task->n_in, row);
    if (up.dtype == DTYPE_F32) return;
    k->narrow(up.dtype, row, task->n_in, other);
    k->widen(up.dtype, other, task->n_in, row);
}

static void prepare_rows(void *context, long first, long last, int thread) {
    struct linear_task *task = context;
    const struct linear_args *a = task->a;
    const struct cpu_kernels *k = &task->d->kernels;
    int64_t n_in = task->n_in;
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    float *row = cpu_carve(&c, (size_t)n_in * sizeof(float)), *other = cpu_carve(&c, (size_t)n_in * sizeof(float));
    must(c.used <= task->d->scratch.thread_bytes);
    for (long t = first; t < last; t++) {
        const float *x = cpu_row(a->x, t, 0);
        if (a->x.dtype != DTYPE_F32) {
            k->widen(a->x.dtype, x, n_in, row);
            x = row;
        }
        if (a->up.data != NULL) {
            if (x != row) memcpy(row, x, (size_t)n_in * sizeof(float));
            activate_row(task, t, row, other);
            x = row;
        }
        if (a->norm_weight != NULL) {
            k->norm(x, a->norm_weight, a->norm_eps, n_in, row);
            x = row;
        }
        task->methods[0]->prepare(x, n_in, task->group, task->rows + (size_t)t * task->row_bytes);
    }
}

// Adds the residual and rounds: out = round(y + residual).
static void finish_block(struct linear_task *task, int part, int64_t row0, int64_t n_row, int64_t o, int64_t n_out,
                         float *y, float *residual) {
    const struct linear_args *a = task->a;
    struct tensor out = a->part[part].out;
    for (int64_t t = 0; t < n_row; t++) {
        const float *values = y + t * n_out;
        float *sum = out.dtype == DTYPE_F32 ? cpu_row(out, row0 + t, o) : y + t * n_out;
        if (a->residual.data != NULL) {
            const float *before =
                cpu_floats(task->d, a->residual.dtype, cpu_row(a->residual, row0 + t, o), n_out, residual);
            for (int64_t i = 0; i < n_out; i++) sum[i] = values[i] + before[i];
            values = sum;
        }
        cpu_finish(task->d, out.dtype, values, n_out, cpu_row(out, row0 + t, o));
    }
}

static void multiply_item(struct linear_task *task, int p, long item, int thread) {
    const struct cpu_linear_method *m = task->methods[p];
    int part = task->parts[p];
    const struct weight *w = task->a->part[part].w;
    struct tensor out = task->a->part[part].out;
    int64_t n_block = (w->n_out + m->out_block - 1) / m->out_block;
    int64_t row0 = item / n_block * m->row_block, o = item % n_block * m->out_block;
    int64_t n_row = out.n_row - row0 < m->row_block ? out.n_row - row0 : m->row_block;
    int64_t last = o + m->out_block < w->n_out ? o + m->out_block : w->n_out;
    const char *rows = task->rows + (size_t)row0 * task->row_bytes;
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    void *scratch = cpu_carve(&c, cpu_method_scratch(m, w->n_in));
    if (out.dtype == DTYPE_F32 && task->a->residual.data == NULL) {
        must(c.used <= task->d->scratch.thread_bytes);
        m->multiply(w, o, last, rows, n_row, cpu_row(out, row0, o), out.stride, scratch);
        return;
    }
    float *y = cpu_carve(&c, (size_t)(n_row * (last - o)) * sizeof(float));
    float *residual = cpu_carve(&c, (size_t)(last - o) * sizeof(float));
    must(c.used <= task->d->scratch.thread_bytes);
    m->multiply(w, o, last, rows, n_row, y, last - o, scratch);
    finish_block(task, part, row0, n_row, o, last - o, y, residual);
}

static void multiply_items(void *context, long first, long last, int thread) {
    struct linear_task *task = context;
    int p = 0;
    for (long item = first; item < last; item++) {
        while (item >= task->first_item[p + 1]) p++;
        multiply_item(task, p, item - task->first_item[p], thread);
    }
}

// Gathers the parts, from `lead` on, that can use rows prepared for `lead`, and marks them done.
static void gather_parts(struct linear_task *task, int lead, bool *done) {
    const struct linear_args *a = task->a;
    task->n_parts = 0;
    for (int part = lead; part < a->n_parts; part++) {
        const struct weight *w = a->part[part].w;
        const struct cpu_linear_method *m = &task->d->kernels.linear[a->form][cpu_weight_class_of(w)];
        int group = cpu_weight_group(w);
        if (part == lead) {
            task->methods[0] = m;
            task->group = group;
        }
        if (done[part] || m->prepare != task->methods[0]->prepare || group != task->group) continue;
        int64_t n_block = (w->n_out + m->out_block - 1) / m->out_block;
        int64_t n_row_block = (a->x.n_row + m->row_block - 1) / m->row_block;
        int p = task->n_parts++;
        task->parts[p] = part;
        task->methods[p] = m;
        task->first_item[p + 1] = task->first_item[p] + (long)(n_block * n_row_block);
        done[part] = true;
    }
}

void cpu_linear(struct device *base, const struct linear_args *a) {
    struct linear_task task = {.d = cpu_device_of(base), .a = a, .n_in = a->x.n_col};
    bool done[LINEAR_MAX_PARTS] = {false};
    for (int lead = 0; lead < a->n_parts; lead++) {
        if (done[lead]) continue;
        gather_parts(&task, lead, done);
        task.row_bytes = task.methods[0]->row_bytes(task.n_in, task.group);
        struct cpu_carver c = cpu_shared_scratch(task.d);
        task.rows = cpu_carve(&c, task.row_bytes * (size_t)a->x.n_row);
        must(c.used <= task.d->scratch.shared_bytes);
        workers_run(task.d->workers, a->x.n_row, 1, prepare_rows, &task);
        workers_run(task.d->workers, task.first_item[task.n_parts], 1, multiply_items, &task);
    }
}
