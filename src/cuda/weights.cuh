// Owns how kernels see a weight matrix, where its bytes are, and reading one element of it.
#ifndef TF_CUDA_WEIGHTS_CUH
#define TF_CUDA_WEIGHTS_CUH

#include "cuda/arranged.cuh"
#include "cuda/device.cuh"

// Kinds of weights that kernels are compiled for: bits of the codes, or 16, 17, 32 for plain bf16, f16, f32.
enum weight_class {
    CLASS_Q2 = 2,
    CLASS_Q3,
    CLASS_Q4,
    CLASS_Q5,
    CLASS_Q6,
    CLASS_Q8 = 8,
    CLASS_BF16 = 16,
    CLASS_F16,
    CLASS_F32 = 32
};

struct weight_view {
    const char *data, *scales, *biases;
    int64_t n_out, n_in, row_bytes;
    int n_group, group, weight_class;
    enum dtype dtype; // of plain values, or of scales and biases
    bool arranged;    // arranged.cuh
};

static inline struct weight_view weight_view_of(const struct weight *w) {
    struct weight_view v = {(const char *)w->data,
                            (const char *)w->scales,
                            (const char *)w->biases,
                            w->n_out,
                            w->n_in,
                            (int64_t)weight_row_bytes(w),
                            1,
                            1,
                            0,
                            w->dtype,
                            w->arranged};
    if (w->kind == WEIGHT_AFFINE) {
        v.group = w->group;
        v.n_group = (int)(w->n_in / w->group);
        v.weight_class = w->bits;
    } else {
        v.weight_class = w->dtype == DTYPE_F32 ? CLASS_F32 : w->dtype == DTYPE_BF16 ? CLASS_BF16 : CLASS_F16;
    }
    return v;
}

// For operations that may be given none that is arranged.
static inline struct weight_view rows_view_of(const struct weight *w) {
    must(!w->arranged);
    return weight_view_of(w);
}

// A code may straddle bytes; all of them lie in its row.
__device__ __forceinline__ uint32_t weight_code(const char *row, int bits, int64_t i) {
    int64_t bit = i * bits;
    const uint8_t *bytes = (const uint8_t *)row + bit / 8;
    int shift = (int)(bit % 8);
    uint32_t pair = bytes[0];
    if (shift + bits > 8) pair |= (uint32_t)bytes[1] << 8;
    return pair >> shift & ((1u << bits) - 1);
}

// Not of a matrix that is arranged.
__device__ __forceinline__ float weight_element(const struct weight_view &w, int64_t row, int64_t i) {
    const char *data = w.data + row * w.row_bytes;
    if (w.weight_class >= CLASS_BF16) return load_float(data, w.dtype, i);
    int64_t g = row * w.n_group + i / w.group;
    return (float)weight_code(data, w.weight_class, i) * load_float(w.scales, w.dtype, g) +
           load_float(w.biases, w.dtype, g);
}

// Where the byte of an arranged row is, and those behind it up to the next multiple of 64.
__device__ __forceinline__ const char *arranged_byte(const struct weight_view &w, int64_t row, int64_t byte) {
    return w.data + arranged_codes(row, (int)(byte / 64), w.row_bytes) + byte % 64;
}

// Scale and bias of an arranged row's group.
__device__ __forceinline__ float2 arranged_group(const struct weight_view &w, int64_t row, int group) {
    const char *scales = (group / 2 % 2 == 0 ? w.scales : w.biases) + arranged_scales(row, group / 2, w.n_group * 2);
    return make_float2(load_float(scales, DTYPE_BF16, group % 2), load_float(scales + 4, DTYPE_BF16, group % 2));
}

#endif
