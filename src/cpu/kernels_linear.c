// Portable products of rows and matrices. A weight's row is expanded once and used for every row of x.
#include "cpu/kernels.h"
#include "base/numeric.h"
#include "cpu/weights.h"
#include <float.h>
#include <math.h>
#include <string.h>

#define OUT_BLOCK 16
#define ROW_BLOCK 4096

static size_t round_up(size_t bytes) { return (bytes + CPU_ROW_ALIGN - 1) / CPU_ROW_ALIGN * CPU_ROW_ALIGN; }

// ---- fp32 products: a prepared row is the row ----

static size_t float_row_bytes(int64_t n_in, int group) {
    (void)group;
    return round_up((size_t)n_in * sizeof(float));
}

static void prepare_f32(const float *x, int64_t n_in, int group, void *row) {
    (void)group;
    memcpy(row, x, (size_t)n_in * sizeof(float));
}

static void multiply_float(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row,
                           float *y, int64_t y_stride, void *scratch) {
    float *values = scratch;
    size_t row_bytes = float_row_bytes(w->n_in, 0);
    for (int64_t o = first; o < last; o++) {
        cpu_weight_row(w, o, values);
        for (int64_t t = 0; t < n_row; t++) {
            const float *x = (const float *)((const char *)rows + (size_t)t * row_bytes);
            y[t * y_stride + o - first] = cpu_dot(x, values, w->n_in);
        }
    }
}

// ---- int8 products: a prepared row is [codes n_in][scale per group][sum of codes per group] ----

static size_t codes_bytes(int64_t n_in) { return round_up((size_t)n_in); }

static size_t int8_row_bytes(int64_t n_in, int group) {
    return codes_bytes(n_in) + round_up((size_t)(n_in / group) * (sizeof(float) + sizeof(int32_t)));
}

// Symmetric, the largest magnitude of a group becomes 127; ties go to the even code.
static void prepare_int8(const float *x, int64_t n_in, int group, void *row) {
    int8_t *codes = row;
    float *scales = (float *)((char *)row + codes_bytes(n_in));
    int32_t *sums = (int32_t *)(scales + n_in / group);
    for (int64_t g = 0; g < n_in / group; g++) {
        const float *v = x + g * group;
        float largest = 0;
        for (int i = 0; i < group; i++) largest = fmaxf(largest, fabsf(v[i]));
        float scale = largest / 127.0f;
        float inverse = scale >= FLT_MIN ? 127.0f / largest : 0; // a group of zeros, or nearly
        int32_t sum = 0;
        for (int i = 0; i < group; i++) {
            int code = (int)rintf(v[i] * inverse);
            codes[g * group + i] = (int8_t)code;
            sum += code;
        }
        scales[g] = scale;
        sums[g] = sum;
    }
}

static int32_t dot_codes(const uint8_t *w, const int8_t *x, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) sum += (int32_t)w[i] * x[i];
    return sum;
}

static float dot_int8(const struct weight *w, int64_t o, const uint8_t *codes, const void *row) {
    const int8_t *x = row;
    int64_t n_group = w->n_in / w->group;
    const float *scales = (const float *)((const char *)row + codes_bytes(w->n_in));
    const int32_t *sums = (const int32_t *)(scales + n_group);
    float y = 0;
    for (int64_t g = 0; g < n_group; g++) {
        int32_t dot = dot_codes(codes + g * w->group, x + g * w->group, w->group);
        float scale = cpu_load_float(w->dtype, w->scales, o * n_group + g);
        float bias = cpu_load_float(w->dtype, w->biases, o * n_group + g);
        y += scales[g] * (scale * (float)dot + bias * (float)sums[g]);
    }
    return y;
}

static void multiply_int8(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row,
                          float *y, int64_t y_stride, void *scratch) {
    uint8_t *codes = scratch;
    size_t row_bytes = int8_row_bytes(w->n_in, w->group);
    for (int64_t o = first; o < last; o++) {
        cpu_unpack_codes((const uint8_t *)w->data + (size_t)o * weight_row_bytes(w), w->bits, w->n_in, codes);
        for (int64_t t = 0; t < n_row; t++)
            y[t * y_stride + o - first] = dot_int8(w, o, codes, (const char *)rows + (size_t)t * row_bytes);
    }
}

void cpu_kernels_fill_linear(struct cpu_kernels *k, enum compute compute) {
    struct cpu_linear_method exact = {
        .row_bytes = float_row_bytes,
        .prepare = prepare_f32,
        .multiply = multiply_float,
        .out_block = OUT_BLOCK,
        .row_block = ROW_BLOCK,
        .scratch_per_in = sizeof(float),
    };
    struct cpu_linear_method int8 = exact;
    int8.row_bytes = int8_row_bytes;
    int8.prepare = prepare_int8;
    int8.multiply = multiply_int8;
    int8.scratch_per_in = 1;
    for (int c = 0; c < CPU_N_CLASS; c++) {
        k->exact[c] = exact;
        for (int f = 0; f < CPU_N_FORM; f++) k->linear[f][c] = compute == COMPUTE_INT8 && c >= CPU_Q2 ? int8 : exact;
    }
}
