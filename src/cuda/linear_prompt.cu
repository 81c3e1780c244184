// linear in FORM_PROMPT: see product_prompt.cuh, and linear_expanded.cu for large matrices. One launch a part.
#include "cuda/linear.cuh"
#include "cuda/planes.cuh"
#include "cuda/rows.cuh"
#include "cuda/tile_prompt.cuh"

#define TILE_ROWS 128

struct prompt_job {
    struct weight_view w;
    struct prompt_rows x;
    int64_t n_row;
    struct tensor out, residual;
    bool wide; // outputs may be stored two at a time
};

static __device__ __forceinline__ void store_one(const struct prompt_job &job, int64_t t, int64_t o, float y) {
    if (o >= job.w.n_out) return;
    if (job.residual.data != NULL) y += tensor_load(job.residual, t, o);
    tensor_store(job.out, t, o, y);
}

static __device__ __forceinline__ void store_pair(const struct prompt_job &job, int64_t t, int64_t o, float y0,
                                                  float y1) {
    if (t >= job.n_row) return;
    float scale = job.x.scales[t] * (1 / EXPANDED_SCALE);
    y0 *= scale;
    y1 *= scale;
    if (!job.wide) {
        store_one(job, t, o, y0);
        store_one(job, t, o + 1, y1);
        return;
    }
    if (o >= job.w.n_out) return;
    if (job.residual.data != NULL) {
        float2 r = *(const float2 *)((const float *)job.residual.data + t * job.residual.stride + o);
        y0 += r.x;
        y1 += r.y;
    }
    *(float2 *)((float *)job.out.data + t * job.out.stride + o) = make_float2(y0, y1);
}

template <int BITS, int TERMS, bool ARRANGED>
static __global__ void __launch_bounds__(PROMPT_THREADS, 2)
    linear_prompt_kernel(const __grid_constant__ prompt_job job) {
    extern __shared__ __align__(16) char shared[];
    // Neighbouring blocks share the tile of weights, which then stays in the cache while the rows pass by.
    int64_t t0 = (int64_t)blockIdx.x * (TILE_ROWS / TERMS), o0 = (int64_t)blockIdx.y * PROMPT_OUTPUTS;
    struct prompt_sums<TILE_ROWS> sums;
    auto row_of = [&](int i) -> const __half * {
        int64_t t = t0 + row_of_tile<TERMS>(i);
        return t < job.n_row ? job.x.rows + t * job.x.stride + term_of_tile<TERMS>(i) * job.x.second : NULL;
    };
    multiply_tile<BITS, TILE_ROWS, ARRANGED>(job.w, o0, row_of, shared, sums);
    each_pair<TILE_ROWS, TERMS>(sums,
                                [&](int i, int j, float y0, float y1) { store_pair(job, t0 + i, o0 + j, y0, y1); });
}

static bool pairs_are_aligned(const struct tensor &t) {
    return t.dtype == DTYPE_F32 && (uintptr_t)t.data % 8 == 0 && t.stride % 2 == 0;
}

template <int BITS, int TERMS, bool ARRANGED>
static void launch_terms(struct cuda_device *d, const struct prompt_job &job) {
    auto kernel = linear_prompt_kernel<BITS, TERMS, ARRANGED>;
    size_t bytes = prompt_shared_bytes<TILE_ROWS>();
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    dim3 grid((unsigned)ceil_div(job.n_row, TILE_ROWS / TERMS), (unsigned)ceil_div(job.w.n_out, PROMPT_OUTPUTS));
    kernel<<<grid, PROMPT_THREADS, bytes, d->stream>>>(job);
    cuda_launched(d, "linear, prompt");
}

template <int BITS, bool ARRANGED = false>
static void launch_prompt(struct cuda_device *d, const struct prompt_job &job) {
    if (job.x.second != 0)
        launch_terms<BITS, 2, ARRANGED>(d, job);
    else
        launch_terms<BITS, 1, ARRANGED>(d, job);
}

static void launch_class(struct cuda_device *d, const struct prompt_job &job) {
    switch (job.w.weight_class) {
    case CLASS_Q2: launch_prompt<2>(d, job); break;
    case CLASS_Q3: launch_prompt<3>(d, job); break;
    case CLASS_Q4: (job.w.arranged ? launch_prompt<4, true> : launch_prompt<4>)(d, job); break;
    case CLASS_Q5: launch_prompt<5>(d, job); break;
    case CLASS_Q6: launch_prompt<6>(d, job); break;
    case CLASS_Q8: launch_prompt<8>(d, job); break;
    case CLASS_BF16: launch_prompt<CLASS_BF16>(d, job); break;
    case CLASS_F16: launch_prompt<CLASS_F16>(d, job); break;
    default:
        must(job.w.weight_class == CLASS_F32);
        launch_prompt<CLASS_F32>(d, job);
        break;
    }
}

void linear_prompt(struct cuda_device *d, const struct linear_args *a) {
    struct prompt_job job;
    struct expanded_sum sum = {};
    struct carver c = scratch_of(d);
    void *room = carve(&c, d->expanded_bytes);
    carve_prompt_rows(&c, a->x.n_row, a->x.n_col, prompt_terms(&d->limits), &job.x);
    scratch_done(d, &c);
    if (a->up.data != NULL)
        prepare_activated(d, a->x, a->up, &job.x);
    else
        prepare_prompt(d, a->x, a->norm_weight, a->norm_eps, &job.x);
    job.n_row = a->x.n_row;
    job.residual = a->residual;
    sum.x = job.x;
    for (int p = 0; p < a->n_parts; p++) {
        if (linear_expanded_fits(d, a->part[p].w, a->part[p].out, a->residual)) {
            linear_expanded(d, a->part[p].w, a->part[p].out, a->residual, room, &sum);
            continue;
        }
        job.w = weight_view_of(a->part[p].w);
        job.out = a->part[p].out;
        job.wide = pairs_are_aligned(job.out) && job.w.n_out % 2 == 0 &&
                   (job.residual.data == NULL || pairs_are_aligned(job.residual));
        launch_class(d, job);
    }
    linear_expanded_finish(d, &sum);
}

size_t need_expanded(const struct device_limits *l) {
    size_t bytes = expanded_bytes(l->max_out, l->max_in);
    return bytes < EXPANDED_MOST ? bytes : EXPANDED_MOST;
}

size_t need_linear(const struct device_limits *l) {
    struct carver rows = {NULL, 0}, prompt = {NULL, 0};
    struct prepared p;
    struct prompt_rows x;
    struct plane_rows planes;
    carve(&prompt, need_expanded(l));
    carve_prepared(&rows, l->max_round_rows, l->max_in, true, &p);
    carve_planes(&rows, l->max_round_rows, l->max_in, &planes);
    carve_prompt_rows(&prompt, l->max_rows, l->max_in, prompt_terms(l), &x);
    return rows.used > prompt.used ? rows.used : prompt.used;
}

void cuda_linear(struct device *base, const struct linear_args *a) {
    bool rows = a->form == FORM_ROWS;
    struct cuda_device *d = rows ? cuda_of_product(base) : cuda_of(base);
    if (d->failure != cudaSuccess || a->x.n_row == 0) return;
    if (rows)
        linear_rows(d, a);
    else
        linear_prompt(d, a);
}
