// Operations that work on each row alone: embed, norm, swiglu; and preparing rows for a product.
#include "cuda/device.cuh"
#include "cuda/rows.cuh"
#include "cuda/weights.cuh"

#define THREADS 256

static __global__ void embed_kernel(const int32_t *ids, struct weight_view w, struct tensor out) {
    int64_t row = ids[blockIdx.x];
    for (int64_t i = threadIdx.x; i < w.n_in; i += THREADS) tensor_store(out, blockIdx.x, i, weight_element(w, row, i));
}

void cuda_embed(struct device *base, const struct embed_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch_view *b = cuda_batch(d, a->batch);
    if (d->failure != cudaSuccess) return;
    embed_kernel<<<(unsigned)a->out.n_row, THREADS, 0, d->stream>>>(b->ids, weight_view_of(a->table), a->out);
    cuda_launched(d, "embed");
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
    float inverse = inverse_rms(x, blockIdx.x, eps, shared);
    for (int64_t i = threadIdx.x; i < x.n_col; i += THREADS)
        tensor_store(out, blockIdx.x, i, tensor_load(x, blockIdx.x, i) * inverse * weight[i]);
}

void cuda_norm(struct device *base, const struct norm_args *a) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure != cudaSuccess || a->x.n_row == 0) return;
    norm_kernel<<<(unsigned)a->x.n_row, THREADS, 0, d->stream>>>(a->x, a->weight, a->eps, a->out);
    cuda_launched(d, "norm");
}

static __global__ void swiglu_kernel(struct tensor gate, struct tensor up, struct tensor out) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
    if (i >= gate.n_col) return;
    tensor_store(out, row, i, silu_of(tensor_load(gate, row, i)) * tensor_load(up, row, i));
}

// Eight elements a thread, where all three are bf16 and aligned; the same arithmetic.
static __global__ void swiglu_kernel8(struct tensor gate, struct tensor up, struct tensor out) {
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
    if (wide)
        swiglu_kernel8<<<grid, THREADS, 0, d->stream>>>(a->gate, a->up, a->out);
    else
        swiglu_kernel<<<grid, THREADS, 0, d->stream>>>(a->gate, a->up, a->out);
    cuda_launched(d, "swiglu");
}

// ---- prepared rows ----

// One block a row. The row's values stay in registers between the passes when it is not longer than PER_THREAD blocks.
static __global__ void prepare_kernel(struct tensor x, const float *norm_weight, float eps, struct prepared p) {
    __shared__ float shared[33];
    int64_t row = blockIdx.x;
    bool is_row = row < x.n_row;
    float inverse = 1;
    if (norm_weight != NULL && is_row) inverse = inverse_rms(x, row, eps, shared);
    int lane = threadIdx.x % 32;
    for (int64_t i0 = threadIdx.x - lane; i0 < p.n_col; i0 += THREADS) {
        int64_t i = i0 + lane;
        float v = 0;
        if (is_row && i < x.n_col) {
            v = tensor_load(x, row, i);
            if (norm_weight != NULL) v = v * inverse * norm_weight[i];
        }
        __nv_bfloat16 rounded = __float2bfloat16_rn(v);
        if (p.rows != NULL && is_row) p.rows[row * p.stride + i] = rounded;
        if (p.sums32 == NULL) continue;
        float sum = warp_sum(__bfloat162float(rounded));
        if (lane == 0) p.sums32[i / 32 * p.n_row_padded + row] = sum;
    }
    if (p.sums32 == NULL) return;
    __syncthreads();
    for (int64_t g = threadIdx.x; g < p.n_col / 64; g += THREADS)
        p.sums64[g * p.n_row_padded + row] =
            p.sums32[2 * g * p.n_row_padded + row] + p.sums32[(2 * g + 1) * p.n_row_padded + row];
}

void prepare_rows(struct cuda_device *d, struct tensor x, const float *norm_weight, float eps, struct prepared *p) {
    prepare_kernel<<<(unsigned)(p->sums32 != NULL ? p->n_row_padded : x.n_row), THREADS, 0, d->stream>>>(x, norm_weight,
                                                                                                         eps, *p);
    cuda_launched(d, "rows of a product");
}

void carve_prepared(struct carver *c, int64_t n_row, int64_t n_in, bool with_sums, struct prepared *p) {
    p->n_col = ceil_div(n_in, CUDA_ROW_PAD) * CUDA_ROW_PAD;
    p->stride = p->n_col;
    p->n_row_padded = ceil_div(n_row, 8) * 8;
    p->rows = (__nv_bfloat16 *)carve(c, (size_t)(p->n_row_padded * p->n_col) * sizeof(__nv_bfloat16));
    p->sums32 = p->sums64 = NULL;
    if (!with_sums) return;
    p->sums32 = (float *)carve(c, (size_t)(p->n_col / 32 * p->n_row_padded) * sizeof(float));
    p->sums64 = (float *)carve(c, (size_t)(p->n_col / 64 * p->n_row_padded) * sizeof(float));
}
