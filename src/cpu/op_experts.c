// experts: rows are grouped by expert, so that each expert's weights are read once for all its rows.
//   1. each row is prepared and copied to its place in the group of each of its experts
//   2. each (expert, block of its width): gate, up, activation
//   3. each (row, slot): the activation is prepared for `down`
//   4. each block of outputs: down of all experts, then each row's sum in slot order
// Where a row stands in a group has no influence on its bits.
#include "cpu/linear.h"
#include "cpu/ops.h"
#include <string.h>

#define ROWS 1024 // worked off at a time: bounds the scratch

// A pair is a row with one of its experts. Pairs are sorted by expert, then by row.
struct experts_layout {
    int32_t *first;      // [E + 1]: the expert's pairs are [first[e], first[e + 1])
    int32_t *place;      // [ROWS][n_used]: where the pair stands
    int32_t *active;     // [E]: experts that have pairs
    char *x_gate, *x_up; // [pair] prepared rows; the same when gate and up prepare alike
    float *h;            // [pair][Ie]
    char *h_down;        // [pair] prepared rows
};

static void carve_experts(struct cpu_carver *c, struct experts_layout *x, int64_t n_expert, int64_t n_pair,
                          size_t gate_bytes, size_t up_bytes, int64_t width, size_t down_bytes) {
    x->first = cpu_carve(c, (size_t)(n_expert + 1) * sizeof(int32_t));
    x->active = cpu_carve(c, (size_t)n_expert * sizeof(int32_t));
    x->place = cpu_carve(c, (size_t)n_pair * sizeof(int32_t));
    x->x_gate = cpu_carve(c, (size_t)n_pair * gate_bytes);
    x->x_up = up_bytes > 0 ? cpu_carve(c, (size_t)n_pair * up_bytes) : x->x_gate;
    x->h = cpu_carve(c, (size_t)(n_pair * width) * sizeof(float));
    x->h_down = cpu_carve(c, (size_t)n_pair * down_bytes);
}

// Everything that a thread holds at once: a kernel's scratch, and blocks of gate and up, or of down and two sums.
static size_t thread_bytes(size_t method_scratch, int64_t n_in, int64_t n_pair, int64_t out_block) {
    struct cpu_carver c = {0};
    cpu_carve(&c, method_scratch);
    cpu_carve(&c, (size_t)n_in * sizeof(float));
    for (int i = 0; i < 4; i++) cpu_carve(&c, (size_t)((i < 2 ? n_pair : 1) * out_block) * sizeof(float));
    return c.used;
}

void cpu_need_experts(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need) {
    if (l->n_expert == 0) return;
    const int64_t rows[CPU_N_FORM] = {l->max_rows, l->max_round_rows};
    for (int form = 0; form < CPU_N_FORM; form++) {
        int64_t n_row = rows[form] < ROWS ? rows[form] : ROWS;
        int64_t n_pair = n_row * l->n_used, widest = l->max_in > l->expert_width ? l->max_in : l->expert_width;
        size_t x_bytes = 0, h_bytes = 0, scratch = 0;
        int64_t out_block = 0;
        for (int c = 0; c < CPU_N_CLASS; c++) {
            const struct cpu_linear_method *m = &d->kernels.linear[form][c];
            size_t x = cpu_largest_row_bytes(m, c, l->max_in), h = cpu_largest_row_bytes(m, c, l->expert_width);
            if (x > x_bytes) x_bytes = x;
            if (h > h_bytes) h_bytes = h;
            if (cpu_method_scratch(m, widest) > scratch) scratch = cpu_method_scratch(m, widest);
            if (m->out_block > out_block) out_block = m->out_block;
        }
        cpu_need_raise(need, 0, thread_bytes(scratch, widest, n_pair, out_block));
        struct cpu_carver shared = {0};
        struct experts_layout x;
        carve_experts(&shared, &x, l->n_expert, n_pair, x_bytes, x_bytes, l->expert_width, h_bytes);
        cpu_need_raise(need, shared.used, 0);
    }
}

struct experts_task {
    struct cpu_device *d;
    const struct experts_args *a;
    struct experts_layout x;
    const struct cpu_linear_method *gate, *up, *down;
    size_t gate_bytes, up_bytes, down_bytes; // of prepared rows; up_bytes is 0 when it shares gate's
    int64_t hidden, width;
    int64_t row0, n_row; // worked off
    int64_t n_active;
};

static const struct cpu_linear_method *method_of(const struct experts_task *task, const struct weight *w) {
    return &task->d->kernels.linear[task->a->form][cpu_weight_class_of(w)];
}

// Counting sort of the pairs by expert.
static void group_pairs(struct experts_task *task) {
    const struct experts_args *a = task->a;
    struct experts_layout *x = &task->x;
    const int32_t *ids = a->ids + task->row0 * a->n_used;
    int64_t n_pair = task->n_row * a->n_used;
    memset(x->first, 0, (size_t)(a->n_expert + 1) * sizeof(int32_t));
    for (int64_t i = 0; i < n_pair; i++) x->first[ids[i] + 1]++;
    task->n_active = 0;
    for (int e = 0; e < a->n_expert; e++) {
        if (x->first[e + 1] > 0) x->active[task->n_active++] = e;
        x->first[e + 1] += x->first[e];
    }
    // Each expert's start moves up as its places are given out, and back afterwards.
    for (int64_t i = 0; i < n_pair; i++) x->place[i] = x->first[ids[i]]++;
    for (int e = a->n_expert; e > 0; e--) x->first[e] = x->first[e - 1];
    x->first[0] = 0;
}

static void place_prepared(struct experts_task *task, int64_t row, const float *x, const struct cpu_linear_method *m,
                           int group, char *rows, size_t row_bytes) {
    const int32_t *place = task->x.place + row * task->a->n_used;
    char *first = rows + (size_t)place[0] * row_bytes;
    m->prepare(x, task->hidden, group, first);
    for (int s = 1; s < task->a->n_used; s++) memcpy(rows + (size_t)place[s] * row_bytes, first, row_bytes);
}

static void prepare_x(void *context, long first, long last, int thread) {
    struct experts_task *task = context;
    const struct experts_args *a = task->a;
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    float *x = cpu_carve(&c, (size_t)task->hidden * sizeof(float));
    for (long row = first; row < last; row++) {
        task->d->kernels.widen(a->x.dtype, cpu_row(a->x, task->row0 + row, 0), task->hidden, x);
        place_prepared(task, row, x, task->gate, cpu_weight_group(&a->gate[0]), task->x.x_gate, task->gate_bytes);
        if (task->up_bytes > 0)
            place_prepared(task, row, x, task->up, cpu_weight_group(&a->up[0]), task->x.x_up, task->up_bytes);
    }
}

// Outputs [first, last) of all rows; first is a multiple of the method's block.
static void multiply(const struct cpu_linear_method *m, const struct weight *w, int64_t first, int64_t last,
                     const char *rows, size_t row_bytes, int64_t n_row, float *y, int64_t y_stride, void *scratch) {
    for (int64_t row = 0; row < n_row; row += m->row_block) {
        int64_t n = n_row - row < m->row_block ? n_row - row : m->row_block;
        for (int64_t o = first; o < last; o += m->out_block) {
            int64_t end = o + m->out_block < last ? o + m->out_block : last;
            m->multiply(w, o, end, rows + (size_t)row * row_bytes, n, y + row * y_stride + o - first, y_stride,
                        scratch);
        }
    }
}

// Blocks of outputs are powers of two, so the wider of gate's and up's suits both.
static int64_t inner_block(const struct experts_task *task) {
    return task->gate->out_block > task->up->out_block ? task->gate->out_block : task->up->out_block;
}

static void gate_up_items(void *context, long first, long last, int thread) {
    struct experts_task *task = context;
    const struct experts_args *a = task->a;
    int64_t block = inner_block(task), n_block = (task->width + block - 1) / block;
    for (long item = first; item < last; item++) {
        int e = task->x.active[item / n_block];
        int64_t o = item % n_block * block, end = o + block < task->width ? o + block : task->width, n = end - o;
        int64_t pair = task->x.first[e], n_pair = task->x.first[e + 1] - pair;
        size_t gate_scratch = cpu_method_scratch(task->gate, task->hidden);
        size_t up_scratch = cpu_method_scratch(task->up, task->hidden);
        struct cpu_carver c = cpu_thread_scratch(task->d, thread);
        void *scratch = cpu_carve(&c, gate_scratch > up_scratch ? gate_scratch : up_scratch);
        float *gate = cpu_carve(&c, (size_t)(n_pair * n) * sizeof(float));
        float *up = cpu_carve(&c, (size_t)(n_pair * n) * sizeof(float));
        must(c.used <= task->d->scratch.thread_bytes);
        size_t up_bytes = task->up_bytes > 0 ? task->up_bytes : task->gate_bytes;
        multiply(task->gate, &a->gate[e], o, end, task->x.x_gate + (size_t)pair * task->gate_bytes, task->gate_bytes,
                 n_pair, gate, n, scratch);
        multiply(task->up, &a->up[e], o, end, task->x.x_up + (size_t)pair * up_bytes, up_bytes, n_pair, up, n, scratch);
        for (int64_t i = 0; i < n_pair; i++)
            task->d->kernels.swiglu(gate + i * n, up + i * n, n, task->x.h + (pair + i) * task->width + o);
    }
}

static void prepare_h(void *context, long first, long last, int thread) {
    struct experts_task *task = context;
    const struct cpu_kernels *k = &task->d->kernels;
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    float *rounded = cpu_carve(&c, (size_t)task->width * sizeof(float));
    for (long pair = first; pair < last; pair++) {
        float *h = task->x.h + pair * task->width;
        if (task->a->x.dtype != DTYPE_F32) { // the contract rounds h to the activation type
            k->narrow(task->a->x.dtype, h, task->width, rounded);
            k->widen(task->a->x.dtype, rounded, task->width, h);
        }
        task->down->prepare(h, task->width, cpu_weight_group(&task->a->down[0]),
                            task->x.h_down + (size_t)pair * task->down_bytes);
    }
}

// Outputs [o, o + n) of one row: residual, then the experts in slot order, then the shared expert.
static void add_row(struct experts_task *task, int64_t row, int64_t o, int64_t n, const float *y, float *sum,
                    float *shared) {
    const struct experts_args *a = task->a;
    int64_t t = task->row0 + row;
    task->d->kernels.widen(a->residual.dtype, cpu_row(a->residual, t, o), n, sum);
    for (int s = 0; s < a->n_used; s++) {
        const float *from = y + task->x.place[row * a->n_used + s] * n;
        float weight = a->weights[t * a->n_used + s];
        for (int64_t i = 0; i < n; i++) sum[i] += weight * from[i];
    }
    if (a->shared_out.data != NULL) {
        task->d->kernels.widen(a->shared_out.dtype, cpu_row(a->shared_out, t, o), n, shared);
        for (int64_t i = 0; i < n; i++) sum[i] += a->shared[t] * shared[i];
    }
    task->d->kernels.narrow(a->out.dtype, sum, n, cpu_row(a->out, t, o));
}

static void down_items(void *context, long first, long last, int thread) {
    struct experts_task *task = context;
    const struct experts_args *a = task->a;
    int64_t block = task->down->out_block;
    for (long item = first; item < last; item++) {
        int64_t o = item * block, end = o + block < task->hidden ? o + block : task->hidden, n = end - o;
        struct cpu_carver c = cpu_thread_scratch(task->d, thread);
        void *scratch = cpu_carve(&c, cpu_method_scratch(task->down, task->width));
        float *y = cpu_carve(&c, (size_t)(task->n_row * a->n_used * n) * sizeof(float));
        float *sum = cpu_carve(&c, (size_t)n * sizeof(float));
        float *shared = cpu_carve(&c, (size_t)n * sizeof(float));
        must(c.used <= task->d->scratch.thread_bytes);
        for (int64_t i = 0; i < task->n_active; i++) {
            int e = task->x.active[i];
            int64_t pair = task->x.first[e], n_pair = task->x.first[e + 1] - pair;
            multiply(task->down, &a->down[e], o, end, task->x.h_down + (size_t)pair * task->down_bytes,
                     task->down_bytes, n_pair, y + pair * n, n, scratch);
        }
        for (int64_t row = 0; row < task->n_row; row++) add_row(task, row, o, n, y, sum, shared);
    }
}

static void run_block(struct experts_task *task) {
    const struct experts_args *a = task->a;
    int64_t n_pair = task->n_row * a->n_used, block = inner_block(task);
    struct cpu_carver c = cpu_shared_scratch(task->d);
    carve_experts(&c, &task->x, a->n_expert, n_pair, task->gate_bytes, task->up_bytes, task->width, task->down_bytes);
    must(c.used <= task->d->scratch.shared_bytes);
    struct workers *w = task->d->workers;
    group_pairs(task);
    workers_run(w, (long)task->n_row, 1, prepare_x, task);
    workers_run(w, (long)(task->n_active * ((task->width + block - 1) / block)), 1, gate_up_items, task);
    workers_run(w, (long)n_pair, 1, prepare_h, task);
    workers_run(w, (long)((task->hidden + task->down->out_block - 1) / task->down->out_block), 1, down_items, task);
}

void cpu_experts(struct device *base, const struct experts_args *a) {
    struct experts_task task = {.d = cpu_device_of(base), .a = a, .hidden = a->x.n_col, .width = a->gate[0].n_out};
    task.gate = method_of(&task, &a->gate[0]);
    task.up = method_of(&task, &a->up[0]);
    task.down = method_of(&task, &a->down[0]);
    task.gate_bytes = task.gate->row_bytes(task.hidden, cpu_weight_group(&a->gate[0]));
    bool alike = task.up->prepare == task.gate->prepare && cpu_weight_group(&a->up[0]) == cpu_weight_group(&a->gate[0]);
    task.up_bytes = alike ? 0 : task.up->row_bytes(task.hidden, cpu_weight_group(&a->up[0]));
    task.down_bytes = task.down->row_bytes(task.width, cpu_weight_group(&a->down[0]));
    for (task.row0 = 0; task.row0 < a->x.n_row; task.row0 += ROWS) {
        task.n_row = a->x.n_row - task.row0 < ROWS ? a->x.n_row - task.row0 : ROWS;
        run_block(&task);
    }
}
