// Owns the sums over columns that a chunk of the gated delta rule is made of, for the instruction set that the
// including file is compiled for.
#ifndef TF_CPU_X86_DELTA_COLUMNS_BODY_H
#define TF_CPU_X86_DELTA_COLUMNS_BODY_H

#include "cpu/x86/delta_scores_body.h"

#define CHUNK_ROWS 4
#define CHUNK_VECS (VEC_N == 16 ? 4 : 2) // sums of CHUNK_ROWS rows by so many vectors of columns fit the registers

// One block of columns of a chunk.
struct chunk_columns {
    const struct cpu_delta_chunk *c;
    int col, n_col;
    float *d, *late; // [n_row][c->n_col]: d, and d times e^(G_n - G_i)
    float decay[N];  // e^G
};

typedef vec chunk_sums[CHUNK_ROWS][CHUNK_VECS];

// Columns of a vector: several vectors are whole, and this is a constant then.
INLINE int part_of(const struct chunk_columns *b, const int n_vec) { return n_vec > 1 ? VEC_N : b->n_col; }

// sum[i][v] = a_i^T S for n_row rows of keys or queries, from row i0 on.
INLINE void times_state(const struct chunk_columns *b, const float *a, int i0, const int n_row, const int n_vec,
                        chunk_sums sum) {
    const struct cpu_delta_chunk *c = b->c;
    for (int i = 0; i < n_row; i++)
        for (int v = 0; v < n_vec; v++) sum[i][v] = vec_set(0);
    for (int r = 0; r < c->key_dim; r++) {
        const float *state = c->state + r * c->state_stride + b->col;
        vec row[CHUNK_VECS];
        for (int v = 0; v < n_vec; v++) row[v] = load_part(state + v * VEC_N, part_of(b, n_vec));
        for (int i = 0; i < n_row; i++) {
            vec x = vec_set(a[(int64_t)(i0 + i) * c->key_dim + r]);
            for (int v = 0; v < n_vec; v++) sum[i][v] = vec_fma(x, row[v], sum[i][v]);
        }
    }
}

// sum[i] += sign * triangle[i0 + i][j] d_j for the rows j before i0.
INLINE void add_earlier(const struct chunk_columns *b, const float *triangle, float sign, int i0, const int n_row,
                        const int n_vec, chunk_sums sum) {
    for (int j = 0; j < i0; j++) {
        vec d[CHUNK_VECS];
        for (int v = 0; v < n_vec; v++)
            d[v] = load_part(b->d + (int64_t)j * b->c->n_col + b->col + v * VEC_N, part_of(b, n_vec));
        for (int i = 0; i < n_row; i++) {
            vec x = vec_set(sign * triangle[(i0 + i) * N + j]);
            for (int v = 0; v < n_vec; v++) sum[i][v] = vec_fma(x, d[v], sum[i][v]);
        }
    }
}

#endif
