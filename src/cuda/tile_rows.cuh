// Owns one tile of a product in FORM_ROWS (product_rows.cuh): the pipeline of a warp, and adding up the warps.
#ifndef TF_CUDA_TILE_ROWS_CUH
#define TF_CUDA_TILE_ROWS_CUH

#include "cuda/product_rows.cuh"

#define ROWS_MAX_WARPS 8

// Starts this warp's first units: weights are never written, so that this may come before wait_for_earlier.
template <int BITS>
__device__ __forceinline__ void fetch_first_units(const struct weight_view &w, int64_t o0, char *stages, int warp,
                                                  int n_warp) {
    int n_unit = (int)((w.n_in + UNIT_INPUTS - 1) / UNIT_INPUTS);
    for (int s = 0; s < unit_stages<BITS>() - 1; s++) {
        if (warp + s * n_warp < n_unit) fetch_unit<BITS>(stages + s * unit_bytes<BITS>(), w, o0, warp + s * n_warp);
        copies_commit();
    }
}

// This warp's part of the sum for outputs [o0, o0 + 16), after fetch_first_units. `stages` is the warp's own shared
// memory.
template <int BITS, int SG, int NT, bool ONES>
__device__ __forceinline__ void sum_units(const struct weight_view &w, int64_t o0, const struct rows_source<NT> &x,
                                          char *stages, int warp, int n_warp, float y[NT][4]) {
    constexpr int STAGES = unit_stages<BITS>();
    int n_unit = (int)((w.n_in + UNIT_INPUTS - 1) / UNIT_INPUTS);
    for (int j = 0; j < NT; j++)
        for (int i = 0; i < 4; i++) y[j][i] = 0;
    int next = warp + (STAGES - 1) * n_warp; // the unit to fetch
    int stage = 0;
    for (int u = warp; u < n_unit; u += n_warp, next += n_warp) {
        copies_wait<STAGES - 2>();
        __syncwarp();
        int ahead = stage == 0 ? STAGES - 1 : stage - 1;
        if (next < n_unit) fetch_unit<BITS>(stages + ahead * unit_bytes<BITS>(), w, o0, next);
        copies_commit();
        multiply_unit<BITS, SG, NT, ONES>(stages + stage * unit_bytes<BITS>(), w, u, x, y);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        __syncwarp();
    }
    copies_wait<0>();
}

// Adds the warps' parts in order; shared has [n_warp][16][8 NT]. Afterwards out(m, n, y) is called once an element, by
// neighbouring threads for neighbouring outputs m.
template <int NT, typename OUT>
__device__ __forceinline__ void add_parts(float *shared, int warp, int n_warp, const float y[NT][4], OUT out) {
    constexpr int N = 8 * NT;
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    __syncthreads(); // the stages are read no more
    float *part = shared + warp * 16 * N;
    for (int j = 0; j < NT; j++)
        for (int i = 0; i < 4; i++) part[(g + i / 2 * 8) * N + 8 * j + 2 * c + i % 2] = y[j][i];
    __syncthreads();
    for (int e = threadIdx.x; e < 16 * N; e += blockDim.x) {
        int m = e % 16, n = e / 16;
        float sum = 0;
        for (int k = 0; k < n_warp; k++) sum += shared[k * 16 * N + m * N + n];
        out(m, n, sum);
    }
}

// Units of fp32 are so large that eight warps' would not fit into the shared memory of every GPU.
static inline int rows_warps(int64_t n_in, int weight_class) {
    int64_t n_unit = ceil_div(n_in, UNIT_INPUTS),
            most = weight_class == CLASS_F32 ? ROWS_MAX_WARPS / 2 : ROWS_MAX_WARPS;
    return (int)(n_unit < most ? n_unit : most);
}

template <int BITS, int NT> static inline size_t rows_shared_bytes(int n_warp) {
    size_t stages = (size_t)unit_stages<BITS>() * unit_bytes<BITS>(), parts = (size_t)(16 * 8 * NT) * sizeof(float);
    return (size_t)n_warp * (stages > parts ? stages : parts);
}

#endif
