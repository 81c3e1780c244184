// Portable gated delta rule: one row at a time, and in chunks.
#include "cpu/kernels.h"
#include <math.h>
#include <string.h>

static void delta_fold(const struct cpu_delta_row *r) {
    for (int i = 0; i < r->key_dim; i++) {
        float *state = r->state + (int64_t)i * r->value_dim;
        cpu_scale(r->decay, r->value_dim, state);
        cpu_axpy(r->k[i], r->d, r->value_dim, state);
    }
}

// o = S^T x
static void state_times(const struct cpu_delta_row *r, const float *x) {
    memset(r->o, 0, (size_t)r->value_dim * sizeof(float));
    for (int i = 0; i < r->key_dim; i++) cpu_axpy(x[i], r->state + (int64_t)i * r->value_dim, r->value_dim, r->o);
}

// The prediction is taken from the state before its decay, which is a common factor: (e^g S)^T k = e^g (S^T k).
static void delta_step(const struct cpu_delta_row *r) {
    state_times(r, r->k);
    for (int c = 0; c < r->value_dim; c++) r->d[c] = r->beta * (r->v[c] - r->decay * r->o[c]);
    delta_fold(r);
    state_times(r, r->q);
}

static void delta_scores(const struct cpu_delta_scores *s) {
    for (int i = 0; i < s->n_row; i++) {
        const float *q = s->q + (int64_t)i * s->key_dim;
        const float *ki = s->k + (int64_t)i * s->key_dim;
        for (int j = 0; j <= i; j++) {
            const float *kj = s->k + (int64_t)j * s->key_dim;
            float decay = expf((s->sum_g[i] - s->sum_g[j]) + (s->low_g[i] - s->low_g[j]));
            s->qk[i * CPU_DELTA_ROWS + j] = decay * cpu_dot(q, kj, s->key_dim);
            if (j < i) s->kk[i * CPU_DELTA_ROWS + j] = s->beta[i] * decay * cpu_dot(ki, kj, s->key_dim);
        }
    }
}

// out = x^T S for one row x of keys or queries, S being the state at the chunk's start.
static void row_times_state(const struct cpu_delta_chunk *c, const float *x, float *out) {
    memset(out, 0, (size_t)c->n_col * sizeof(float));
    for (int i = 0; i < c->key_dim; i++) cpu_axpy(x[i], c->state + i * c->state_stride, c->n_col, out);
}

// Row i of d by forward substitution: it needs the rows before it only.
static void solve_row(const struct cpu_delta_chunk *c, int i, float *d) {
    const float *v = c->v + i * c->v_stride;
    float *row = d + (int64_t)i * c->n_col;
    float decay = expf(c->sum_g[i]);
    row_times_state(c, c->k + (int64_t)i * c->key_dim, row);
    for (int n = 0; n < c->n_col; n++) row[n] = c->beta[i] * (v[n] - decay * row[n]);
    for (int j = 0; j < i; j++) cpu_axpy(-c->kk[i * CPU_DELTA_ROWS + j], d + (int64_t)j * c->n_col, c->n_col, row);
}

static void output_row(const struct cpu_delta_chunk *c, int i, const float *d) {
    float *o = c->o + i * c->o_stride;
    row_times_state(c, c->q + (int64_t)i * c->key_dim, o);
    cpu_scale(expf(c->sum_g[i]), c->n_col, o);
    for (int j = 0; j <= i; j++) cpu_axpy(c->qk[i * CPU_DELTA_ROWS + j], d + (int64_t)j * c->n_col, c->n_col, o);
}

static void delta_chunk(const struct cpu_delta_chunk *c) {
    float *d = c->scratch;
    for (int i = 0; i < c->n_row; i++) solve_row(c, i, d);
    for (int i = 0; i < c->n_row; i++) output_row(c, i, d);
    float last = c->sum_g[c->n_row - 1], last_low = c->low_g[c->n_row - 1];
    for (int r = 0; r < c->key_dim; r++) cpu_scale(expf(last), c->n_col, c->state + r * c->state_stride);
    for (int i = 0; i < c->n_row; i++) {
        float decay = expf((last - c->sum_g[i]) + (last_low - c->low_g[i]));
        const float *k = c->k + (int64_t)i * c->key_dim;
        for (int r = 0; r < c->key_dim; r++)
            cpu_axpy(decay * k[r], d + (int64_t)i * c->n_col, c->n_col, c->state + r * c->state_stride);
    }
}

static size_t delta_scratch(int key_dim, int value_dim) {
    (void)key_dim;
    return (size_t)(CPU_DELTA_ROWS * value_dim) * sizeof(float);
}

void cpu_kernels_fill_delta(struct cpu_kernels *k) {
    k->delta_scores = delta_scores;
    k->delta_chunk = delta_chunk;
    k->delta_step = delta_step;
    k->delta_fold = delta_fold;
    k->delta_scratch = delta_scratch;
}
