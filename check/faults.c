// Corruptions of results, through the device's copies.
#include "check/check.h"
#include "base/numeric.h"
#include <string.h>

static char *element(struct tensor t, int64_t row, int64_t col) {
    return (char *)t.data + (size_t)(row * t.stride + col) * dtype_bytes(t.dtype);
}

void corrupt_scale(struct device *d, struct tensor t, int64_t row, int64_t col, double factor) {
    float x = 0;
    uint16_t half = 0;
    char *at = element(t, row, col);
    if (t.dtype == DTYPE_F32) {
        d->copy_out(d, &x, at, sizeof x);
        x = (float)((double)x * factor);
        d->copy_in(d, at, &x, sizeof x);
        return;
    }
    d->copy_out(d, &half, at, sizeof half);
    half = float_to_bf16((float)((double)bf16_to_float(half) * factor));
    d->copy_in(d, at, &half, sizeof half);
}

void corrupt_past_end(struct device *d, struct tensor t) {
    const unsigned char zeros[4] = {0};
    d->copy_in(d, element(t, t.n_row - 1, t.n_col), zeros, dtype_bytes(t.dtype));
}

void corrupt_last_bit(struct device *d, struct tensor t, int64_t row, int64_t col) {
    unsigned char low;
    char *at = element(t, row, col);
    d->copy_out(d, &low, at, 1);
    low ^= 1;
    d->copy_in(d, at, &low, 1);
}

void corrupt_copy_row(struct device *d, struct tensor t, int64_t to, int64_t from) {
    unsigned char row[65536];
    size_t bytes = (size_t)t.n_col * dtype_bytes(t.dtype);
    must(bytes <= sizeof row);
    d->copy_out(d, row, element(t, from, 0), bytes);
    d->copy_in(d, element(t, to, 0), row, bytes);
}
