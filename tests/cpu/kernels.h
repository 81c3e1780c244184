// What the tests of kernels share: numbers, memory that ends where it says, and every instruction set of this machine.
#ifndef TF_TESTS_CPU_KERNELS_H
#define TF_TESTS_CPU_KERNELS_H

#include "cpu/kernel_table.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

uint64_t next_number(void);            // 64 random bits
float number(void);                    // standard normal
float *numbers(size_t n, float scale); // to be freed
void *take(size_t bytes);              // exact, so that the address sanitizer sees a read past the end
void *take_aligned(size_t bytes);      // to CPU_ROW_ALIGN, NaN where nothing is written
void assert_near(double got, double want, double relative, double absolute);

struct cpu_kernels kernels_of(enum cpu_isa isa, enum compute compute);

// Runs a test for every instruction set of this machine beyond C, and every mode; skips it where there is none.
void for_each_isa(void (*test)(const struct cpu_kernels *k, enum compute compute));

#endif
