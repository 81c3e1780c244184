// Rows of a product in FORM_PROMPT: see rows.cuh. One block a row.
#include "cuda/device.cuh"
#include "cuda/rows.cuh"

#define MOST_THREADS 512
#define VECTORS      6 // of 8 elements a thread: rows of up to 24576 stay in registers

// A row's largest element, rounded to 11 bits, must stay below 2^16; and from 2^-8 on the 2^-25 by which elements below
// the normal numbers may be off is less than what its own rounding does.
#define LEAST_PLAIN 0x1p-8f
#define MOST_PLAIN  0x1p15f
#define MAX_SHIFT   100 // fp32 holds both powers

struct activated {
    const float *gate, *up; // NULL: rows come from a tensor
    int64_t width;
};

struct prompt_source {
    struct tensor x;
    bool wide;
    const float *norm_weight;
    float eps;
    struct activated activated;
};

static __device__ __forceinline__ void load_activated(const struct activated &a, int64_t row, int64_t i, float v[8]) {
    int64_t at = row * a.width + i;
    bool wide = a.width % 8 == 0;
#pragma unroll
    for (int k = 0; k < 8; k += 4) {
        float4 g = wide ? *(const float4 *)(a.gate + at + k) : make_float4(0, 0, 0, 0);
        float4 u = wide ? *(const float4 *)(a.up + at + k) : make_float4(0, 0, 0, 0);
        for (int j = 0; j < 4 && !wide; j++) {
            if (i + k + j >= a.width) break;
            (&g.x)[j] = a.gate[at + k + j];
            (&u.x)[j] = a.up[at + k + j];
        }
        for (int j = 0; j < 4; j++) v[k + j] = silu_of((&g.x)[j]) * (&u.x)[j];
    }
}

static __device__ __forceinline__ float block_max(float x, float *shared) {
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f);
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

static __global__ void __launch_bounds__(MOST_THREADS)
    prompt_rows_kernel(const __grid_constant__ prompt_source s, const __grid_constant__ prompt_rows p) {
    __shared__ float shared[33];
    begin_kernel();
    int64_t row = blockIdx.x, n = s.activated.gate != NULL ? s.activated.width : s.x.n_col;
    float v[VECTORS][8], squares = 0, most = 0;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        int64_t i = ((int64_t)k * blockDim.x + threadIdx.x) * 8;
        for (int j = 0; j < 8; j++) v[k][j] = 0;
        if (i >= n) continue;
        if (s.activated.gate != NULL)
            load_activated(s.activated, row, i, v[k]);
        else
            load_eight(s.x, s.wide, row, i, v[k]);
        for (int j = 0; j < 8; j++) squares += v[k][j] * v[k][j];
    }
    float inverse = 1;
    if (s.norm_weight != NULL) inverse = rsqrtf(block_sum(squares, shared) / (float)n + s.eps);
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        int64_t i = ((int64_t)k * blockDim.x + threadIdx.x) * 8;
        for (int j = 0; j < 8; j++) {
            if (s.norm_weight != NULL) v[k][j] = i + j < n ? v[k][j] * inverse * s.norm_weight[i + j] : 0.0f;
            most = fmaxf(most, fabsf(v[k][j]));
        }
    }
    int shift = shift_of(block_max(most, shared));
    if (threadIdx.x == 0) p.scales[row] = ldexpf(1.0f, -shift);
    float factor = ldexpf(1.0f, shift);
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        int64_t i = ((int64_t)k * blockDim.x + threadIdx.x) * 8;
        if (i < p.n_col) store_terms(p, row, i, factor, v[k]);
    }
}

static void launch(struct cuda_device *d, const struct prompt_source &s, int64_t n_row, struct prompt_rows *p) {
    must(p->n_col <= MOST_THREADS * VECTORS * 8);
    int64_t threads = ceil_div(p->n_col / 8, 2 * 32) * 32; // two vectors a thread, as far as threads go
    cuda_start(d, "rows of a prompt product", prompt_rows_kernel, dim3((unsigned)n_row),
               (unsigned)(threads < MOST_THREADS ? threads : MOST_THREADS), 0, s, *p);
}

void prepare_prompt(struct cuda_device *d, struct tensor x, const float *norm_weight, float eps,
                    struct prompt_rows *p) {
    launch(d, {x, rows_are_wide(x), norm_weight, eps, {NULL, NULL, 0}}, x.n_row, p);
}

void prepare_activated(struct cuda_device *d, const float *gate, const float *up, int64_t n_row, int64_t width,
                       struct prompt_rows *p) {
    launch(d, {{}, false, NULL, 0, {gate, up, width}}, n_row, p);
}

void carve_prompt_rows(struct carver *c, int64_t n_row, int64_t n_in, int n_term, struct prompt_rows *p) {
    p->n_col = ceil_div(n_in, CUDA_ROW_PAD) * CUDA_ROW_PAD;
    p->stride = p->n_col;
    p->second = n_term > 1 ? n_row * p->n_col : 0;
    p->rows = (__half *)carve(c, (size_t)(n_term * n_row * p->n_col) * sizeof(__half));
    p->scales = (float *)carve(c, (size_t)n_row * sizeof(float));
}
