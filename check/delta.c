#include "check/delta.h"
#include <math.h>
#include <string.h>

// A recurrence over up to 200 rows; the output norm divides by what may be a small o.
const struct tolerance delta_f32 = {"delta-f32", 1e-4, 1e-4, 1e-5};
const struct tolerance delta_bf16 = {"delta-bf16", 3e-2, 1.6e-2, 8e-3};
const struct tolerance delta_state_f32 = {"delta-state-f32", 1e-4, 1e-4, 1e-5};
const struct tolerance delta_state_bf16 = {"delta-state-bf16", 3e-2, 1.6e-2, 5e-3};

static bool is_fp32(const struct subject *s) { return s->device->activation == DTYPE_F32 && !s->matrix_units; }

const struct tolerance *delta_tolerance(const struct run *r) { return is_fp32(r->subject) ? &delta_f32 : &delta_bf16; }

const struct tolerance *delta_state_tolerance(const struct run *r) {
    return is_fp32(r->subject) ? &delta_state_f32 : &delta_state_bf16;
}

struct delta_data delta_make(struct run *r, uint64_t seed, const struct delta_shape *shape, int n_row,
                             bool with_state) {
    enum dtype t = r->subject->device->activation;
    size_t n = (size_t)n_row, n_head = (size_t)shape->n_value_head, width = n_head * (size_t)shape->value_dim;
    struct delta_data d = {.shape = *shape, .n_row = n_row};
    d.c = values_normal(r, seed + 1, n * (size_t)delta_channels(shape), 1, t);
    d.a = values_normal(r, seed + 2, n * n_head, 1.5, t);
    d.b = values_normal(r, seed + 3, n * n_head, 1.5, t);
    d.z = values_normal(r, seed + 4, n * width, 1, t);
    d.neg_a = values_normal(r, seed + 5, n_head, 1, DTYPE_F32);
    for (size_t i = 0; i < n_head; i++) d.neg_a[i] = -expf(1.5f * d.neg_a[i] - 2); // from slow to fast decay
    d.dt_bias = values_normal(r, seed + 6, n_head, 1, DTYPE_F32);
    d.dt_bias[0] = 25; // beyond it softplus(x) is x
    d.neg_a[0] = -0.004f;
    d.out_norm = values_normal(r, seed + 7, (size_t)shape->value_dim, 0.3, DTYPE_F32);
    for (int i = 0; i < shape->value_dim; i++) d.out_norm[i] += 1;
    d.state = values_normal(r, seed + 8, (size_t)delta_state_size(shape), with_state ? 0.3 : 0, DTYPE_F32);
    return d;
}

// ---- oracle ----

static void unit(const float *x, int n, double factor, double *out) {
    double squares = 0;
    for (int i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    for (int i = 0; i < n; i++) out[i] = (double)x[i] / sqrt(squares + 1e-6) * factor;
}

static double softplus(double x) { return x > 20 ? x : log1p(exp(x)); }

// One row of one value head on its state.
static void oracle_row(const struct delta_data *data, int t, int head, double *state, struct delta_wanted *w) {
    const struct delta_shape *s = &data->shape;
    int nk = s->key_dim, nv = s->value_dim, key_head = head / (s->n_value_head / s->n_key_head);
    const float *c = data->c + t * delta_channels(s), *v = c + 2 * s->n_key_head * nk + head * nv;
    int64_t at = (int64_t)t * s->n_value_head + head;
    double q[256], o[256], *k = w->k + (t * s->n_key_head + key_head) * nk, *d = w->d + at * nv, squares = 0;
    unit(c + key_head * nk, nk, 1 / sqrt(nk), q);
    unit(c + s->n_key_head * nk + key_head * nk, nk, 1, k);
    double g = w->g[at] = (double)data->neg_a[head] * softplus((double)data->a[at] + (double)data->dt_bias[head]);
    double beta = 1 / (1 + exp(-(double)data->b[at]));
    for (int j = 0; j < nv; j++) {
        double m = 0;
        for (int i = 0; i < nk; i++) m += (state[i * nv + j] *= exp(g)) * k[i];
        d[j] = beta * ((double)v[j] - m);
        o[j] = 0;
        for (int i = 0; i < nk; i++) o[j] += (state[i * nv + j] += k[i] * d[j]) * q[i];
        squares += o[j] * o[j];
    }
    for (int j = 0; j < nv; j++) {
        double z = (double)data->z[at * nv + j], sigmoid = 1 / (1 + exp(-z));
        w->out[at * nv + j] = o[j] / sqrt(squares / nv + (double)DELTA_EPS) * (double)data->out_norm[j] *
                              (s->gate_sigmoid ? sigmoid : z * sigmoid);
    }
}

struct delta_wanted delta_oracle(struct run *r, const struct delta_data *data) {
    const struct delta_shape *s = &data->shape;
    size_t n = (size_t)data->n_row * sizeof(double), heads = (size_t)s->n_value_head;
    struct delta_wanted w = {
        .out = arena_alloc(r->arena, n * heads * (size_t)s->value_dim),
        .k = arena_alloc(r->arena, n * (size_t)(s->n_key_head * s->key_dim)),
        .d = arena_alloc(r->arena, n * heads * (size_t)s->value_dim),
        .g = arena_alloc(r->arena, n * heads),
        .state = values_double(r, data->state, (size_t)delta_state_size(s)),
    };
    must(w.out != NULL && w.k != NULL && w.d != NULL && w.g != NULL);
    for (int head = 0; head < s->n_value_head; head++)
        for (int t = 0; t < data->n_row; t++)
            oracle_row(data, t, head, w.state + (int64_t)head * s->key_dim * s->value_dim, &w);
    return w;
}

// ---- lane runs ----

int64_t delta_state_at(const struct delta_shape *s) {
    (void)s;
    return DELTA_HOLE;
}

static int64_t log_at(const struct delta_shape *s) { return DELTA_HOLE + delta_state_size(s) + DELTA_HOLE; }

int64_t delta_log_k_at(const struct delta_shape *s, int64_t position, int head) {
    return log_at(s) + (position % (2 * DELTA_WINDOW) * s->n_key_head + head) * s->key_dim;
}

int64_t delta_log_d_at(const struct delta_shape *s, int64_t position, int head) {
    int64_t k_size = (int64_t)2 * DELTA_WINDOW * s->n_key_head * s->key_dim;
    return log_at(s) + k_size + (position % (2 * DELTA_WINDOW) * s->n_value_head + head) * s->value_dim;
}

int64_t delta_log_g_at(const struct delta_shape *s, int64_t position) {
    int64_t k_size = (int64_t)2 * DELTA_WINDOW * s->n_key_head * s->key_dim;
    int64_t d_size = (int64_t)2 * DELTA_WINDOW * s->n_value_head * s->value_dim;
    return log_at(s) + k_size + d_size + position % (2 * DELTA_WINDOW) * s->n_value_head;
}

int64_t delta_run_size(const struct delta_shape *s) {
    int64_t row = (int64_t)s->n_key_head * s->key_dim + (int64_t)s->n_value_head * (s->value_dim + 1);
    return log_at(s) + 2 * DELTA_WINDOW * row + DELTA_HOLE;
}

struct delta_args delta_open(struct stage *s, const struct delta_data *data) {
    const struct delta_shape *shape = &data->shape;
    size_t heads = (size_t)shape->n_value_head * sizeof(float);
    return (struct delta_args){
        .neg_a = stage_input(s, data->neg_a, heads),
        .dt_bias = stage_input(s, data->dt_bias, heads),
        .out_norm = stage_input(s, data->out_norm, (size_t)shape->value_dim * sizeof(float)),
        .eps = DELTA_EPS,
        .gate_sigmoid = shape->gate_sigmoid,
        .n_key_head = shape->n_key_head,
        .n_value_head = shape->n_value_head,
        .key_dim = shape->key_dim,
        .value_dim = shape->value_dim,
        .state_offset = delta_state_at(shape) * (int64_t)sizeof(float),
        .log_offset = log_at(shape) * (int64_t)sizeof(float),
    };
}

float *delta_blank_run(struct run *r, const struct delta_data *data, bool with_state) {
    const struct delta_shape *shape = &data->shape;
    size_t bytes = (size_t)delta_run_size(shape) * sizeof(float);
    float *run = arena_alloc(r->arena, bytes);
    must(run != NULL);
    memset(run, 0xff, bytes);
    if (with_state) memcpy(run + delta_state_at(shape), data->state, (size_t)delta_state_size(shape) * sizeof(float));
    return run;
}

void delta_call(struct run *r, struct device *d, struct stage *s, struct delta_args args, const struct batch *batch,
                const struct delta_data *rows, float *out) {
    int64_t heads = rows->shape.n_value_head, width = heads * rows->shape.value_dim;
    args.batch = batch;
    args.c = stage_tensor(s, rows->c, batch->n_row, delta_channels(&rows->shape), d->activation);
    args.a = stage_tensor(s, rows->a, batch->n_row, heads, d->activation);
    args.b = stage_tensor(s, rows->b, batch->n_row, heads, d->activation);
    args.z = stage_tensor(s, rows->z, batch->n_row, width, d->activation);
    args.out = stage_tensor_out(s, batch->n_row, width, d->activation);
    ops_of(r, d)->begin(d, batch);
    ops_of(r, d)->delta(d, &args);
    memcpy(out, stage_read(s, args.out), (size_t)(batch->n_row * width) * sizeof(float));
}
