// Owns the two forms of linear.
#ifndef TF_CUDA_LINEAR_CUH
#define TF_CUDA_LINEAR_CUH

#include "cuda/common.cuh"

void linear_rows(struct cuda_device *d, const struct linear_args *a);
void linear_prompt(struct cuda_device *d, const struct linear_args *a);

#endif
