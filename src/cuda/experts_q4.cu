// experts in FORM_ROWS, where all weights are of the usual kind (units_q4.cuh):
//   1. planes of the rows, and pairs listed by expert and cut into tiles
//   2. gate and up of all pairs, in fp32
//   3. activation into planes, where they are used, and down of all pairs, in fp32
// The sums over a row's experts follow in experts.cu. Where a pair stands in a tile has no influence on its bits.
#include "cuda/experts.cuh"
#include "cuda/planes_make.cuh"
#include "cuda/tile_q4.cuh"

#define EXPERTS_Q4_BLOCKS 4     // on a processor, beside each other
#define EXPERTS_Q4_MOST   65536 // bytes of the planes of a tile's activations

#define OPEN_THREADS 512

static __global__ void __launch_bounds__(OPEN_THREADS)
    experts_open_kernel(const __grid_constant__ plane_input in, const __grid_constant__ plane_rows x,
                        const int32_t *ids, int n_pair, int n_expert, const __grid_constant__ pair_groups groups) {
    extern __shared__ int32_t lists[];
    begin_kernel();
    int64_t row = (int64_t)blockIdx.x - 1;
    if (row < 0)
        group_pairs(ids, n_pair, n_expert, PLANES_TILE, groups, lists);
    else
        make_planes<PLANES_TILE>(in, row, x.n_unit, planes_of_row(x, row), threadIdx.x / 32, OPEN_THREADS / 32);
}

struct experts_q4_job {
    struct expert_weights w[2];                           // gate and up, or down
    int n_matrix, n_used, n_unit, tile_outputs, n_across; // n_across: tiles of outputs of one matrix
    struct plane_rows x;                                  // of rows
    const float *gate, *up;                               // of pairs
    float *y[2];                                          // [pair][n_out]
    struct pair_groups groups;
};

// Tiles in order: pairs of an expert, its matrices, their outputs. A block has neighbouring ones.
static __device__ __forceinline__ struct q4_range experts_range(const struct experts_q4_job &job) {
    int64_t n = (int64_t)*job.groups.n_tile * job.n_matrix * job.n_across;
    return (struct q4_range){(int)(n * blockIdx.x / gridDim.x), (int)(n * (blockIdx.x + 1) / gridDim.x), 1};
}

struct experts_q4_place {
    struct pair_tile tile;
    int matrix, across;
};

static __device__ __forceinline__ struct experts_q4_place experts_place(const struct experts_q4_job &job, int tile) {
    int row_of_tiles = tile / job.n_across, pairs = row_of_tiles / job.n_matrix;
    return (struct experts_q4_place){job.groups.tile[pairs], row_of_tiles % job.n_matrix, tile % job.n_across};
}

// What both launches share.
struct experts_q4_work {
    static constexpr bool ARRANGED = false;
    const struct experts_q4_job &job;

    __device__ __forceinline__ int n_column(int tile) const { return experts_place(job, tile).tile.n; }
    __device__ __forceinline__ struct q4_matrix matrix(int tile, int place) const {
        struct experts_q4_place at = experts_place(job, tile);
        return q4_matrix_of(weight_of_expert(job.w[at.matrix], at.tile.expert),
                            at.across * job.tile_outputs + place * 16);
    }
    __device__ __forceinline__ void begin() const {}
    __device__ __forceinline__ int pair_of(const struct pair_tile &t, int n) const {
        return job.groups.list[t.first + min(n, t.n - 1)];
    }
    __device__ __forceinline__ void store(int tile, int m, int n, float sum) const {
        struct experts_q4_place at = experts_place(job, tile);
        int64_t n_out = job.w[0].first.n_out, o = (int64_t)at.across * job.tile_outputs + m;
        if (o < n_out) job.y[at.matrix][pair_of(at.tile, n) * n_out + o] = sum;
    }
};

// ---- gate and up ----

struct widen_work : experts_q4_work {
    __device__ __forceinline__ void rows(int tile, struct q4_rows<1> *r) const {
        struct pair_tile t = experts_place(job, tile).tile;
        q4_take_rows<1>(job.x, r, [&](int n) { return pair_of(t, n) / job.n_used; });
    }
};

static __global__ void __launch_bounds__(Q4_THREADS, EXPERTS_Q4_BLOCKS)
    experts_widen_kernel(const __grid_constant__ experts_q4_job job) {
    extern __shared__ __align__(16) char shared[];
    begin_kernel();
    struct widen_work work = {{job}};
    q4_walk<1, 1, PLANES_TILE, 1>(work, experts_range(job), job.n_unit, PLANES_TILE, shared);
}

// ---- down, of activations whose planes a block makes for the pairs of its tile ----

struct narrow_work : experts_q4_work {
    struct planes own; // of the tile's pairs
    int first;         // of the pairs that they are of

    // One unit of a pair's activations, by one warp.
    __device__ __forceinline__ void take_unit(const struct pair_tile &t, int column, int unit) const {
        int64_t at = (int64_t)pair_of(t, column) * 128 * job.n_unit + unit * 128 + threadIdx.x % 32 * 4;
        float4 g = *(const float4 *)(job.gate + at), u = *(const float4 *)(job.up + at);
        float4 h = make_float4(silu_of(g.x) * u.x, silu_of(g.y) * u.y, silu_of(g.z) * u.z, silu_of(g.w) * u.w);
        plane_store<PLANES_TILE>(h, 0, own.x + unit * PLANES_TILE * PLANES_UNIT_X + column * 128,
                                 own.notes + unit * PLANES_TILE + column);
    }
    __device__ __forceinline__ void rows(int tile, struct q4_rows<1> *r) {
        struct pair_tile t = experts_place(job, tile).tile;
        int lane = threadIdx.x % 32;
        if (t.first != first) { // for the whole block
            __syncthreads();
            for (int i = threadIdx.x / 32; i < t.n * job.n_unit; i += Q4_WARPS) take_unit(t, i % t.n, i / t.n);
            first = t.first;
            __syncthreads();
        }
        r->x = own.x;
        r->notes = (const char *)own.notes;
        r->x_at[0] = min(lane / 8, t.n - 1) * 128 + q4_input_at();
        r->note_at[0] = min(lane % 4, t.n - 1) * (int)sizeof(struct plane_note);
    }
};

static __host__ __device__ inline int narrow_bytes(int n_unit) {
    return PLANES_TILE * n_unit * (PLANES_UNIT_X + (int)sizeof(struct plane_note));
}

static __global__ void __launch_bounds__(Q4_THREADS, EXPERTS_Q4_BLOCKS)
    experts_narrow_kernel(const __grid_constant__ experts_q4_job job) {
    extern __shared__ __align__(16) char shared[];
    begin_kernel();
    char *own = shared + q4_team_bytes<1, 1>(PLANES_TILE);
    struct planes planes = {own, (struct plane_note *)(own + job.n_unit * PLANES_TILE * PLANES_UNIT_X)};
    struct narrow_work work = {{job}, planes, -1};
    q4_walk<1, 1, PLANES_TILE, 1>(work, experts_range(job), job.n_unit, PLANES_TILE, shared);
}

// ---- the launches ----

bool experts_q4_fit(const struct expert_matrices *w) {
    return w->gate.usual && w->up.usual && w->down.usual &&
           narrow_bytes((int)(w->down.first.n_in / PLANES_UNIT)) <= EXPERTS_Q4_MOST;
}

static void launch(struct cuda_device *d, const char *name, void (*kernel)(const experts_q4_job),
                   struct experts_q4_job *job, int64_t n_in, int64_t most_tiles, size_t more_bytes) {
    size_t bytes = (size_t)q4_team_bytes<1, 1>(PLANES_TILE) + more_bytes;
    job->n_unit = (int)(n_in / UNIT_INPUTS);
    job->tile_outputs = q4_tile_outputs(job->n_unit, 1);
    job->n_across = (int)ceil_div(job->w[0].first.n_out, job->tile_outputs);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    unsigned n_block = q4_blocks(d, EXPERTS_Q4_BLOCKS, bytes, most_tiles * job->n_matrix * job->n_across);
    cuda_start(d, name, kernel, dim3(n_block), Q4_THREADS, bytes, *job);
}

void experts_q4_rows(struct cuda_device *d, const struct experts_args *a, const struct expert_matrices *w,
                     const struct expert_q4_room *room) {
    int64_t n_row = a->x.n_row, hidden = a->x.n_col, width = w->gate.first.n_out;
    cuda_start(d, "experts, planes and groups", experts_open_kernel, dim3((unsigned)n_row + 1), OPEN_THREADS,
               group_shared_bytes(a->n_expert), plane_input_of(a->x, NULL, 0), room->x, a->ids, (int)n_row * a->n_used,
               a->n_expert, room->groups);
    struct experts_q4_job job = {};
    job.n_used = a->n_used;
    job.groups = room->groups;
    job.x = room->x;
    job.w[0] = w->gate;
    job.w[1] = w->up;
    job.n_matrix = 2;
    job.y[0] = room->gate;
    job.y[1] = room->up;
    launch(d, "experts, gate and up", experts_widen_kernel, &job, hidden, room->most_tiles, 0);
    job.w[0] = w->down;
    job.n_matrix = 1;
    job.gate = room->gate;
    job.up = room->up;
    job.y[0] = room->y;
    launch(d, "experts, down", experts_narrow_kernel, &job, width, room->most_tiles,
           (size_t)narrow_bytes((int)(width / PLANES_UNIT)));
}
