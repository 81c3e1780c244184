// Counts and reports what passed and what failed.
#include "check/check.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// From the gates of the model's specification, section 9: one operation in fp32 against a reference, and one with bf16
// inputs and outputs against fp64 on the same inputs. Scales are relative to the root mean square of what is wanted. A
// sum of products whose factors were both rounded to bf16 is off by some 2.3e-3 of that; of 10^5 sums the worst is off
// by five times as much, and the bound is at 6.5 times. Products that keep 16 bits of fp32 activations (ops/device.h)
// are off by 2e-5 of it. Factors rounded to fp16 have three bits more than those of bf16, and the bounds are an eighth.
const struct tolerance element_f32 = {"element-f32", 1e-5, 1e-5, 1e-6};
const struct tolerance sum_f32 = {"sum-f32", 1e-5, 1e-5, 1e-6};
const struct tolerance element_bf16 = {"element-bf16", 1e-3, 8e-3, 8e-3};
const struct tolerance sum_16_bits = {"sum-16-bits", 2e-4, 2e-4, 5e-5};
const struct tolerance sum_fp16 = {"sum-fp16", 1.9e-3, 2e-3, 1e-3};
const struct tolerance sum_bf16 = {"sum-bf16", 1.5e-2, 1.6e-2, 8e-3};

const struct tolerance *tolerance_element(const struct run *r) {
    return r->subject->device->activation == DTYPE_F32 ? &element_f32 : &element_bf16;
}

const struct tolerance *tolerance_sum(const struct run *r) {
    const struct device *d = r->subject->device;
    if (r->subject->matrix_units) return &sum_bf16;
    return d->compute == COMPUTE_F32 ? &sum_f32 : d->activation == DTYPE_F32 ? &sum_16_bits : &sum_bf16;
}

const struct tolerance *tolerance_product(const struct run *r, enum form form, const struct weight_spec *spec) {
    bool in_bf16 = spec->kind == WEIGHT_PLAIN && spec->dtype != DTYPE_BF16; // is how rounds on matrix units take it
    if (!r->subject->matrix_units || (form == FORM_ROWS && in_bf16)) return tolerance_sum(r);
    return &sum_fp16;
}

void case_begin(struct run *r, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->case_name, sizeof r->case_name, format, arguments);
    va_end(arguments);
    arena_reset(r->arena);
}

bool case_done(const struct run *r) { return r->hunting && r->caught; }

bool case_is_mine(struct run *r) { return r->hunting || r->n_step++ % r->n_part == r->part; }

void expect(struct run *r, bool ok, const char *format, ...) {
    if (ok) {
        r->passed++;
        return;
    }
    r->failed++;
    r->caught = true;
    if (r->hunting) return;
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("FAIL %s %s, %s: %s\n", r->op, r->case_name, r->subject->name, text);
}

void expect_close(struct run *r, const char *what, const float *got, const double *want, size_t n,
                  const struct tolerance *t) {
    double squares = 0, error_squares = 0, worst = 0;
    size_t worst_at = 0;
    for (size_t i = 0; i < n; i++) squares += want[i] * want[i];
    double scale = n > 0 ? sqrt(squares / (double)n) : 0;
    for (size_t i = 0; i < n; i++) {
        double error = fabs((double)got[i] - want[i]);
        error_squares += error * error;
        double excess = error / (t->atol * scale + t->rtol * fabs(want[i]) + 1e-300);
        // Written so that a NaN is the worst error of all.
        if (!(excess <= worst)) {
            worst = excess;
            worst_at = i;
            if (isnan(excess)) break;
        }
    }
    double rel_l2 = squares > 0 ? sqrt(error_squares / squares) : sqrt(error_squares);
    bool ok = worst <= 1 && rel_l2 <= t->rel_l2;
    expect(r, ok, "%s outside %s: [%zu] is %.9g, not %.9g (%.2f x the bound), rel-L2 %.3g (bound %.3g)", what, t->name,
           worst_at, n > 0 ? (double)got[worst_at] : 0, n > 0 ? want[worst_at] : 0, worst, rel_l2, t->rel_l2);
}

void expect_same_bits(struct run *r, const char *what, const float *got, const float *want, size_t n) {
    size_t i = 0;
    while (i < n && memcmp(&got[i], &want[i], sizeof *got) == 0) i++;
    expect(r, i == n, "%s differs in bits: [%zu] is %.9g, not %.9g", what, i, i < n ? (double)got[i] : 0,
           i < n ? (double)want[i] : 0);
}
