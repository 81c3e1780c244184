// Owns how keys and values come into the wide kernel's shared memory, by a warpgroup of its own: bf16 is copied to
// where it is multiplied, two tiles ahead; codes are copied beside it, a tile ahead, and widened by who asked for them.
#ifndef TF_CUDA_ATTENTION_WIDE_FETCH_CUH
#define TF_CUDA_ATTENTION_WIDE_FETCH_CUH

#include "cuda/attention_codes.cuh"
#include "cuda/attention_wide.cuh"

// ---- bf16 ----

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
static __device__ __forceinline__ void fetch_tiles(const struct attention_job &job, struct wide_shared<false> *s,
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

// ---- e4m3 ----

#define WIDE_PIECES (WIDE_TILE / 2 / 16 / WIDE_FETCH) // of 16 codes, of a thread

// A thread's pieces of a tile are piece `piece` of every eighth key from `key` on. A warp has two whole keys at a time;
// of its quarters each has one slice (wide_piece) of both, so that what is stored together meets different banks.
struct code_place {
    int key, piece;
    const void *any;  // memory that may be read
    uint32_t fetched; // this thread's first piece of codes in buffer 0
    uint32_t wide;    // its first eight elements' place in tile 0; those of the other eight are 16 bytes beside it
};

static __device__ __forceinline__ struct code_place place_codes(const struct attention_job &job,
                                                                struct wide_shared<true> *s) {
    int thread = threadIdx.x - WIDE_MULTIPLY, l = thread % 32;
    int key = thread / 32 * 2 + l % 8 / 4, piece = l / 8 * 4 + l % 4;
    return {key, piece, job.kv.pages, shared_address(s->codes.fetched[0]) + thread * 16,
            shared_address(wide_piece(s->tiles[0], CUDA_TILE_KEYS, key, 2 * piece))};
}

// Starts the copies of a tile of codes, of which n_key keys exist, and zeros for the others.
static __device__ __forceinline__ void fetch_codes(const struct code_place &at, int buffer, const char *from,
                                                   int n_key) {
    uint32_t to = at.fetched + buffer * (WIDE_TILE / 2);
    from += at.key * WIDE_DIM + at.piece * 16;
#pragma unroll
    for (int i = 0; i < WIDE_PIECES; i++) {
        bool is = at.key + 8 * i < n_key;
        copy16_to(to + i * WIDE_FETCH * 16, is ? from + i * 8 * WIDE_DIM : (const char *)at.any, is ? 16 : 0);
    }
    copies_commit();
}

// This thread's codes that have arrived become bf16; some pieces are read together, since one thread has none beside
// it that would work while it waits.
static __device__ __forceinline__ void widen_codes(const struct code_place &at, int fetched, int buffer) {
    constexpr int TOGETHER = 4;
    uint32_t from = at.fetched + fetched * (WIDE_TILE / 2), to = at.wide + buffer * WIDE_TILE;
#pragma unroll
    for (int first = 0; first < WIDE_PIECES; first += TOGETHER) {
        uint4 c[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) c[i] = load_shared16(from + (first + i) * WIDE_FETCH * 16);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            uint4 low = widen_eight(c[i].x, c[i].y), high = widen_eight(c[i].z, c[i].w);
            store_shared16(to + (first + i) * 1024, low);
            store_shared16((to ^ 16) + (first + i) * 1024, high);
        }
    }
}

// The scale of one key (threads below 64) or value of a tile; of those behind the end it is not asked.
static __device__ __forceinline__ float fetch_scale(const struct attention_job &job, int page, int kv_head, int key0,
                                                    int end) {
    int thread = threadIdx.x - WIDE_MULTIPLY, i = thread % CUDA_TILE_KEYS;
    int64_t head = kv_head + (thread < CUDA_TILE_KEYS ? 0 : job.n_kv_head);
    if (key0 + i >= end) return 0;
    const char *at = (const char *)job.kv.pages + page * job.kv.page_bytes + job.kv.scale_offset;
    return ((const float *)at)[head * job.kv.page_rows + tile_slot(job, key0) + i];
}

// As for bf16; codes of fetch g come into buffer g % 2.
static __device__ __forceinline__ void fetch_tiles(const struct attention_job &job, struct wide_shared<true> *s,
                                                   const int32_t *pages, int kv_head, int end) {
    int n_tile = (end + CUDA_TILE_KEYS - 1) / CUDA_TILE_KEYS, thread = threadIdx.x - WIDE_MULTIPLY;
    int64_t v_offset = value_offset(job, WIDE_DIM);
    int page = tile_page<true>(job, pages, 0, end);
    const char *from = tile_start<WIDE_DIM, true>(job, page, kv_head, 0);
    float scale = fetch_scale(job, page, kv_head, 0, end);
    float *scales = (thread < CUDA_TILE_KEYS ? s->codes.k_scale[0] : s->codes.v_scale[0]) + thread % CUDA_TILE_KEYS;
    struct code_place at = place_codes(job, s);
    fetch_codes(at, 0, from, min(CUDA_TILE_KEYS, end));
    fetch_codes(at, 1, from + v_offset, min(CUDA_TILE_KEYS, end));
    page = tile_page<true>(job, pages, CUDA_TILE_KEYS, end);
#pragma unroll 1
    for (int tile = 0; tile < n_tile; tile++) {
        int buffer = tile % 2 * 2, next0 = (tile + 1) * CUDA_TILE_KEYS, n_next = min(CUDA_TILE_KEYS, end - next0);
        int page_after = tile_page<true>(job, pages, next0 + CUDA_TILE_KEYS, end);
        from = tile_start<WIDE_DIM, true>(job, page, kv_head, next0);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            copies_wait<1>();
            if (tile >= 2) barrier_wait(&s->empty[buffer + half], (tile / 2 - 1) & 1);
            if (half == 0) scales[tile % 3 * CUDA_TILE_KEYS] = scale;
            widen_codes(at, half, buffer + half);
            publish_shared();
            barrier_arrive(&s->full[buffer + half]);
            if (half == 0) scale = fetch_scale(job, page, kv_head, next0, end);
            fetch_codes(at, half, from + half * v_offset, n_next);
        }
        page = page_after;
    }
    copies_wait_all();
}

#endif
