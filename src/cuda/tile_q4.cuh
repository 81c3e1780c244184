// Owns the walk over tiles of products with the usual kind of weights (product_q4.cuh): each warp's pipeline of units,
// which goes on into the next tile while one is finished, and adding up the warps. A block has one or two teams of
// Q4_WARPS warps, each with tiles of its own.
#ifndef TF_CUDA_TILE_Q4_CUH
#define TF_CUDA_TILE_Q4_CUH

#include "cuda/parts_q4.cuh"

// A team's shared memory: the warps' stages, then their parts.
template <int MT, int STAGES = Q4_STAGES> __host__ __device__ constexpr int q4_stage_bytes() {
    return Q4_WARPS * STAGES * q4_unit_bytes<MT>();
}
template <int MT, int NT, int STAGES = Q4_STAGES> __host__ __device__ constexpr int q4_team_bytes(int n_column) {
    return q4_stage_bytes<MT, STAGES>() +
           q4_part_buffers<MT, NT>() * Q4_WARPS * n_column * 16 * MT * (int)sizeof(float);
}
static inline int q4_tile_outputs(int n_unit, int mt) { return Q4_WARPS / q4_sharing(n_unit) * 16 * mt; }

// Blocks of a launch: as many as find room beside each other, `most` on a processor, and no more than there are tiles.
static inline unsigned q4_blocks(const struct cuda_device *d, int most, size_t shared_bytes, int64_t n_tile) {
    int64_t room = (int64_t)(d->shared_bytes / (shared_bytes + 1024)), fit = room < most ? room : most;
    int64_t n = (fit < 1 ? 1 : fit) * d->n_processors;
    return (unsigned)(n < n_tile ? n : n_tile);
}

// A range of tiles, and what a JOB must say of one:
//   ARRANGED               whether its matrices are (arranged.cuh)
//   matrix(tile, place)    its q4_matrix, for the 16 MT outputs that begin `place` times 16 MT behind the tile's first
//   rows(tile, &rows)      q4_rows of this thread
//   n_column(tile)         columns that exist
//   store(tile, m, n, sum) takes output m of the tile for column n
// Of a PAIR of matrices, matrix(tile, 0 or 1) are those of the 8 MT outputs that a tile has of each,
//   store(tile, m, n, first, second) takes both
//   begin()                called once, after the first weights are under way
struct q4_range {
    int first, end, step;
};

template <int NT, int R> __device__ __forceinline__ void q4_step(struct q4_rows<NT> *rows, int units) {
    rows->x += units * (R * PLANES_UNIT_X);
    rows->notes += units * R * (int)sizeof(struct plane_note);
}

// When a warp asks for a unit's planes: when it multiplies, from shared memory, or a group at a time where there are
// many; before it waits for the unit's weights; or a unit ahead.
enum q4_when { LOAD_NEAR, LOAD_LATE, LOAD_EARLY, LOAD_AHEAD };

// n_column_most: columns that a tile may have.
template <int MT, int NT, int R, int TEAMS, int STAGES, q4_when LOAD, bool PAIR, typename JOB>
__device__ __forceinline__ void q4_walk_as(JOB &job, struct q4_range tiles, int n_unit, int n_column_most,
                                           char *shared) {
    constexpr int UNIT = q4_unit_bytes<MT>(), ALL = STAGES * UNIT;
    int warp = threadIdx.x / 32 % Q4_WARPS, sharing = q4_sharing(n_unit), k = warp % sharing, place = warp / sharing;
    int n_mine = (n_unit - k + sharing - 1) / sharing;
    const char *stages = shared + warp * ALL;
    float *parts = (float *)(shared + q4_stage_bytes<MT, STAGES>());
    uint32_t base = shared_address(stages);
    struct q4_source<MT, JOB::ARRANGED> q;
    int next_tile = tiles.first, left = 0, to = 0;
    auto fetch = [&]() {
        if (left == 0 && next_tile < tiles.end) {
            struct q4_matrix first = job.matrix(next_tile, PAIR ? 0 : place);
            q4_open<MT, PAIR, JOB::ARRANGED>(first, PAIR ? job.matrix(next_tile, 1) : first, k, &q);
            next_tile += tiles.step;
            left = n_mine;
        }
        if (left > 0) {
            q4_fetch<MT, PAIR, JOB::ARRANGED>(&q, base + to, sharing);
            to = to + UNIT == ALL ? 0 : to + UNIT;
            left--;
        }
        copies_commit();
    };
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) fetch();
    job.begin();
    int stage = 0, turn = 0;
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.end; tile += tiles.step, turn++) {
        struct q4_rows<NT> rows;
        struct q4_inputs<NT> in;
        job.rows(tile, &rows);
        float y[MT][NT][2];
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int j = 0; j < NT; j++) y[t][j][0] = y[t][j][1] = 0;
        q4_step<NT, R>(&rows, k);
        if (LOAD == LOAD_AHEAD) q4_load<NT, R>(rows, &in);
#pragma unroll 1
        for (int i = 0; i < n_mine; i++) {
            struct q4_inputs<NT> next;
            if (LOAD == LOAD_EARLY) q4_load<NT, R>(rows, &in);
            if (LOAD == LOAD_AHEAD) {
                if (i + 1 < n_mine) q4_step<NT, R>(&rows, sharing);
                q4_load<NT, R>(rows, &next);
            }
            copies_wait<STAGES - 2>();
            __syncwarp();
            fetch();
            if (LOAD == LOAD_NEAR) q4_load<NT, R>(rows, &in);
            if (LOAD == LOAD_LATE)
                q4_multiply_late<MT, NT, R>(stages + stage, rows, y);
            else
                q4_multiply<MT, NT>(stages + stage, in, y);
            if (LOAD == LOAD_AHEAD)
                in = next;
            else
                q4_step<NT, R>(&rows, sharing);
            stage = stage + UNIT == ALL ? 0 : stage + UNIT;
        }
        q4_finish_tile<MT, NT, TEAMS, PAIR>(job, tile, turn, sharing, n_column_most, parts, y);
    }
}

template <int MT, int NT, int R, int TEAMS, typename JOB>
__device__ __forceinline__ void q4_walk(JOB &job, struct q4_range tiles, int n_unit, int n_column_most, char *shared) {
    constexpr q4_when LOAD = R > 1 && NT <= 2 ? LOAD_EARLY : LOAD_LATE;
    q4_walk_as<MT, NT, R, TEAMS, Q4_STAGES, LOAD, false>(job, tiles, n_unit, n_column_most, shared);
}

#endif
