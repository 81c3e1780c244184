// linear in FORM_ROWS: see product_rows.cuh and, for the usual kind of weights, tile_q4.cuh. One launch for all parts
// whose weights are of one class.
#include "cuda/linear.cuh"
#include "cuda/planes_make.cuh"
#include "cuda/tile_q4.cuh"
#include "cuda/tile_rows.cuh"

#define OWN_MOST 65536 // bytes of the planes of one row that a block may hold beside its stages

struct rows_part {
    struct weight_view w;
    struct tensor out;
    int first_tile; // of the launch's tiles
};

struct rows_job {
    struct rows_part part[LINEAR_MAX_PARTS];
    int n_part, n_warp;
    struct tensor residual;
    struct prepared x;
    int64_t n_row;
};

static __device__ __forceinline__ void store_sum(const struct tensor &residual, const struct rows_part &part,
                                                 int64_t n_row, int64_t t, int64_t o, float sum) {
    if (t >= n_row || o >= part.w.n_out) return;
    if (residual.data != NULL) sum += tensor_load(residual, t, o);
    tensor_store(part.out, t, o, sum);
}

template <int NT>
static __device__ __forceinline__ void open_rows(const struct rows_job &job, int t0, int lane, const float *sums,
                                                 struct rows_source<NT> *x) {
#pragma unroll
    for (int j = 0; j < NT; j++) {
        int64_t t = t0 + 8 * j + lane / 4;
        x->row[j] = t < job.n_row ? job.x.rows + t * job.x.stride : NULL;
    }
    x->second = job.x.second;
    x->sums = sums + t0 + 2 * (lane % 4);
    x->sums_stride = job.x.n_row_padded;
}

template <int BITS, int SG, int NT>
static __global__ void __launch_bounds__(32 * ROWS_MAX_WARPS) linear_rows_kernel(const __grid_constant__ rows_job job) {
    extern __shared__ __align__(16) char shared[];
    int p = 0;
    while (p + 1 < job.n_part && (int)blockIdx.x >= job.part[p + 1].first_tile) p++;
    const struct rows_part &part = job.part[p];
    int64_t o0 = (int64_t)((int)blockIdx.x - part.first_tile) * 16;
    int t0 = blockIdx.y * 8 * NT, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    char *stages = shared + warp * unit_stages<BITS>() * unit_bytes<BITS>();
    let_next_start();
    fetch_first_units<BITS>(part.w, o0, stages, warp, job.n_warp);
    wait_for_earlier();

    struct rows_source<NT> x;
    float y[NT][4];
    open_rows<NT>(job, t0, lane, SG == 32 ? job.x.sums32 : job.x.sums64, &x);
    sum_units<BITS, SG, NT, false>(part.w, o0, x, stages, warp, job.n_warp, y);
    add_parts<NT>((float *)shared, warp, job.n_warp, y,
                  [&](int m, int n, float sum) { store_sum(job.residual, part, job.n_row, t0 + n, o0 + m, sum); });
}

template <int BITS, int SG, int NT>
static void launch_rows(struct cuda_device *d, const struct rows_job &job, int n_tile) {
    size_t bytes = rows_shared_bytes<BITS, NT>(job.n_warp);
    cudaFuncSetAttribute(linear_rows_kernel<BITS, SG, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    dim3 grid((unsigned)n_tile, (unsigned)ceil_div(job.n_row, 8 * NT));
    cuda_start(d, "linear, rows", linear_rows_kernel<BITS, SG, NT>, grid, 32 * job.n_warp, bytes, job);
}

// Wider tiles of rows read the weights less often; a row's bits are the same in each.
template <int BITS, int SG> static void choose_width(struct cuda_device *d, const struct rows_job &job, int n_tile) {
    if (job.n_row <= 8)
        launch_rows<BITS, SG, 1>(d, job, n_tile);
    else if (job.n_row <= 16)
        launch_rows<BITS, SG, 2>(d, job, n_tile);
    else
        launch_rows<BITS, SG, 4>(d, job, n_tile);
}

static void launch_class(struct cuda_device *d, const struct rows_job &job, int n_tile) {
    bool narrow = job.part[0].w.group == 32;
    switch (job.part[0].w.weight_class) {
    case CLASS_Q2: narrow ? choose_width<2, 32>(d, job, n_tile) : choose_width<2, 64>(d, job, n_tile); break;
    case CLASS_Q3: narrow ? choose_width<3, 32>(d, job, n_tile) : choose_width<3, 64>(d, job, n_tile); break;
    case CLASS_Q4: narrow ? choose_width<4, 32>(d, job, n_tile) : choose_width<4, 64>(d, job, n_tile); break;
    case CLASS_Q5: narrow ? choose_width<5, 32>(d, job, n_tile) : choose_width<5, 64>(d, job, n_tile); break;
    case CLASS_Q6: narrow ? choose_width<6, 32>(d, job, n_tile) : choose_width<6, 64>(d, job, n_tile); break;
    case CLASS_Q8: narrow ? choose_width<8, 32>(d, job, n_tile) : choose_width<8, 64>(d, job, n_tile); break;
    case CLASS_BF16: choose_width<CLASS_BF16, 64>(d, job, n_tile); break;
    case CLASS_F16: choose_width<CLASS_F16, 64>(d, job, n_tile); break;
    default:
        must(job.part[0].w.weight_class == CLASS_F32);
        choose_width<CLASS_F32, 64>(d, job, n_tile);
        break;
    }
}

// ---- the usual kind of weights: tile_q4.cuh ----

struct q4_job {
    struct rows_part part[LINEAR_MAX_PARTS];
    int n_part, n_tile, n_unit, tile_outputs;
    struct tensor residual;
    struct plane_input in; // OWN: the row itself
    struct plane_rows x;
    int64_t n_row;
};

// OWN: one row, of which each block makes its own planes, in shared memory.
template <int MT, int NT, bool OWN> struct q4_work {
    const struct q4_job &job;
    struct plane_rows own; // OWN: of one row
    uint2 *room;
    int t0;

    __device__ __forceinline__ const struct rows_part &part_of(int tile) const {
        int p = 0;
        while (p + 1 < job.n_part && tile >= job.part[p + 1].first_tile) p++;
        return job.part[p];
    }
    __device__ __forceinline__ int n_column(int tile) const { return OWN ? 1 : min((int)job.n_row - t0, 8 * NT); }
    __device__ __forceinline__ struct q4_matrix matrix(int tile, int place) const {
        const struct rows_part &p = part_of(tile);
        return q4_matrix_of(p.w, (int64_t)(tile - p.first_tile) * job.tile_outputs + place * 16 * MT);
    }
    __device__ __forceinline__ void begin() const {
        wait_for_earlier();
        if (!OWN) return;
        make_planes<1>(job.in, 0, (struct planes){own.x, own.sums, own.scales}, room);
        __syncthreads();
    }
    __device__ __forceinline__ void rows(int tile, struct q4_rows<NT> *r) const {
#pragma unroll
        for (int j = 0; j < NT; j++) {
            if (OWN)
                q4_take_row((struct planes){own.x, own.sums, own.scales}, &r->x[j], &r->sums[j]);
            else
                q4_take_row(planes_of_row(job.x, min(t0 + 8 * j + (int)threadIdx.x % 32 / 4, (int)job.n_row - 1)),
                            &r->x[j], &r->sums[j]);
        }
    }
    __device__ __forceinline__ void store(int tile, int m, int n, float sum) const {
        const struct rows_part &p = part_of(tile);
        float scale = OWN ? own.scales[0] : job.x.scales[t0 + n];
        store_sum(job.residual, p, job.n_row, t0 + n, (int64_t)(tile - p.first_tile) * job.tile_outputs + m,
                  sum * scale);
    }
};

static __host__ __device__ inline int own_bytes(int n_group) {
    return planes_x_bytes(n_group) + planes_sum_bytes(n_group) + (Q4_WARPS + 1) * (int)sizeof(uint2);
}

template <int MT, int NT, bool OWN, int BLOCKS>
static __global__ void __launch_bounds__(32 * Q4_WARPS, BLOCKS) linear_q4_kernel(const __grid_constant__ q4_job job) {
    extern __shared__ __align__(16) char shared[];
    constexpr int R = OWN ? 1 : PLANES_TILE;
    let_next_start();
    char *own = shared + q4_stage_bytes<MT>();
    int n_group = 2 * job.n_unit;
    struct q4_work<MT, NT, OWN> work = {
        job, {}, NULL, (int)blockIdx.y * 8 * NT
    };
    if (OWN) {
        work.room = (uint2 *)(own + planes_x_bytes(n_group) + planes_sum_bytes(n_group));
        work.own.x = own;
        work.own.sums = own + planes_x_bytes(n_group);
        work.own.scales = (float *)(work.room + Q4_WARPS);
        own += own_bytes(n_group);
    }
    int n_column = OWN ? 1 : 8 * NT;
    q4_walk<MT, NT, R>(work, (struct q4_range){(int)blockIdx.x, job.n_tile, (int)gridDim.x}, job.n_unit, shared,
                       (float *)own, Q4_WARPS * n_column * 16 * MT);
}

template <int MT, int NT, bool OWN, int BLOCKS> static void launch_q4(struct cuda_device *d, struct q4_job &job) {
    size_t bytes = (size_t)(q4_stage_bytes<MT>() + q4_part_bytes<MT, NT>(OWN ? 1 : 8 * NT) +
                            (OWN ? own_bytes(2 * job.n_unit) : 0));
    job.tile_outputs = q4_block_outputs(job.n_unit, MT);
    job.n_tile = 0;
    for (int p = 0; p < job.n_part; p++) {
        job.part[p].first_tile = job.n_tile;
        job.n_tile += (int)ceil_div(job.part[p].w.n_out, job.tile_outputs);
    }
    cudaFuncSetAttribute(linear_q4_kernel<MT, NT, OWN, BLOCKS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)bytes);
    dim3 grid(q4_blocks(d, BLOCKS, bytes, job.n_tile), (unsigned)ceil_div(job.n_row, 8 * NT));
    cuda_start(d, "linear, rows", linear_q4_kernel<MT, NT, OWN, BLOCKS>, grid, 32 * Q4_WARPS, bytes, job);
}

// A row's bits are the same in each.
static void launch_usual(struct cuda_device *d, struct q4_job &job) {
    int64_t n_out = 0;
    for (int p = 0; p < job.n_part; p++) n_out += job.part[p].w.n_out;
    if (job.x.x == NULL)
        launch_q4<1, 1, true, 4>(d, job);
    else if (job.n_row <= 8)
        launch_q4<1, 1, false, 4>(d, job);
    else if (job.n_row <= 16 && n_out < (int64_t)32 * d->n_processors)
        launch_q4<1, 2, false, 2>(d, job);
    else if (job.n_row <= 16)
        launch_q4<2, 2, false, 2>(d, job);
    else
        launch_q4<2, 4, false, 1>(d, job);
}

// ---- the call ----

static bool are_alike(const struct weight_view &a, const struct weight_view &b) {
    return a.weight_class == b.weight_class && (a.group == 32) == (b.group == 32) && is_usual_q4(a) == is_usual_q4(b);
}

// Blocks make the planes of a single row themselves, where they have the room: a launch before them takes longer.
static bool is_own(const struct linear_args *a) {
    return a->x.n_row == 1 && own_bytes((int)(a->x.n_col / 64)) <= OWN_MOST;
}

// Brings the rows into the forms that the parts want.
static void take_rows(struct cuda_device *d, const struct linear_args *a, struct q4_job *usual, struct prepared *x) {
    int n_usual = 0;
    for (int p = 0; p < a->n_parts; p++) n_usual += is_usual_q4(weight_view_of(a->part[p].w));
    struct carver c = scratch_of(d);
    if (n_usual < a->n_parts) carve_prepared(&c, a->x.n_row, a->x.n_col, true, x);
    usual->in = plane_input_of(a->x, a->norm_weight, a->norm_eps);
    usual->x.x = NULL;
    bool planes = n_usual > 0 && !is_own(a);
    if (planes) carve_planes(&c, a->x.n_row, a->x.n_col, &usual->x);
    scratch_done(d, &c);
    if (n_usual < a->n_parts) prepare_rows(d, a->x, a->norm_weight, a->norm_eps, x);
    if (planes) make_plane_rows(d, usual->in, usual->x);
}

void linear_rows(struct cuda_device *d, const struct linear_args *a) {
    struct rows_job job;
    struct q4_job usual;
    job.residual = usual.residual = a->residual;
    job.n_row = usual.n_row = a->x.n_row;
    take_rows(d, a, &usual, &job.x);
    bool done[LINEAR_MAX_PARTS] = {false};
    for (int first = 0; first < a->n_parts; first++) {
        if (done[first]) continue;
        struct weight_view kind = weight_view_of(a->part[first].w);
        int n_tile = 0;
        job.n_part = 0;
        job.n_warp = rows_warps(a->x.n_col, kind.weight_class);
        for (int p = first; p < a->n_parts; p++) {
            struct weight_view w = weight_view_of(a->part[p].w);
            if (done[p] || !are_alike(kind, w)) continue;
            done[p] = true;
            job.part[job.n_part++] = (struct rows_part){w, a->part[p].out, n_tile};
            n_tile += (int)ceil_div(w.n_out, 16);
        }
        if (!is_usual_q4(kind)) {
            launch_class(d, job, n_tile);
            continue;
        }
        usual.n_part = job.n_part;
        usual.n_unit = (int)(kind.n_in / UNIT_INPUTS);
        for (int p = 0; p < job.n_part; p++) usual.part[p] = job.part[p];
        launch_usual(d, usual);
    }
}
