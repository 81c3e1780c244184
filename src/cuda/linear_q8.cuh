// Owns how linear_rows.cu hands narrow parts with codes of 8 bits to linear_q8.cu.
#ifndef TF_CUDA_LINEAR_Q8_CUH
#define TF_CUDA_LINEAR_Q8_CUH

#include "cuda/linear_q4.cuh"

#define Q8_OUTPUTS_MOST 4096 // of a narrow matrix: few tiles, whose time is that until their first sums

// Groups of 64 with bf16 scales and biases, inputs in whole units, everything aligned. A matter of the matrix alone.
static inline bool is_narrow_q8(const struct weight_view &w) {
    bool aligned = (uintptr_t)w.data % 16 == 0 && (uintptr_t)w.scales % 4 == 0 && (uintptr_t)w.biases % 4 == 0;
    return w.weight_class == CLASS_Q8 && w.group == 64 && w.dtype == DTYPE_BF16 && w.n_in % UNIT_INPUTS == 0 &&
           w.n_out <= Q8_OUTPUTS_MOST && aligned;
}

// Whose rows are planes.
static inline bool has_plane_rows(const struct weight_view &w) { return is_usual_q4(w) || is_narrow_q8(w); }

void linear_q8(struct cuda_device *d, struct q4_job *job); // tiles have 16 outputs

#endif
