// Experts of a round as one operation, and the delta rule with its convolution.
#include "bench/kernels_cuda.h"
#include "cuda/device_cuda.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPERTS      256
#define EXPERTS_USED 8
#define VALUE_DIM    128

struct layer_cell {
    struct bench *b;
    const struct shape *shape;
    int n_row;
    int n_copy;
    size_t used;
    struct weight experts[3][EXPERTS];
    struct weight router, shared_gate, shared[3];
    struct moe_args moe;
    struct conv_delta_args mix;
    struct lane lanes[LANES_MAX];
    struct batch batch;
    int64_t run_bytes; // of a lane, all copies
    int64_t copy_bytes;
};

// From the pool, one after another; experts lie at equal distances.
static struct weight pool_weight(struct layer_cell *c, int bits, int64_t n_out, int64_t n_in) {
    struct weight w = {WEIGHT_AFFINE, DTYPE_BF16, bits, 64, n_out, n_in, NULL, NULL, NULL, false};
    size_t codes = (weight_row_bytes(&w) * (size_t)n_out + 255) / 256 * 256;
    size_t scales = ((size_t)(n_out * n_in / 64) * 2 + 255) / 256 * 256;
    must(c->used + codes + 2 * scales <= POOL_BYTES);
    w.data = c->b->pool + c->used;
    w.scales = c->b->pool + c->used + codes;
    w.biases = c->b->pool + c->used + codes + scales;
    c->used += codes + 2 * scales;
    return w;
}

static void run_moe(void *context) {
    struct layer_cell *c = context;
    if (!c->b->d->ops->moe(c->b->d, &c->moe)) must(false);
}

static void run_mix(void *context) {
    struct layer_cell *c = context;
    for (int i = 0; i < c->n_copy; i++) {
        c->mix.conv.ring_offset = c->copy_bytes * i;
        c->mix.delta.state_offset = c->mix.conv.ring_offset + (1 << 20);
        c->mix.delta.log_offset = c->mix.delta.state_offset + c->shape->n_value_head * VALUE_DIM * VALUE_DIM * 4;
        if (!c->b->d->ops->conv_delta(c->b->d, &c->mix)) must(false);
    }
}

static void time_layer(struct layer_cell *c, const char *name, void (*run)(void *), double bytes, int n_copy) {
    struct recording *arms[2];
    struct error e;
    run(c);
    bench_wait(c->b);
    for (int arm = 0; arm < 2; arm++)
        if (recording_make(c->b->d, run, c, &arms[arm], &e) != STATUS_OK) bench_stop(&e);
    struct timing t = bench_time_arms(c->b, arms, 2);
    printf("%-8s rows   %-18s %4d rows ", c->shape->name, name, c->n_row);
    bench_print_time(c->b, t.seconds[0] / n_copy, bytes, 0);
    printf(" A/A %+.2f %% [%+.2f, %+.2f]\n", bench_percent(t.against_a[1].middle), bench_percent(t.against_a[1].low),
           bench_percent(t.against_a[1].high));
    fflush(stdout);
    for (int arm = 0; arm < 2; arm++) recording_free(arms[arm]);
}

static void bench_moe(struct bench *b, const struct shape *s, int n_row) {
    struct layer_cell *c = calloc(1, sizeof *c);
    must(c != NULL);
    char *at = b->activations;
    c->b = b;
    c->shape = s;
    c->n_row = n_row;
    for (int k = 0; k < 3; k++)
        for (int e = 0; e < EXPERTS; e++)
            c->experts[k][e] = pool_weight(c, 4, k < 2 ? s->inner : s->hidden, k < 2 ? s->hidden : s->inner);
    for (int k = 0; k < 3; k++)
        c->shared[k] = pool_weight(c, 4, k < 2 ? s->inner : s->hidden, k < 2 ? s->hidden : s->inner);
    c->router = pool_weight(c, 8, EXPERTS, s->hidden);
    c->shared_gate = pool_weight(c, 8, 1, s->hidden);
    struct tensor x = bench_next_tensor(b, &at, n_row, s->hidden), normed = bench_next_tensor(b, &at, n_row, s->hidden);
    struct tensor gate = bench_next_tensor(b, &at, n_row, s->inner), up = bench_next_tensor(b, &at, n_row, s->inner);
    struct tensor norm_weight = bench_next_tensor(b, &at, 1, s->hidden);
    int32_t *ids = bench_next_tensor(b, &at, n_row, EXPERTS_USED).data;
    float *weights = bench_next_tensor(b, &at, n_row, EXPERTS_USED).data,
          *shared = bench_next_tensor(b, &at, n_row, 1).data;
    c->moe = (struct moe_args){
        .norm = {x, normed, norm_weight.data, 1e-6f},
        .router = {FORM_ROWS, normed, &c->router, &c->shared_gate, EXPERTS_USED, ids, weights, shared},
        .gate = &c->shared[0],
        .up = &c->shared[1],
        .down = &c->shared[2],
        .gated = {gate, up, gate},
        .experts = {.form = FORM_ROWS,
                    .x = normed,
                    .n_expert = EXPERTS,
                    .n_used = EXPERTS_USED,
                    .ids = ids,
                    .weights = weights,
                    .shared = shared,
                    .gate = c->experts[0],
                    .up = c->experts[1],
                    .down = c->experts[2],
                    .lie_evenly = 1,
                    .shared_out = bench_next_tensor(b, &at, n_row, s->hidden),
                    .residual = x,
                    .out = bench_next_tensor(b, &at, n_row, s->hidden)},
    };
    timer_fill(b->d, b->activations, (size_t)(at - b->activations), 0x807f807f, 0x3f003f00);
    timer_fill(b->d, b->pool, POOL_BYTES, 0xb87fb87f, 0x38003800);
    double one = 3.0 * (double)(s->hidden * s->inner) * (0.5 + 4.0 / 64);
    // As many experts as rows that choose by chance would have.
    double n = EXPERTS * (1 - pow(1 - (double)EXPERTS_USED / EXPERTS, n_row)) + 1;
    time_layer(c, "experts", run_moe, one * n + (double)(EXPERTS * s->hidden), 1);
    free(c);
}

// n_row: of each lane; as many as would follow if all but a few drafts were kept are pending.
static void bench_mix(struct bench *b, const struct shape *s, int n_lane, int n_row) {
    struct layer_cell *c = calloc(1, sizeof *c);
    must(c != NULL);
    char *at = b->activations;
    int64_t key = 16 * VALUE_DIM, value = s->n_value_head * VALUE_DIM, state = value * VALUE_DIM * 4;
    c->b = b;
    c->shape = s;
    c->n_row = n_lane * n_row;
    c->copy_bytes = (1 << 20) + state + (2 << 20);
    c->n_copy =
        (int)(POOL_BYTES / (size_t)(c->copy_bytes * n_lane) < 16 ? POOL_BYTES / (size_t)(c->copy_bytes * n_lane) : 16);
    c->run_bytes = c->copy_bytes * c->n_copy;
    for (int i = 0; i < n_lane; i++)
        c->lanes[i] = (struct lane){.row0 = i * n_row,
                                    .n_row = n_row,
                                    .position = 100,
                                    .n_pending = (n_row + 1) / 2,
                                    .run = b->pool + c->run_bytes * i};
    c->batch =
        (struct batch){.form = FORM_ROWS, .n_row = c->n_row, .n_lane = n_lane, .max_window = 16, .lanes = c->lanes};
    struct tensor m = bench_next_tensor(b, &at, c->n_row, 2 * key + value);
    c->mix.conv = (struct conv_args){.batch = &c->batch,
                                     .m = m,
                                     .weight = bench_next_tensor(b, &at, 4, m.n_col).data,
                                     .n_tap = 4,
                                     .ring_rows = 24,
                                     .out = bench_next_tensor(b, &at, c->n_row, m.n_col)};
    c->mix.delta = (struct delta_args){.batch = &c->batch,
                                       .c = c->mix.conv.out,
                                       .a = bench_next_tensor(b, &at, c->n_row, s->n_value_head),
                                       .b = bench_next_tensor(b, &at, c->n_row, s->n_value_head),
                                       .z = bench_next_tensor(b, &at, c->n_row, value),
                                       .neg_a = bench_next_tensor(b, &at, 1, s->n_value_head).data,
                                       .dt_bias = bench_next_tensor(b, &at, 1, s->n_value_head).data,
                                       .out_norm = bench_next_tensor(b, &at, 1, VALUE_DIM).data,
                                       .eps = 1e-6f,
                                       .n_key_head = 16,
                                       .n_value_head = (int)s->n_value_head,
                                       .key_dim = VALUE_DIM,
                                       .value_dim = VALUE_DIM,
                                       .out = bench_next_tensor(b, &at, c->n_row, value)};
    timer_fill(b->d, b->activations, (size_t)(at - b->activations), 0x807f807f, 0x3f003f00);
    timer_fill(b->d, b->pool, POOL_BYTES, 0x807f807f, 0x3f003f00);
    b->d->ops->begin(b->d, &c->batch); // what is recorded must not upload
    bench_wait(b);
    char name[32];
    snprintf(name, sizeof name, "conv, delta, %dx%d", n_lane, n_row);
    time_layer(c, name, run_mix, 2.0 * (double)state * n_lane, c->n_copy);
    free(c);
}

void bench_layers(struct bench *b, const struct shape *shapes, int n_shape) {
    static const int rows[] = {1, 2, 4, 8, 16};
    for (int i = 0; i < n_shape; i++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
            bench_mix(b, &shapes[i], rows[k], 1);
            if (k > 0) bench_mix(b, &shapes[i], 1, rows[k]);
            if (shapes[i].inner < shapes[i].hidden) bench_moe(b, &shapes[i], rows[k]); // experts are narrow
        }
}
