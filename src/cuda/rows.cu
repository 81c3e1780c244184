// Operations that work on each row alone: embed, norm, swiglu; and preparing rows for a product.
#include "cuda/device.cuh"
#include "cuda/rows.cuh"
#include "cuda/weights.cuh"

#define THREADS 256

static __global__ void embed_kernel(const int32_t *ids, struct weight_view w, struct tensor out) {
    begin_kernel();
    int64_t row = ids[blockIdx.x];
    for (int64_t i = threadIdx.x; i < w.n_in; i += THREADS) tensor_store(out, blockIdx.x, i, weight_element(w, row, i));
}

void cuda_embed(struct device *base, const struct embed_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch_view *b = cuda_batch(d, a->batch);
    if (d->failure != cudaSuccess) return;
    cuda_start(d, "embed", embed_kernel, dim3((unsigned)a->out.n_row), THREADS, 0, b->ids, weight_view_of(a->table),
               a->out);
}

static __device__ float inverse_rms(const struct tensor &x, int64_t row, float eps, float *shared) {
    float squares = 0;
    for (int64_t i = threadIdx.x; i < x.n_col; i += THREADS) {
        float v = tensor_load(x, row, i);
        squares += v * v;
    }
    return rsqrtf(block_sum(squares, shared) / (float)x.n_col + eps);
}

static __global__ void norm_kernel(struct tensor x, const float *weight, float eps, struct tensor out) {
    __shared__ float shared[33];
    begin_kernel();
    float inverse = inverse_rms(x, blockIdx.x, eps, shared);
    for (int64_t i = threadIdx.x; i < x.n_col; i += THREADS)
        tensor_store(out, blockIdx.x, i, tensor_load(x, blockIdx.x, i) * inverse * weight[i]);
}

void cuda_norm(struct device *base, const struct norm_args *a) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure != cudaSuccess || a->x.n_row == 0) return;
    cuda_start(d, "norm", norm_kernel, dim3((unsigned)a->x.n_row), THREADS, 0, a->x, a->weight, a->eps, a->out);
}

static __global__ void swiglu_kernel(struct tensor gate, struct tensor up, struct tensor out) {
    begin_kernel();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
    if (i >= gate.n_col) return;
    tensor_store(out, row, i, silu_of(tensor_load(gate, row, i)) * tensor_load(up, row, i));
}

// Eight elements a thread, where all three are bf16 and aligned; the same arithmetic.
static __global__ void swiglu_kernel8(struct tensor gate, struct tensor up, struct tensor out) {
    begin_kernel();
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8, row = blockIdx.y;
    if (i >= gate.n_col) return;
    uint4 g = *(const uint4 *)((const __nv_bfloat16 *)gate.data + row * gate.stride + i);
    uint4 u = *(const uint4 *)((const __nv_bfloat16 *)up.data + row * up.stride + i);
    uint32_t *gw = (uint32_t *)&g, *uw = (uint32_t *)&u;
    for (int k = 0; k < 4; k++) {
        float2 x = __bfloat1622float2(*(__nv_bfloat162 *)&gw[k]), y = __bfloat1622float2(*(__nv_bfloat162 *)&uw[k]);
        gw[k] = pack_bf16(silu_of(x.x) * y.x, silu_of(x.y) * y.y);
    }
    *(uint4 *)((__nv_bfloat16 *)out.data + row * out.stride + i) = g;
}

void cuda_swiglu(struct device *base, const struct swiglu_args *a) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure != cudaSuccess || a->gate.n_row == 0) return;
    bool wide = rows_are_wide(a->gate) && rows_are_wide(a->up) && rows_are_wide(a->out) && a->gate.n_col % 8 == 0;
    dim3 grid((unsigned)ceil_div(a->gate.n_col, wide ? 8 * THREADS : THREADS), (unsigned)a->gate.n_row);
    cuda_start(d, "swiglu", wide ? swiglu_kernel8 : swiglu_kernel, grid, THREADS, 0, a->gate, a->up, a->out);
}

// ---- prepared rows ----

#define PREPARE_THREADS 512
#define PREPARE_VECTORS 6 // of 8 elements a thread: rows of up to 24576 stay in registers

static __device__ __forceinline__ void load_vector(const struct tensor &x, bool wide, int64_t row, int64_t i,
                                                   float v[8]) {
    if (wide && i + 8 <= x.n_col) {
        uint4 w = *(const uint4 *)((const __nv_bfloat16 *)x.data + row * x.stride + i);
        const uint32_t words[4] = {w.x, w.y, w.z, w.w};
        for (int k = 0; k < 4; k++) {
            v[2 * k] = __uint_as_float(words[k] << 16);
            v[2 * k + 1] = __uint_as_float(words[k] & 0xffff0000u);
        }
        return;
    }
    for (int k = 0; k < 8; k++) v[k] = i + k < x.n_col ? tensor_load(x, row, i + k) : 0.0f;
}

// Rounds eight elements, stores them, and adds them up: four neighbouring threads have a group of 32, eight one of 64.
static __device__ __forceinline__ void store_vector(const struct prepared &p, int64_t row, int64_t i, bool is_row,
                                                    const float v[8]) {
    uint4 w = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
    bool exists = i < p.n_col;
    if (p.split)
        w = make_uint4(pack_bf16(v[0], v[4]), pack_bf16(v[1], v[5]), pack_bf16(v[2], v[6]), pack_bf16(v[3], v[7]));
    if (is_row && exists) *(uint4 *)(p.rows + row * p.stride + i) = w;
    if (p.sums32 == NULL) return;
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
    float sum = 0;
    for (int k = 0; k < 4; k++) sum += __uint_as_float(words[k] << 16) + __uint_as_float(words[k] & 0xffff0000u);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (exists && threadIdx.x % 4 == 0) p.sums32[i / 32 * p.n_row_padded + row] = sum;
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    if (exists && threadIdx.x % 8 == 0) p.sums64[i / 64 * p.n_row_padded + row] = sum;
}

// One block a row.
static __global__ void __launch_bounds__(PREPARE_THREADS)
    prepare_kernel(struct tensor x, bool wide, const float *norm_weight, float eps, struct prepared p) {
    __shared__ float shared[33];
    begin_kernel();
    int64_t row = blockIdx.x;
    bool is_row = row < x.n_row;
    float v[PREPARE_VECTORS][8], squares = 0;
#pragma unroll
    for (int n = 0; n < PREPARE_VECTORS; n++) {
        int64_t i = ((int64_t)n * PREPARE_THREADS + threadIdx.x) * 8;
        if (is_row && i < x.n_col)
            load_vector(x, wide, row, i, v[n]);
        else
            for (int k = 0; k < 8; k++) v[n][k] = 0;
        for (int k = 0; k < 8; k++) squares += v[n][k] * v[n][k];
    }
    float inverse = 1;
    if (norm_weight != NULL) inverse = rsqrtf(block_sum(squares, shared) / (float)x.n_col + eps);
#pragma unroll
    for (int n = 0; n < PREPARE_VECTORS; n++) {
        int64_t i = ((int64_t)n * PREPARE_THREADS + threadIdx.x) * 8;
        if (i - threadIdx.x % 32 * 8 >= p.n_col) break; // for whole warps, which add up together
        for (int k = 0; k < 8 && norm_weight != NULL; k++)
            v[n][k] = i + k < x.n_col ? v[n][k] * inverse * norm_weight[i + k] : 0.0f;
        store_vector(p, row, i, is_row, v[n]);
    }
}

void prepare_rows(struct cuda_device *d, struct tensor x, const float *norm_weight, float eps, struct prepared *p) {
    must(p->n_col <= PREPARE_THREADS * PREPARE_VECTORS * 8);
    unsigned n_block = (unsigned)(p->sums32 != NULL ? p->n_row_padded : x.n_row);
    cuda_start(d, "rows of a product", prepare_kernel, dim3(n_block), PREPARE_THREADS, 0, x, rows_are_wide(x),
               norm_weight, eps, *p);
}

void carve_prepared(struct carver *c, int64_t n_row, int64_t n_in, bool with_sums, struct prepared *p) {
    p->n_col = ceil_div(n_in, CUDA_ROW_PAD) * CUDA_ROW_PAD;
    p->stride = p->n_col;
    p->n_row_padded = ceil_div(n_row, 8) * 8;
    p->rows = (__nv_bfloat16 *)carve(c, (size_t)(p->n_row_padded * p->n_col) * sizeof(__nv_bfloat16));
    p->sums32 = p->sums64 = NULL;
    p->split = false;
    if (!with_sums) return;
    p->sums32 = (float *)carve(c, (size_t)(p->n_col / 32 * p->n_row_padded) * sizeof(float));
    p->sums64 = (float *)carve(c, (size_t)(p->n_col / 64 * p->n_row_padded) * sizeof(float));
}
