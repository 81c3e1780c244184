// Owns the small vector helpers that the portable kernels share, and the list of files that fill the table.
#ifndef TF_CPU_KERNELS_H
#define TF_CPU_KERNELS_H

#include "cpu/internal.h"

// Each fills its part of the table with portable kernels.
void cpu_kernels_fill_linear(struct cpu_kernels *k, enum compute compute);
void cpu_kernels_fill_attend(struct cpu_kernels *k);
void cpu_kernels_fill_delta(struct cpu_kernels *k);
void cpu_kernels_fill_rows(struct cpu_kernels *k);

// Four floats at any address: what every processor that this is for can add and multiply at once.
typedef float cpu_float4 __attribute__((vector_size(16), aligned(4), may_alias));

static inline cpu_float4 cpu_load4(const float *p) { return *(const cpu_float4 *)p; }
static inline void cpu_store4(float *p, cpu_float4 v) { *(cpu_float4 *)p = v; }

// sum a[i] b[i] in 16 interleaved chains that are added pairwise: the order depends on n only.
float cpu_dot(const float *a, const float *b, int64_t n);
void cpu_axpy(float s, const float *x, int64_t n, float *y); // y += s x
void cpu_scale(float s, int64_t n, float *y);                // y *= s

#endif
