// Times the CPU backend's operations at the shapes of real models, beside what this machine's memory and arithmetic
// allow in the same run: weights, activations and states are read and written once, and operations done once, at the
// measured rates. Weights of each call are others than those of the call before, so that they come from memory.
//
//   tf-cpu-bench [--threads N] [--compute f32|bf16|int8] [--isa c|avx2|avx512|avx512-vnni|amx] [SHAPE ...]
#include "base/clock.h"
#include "base/machine.h"
#include "base/random.h"
#include "base/workers.h"
#include "bench/peak.h"
#include "cpu/device_cpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP      64
#define BITS       4
#define POOL_BYTES ((size_t)1 << 30) // of codes: more than any cache, and more than the largest matrix
#define PROMPT     2048              // rows, and keys before a decoded row
#define REPEATS    9
#define VOCABULARY 248320

struct shape {
    const char *name;
    int64_t hidden, inner, n_head, n_kv_head, n_value_head;
};

static const struct shape shapes[] = {
    {"0.8b", 1024, 3584, 8, 2, 16},
    {"2b", 2048, 6144, 8, 2, 16},
    {"27b", 5120, 17408, 24, 4, 48},
};

enum { HEAD = 256, KEY_HEADS = 16, DELTA_DIM = 128, TAPS = 4, WINDOW = 8, PAGE_ROWS = 256 };

struct bench {
    struct device *d;
    int n_threads;
    enum cpu_isa isa;
    double read_rate, peak; // bytes and operations a second
    char *pool;             // random bytes: codes, and pages of keys and values
    size_t used;            // of the pool, from the start of this round through it
    uint16_t *scales;       // small bf16 values, as many as the largest matrix has groups
    float *ones;            // norm weights and the like
    char *run;              // a lane's state
    int32_t *ids;
};

static void *must_alloc(size_t bytes) {
    void *p = aligned_alloc(4096, (bytes / 4096 + 1) * 4096);
    must(p != NULL);
    return p;
}

// ---- what the machine can do ----

struct reading {
    const char *data;
    uint64_t *sums;
};

#define READ_BLOCK ((size_t)1 << 20)
typedef uint64_t eight __attribute__((vector_size(64), aligned(64)));

static void read_blocks(void *context, long first, long last, int thread) {
    (void)thread;
    struct reading *r = context;
    for (long b = first; b < last; b++) {
        const eight *p = (const eight *)(r->data + (size_t)b * READ_BLOCK);
        eight sum[4] = {0};
        for (size_t i = 0; i < READ_BLOCK / sizeof *p; i += 4) {
            sum[0] ^= p[i];
            sum[1] ^= p[i + 1];
            sum[2] ^= p[i + 2];
            sum[3] ^= p[i + 3];
        }
        sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
        r->sums[b] = sum[0][0] ^ sum[0][1] ^ sum[0][2] ^ sum[0][3] ^ sum[0][4] ^ sum[0][5] ^ sum[0][6] ^ sum[0][7];
    }
}

static double measure_reads(const struct bench *b, struct workers *workers) {
    struct reading r = {b->pool, must_alloc(POOL_BYTES / READ_BLOCK * sizeof(uint64_t))};
    double best = 0;
    for (int pass = 0; pass < 5; pass++) {
        int64_t start = clock_ns();
        workers_run(workers, POOL_BYTES / READ_BLOCK, 1, read_blocks, &r);
        double rate = (double)POOL_BYTES * 1e9 / (double)(clock_ns() - start);
        if (rate > best) best = rate;
    }
    free(r.sums);
    return best;
}

struct peaks {
    enum cpu_isa isa;
    double rate[1024];
};

static void measure_peak(void *context, long first, long last, int thread) {
    (void)thread;
    struct peaks *p = context;
    for (long i = first; i < last; i++)
        p->rate[i] = p->isa == ISA_AMX ? peak_amx() : p->isa >= ISA_AVX512 ? peak_avx512() : peak_avx2();
}

// Of the unit that the instruction set's prompt products use, all threads together.
static double measure_arithmetic(const struct bench *b, struct workers *workers) {
    static struct peaks p;
    p.isa = b->isa;
    if (cpu_isa_detect() == ISA_C) return 0;
    double best = 0;
    for (int pass = 0; pass < 3; pass++) {
        workers_run(workers, b->n_threads, 1, measure_peak, &p);
        double sum = 0;
        for (int i = 0; i < b->n_threads; i++) sum += p.rate[i];
        if (sum > best) best = sum;
    }
    return best;
}

// ---- data ----

// Writes n small numbers around `middle`.
static void fill_floats(float *x, size_t n, float middle, float spread) {
    for (size_t i = 0; i < n; i++) x[i] = middle + spread * ((float)(random_bits(7, 0, i) & 0xffff) / 32768.0f - 1.0f);
}

static struct tensor make_tensor(struct bench *b, int64_t n_row, int64_t n_col) {
    struct tensor t = {b->d->alloc(b->d, (size_t)(n_row * n_col) * sizeof(float)), DTYPE_F32, n_row, n_col, n_col};
    must(t.data != NULL);
    fill_floats(t.data, (size_t)(n_row * n_col), 0, 1);
    return t;
}

// The next matrix of the pool.
static struct weight next_weight(struct bench *b, int64_t n_out, int64_t n_in) {
    struct weight w = {
        .kind = WEIGHT_AFFINE, .dtype = DTYPE_BF16, .bits = BITS, .group = GROUP, .n_out = n_out, .n_in = n_in};
    size_t bytes = (weight_row_bytes(&w) * (size_t)n_out + 4095) / 4096 * 4096;
    if (b->used + bytes > POOL_BYTES) b->used = 0;
    w.data = b->pool + b->used;
    w.scales = w.biases = b->scales;
    b->used += bytes;
    return w;
}

static void fill_bench(struct bench *b) {
    b->pool = must_alloc(POOL_BYTES);
    uint64_t *words = (uint64_t *)(void *)b->pool;
    // The sign and exponent of each half word are those of a small number, which pages of keys need; codes do not mind.
    for (size_t i = 0; i < POOL_BYTES / sizeof *words; i++)
        words[i] = ((i * 0x9e3779b97f4a7c15u) & 0x80ff80ff80ff80ffu) | 0x3f003f003f003f00u;
    size_t n_scale = (size_t)VOCABULARY * 5120 / GROUP;
    b->scales = must_alloc(n_scale * sizeof *b->scales);
    for (size_t i = 0; i < n_scale; i++) b->scales[i] = (uint16_t)(0x3b80 + i % 64);
    b->ones = must_alloc(65536 * sizeof(float));
    fill_floats(b->ones, 65536, 1, 0.1f);
    b->run = must_alloc((size_t)64 << 20);
    memset(b->run, 0, (size_t)64 << 20);
    b->ids = calloc(PROMPT, sizeof *b->ids);
    must(b->ids != NULL);
}

// ---- one measurement ----

// Calls an operation once; what it reads and writes, in bytes, and its operations are added up for the floor.
struct call {
    struct bench *b;
    const struct shape *shape;
    enum form form;
    int n_row;
    double bytes, operations;
    void (*run)(struct call *c);
    int which; // of the operation's kinds
    struct tensor in[5], out[4];
    struct lane lane;
    struct batch batch;
    int32_t *pages;
};

static int compare_times(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void report(struct call *c, const char *name) {
    int64_t times[REPEATS];
    c->run(c);
    for (int i = 0; i < REPEATS; i++) {
        int inner = c->form == FORM_ROWS ? 8 : 1;
        int64_t start = clock_ns();
        for (int j = 0; j < inner; j++) c->run(c);
        times[i] = (clock_ns() - start) / inner;
    }
    qsort(times, REPEATS, sizeof *times, compare_times);
    double seconds = (double)times[REPEATS / 2] * 1e-9;
    double memory = c->bytes / c->b->read_rate, arithmetic = c->b->peak > 0 ? c->operations / c->b->peak : 0;
    printf("%-6s %-14s %5d  %10.1f  %8.2f  %9.1f  %4.0f %% %s\n", c->shape->name, name, c->n_row, seconds * 1e6,
           c->bytes / seconds * 1e-9, c->operations / seconds * 1e-9,
           100 * (memory > arithmetic ? memory : arithmetic) / seconds, memory > arithmetic ? "memory" : "arithmetic");
    fflush(stdout);
    for (int i = 0; i < 5; i++) c->b->d->release(c->b->d, c->in[i].data);
    for (int i = 0; i < 4; i++) c->b->d->release(c->b->d, c->out[i].data);
    free(c->pages);
}

static double tensor_bytes(struct tensor t) { return (double)(t.n_row * t.n_col) * (double)dtype_bytes(t.dtype); }

// ---- linears ----

struct linear_kind {
    const char *name;
    int n_parts;
    int64_t n_out[4], n_in;
    bool norm, residual;
};

static void linear_kinds(const struct shape *s, struct linear_kind kinds[7]) {
    int64_t keys = KEY_HEADS * DELTA_DIM, values = s->n_value_head * DELTA_DIM, heads = s->n_head * HEAD;
    kinds[0] = (struct linear_kind){"qkv z a b", 4,    {2 * keys + values, values, s->n_value_head, s->n_value_head},
                                    s->hidden,   true, false};
    kinds[1] = (struct linear_kind){"delta out", 1, {s->hidden}, values, false, true};
    kinds[2] =
        (struct linear_kind){"q k v", 3, {2 * heads, s->n_kv_head * HEAD, s->n_kv_head * HEAD}, s->hidden, true, false};
    kinds[3] = (struct linear_kind){"attention out", 1, {s->hidden}, heads, false, true};
    kinds[4] = (struct linear_kind){"gate up", 2, {s->inner, s->inner}, s->hidden, true, false};
    kinds[5] = (struct linear_kind){"down", 1, {s->hidden}, s->inner, false, true};
    kinds[6] = (struct linear_kind){"head", 1, {VOCABULARY}, s->hidden, true, false};
}

static void run_linear(struct call *c) {
    struct linear_kind kinds[7];
    linear_kinds(c->shape, kinds);
    const struct linear_kind *k = &kinds[c->which];
    struct weight w[4];
    struct linear_args a = {.form = c->form, .x = c->in[0], .n_parts = k->n_parts, .norm_eps = 1e-6f};
    if (k->norm) a.norm_weight = c->b->ones;
    for (int p = 0; p < k->n_parts; p++) {
        w[p] = next_weight(c->b, k->n_out[p], k->n_in);
        a.part[p].w = &w[p];
        a.part[p].out = c->out[p];
    }
    if (k->residual) a.residual = c->out[0];
    c->b->d->ops->linear(c->b->d, &a);
}

static void bench_linears(struct bench *b, const struct shape *s, enum form form, int n_row) {
    struct linear_kind kinds[7];
    linear_kinds(s, kinds);
    for (int i = 0; i < 7; i++) {
        if (i == 6 && form == FORM_PROMPT) continue; // only the last row of a prompt has logits, by the form of rounds
        struct call c = {.b = b, .shape = s, .form = form, .n_row = n_row, .run = run_linear, .which = i};
        c.in[0] = make_tensor(b, n_row, kinds[i].n_in);
        c.bytes = tensor_bytes(c.in[0]);
        for (int p = 0; p < kinds[i].n_parts; p++) {
            c.out[p] = make_tensor(b, n_row, kinds[i].n_out[p]);
            double weights = (double)kinds[i].n_out[p] * (double)kinds[i].n_in;
            c.bytes += weights * (BITS / 8.0 + 4.0 / GROUP) + tensor_bytes(c.out[p]) * (kinds[i].residual ? 2 : 1);
            c.operations += 2 * weights * n_row;
        }
        report(&c, kinds[i].name);
    }
}

// ---- operations that look back ----

static void one_lane(struct call *c, int32_t position) {
    c->lane = (struct lane){.n_row = c->n_row, .position = position, .run = c->b->run};
    c->lane.n_page = (position + c->n_row + PAGE_ROWS - 1) / PAGE_ROWS;
    c->pages = must_alloc((size_t)c->lane.n_page * sizeof *c->pages);
    for (int i = 0; i < c->lane.n_page; i++) c->pages[i] = i;
    c->lane.pages = c->pages;
    c->batch = (struct batch){
        .form = c->form, .n_row = c->n_row, .n_lane = 1, .max_window = WINDOW, .ids = c->b->ids, .lanes = &c->lane};
}

static void run_attention(struct call *c) {
    const struct shape *s = c->shape;
    int64_t page_bytes = 2 * s->n_kv_head * PAGE_ROWS * HEAD * (int64_t)dtype_bytes(c->b->d->kv);
    struct attention_args a = {
        .batch = &c->batch,
        .q = c->in[0],
        .qg = c->in[1],
        .n_head = (int)s->n_head,
        .n_kv_head = (int)s->n_kv_head,
        .head_dim = HEAD,
        .scale = 1.0f / 16,
        .kv = {.pages = c->b->pool, .page_bytes = page_bytes, .page_rows = PAGE_ROWS, .dtype = c->b->d->kv},
        .out = c->out[0]};
    c->b->d->ops->attention(c->b->d, &a);
}

static void bench_attention(struct bench *b, const struct shape *s, enum form form, int n_row) {
    struct call c = {.b = b, .shape = s, .form = form, .n_row = n_row, .run = run_attention};
    c.in[0] = make_tensor(b, n_row, s->n_head * HEAD);
    c.in[1] = make_tensor(b, n_row, s->n_head * HEAD * 2);
    c.out[0] = make_tensor(b, n_row, s->n_head * HEAD);
    one_lane(&c, form == FORM_PROMPT ? 0 : PROMPT);
    double keys = form == FORM_PROMPT ? (n_row + 1) / 2.0 : PROMPT;
    c.operations = 4.0 * HEAD * (double)s->n_head * keys * n_row;
    c.bytes = 2 * tensor_bytes(c.in[0]) + tensor_bytes(c.in[1]) / 2 +
              2.0 * (double)s->n_kv_head * HEAD * (c.lane.position + n_row) * (double)dtype_bytes(b->d->kv);
    report(&c, "attention");
}

static void run_delta(struct call *c) {
    const struct shape *s = c->shape;
    struct delta_args a = {.batch = &c->batch,
                           .c = c->in[0],
                           .a = c->in[1],
                           .b = c->in[2],
                           .z = c->in[3],
                           .neg_a = (const float *)c->in[4].data,
                           .dt_bias = c->b->ones,
                           .out_norm = c->b->ones,
                           .eps = 1e-6f,
                           .n_key_head = KEY_HEADS,
                           .n_value_head = (int)s->n_value_head,
                           .key_dim = DELTA_DIM,
                           .value_dim = DELTA_DIM,
                           .state_offset = 0,
                           .log_offset = 32 << 20,
                           .out = c->out[0]};
    c->b->d->ops->delta(c->b->d, &a);
}

static void bench_delta(struct bench *b, const struct shape *s, enum form form, int n_row) {
    struct call c = {.b = b, .shape = s, .form = form, .n_row = n_row, .run = run_delta};
    int64_t values = s->n_value_head * DELTA_DIM;
    c.in[0] = make_tensor(b, n_row, 2 * KEY_HEADS * DELTA_DIM + values);
    c.in[1] = make_tensor(b, n_row, s->n_value_head);
    c.in[2] = make_tensor(b, n_row, s->n_value_head);
    c.in[3] = make_tensor(b, n_row, values);
    c.in[4] = make_tensor(b, 1, s->n_value_head);
    fill_floats(c.in[4].data, (size_t)s->n_value_head, -0.2f, 0.1f);
    c.out[0] = make_tensor(b, n_row, values);
    one_lane(&c, form == FORM_PROMPT ? 0 : PROMPT);
    double state = (double)s->n_value_head * DELTA_DIM * DELTA_DIM;
    // A row alone takes the state four times; in a chunk of 64, also half a chunk of rows in each of four ways.
    c.operations = n_row * (form == FORM_PROMPT ? state * 6 + (double)values * 64 * 4 : state * 8);
    c.bytes = tensor_bytes(c.in[0]) + tensor_bytes(c.in[3]) + tensor_bytes(c.out[0]) + 2 * state * sizeof(float);
    report(&c, "delta rule");
}

static void run_conv(struct call *c) {
    struct conv_args a = {.batch = &c->batch,
                          .m = c->in[0],
                          .weight = c->b->ones,
                          .n_tap = TAPS,
                          .ring_rows = 2 * WINDOW,
                          .out = c->out[0]};
    c->b->d->ops->conv(c->b->d, &a);
}

static void bench_conv(struct bench *b, const struct shape *s, enum form form, int n_row) {
    struct call c = {.b = b, .shape = s, .form = form, .n_row = n_row, .run = run_conv};
    c.in[0] = make_tensor(b, n_row, 2 * KEY_HEADS * DELTA_DIM + s->n_value_head * DELTA_DIM);
    c.out[0] = make_tensor(b, n_row, c.in[0].n_col);
    one_lane(&c, form == FORM_PROMPT ? 0 : PROMPT);
    c.bytes = 2 * tensor_bytes(c.in[0]);
    report(&c, "convolution");
}

static void run_swiglu(struct call *c) {
    c->b->d->ops->swiglu(c->b->d, &(struct swiglu_args){c->in[0], c->in[1], c->out[0]});
}

static void bench_swiglu(struct bench *b, const struct shape *s, enum form form, int n_row) {
    struct call c = {.b = b, .shape = s, .form = form, .n_row = n_row, .run = run_swiglu};
    c.in[0] = make_tensor(b, n_row, s->inner);
    c.in[1] = make_tensor(b, n_row, s->inner);
    c.out[0] = make_tensor(b, n_row, s->inner);
    c.bytes = 3 * tensor_bytes(c.in[0]);
    report(&c, "swiglu");
}

// ---- the program ----

static void open_bench(struct bench *b, enum compute compute) {
    struct error e;
    struct workers *workers;
    const struct device_limits limits = {
        .max_rows = PROMPT,
        .max_round_rows = 16,
        .max_in = 17408,
        .max_out = VOCABULARY,
        .n_vocab = VOCABULARY,
        .head_dim = HEAD,
        .n_head = 24,
        .n_kv_head = 2,
        .key_dim = DELTA_DIM,
        .value_dim = DELTA_DIM,
        .n_key_head = KEY_HEADS,
        .n_value_head = 48,
        .max_context = 2 * PROMPT,
        .max_lanes = 16,
        .max_window = 16,
    };
    if (cpu_device_create(compute, true, b->n_threads, b->isa, &b->d, &e) != STATUS_OK ||
        b->d->reserve(b->d, &limits, &e) != STATUS_OK || workers_create(b->n_threads, &workers, &e) != STATUS_OK) {
        fprintf(stderr, "tf-cpu-bench: %s\n", e.text);
        exit(1);
    }
    if (b->isa > cpu_isa_detect()) b->isa = cpu_isa_detect();
    fill_bench(b);
    b->read_rate = measure_reads(b, workers);
    b->peak = measure_arithmetic(b, workers);
    workers_free(workers);
}

static void bench_shape(struct bench *b, const struct shape *s) {
    static const struct {
        enum form form;
        int n_row;
    } forms[] = {{FORM_ROWS, 1}, {FORM_ROWS, 4}, {FORM_ROWS, 16}, {FORM_PROMPT, 512}, {FORM_PROMPT, PROMPT}};
    for (int i = 0; i < 5; i++) {
        bench_linears(b, s, forms[i].form, forms[i].n_row);
        bench_attention(b, s, forms[i].form, forms[i].n_row);
        bench_delta(b, s, forms[i].form, forms[i].n_row);
        bench_conv(b, s, forms[i].form, forms[i].n_row);
        bench_swiglu(b, s, forms[i].form, forms[i].n_row);
    }
}

static int choice(const char *what, const char *text, const char *const *names, int n) {
    for (int i = 0; i < n; i++)
        if (strcmp(text, names[i]) == 0) return i;
    fprintf(stderr, "tf-cpu-bench: there is no %s \"%s\"\n", what, text);
    exit(1);
}

int main(int argc, char **argv) {
    static const char *const computes[] = {"auto", "f32", "bf16", "int8"};
    static const char *const names[] = {"0.8b", "2b", "27b"};
    const char *isas[ISA_AMX + 1];
    for (int i = 0; i <= ISA_AMX; i++) isas[i] = cpu_isa_name((enum cpu_isa)i);
    struct bench b = {.n_threads = machine_cores(), .isa = ISA_AMX};
    enum compute compute = COMPUTE_AUTO;
    bool wanted[3] = {false};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--threads") == 0)
            b.n_threads = atoi(value), i++;
        else if (strcmp(argv[i], "--compute") == 0)
            compute = (enum compute)choice("compute", value, computes, 4), i++;
        else if (strcmp(argv[i], "--isa") == 0)
            b.isa = (enum cpu_isa)choice("isa", value, isas, ISA_AMX + 1), i++;
        else
            wanted[choice("shape", argv[i], names, 3)] = true;
    }
    bool any = wanted[0] || wanted[1] || wanted[2];
    open_bench(&b, compute);
    printf("%s; memory reads %.1f GB/s, products %.0f GFLOP/s\n", b.d->name, b.read_rate * 1e-9, b.peak * 1e-9);
    printf("%-6s %-14s %5s  %10s  %8s  %9s  %s\n", "shape", "operation", "rows", "us", "GB/s", "GFLOP/s", "share of");
    for (int i = 0; i < 3; i++)
        if (!any || wanted[i]) bench_shape(&b, &shapes[i]);
    device_free(b.d);
    free(b.pool);
    free(b.scales);
    free(b.ones);
    free(b.run);
    free(b.ids);
    return 0;
}
