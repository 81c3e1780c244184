// Owns the two forms of linear.
#ifndef TF_CUDA_LINEAR_CUH
#define TF_CUDA_LINEAR_CUH

#include "cuda/rows.cuh"

void linear_rows(struct cuda_device *d, const struct linear_args *a);
void linear_prompt(struct cuda_device *d, const struct linear_args *a);

// Large matrices of FORM_PROMPT: linear_expanded.cu.
#define EXPANDED_MOST ((size_t)192 << 20) // bytes of one matrix as fp16

static inline size_t expanded_bytes(int64_t n_out, int64_t n_in) { return (size_t)(n_out * n_in) * sizeof(__half); }
bool linear_expanded_fits(struct cuda_device *d, const struct weight *w, const struct tensor &out,
                          const struct tensor &residual);

// The rows of a call, and those of its outputs that still lack their rows' scales.
struct expanded_sum {
    struct prompt_rows x;
    struct tensor outs[LINEAR_MAX_PARTS];
    int n_out;
};

// room: expanded_bytes of scratch. The result is complete after linear_expanded_finish.
void linear_expanded(struct cuda_device *d, const struct weight *w, const struct tensor &out,
                     const struct tensor &residual, void *room, struct expanded_sum *sum);
void linear_expanded_finish(struct cuda_device *d, const struct expanded_sum *sum);

#endif
