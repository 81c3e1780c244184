// Rows of a product in FORM_PROMPT: see rows.cuh.
#include "cuda/device.cuh"
#include "cuda/rows.cuh"

#define MOST_THREADS 1024 // of two or three vectors of 8 elements: rows of up to 24576 stay in registers
#define SMALL_ROWS   8    // a block, where a row is a warp's

// A row's largest element, rounded to 11 bits, must stay below 2^16; and from 2^-8 on the 2^-25 by which elements below
// the normal numbers may be off is less than what its own rounding does.
#define LEAST_PLAIN 0x1p-8f
#define MOST_PLAIN  0x1p15f
#define MAX_SHIFT   100 // fp32 holds both powers

struct prompt_source {
    struct tensor x, up, norm; // norm: of weights, one row; up.data, norm.data NULL: none
    bool wide;                 // all of them
    float eps;
};

// Over the threads of a row: a warp, or else the whole block.
static __device__ __forceinline__ float row_max(float x, float *shared) {
    x = warp_max(x);
    if (blockDim.x == 32) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f);
}
static __device__ __forceinline__ float row_sum(float x, float *shared) {
    return blockDim.x == 32 ? warp_sum(x) : block_sum(x, shared);
}

// This thread's vectors of a row, all of them under way together; zeros after the last element.
template <int VECTORS> struct row_part { float v[VECTORS][8]; };

template <int VECTORS>
static __device__ __forceinline__ void load_row(const struct tensor &x, bool wide, int64_t row,
                                                struct row_part<VECTORS> *part) {
    const float *from = (const float *)x.data + row * x.stride;
    bool whole = wide && x.n_col % 8 == 0;
#pragma unroll
    for (int k = 0; k < VECTORS && whole; k++) {
        int i = (int)(k * blockDim.x + threadIdx.x) * 8;
        float4 a = make_float4(0, 0, 0, 0), b = a;
        if (i < x.n_col) {
            a = *(const float4 *)(from + i);
            b = *(const float4 *)(from + i + 4);
        }
        *(float4 *)part->v[k] = a;
        *(float4 *)(part->v[k] + 4) = b;
    }
    for (int k = 0; k < VECTORS && !whole; k++)
        load_eight(x, wide, row, (k * blockDim.x + threadIdx.x) * 8, part->v[k]);
}

// The exponent by which a row is scaled. Rows with elements that are no numbers are left as they are.
static __device__ __forceinline__ int shift_of(float most) {
    if (!(most > 0) || isinf(most) || (most >= LEAST_PLAIN && most < MOST_PLAIN)) return 0;
    return max(-MAX_SHIFT, min(MAX_SHIFT, 13 - ilogbf(most)));
}

static __device__ __forceinline__ void store_terms(const struct prompt_rows &p, int64_t row, int64_t i, float factor,
                                                   const float v[8]) {
    uint32_t first[4], second[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float a = v[2 * k] * factor, b = v[2 * k + 1] * factor;
        first[k] = pack_f16(a, b);
        float2 x = unpack_f16(first[k]);
        second[k] = pack_f16(a - x.x, b - x.y);
    }
    __half *to = p.rows + row * p.stride + i;
    *(uint4 *)to = *(uint4 *)first;
    if (p.second != 0) *(uint4 *)(to + p.second) = *(uint4 *)second;
}

template <int VECTORS>
static __global__ void __launch_bounds__(MOST_THREADS)
    prompt_rows_kernel(const __grid_constant__ prompt_source s, const __grid_constant__ prompt_rows p) {
    __shared__ float shared[33];
    begin_kernel();
    int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    struct row_part<VECTORS> x;
    float squares = 0, most = 0;
    if (row >= s.x.n_row) return; // of a warp by itself
    load_row(s.x, s.wide, row, &x);
    if (s.up.data != NULL) {
        struct row_part<VECTORS> up;
        load_row(s.up, s.wide, row, &up);
#pragma unroll
        for (int k = 0; k < VECTORS; k++)
            for (int j = 0; j < 8; j++) x.v[k][j] = silu_of(x.v[k][j]) * up.v[k][j];
    }
    if (s.norm.data != NULL) {
        struct row_part<VECTORS> weight;
        load_row(s.norm, s.wide, 0, &weight);
#pragma unroll
        for (int k = 0; k < VECTORS; k++)
            for (int j = 0; j < 8; j++) squares += x.v[k][j] * x.v[k][j];
        float inverse = rsqrtf(row_sum(squares, shared) / (float)s.x.n_col + s.eps);
#pragma unroll
        for (int k = 0; k < VECTORS; k++)
            for (int j = 0; j < 8; j++) x.v[k][j] = x.v[k][j] * inverse * weight.v[k][j];
    }
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
        for (int j = 0; j < 8; j++) most = fmaxf(most, fabsf(x.v[k][j]));
    int shift = shift_of(row_max(most, shared));
    if (threadIdx.x == 0) p.scales[row] = ldexpf(1.0f, -shift);
    float factor = ldexpf(1.0f, shift);
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        int64_t i = ((int64_t)k * blockDim.x + threadIdx.x) * 8;
        if (i < p.n_col) store_terms(p, row, i, factor, x.v[k]);
    }
}

// A narrow row is a warp's, and a wide one a block's.
static void launch(struct cuda_device *d, const struct prompt_source &s, struct prompt_rows *p) {
    int64_t n = p->n_col / 8, vectors = n <= 2 * 512 ? 2 : 3, threads = ceil_div(n, vectors * 32) * 32;
    must(threads <= MOST_THREADS);
    unsigned n_row = threads == 32 ? SMALL_ROWS : 1;
    dim3 grid((unsigned)ceil_div(s.x.n_row, n_row));
    cuda_start(d, "rows of a prompt product", vectors == 2 ? prompt_rows_kernel<2> : prompt_rows_kernel<3>, grid,
               dim3((unsigned)threads, n_row), 0, s, *p);
}

void prepare_prompt(struct cuda_device *d, struct tensor x, const float *norm_weight, float eps,
                    struct prompt_rows *p) {
    struct tensor norm = {(void *)norm_weight, DTYPE_F32, 1, x.n_col, x.n_col};
    launch(d, {x, {}, norm, rows_are_wide(x) && (uintptr_t)norm_weight % 16 == 0, eps}, p);
}

void prepare_activated(struct cuda_device *d, struct tensor gate, struct tensor up, struct prompt_rows *p) {
    launch(d, {gate, up, {}, rows_are_wide(gate) && rows_are_wide(up), 0}, p);
}

void carve_prompt_rows(struct carver *c, int64_t n_row, int64_t n_in, int n_term, struct prompt_rows *p) {
    p->n_col = ceil_div(n_in, CUDA_ROW_PAD) * CUDA_ROW_PAD;
    p->stride = p->n_col;
    p->second = n_term > 1 ? n_row * p->n_col : 0;
    p->rows = (__half *)carve(c, (size_t)(n_term * n_row * p->n_col) * sizeof(__half));
    p->scales = (float *)carve(c, (size_t)n_row * sizeof(float));
}
