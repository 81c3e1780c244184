// Owns the words for data that operations read and write: element types, 2-D views, and weight matrices.
// Views never own memory. Pointers are device pointers of the backend in use (host memory on the CPU).
#ifndef TF_OPS_TENSOR_H
#define TF_OPS_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_I32, DTYPE_E4M3 };

static inline size_t dtype_bytes(enum dtype t) {
    return t == DTYPE_F32 || t == DTYPE_I32 ? 4 : t == DTYPE_E4M3 ? 1 : 2;
}

// Row i starts at data + i * stride elements; n_col <= stride. Heads are folded into columns, head-major.
struct tensor {
    void *data;
    enum dtype dtype;
    int64_t n_row, n_col, stride;
};

static inline struct tensor tensor_rows(struct tensor t, int64_t first, int64_t n) {
    t.data = (char *)t.data + (size_t)(first * t.stride) * dtype_bytes(t.dtype);
    t.n_row = n;
    return t;
}

enum weight_kind {
    WEIGHT_NONE,   // absent
    WEIGHT_PLAIN,  // values of `dtype` (f32, bf16 or f16), row-major
    WEIGHT_AFFINE, // MLX affine: w[o][i] = q[o][i] * scale[o][i / group] + bias[o][i / group]
};

// A matrix [n_out, n_in] that computes y = x W^T, or a table of n_out rows. Read only.
// AFFINE: element i of a row occupies bits [i * bits, (i + 1) * bits) of the row's little-endian byte stream of
// n_in * bits / 8 bytes; scales and biases are [n_out, n_in / group] of `dtype`.
//
// arranged: the same bytes in an order of the device's own (device.arrange), in which only it finds its way.
struct weight {
    enum weight_kind kind;
    enum dtype dtype;
    int bits, group; // AFFINE: bits in 2 3 4 5 6 8, group in 32 64 128; n_in is a multiple of group
    int64_t n_out, n_in;
    const void *data; // at least 4-byte (codes) or element aligned; rows are contiguous
    const void *scales, *biases;
    bool arranged;
};

static inline size_t weight_row_bytes(const struct weight *w) {
    return w->kind == WEIGHT_AFFINE ? (size_t)w->n_in * (size_t)w->bits / 8 : (size_t)w->n_in * dtype_bytes(w->dtype);
}

#endif
