// Owns single rows of the gated delta rule in fp32, for the instruction set that the including file is compiled for.
#ifndef TF_CPU_X86_DELTA_ROWS_BODY_H
#define TF_CPU_X86_DELTA_ROWS_BODY_H

#include "cpu/kernel_table.h"
#include "cpu/x86/parts.h"

#define STEP_VECS 4 // of columns, side by side

// The state's row after decay and update: the one expression that step and fold share, so that their bits agree.
INLINE vec fold(vec state, float decay, float k, vec d) {
    return vec_fma(vec_set(k), d, vec_mul(state, vec_set(decay)));
}

NOT_INLINED static void delta_fold_flushed(const struct cpu_delta_row *r) {
    for (int i = 0; i < r->key_dim; i++) {
        float *state = r->state + (int64_t)i * r->value_dim;
        for (int c = 0; c < r->value_dim; c += VEC_N) {
            int left = r->value_dim - c;
            store_part(state + c, fold(load_part(state + c, left), r->decay, r->k[i], load_part(r->d + c, left)), left);
        }
    }
}

// n_vec vectors of columns from c on: their state is read twice and written once.
INLINE void step_columns(const struct cpu_delta_row *r, int c, const int n_vec) {
    vec sum[STEP_VECS], d[STEP_VECS], o[STEP_VECS];
    int n = r->value_dim;
    for (int v = 0; v < n_vec; v++) sum[v] = o[v] = vec_set(0);
    for (int i = 0; i < r->key_dim; i++)
        for (int v = 0; v < n_vec; v++) {
            vec state = load_part(r->state + (int64_t)i * n + c + v * VEC_N, n - c - v * VEC_N);
            sum[v] = vec_fma(vec_set(r->k[i]), state, sum[v]);
        }
    for (int v = 0; v < n_vec; v++) {
        int at = c + v * VEC_N;
        vec error = vec_fnma(vec_set(r->decay), sum[v], load_part(r->v + at, n - at));
        d[v] = vec_mul(vec_set(r->beta), error);
        store_part(r->d + at, d[v], n - at);
    }
    for (int i = 0; i < r->key_dim; i++)
        for (int v = 0; v < n_vec; v++) {
            float *state = r->state + (int64_t)i * n + c + v * VEC_N;
            vec next = fold(load_part(state, n - c - v * VEC_N), r->decay, r->k[i], d[v]);
            store_part(state, next, n - c - v * VEC_N);
            o[v] = vec_fma(vec_set(r->q[i]), next, o[v]);
        }
    for (int v = 0; v < n_vec; v++) store_part(r->o + c + v * VEC_N, o[v], n - c - v * VEC_N);
}

NOT_INLINED static void delta_step_flushed(const struct cpu_delta_row *r) {
    int c = 0;
    for (; c + STEP_VECS * VEC_N <= r->value_dim; c += STEP_VECS * VEC_N) step_columns(r, c, STEP_VECS);
    for (; c < r->value_dim; c += VEC_N) step_columns(r, c, 1);
}

static void delta_fold(const struct cpu_delta_row *r) {
    unsigned before = flush_tiny_numbers();
    delta_fold_flushed(r);
    _mm_setcsr(before);
}

static void delta_step(const struct cpu_delta_row *r) {
    unsigned before = flush_tiny_numbers();
    delta_step_flushed(r);
    _mm_setcsr(before);
}

static void fill_delta_rows(struct cpu_kernels *k) {
    k->delta_step = delta_step;
    k->delta_fold = delta_fold;
}

#endif
