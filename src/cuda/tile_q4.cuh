// Owns the walk over tiles of products with the usual kind of weights (product_q4.cuh): each warp's pipeline of units,
// which goes on into the next tile while one is finished, and adding up the warps. A block has one or two teams of
// Q4_WARPS warps, each with tiles of its own.
#ifndef TF_CUDA_TILE_Q4_CUH
#define TF_CUDA_TILE_Q4_CUH

#include "cuda/parts_q4.cuh"

// A team's shared memory: the warps' stages, then their parts.
template <int MT> __host__ __device__ constexpr int q4_stage_bytes() {
    return Q4_WARPS * Q4_STAGES * q4_unit_bytes<MT>();
}
template <int NT> __host__ __device__ constexpr int q4_part_buffers() { return NT <= 2 ? 2 : 1; }
template <int MT, int NT> __host__ __device__ static inline int q4_team_bytes(int n_column) {
    return q4_stage_bytes<MT>() + q4_part_buffers<NT>() * Q4_WARPS * n_column * 16 * MT * (int)sizeof(float);
}
static inline int q4_tile_outputs(int n_unit, int mt) { return Q4_WARPS / q4_sharing(n_unit) * 16 * mt; }

// Blocks of a launch: as many as find room beside each other, `most` on a processor, and no more than there are tiles.
static inline unsigned q4_blocks(const struct cuda_device *d, int most, size_t shared_bytes, int64_t n_tile) {
    int64_t room = (int64_t)(d->shared_bytes / (shared_bytes + 1024)), fit = room < most ? room : most;
    int64_t n = (fit < 1 ? 1 : fit) * d->n_processors;
    return (unsigned)(n < n_tile ? n : n_tile);
}

__device__ __forceinline__ int q4_team() { return threadIdx.x / Q4_THREADS; }

// Of a team. Barriers by constant numbers, since a kernel is given all that it might use.
template <int TEAMS> __device__ __forceinline__ void q4_barrier() {
    if (TEAMS == 1)
        __syncthreads();
    else if (q4_team() == 0)
        asm volatile("bar.sync 1, %0;" ::"n"(Q4_THREADS) : "memory");
    else
        asm volatile("bar.sync 2, %0;" ::"n"(Q4_THREADS) : "memory");
    static_assert(TEAMS <= 2, "a barrier for each team");
}

// A range of tiles, and what a JOB must say of one:
//   matrix(tile, place)    its q4_matrix, for the 16 MT outputs that begin `place` times 16 MT behind the tile's first
//   rows(tile, &rows)      q4_rows of this thread
//   n_column(tile)         columns that exist
//   store(tile, m, n, sum) takes output m of the tile for column n
//   begin()                called once, after the first weights are under way
struct q4_range {
    int first, end, step;
};

// n_column_most: columns that a tile may have.
template <int MT, int NT, int R, int TEAMS, typename JOB>
__device__ __forceinline__ void q4_walk(JOB &job, struct q4_range tiles, int n_unit, int n_column_most, char *shared) {
    constexpr int UNIT = q4_unit_bytes<MT>(), ALL = Q4_STAGES * UNIT;
    constexpr bool EARLY = R > 1 && NT <= 2; // from memory that is farther away than the weights by then
    int warp = threadIdx.x / 32 % Q4_WARPS, sharing = q4_sharing(n_unit), k = warp % sharing, place = warp / sharing;
    int n_mine = (n_unit - k + sharing - 1) / sharing;
    const char *stages = shared + warp * ALL;
    float *parts = (float *)(shared + q4_stage_bytes<MT>());
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
        struct q4_rows<NT> rows;
        job.rows(tile, &rows);
        float y[MT][NT][2];
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int j = 0; j < NT; j++) y[t][j][0] = y[t][j][1] = 0;
        rows.x += k * (R * PLANES_UNIT_X);
        rows.notes += k * R * sizeof(struct plane_note);
#pragma unroll 1
        for (int i = 0; i < n_mine; i++) {
            struct q4_inputs<NT> in;
            if (EARLY) {
                q4_load<NT, R>(rows, 0, &in);
                q4_load<NT, R>(rows, 1, &in);
                q4_load_notes<NT>(rows, &in);
            }
            copies_wait<Q4_STAGES - 2>();
            __syncwarp();
            fetch();
            q4_multiply<MT, NT, R, EARLY>(stages + stage, rows, in, y);
            stage = stage + UNIT == ALL ? 0 : stage + UNIT;
            rows.x += sharing * (R * PLANES_UNIT_X);
            rows.notes += sharing * R * sizeof(struct plane_note);
        }
        int part_floats = q4_part_buffers<NT>() == 2 ? Q4_WARPS * n_column_most * 16 * MT : 0;
        int n_column = job.n_column(tile);
        if (part_floats == 0) q4_barrier<TEAMS>(); // the tile before has been read
        q4_put_part<MT, NT>(parts + turn % 2 * part_floats, warp, n_column, y);
        q4_barrier<TEAMS>();
        q4_add_parts<MT>(parts + turn % 2 * part_floats, n_column, sharing,
                         [&](int m, int n, float sum) { job.store(tile, m, n, sum); });
    }
}

#endif
