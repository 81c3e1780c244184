// The kernels for x86 instruction sets that work on single rows and matrices, one by one: against fp64, and each row
// alone against the same row among others.
#include "base/numeric.h"
#include "cpu/weights.h"
#include "tests/cpu/kernels.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- linears ----

struct matrix {
    struct weight w;
    float *values; // [n_out][n_in]
    void *data, *scales, *biases;
};

static void put_float(enum dtype type, void *p, size_t i, float value) {
    if (type == DTYPE_F32)
        ((float *)p)[i] = value;
    else
        ((uint16_t *)p)[i] = type == DTYPE_BF16 ? float_to_bf16(value) : float_to_f16(value);
}

static struct matrix make_matrix(struct weight w) {
    struct matrix m = {.w = w};
    size_t n = (size_t)(w.n_out * w.n_in), bytes = weight_row_bytes(&w) * (size_t)w.n_out;
    m.data = take(bytes);
    if (w.kind == WEIGHT_PLAIN)
        for (size_t i = 0; i < n; i++) put_float(w.dtype, m.data, i, number());
    else {
        for (size_t i = 0; i < bytes; i++) ((uint8_t *)m.data)[i] = (uint8_t)next_number();
        size_t n_group = n / (size_t)w.group;
        m.scales = take(n_group * dtype_bytes(w.dtype));
        m.biases = take(n_group * dtype_bytes(w.dtype));
        for (size_t i = 0; i < n_group; i++) {
            put_float(w.dtype, m.scales, i, 0.1f * number());
            put_float(w.dtype, m.biases, i, number());
        }
    }
    m.w.data = m.data;
    m.w.scales = m.scales;
    m.w.biases = m.biases;
    m.values = take(n * sizeof *m.values);
    for (int64_t o = 0; o < w.n_out; o++) cpu_weight_row(&m.w, o, m.values + o * w.n_in);
    return m;
}

static void free_matrix(struct matrix *m) {
    free(m->data);
    free(m->scales);
    free(m->biases);
    free(m->values);
}

#define GUARD 5

// All outputs of n_row prepared rows, block by block as the operation does; y is [n_row][n_out + GUARD].
static void multiply_all(const struct cpu_linear_method *method, const struct weight *w, const char *rows, int n_row,
                         float *y) {
    int64_t stride = w->n_out + GUARD;
    size_t row_bytes = method->row_bytes(w->n_in, w->kind == WEIGHT_AFFINE ? w->group : 0);
    void *scratch = take_aligned(method->scratch_fixed + method->scratch_per_in * (size_t)w->n_in);
    for (int64_t i = 0; i < n_row * stride; i++) y[i] = 12345.0f;
    for (int64_t row = 0; row < n_row; row += method->row_block) {
        int64_t n = n_row - row < method->row_block ? n_row - row : method->row_block;
        for (int64_t o = 0; o < w->n_out; o += method->out_block) {
            int64_t last = o + method->out_block < w->n_out ? o + method->out_block : w->n_out;
            method->multiply(w, o, last, rows + (size_t)row * row_bytes, n, y + row * stride + o, stride, scratch);
        }
    }
    for (int64_t t = 0; t < n_row; t++)
        for (int64_t i = w->n_out; i < stride; i++) assert_true(y[t * stride + i] == 12345.0f);
    free(scratch);
}

static void check_linear(const struct cpu_linear_method *method, const struct matrix *m, int n_row, double bound) {
    const struct weight *w = &m->w;
    int group = w->kind == WEIGHT_AFFINE ? w->group : 0;
    int64_t stride = w->n_out + GUARD;
    size_t row_bytes = method->row_bytes(w->n_in, group);
    assert_int_equal(row_bytes % CPU_ROW_ALIGN, 0);
    float *x = numbers((size_t)(n_row * w->n_in), 1), *y = take((size_t)(n_row * stride) * sizeof *y);
    float *alone = take((size_t)stride * sizeof *alone);
    char *rows = take_aligned(row_bytes * (size_t)n_row);
    for (int t = 0; t < n_row; t++) method->prepare(x + t * w->n_in, w->n_in, group, rows + (size_t)t * row_bytes);
    multiply_all(method, w, rows, n_row, y);
    double error = 0, total = 0;
    for (int t = 0; t < n_row; t++) {
        for (int64_t o = 0; o < w->n_out; o++) {
            double want = 0;
            for (int64_t i = 0; i < w->n_in; i++)
                want += (double)x[t * w->n_in + i] * (double)m->values[o * w->n_in + i];
            double off = (double)y[t * stride + o] - want;
            error += off * off;
            total += want * want;
        }
    }
    assert_true(sqrt(error / total) < bound);
    for (int t = 0; t<n_row; t += n_row> 6 ? 7 : 1) {
        multiply_all(method, w, rows + (size_t)t * row_bytes, 1, alone);
        assert_memory_equal(alone, y + t * stride, (size_t)w->n_out * sizeof *y);
    }
    free(x);
    free(y);
    free(alone);
    free(rows);
}

static void linears(const struct cpu_kernels *k, enum compute compute) {
    static const int bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128}, n_rows[] = {1, 3, 5, 21, 70};
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    for (int form = 0; form < CPU_N_FORM; form++) {
        // int8 activations are within half a step of 127, and those of 16 bits within half a step of 32639.
        double quantised = compute == COMPUTE_F32 ? 2e-6 : compute == COMPUTE_INT8 ? 1.2e-2 : 5e-5;
        for (int b = 0; b < 6; b++)
            for (int g = 0; g < 3; g++) {
                // Odd numbers of outputs and of groups, and more groups than are taken at a time.
                int64_t n_in = groups[g] * (g == 0 ? 19 : 5);
                struct matrix m = make_matrix((struct weight){.kind = WEIGHT_AFFINE,
                                                              .dtype = types[(b + g) % 3],
                                                              .bits = bits[b],
                                                              .group = groups[g],
                                                              .n_out = 37,
                                                              .n_in = n_in});
                check_linear(&k->linear[form][cpu_weight_class_of(&m.w)], &m, n_rows[(b + g) % 5], quantised);
                free_matrix(&m);
            }
        for (int t = 0; t < 3; t++) {
            struct matrix m = make_matrix(
                (struct weight){.kind = WEIGHT_PLAIN, .dtype = types[t], .n_out = 300, .n_in = 75 + 30 * t});
            check_linear(&k->linear[form][cpu_weight_class_of(&m.w)], &m, n_rows[t + 2],
                         compute == COMPUTE_F32 ? 2e-6 : 2e-5);
            if (form == 0) check_linear(&k->exact[cpu_weight_class_of(&m.w)], &m, 5, 2e-6);
            free_matrix(&m);
        }
    }
    // Deeper than a panel of the prompt's products, and more outputs than one.
    struct matrix m = make_matrix((struct weight){
        .kind = WEIGHT_AFFINE, .dtype = DTYPE_BF16, .bits = 4, .group = 64, .n_out = 272, .n_in = 2688});
    check_linear(&k->linear[FORM_PROMPT][CPU_Q4], &m, 50, compute == COMPUTE_INT8 ? 1.2e-2 : 5e-5);
    free_matrix(&m);
    m = make_matrix((struct weight){.kind = WEIGHT_PLAIN, .dtype = DTYPE_F32, .n_out = 272, .n_in = 2090});
    check_linear(&k->linear[FORM_PROMPT][CPU_F32], &m, 50, 2e-5);
    free_matrix(&m);
}

static void test_linears(void **state) {
    (void)state;
    for_each_isa(linears);
}

// ---- rows ----

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void rows(const struct cpu_kernels *k, enum compute compute) {
    (void)compute;
    for (int64_t n = 1; n < 50; n++) {
        float *x = numbers((size_t)n, 20), *g = numbers((size_t)n, 30), *out = take((size_t)n * sizeof *out);
        uint16_t *half = take((size_t)n * sizeof *half);
        k->mul_silu(x, g, n, out);
        for (int64_t i = 0; i < n; i++) assert_near(out[i], x[i] * (double)g[i] * sigmoid(g[i]), 1e-6, 1e-30);
        k->mul_sigmoid(x, g, n, out);
        for (int64_t i = 0; i < n; i++) assert_near(out[i], x[i] * sigmoid(g[i]), 1e-6, 1e-30);
        k->swiglu(g, x, n, out);
        for (int64_t i = 0; i < n; i++) assert_near(out[i], x[i] * (double)g[i] * sigmoid(g[i]), 1e-6, 1e-30);
        double squares = 0;
        for (int64_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
        k->norm(x, g, 1e-6f, n, out);
        for (int64_t i = 0; i < n; i++)
            assert_near(out[i], x[i] / sqrt(squares / (double)n + 1e-6) * (double)g[i], 1e-6, 0);
        k->unit(x, 1e-6f, 0.5f, n, out);
        for (int64_t i = 0; i < n; i++) assert_near(out[i], x[i] / sqrt(squares + 1e-6) * 0.5, 1e-6, 0);
        k->narrow(DTYPE_BF16, x, n, half);
        for (int64_t i = 0; i < n; i++) assert_int_equal(half[i], float_to_bf16(x[i]));
        k->widen(DTYPE_BF16, half, n, out);
        for (int64_t i = 0; i < n; i++) assert_true(out[i] == round_bf16(x[i]));
        k->narrow(DTYPE_F16, x, n, half);
        k->widen(DTYPE_F16, half, n, out);
        for (int64_t i = 0; i < n; i++) assert_true(out[i] == f16_to_float(float_to_f16(x[i])));
        float most = -INFINITY;
        for (int64_t i = 0; i < n; i++) most = fmaxf(most, x[i]);
        assert_true(k->maximum(x, n) == most);
        free(x);
        free(g);
        free(out);
        free(half);
    }
}

static void test_rows(void **state) {
    (void)state;
    for_each_isa(rows);
}

static void test_odd_values(void **state) {
    (void)state;
    if (cpu_isa_detect() == ISA_C) skip();
    for (int isa = ISA_AVX2; isa <= (int)cpu_isa_detect(); isa++) {
        struct cpu_kernels k = kernels_of((enum cpu_isa)isa, COMPUTE_F32);
        const float gate[] = {-1e30f, -200, -88, 0, 88, 200, 1e30f, NAN}, one[] = {1, 1, 1, 1, 1, 1, 1, 1};
        float out[8];
        uint16_t half[2];
        k.mul_sigmoid(one, gate, 8, out);
        for (int i = 0; i < 3; i++) assert_true(out[i] >= 0 && out[i] < 1e-30f);
        assert_near(out[3], 0.5, 1e-7, 0);
        for (int i = 4; i < 7; i++) assert_true(out[i] == 1);
        assert_true(isnan(out[7]));
        const float odd[] = {NAN, INFINITY};
        k.narrow(DTYPE_BF16, odd, 2, half);
        assert_true(isnan(bf16_to_float(half[0])) && isinf(bf16_to_float(half[1])));
        assert_true(k.maximum(gate, 8) == 1e30f);
    }
}

static void logits(const struct cpu_kernels *k, enum compute compute) {
    struct cpu_kernels portable;
    memset(&portable, 0, sizeof portable);
    cpu_kernels_fill(&portable, compute);
    for (int64_t n = 1; n < 700; n += 37) {
        float *x = numbers((size_t)n, 5), values[700], same[700];
        int32_t ids[700], same_ids[700];
        float most = portable.maximum(x, n);
        assert_near(k->sum_exp(x, n, most, 0.7), portable.sum_exp(x, n, most, 0.7), 1e-12, 0);
        int64_t found = k->select(x, n, 1.5f, 50, ids, values);
        assert_int_equal(found, portable.select(x, n, 1.5f, 50, same_ids, same));
        assert_memory_equal(ids, same_ids, (size_t)(found < 50 ? found : 50) * sizeof *ids);
        for (int b = -1; b < 20; b += 5) {
            struct cpu_noise noise = {123456789012345, (uint64_t)n, 1000, 0.8, b < 0 ? -INFINITY : b};
            int64_t n_left = k->survivors(x, n, &noise, ids);
            assert_int_equal(n_left, portable.survivors(x, n, &noise, same_ids));
            assert_memory_equal(ids, same_ids, (size_t)n_left * sizeof *ids);
        }
        free(x);
    }
    const float hidden[] = {1, -INFINITY, 2, -1e6f};
    assert_near(k->sum_exp(hidden, 4, 2, 1), 1 + exp(-1), 1e-12, 0);
}

static void test_logits(void **state) {
    (void)state;
    for_each_isa(logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linears),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_odd_values),
        cmocka_unit_test(test_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
