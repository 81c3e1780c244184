// Owns the walk of a block over tiles of products with the usual kind of weights (product_q4.cuh): each warp's pipeline
// of units, which goes on into the next tile while one is finished, and adding up the warps.
#ifndef TF_CUDA_TILE_Q4_CUH
#define TF_CUDA_TILE_Q4_CUH

#include "cuda/product_q4.cuh"

// A block's shared memory: the warps' stages, then their parts.
template <int MT> __host__ __device__ constexpr int q4_stage_bytes() {
    return Q4_WARPS * Q4_STAGES * q4_unit_bytes<MT>();
}
template <int NT> __host__ __device__ constexpr int q4_part_buffers() { return NT == 1 ? 2 : 1; }
template <int MT, int NT> __host__ __device__ static inline int q4_part_bytes(int n_column) {
    return q4_part_buffers<NT>() * Q4_WARPS * n_column * 16 * MT * (int)sizeof(float);
}
static inline int q4_block_outputs(int n_unit, int mt) { return Q4_WARPS / q4_sharing(n_unit) * 16 * mt; }

// Blocks of a launch: as many as find room beside each other, `most` on a processor, and no more than there are tiles.
static inline unsigned q4_blocks(const struct cuda_device *d, int most, size_t shared_bytes, int64_t n_tile) {
    int64_t room = (int64_t)(d->shared_bytes / (shared_bytes + 1024)), fit = room < most ? room : most;
    int64_t n = (fit < 1 ? 1 : fit) * d->n_processors;
    return (unsigned)(n < n_tile ? n : n_tile);
}

// A range of tiles, and what a JOB must say of one:
//   matrix(tile, place)    its q4_matrix, for the 16 MT outputs that begin `place` times 16 MT behind the tile's first
//   rows(tile, &rows)      q4_rows of this thread
//   n_column(tile)         columns that exist
//   store(tile, m, n, sum) takes output m of the tile for column n
//   begin()                called once, after the first weights are under way; what it does ends with a barrier
// EARLY: the first weights may be fetched before begin().
struct q4_range {
    int first, end, step;
};

template <int MT, int NT, int R, typename JOB>
__device__ __forceinline__ void q4_walk(JOB &job, struct q4_range tiles, int n_unit, char *shared, float *parts,
                                        int part_floats) {
    constexpr int UNIT = q4_unit_bytes<MT>(), ALL = Q4_STAGES * UNIT;
    int warp = threadIdx.x / 32, sharing = q4_sharing(n_unit), k = warp % sharing, place = warp / sharing;
    int n_mine = (n_unit - k + sharing - 1) / sharing, n_group = 2 * n_unit, n_step = planes_steps(n_group);
    const char *stages = shared + warp * ALL;
    uint32_t base = shared_address(stages);
    struct q4_source<MT> q;
    int next_tile = tiles.first, left = 0, to = 0;
    auto fetch = [&]() {
        if (left == 0 && next_tile < tiles.end) {
            q4_open<MT>(job.matrix(next_tile, place), k, &q);
            next_tile += tiles.step;
            left = n_mine;
        }
        if (left > 0) {
            q4_fetch<MT>(&q, base + to, sharing);
            to = to + UNIT == ALL ? 0 : to + UNIT;
            left--;
        }
        copies_commit();
    };
#pragma unroll 1
    for (int s = 0; s < Q4_STAGES - 1; s++) fetch();
    job.begin();
    int stage = 0, turn = 0;
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.end; tile += tiles.step, turn++) {
        struct q4_matrix w = job.matrix(tile, place);
        struct q4_rows<NT> rows;
        job.rows(tile, &rows);
        uint32_t biases[MT][4];
        float y[MT][NT][4];
#pragma unroll
        for (int t = 0; t < MT; t++) {
            q4_read_biases(w, t, k, n_group, biases[t]);
#pragma unroll
            for (int j = 0; j < NT; j++)
                for (int i = 0; i < 4; i++) y[t][j][i] = 0;
        }
#pragma unroll
        for (int j = 0; j < NT; j++) rows.x[j] += k * (R * 256);
#pragma unroll 1
        for (int i = 0; i < n_mine; i++) {
            copies_wait<Q4_STAGES - 2>();
            __syncwarp();
            fetch();
            q4_multiply<MT, NT, R>(stages + stage, rows.x, y);
            stage = stage + UNIT == ALL ? 0 : stage + UNIT;
#pragma unroll
            for (int j = 0; j < NT; j++) rows.x[j] += sharing * (R * 256);
        }
#pragma unroll 1
        for (int step = k; step < n_step; step += sharing)
#pragma unroll
            for (int t = 0; t < MT; t++) {
                if (step > k) q4_read_biases(w, t, step, n_group, biases[t]);
                q4_add_biases<NT, R>(biases[t], rows.sums, step, y[t]);
            }
        float *turn_parts = parts + (q4_part_buffers<NT>() == 2 ? turn % 2 * part_floats : 0);
        int n_column = job.n_column(tile);
        if (q4_part_buffers<NT>() == 1) __syncthreads(); // the tile before has been read
        q4_put_part<MT, NT>(turn_parts, warp, n_column, y);
        __syncthreads();
        q4_add_parts<MT>(turn_parts, n_column, sharing, [&](int m, int n, float sum) { job.store(tile, m, n, sum); });
    }
}

#endif
