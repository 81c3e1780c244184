// Inputs of the cases: pure functions of a seed, so that a failure can be repeated.
#include "check/check.h"
#include "base/numeric.h"
#include "base/random.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

void values_round(float *x, size_t n, enum dtype t) {
    for (size_t i = 0; i < n && t != DTYPE_F32; i++)
        x[i] = t == DTYPE_BF16 ? round_bf16(x[i]) : f16_to_float(float_to_f16(x[i]));
}

// A good mixing of a counter (the finaliser of SplitMix64): the product's own generator is too slow for whole caches.
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// The sum of four uniform numbers is close enough to a normal one.
static double bell(uint64_t seed, uint64_t i) {
    uint64_t bits = mix(seed * 0x9e3779b97f4a7c15u + mix(i + 1));
    double sum = 0;
    for (int k = 0; k < 4; k++) sum += (double)(bits >> (16 * k) & 0xffff) + 0.5;
    return (sum / 65536 - 2) * sqrt(3.0);
}

float *values_normal(struct run *r, uint64_t seed, size_t n, double scale, enum dtype rounded_to) {
    float *x = arena_alloc(r->arena, n * sizeof(float) + 1);
    must(x != NULL);
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * bell(seed, i));
    values_round(x, n, rounded_to);
    return x;
}

double *values_double(struct run *r, const float *x, size_t n) {
    double *d = arena_alloc(r->arena, n * sizeof(double) + 1);
    must(d != NULL);
    for (size_t i = 0; i < n; i++) d[i] = (double)x[i];
    return d;
}

static void store(enum dtype t, void *data, size_t i, float x) {
    if (t == DTYPE_F32)
        ((float *)data)[i] = x;
    else
        ((uint16_t *)data)[i] = t == DTYPE_BF16 ? float_to_bf16(x) : float_to_f16(x);
}

// Sets element i of a row's bit stream; the row starts as zeros.
static void put_code(unsigned char *row, int64_t i, int bits, unsigned code) {
    for (int b = 0; b < bits; b++)
        if (code >> b & 1) row[(i * bits + b) / 8] |= (unsigned char)(1u << ((i * bits + b) % 8));
}

static void fill_affine(uint64_t seed, struct weight *w, double *values) {
    int64_t n_group = w->n_in / w->group;
    unsigned n_code = 1u << w->bits;
    // Uniform codes have a standard deviation of n_code / sqrt(12); sums over n_in then come out near 1.
    double unit = sqrt(12.0 / (double)w->n_in) / n_code;
    for (int64_t o = 0; o < w->n_out; o++) {
        unsigned char *row = (unsigned char *)w->data + (size_t)o * weight_row_bytes(w);
        for (int64_t g = 0; g < n_group; g++) {
            uint64_t bits = random_bits(seed, 1, (uint64_t)(o * n_group + g));
            float scale = (float)(unit * (0.5 + random_unit(bits)) * (bits & 1 ? 1 : -1));
            values_round(&scale, 1, w->dtype);
            float bias = -scale * (float)(n_code - 1) * (float)(0.4 + 0.2 * random_unit(bits << 20));
            values_round(&bias, 1, w->dtype);
            store(w->dtype, (void *)w->scales, (size_t)(o * n_group + g), scale);
            store(w->dtype, (void *)w->biases, (size_t)(o * n_group + g), bias);
            for (int64_t i = g * w->group; i < (g + 1) * w->group; i++) {
                unsigned code = (unsigned)(random_bits(seed, 2, (uint64_t)(o * w->n_in + i)) >> 40) % n_code;
                put_code(row, i, w->bits, code);
                values[o * w->n_in + i] = (double)code * (double)scale + (double)bias;
            }
        }
    }
}

struct weight values_weight(struct run *r, uint64_t seed, const struct weight_spec *spec, double **values) {
    struct weight w = {.kind = spec->kind,
                       .dtype = spec->dtype,
                       .bits = spec->bits,
                       .group = spec->group,
                       .n_out = spec->n_out,
                       .n_in = spec->n_in};
    size_t n = (size_t)(w.n_out * w.n_in);
    double *exact = arena_alloc(r->arena, n * sizeof(double));
    w.data = arena_alloc_zero(r->arena, (size_t)w.n_out, weight_row_bytes(&w));
    must(exact != NULL && w.data != NULL);
    if (w.kind == WEIGHT_AFFINE) {
        w.scales = arena_alloc(r->arena, n / (size_t)w.group * dtype_bytes(w.dtype));
        w.biases = arena_alloc(r->arena, n / (size_t)w.group * dtype_bytes(w.dtype));
        must(w.scales != NULL && w.biases != NULL);
        fill_affine(seed, &w, exact);
    } else {
        float *x = values_normal(r, seed, n, 1 / sqrt((double)w.n_in), w.dtype);
        for (size_t i = 0; i < n; i++) {
            store(w.dtype, (void *)w.data, i, x[i]);
            exact[i] = (double)x[i];
        }
    }
    *values = exact;
    return w;
}

const char *weight_name(const struct weight_spec *spec) {
    static char name[32];
    static const char *const types[] = {"f32", "bf16", "f16"};
    if (spec->kind == WEIGHT_AFFINE)
        snprintf(name, sizeof name, "q%d/%d/%s", spec->bits, spec->group, types[spec->dtype]);
    else
        snprintf(name, sizeof name, "%s", types[spec->dtype]);
    return name;
}
