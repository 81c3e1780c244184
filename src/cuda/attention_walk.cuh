// Owns how warps that fetch codes go from tile to tile of a prompt's lane, whose pages hold whole tiles.
#ifndef TF_CUDA_ATTENTION_WALK_CUH
#define TF_CUDA_ATTENTION_WALK_CUH

#include "cuda/attention_wide.cuh"

// A thread's place in a lane's tiles of keys, one tile after another. Within a page the next tile lies behind the last
// one. The numbers of 32 pages, from a multiple of 32 on, are held by the lanes of a warp; those of the next 32 are
// asked for when the last of them is entered, so that they have a page's time to come.
struct tile_walk {
    const char *keys;        // this thread's first piece of the tile's keys
    const float *scale;      // what this thread brings of the tile's scales
    int64_t piece, of_scale; // where both lie in a page whose first tile it is
    int tile, held;
};

// Of 32 pages from number `first` on, that of this lane of a warp.
static __device__ __forceinline__ int hold_pages(const struct attention_job &job, const int32_t *pages, int first,
                                                 int end) {
    return tile_page<true>(job, pages, (first + (int)threadIdx.x % 32) << job.page_shift, end);
}

// Goes to the first tile of page `number` of the lane.
static __device__ __forceinline__ void enter_page(const struct attention_job &job, const int32_t *pages, int number,
                                                  int end, struct tile_walk *w) {
#ifdef TF_ATTENTION_FLAT
    int page = tile_page<true>(job, pages, number, end);
#else
    int page = __shfl_sync(0xffffffffu, w->held, number % 32);
    if (number % 32 == 31) w->held = hold_pages(job, pages, number + 1, end);
#endif
    const char *start = (const char *)job.kv.pages + page * job.kv.page_bytes;
    w->keys = start + w->piece;
    w->scale = (const float *)(start + w->of_scale);
}

// `piece`: bytes behind a tile's first key; `scale`: scales behind that of the first key of a page, all heads'.
static __device__ __forceinline__ void begin_walk(const struct attention_job &job, const int32_t *pages, int kv_head,
                                                  int end, int piece, int64_t scale, struct tile_walk *w) {
    int64_t key_bytes = WIDE_DIM * (job.kv.dtype == DTYPE_E4M3 ? 1 : 2);
    w->piece = job.kv.layer_offset + (int64_t)kv_head * job.kv.page_rows * key_bytes + piece;
    w->of_scale = job.kv.scale_offset + scale * (int64_t)sizeof(float);
    w->tile = 0;
    w->held = hold_pages(job, pages, 0, end);
    enter_page(job, pages, 0, end, w);
}

static __device__ __forceinline__ void walk_on(const struct attention_job &job, const int32_t *pages, int end,
                                               struct tile_walk *w) {
    w->tile++;
    w->keys += WIDE_TILE / 2;
    w->scale += CUDA_TILE_KEYS;
#ifndef TF_ATTENTION_FLAT
    int key0 = w->tile * CUDA_TILE_KEYS;
    if (tile_slot(job, key0) == 0) enter_page(job, pages, key0 >> job.page_shift, end, w);
#endif
}

#endif
