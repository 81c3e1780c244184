// Owns what attention in FORM_PROMPT does on compute capability 9.0 for heads of 256 and pages that hold whole tiles:
// one head and 128 rows a block. Two warpgroups of 64 rows each multiply, by matrix instructions that take keys and
// values from shared memory; another one, of bf16 a warp of it, brings these (attention_wide_fetch.cuh). A row's chain
// is that of attention_prompt.cu: tiles of 64 keys from position 0 on.
#ifndef TF_CUDA_ATTENTION_WIDE_CUH
#define TF_CUDA_ATTENTION_WIDE_CUH

#include "cuda/attention_chain.cuh"
#include "cuda/wgmma.cuh"

#define WIDE_DIM       256
#define WIDE_ROWS      128
#define WIDE_MULTIPLY  256 // threads
#define WIDE_FETCH     128
#define WIDE_THREADS   (WIDE_MULTIPLY + WIDE_FETCH)
#define WIDE_TILE      (CUDA_TILE_KEYS * WIDE_DIM * 2) // bytes
#define WIDE_BUFFERS   4                               // keys and values of two tiles, in turn
#define SLICE_BYTES(n) ((n)*128)                       // 64 elements of each of n rows

// Of e4m3: codes as they come, and scales of the keys and values of tile t in place t % 3, since a tile's scales are
// needed after its keys have made room for others.
template <bool E4M3> struct wide_codes {};
template <> struct wide_codes<true> {
    char fetched[2][WIDE_TILE / 2];
    float k_scale[3][CUDA_TILE_KEYS], v_scale[3][CUDA_TILE_KEYS];
};

template <bool E4M3> struct wide_shared {
    char q[WIDE_ROWS * WIDE_DIM * 2];
    char tiles[WIDE_BUFFERS][WIDE_TILE]; // keys in 0 and 2, values in 1 and 3
    struct wide_codes<E4M3> codes;
    uint64_t full[WIDE_BUFFERS], empty[WIDE_BUFFERS];
};

// Piece `piece` of a row of n: in slices of 64 elements, as describe_rows wants them.
__device__ __forceinline__ char *wide_piece(char *tile, int n, int row, int piece) {
    return tile + piece / 8 * SLICE_BYTES(n) + row * 128 + (piece % 8 ^ (row & 7)) * 16;
}

// Starts the scores of a tile.
template <bool E4M3>
__device__ __forceinline__ void start_scores(struct wide_shared<E4M3> *s, int tile, float (&c)[32]) {
    int buffer = tile % 2 * 2;
    barrier_wait(&s->full[buffer], tile / 2 & 1);
    if (E4M3) publish_shared(); // boxes are seen as they are
    uint64_t q = describe_rows(s->q + threadIdx.x / 128 * SLICE_BYTES(64)), keys = describe_rows(s->tiles[buffer]);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < WIDE_DIM / 16; k++)
        wgmma_bf16(c, q + (k / 4 * SLICE_BYTES(WIDE_ROWS) + k % 4 * 32) / 16,
                   keys + (k / 4 * SLICE_BYTES(CUDA_TILE_KEYS) + k % 4 * 32) / 16, k > 0);
    wgmma_commit();
}

// Each thread for itself: what it has read (of e4m3 scales, too) is written anew behind the barrier, and one thread for
// its warp, behind a branch, would be later.
template <bool E4M3> __device__ __forceinline__ void release(struct wide_shared<E4M3> *s, int buffer) {
    barrier_arrive(&s->empty[buffer]);
}

// Starts adding the values of a tile, by the weights `a` of its keys.
template <bool E4M3>
__device__ __forceinline__ void start_values(struct wide_shared<E4M3> *s, int tile, const uint32_t (&a)[4][4],
                                             float (&acc)[WIDE_DIM / 2]) {
    int buffer = tile % 2 * 2 + 1;
    barrier_wait(&s->full[buffer], tile / 2 & 1);
    if (E4M3) publish_shared();
    uint64_t values = describe_columns(s->tiles[buffer], SLICE_BYTES(CUDA_TILE_KEYS));
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) wgmma_bf16(acc, a[k], values + k * 2048 / 16);
    wgmma_commit();
}

static __device__ __forceinline__ struct tile_scales scales_of_tile(const struct wide_codes<false> &, int) {
    return {NULL, NULL};
}
static __device__ __forceinline__ struct tile_scales scales_of_tile(const struct wide_codes<true> &codes, int tile) {
    return {codes.k_scale[tile % 3], codes.v_scale[tile % 3]};
}

static __device__ __forceinline__ void pack_weights_of_tile(const float (&c)[32], uint32_t (&a)[4][4]) {
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) a[k][i] = pack_bf16(c[8 * k + 2 * i], c[8 * k + 2 * i + 1]);
}

// Most tiles have no new maximum for any row of a warp, and what would be multiplied by 1 stays as it is.
static __device__ __forceinline__ void fade_results(const float fade[2], float (&acc)[WIDE_DIM / 2]) {
    if (!__any_sync(0xffffffffu, fade[0] != 1.0f || fade[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < WIDE_DIM / 2; i++) acc[i] *= fade[i / 2 % 2];
}

// The chain of a warpgroup's rows. While the values of a tile are multiplied the next one's scores become weights.
template <bool E4M3>
__device__ __forceinline__ void multiply_tiles(const struct attention_job &job, struct wide_shared<E4M3> *s,
                                               int warp_position, int end, struct chain_state *st,
                                               float (&acc)[WIDE_DIM / 2]) {
    float c[32], fade[2];
    uint32_t a[4][4];
    int last = (end + CUDA_TILE_KEYS - 1) / CUDA_TILE_KEYS - 1;
    start_scores(s, 0, c);
    wgmma_wait<0>(c);
    release(s, 0);
    weigh_tile(job, scales_of_tile(s->codes, 0), warp_position + 1, (float(*)[4])c, st, fade);
    pack_weights_of_tile(c, a);
#pragma unroll 1
    for (int tile = 0; tile < last; tile++) {
        start_scores(s, tile + 1, c);
        start_values(s, tile, a, acc);
        wgmma_wait<1>(c);
        release(s, (tile + 1) % 2 * 2);
        weigh_tile(job, scales_of_tile(s->codes, tile + 1), warp_position + 1 - (tile + 1) * CUDA_TILE_KEYS,
                   (float(*)[4])c, st, fade);
        wgmma_wait<0>(acc);
        release(s, tile % 2 * 2 + 1);
        fade_results(fade, acc);
        pack_weights_of_tile(c, a);
    }
    start_values(s, last, a, acc);
    wgmma_wait<0>(acc);
}

#endif
