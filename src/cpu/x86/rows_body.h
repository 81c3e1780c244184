// Owns the kernels over single rows, for the instruction set that the including file is compiled for.
#ifndef TF_CPU_X86_ROWS_BODY_H
#define TF_CPU_X86_ROWS_BODY_H

#include "cpu/kernel_table.h"
#include "cpu/x86/vec_math.h"
#include <math.h>

static void widen(enum dtype type, const void *x, int64_t n, float *out) {
    if (type == DTYPE_F32) {
        memcpy(out, x, (size_t)n * sizeof(float));
        return;
    }
    const uint16_t *halves = x;
    int64_t i = 0;
    for (; i + VEC_N <= n; i += VEC_N)
        vec_store(out + i, type == DTYPE_BF16 ? vec_load_bf16(halves + i) : vec_load_f16(halves + i));
    if (i == n) return;
    uint16_t rest[VEC_N] = {0};
    memcpy(rest, halves + i, (size_t)(n - i) * sizeof *rest);
    vec_store_n(out + i, type == DTYPE_BF16 ? vec_load_bf16(rest) : vec_load_f16(rest), n - i);
}

// What vec_load_e4m3 leaves out is put into the scale: both products are exact but for the one rounding.
static void widen_e4m3(const uint8_t *codes, float scale, int64_t n, float *out) {
    vec factor = vec_set(scale * 0x1p8f);
    int64_t i = 0;
    for (; i + VEC_N <= n; i += VEC_N) vec_store(out + i, vec_mul(vec_load_e4m3(codes + i), factor));
    if (i == n) return;
    uint8_t rest[VEC_N] = {0};
    memcpy(rest, codes + i, (size_t)(n - i));
    vec_store_n(out + i, vec_mul(vec_load_e4m3(rest), factor), n - i);
}

INLINE void store_half(enum dtype type, void *out, vec v) {
    if (type == DTYPE_BF16)
        vec_store_bf16(out, v);
    else
        vec_store_f16(out, v);
}

static void narrow(enum dtype type, const float *x, int64_t n, void *out) {
    if (type == DTYPE_F32) {
        memcpy(out, x, (size_t)n * sizeof(float));
        return;
    }
    uint16_t *halves = out;
    int64_t i = 0;
    for (; i + VEC_N <= n; i += VEC_N) store_half(type, halves + i, vec_load(x + i));
    if (i == n) return;
    uint16_t rest[VEC_N];
    store_half(type, rest, vec_load_n(x + i, n - i));
    memcpy(halves + i, rest, (size_t)(n - i) * sizeof *rest);
}

// out[i] = f(a[i], b[i])
INLINE void map(vec (*f)(vec, vec), const float *a, const float *b, int64_t n, float *out) {
    int64_t i = 0;
    for (; i + VEC_N <= n; i += VEC_N) vec_store(out + i, f(vec_load(a + i), vec_load(b + i)));
    if (i < n) vec_store_n(out + i, f(vec_load_n(a + i, n - i), vec_load_n(b + i, n - i)), n - i);
}

INLINE vec times_silu(vec x, vec gate) { return vec_mul(x, vec_silu(gate)); }
INLINE vec times_sigmoid(vec x, vec gate) { return vec_mul(x, vec_sigmoid(gate)); }

static void swiglu(const float *gate, const float *up, int64_t n, float *out) { map(times_silu, up, gate, n, out); }
static void mul_silu(const float *x, const float *gate, int64_t n, float *out) { map(times_silu, x, gate, n, out); }
static void mul_sigmoid(const float *x, const float *gate, int64_t n, float *out) {
    map(times_sigmoid, x, gate, n, out);
}

static float sum_of_squares(const float *x, int64_t n) {
    vec sum[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
    int64_t i = 0;
    for (; i + 4 * VEC_N <= n; i += 4 * VEC_N) {
        for (int j = 0; j < 4; j++) {
            vec v = vec_load(x + i + j * VEC_N);
            sum[j] = vec_fma(v, v, sum[j]);
        }
    }
    for (; i < n; i += VEC_N) {
        vec v = vec_load_n(x + i, n - i < VEC_N ? n - i : VEC_N);
        sum[0] = vec_fma(v, v, sum[0]);
    }
    return vec_sum(vec_add(vec_add(sum[0], sum[1]), vec_add(sum[2], sum[3])));
}

static void norm(const float *x, const float *weight, float eps, int64_t n, float *out) {
    vec inverse = vec_set(1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps));
    int64_t i = 0;
    for (; i + VEC_N <= n; i += VEC_N)
        vec_store(out + i, vec_mul(vec_mul(vec_load(x + i), inverse), vec_load(weight + i)));
    if (i < n) {
        vec v = vec_mul(vec_load_n(x + i, n - i), inverse);
        vec_store_n(out + i, vec_mul(v, vec_load_n(weight + i, n - i)), n - i);
    }
}

static void unit(const float *x, float eps, float factor, int64_t n, float *out) {
    vec scale = vec_set(1.0f / sqrtf(sum_of_squares(x, n) + eps) * factor);
    int64_t i = 0;
    for (; i + VEC_N <= n; i += VEC_N) vec_store(out + i, vec_mul(vec_load(x + i), scale));
    if (i < n) vec_store_n(out + i, vec_mul(vec_load_n(x + i, n - i), scale), n - i);
}

static int64_t select_from(const float *x, int64_t n, float bound, int64_t capacity, int32_t *ids, float *values) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i += VEC_N) {
        int64_t left = n - i < VEC_N ? n - i : VEC_N;
        unsigned hits = vec_not_less(vec_load_n(x + i, left), vec_set(bound)) & ((1u << left) - 1);
        for (; hits != 0; hits &= hits - 1, found++) {
            if (found >= capacity) continue;
            int64_t at = i + __builtin_ctz(hits);
            ids[found] = (int32_t)at;
            values[found] = x[at];
        }
    }
    return found;
}

static float maximum(const float *x, int64_t n) {
    vec largest = vec_set(-INFINITY);
    int64_t i = 0;
    for (; i + VEC_N <= n; i += VEC_N) largest = vec_max(vec_load(x + i), largest); // NaN leaves it as it is
    if (i < n) largest = vec_max(vec_blend_n(vec_load_n(x + i, n - i), largest, n - i), largest);
    return vec_largest(largest);
}

static void fill_rows(struct cpu_kernels *k) {
    k->widen = widen;
    k->widen_e4m3 = widen_e4m3;
    k->narrow = narrow;
    k->norm = norm;
    k->swiglu = swiglu;
    k->mul_silu = mul_silu;
    k->mul_sigmoid = mul_sigmoid;
    k->unit = unit;
    k->select = select_from;
    k->maximum = maximum;
}

#endif
