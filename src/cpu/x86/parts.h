// Owns products of a few fp32 rows that are kept in registers, on the vectors of vec.h.
#ifndef TF_CPU_X86_PARTS_H
#define TF_CPU_X86_PARTS_H

#include "cpu/x86/vec_math.h"

// The vector at p, of which n elements exist (more than VEC_N count as VEC_N).
INLINE vec load_part(const float *p, int64_t n) { return n >= VEC_N ? vec_load(p) : vec_load_n(p, n); }

INLINE void store_part(float *p, vec v, int64_t n) {
    if (n >= VEC_N)
        vec_store(p, v);
    else
        vec_store_n(p, v, n);
}

#define DOT_A (VEC_N == 16 ? 4 : 2) // sums of DOT_A by DOT_B rows and their operands fit the registers
#define DOT_B 4

// out[i][j] = a_i . b_j. Each is one chain per lane and one sum over lanes, however many are made side by side.
INLINE void dot_tile(const float *const *a, const float *const *b, int64_t n, float out[DOT_A][DOT_B]) {
    vec sum[DOT_A][DOT_B];
    for (int i = 0; i < DOT_A; i++)
        for (int j = 0; j < DOT_B; j++) sum[i][j] = vec_set(0);
    for (int64_t d = 0; d < n; d += VEC_N) {
        vec right[DOT_B];
        for (int j = 0; j < DOT_B; j++) right[j] = load_part(b[j] + d, n - d);
        for (int i = 0; i < DOT_A; i++) {
            vec left = load_part(a[i] + d, n - d);
            for (int j = 0; j < DOT_B; j++) sum[i][j] = vec_fma(left, right[j], sum[i][j]);
        }
    }
    for (int i = 0; i < DOT_A; i++)
        for (int j = 0; j < DOT_B; j++) out[i][j] = vec_sum(sum[i][j]);
}

#endif
