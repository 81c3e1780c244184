// Owns the inner loop of products in FORM_PROMPT: BM rows times 128 outputs of a weight matrix, by 256 threads.
//
// Inputs are worked off 64 at a time, in rising order, in one chain of fp32 sums an element: no split, so that a row
// has the same bits whatever tile it lies in. Rows come into shared memory by asynchronous copies two steps ahead;
// weights are loaded raw one step ahead, turned into fp16 in registers and stored beside them.
//
// A row of two terms takes two rows of a tile, eight apart: the two sums are then in the hands of one thread, which
// adds them up.
#ifndef TF_CUDA_PRODUCT_PROMPT_CUH
#define TF_CUDA_PRODUCT_PROMPT_CUH

#include "cuda/expand.cuh"
#include "cuda/rows.cuh"

#define PROMPT_THREADS 256
#define PROMPT_OUTPUTS 128 // of a tile
#define PROMPT_INPUTS  64  // of a step
#define PROMPT_STAGES  3   // of rows
#define STEP_BYTES     (PROMPT_INPUTS * 2)

template <int BM> static inline size_t prompt_shared_bytes(void) {
    return (size_t)(PROMPT_STAGES * BM + 2 * PROMPT_OUTPUTS) * STEP_BYTES;
}

// A row of 64 fp16 is eight pieces of 16 bytes; their order differs from row to row so that ldmatrix meets no bank
// twice.
__device__ __forceinline__ char *piece_at(char *tile, int row, int piece) {
    return tile + row * STEP_BYTES + ((piece ^ (row & 7)) * 16);
}

// Which row a tile's row i is of, and which of its terms.
template <int TERMS> __device__ __forceinline__ int row_of_tile(int i) { return TERMS == 1 ? i : i / 16 * 8 + i % 8; }
template <int TERMS> __device__ __forceinline__ int term_of_tile(int i) { return TERMS == 1 ? 0 : i / 8 % 2; }

// This thread's weights of one step: output tid / 2 of the tile, 32 inputs.
template <int BITS, bool ARRANGED> struct step_weights {
    uint32_t raw[raw_words<BITS>()];
    float scale, bias;

    __device__ __forceinline__ void load(const struct weight_view &w, int64_t o0, int step) {
        int64_t o = o0 + threadIdx.x / 2, k = (int64_t)step * PROMPT_INPUTS + threadIdx.x % 2 * 32;
        if constexpr (ARRANGED) {
            load_arranged(w, min(o, w.n_out - 1), min(k, w.n_in - 32)); // what is outside is not used
            return;
        }
        load_raw<BITS>(w, o, k, raw);
        scale = bias = 0;
        if (BITS >= CLASS_BF16 || o >= w.n_out || k >= w.n_in) return;
        int64_t g = o * w.n_group + k / w.group;
        scale = load_float(w.scales, w.dtype, g);
        bias = load_float(w.biases, w.dtype, g);
    }
    __device__ __forceinline__ void load_arranged(const struct weight_view &w, int64_t o, int64_t k) {
        float2 by = arranged_group(w, o, (int)(k / 64));
        *(uint4 *)raw = __ldg((const uint4 *)arranged_byte(w, o, k / 2));
        scale = by.x;
        bias = by.y;
    }
    __device__ __forceinline__ void store(const struct weight_view &w, char *tile) const {
        uint32_t v[16];
        expand_raw<BITS>(raw, w.dtype, scale, bias, v);
        int row = threadIdx.x / 2, first = threadIdx.x % 2 * 4;
#pragma unroll
        for (int i = 0; i < 4; i++) *(uint4 *)piece_at(tile, row, first + i) = *(uint4 *)(v + 4 * i);
    }
};

#endif
