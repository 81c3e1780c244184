// Owns what both forms of attention share: the job, how a tile of vectors lies in shared memory, and queries.
#ifndef TF_CUDA_ATTENTION_SHARED_CUH
#define TF_CUDA_ATTENTION_SHARED_CUH

#include "cuda/device.cuh"

// First comes what a block looks up first: a launch's parameters reach a processor by lines of 64 bytes, and a thread
// waits for each of them. The first line has what a lane's reach and its pages are asked for with, the second the rest
// of what says where keys lie.
struct attention_job {
    int first_lane;
    int page_shift;       // pages of 2^page_shift positions, at least a tile's; -1: of another size, found key by key
    const int32_t *pages; // and `widest`, as in batch_view
    int widest;
    int n_kv_head;
    struct kv_layer kv;
    int r;                       // query heads of a KV head
    int n_query_tile;            // of the rows form: blocks of a KV head, which share a lane's queries
    uint32_t query_tile_inverse; // 2^31 over it, rounded up: quotients without a division
    const struct lane_entry *lanes;
    const int32_t *lane_of_row;
    struct tensor q, qg, out;
    int n_head;
    float scale;
    float *parts; // of the rows form: results of chunks
    int64_t first_part;
    int unseen;     // of the rows form: keys before this one are not seen
    int n_ahead;    // of the rows form: sets of 64 keys, and of values, that a block asks for before it needs them
    int code_bytes; // that a copy of codes may bring at once, by how pages are aligned: 16 or 8
};

#define LOG2_E 1.44269504f

static __device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// A row of D bf16 in shared memory: pieces of 16 bytes in an order that differs from row to row (as far as there are
// enough pieces), so that ldmatrix meets no bank twice.
template <int D> __device__ __forceinline__ char *kv_piece(char *tile, int row, int piece) {
    constexpr int PIECES = D / 8, MASK = PIECES < 8 ? PIECES - 1 : 7;
    return tile + (row * PIECES + (piece ^ (row & MASK))) * 16;
}

// A query's head row as bf16 pieces; zeros where there is none.
template <int D> __device__ __forceinline__ uint4 query_piece(const struct tensor &q, int64_t t, int head, int piece) {
    float v[8];
    load_eight(q, rows_are_wide(q), t, (int64_t)head * D + piece * 8, v);
    return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}

// Whose kernels are compiled for it: those of the real models' heads.
static inline bool has_whole_tiles(const struct attention_job *job) {
#ifdef TF_ATTENTION_FLAT
    return job != NULL;
#else
    return job->page_shift >= 0;
#endif
}

void attention_rows(struct cuda_device *d, const struct attention_args *a, struct attention_job *job);
void attention_prompt(struct cuda_device *d, const struct attention_args *a, struct attention_job *job);

#endif
