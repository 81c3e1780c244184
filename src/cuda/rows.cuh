// Owns the forms in which rows enter a product: normed where that is asked for, in terms of 16 bits, zeros up to a
// multiple of CUDA_ROW_PAD.
#ifndef TF_CUDA_ROWS_CUH
#define TF_CUDA_ROWS_CUH

#include "cuda/common.cuh"
#include <cuda_fp16.h>

// For FORM_ROWS: two terms of bf16, which hold 16 bits of an element whatever its size; with sums over groups of 32 and
// 64 for the biases of quantised weights.
struct prepared {
    __nv_bfloat16 *rows; // [n_row][stride]: the first terms
    int64_t stride, n_col;
    int64_t second;         // elements from a first term to its second; 0: there is only one
    float *sums32, *sums64; // [n_col / 32 or 64][n_row_padded], or NULL; padding rows are zeros
    int64_t n_row_padded;   // a multiple of 8
};

void carve_prepared(struct carver *c, int64_t n_row, int64_t n_in, bool with_sums, struct prepared *p);
void prepare_rows(struct cuda_device *d, struct tensor x, const float *norm_weight, float eps, struct prepared *p);

// For FORM_PROMPT: one or two terms of fp16, which has three bits more than bf16 but no such range. A row whose largest
// element would leave that range is scaled by a power of two, which products take back; the others' scale is 1.
struct prompt_rows {
    __half *rows; // [n_row][stride]: the first terms
    int64_t stride, n_col;
    int64_t second; // elements from a first term to its second; 0: there is only one
    float *scales;  // [n_row]: what a product with a row is to be multiplied by
};

// One term is off by an eighth of what bf16 is. Which experts a row goes to can hang on less than that, and a wrong one
// changes the row as a whole: models with experts get two.
static inline int prompt_terms(const struct device_limits *l) { return l->n_expert > 0 ? 2 : 1; }

void carve_prompt_rows(struct carver *c, int64_t n_row, int64_t n_in, int n_term, struct prompt_rows *p);
void prepare_prompt(struct cuda_device *d, struct tensor x, const float *norm_weight, float eps, struct prompt_rows *p);
// Rows of silu(gate) * up.
void prepare_activated(struct cuda_device *d, struct tensor gate, struct tensor up, struct prompt_rows *p);

#endif
