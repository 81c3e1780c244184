// Owns attention over a tile of keys in fp32, for the instruction set that the including file is compiled for.
#ifndef TF_CPU_X86_ATTEND_BODY_H
#define TF_CPU_X86_ATTEND_BODY_H

#include "cpu/x86/scores_body.h"
#include <math.h>

#define ATTEND_VECS 4 // of values

// Turns a query's scores into weights: zeros where the key is not visible. Returns the factor for what it has so far.
static float weigh(const struct cpu_attend *a, int query, float *p) {
    int n = a->visible[query];
    vec largest = vec_set(a->max[query]), sum = vec_set(0);
    for (int j = 0; j < CPU_TILE_KEYS; j += VEC_N) {
        vec s = vec_blend_n(vec_load(p + j), vec_set(-INFINITY), n > j ? n - j : 0);
        vec_store(p + j, s);
        largest = vec_max(largest, s);
    }
    float max = vec_largest(largest), old = a->max[query];
    for (int j = 0; j < CPU_TILE_KEYS; j += VEC_N) {
        vec e = vec_exp(vec_sub(vec_load(p + j), vec_set(max)));
        vec_store(p + j, e);
        sum = vec_add(sum, e);
    }
    float fade[VEC_N];
    vec_store(fade, vec_exp(vec_set(old - max)));
    a->max[query] = max;
    a->sum[query] = a->sum[query] * fade[0] + vec_sum(sum);
    return fade[0];
}

// acc += weights times values, for keys [from, to) and VECS vectors of n_query queries from dimension d on.
INLINE void add_values(const struct attend_tile *t, enum dtype type, int first, const int n_query, const int n_vec,
                       int from, int to, int64_t d, const float *fade) {
    const struct cpu_attend *a = t->a;
    vec acc[ATTEND_QUERIES][ATTEND_VECS];
    int64_t n = a->head_dim;
    for (int i = 0; i < n_query; i++)
        for (int c = 0; c < n_vec; c++)
            acc[i][c] = vec_mul(load_query(a->acc + (first + i) * n, d + c * VEC_N, n), vec_set(fade[i]));
    for (int j = from; j < to; j++) {
        const char *row = (const char *)a->v + j * t->row_bytes;
        vec value[ATTEND_VECS];
        for (int c = 0; c < n_vec; c++) value[c] = load_kv(type, row, d + c * VEC_N, n);
        for (int i = 0; i < n_query; i++) {
            vec p = vec_set(t->p[i * CPU_TILE_KEYS + j]);
            for (int c = 0; c < n_vec; c++) acc[i][c] = vec_fma(p, value[c], acc[i][c]);
        }
    }
    for (int i = 0; i < n_query; i++) {
        for (int c = 0; c < n_vec; c++) {
            float *to_row = a->acc + (first + i) * n + d + c * VEC_N;
            if (n - (d + c * VEC_N) >= VEC_N)
                vec_store(to_row, acc[i][c]);
            else
                vec_store_n(to_row, acc[i][c], n - (d + c * VEC_N));
        }
    }
}

// All dimensions, for n_query queries at once.
INLINE void add_tile(const struct attend_tile *t, enum dtype type, int first, const int n_query, int from, int to,
                     const float *fade) {
    int64_t d = 0, n = t->a->head_dim;
    for (; d + ATTEND_VECS * VEC_N <= n; d += ATTEND_VECS * VEC_N)
        add_values(t, type, first, n_query, ATTEND_VECS, from, to, d, fade);
    for (; d < n; d += VEC_N) add_values(t, type, first, n_query, 1, from, to, d, fade);
}

// Up to ATTEND_QUERIES queries. The keys that all of them see are added for all at once, the others one by one: to a
// query's own sum that makes no difference.
INLINE void attend_queries(const struct attend_tile *t, enum dtype type, int first, int n_query) {
    const struct cpu_attend *a = t->a;
    float fade[ATTEND_QUERIES];
    const float one = 1;
    int most = 0, shared = n_query == ATTEND_QUERIES ? CPU_TILE_KEYS : 0;
    for (int i = 0; i < n_query; i++) {
        int visible = a->visible[first + i];
        if (visible > most) most = visible;
        if (visible < shared) shared = visible;
    }
    for (int j = 0; j < most; j += ATTEND_KEYS) score_block(t, type, first, n_query, j);
    for (int i = 0; i < n_query; i++)
        if (a->visible[first + i] > 0) fade[i] = weigh(a, first + i, t->p + i * CPU_TILE_KEYS);
    if (shared > 0) add_tile(t, type, first, ATTEND_QUERIES, 0, shared, fade);
    for (int i = 0; i < n_query; i++) {
        struct attend_tile own = *t;
        own.p += i * CPU_TILE_KEYS;
        if (a->visible[first + i] > shared)
            add_tile(&own, type, first + i, 1, shared, a->visible[first + i], shared > 0 ? &one : &fade[i]);
    }
}

NOT_INLINED static void attend_flushed(const struct cpu_attend *a) {
    float p[ATTEND_QUERIES * CPU_TILE_KEYS];
    struct attend_tile t = {a, (int64_t)a->head_dim * (int64_t)dtype_bytes(a->kv), p};
    for (int first = 0; first < a->n_query; first += ATTEND_QUERIES) {
        int n = a->n_query - first < ATTEND_QUERIES ? a->n_query - first : ATTEND_QUERIES;
        if (a->kv == DTYPE_F32)
            attend_queries(&t, DTYPE_F32, first, n);
        else
            attend_queries(&t, DTYPE_BF16, first, n);
    }
}

static size_t attend_scratch(int n_query, int head_dim) {
    (void)n_query;
    (void)head_dim;
    return 0;
}

static void attend(const struct cpu_attend *a) {
    unsigned before = flush_tiny_numbers();
    attend_flushed(a);
    _mm_setcsr(before);
}

static void fill_attend(struct cpu_kernels *k) {
    k->attend[FORM_PROMPT] = attend;
    k->attend[FORM_ROWS] = attend;
    k->attend_scratch = attend_scratch;
}

#endif
