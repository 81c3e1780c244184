// Products in rounds with the usual kind of weights: what a block makes of its rows before it walks over tiles.
#include "cuda/linear_q4.cuh"
#include "cuda/planes_make.cuh"
#include "cuda/tile_q4.cuh"

#define OWN_MOST 65536 // bytes of the planes of one row that a block may hold beside its stages

// Where a block has its rows' planes: in global memory; or, of a single row, in its own shared memory, where it makes
// them or copies them to.
enum q4_place { PLANES_GLOBAL, PLANES_MADE, PLANES_COPIED };

template <int MT, int NT, q4_place PLACE> struct q4_work {
    static constexpr bool OWN = PLACE != PLANES_GLOBAL;
    const struct q4_job &job;
    struct planes own; // OWN
    float factor;      // PLANES_MADE
    int t0;            // the first column's row

    __device__ __forceinline__ int n_column(int tile) const { return OWN ? 1 : min((int)job.n_row - t0, 4 * NT); }
    __device__ __forceinline__ struct q4_matrix matrix(int tile, int place) const {
        return q4_matrix_in<MT>(job, tile, place);
    }
    __device__ __forceinline__ void begin() {
        int warp = threadIdx.x / 32, n_warp = blockDim.x / 32;
        if (PLACE == PLANES_MADE) warm_planes(job.in, job.n_unit, warp, n_warp);
        wait_for_earlier();
        if (PLACE == PLANES_MADE) make_planes<1>(job.in, 0, job.n_unit, own, warp, n_warp);
        if (PLACE == PLANES_COPIED) copy();
        if (OWN) __syncthreads();
        if (PLACE == PLANES_MADE) factor = plane_factor<1>(job.in, job.n_unit, own.notes);
    }
    // Row 0 of its tile, 128 bytes a group, and its notes.
    __device__ __forceinline__ void copy() const {
        constexpr int AHEAD = 5;
        int n = job.n_unit * 16, step = blockDim.x;
        for (int first = threadIdx.x; first < n; first += AHEAD * step) {
            uint4 v[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                int i = min(first + k * step, n - 1);
                v[k] = ((const uint4 *)job.x.x)[i / 8 * (PLANES_TILE * 8) + i % 8];
            }
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (first + k * step < n) ((uint4 *)own.x)[first + k * step] = v[k];
        }
        for (int i = threadIdx.x; i < job.n_unit; i += step)
            ((uint4 *)own.notes)[i] = ((const uint4 *)job.x.notes)[i * PLANES_TILE];
    }
    __device__ __forceinline__ void rows(int tile, struct q4_rows<NT> *r) const {
        if (!OWN) {
            q4_take_rows<NT>(job.x, r, [&](int n) { return min(t0 + n, (int)job.n_row - 1); });
            return;
        }
        r->x = own.x;
        r->notes = (const char *)own.notes;
        r->x_at[0] = q4_input_at();
        r->note_at[0] = 0;
    }
    __device__ __forceinline__ void store(int tile, int m, int n, float sum) const {
        const struct rows_part &p = q4_part_of(job, tile);
        store_sum(job.residual, p, job.n_row, t0 + n, (int64_t)(tile - p.first_tile) * job.tile_outputs + m,
                  sum * (PLACE == PLANES_MADE ? factor : job.x.factors[t0 + n]));
    }
};

static __host__ __device__ inline int own_bytes(int n_unit) {
    return n_unit * (PLANES_UNIT_X + (int)sizeof(struct plane_note));
}

// LEAST: blocks beside each other on a processor.
template <int MT, int NT, q4_place PLACE, int TEAMS, int LEAST>
static __global__ void __launch_bounds__(Q4_THREADS *TEAMS, LEAST)
    linear_q4_kernel(const __grid_constant__ q4_job job) {
    extern __shared__ __align__(16) char shared[];
    constexpr bool OWN = PLACE != PLANES_GLOBAL;
    constexpr int R = OWN ? 1 : PLANES_TILE, COLUMNS = OWN ? 1 : 4 * NT;
    let_next_start();
    int team_bytes = q4_team_bytes<MT, NT>(COLUMNS), team = q4_team();
    char *own = shared + TEAMS * team_bytes;
    struct planes planes = {own, (struct plane_note *)(own + job.n_unit * PLANES_UNIT_X)};
    struct q4_work<MT, NT, PLACE> work = {
        job, planes, 1, (int)blockIdx.y * 4 * NT
    };
    struct q4_range tiles = {(int)blockIdx.x * TEAMS + team, job.n_tile, (int)gridDim.x * TEAMS};
    q4_walk<MT, NT, R, TEAMS>(work, tiles, job.n_unit, COLUMNS, shared + team * team_bytes);
}

template <int MT, int NT, q4_place PLACE, int TEAMS, int LEAST>
static void launch(struct cuda_device *d, struct q4_job *job) {
    auto kernel = linear_q4_kernel<MT, NT, PLACE, TEAMS, LEAST>;
    constexpr bool OWN = PLACE != PLANES_GLOBAL;
    size_t bytes = (size_t)(TEAMS * q4_team_bytes<MT, NT>(OWN ? 1 : 4 * NT) + (OWN ? own_bytes(job->n_unit) : 0));
    q4_cut_tiles(job, q4_tile_outputs(job->n_unit, MT));
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    dim3 grid(q4_blocks(d, LEAST, bytes, ceil_div(job->n_tile, TEAMS)), (unsigned)ceil_div(job->n_row, 4 * NT));
    cuda_start(d, "linear, rows", kernel, grid, Q4_THREADS * TEAMS, bytes, *job);
}

// Up to so many outputs three blocks of 16 rows on a processor have a tile each.
static bool is_narrow(const struct cuda_device *d, const struct q4_job *job) {
    int64_t n_out = 0;
    for (int p = 0; p < job->n_part; p++) n_out += job->part[p].w.n_out;
    return n_out <= 16 * 3 * (int64_t)d->n_processors;
}

// A block may have all of a processor's shared memory but 1024 bytes, which is 99 KiB where processors have least.
static bool has_room(const struct cuda_device *d, int bytes) { return (size_t)bytes + 1024 <= d->shared_bytes; }

// A row's bits are the same in each.
void linear_q4(struct cuda_device *d, struct q4_job *job) {
    int own_room = own_bytes(job->n_unit);
    bool own = job->n_row == 1 && own_room <= OWN_MOST;
    own = own && has_room(d, (job->made ? 1 : 2) * q4_team_bytes<1, 1>(1) + own_room);
    if (!own && !job->made) {
        make_plane_rows(d, job->in, job->x);
        job->made = true;
    }
    if (own && job->made)
        launch<1, 1, PLANES_COPIED, 1, 4>(d, job);
    else if (own)
        launch<1, 1, PLANES_MADE, 2, 2>(d, job);
    else if (job->n_row <= 4)
        launch<1, 1, PLANES_GLOBAL, 2, 2>(d, job);
    else if (job->n_row <= 8)
        launch<1, 2, PLANES_GLOBAL, 1, 3>(d, job);
    else if (job->n_row <= 16 && is_narrow(d, job))
        launch<1, 4, PLANES_GLOBAL, 1, 3>(d, job);
    else if (job->n_row <= 16 || !has_room(d, q4_team_bytes<2, 8>(32)))
        launch<1, 4, PLANES_GLOBAL, 1, 2>(d, job);
    else
        launch<2, 8, PLANES_GLOBAL, 1, 1>(d, job);
}
