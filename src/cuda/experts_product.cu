// Products of pairs with their experts' matrices, in both forms.
#include "cuda/experts.cuh"
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
    x->second = p.x_second;
    x->sums = NULL;
    x->sums_stride = 0;
    return true;
}

static __device__ __forceinline__ void store_sum(const struct rows_tile &t, int n, int64_t o, float sum) {
    if (n < t.tile.n && o < t.w.n_out) t.y[(int64_t)t.pairs[n] * t.w.n_out + o] = sum;
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

// ---- FORM_PROMPT: up to 64 pairs of two terms and 128 outputs a block ----

#define PROMPT_TERMS 2 // prompt_terms of every model that has experts
#define PROMPT_ROWS  (PROMPT_TERMS * EXPERT_TILE_PROMPT)

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
    struct prompt_sums<PROMPT_ROWS> sums;
    auto row_of = [&](int i) -> const __half * {
        int pair = row_of_tile<PROMPT_TERMS>(i);
        if (pair >= tile.n) return NULL;
        return p.rows.rows + (int64_t)(pairs[pair] / p.x_divisor) * p.rows.stride +
               term_of_tile<PROMPT_TERMS>(i) * p.rows.second;
    };
    multiply_tile<BITS, PROMPT_ROWS, false>(w, o0, row_of, shared, sums);
    each_pair<PROMPT_ROWS, PROMPT_TERMS>(sums, [&](int i, int j, float y0, float y1) {
        if (i >= tile.n) return;
        float scale = p.rows.scales[pairs[i] / p.x_divisor] * (1 / EXPANDED_SCALE);
        float *to = y_of + (int64_t)pairs[i] * w.n_out + o0 + j;
        if (o0 + j < w.n_out) to[0] = y0 * scale;
        if (o0 + j + 1 < w.n_out) to[1] = y1 * scale;
    });
}

template <int BITS>
static void launch_prompt(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles) {
    size_t bytes = prompt_shared_bytes<PROMPT_ROWS>();
    cudaFuncSetAttribute(experts_prompt_kernel<BITS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    dim3 grid((unsigned)ceil_div(p->w[0].first.n_out, PROMPT_OUTPUTS), (unsigned)most_tiles, (unsigned)p->n_matrix);
    experts_prompt_kernel<BITS><<<grid, PROMPT_THREADS, bytes, d->stream>>>(*p);
    cuda_launched(d, "experts, prompt");
}

void experts_product_prompt(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles) {
    if (experts_wide_fit(d, p)) {
        experts_product_wide(d, p, most_tiles);
        return;
    }
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
