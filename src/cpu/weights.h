// Owns reading one row of a weight matrix. Pure functions; any thread.
#ifndef TF_CPU_WEIGHTS_H
#define TF_CPU_WEIGHTS_H

#include "cpu/internal.h"

#define CPU_MAX_GROUP 128

enum cpu_weight_class cpu_weight_class_of(const struct weight *w);

// Row `row` of w as fp32: plain values widened, or q * scale + bias, each step rounded once.
void cpu_weight_row(const struct weight *w, int64_t row, float *out);

// Element i of an array of f32, bf16 or f16.
float cpu_load_float(enum dtype type, const void *p, int64_t i);

// n (a multiple of 8) codes of `bits` bits each, from the start of a byte stream (tensor.h); reads n * bits / 8 bytes.
void cpu_unpack_codes(const uint8_t *bytes, int bits, int64_t n, uint8_t *codes);

#endif
