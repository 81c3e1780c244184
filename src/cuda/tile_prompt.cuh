// Owns one tile of a product in FORM_PROMPT (product_prompt.cuh): the pipeline, the sums, and who holds which.
#ifndef TF_CUDA_TILE_PROMPT_CUH
#define TF_CUDA_TILE_PROMPT_CUH

#include "cuda/product_prompt.cuh"

// Warps stand 2 by 4 over a tile: each has BM / 2 rows and 32 outputs.
template <int BM> struct prompt_sums { float c[BM / 32][4][4]; };

template <int BM> struct row_copies {
    static constexpr int N = BM * 8 / PROMPT_THREADS; // pieces of a thread
    const __half *row[N];                             // NULL: zeros

    template <typename ROW> __device__ __forceinline__ void open(ROW row_of) {
#pragma unroll
        for (int i = 0; i < N; i++) row[i] = row_of((int)(threadIdx.x + i * PROMPT_THREADS) / 8);
    }
    __device__ __forceinline__ void start(char *tile, int step, const void *any) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int e = threadIdx.x + i * PROMPT_THREADS, piece = e % 8;
            const void *from = row[i] != NULL ? (const void *)(row[i] + step * PROMPT_INPUTS + piece * 8) : any;
            copy16(piece_at(tile, e / 8, piece), from, row[i] != NULL ? 16 : 0);
        }
    }
};

template <int BM>
__device__ __forceinline__ void multiply_step(char *rows, char *weights, struct prompt_sums<BM> &sums) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m0 = warp / 4 * (BM / 2), n0 = warp % 4 * 32;
#pragma unroll
    for (int k = 0; k < PROMPT_INPUTS / 16; k++) {
        uint32_t b[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++)
            load_matrices(b[j], piece_at(weights, n0 + 16 * j + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < BM / 32; i++) {
            uint32_t a[4];
            load_matrices(a, piece_at(rows, m0 + 16 * i + lane % 16, 2 * k + lane / 16));
#pragma unroll
            for (int j = 0; j < 4; j++) mma_f16(sums.c[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
}

// Sums of BM rows of terms (row_of(i), or NULL) with outputs [o0, o0 + 128).
template <int BITS, int BM, bool ARRANGED, typename ROW>
__device__ __forceinline__ void multiply_tile(const struct weight_view &w, int64_t o0, ROW row_of, char *shared,
                                              struct prompt_sums<BM> &sums) {
    char *rows = shared, *weights = shared + PROMPT_STAGES * BM * STEP_BYTES;
    int n_step = (int)((w.n_in + PROMPT_INPUTS - 1) / PROMPT_INPUTS);
    struct row_copies<BM> copies;
    struct step_weights<BITS, ARRANGED> ahead;
    copies.open(row_of);
    ahead.load(w, o0, 0);
#pragma unroll
    for (int s = 0; s < PROMPT_STAGES - 1; s++) {
        if (s < n_step) copies.start(rows + s * BM * STEP_BYTES, s, w.data);
        copies_commit();
    }
    ahead.store(w, weights);
    ahead.load(w, o0, 1);
#pragma unroll
    for (int i = 0; i < BM / 32 * 16; i++) (&sums.c[0][0][0])[i] = 0;
    for (int s = 0; s < n_step; s++) {
        copies_wait<PROMPT_STAGES - 2>();
        __syncthreads(); // the step's rows and weights are there, and nobody reads those before it any more
        int next = s + PROMPT_STAGES - 1;
        if (next < n_step) copies.start(rows + next % PROMPT_STAGES * BM * STEP_BYTES, next, w.data);
        copies_commit();
        if (s + 1 < n_step) {
            ahead.store(w, weights + (s + 1) % 2 * PROMPT_OUTPUTS * STEP_BYTES);
            ahead.load(w, o0, s + 2);
        }
        multiply_step<BM>(rows + s % PROMPT_STAGES * BM * STEP_BYTES, weights + s % 2 * PROMPT_OUTPUTS * STEP_BYTES,
                          sums);
    }
    copies_wait<0>();
}

// Calls out(row, output of the tile, sum, sum of the next output) for each pair of outputs; sums are EXPANDED_SCALE
// times too large.
template <int BM, int TERMS, typename OUT>
__device__ __forceinline__ void each_pair(const struct prompt_sums<BM> &sums, OUT out) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m0 = warp / 4 * (BM / 2), n0 = warp % 4 * 32;
#pragma unroll
    for (int i = 0; i < BM / 32; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int m = m0 + 16 * i + lane / 4, n = n0 + 8 * j + 2 * (lane % 4);
            const float *c = sums.c[i][j];
            if (TERMS == 2) {
                out(row_of_tile<TERMS>(m), n, c[0] + c[2], c[1] + c[3]);
            } else {
                out(m, n, c[0], c[1]);
                out(m + 8, n, c[2], c[3]);
            }
        }
}

#endif
