#include "tests/cpu/kernels.h"
#include "base/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t counter;

uint64_t next_number(void) { return random_bits(12, 0, counter++); }
float number(void) { return (float)random_normal(11, 0, counter++); }

void *take(size_t bytes) {
    void *p = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(p);
    return p;
}

float *numbers(size_t n, float scale) {
    float *x = take(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = scale * number();
    return x;
}

void *take_aligned(size_t bytes) {
    void *p = aligned_alloc(CPU_ROW_ALIGN, (bytes / CPU_ROW_ALIGN + 1) * CPU_ROW_ALIGN);
    assert_non_null(p);
    memset(p, 0xff, bytes);
    return p;
}

void assert_near(double got, double want, double relative, double absolute) {
    if (!(fabs(got - want) <= relative * fabs(want) + absolute)) fail_msg("%.9g is not %.9g", got, want);
}

struct cpu_kernels kernels_of(enum cpu_isa isa, enum compute compute) {
    struct cpu_kernels k;
    memset(&k, 0, sizeof k);
    cpu_kernels_fill(&k, compute);
    cpu_x86_overlay(&k, isa, compute);
    return k;
}

void for_each_isa(void (*test)(const struct cpu_kernels *k, enum compute compute)) {
    if (cpu_isa_detect() == ISA_C) skip();
    for (int isa = ISA_AVX2; isa <= (int)cpu_isa_detect(); isa++) {
        for (int compute = COMPUTE_F32; compute <= COMPUTE_INT8; compute++) {
            counter = 0;
            struct cpu_kernels k = kernels_of((enum cpu_isa)isa, (enum compute)compute);
            test(&k, (enum compute)compute);
        }
    }
}
