// Owns linears in fp32: prepared rows and weights are widened to fp32, and each product is one chain of fused
// multiplications per lane, added up at the end. For the instruction set that the including file is compiled for.
#ifndef TF_CPU_X86_LINEAR_BODY_H
#define TF_CPU_X86_LINEAR_BODY_H

#include "cpu/weights.h"
#include "cpu/x86/vec_math.h"

#define FLOAT_OUT_BLOCK 64
#define FLOAT_ROW_BLOCK 64 // of 1024 inputs: a quarter of a megabyte, which stays in the second-level cache
#define DOT_OUTS        4
#define DOT_ROWS        (VEC_N == 16 ? 4 : 2) // sums of DOT_OUTS by DOT_ROWS and their operands fit the registers

// Rows and expanded weights are padded with zeros to whole vectors of the widest kind.
static int64_t float_padded(int64_t n_in) { return (n_in + 15) / 16 * 16; }

static size_t float_row_bytes(int64_t n_in, int group) {
    (void)group;
    return (size_t)float_padded(n_in) * sizeof(float);
}

static void prepare_f32(const float *x, int64_t n_in, int group, void *row) {
    (void)group;
    memcpy(row, x, (size_t)n_in * sizeof(float));
    memset((float *)row + n_in, 0, (size_t)(float_padded(n_in) - n_in) * sizeof(float));
}

static void expand_plain(const struct weight *w, int64_t o, float *out) {
    const char *row = (const char *)w->data + (size_t)o * weight_row_bytes(w);
    size_t size = dtype_bytes(w->dtype);
    for (int64_t i = 0; i < w->n_in; i += VEC_N) {
        const void *from = row + (size_t)i * size;
        uint32_t rest[VEC_N] = {0};
        if (w->n_in - i < VEC_N) from = memcpy(rest, from, (size_t)(w->n_in - i) * size);
        vec_store(out + i, w->dtype == DTYPE_F32    ? vec_load(from)
                           : w->dtype == DTYPE_BF16 ? vec_load_bf16(from)
                                                    : vec_load_f16(from));
    }
    for (int64_t i = (w->n_in + VEC_N - 1) / VEC_N * VEC_N; i < float_padded(w->n_in); i++) out[i] = 0;
}

// n_in is a multiple of a group, hence of 32.
static void expand_affine(const struct weight *w, int64_t o, float *out) {
    const uint8_t *row = (const uint8_t *)w->data + (size_t)o * weight_row_bytes(w);
    int64_t n_group = w->n_in / w->group;
    for (int64_t g = 0; g < n_group; g++) {
        vec scale = vec_set(cpu_load_float(w->dtype, w->scales, o * n_group + g));
        vec bias = vec_set(cpu_load_float(w->dtype, w->biases, o * n_group + g));
        const uint8_t *packed = row + g * w->group * w->bits / 8, *codes = packed;
        uint8_t unpacked[CPU_MAX_GROUP];
        if (w->bits != 4 && w->bits != 8) {
            cpu_unpack_codes(packed, w->bits, w->group, unpacked);
            codes = unpacked;
        }
        for (int i = 0; i < w->group; i += VEC_N) {
            vec q = w->bits == 4 ? vec_load_u4(packed + i / 2) : vec_load_u8(codes + i);
            vec_store(out + g * w->group + i, vec_fma(q, scale, bias));
        }
    }
}

// DOT_OUTS rows of w by n_row rows of x. The number of rows only decides how many sums run side by side.
INLINE void dot_block(const float *w, const float *x, int64_t padded, const int n_row, int64_t n_out, float *y,
                      int64_t y_stride) {
    vec sum[DOT_OUTS][4];
    for (int o = 0; o < DOT_OUTS; o++)
        for (int t = 0; t < n_row; t++) sum[o][t] = vec_set(0);
    for (int64_t i = 0; i < padded; i += VEC_N) {
        vec value[DOT_OUTS];
        for (int o = 0; o < DOT_OUTS; o++) value[o] = vec_load(w + o * padded + i);
        for (int t = 0; t < n_row; t++) {
            vec v = vec_load(x + t * padded + i);
            for (int o = 0; o < DOT_OUTS; o++) sum[o][t] = vec_fma(value[o], v, sum[o][t]);
        }
    }
    for (int t = 0; t < n_row; t++)
        for (int o = 0; o < DOT_OUTS && o < n_out; o++) y[t * y_stride + o] = vec_sum(sum[o][t]);
}

// All rows by DOT_OUTS expanded outputs, of which n_out exist.
static void dot_rows(const float *w, const float *x, int64_t padded, int64_t n_row, int64_t n_out, float *y,
                     int64_t y_stride) {
    int64_t t = 0;
    for (; t + DOT_ROWS <= n_row; t += DOT_ROWS)
        dot_block(w, x + t * padded, padded, DOT_ROWS, n_out, y + t * y_stride, y_stride);
    for (; t < n_row; t++) dot_block(w, x + t * padded, padded, 1, n_out, y + t * y_stride, y_stride);
}

static void multiply_float(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row,
                           float *y, int64_t y_stride, void *scratch) {
    float *values = scratch;
    int64_t padded = float_padded(w->n_in);
    for (int64_t o = first; o < last; o += DOT_OUTS) {
        int64_t n_out = last - o < DOT_OUTS ? last - o : DOT_OUTS;
        for (int64_t i = 0; i < DOT_OUTS; i++) {
            int64_t from = o + (i < n_out ? i : n_out - 1); // outputs that do not exist repeat the last one
            if (w->kind == WEIGHT_PLAIN)
                expand_plain(w, from, values + i * padded);
            else
                expand_affine(w, from, values + i * padded);
        }
        dot_rows(values, rows, padded, n_row, n_out, y + o - first, y_stride);
    }
}

static void fill_linear(struct cpu_kernels *k) {
    for (int c = 0; c < CPU_N_CLASS; c++) {
        k->exact[c] = (struct cpu_linear_method){
            .row_bytes = float_row_bytes,
            .prepare = prepare_f32,
            .multiply = multiply_float,
            .out_block = FLOAT_OUT_BLOCK,
            .row_block = FLOAT_ROW_BLOCK,
            .scratch_fixed = 16 * DOT_OUTS * sizeof(float),
            .scratch_per_in = DOT_OUTS * sizeof(float),
        };
        for (int f = 0; f < CPU_N_FORM; f++) k->linear[f][c] = k->exact[c];
    }
}

#endif
