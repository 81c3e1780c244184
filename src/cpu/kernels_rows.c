// Portable kernels over single rows.
#include "cpu/kernels.h"
#include "base/numeric.h"
#include "cpu/noise.h"
#include "cpu/weights.h"
#include <math.h>
#include <string.h>

#define N_CHAIN 16

float cpu_dot(const float *a, const float *b, int64_t n) {
    cpu_float4 chain[N_CHAIN / 4] = {{0}};
    int64_t i = 0;
    for (; i + N_CHAIN <= n; i += N_CHAIN)
        for (int c = 0; c < N_CHAIN / 4; c++) chain[c] += cpu_load4(a + i + 4 * c) * cpu_load4(b + i + 4 * c);
    cpu_float4 sum = (chain[0] + chain[2]) + (chain[1] + chain[3]);
    float rest = 0;
    for (; i < n; i++) rest += a[i] * b[i];
    return ((sum[0] + sum[2]) + (sum[1] + sum[3])) + rest;
}

void cpu_axpy(float s, const float *x, int64_t n, float *y) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) cpu_store4(y + i, cpu_load4(y + i) + s * cpu_load4(x + i));
    for (; i < n; i++) y[i] += s * x[i];
}

void cpu_scale(float s, int64_t n, float *y) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) cpu_store4(y + i, cpu_load4(y + i) * s);
    for (; i < n; i++) y[i] *= s;
}

static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

static float silu(float x) { return x / (1.0f + expf(-x)); }

static void widen(enum dtype type, const void *x, int64_t n, float *out) {
    if (type == DTYPE_F32) {
        memcpy(out, x, (size_t)n * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < n; i++) out[i] = cpu_load_float(type, x, i);
}

// Moved to their places in an fp32, a code's exponent and fraction are its value times 2^-120, also of subnormal codes.
static void widen_e4m3(const uint8_t *codes, float scale, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = codes[i] & 0x7fu, sign = (uint32_t)(codes[i] & 0x80u) << 24;
        float x = bits_to_float(sign | magnitude << 20) * 0x1p120f;
        out[i] = (magnitude == 0x7fu ? NAN : x) * scale;
    }
}

static void narrow(enum dtype type, const float *x, int64_t n, void *out) {
    if (type == DTYPE_F32) {
        memcpy(out, x, (size_t)n * sizeof(float));
        return;
    }
    uint16_t *halves = out;
    for (int64_t i = 0; i < n; i++) halves[i] = type == DTYPE_BF16 ? float_to_bf16(x[i]) : float_to_f16(x[i]);
}

static void norm(const float *x, const float *weight, float eps, int64_t n, float *out) {
    float inverse = 1.0f / sqrtf(cpu_dot(x, x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * inverse * weight[i];
}

static void swiglu(const float *gate, const float *up, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = silu(gate[i]) * up[i];
}

static void mul_silu(const float *x, const float *gate, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * silu(gate[i]);
}

static void mul_sigmoid(const float *x, const float *gate, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * sigmoid(gate[i]);
}

static void conv(const float *const *rows, const float *weight, int n_tap, int64_t n_row, int64_t n,
                 float *const *out) {
    for (int64_t i = 0; i < n_row; i++) {
        for (int64_t c = 0; c < n; c++) {
            float sum = 0;
            for (int j = 0; j < n_tap; j++) sum += weight[c * n_tap + j] * rows[i + j][c];
            out[i][c] = silu(sum);
        }
    }
}

static void unit(const float *x, float eps, float factor, int64_t n, float *out) {
    float inverse = 1.0f / sqrtf(cpu_dot(x, x, n) + eps) * factor;
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * inverse;
}

static int64_t select_from(const float *x, int64_t n, float bound, int64_t capacity, int32_t *ids, float *values) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(x[i] >= bound)) continue;
        if (found < capacity) {
            ids[found] = (int32_t)i;
            values[found] = x[i];
        }
        found++;
    }
    return found;
}

static float maximum(const float *x, int64_t n) {
    float largest = -INFINITY;
    for (int64_t i = 0; i < n; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

static double sum_exp(const float *x, int64_t n, float shift, double scale) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp(((double)x[i] - (double)shift) * scale);
    return sum;
}

static int64_t survivors(const float *x, int64_t n, const struct cpu_noise *noise, int32_t *index) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        double s = (double)x[i] / noise->temperature;
        if (s + CPU_NOISE_MAX < noise->bound) continue;
        uint64_t bits = random_bits(noise->seed, noise->position, (uint64_t)noise->first_id + (uint64_t)i);
        if (s + cpu_noise_limit(bits) >= noise->bound) index[found++] = (int32_t)i;
    }
    return found;
}

void cpu_kernels_fill_rows(struct cpu_kernels *k) {
    k->widen = widen;
    k->widen_e4m3 = widen_e4m3;
    k->narrow = narrow;
    k->norm = norm;
    k->swiglu = swiglu;
    k->mul_silu = mul_silu;
    k->mul_sigmoid = mul_sigmoid;
    k->conv = conv;
    k->unit = unit;
    k->select = select_from;
    k->maximum = maximum;
    k->sum_exp = sum_exp;
    k->survivors = survivors;
}

void cpu_kernels_fill(struct cpu_kernels *k, enum compute compute) {
    cpu_kernels_fill_linear(k, compute);
    cpu_kernels_fill_attend(k);
    cpu_kernels_fill_delta(k);
    cpu_kernels_fill_rows(k);
}
