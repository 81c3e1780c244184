// linear in FORM_ROWS: see product_rows.cuh and product_q4.cuh. One launch for all parts whose weights are of one
// class.
#include "cuda/linear.cuh"
#include "cuda/product_q4.cuh"

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

static __device__ __forceinline__ void store_sum(const struct rows_job &job, const struct rows_part &part, int64_t t,
                                                 int64_t o, float sum) {
    if (t >= job.n_row || o >= part.w.n_out) return;
    if (job.residual.data != NULL) sum += tensor_load(job.residual, t, o);
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
                  [&](int m, int n, float sum) { store_sum(job, part, t0 + n, o0 + m, sum); });
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

// ---- the usual kind of weights: product_q4.cuh ----

template <int NT, bool ONES, bool SPLIT>
static __global__ void __launch_bounds__(32 * ROWS_MAX_WARPS) linear_q4_kernel(const __grid_constant__ rows_job job) {
    extern __shared__ __align__(16) char shared[];
    int p = 0;
    while (p + 1 < job.n_part && (int)blockIdx.x >= job.part[p + 1].first_tile) p++;
    const struct rows_part &part = job.part[p];
    int64_t o0 = (int64_t)((int)blockIdx.x - part.first_tile) * 16;
    int t0 = blockIdx.y * 8 * NT, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    char *stages = shared + warp * Q4_STAGES * Q4_UNIT_BYTES;
    let_next_start();
    struct q4_source q = q4_fetch_first(part.w, o0, stages, warp, job.n_warp);
    wait_for_earlier();

    struct rows_source<NT> x;
    float y[NT][4];
    open_rows<NT>(job, t0, lane, job.x.sums64, &x);
    q4_sum_units<NT, ONES, SPLIT>(q, (int)(part.w.n_in / UNIT_INPUTS), x, stages, warp, job.n_warp, y);
    add_parts<NT>((float *)shared, warp, job.n_warp, y,
                  [&](int m, int n, float sum) { store_sum(job, part, t0 + n, o0 + m, sum); });
}

template <int NT, bool ONES, bool SPLIT>
static void launch_q4(struct cuda_device *d, const struct rows_job &job, int n_tile) {
    size_t bytes = q4_shared_bytes<NT>(job.n_warp);
    cudaFuncSetAttribute(linear_q4_kernel<NT, ONES, SPLIT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    dim3 grid((unsigned)n_tile, (unsigned)ceil_div(job.n_row, 8 * NT));
    cuda_start(d, "linear, rows", linear_q4_kernel<NT, ONES, SPLIT>, grid, 32 * job.n_warp, bytes, job);
}

template <bool ONES, bool SPLIT>
static void choose_q4_width(struct cuda_device *d, const struct rows_job &job, int n_tile) {
    if (job.n_row <= 8)
        launch_q4<1, ONES, SPLIT>(d, job, n_tile);
    else if (job.n_row <= 16)
        launch_q4<2, ONES, SPLIT>(d, job, n_tile);
    else
        launch_q4<4, ONES, SPLIT>(d, job, n_tile);
}

static void launch_usual(struct cuda_device *d, const struct rows_job &job, int n_tile) {
    if (job.x.sums64 == NULL)
        choose_q4_width<true, false>(d, job, n_tile);
    else if (job.x.split)
        choose_q4_width<false, true>(d, job, n_tile);
    else
        choose_q4_width<false, false>(d, job, n_tile);
}

// ---- the call ----

static bool are_alike(const struct weight_view &a, const struct weight_view &b) {
    return a.weight_class == b.weight_class && (a.group == 32) == (b.group == 32) && is_usual_q4(a) == is_usual_q4(b);
}

// Brings the rows into the form that the parts want: where all weights are of the usual kind, rows that need no norm
// are taken as they are, and others are put into the order of the code pairs.
static void take_rows(struct cuda_device *d, const struct linear_args *a, struct prepared *x) {
    bool usual = true;
    for (int p = 0; p < a->n_parts; p++) usual = usual && is_usual_q4(weight_view_of(a->part[p].w));
    if (usual && a->norm_weight == NULL && rows_are_wide(a->x)) {
        *x = (struct prepared){(__nv_bfloat16 *)a->x.data, a->x.stride, a->x.n_col, NULL, NULL, 0, false};
        return;
    }
    struct carver c = scratch_of(d);
    carve_prepared(&c, a->x.n_row, a->x.n_col, true, x);
    scratch_done(d, &c);
    x->split = usual;
    prepare_rows(d, a->x, a->norm_weight, a->norm_eps, x);
}

void linear_rows(struct cuda_device *d, const struct linear_args *a) {
    struct rows_job job;
    job.residual = a->residual;
    job.n_row = a->x.n_row;
    take_rows(d, a, &job.x);
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
        if (is_usual_q4(kind))
            launch_usual(d, job, n_tile);
        else
            launch_class(d, job, n_tile);
    }
}
