// Owns the two forms of linear.
#ifndef TF_CUDA_LINEAR_CUH
#define TF_CUDA_LINEAR_CUH

#include "cuda/common.cuh"

void linear_rows(struct cuda_device *d, const struct linear_args *a);
void linear_prompt(struct cuda_device *d, const struct linear_args *a);

// Large matrices of FORM_PROMPT: linear_expanded.cu.
#define EXPANDED_MOST ((size_t)192 << 20) // bytes of one matrix as bf16

static inline size_t expanded_bytes(int64_t n_out, int64_t n_in) {
    return (size_t)(n_out * n_in) * sizeof(__nv_bfloat16);
}
bool linear_expanded_fits(struct cuda_device *d, const struct weight *w, const struct tensor &out,
                          const struct tensor &residual);
void linear_expanded(struct cuda_device *d, const struct weight *w, const __nv_bfloat16 *x, int64_t x_stride,
                     const struct tensor &out, const struct tensor &residual, void *room);

#endif
