// Owns how rows are grouped by expert on the device, and how kernels find an expert's weights.
#ifndef TF_CUDA_EXPERTS_CUH
#define TF_CUDA_EXPERTS_CUH

#include "cuda/rows.cuh"
#include "cuda/weights.cuh"

// A pair is a row with one of its experts: pair t * n_used + s. Pairs are listed by expert, and cut into tiles of one
// expert each.
struct pair_tile {
    int32_t expert, first, n; // of the list
};

struct pair_groups {
    int32_t *list;          // [T * n_used]
    struct pair_tile *tile; // [most_tiles]
    int32_t *n_tile;
};

// The experts' matrices of one kind: alike in everything but their place. They lie at equal distances, or else a table
// has their addresses.
struct expert_weights {
    struct weight_view first;
    int64_t data_step, scales_step, biases_step;
    const char *const *table; // [n_expert][3] on the device, or NULL
    bool usual;               // all of them are of the usual kind (units_q4.cuh)
};

__device__ __forceinline__ struct weight_view weight_of_expert(const struct expert_weights &w, int e) {
    struct weight_view v = w.first;
    v.data += e * w.data_step;
    v.scales += e * w.scales_step;
    v.biases += e * w.biases_step;
    if (w.table == NULL) return v;
    v.data = w.table[3 * e];
    v.scales = w.table[3 * e + 1];
    v.biases = w.table[3 * e + 2];
    return v;
}

// y[pair] = W_e x, for all pairs; row of x: pair / x_divisor. Two matrices of one class may share a launch.
struct expert_product {
    struct expert_weights w[2];
    int n_matrix, x_divisor;
    const __nv_bfloat16 *x;
    int64_t x_stride;
    float *y[2]; // [pair][n_out]
    struct pair_groups groups;
    int n_warp;
    bool usual; // all matrices are of the usual kind (units_q4.cuh)
};

void experts_product_rows(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles);
void experts_product_prompt(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles);

#define EXPERT_TILE_ROWS   8  // pairs of a tile in FORM_ROWS
#define EXPERT_TILE_PROMPT 64 // and in FORM_PROMPT

#endif
