// Owns the form in which rows enter a product: normed, rounded to bf16, zeros up to a multiple of CUDA_ROW_PAD, with
// their sums over groups of 32 and 64 for the biases of quantised weights.
#ifndef TF_CUDA_ROWS_CUH
#define TF_CUDA_ROWS_CUH

#include "cuda/common.cuh"

struct prepared {
    __nv_bfloat16 *rows; // [n_row][stride]
    int64_t stride, n_col;
    float *sums32, *sums64; // [n_col / 32 or 64][n_row_padded], or NULL; padding rows are zeros
    int64_t n_row_padded;   // a multiple of 8
    bool split;             // each eight in the order 0 4 1 5 2 6 3 7: that of the pairs of a word of 4-bit codes
};

void carve_prepared(struct carver *c, int64_t n_row, int64_t n_in, bool with_sums, struct prepared *p);
void prepare_rows(struct cuda_device *d, struct tensor x, const float *norm_weight, float eps, struct prepared *p);

// bf16 whose rows all start at 16-byte boundaries.
static inline bool rows_are_wide(const struct tensor &t) {
    return t.dtype == DTYPE_BF16 && (uintptr_t)t.data % 16 == 0 && t.stride % 8 == 0;
}

#endif
