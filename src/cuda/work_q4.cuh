// Owns what a block of a product in rounds (linear_q4.cuh) makes of its rows before it walks over tiles, where its sums
// go to, and how much shared memory it takes.
#ifndef TF_CUDA_WORK_Q4_CUH
#define TF_CUDA_WORK_Q4_CUH

#include "cuda/linear_q4.cuh"
#include "cuda/planes_first.cuh"
#include "cuda/tile_q4.cuh"

// Where a block has its rows' planes: in global memory; or, of a single row, in its own shared memory, where it makes
// them or copies them to.
enum q4_place { PLANES_GLOBAL, PLANES_OWN };

// Columns that a block's sums and planes have room for, and rows of a tile of planes.
template <int NT, q4_place PLACE> __host__ __device__ constexpr int q4_columns() {
    return PLACE == PLANES_OWN ? 1 : 4 * NT;
}
template <q4_place PLACE> __host__ __device__ constexpr int q4_plane_rows() {
    return PLACE == PLANES_OWN ? 1 : PLANES_TILE;
}

template <int MT, int NT, q4_place PLACE, int TEAMS, int STAGES> static inline size_t q4_block_bytes(int n_unit) {
    int own = PLACE == PLANES_OWN ? n_unit * (PLANES_UNIT_X + (int)sizeof(struct plane_note)) : 0;
    return (size_t)(TEAMS * q4_team_bytes<MT, NT, STAGES>(q4_columns<NT, PLACE>()) + own);
}

template <int MT, int NT, q4_place PLACE, bool WEIGHTS_ARRANGED> struct q4_work {
    static constexpr bool ARRANGED = WEIGHTS_ARRANGED; // for q4_walk_as
    const struct q4_job &job;
    struct planes own; // PLANES_OWN
    float factor;      // PLANES_OWN
    int t0;            // the first column's row

    __device__ __forceinline__ int n_column(int tile) const {
        return PLACE == PLANES_OWN ? 1 : min((int)job.n_row - t0, 4 * NT);
    }
    __device__ __forceinline__ struct q4_matrix matrix(int tile, int place) const {
        return q4_matrix_in<MT>(job, tile, place);
    }
    __device__ __forceinline__ void begin() {
        int warp = threadIdx.x / 32, n_warp = blockDim.x / 32;
        if (PLACE == PLANES_OWN) warm_planes(job.in, job.n_unit, warp, n_warp);
        wait_for_earlier();
        if (PLACE == PLANES_GLOBAL) return;
        if (job.made) {
            copy_first_planes(job.x, job.n_unit, own);
            __syncthreads();
            factor = job.x.factors[0];
            return;
        }
        make_first_planes(job.in, job.n_unit, own, warp, n_warp);
        __syncthreads();
        factor = plane_factor<1>(job.in, job.n_unit, own.notes);
    }
    __device__ __forceinline__ void rows(int tile, struct q4_rows<NT> *r) const {
        if (PLACE == PLANES_GLOBAL) {
            q4_take_rows<NT>(job.x, r, [&](int n) { return min(t0 + n, (int)job.n_row - 1); });
            return;
        }
        r->x = own.x;
        r->notes = (const char *)own.notes;
        r->x_at[0] = q4_input_at();
        r->note_at[0] = 0;
    }
    // What the sums of column n are multiplied with.
    __device__ __forceinline__ float factor_of(int n) const {
        return PLACE == PLANES_OWN ? factor : job.x.factors[t0 + n];
    }
    __device__ __forceinline__ void store(int tile, int m, int n, float sum) const {
        if (m >= job.tile_outputs) return;
        const struct rows_part &p = q4_part_of(job, tile);
        store_sum(job.residual, p, job.n_row, t0 + n, (int64_t)(tile - p.first_tile) * job.tile_outputs + m,
                  sum * factor_of(n));
    }
};

// Where a block's own planes are: behind its teams' shared memory.
template <int MT, int NT, q4_place PLACE, int TEAMS, int STAGES>
__device__ __forceinline__ struct planes q4_own_planes(char *shared, int n_unit) {
    char *own = shared + TEAMS * q4_team_bytes<MT, NT, STAGES>(q4_columns<NT, PLACE>());
    return (struct planes){own, (struct plane_note *)(own + n_unit * PLANES_UNIT_X)};
}

// The tiles of this thread's team.
template <int TEAMS> __device__ __forceinline__ struct q4_range q4_team_tiles(int n_tile) {
    return (struct q4_range){(int)blockIdx.x + q4_team() * (int)gridDim.x, n_tile, (int)gridDim.x * TEAMS};
}

#endif
