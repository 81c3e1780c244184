// Owns what both forms of attention share: finding keys through the page table, and bringing a tile of them into shared
// memory as bf16. Codes of e4m3 are exact in bf16; their scales are applied to scores and weights.
#ifndef TF_CUDA_ATTENTION_SHARED_CUH
#define TF_CUDA_ATTENTION_SHARED_CUH

#include "cuda/device.cuh"
#include <cuda_fp8.h>

struct attention_job {
    struct batch_view batch;
    struct tensor q, qg, out;
    struct kv_layer kv;
    int n_head, n_kv_head, r; // r: query heads of a KV head
    float scale;
    float *parts; // of the rows form: results of chunks
    int first_lane;
    int64_t first_part;
    int unseen; // of the rows form: keys before this one are not seen
};

// A row of D bf16 in shared memory: pieces of 16 bytes in an order that differs from row to row (as far as there are
// enough pieces), so that ldmatrix meets no bank twice.
template <int D> __device__ __forceinline__ char *kv_piece(char *tile, int row, int piece) {
    constexpr int PIECES = D / 8, MASK = PIECES < 8 ? PIECES - 1 : 7;
    return tile + (row * PIECES + (piece ^ (row & MASK))) * 16;
}

// Where the keys of one tile lie: rows of this KV head, counted in rows of the page pool's dtype; and their scales.
struct tile_rows {
    int64_t at[CUDA_TILE_KEYS]; // byte offset of the key; the value is value_offset after it
    float k_scale[CUDA_TILE_KEYS], v_scale[CUDA_TILE_KEYS]; // e4m3 only
};

static __device__ __forceinline__ int64_t value_offset(const struct attention_job &job, int head_dim) {
    int64_t size = job.kv.dtype == DTYPE_E4M3 ? 1 : 2;
    return (int64_t)job.n_kv_head * job.kv.page_rows * head_dim * size;
}

// The page of a key is looked up once a tile, by one thread.
template <int D>
__device__ __forceinline__ void find_rows(const struct attention_job &job, const int32_t *pages, int kv_head, int key0,
                                          int end, struct tile_rows *rows) {
    int i = threadIdx.x;
    if (i >= CUDA_TILE_KEYS || key0 + i >= end) return;
    int key = key0 + i, page = key / job.kv.page_rows, slot = key - page * job.kv.page_rows;
    int64_t size = job.kv.dtype == DTYPE_E4M3 ? 1 : 2;
    int64_t start = (int64_t)pages[page] * job.kv.page_bytes, row = (int64_t)kv_head * job.kv.page_rows + slot;
    rows->at[i] = start + job.kv.layer_offset + row * D * size;
    if (job.kv.dtype != DTYPE_E4M3) return;
    const float *scales = (const float *)((const char *)job.kv.pages + start + job.kv.scale_offset);
    rows->k_scale[i] = scales[row];
    rows->v_scale[i] = scales[(int64_t)job.n_kv_head * job.kv.page_rows + row];
}

static __device__ __forceinline__ uint32_t e4m3_pair(uint32_t codes) {
    __half2_raw h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)codes, __NV_E4M3);
    float2 v = __half22float2(*(__half2 *)&h);
    return pack_bf16(v.x, v.y);
}

// Eight codes as bf16.
static __device__ __forceinline__ uint4 widen_piece(const char *from) {
    uint2 v = *(const uint2 *)from;
    return make_uint4(e4m3_pair(v.x & 0xffff), e4m3_pair(v.x >> 16), e4m3_pair(v.y & 0xffff), e4m3_pair(v.y >> 16));
}

// Starts bringing n_key keys (or values) into a tile; the rest of the tile becomes zeros, since what lies behind the
// last key was never written. bf16 arrives with the next commit, codes are there at once.
template <int D, int THREADS>
__device__ __forceinline__ void fetch_tile(const struct attention_job &job, const struct tile_rows *rows,
                                           int64_t offset, int n_key, char *tile) {
    constexpr int PIECES = D / 8;
    const char *pages = (const char *)job.kv.pages + offset;
#pragma unroll 4
    for (int i = threadIdx.x; i < CUDA_TILE_KEYS * PIECES; i += THREADS) {
        int key = i / PIECES, piece = i % PIECES;
        char *to = kv_piece<D>(tile, key, piece);
        if (job.kv.dtype == DTYPE_BF16)
            copy16(to, key < n_key ? pages + rows->at[key] + piece * 16 : pages, key < n_key ? 16 : 0);
        else if (key < n_key)
            *(uint4 *)to = widen_piece(pages + rows->at[key] + piece * 8);
        else
            *(uint4 *)to = make_uint4(0, 0, 0, 0);
    }
}

// A query's head row as bf16 pieces; zeros where there is none.
template <int D> __device__ __forceinline__ uint4 query_piece(const struct tensor &q, int64_t t, int head, int piece) {
    uint32_t v[4];
    int64_t col = (int64_t)head * D + piece * 8;
    if (q.dtype == DTYPE_BF16 && ((uintptr_t)q.data & 15) == 0 && (q.stride & 7) == 0)
        return *(const uint4 *)((const __nv_bfloat16 *)q.data + t * q.stride + col);
    for (int i = 0; i < 4; i++) v[i] = pack_bf16(tensor_load(q, t, col + 2 * i), tensor_load(q, t, col + 2 * i + 1));
    return *(uint4 *)v;
}

void attention_rows(struct cuda_device *d, const struct attention_args *a, struct attention_job *job);
void attention_prompt(struct cuda_device *d, const struct attention_args *a, struct attention_job *job);

#endif
