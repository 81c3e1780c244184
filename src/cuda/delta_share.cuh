// Owns how a round's delta rule is shared out (delta_rows.cu): which rows are at hand, what a block has of them in
// shared memory, and how two blocks that share a head hand outputs to each other.
#ifndef TF_CUDA_DELTA_SHARE_CUH
#define TF_CUDA_DELTA_SHARE_CUH

#include "cuda/barrier.cuh"
#include "cuda/delta.cuh"

#define KEYS   32 // of a thread
#define RANGES (DELTA_MAX_DIM / KEYS)
#define PADDED (RANGES * (KEYS + 4)) // ranges four banks apart
#define TAPS   4
#define CHUNK  8                // rows at once
#define ROWS   (CHUNK / RANGES) // of a thread, where the columns' threads share them

// BLOCKS: of a head.
template <int BLOCKS> __host__ __device__ constexpr int columns() { return DELTA_MAX_DIM / BLOCKS; }
template <int BLOCKS> __host__ __device__ constexpr int all_threads() { return columns<BLOCKS>() * RANGES; }
// The last warps finish a row each.
template <int BLOCKS> __host__ __device__ constexpr int first_finisher() {
    return all_threads<BLOCKS>() / 32 - CHUNK / BLOCKS;
}

// Of the rows at hand, new ones or such of the log.
template <int BLOCKS> struct rows_shared {
    // Barriers of the outputs of rows that the block finishes: chunks take turns. A barrier's second phase, of odd
    // parity, comes with a third chunk: in windows of more than 2 CHUNK rows alone.
    uint64_t arrived[2];
    float q[CHUNK][PADDED], k[CHUNK][PADDED];
    float raw[CHUNK][2 * DELTA_MAX_DIM];   // queries and keys
    float value[CHUNK][columns<BLOCKS>()]; // of the log: d
    float out[CHUNK][DELTA_MAX_DIM];       // before the norm, where the row is finished
    float gate[CHUNK / BLOCKS][DELTA_MAX_DIM];
    float4 weight[2 * DELTA_MAX_DIM + columns<BLOCKS>()];       // of a channel's taps: queries, keys, values
    float tap[TAPS - 1][2 * DELTA_MAX_DIM + columns<BLOCKS>()]; // a channel's values before the row at hand
    float norm[DELTA_MAX_DIM];
    float g[CHUNK], beta[CHUNK], qk[CHUNK];
    float neg_a[CHUNK], dt_bias[CHUNK]; // the same for all
};

// Rows of a lane, counted from its first new one; those of the log are before it.
struct chunk {
    int first, n, row;       // row: of the batch
    int log_slot, ring_slot; // of the first; the ring has new rows alone
};

static __device__ __forceinline__ int rows_of_chunk(const struct lane_entry &lane, int first) {
    return min(CHUNK, (first < 0 ? 0 : lane.n_row) - first);
}

static __device__ __forceinline__ struct chunk first_chunk(const struct delta_shape &s, const struct lane_entry &lane,
                                                           int ring_rows) {
    int first = -lane.n_pending;
    return (struct chunk){first, rows_of_chunk(lane, first), lane.row0 + first, (lane.position + first) % s.n_slot,
                          lane.position % ring_rows};
}

// No chunk is as long as the log or the ring.
static __device__ __forceinline__ void next_chunk(const struct delta_shape &s, const struct lane_entry &lane,
                                                  int ring_rows, struct chunk *chunk) {
    int n = chunk->n;
    if (chunk->first >= 0) chunk->ring_slot += n;
    if (chunk->ring_slot >= ring_rows) chunk->ring_slot -= ring_rows;
    chunk->log_slot += n;
    if (chunk->log_slot >= s.n_slot) chunk->log_slot -= s.n_slot;
    chunk->row += n;
    chunk->first += n;
    chunk->n = rows_of_chunk(lane, chunk->first);
}

// The slot of its row r.
static __device__ __forceinline__ int log_slot(const struct delta_shape &s, const struct chunk &chunk, int r) {
    int slot = chunk.log_slot + r;
    return slot < s.n_slot ? slot : slot - s.n_slot;
}

struct head_place {
    int head, key_head, rank; // rank: the block's, of those that share the head
    bool is_first;            // of the value heads that share a key, and of its blocks: stores what they have in common
};

// ---- two blocks that share a head: compute capability 9.0 ----

// Before anything is sent to the other block: it has begun, and its barriers wait for one arrival each.
template <int BLOCKS> static __device__ __forceinline__ void meet_begin(uint64_t barriers[2]) {
#if __CUDA_ARCH__ >= 900
    if (BLOCKS == 1) return;
    if (threadIdx.x < 2) barrier_open(&barriers[threadIdx.x], 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
template <int BLOCKS> static __device__ __forceinline__ void meet_end() {
#if __CUDA_ARCH__ >= 900
    if (BLOCKS > 1) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// To where `to` lies in block `rank`, which counts it at its barrier.
static __device__ __forceinline__ void send(float *to, uint64_t *barrier, int rank, float x) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{.reg .b32 to, at;\n mapa.shared::cluster.u32 to, %0, %2;\n mapa.shared::cluster.u32 at, %1, %2;\n"
        " st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [at];}" ::"r"(shared_address(to)),
        "r"(shared_address(barrier)), "r"(rank), "r"(__float_as_uint(x))
        : "memory");
#endif
}

#endif
