// Owns the scores of a tile of keys in fp32, for the instruction set that the including file is compiled for.
#ifndef TF_CPU_X86_SCORES_BODY_H
#define TF_CPU_X86_SCORES_BODY_H

#include "cpu/kernel_table.h"
#include "cpu/x86/vec_math.h"

#define ATTEND_QUERIES (VEC_N == 16 ? 4 : 2) // side by side
#define ATTEND_KEYS    4

// Element i of a key or value row. Past whole vectors only what is there is read.
INLINE vec load_kv(enum dtype type, const char *row, int64_t i, int64_t n) {
    if (type == DTYPE_F32)
        return n - i >= VEC_N ? vec_load((const float *)row + i) : vec_load_n((const float *)row + i, n - i);
    const uint16_t *halves = (const uint16_t *)row + i;
    if (n - i >= VEC_N) return vec_load_bf16(halves);
    uint16_t rest[VEC_N] = {0};
    return vec_load_bf16(memcpy(rest, halves, (size_t)(n - i) * sizeof *rest));
}

INLINE vec load_query(const float *row, int64_t i, int64_t n) {
    return n - i >= VEC_N ? vec_load(row + i) : vec_load_n(row + i, n - i);
}

// What a tile's queries share.
struct attend_tile {
    const struct cpu_attend *a;
    int64_t row_bytes;
    float *p; // [ATTEND_QUERIES][CPU_TILE_KEYS]: scores, then weights
};

// Scores of a block of queries by ATTEND_KEYS keys from j on; those that do not exist repeat the last.
INLINE void score_block(const struct attend_tile *t, enum dtype type, int first, int n_query, int j) {
    const struct cpu_attend *a = t->a;
    const float *q[ATTEND_QUERIES];
    const char *k[ATTEND_KEYS];
    vec sum[ATTEND_QUERIES][ATTEND_KEYS];
    for (int i = 0; i < ATTEND_QUERIES; i++)
        q[i] = a->q + (int64_t)(first + (i < n_query ? i : n_query - 1)) * a->head_dim;
    for (int i = 0; i < ATTEND_KEYS; i++)
        k[i] = (const char *)a->k + (j + i < a->n_key ? j + i : a->n_key - 1) * t->row_bytes;
    for (int i = 0; i < ATTEND_QUERIES; i++)
        for (int c = 0; c < ATTEND_KEYS; c++) sum[i][c] = vec_set(0);
    for (int64_t d = 0; d < a->head_dim; d += VEC_N) {
        vec key[ATTEND_KEYS];
        for (int c = 0; c < ATTEND_KEYS; c++) key[c] = load_kv(type, k[c], d, a->head_dim);
        for (int i = 0; i < ATTEND_QUERIES; i++) {
            vec query = load_query(q[i], d, a->head_dim);
            for (int c = 0; c < ATTEND_KEYS; c++) sum[i][c] = vec_fma(query, key[c], sum[i][c]);
        }
    }
    for (int i = 0; i < ATTEND_QUERIES; i++)
        for (int c = 0; c < ATTEND_KEYS; c++) t->p[i * CPU_TILE_KEYS + j + c] = a->scale * vec_sum(sum[i][c]);
}

#endif
