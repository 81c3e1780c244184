// Owns the products inside a chunk of the gated delta rule in fp32, for the instruction set that the including file is
// compiled for.
#ifndef TF_CPU_X86_DELTA_SCORES_BODY_H
#define TF_CPU_X86_DELTA_SCORES_BODY_H

#include "cpu/kernel_table.h"
#include "cpu/x86/parts.h"

#define N CPU_DELTA_ROWS

// e^(G_i - G_j) for the rows from j on, of which n exist.
INLINE vec decays_between(const float *sum_g, const float *low_g, int i, int j, int n) {
    vec high = vec_sub(vec_set(sum_g[i]), load_part(sum_g + j, n));
    return vec_exp(vec_add(high, vec_sub(vec_set(low_g[i]), load_part(low_g + j, n))));
}

// e^(G_i - G_j) for j <= i; the rest of the row is not used.
static void decays_of_row(const struct cpu_delta_scores *s, int i, float decay[N]) {
    for (int j = 0; j <= i; j += VEC_N) vec_store(decay + j, decays_between(s->sum_g, s->low_g, i, j, i + 1 - j));
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

NOT_INLINED static void delta_scores_flushed(const struct cpu_delta_scores *s) {
    for (int i0 = 0; i0 < s->n_row; i0 += DOT_A) {
        float decay[DOT_A][N];
        for (int i = i0; i < i0 + DOT_A && i < s->n_row; i++) decays_of_row(s, i, decay[i - i0]);
        for (int j0 = 0; j0 < i0 + DOT_A; j0 += DOT_B) {
            scores_tile(s, s->k, i0, j0, decay, true, s->kk);
            scores_tile(s, s->q, i0, j0, decay, false, s->qk);
        }
    }
}

static void delta_scores(const struct cpu_delta_scores *s) {
    unsigned before = flush_tiny_numbers();
    delta_scores_flushed(s);
    _mm_setcsr(before);
}

static void fill_delta_scores(struct cpu_kernels *k) { k->delta_scores = delta_scores; }

#endif
