// Operations that work on each row alone: embed, norm, swiglu; and preparing rows for a product.
#include "cuda/norm.cuh"
#include "cuda/rows.cuh"
#include "cuda/weights.cuh"

#define THREADS 256

static __global__ void embed_kernel(const int32_t *ids, struct weight_view w, struct tensor out) {
    begin_kernel();
    int64_t row = ids[blockIdx.x];
    for (int64_t i = threadIdx.x; i < w.n_in; i += THREADS) tensor_store(out, blockIdx.x, i, weight_element(w, row, i));
}

// Eight codes of 4 or 8 bits a thread, which lie in one group; the same arithmetic. One element after another waits for
// memory each time, with nothing to do meanwhile: a round begins with this.
template <int BITS, bool ARRANGED>
static __global__ void __launch_bounds__(THREADS)
    embed_codes_kernel(const int32_t *ids, struct weight_view w, struct tensor out) {
    begin_kernel();
    int64_t row = ids[blockIdx.x];
    int i = (int)(blockIdx.y * THREADS + threadIdx.x) * 8;
    if (i >= w.n_in) return;
    const char *codes = ARRANGED ? arranged_byte(w, row, i / 2) : w.data + row * w.row_bytes + i * BITS / 8;
    uint2 q = BITS == 4 ? make_uint2(*(const uint32_t *)codes, 0) : *(const uint2 *)codes;
    int64_t group = row * w.n_group + i / w.group;
    float2 by = ARRANGED ? arranged_group(w, row, i / 64)
                         : make_float2(load_float(w.scales, w.dtype, group), load_float(w.biases, w.dtype, group));
    float v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        uint32_t code = BITS == 4 ? q.x >> 4 * k & 15 : (k < 4 ? q.x : q.y) >> 8 * (k % 4) & 255;
        v[k] = (float)code * by.x + by.y;
    }
    float4 *to = (float4 *)((float *)out.data + blockIdx.x * out.stride + i);
    to[0] = *(const float4 *)v;
    to[1] = *(const float4 *)(v + 4);
}

static bool has_eight_codes(const struct weight_view &w) {
    return (w.weight_class == CLASS_Q4 || w.weight_class == CLASS_Q8) && w.group % 8 == 0 && w.n_in % 16 == 0 &&
           (uintptr_t)w.data % 8 == 0;
}

void cuda_embed(struct device *base, const struct embed_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch_view *b = cuda_batch(d, a->batch);
    if (d->failure != cudaSuccess) return;
    struct weight_view w = weight_view_of(a->table);
    if ((w.arranged || has_eight_codes(w)) && rows_are_wide(a->out)) {
        auto kernel = w.arranged                   ? embed_codes_kernel<4, true>
                      : w.weight_class == CLASS_Q4 ? embed_codes_kernel<4, false>
                                                   : embed_codes_kernel<8, false>;
        dim3 grid((unsigned)a->out.n_row, (unsigned)ceil_div(w.n_in, 8 * THREADS));
        cuda_start(d, "embed", kernel, grid, THREADS, 0, b->ids, w, a->out);
        return;
    }
    must(!w.arranged); // rows of activations are fp32, and aligned
    cuda_start(d, "embed", embed_kernel, dim3((unsigned)a->out.n_row), THREADS, 0, b->ids, w, a->out);
}

#define NORM_VECTORS 4 // of 8 elements a thread: rows of up to 8192 are read once

// wide: rows_are_wide of both, and of the weight.
static __device__ __forceinline__ void store_normed(const struct tensor &out, bool wide, const float *weight,
                                                    float inverse, int64_t i, const float v[8]) {
    if (wide && i + 8 <= out.n_col) {
        float4 *to = (float4 *)((float *)out.data + blockIdx.x * out.stride + i);
        for (int h = 0; h < 2; h++) {
            float4 w = ((const float4 *)(weight + i))[h];
            to[h] = make_float4(v[4 * h] * inverse * w.x, v[4 * h + 1] * inverse * w.y, v[4 * h + 2] * inverse * w.z,
                                v[4 * h + 3] * inverse * w.w);
        }
        return;
    }
    for (int k = 0; k < 8 && i + k < out.n_col; k++)
        tensor_store(out, blockIdx.x, i + k, v[k] * inverse * weight[i + k]);
}

// What does not fit into registers is read again.
static __global__ void __launch_bounds__(THREADS)
    norm_kernel(struct tensor x, const float *weight, float eps, struct tensor out, bool wide) {
    __shared__ float shared[33];
    begin_kernel();
    float v[NORM_VECTORS][8], squares = 0;
#pragma unroll
    for (int n = 0; n < NORM_VECTORS; n++) {
        int64_t i = ((int64_t)n * THREADS + threadIdx.x) * 8;
        if (i >= x.n_col) break;
        load_eight(x, wide, blockIdx.x, i, v[n]);
        for (int k = 0; k < 8; k++) squares += v[n][k] * v[n][k];
    }
    int64_t rest = NORM_VECTORS * THREADS * 8;
    for (int64_t i = rest + threadIdx.x; i < x.n_col; i += THREADS) {
        float y = tensor_load(x, blockIdx.x, i);
        squares += y * y;
    }
    float inverse = rsqrtf(block_sum(squares, shared) / (float)x.n_col + eps);
#pragma unroll
    for (int n = 0; n < NORM_VECTORS; n++) {
        int64_t i = ((int64_t)n * THREADS + threadIdx.x) * 8;
        if (i >= x.n_col) break;
        store_normed(out, wide, weight, inverse, i, v[n]);
    }
    for (int64_t i = rest + threadIdx.x; i < x.n_col; i += THREADS)
        tensor_store(out, blockIdx.x, i, tensor_load(x, blockIdx.x, i) * inverse * weight[i]);
}

// A round's rows, whose planes are left.
static __global__ void __launch_bounds__(NORM_MOST)
    norm_planes_kernel(const __grid_constant__ tensor x, const __grid_constant__ norm_job job) {
    __shared__ float shared[33];
    let_next_start();
    int i = threadIdx.x * 8;
    float weight[8], v[8];
    load_wide(job.weight + i, weight);
    wait_for_earlier();
    load_wide((const float *)x.data + blockIdx.x * x.stride + i, v);
    norm_row(job, weight, v, shared);
}

void cuda_norm(struct device *base, const struct norm_args *a) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure != cudaSuccess || a->x.n_row == 0) return;
    struct norm_job job;
    if (rows_are_wide(a->x) && make_norm_job(d, a->out, a->weight, a->eps, &job)) {
        cuda_start(d, "norm", norm_planes_kernel, dim3((unsigned)a->x.n_row), (unsigned)(a->x.n_col / 8), 0, a->x, job);
        return;
    }
    bool wide = rows_are_wide(a->x) && rows_are_wide(a->out) && (uintptr_t)a->weight % 16 == 0;
    cuda_start(d, "norm", norm_kernel, dim3((unsigned)a->x.n_row), THREADS, 0, a->x, a->weight, a->eps, a->out, wide);
}

static __global__ void swiglu_kernel(struct tensor gate, struct tensor up, struct tensor out) {
    begin_kernel();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
    if (i >= gate.n_col) return;
    tensor_store(out, row, i, silu_of(tensor_load(gate, row, i)) * tensor_load(up, row, i));
}

// Four elements a thread; the same arithmetic.
static __global__ void swiglu_kernel4(struct tensor gate, struct tensor up, struct tensor out) {
    begin_kernel();
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4, row = blockIdx.y;
    if (i >= gate.n_col) return;
    float4 g = *(const float4 *)((const float *)gate.data + row * gate.stride + i);
    float4 u = *(const float4 *)((const float *)up.data + row * up.stride + i);
    float4 y = make_float4(silu_of(g.x) * u.x, silu_of(g.y) * u.y, silu_of(g.z) * u.z, silu_of(g.w) * u.w);
    *(float4 *)((float *)out.data + row * out.stride + i) = y;
}

// And planes of the result, for the product that follows. A warp has a unit.
static __global__ void __launch_bounds__(THREADS)
    swiglu_planes_kernel(struct tensor gate, struct tensor up, struct tensor out, struct plane_rows p) {
    begin_kernel();
    int unit = (int)(blockIdx.x * (THREADS / 32) + threadIdx.x / 32), lane = threadIdx.x % 32;
    int64_t i = (int64_t)unit * PLANES_UNIT + lane * 4, row = blockIdx.y;
    if (unit >= p.n_unit) return;
    float4 g = *(const float4 *)((const float *)gate.data + row * gate.stride + i);
    float4 u = *(const float4 *)((const float *)up.data + row * up.stride + i);
    float4 y = make_float4(silu_of(g.x) * u.x, silu_of(g.y) * u.y, silu_of(g.z) * u.z, silu_of(g.w) * u.w);
    *(float4 *)((float *)out.data + row * out.stride + i) = y;
    struct planes at = planes_of_row(p, row);
    plane_store<PLANES_TILE>(y, 0, at.x + unit * (PLANES_TILE * PLANES_UNIT_X), at.notes + unit * PLANES_TILE);
    if (i == 0) p.factors[row] = 1;
}

// In rounds the result is a product's row, whose planes are made on the way.
static bool swiglu_planes(struct cuda_device *d, const struct swiglu_args *a) {
    struct plane_rows p;
    if (!leave_planes(d, a->out, PLANES_UNIT, &p)) return false;
    dim3 grid((unsigned)ceil_div(p.n_unit, THREADS / 32), (unsigned)a->gate.n_row);
    cuda_start(d, "swiglu", swiglu_planes_kernel, grid, THREADS, 0, a->gate, a->up, a->out, p);
    return true;
}

void cuda_swiglu(struct device *base, const struct swiglu_args *a) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure != cudaSuccess || a->gate.n_row == 0) return;
    bool wide = rows_are_wide(a->gate) && rows_are_wide(a->up) && rows_are_wide(a->out) && a->gate.n_col % 4 == 0;
    if (wide && swiglu_planes(d, a)) return;
    dim3 grid((unsigned)ceil_div(a->gate.n_col, wide ? 4 * THREADS : THREADS), (unsigned)a->gate.n_row);
    cuda_start(d, "swiglu", wide ? swiglu_kernel4 : swiglu_kernel, grid, THREADS, 0, a->gate, a->up, a->out);
}

// ---- rows of a product in FORM_ROWS ----

#define PREPARE_THREADS 512
#define PREPARE_VECTORS 6 // of 8 elements a thread: rows of up to 24576 stay in registers

// Rounds eight elements to one or two terms, stores those, and adds them up: four neighbouring threads have a group of
// 32, eight one of 64.
static __device__ __forceinline__ void store_vector(const struct prepared &p, int64_t row, int64_t i, bool is_row,
                                                    const float v[8]) {
    bool exists = i < p.n_col;
    float sum = 0;
    uint32_t first[4], second[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float a = v[2 * k], b = v[2 * k + 1];
        first[k] = pack_bf16(a, b);
        float2 x = unpack_bf16(first[k]);
        second[k] = pack_bf16(a - x.x, b - x.y);
        float2 y = p.second != 0 ? unpack_bf16(second[k]) : make_float2(0, 0);
        sum += (x.x + y.x) + (x.y + y.y);
    }
    __nv_bfloat16 *to = p.rows + row * p.stride + i;
    if (is_row && exists) *(uint4 *)to = *(uint4 *)first;
    if (is_row && exists && p.second != 0) *(uint4 *)(to + p.second) = *(uint4 *)second;
    if (p.sums32 == NULL) return;
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
            load_eight(x, wide, row, i, v[n]);
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
    p->second = p->n_row_padded * p->n_col;
    p->rows = (__nv_bfloat16 *)carve(c, (size_t)(2 * p->second) * sizeof(__nv_bfloat16));
    p->sums32 = p->sums64 = NULL;
    if (!with_sums) return;
    p->sums32 = (float *)carve(c, (size_t)(p->n_col / 32 * p->n_row_padded) * sizeof(float));
    p->sums64 = (float *)carve(c, (size_t)(p->n_col / 64 * p->n_row_padded) * sizeof(float));
}
