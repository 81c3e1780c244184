// Owns how keys and values come into the wide kernel's shared memory, by a warpgroup of its own: bf16 to where it is
// multiplied, two tiles ahead, asked for by one thread; codes beside it, a tile ahead, and widened by those that asked.
#ifndef TF_CUDA_ATTENTION_WIDE_FETCH_CUH
#define TF_CUDA_ATTENTION_WIDE_FETCH_CUH

#include "cuda/attention_boxes.cuh"
#include "cuda/attention_codes.cuh"
#include "cuda/attention_walk.cuh"

// ---- bf16 ----

// Asks for the keys (half 0) or values of a tile: all 64, or those that there are of the lane's last one.
static __device__ __forceinline__ void fetch_box(const struct attention_job &job, const struct wide_boxes<false> &boxes,
                                                 struct wide_shared<false> *s, const struct box_walk &w, int kv_head,
                                                 int tile, int half, bool whole) {
    int buffer = tile % 2 * 2 + half, head = kv_head + half * job.n_kv_head;
    if (tile >= 2) barrier_wait(&s->empty[buffer], (tile / 2 - 1) & 1);
    if (threadIdx.x % 32 == 0) {
        barrier_arrive_expecting(&s->full[buffer], WIDE_TILE);
        bring_box(s->tiles[buffer], whole ? &boxes.whole : &boxes.last, whole ? w.slot : 0, head, whole ? w.page : 0,
                  &s->full[buffer]);
    }
    __syncwarp();
}

// Brings keys and values: the keys of tile t into buffer 0 or 2, by turns, and its values into the buffer after that.
// The keys of a tile are worked off before the values of the one before, and make room first: who waited for these
// first would ask for keys too late, and what a new page costs would be waited for.
static __device__ __forceinline__ void fetch_tiles(const struct attention_job &job,
                                                   const struct wide_boxes<false> &boxes, struct wide_shared<false> *s,
                                                   int held, int kv_head, int end) {
    if (threadIdx.x >= WIDE_MULTIPLY + 32) return; // one warp is enough
    int n_whole = end / CUDA_TILE_KEYS, n_tile = (end + CUDA_TILE_KEYS - 1) / CUDA_TILE_KEYS;
    struct box_walk w = {0, 0, 0, held};
    enter_box_page(job, &w);
    struct box_walk before = w;
#pragma unroll 1
    for (int tile = 0; tile <= n_tile; tile++) {
        if (tile < n_tile) fetch_box(job, boxes, s, w, kv_head, tile, 0, tile < n_whole);
        if (tile > 0) fetch_box(job, boxes, s, before, kv_head, tile - 1, 1, tile - 1 < n_whole);
        before = w;
        walk_on(job, &w);
    }
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

// Starts the copies of a tile of codes from this thread's first piece on; n_key keys exist, and for others come zeros.
static __device__ __forceinline__ void fetch_codes(const struct code_place &at, int buffer, const char *from,
                                                   int n_key) {
    uint32_t to = at.fetched + buffer * (WIDE_TILE / 2);
    asm volatile("" : "+l"(from), "+r"(to));
    if (n_key >= CUDA_TILE_KEYS) {
#pragma unroll
        for (int i = 0; i < WIDE_PIECES; i++) copy16_to(to + i * WIDE_FETCH * 16, from + i * 8 * WIDE_DIM);
    } else {
#pragma unroll
        for (int i = 0; i < WIDE_PIECES; i++) {
            bool is = 8 * i < n_key - at.key;
            copy16_to(to + i * WIDE_FETCH * 16, is ? from + i * 8 * WIDE_DIM : (const char *)at.any, is ? 16 : 0);
        }
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

// As for bf16; codes of keys come into buffer 0, those of values into buffer 1. A thread also brings the scale of one
// key (threads below 64) or value of each tile, but none behind the end.
static __device__ __forceinline__ void fetch_tiles(const struct attention_job &job, struct wide_shared<true> *s,
                                                   const int32_t *pages, int kv_head, int end) {
    int n_tile = (end + CUDA_TILE_KEYS - 1) / CUDA_TILE_KEYS;
    int thread = threadIdx.x - WIDE_MULTIPLY, scaled = thread % CUDA_TILE_KEYS;
    int64_t v_offset = value_offset(job, WIDE_DIM), head = kv_head + (thread < CUDA_TILE_KEYS ? 0 : job.n_kv_head);
    float *scales = (thread < CUDA_TILE_KEYS ? s->codes.k_scale[0] : s->codes.v_scale[0]) + scaled;
    struct code_place at = place_codes(job, s);
    struct tile_walk w;
    begin_walk(job, pages, kv_head, end, at.key * WIDE_DIM + at.piece * 16, head * job.kv.page_rows + scaled, &w);
    float scale = scaled < end ? *w.scale : 0;
    fetch_codes(at, 0, w.keys, end);
    fetch_codes(at, 1, w.keys + v_offset, end);
    walk_on(job, pages, end, &w);
#pragma unroll 1
    for (int tile = 0; tile < n_tile; tile++) {
        int buffer = tile % 2 * 2, n_next = end - (tile + 1) * CUDA_TILE_KEYS;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            copies_wait<1>();
            if (tile >= 2) barrier_wait(&s->empty[buffer + half], (tile / 2 - 1) & 1);
            if (half == 0) scales[tile % 3 * CUDA_TILE_KEYS] = scale;
            widen_codes(at, half, buffer + half);
            publish_shared();
            barrier_arrive(&s->full[buffer + half]);
            if (half == 0) scale = scaled < n_next ? *w.scale : 0;
            fetch_codes(at, half, w.keys + half * v_offset, n_next);
        }
        walk_on(job, pages, end, &w);
    }
    copies_wait_all();
}

#endif
