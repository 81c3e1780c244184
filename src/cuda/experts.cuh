// Owns how rows are grouped by expert on the device, and how kernels find an expert's weights.
#ifndef TF_CUDA_EXPERTS_CUH
#define TF_CUDA_EXPERTS_CUH

#include "cuda/planes.cuh"
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

static inline size_t group_shared_bytes(int n_expert) { return (size_t)(2 * n_expert) * sizeof(int32_t); }

// Lists the pairs, by one block of whole warps; `shared` has group_shared_bytes(n_expert). Which pair of an expert
// comes first is left to chance.
__device__ __forceinline__ void group_pairs(const int32_t *ids, int n_pair, int n_expert, int tile_pairs,
                                            const struct pair_groups &groups, int32_t *shared) {
    __shared__ int2 totals[32]; // pairs and tiles of a warp's experts
    int32_t *count = shared, *first = shared + n_expert;
    int n_thread = (int)blockDim.x, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    for (int e = thread; e < n_expert; e += n_thread) count[e] = 0;
    __syncthreads();
    for (int i = thread; i < n_pair; i += n_thread) atomicAdd(&count[ids[i]], 1);
    __syncthreads();
    int2 before = make_int2(0, 0);
    for (int e0 = 0; e0 < n_expert; e0 += n_thread) {
        int e = e0 + thread, n = e < n_expert ? count[e] : 0, n_tile = (n + tile_pairs - 1) / tile_pairs;
        int2 sum = make_int2(n, n_tile);
        for (int step = 1; step < 32; step *= 2) {
            int pairs = __shfl_up_sync(0xffffffffu, sum.x, step), tiles = __shfl_up_sync(0xffffffffu, sum.y, step);
            if (lane >= step) sum = make_int2(sum.x + pairs, sum.y + tiles);
        }
        if (lane == 31) totals[warp] = sum;
        __syncthreads();
        int2 at = before;
        for (int w = 0; w < n_thread / 32; w++) {
            if (w < warp) at = make_int2(at.x + totals[w].x, at.y + totals[w].y);
            before = make_int2(before.x + totals[w].x, before.y + totals[w].y);
        }
        at = make_int2(at.x + sum.x - n, at.y + sum.y - n_tile);
        if (e < n_expert) first[e] = at.x;
        for (int k = 0; k < n_tile; k++)
            groups.tile[at.y + k] = (struct pair_tile){e, at.x + k * tile_pairs, min(tile_pairs, n - k * tile_pairs)};
        __syncthreads();
    }
    if (thread == 0) *groups.n_tile = before.y;
    for (int i = thread; i < n_pair; i += n_thread) groups.list[atomicAdd(&first[ids[i]], 1)] = i;
}

// The experts' matrices of one kind: alike in everything but their place. They lie at equal distances, or else a table
// has their addresses.
struct expert_weights {
    struct weight_view first;
    int64_t data_step, scales_step, biases_step;
    const char *const *table; // [n_expert][3] on the device, or NULL
    bool usual;               // all of them are of the usual kind (units_q4.cuh)
};

// `table` has room for 3 n addresses; even: known to lie at equal distances.
struct expert_weights find_expert_weights(struct cuda_device *d, const struct weight *w, int n, bool even,
                                          const char **table);

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
    const __nv_bfloat16 *x; // FORM_ROWS: as struct prepared
    int64_t x_stride, x_second;
    struct prompt_rows rows; // FORM_PROMPT
    float *y[2];             // [pair][n_out]
    struct pair_groups groups;
    int n_warp;
};

void experts_product_rows(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles);
void experts_product_prompt(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles);

// FORM_PROMPT on compute capability 9.0, weights of the usual kind: experts_wide.cu.
bool experts_wide_fit(const struct cuda_device *d, const struct expert_product *p);
void experts_product_wide(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles);

// FORM_ROWS where all weights are of the usual kind: experts_q4.cu.
struct expert_matrices {
    struct expert_weights gate, up, down;
};
struct expert_q4_room {
    struct plane_rows x;
    float *gate, *up, *y; // of pairs; they do not overlap
    struct pair_groups groups;
    int64_t most_tiles;
};

bool experts_q4_fit(const struct expert_matrices *w);
// y of all pairs.
void experts_q4_rows(struct cuda_device *d, const struct experts_args *a, const struct expert_matrices *w,
                     const struct expert_q4_room *room);

#define EXPERT_TILE_ROWS   8  // pairs of a tile in FORM_ROWS, but for the usual kind of weights: PLANES_TILE
#define EXPERT_TILE_PROMPT 64 // and in FORM_PROMPT

#endif
