// Owns copies of bf16 keys and values that take one instruction of one thread each, on compute capability 9.0: boxes of
// 64 of them out of a lane's pages, which come as matrix instructions want them, and whose bytes a barrier counts.
#ifndef TF_CUDA_ATTENTION_BOXES_CUH
#define TF_CUDA_ATTENTION_BOXES_CUH

#include "cuda/attention_wide.cuh"
#include <cudaTypedefs.h>

// ---- the device's side ----

// Starts a copy of the box whose first key is row `slot` of a head's in a page. Heads are counted keys first.
static __device__ __forceinline__ void bring_box(void *to, const CUtensorMap *map, int slot, int head, int page,
                                                 uint64_t *b) {
#if HAS_WGMMA
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %2, %4, %5}], [%6];" ::"r"(shared_address(to)),
                 "l"(map), "r"(0), "r"(slot), "r"(head), "r"(page), "r"(shared_address(b))
                 : "memory");
#endif
}

static __device__ __forceinline__ void prepare_boxes(const CUtensorMap *map) {
#if HAS_WGMMA
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

// A warp's place in the tiles of a prompt's lane, one after another: a tile's page, and which of the page's rows of a
// head is its first key. The numbers of 32 pages, from a multiple of 32 on, are held by the lanes of the warp; those of
// the next 32 are asked for when the last of them is entered, so that they have a page's time to come.
struct box_walk {
    int page, slot, nth, held;
};

// Of 32 pages of the prompt's only lane, from its page `first` on, that of this lane of a warp.
static __device__ __forceinline__ int hold_box_pages(const struct attention_job &job, int first) {
#ifdef TF_ATTENTION_FLAT
    return 0;
#else
    return job.pages[min(first + (int)threadIdx.x % 32, job.widest - 1)];
#endif
}

static __device__ __forceinline__ void enter_box_page(const struct attention_job &job, struct box_walk *w) {
#ifdef TF_ATTENTION_FLAT
    w->page = 0;
#else
    w->page = __shfl_sync(0xffffffffu, w->held, w->nth % 32);
    if (w->nth % 32 == 31) w->held = hold_box_pages(job, w->nth + 1);
#endif
}

static __device__ __forceinline__ void walk_on(const struct attention_job &job, struct box_walk *w) {
    w->slot += CUDA_TILE_KEYS;
#ifndef TF_ATTENTION_FLAT
    if (w->slot < job.kv.page_rows) return;
    w->slot = 0;
    w->nth++;
    enter_box_page(job, w);
#endif
}

// ---- the host's side ----

// What a prompt's boxes come from. Those of bf16 are described; the last keys of a lane, if they are less than 64, by
// themselves, so that nothing behind them is read: there come zeros.
template <bool E4M3> struct wide_boxes {};
template <> struct wide_boxes<false> { CUtensorMap whole, last; };

// The driver's function, asked for by name, so that no program must be linked to the driver. NULL: there is none.
static inline PFN_cuTensorMapEncodeTiled_v12000 find_box_encoder(void) {
    static void *found;
    void *encode = __atomic_load_n(&found, __ATOMIC_RELAXED);
    cudaDriverEntryPointQueryResult result;
    if (encode != NULL) return (PFN_cuTensorMapEncodeTiled_v12000)encode;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &result) !=
        cudaSuccess) {
        cudaGetLastError(); // it must not be taken for that of a kernel
        return NULL;
    }
    __atomic_store_n(&found, encode, __ATOMIC_RELAXED);
    return (PFN_cuTensorMapEncodeTiled_v12000)encode;
}

// Describes n_row rows of each head in n_page pages from `start` on, a page's first head of keys. A row is four slices
// of 64 elements, and a box has all rows of one slice before those of the next (wide_piece).
static inline bool describe_boxes(const struct attention_job &job, char *start, int64_t n_row, int64_t n_page,
                                  CUtensorMap *map) {
    const int64_t row_bytes = WIDE_DIM * 2, n_slice = row_bytes / 128;
    const cuuint64_t sizes[5] = {64, (cuuint64_t)n_row, (cuuint64_t)n_slice, (cuuint64_t)(2 * job.n_kv_head),
                                 (cuuint64_t)n_page};
    const cuuint64_t steps[4] = {(cuuint64_t)row_bytes, 128, (cuuint64_t)(job.kv.page_rows * row_bytes),
                                 (cuuint64_t)job.kv.page_bytes};
    const cuuint32_t box[5] = {64, CUDA_TILE_KEYS, (cuuint32_t)n_slice, 1, 1}, every[5] = {1, 1, 1, 1, 1};
    return find_box_encoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, start, sizes, steps, box, every,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// The page of a prompt's key.
static inline int32_t host_page(const struct attention_job &job, const struct lane *lane, int32_t key) {
#ifdef TF_ATTENTION_FLAT
    return (void)job, (void)lane, (void)key, 0;
#else
    return lane->pages[key >> job.page_shift];
#endif
}

static inline bool describe_prompt(const struct attention_job &job, const struct lane *lane,
                                   struct wide_boxes<true> *boxes) {
    return (void)job, (void)lane, (void)boxes, true;
}

static inline bool describe_prompt(const struct attention_job &job, const struct lane *lane,
                                   struct wide_boxes<false> *boxes) {
    int32_t end = lane->position + lane->n_row, last = end / CUDA_TILE_KEYS * CUDA_TILE_KEYS, highest = 0;
    for (int32_t key = 0; key < end; key += job.kv.page_rows) {
        int32_t page = host_page(job, lane, key);
        if (page > highest) highest = page;
    }
    char *start = (char *)job.kv.pages + job.kv.layer_offset;
    if (!describe_boxes(job, start, job.kv.page_rows, highest + 1, &boxes->whole)) return false;
    boxes->last = boxes->whole;
    if (last == end) return true;
    start += host_page(job, lane, last) * job.kv.page_bytes + last % job.kv.page_rows * (int64_t)(WIDE_DIM * 2);
    return describe_boxes(job, start, end - last, 1, &boxes->last);
}

#endif
