// Owns the sizes that follow from a linear method; shared by the operations that multiply by matrices.
#ifndef TF_CPU_LINEAR_H
#define TF_CPU_LINEAR_H

#include "cpu/weights.h"

#define CPU_MIN_GROUP 32

static inline int cpu_weight_group(const struct weight *w) { return w->kind == WEIGHT_AFFINE ? w->group : 0; }

static inline size_t cpu_method_scratch(const struct cpu_linear_method *m, int64_t n_in) {
    return m->scratch_fixed + m->scratch_per_in * (size_t)n_in;
}

// Of a prepared row of at most n_in elements, for any weight of the class: the narrowest group has the most scales.
static inline size_t cpu_largest_row_bytes(const struct cpu_linear_method *m, int weight_class, int64_t n_in) {
    if (weight_class < CPU_Q2) return m->row_bytes(n_in, 0);
    return m->row_bytes((n_in + CPU_MAX_GROUP - 1) / CPU_MAX_GROUP * CPU_MAX_GROUP, CPU_MIN_GROUP);
}

#endif
