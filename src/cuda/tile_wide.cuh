// Owns tiles of products in FORM_PROMPT with weights of the usual kind (units_q4.cuh) on compute capability 9.0: 256
// outputs, the M side of a warpgroup's matrix instruction, times 128 rows, or 64 rows of two terms.
//
// A warpgroup brings rows and codes into shared memory, a ring of stages of 64 inputs; four others, of 64 outputs
// each, turn codes into fp16 in registers, where the instruction takes them from (product_wide.cuh): those of half a
// step while the half before is multiplied. A block works off one tile after another, and fetching runs ahead into the
// next one.
//
// An element's sum is one chain over the inputs in rising order whatever tile it lies in.
#ifndef TF_CUDA_TILE_WIDE_CUH
#define TF_CUDA_TILE_WIDE_CUH

#include "cuda/barrier.cuh"
#include "cuda/product_prompt.cuh"

#define WIDE_OUTPUTS   256
#define WIDE_COLUMNS   128 // rows times terms
#define WIDE_STAGES    6
#define WIDE_MULTIPLY  512 // threads that multiply
#define WIDE_FETCH     128 // and those that fetch
#define WIDE_THREADS   (WIDE_MULTIPLY + WIDE_FETCH)
#define WIDE_ROW_BYTES (WIDE_COLUMNS * STEP_BYTES)
#define WIDE_CODES     (PROMPT_INPUTS / 2) // bytes of an output in a stage
#define WIDE_ROW_STEP  (WIDE_FETCH / 8)    // rows between those of a thread
#define STAGE_BYTES    (WIDE_ROW_BYTES + WIDE_OUTPUTS * WIDE_CODES)

// Five warpgroups have 96 each to begin with.
#define FETCH_REGISTERS    32
#define MULTIPLY_REGISTERS 112

struct wide_room {
    char *stages; // from a multiple of 1024 on
    uint64_t *full, *empty;
};

// One tile's share of a matrix; rows lie one after another.
struct wide_tile {
    const char *codes;
    const uint16_t *scales, *biases; // bf16
    int n_out, n_in, o0;             // outputs from o0 on
};

static inline size_t wide_shared_bytes(void) { return 1024 + WIDE_STAGES * (STAGE_BYTES + 2 * sizeof(uint64_t)); }

__device__ __forceinline__ struct wide_room open_room(char *memory) {
    struct wide_room r;
    r.stages = memory + (1024 - (shared_address(memory) & 1023)) % 1024;
    r.full = (uint64_t *)(r.stages + WIDE_STAGES * STAGE_BYTES);
    r.empty = r.full + WIDE_STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < WIDE_STAGES; i++) {
            barrier_open(&r.full[i], WIDE_FETCH);
            barrier_open(&r.empty[i], WIDE_MULTIPLY);
        }
        publish_shared();
    }
    __syncthreads();
    return r;
}

__device__ __forceinline__ struct wide_tile wide_tile_of(const struct weight_view &w, int o0) {
    return {w.data, (const uint16_t *)w.scales, (const uint16_t *)w.biases, (int)w.n_out, (int)w.n_in, o0};
}

// Halves of an output's codes change places from four outputs to four, so that loads meet no bank twice.
__device__ __forceinline__ char *codes_at(char *codes, int output, int half) {
    return codes + output * WIDE_CODES + (half ^ (output / 4 & 1)) * 16;
}

// The fetching side. `step` counts a block's stages, over all its tiles.
struct wide_fetch {
    uint32_t row[WIDE_COLUMNS / WIDE_ROW_STEP]; // in pieces of 16 bytes; ~0: there is none
    int step;

    // row_of(i): the place of the tile's column i.
    template <typename ROW>
    __device__ __forceinline__ void tile(const struct wide_room &r, const struct wide_tile &t, const void *rows,
                                         ROW row_of) {
        int thread = threadIdx.x - WIDE_MULTIPLY, piece = thread % 8, half = thread % 2;
        int64_t row_bytes = t.n_in / 2;
        for (int i = 0; i < WIDE_COLUMNS / WIDE_ROW_STEP; i++) row[i] = row_of(thread / 8 + WIDE_ROW_STEP * i);
        const char *from = (const char *)rows + piece * 16;
        const char *codes = t.codes + (t.o0 + thread / 2) * row_bytes + half * 16;
        for (int k = 0; k < t.n_in / PROMPT_INPUTS; k++, step++) {
            int stage = step % WIDE_STAGES;
            char *to = r.stages + stage * STAGE_BYTES;
            if (step >= WIDE_STAGES) barrier_wait(&r.empty[stage], (step / WIDE_STAGES - 1) & 1);
#pragma unroll
            for (int i = 0; i < WIDE_COLUMNS / WIDE_ROW_STEP; i++) {
                bool is = row[i] != ~0u;
                copy16(piece_at(to, thread / 8 + WIDE_ROW_STEP * i, piece), from + (is ? (uint64_t)row[i] * 16 : 0),
                       is ? 16 : 0);
            }
#pragma unroll
            for (int i = 0; i < WIDE_OUTPUTS / (WIDE_FETCH / 2); i++) {
                bool is = t.o0 + thread / 2 + WIDE_FETCH / 2 * i < t.n_out;
                copy16(codes_at(to + WIDE_ROW_BYTES, thread / 2 + WIDE_FETCH / 2 * i, half),
                       is ? codes + i * (WIDE_FETCH / 2) * row_bytes : t.codes, is ? 16 : 0);
            }
            barrier_arrive_copies(&r.full[stage]);
            from += STEP_BYTES;
            codes += WIDE_CODES;
        }
    }
};

#endif
