// Owns how both forms of attention come to their keys and values: found through the page table, and brought tile by
// tile into shared memory.
#ifndef TF_CUDA_ATTENTION_TILES_CUH
#define TF_CUDA_ATTENTION_TILES_CUH

#include "cuda/attention_shared.cuh"

// Of the keys of one tile: where they lie if not one after another, and their scales.
struct tile_rows {
    int64_t at[CUDA_TILE_KEYS]; // byte offset of the key; the value is value_offset after it
    float k_scale[CUDA_TILE_KEYS], v_scale[CUDA_TILE_KEYS]; // e4m3 only
};

static __device__ __forceinline__ int64_t value_offset(const struct attention_job &job, int head_dim) {
    int64_t size = job.kv.dtype == DTYPE_E4M3 ? 1 : 2;
    return (int64_t)job.n_kv_head * job.kv.page_rows * head_dim * size;
}

// A kernel is compiled for pages that hold whole tiles, whose vectors of a head then follow each other, and for others,
// whose keys are found one by one. The page of a whole tile is asked for a tile before it is needed, so that nothing
// waits for the table. As it would be without pages (bench/kernels_cuda.c), it would need none.
template <bool WHOLE>
__device__ __forceinline__ int tile_page(const struct attention_job &job, const int32_t *pages, int key0, int end) {
    if (!WHOLE) return 0;
#ifdef TF_ATTENTION_FLAT
    return (int)(pages - job.pages);
#else
    return pages[min(key0, end - 1) >> job.page_shift];
#endif
}

// Key key0 is row tile_slot of its page's rows of a head.
static __device__ __forceinline__ int tile_slot(const struct attention_job &job, int key0) {
#ifdef TF_ATTENTION_FLAT
    return key0;
#else
    return key0 & (job.kv.page_rows - 1);
#endif
}

// The first key of a whole tile.
template <int D, bool WHOLE>
__device__ __forceinline__ const char *tile_start(const struct attention_job &job, int page, int kv_head, int key0) {
    if (!WHOLE) return NULL;
    int64_t size = job.kv.dtype == DTYPE_E4M3 ? 1 : 2;
    int64_t row = (int64_t)kv_head * job.kv.page_rows + tile_slot(job, key0);
    return (const char *)job.kv.pages + page * job.kv.page_bytes + job.kv.layer_offset + row * D * size;
}

// What fetch_tile and the arithmetic need to know of each key of a tile. Scales arrive with the next commit.
template <int D, bool WHOLE>
__device__ __forceinline__ void find_rows(const struct attention_job &job, const int32_t *pages, int page, int kv_head,
                                          int key0, int end, struct tile_rows *rows) {
    int i = threadIdx.x, key = key0 + i;
    bool scaled = job.kv.dtype == DTYPE_E4M3;
    if (i < CUDA_TILE_KEYS && key < end && (scaled || !WHOLE)) {
        int slot = tile_slot(job, key0) + i;
        if (!WHOLE) {
            int number = key / job.kv.page_rows;
            slot = key - number * job.kv.page_rows;
            page = pages[number];
        }
        int64_t size = scaled ? 1 : 2, start = page * job.kv.page_bytes,
                row = (int64_t)kv_head * job.kv.page_rows + slot;
        if (!WHOLE) rows->at[i] = start + job.kv.layer_offset + row * D * size;
        const float *scales = (const float *)((const char *)job.kv.pages + start + job.kv.scale_offset) + row;
        if (scaled) {
            copy4(&rows->k_scale[i], scales, 4);
            copy4(&rows->v_scale[i], scales + (int64_t)job.n_kv_head * job.kv.page_rows, 4);
        }
    }
    __syncwarp(); // what comes next wants whole warps
}

static __device__ __forceinline__ void copy8(void *to, const void *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}

// Starts bringing n_key keys (or values) into a tile, from `whole` or as `rows` say; the rest of the tile becomes
// zeros, since what lies behind the last key was never written. All arrives with the next commit: bf16 in place, codes
// in the tile's second half, one key after another, until widen_tile (attention_codes.cuh).
template <int D, bool WHOLE, int THREADS>
__device__ __forceinline__ void fetch_tile(const struct attention_job &job, const struct tile_rows *rows,
                                           const char *whole, int64_t offset, int n_key, char *tile) {
    const char *pages = (const char *)job.kv.pages + offset;
    if (WHOLE) whole += offset;
    if (job.kv.dtype == DTYPE_BF16) {
        constexpr int PIECES = D / 8;
#pragma unroll 4
        for (int i = threadIdx.x; i < CUDA_TILE_KEYS * PIECES; i += THREADS) {
            int key = i / PIECES, piece = i % PIECES;
            const char *from = WHOLE ? whole + i * 16 : pages + rows->at[key] + piece * 16;
            copy16(kv_piece<D>(tile, key, piece), key < n_key ? from : pages, key < n_key ? 16 : 0);
        }
        return;
    }
    char *codes = tile + CUDA_TILE_KEYS * D;
    int size = job.code_bytes, n_piece = D / size;
#pragma unroll 4
    for (int i = threadIdx.x; i < CUDA_TILE_KEYS * n_piece; i += THREADS) {
        int key = i * size / D;
        const char *from = WHOLE ? whole + i * size : pages + rows->at[key] + (i * size - key * D);
        if (size == 16)
            copy16(codes + i * 16, key < n_key ? from : pages, key < n_key ? 16 : 0);
        else
            copy8(codes + i * 8, key < n_key ? from : pages, key < n_key ? 8 : 0);
    }
}

#endif
