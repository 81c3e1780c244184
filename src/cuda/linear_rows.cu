// linear in FORM_ROWS: see product_rows.cuh and, for the usual kind of weights, linear_q4.cuh, for narrow matrices of 8
// bits linear_q8.cuh. One launch for all parts whose weights are of one class.
#include "cuda/linear.cuh"
#include "cuda/linear_q8.cuh"
#include "cuda/series.cuh"
#include "cuda/tile_rows.cuh"

struct rows_job {
    struct rows_part part[LINEAR_MAX_PARTS];
    int n_part, n_warp;
    struct tensor residual;
    struct prepared x;
    int64_t n_row;
};

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

// ---- the call ----

static bool are_alike(const struct weight_view &a, const struct weight_view &b) {
    return a.weight_class == b.weight_class && (a.group == 32) == (b.group == 32) &&
           has_plane_rows(a) == has_plane_rows(b) && a.arranged == b.arranged;
}

// Whether the call before has left the rows' planes.
static bool are_left(const struct cuda_device *d, const struct linear_args *a) {
    const struct left_rows *l = &d->found;
    return l->data != NULL && l->data == a->x.data && l->n_row == a->x.n_row && l->n_col == a->x.n_col &&
           (l->stride == a->x.stride || l->n_row == 1) && a->x.dtype == DTYPE_F32 && a->norm_weight == NULL;
}

// Brings the rows into the forms that the parts want. Planes come first in the scratch, where others leave them; for
// those that nobody left there is room.
static void take_rows(struct cuda_device *d, const struct linear_args *a, struct q4_job *usual, struct prepared *x) {
    int n_usual = 0;
    for (int p = 0; p < a->n_parts; p++) n_usual += has_plane_rows(weight_view_of(a->part[p].w));
    struct carver c = scratch_of(d);
    usual->in = plane_input_of(a->x, a->norm_weight, a->norm_eps);
    usual->made = are_left(d, a);
    if (n_usual > 0) carve_planes(&c, a->x.n_row, a->x.n_col, &usual->x);
    if (n_usual < a->n_parts) carve_prepared(&c, a->x.n_row, a->x.n_col, true, x);
    scratch_done(d, &c);
    if (n_usual < a->n_parts) prepare_rows(d, a->x, a->norm_weight, a->norm_eps, x);
}

// Whether the product waits for what follows. All its parts are of the usual kind, and as arranged.
static bool put_aside(struct cuda_device *d, const struct linear_args *a, struct q4_job *usual) {
    for (int p = 0; p < a->n_parts; p++)
        usual->part[p] = (struct rows_part){weight_view_of(a->part[p].w), a->part[p].out, 0};
    usual->n_part = a->n_parts;
    usual->n_unit = (int)(a->x.n_col / UNIT_INPUTS);
    return series_add(d, usual, NULL);
}

void linear_rows(struct cuda_device *d, const struct linear_args *a) {
    struct rows_job job;
    struct q4_job usual = {};
    bool all_usual = true;
    for (int p = 0; p < a->n_parts; p++)
        all_usual =
            all_usual && is_usual_q4(weight_view_of(a->part[p].w)) && a->part[p].w->arranged == a->part[0].w->arranged;
    // First: other kinds have their rows prepared at once, and what waits may write those rows, and uses the scratch.
    if (!all_usual) series_send(d);
    job.residual = usual.residual = a->residual;
    job.n_row = usual.n_row = a->x.n_row;
    take_rows(d, a, &usual, &job.x);
    if (all_usual && put_aside(d, a, &usual)) return;
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
        if (!has_plane_rows(kind)) {
            launch_class(d, job, n_tile);
            continue;
        }
        usual.n_part = job.n_part;
        usual.n_unit = (int)(kind.n_in / UNIT_INPUTS);
        for (int p = 0; p < job.n_part; p++) usual.part[p] = job.part[p];
        if (is_usual_q4(kind))
            linear_q4(d, &usual);
        else
            linear_q8(d, &usual);
    }
}
