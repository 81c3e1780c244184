// Owns what attention in FORM_PROMPT does on compute capability 9.0 for heads of 256, keys and values of bf16 and
// pages that hold whole tiles: one head and 128 rows a block. Two warpgroups of 64 rows each multiply, by matrix
// instructions that take keys and values from shared memory; another one brings these, two tiles ahead. A row's chain
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

struct wide_shared {
    char q[WIDE_ROWS * WIDE_DIM * 2];
    char tiles[WIDE_BUFFERS][WIDE_TILE]; // keys in 0 and 2, values in 1 and 3
    uint64_t full[WIDE_BUFFERS], empty[WIDE_BUFFERS];
};

// Piece `piece` of a row of n: in slices of 64 elements, as describe_rows wants them.
__device__ __forceinline__ char *wide_piece(char *tile, int n, int row, int piece) {
    return tile + piece / 8 * SLICE_BYTES(n) + row * 128 + (piece % 8 ^ (row & 7)) * 16;
}

// Starts the copies of one tile, of which n_key keys exist. A warp has every fourth key; addresses are held in
// registers, which the compiler would rather work out anew for each copy.
static __device__ __forceinline__ void fetch_tile_wide(char *tile, const char *from, int n_key, const void *any) {
    int thread = threadIdx.x - WIDE_MULTIPLY, key = thread / 32;
    char *even = wide_piece(tile, CUDA_TILE_KEYS, key, thread % 32);
    uint32_t to[2] = {shared_address(even),
                      shared_address(wide_piece(tile, CUDA_TILE_KEYS, key + 4, thread % 32)) - 512};
    from += thread * 16;
    asm volatile("" : "+l"(from), "+r"(to[0]), "+r"(to[1]));
    if (n_key == CUDA_TILE_KEYS) {
#pragma unroll
        for (int i = 0; i < WIDE_TILE / 16 / WIDE_FETCH; i++) copy16_to(to[i % 2] + i * 512, from + i * 2048);
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDE_TILE / 16 / WIDE_FETCH; i++) {
        bool is = key + 4 * i < n_key;
        copy16_to(to[i % 2] + i * 512, is ? from + i * 2048 : (const char *)any, is ? 16 : 0);
    }
}

// Brings keys and values: fetch number g, from 0, is the keys (even) or values (odd) of tile g / 2, into buffer g % 4.
static __device__ __forceinline__ void fetch_tiles(const struct attention_job &job, struct wide_shared *s,
                                                   const int32_t *pages, int kv_head, int end) {
    int n_fetch = 2 * ((end + CUDA_TILE_KEYS - 1) / CUDA_TILE_KEYS);
    int64_t v_offset = value_offset(job, WIDE_DIM);
    int page = tile_page<true>(job, pages, 0, end);
    for (int g = 0; g < n_fetch; g++) {
        int key0 = g / 2 * CUDA_TILE_KEYS, n_key = min(CUDA_TILE_KEYS, end - key0), buffer = g % WIDE_BUFFERS;
        const char *from = tile_start<WIDE_DIM, true>(job, page, kv_head, key0) + (g % 2 == 1 ? v_offset : 0);
        if (g % 2 == 1) page = tile_page<true>(job, pages, key0 + CUDA_TILE_KEYS, end);
        if (g >= WIDE_BUFFERS) barrier_wait(&s->empty[buffer], (g / WIDE_BUFFERS - 1) & 1);
        fetch_tile_wide(s->tiles[buffer], from, n_key, job.kv.pages);
        barrier_arrive_copies(&s->full[buffer]);
    }
    copies_wait_all();
}

// Starts the scores of a tile.
static __device__ __forceinline__ void start_scores(struct wide_shared *s, int tile, float (&c)[32]) {
    int buffer = tile % 2 * 2;
    barrier_wait(&s->full[buffer], tile / 2 & 1);
    publish_shared();
    uint64_t q = describe_rows(s->q + threadIdx.x / 128 * SLICE_BYTES(64)), keys = describe_rows(s->tiles[buffer]);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < WIDE_DIM / 16; k++)
        wgmma_bf16(c, q + (k / 4 * SLICE_BYTES(WIDE_ROWS) + k % 4 * 32) / 16,
                   keys + (k / 4 * SLICE_BYTES(CUDA_TILE_KEYS) + k % 4 * 32) / 16, k > 0);
    wgmma_commit();
}

static __device__ __forceinline__ void release(struct wide_shared *s, int buffer) {
    if (threadIdx.x % 32 == 0) barrier_arrive(&s->empty[buffer]);
}

// Starts adding the values of a tile, by the weights `a` of its keys.
static __device__ __forceinline__ void start_values(struct wide_shared *s, int tile, const uint32_t (&a)[4][4],
                                                    float (&acc)[WIDE_DIM / 2]) {
    int buffer = tile % 2 * 2 + 1;
    barrier_wait(&s->full[buffer], tile / 2 & 1);
    publish_shared();
    uint64_t values = describe_columns(s->tiles[buffer], SLICE_BYTES(CUDA_TILE_KEYS));
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) wgmma_bf16(acc, a[k], values + k * 2048 / 16);
    wgmma_commit();
}

// Scores of a tile become weights.
static __device__ __forceinline__ void weigh_scores(const struct attention_job &job, int my_position, int tile,
                                                    float (&c)[32], struct chain_state *st, float fade[2]) {
    int visible[2];
    for (int i = 0; i < 2; i++)
        visible[i] = max(0, min(CUDA_TILE_KEYS, my_position + 8 * i + 1 - tile * CUDA_TILE_KEYS));
    weigh_tile(job, NULL, visible, (float(*)[4])c, st, fade);
}

static __device__ __forceinline__ void pack_weights_of_tile(const float (&c)[32], uint32_t (&a)[4][4]) {
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) a[k][i] = pack_bf16(c[8 * k + 2 * i], c[8 * k + 2 * i + 1]);
}

// The chain of a warpgroup's rows. While the values of a tile are multiplied the next one's scores become weights.
static __device__ __forceinline__ void multiply_tiles(const struct attention_job &job, struct wide_shared *s,
                                                      int my_position, int end, struct chain_state *st,
                                                      float (&acc)[WIDE_DIM / 2]) {
    float c[32], fade[2];
    uint32_t a[4][4];
    int last = (end + CUDA_TILE_KEYS - 1) / CUDA_TILE_KEYS - 1;
    start_scores(s, 0, c);
    wgmma_wait<0>(c);
    release(s, 0);
    weigh_scores(job, my_position, 0, c, st, fade);
    pack_weights_of_tile(c, a);
#pragma unroll 1
    for (int tile = 0; tile < last; tile++) {
        start_scores(s, tile + 1, c);
        start_values(s, tile, a, acc);
        wgmma_wait<1>(c);
        release(s, (tile + 1) % 2 * 2);
        weigh_scores(job, my_position, tile + 1, c, st, fade);
        wgmma_wait<0>(acc);
        release(s, tile % 2 * 2 + 1);
#pragma unroll
        for (int i = 0; i < WIDE_DIM / 2; i++) acc[i] *= fade[i / 2 % 2];
        pack_weights_of_tile(c, a);
    }
    start_values(s, last, a, acc);
    wgmma_wait<0>(acc);
}

#endif
