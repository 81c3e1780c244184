// Products of pairs with their experts' matrices, in both forms.
#include "cuda/experts.cuh"
#include "cuda/product_q4.cuh"
#include "cuda/tile_prompt.cuh"
#include "cuda/tile_rows.cuh"

// ---- FORM_ROWS: up to 8 pairs and 16 outputs a block ----

struct rows_tile {
    struct pair_tile tile;
    struct weight_view w;
    const int32_t *pairs;
    float *y;
};

// False: this block has nothing to do.
static __device__ __forceinline__ bool open_tile(const struct expert_product &p, struct rows_tile *t,
                                                 struct rows_source<1> *x) {
    if ((int)blockIdx.y >= *p.groups.n_tile) return false;
    int column = threadIdx.x % 32 / 4;
    t->tile = p.groups.tile[blockIdx.y];
    t->w = weight_of_expert(p.w[blockIdx.z], t->tile.expert);
    t->pairs = p.groups.list + t->tile.first;
    t->y = p.y[blockIdx.z];
    x->row[0] = column < t->tile.n ? p.x + (int64_t)(t->pairs[column] / p.x_divisor) * p.x_stride : NULL;
    x->sums = NULL;
    x->sums_stride = 0;
    return true;
}

static __device__ __forceinline__ void store_sum(const struct rows_tile &t, int n, int64_t o, float sum) {
    if (n < t.tile.n && o < t.w.n_out) t.y[(int64_t)t.pairs[n] * t.w.n_out + o] = sum;
}

static __global__ void __launch_bounds__(32 * ROWS_MAX_WARPS)
    experts_q4_kernel(const __grid_constant__ expert_product p) {
    extern __shared__ __align__(16) char shared[];
    struct rows_tile t;
    struct rows_source<1> x;
    begin_kernel();
    if (!open_tile(p, &t, &x)) return;
    int64_t o0 = (int64_t)blockIdx.x * 16;
    int warp = threadIdx.x / 32;
    float y[1][4];
    char *stages = shared + warp * Q4_STAGES * Q4_UNIT_BYTES;
    struct q4_source q = q4_fetch_first(t.w, o0, stages, warp, p.n_warp);
    q4_sum_units<1, true, false>(q, (int)(t.w.n_in / UNIT_INPUTS), x, stages, warp, p.n_warp, y);
    add_parts<1>((float *)shared, warp, p.n_warp, y, [&](int m, int n, float sum) { store_sum(t, n, o0 + m, sum); });
}

template <int BITS, int SG>
static __global__ void __launch_bounds__(32 * ROWS_MAX_WARPS)
    experts_rows_kernel(const __grid_constant__ expert_product p) {
    extern __shared__ __align__(16) char shared[];
    struct rows_tile t;
    struct rows_source<1> x;
    begin_kernel();
    if (!open_tile(p, &t, &x)) return;
    int64_t o0 = (int64_t)blockIdx.x * 16;
    int warp = threadIdx.x / 32;
    float y[1][4];
    char *stages = shared + warp * unit_stages<BITS>() * unit_bytes<BITS>();
    fetch_first_units<BITS>(t.w, o0, stages, warp, p.n_warp);
    sum_units<BITS, SG, 1, true>(t.w, o0, x, stages, warp, p.n_warp, y);
    add_parts<1>((float *)shared, warp, p.n_warp, y, [&](int m, int n, float sum) { store_sum(t, n, o0 + m, sum); });
}

static dim3 rows_grid(const struct expert_product *p, int64_t most_tiles) {
    return dim3((unsigned)ceil_div(p->w[0].first.n_out, 16), (unsigned)most_tiles, (unsigned)p->n_matrix);
}

static void launch_q4(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles) {
    size_t bytes = q4_shared_bytes<1>(p->n_warp);
    cudaFuncSetAttribute(experts_q4_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    cuda_start(d, "experts, rows", experts_q4_kernel, rows_grid(p, most_tiles), 32 * p->n_warp, bytes, *p);
}

template <int BITS, int SG>
static void launch_rows(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles) {
    size_t bytes = rows_shared_bytes<BITS, 1>(p->n_warp);
    cudaFuncSetAttribute(experts_rows_kernel<BITS, SG>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    cuda_start(d, "experts, rows", experts_rows_kernel<BITS, SG>, rows_grid(p, most_tiles), 32 * p->n_warp, bytes, *p);
}

template <int BITS>
static void launch_rows_of(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles) {
    if (p->w[0].first.group == 32)
        launch_rows<BITS, 32>(d, p, most_tiles);
    else
        launch_rows<BITS, 64>(d, p, most_tiles);
}

void experts_product_rows(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles) {
    if (p->usual) {
        launch_q4(d, p, most_tiles);
        return;
    }
    switch (p->w[0].first.weight_class) {
    case CLASS_Q2: launch_rows_of<2>(d, p, most_tiles); break;
    case CLASS_Q3: launch_rows_of<3>(d, p, most_tiles); break;
    case CLASS_Q4: launch_rows_of<4>(d, p, most_tiles); break;
    case CLASS_Q5: launch_rows_of<5>(d, p, most_tiles); break;
    case CLASS_Q6: launch_rows_of<6>(d, p, most_tiles); break;
    case CLASS_Q8: launch_rows_of<8>(d, p, most_tiles); break;
    case CLASS_BF16: launch_rows<CLASS_BF16, 64>(d, p, most_tiles); break;
    case CLASS_F16: launch_rows<CLASS_F16, 64>(d, p, most_tiles); break;
    default:
        must(p->w[0].first.weight_class == CLASS_F32);
        launch_rows<CLASS_F32, 64>(d, p, most_tiles);
        break;
    }
}

// ---- FORM_PROMPT: up to 64 pairs and 128 outputs a block ----

template <int BITS>
static __global__ void __launch_bounds__(PROMPT_THREADS, 2)
    experts_prompt_kernel(const __grid_constant__ expert_product p) {
    extern __shared__ __align__(16) char shared[];
    if ((int)blockIdx.y >= *p.groups.n_tile) return;
    const struct pair_tile tile = p.groups.tile[blockIdx.y];
    struct weight_view w = weight_of_expert(p.w[blockIdx.z], tile.expert);
    float *y_of = p.y[blockIdx.z];
    const int32_t *pairs = p.groups.list + tile.first;
    int64_t o0 = (int64_t)blockIdx.x * PROMPT_OUTPUTS;
    struct prompt_sums<EXPERT_TILE_PROMPT> sums;
    multiply_tile<BITS, EXPERT_TILE_PROMPT>(
        w, o0, [&](int i) { return i < tile.n ? p.x + (int64_t)(pairs[i] / p.x_divisor) * p.x_stride : NULL; }, shared,
        sums);
    each_pair<EXPERT_TILE_PROMPT>(sums, [&](int i, int j, float y0, float y1) {
        if (i >= tile.n) return;
        float *to = y_of + (int64_t)pairs[i] * w.n_out + o0 + j;
        if (o0 + j < w.n_out) to[0] = y0;
        if (o0 + j + 1 < w.n_out) to[1] = y1;
    });
}

template <int BITS>
static void launch_prompt(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles) {
    size_t bytes = prompt_shared_bytes<EXPERT_TILE_PROMPT>();
    cudaFuncSetAttribute(experts_prompt_kernel<BITS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    dim3 grid((unsigned)ceil_div(p->w[0].first.n_out, PROMPT_OUTPUTS), (unsigned)most_tiles, (unsigned)p->n_matrix);
    experts_prompt_kernel<BITS><<<grid, PROMPT_THREADS, bytes, d->stream>>>(*p);
    cuda_launched(d, "experts, prompt");
}

void experts_product_prompt(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles) {
    switch (p->w[0].first.weight_class) {
    case CLASS_Q2: launch_prompt<2>(d, p, most_tiles); break;
    case CLASS_Q3: launch_prompt<3>(d, p, most_tiles); break;
    case CLASS_Q4: launch_prompt<4>(d, p, most_tiles); break;
    case CLASS_Q5: launch_prompt<5>(d, p, most_tiles); break;
    case CLASS_Q6: launch_prompt<6>(d, p, most_tiles); break;
    case CLASS_Q8: launch_prompt<8>(d, p, most_tiles); break;
    case CLASS_BF16: launch_prompt<CLASS_BF16>(d, p, most_tiles); break;
    case CLASS_F16: launch_prompt<CLASS_F16>(d, p, most_tiles); break;
    default:
        must(p->w[0].first.weight_class == CLASS_F32);
        launch_prompt<CLASS_F32>(d, p, most_tiles);
        break;
    }
}
