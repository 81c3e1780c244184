// Portable attention over one tile of keys.
#include "cpu/kernels.h"
#include "base/numeric.h"
#include <math.h>

// The tile as fp32 [n_key][head_dim], converted once for all queries.
static const float *tile_as_float(enum dtype type, const void *tile, int64_t n, float *converted) {
    if (type == DTYPE_F32) return tile;
    const uint16_t *halves = tile;
    for (int64_t i = 0; i < n; i++) converted[i] = bf16_to_float(halves[i]);
    return converted;
}

static void attend_query(const struct cpu_attend *a, int i, const float *k, const float *v) {
    const float *q = a->q + (int64_t)i * a->head_dim;
    float *acc = a->acc + (int64_t)i * a->head_dim;
    int n_key = a->visible[i];
    float score[CPU_TILE_KEYS];
    float max = a->max[i];
    for (int j = 0; j < n_key; j++) {
        score[j] = a->scale * cpu_dot(q, k + (int64_t)j * a->head_dim, a->head_dim);
        max = fmaxf(max, score[j]);
    }
    float fade = expf(a->max[i] - max);
    float sum = 0;
    cpu_scale(fade, a->head_dim, acc);
    for (int j = 0; j < n_key; j++) {
        float p = expf(score[j] - max);
        sum += p;
        cpu_axpy(p, v + (int64_t)j * a->head_dim, a->head_dim, acc);
    }
    a->sum[i] = a->sum[i] * fade + sum;
    a->max[i] = max;
}

static void attend(const struct cpu_attend *a) {
    int64_t n = (int64_t)a->n_key * a->head_dim;
    const float *k = tile_as_float(a->kv, a->k, n, a->scratch);
    const float *v = tile_as_float(a->kv, a->v, n, (float *)a->scratch + n);
    for (int i = 0; i < a->n_query; i++)
        if (a->visible[i] > 0) attend_query(a, i, k, v);
}

static size_t attend_scratch(int n_query, int head_dim) {
    (void)n_query;
    return (size_t)(2 * CPU_TILE_KEYS * head_dim) * sizeof(float);
}

void cpu_kernels_fill_attend(struct cpu_kernels *k) {
    k->attend[FORM_PROMPT] = attend;
    k->attend[FORM_ROWS] = attend;
    k->attend_scratch = attend_scratch;
}
