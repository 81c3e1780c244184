// Owns chunks of the gated delta rule in fp32, for the instruction set that the including file is compiled for.
#ifndef TF_CPU_X86_DELTA_CHUNK_BODY_H
#define TF_CPU_X86_DELTA_CHUNK_BODY_H

#include "cpu/x86/delta_columns_body.h"

// Rows [i0, i0 + n_row) of d and of o: first what comes from the state and the rows before i0, for all of them, then
// what they take from one another.
INLINE void chunk_rows(const struct chunk_columns *b, int i0, const int n_row, const int n_vec) {
    const struct cpu_delta_chunk *c = b->c;
    chunk_sums d, o;
    times_state(b, c->k, i0, n_row, n_vec, d);
    for (int i = 0; i < n_row; i++)
        for (int v = 0; v < n_vec; v++) {
            vec value = load_part(c->v + (i0 + i) * c->v_stride + b->col + v * VEC_N, part_of(b, n_vec));
            d[i][v] = vec_mul(vec_set(c->beta[i0 + i]), vec_fnma(vec_set(b->decay[i0 + i]), d[i][v], value));
        }
    add_earlier(b, c->kk, -1, i0, n_row, n_vec, d);
    for (int i = 0; i < n_row; i++)
        for (int v = 0; v < n_vec; v++) {
            for (int j = 0; j < i; j++) d[i][v] = vec_fnma(vec_set(c->kk[(i0 + i) * N + i0 + j]), d[j][v], d[i][v]);
            store_part(b->d + (int64_t)(i0 + i) * c->n_col + b->col + v * VEC_N, d[i][v], part_of(b, n_vec));
        }
    times_state(b, c->q, i0, n_row, n_vec, o);
    for (int i = 0; i < n_row; i++)
        for (int v = 0; v < n_vec; v++) o[i][v] = vec_mul(vec_set(b->decay[i0 + i]), o[i][v]);
    add_earlier(b, c->qk, 1, i0, n_row, n_vec, o);
    for (int i = 0; i < n_row; i++)
        for (int v = 0; v < n_vec; v++) {
            for (int j = 0; j <= i; j++) {
                vec earlier = load_part(b->d + (int64_t)(i0 + j) * c->n_col + b->col + v * VEC_N, part_of(b, n_vec));
                o[i][v] = vec_fma(vec_set(c->qk[(i0 + i) * N + i0 + j]), earlier, o[i][v]);
            }
            store_part(c->o + (i0 + i) * c->o_stride + b->col + v * VEC_N, o[i][v], part_of(b, n_vec));
        }
}

// n_row rows of the state: S = e^(G_n) S + sum_i k_i[r] (e^(G_n - G_i) d_i).
INLINE void update_state(const struct chunk_columns *b, int r0, const int n_row, const int n_vec, float fade) {
    const struct cpu_delta_chunk *c = b->c;
    chunk_sums sum;
    for (int r = 0; r < n_row; r++)
        for (int v = 0; v < n_vec; v++)
            sum[r][v] = vec_mul(vec_set(fade), load_part(c->state + (r0 + r) * c->state_stride + b->col + v * VEC_N,
                                                         part_of(b, n_vec)));
    for (int i = 0; i < c->n_row; i++) {
        vec d[CHUNK_VECS];
        for (int v = 0; v < n_vec; v++)
            d[v] = load_part(b->late + (int64_t)i * c->n_col + b->col + v * VEC_N, part_of(b, n_vec));
        for (int r = 0; r < n_row; r++) {
            vec k = vec_set(c->k[(int64_t)i * c->key_dim + r0 + r]);
            for (int v = 0; v < n_vec; v++) sum[r][v] = vec_fma(k, d[v], sum[r][v]);
        }
    }
    for (int r = 0; r < n_row; r++)
        for (int v = 0; v < n_vec; v++)
            store_part(c->state + (r0 + r) * c->state_stride + b->col + v * VEC_N, sum[r][v], part_of(b, n_vec));
}

INLINE void run_columns(const struct chunk_columns *b, const int n_vec) {
    const struct cpu_delta_chunk *c = b->c;
    int i = 0, r = 0, last = c->n_row - 1;
    for (; i + CHUNK_ROWS <= c->n_row; i += CHUNK_ROWS) chunk_rows(b, i, CHUNK_ROWS, n_vec);
    for (; i < c->n_row; i++) chunk_rows(b, i, 1, n_vec);
    float late[N];
    for (int j = 0; j < c->n_row; j += VEC_N)
        store_part(late + j, decays_between(c->sum_g, c->low_g, last, j, c->n_row - j), N - j);
    for (i = 0; i < c->n_row; i++)
        for (int v = 0; v < n_vec; v++) {
            int64_t at = (int64_t)i * c->n_col + b->col + v * VEC_N;
            store_part(b->late + at, vec_mul(vec_set(late[i]), load_part(b->d + at, part_of(b, n_vec))),
                       part_of(b, n_vec));
        }
    for (; r + CHUNK_ROWS <= c->key_dim; r += CHUNK_ROWS) update_state(b, r, CHUNK_ROWS, n_vec, b->decay[last]);
    for (; r < c->key_dim; r++) update_state(b, r, 1, n_vec, b->decay[last]);
}

NOT_INLINED static void delta_chunk_flushed(const struct cpu_delta_chunk *c) {
    struct chunk_columns b = {.c = c, .d = c->scratch, .late = (float *)c->scratch + (int64_t)c->n_row * c->n_col};
    for (int j = 0; j < c->n_row; j += VEC_N)
        store_part(b.decay + j, vec_exp(load_part(c->sum_g + j, c->n_row - j)), N - j);
    for (; b.col < c->n_col; b.col += b.n_col) {
        bool wide = c->n_col - b.col >= CHUNK_VECS * VEC_N;
        b.n_col = wide ? CHUNK_VECS * VEC_N : c->n_col - b.col < VEC_N ? c->n_col - b.col : VEC_N;
        if (wide)
            run_columns(&b, CHUNK_VECS);
        else
            run_columns(&b, 1);
    }
}

static size_t delta_scratch(int key_dim, int value_dim) {
    (void)key_dim;
    return (size_t)(2 * N * value_dim) * sizeof(float);
}

static void delta_chunk(const struct cpu_delta_chunk *c) {
    unsigned before = flush_tiny_numbers();
    delta_chunk_flushed(c);
    _mm_setcsr(before);
}

static void fill_delta_chunk(struct cpu_kernels *k) {
    k->delta_chunk = delta_chunk;
    k->delta_scratch = delta_scratch;
}

#endif
