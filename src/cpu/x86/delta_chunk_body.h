// Owns chunks of the gated delta rule in fp32, for the instruction set that the including file is compiled for.
#ifndef TF_CPU_X86_DELTA_CHUNK_BODY_H
#define TF_CPU_X86_DELTA_CHUNK_BODY_H

#include "cpu/kernel_table.h"
#include "cpu/x86/parts.h"

#define N          CPU_DELTA_ROWS
#define CHUNK_ROWS 4
#define CHUNK_VECS (VEC_N == 16 ? 4 : 2) // sums of CHUNK_ROWS rows by so many vectors of columns fit the registers

// e^(G_i - G_j) for j <= i; the rest of the row is not used.
static void decays_of_row(const float *sum_g, int i, float decay[N]) {
    for (int j = 0; j <= i; j += VEC_N)
        vec_store(decay + j, vec_exp(vec_sub(vec_set(sum_g[i]), load_part(sum_g + j, i + 1 - j))));
}

// The triangle's part of DOT_A rows from i0 and DOT_B from j0, rows of a by rows of k. Rows that do not exist repeat
// the last.
static void scores_tile(const struct cpu_delta_scores *s, const float *a, int i0, int j0, const float decay[DOT_A][N],
                        bool strict, float *out) {
    const float *left[DOT_A], *right[DOT_B];
    float dot[DOT_A][DOT_B];
    for (int i = 0; i < DOT_A; i++) left[i] = a + (int64_t)(i0 + i < s->n_row ? i0 + i : s->n_row - 1) * s->key_dim;
    for (int j = 0; j < DOT_B; j++) right[j] = s->k + (int64_t)(j0 + j < s->n_row ? j0 + j : s->n_row - 1) * s->key_dim;
    dot_tile(left, right, s->key_dim, dot);
    for (int i = i0; i < i0 + DOT_A && i < s->n_row; i++)
        for (int j = j0; j < j0 + DOT_B && j < i + !strict; j++)
            out[i * N + j] = (strict ? s->beta[i] : 1.0f) * decay[i - i0][j] * dot[i - i0][j - j0];
}

static void delta_scores(const struct cpu_delta_scores *s) {
    for (int i0 = 0; i0 < s->n_row; i0 += DOT_A) {
        float decay[DOT_A][N];
        for (int i = i0; i < i0 + DOT_A && i < s->n_row; i++) decays_of_row(s->sum_g, i, decay[i - i0]);
        for (int j0 = 0; j0 < i0 + DOT_A; j0 += DOT_B) {
            scores_tile(s, s->k, i0, j0, decay, true, s->kk);
            scores_tile(s, s->q, i0, j0, decay, false, s->qk);
        }
    }
}

// One block of columns of a chunk.
struct chunk_columns {
    const struct cpu_delta_chunk *c;
    int col, n_col;
    float *d, *late; // [n_row][c->n_col]: d, and d times e^(G_n - G_i)
    float decay[N];  // e^G
};

typedef vec chunk_sums[CHUNK_ROWS][CHUNK_VECS];

INLINE int part_of(const struct chunk_columns *b, int v) { return b->n_col - v * VEC_N; }

// sum[i][v] = a_i^T S for n_row rows of keys or queries, from row i0 on.
INLINE void times_state(const struct chunk_columns *b, const float *a, int i0, const int n_row, const int n_vec,
                        chunk_sums sum) {
    const struct cpu_delta_chunk *c = b->c;
    for (int i = 0; i < n_row; i++)
        for (int v = 0; v < n_vec; v++) sum[i][v] = vec_set(0);
    for (int r = 0; r < c->key_dim; r++) {
        const float *state = c->state + r * c->state_stride + b->col;
        vec row[CHUNK_VECS];
        for (int v = 0; v < n_vec; v++) row[v] = load_part(state + v * VEC_N, part_of(b, v));
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
            d[v] = load_part(b->d + (int64_t)j * b->c->n_col + b->col + v * VEC_N, part_of(b, v));
        for (int i = 0; i < n_row; i++) {
            vec x = vec_set(sign * triangle[(i0 + i) * N + j]);
            for (int v = 0; v < n_vec; v++) sum[i][v] = vec_fma(x, d[v], sum[i][v]);
        }
    }
}

// Rows [i0, i0 + n_row) of d and of o: first what comes from the state and the rows before i0, for all of them, then
// what they take from one another.
INLINE void chunk_rows(const struct chunk_columns *b, int i0, const int n_row, const int n_vec) {
    const struct cpu_delta_chunk *c = b->c;
    chunk_sums d, o;
    times_state(b, c->k, i0, n_row, n_vec, d);
    for (int i = 0; i < n_row; i++)
        for (int v = 0; v < n_vec; v++) {
            vec value = load_part(c->v + (i0 + i) * c->v_stride + b->col + v * VEC_N, part_of(b, v));
            d[i][v] = vec_mul(vec_set(c->beta[i0 + i]), vec_fnma(vec_set(b->decay[i0 + i]), d[i][v], value));
        }
    add_earlier(b, c->kk, -1, i0, n_row, n_vec, d);
    for (int i = 0; i < n_row; i++)
        for (int v = 0; v < n_vec; v++) {
            for (int j = 0; j < i; j++) d[i][v] = vec_fnma(vec_set(c->kk[(i0 + i) * N + i0 + j]), d[j][v], d[i][v]);
            store_part(b->d + (int64_t)(i0 + i) * c->n_col + b->col + v * VEC_N, d[i][v], part_of(b, v));
        }
    times_state(b, c->q, i0, n_row, n_vec, o);
    for (int i = 0; i < n_row; i++)
        for (int v = 0; v < n_vec; v++) o[i][v] = vec_mul(vec_set(b->decay[i0 + i]), o[i][v]);
    add_earlier(b, c->qk, 1, i0, n_row, n_vec, o);
    for (int i = 0; i < n_row; i++)
        for (int v = 0; v < n_vec; v++) {
            for (int j = 0; j <= i; j++) {
                vec earlier = load_part(b->d + (int64_t)(i0 + j) * c->n_col + b->col + v * VEC_N, part_of(b, v));
                o[i][v] = vec_fma(vec_set(c->qk[(i0 + i) * N + i0 + j]), earlier, o[i][v]);
            }
            store_part(c->o + (i0 + i) * c->o_stride + b->col + v * VEC_N, o[i][v], part_of(b, v));
        }
}

// n_row rows of the state: S = e^(G_n) S + sum_i k_i[r] (e^(G_n - G_i) d_i).
INLINE void update_state(const struct chunk_columns *b, int r0, const int n_row, const int n_vec, float fade) {
    const struct cpu_delta_chunk *c = b->c;
    chunk_sums sum;
    for (int r = 0; r < n_row; r++)
        for (int v = 0; v < n_vec; v++)
            sum[r][v] = vec_mul(vec_set(fade),
                                load_part(c->state + (r0 + r) * c->state_stride + b->col + v * VEC_N, part_of(b, v)));
    for (int i = 0; i < c->n_row; i++) {
        vec d[CHUNK_VECS];
        for (int v = 0; v < n_vec; v++)
            d[v] = load_part(b->late + (int64_t)i * c->n_col + b->col + v * VEC_N, part_of(b, v));
        for (int r = 0; r < n_row; r++) {
            vec k = vec_set(c->k[(int64_t)i * c->key_dim + r0 + r]);
            for (int v = 0; v < n_vec; v++) sum[r][v] = vec_fma(k, d[v], sum[r][v]);
        }
    }
    for (int r = 0; r < n_row; r++)
        for (int v = 0; v < n_vec; v++)
            store_part(c->state + (r0 + r) * c->state_stride + b->col + v * VEC_N, sum[r][v], part_of(b, v));
}

INLINE void run_columns(const struct chunk_columns *b, const int n_vec) {
    const struct cpu_delta_chunk *c = b->c;
    int i = 0, r = 0, last = c->n_row - 1;
    for (; i + CHUNK_ROWS <= c->n_row; i += CHUNK_ROWS) chunk_rows(b, i, CHUNK_ROWS, n_vec);
    for (; i < c->n_row; i++) chunk_rows(b, i, 1, n_vec);
    float late[N];
    for (int j = 0; j < c->n_row; j += VEC_N)
        store_part(late + j, vec_exp(vec_sub(vec_set(c->sum_g[last]), load_part(c->sum_g + j, c->n_row - j))), N - j);
    for (i = 0; i < c->n_row; i++)
        for (int v = 0; v < n_vec; v++) {
            int64_t at = (int64_t)i * c->n_col + b->col + v * VEC_N;
            store_part(b->late + at, vec_mul(vec_set(late[i]), load_part(b->d + at, part_of(b, v))), part_of(b, v));
        }
    for (; r + CHUNK_ROWS <= c->key_dim; r += CHUNK_ROWS) update_state(b, r, CHUNK_ROWS, n_vec, b->decay[last]);
    for (; r < c->key_dim; r++) update_state(b, r, 1, n_vec, b->decay[last]);
}

static void delta_chunk(const struct cpu_delta_chunk *c) {
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

static void fill_delta_chunk(struct cpu_kernels *k) {
    k->delta_scores = delta_scores;
    k->delta_chunk = delta_chunk;
    k->delta_scratch = delta_scratch;
}

#endif
