// linear in FORM_PROMPT for large matrices: the weights are expanded to fp16 once a call, and cuBLASLt multiplies, once
// for each term of the rows, adding up in the fp32 outputs.
//
// The library knows nothing of the scales of rows. Nearly all of them are 1; the outputs of the others are multiplied
// afterwards, and a residual of such a row is divided before. Both are exact, since scales are powers of two.
//
// One algorithm is chosen for each shape, for the longest pass, without a split of the sum, and used for every number
// of rows, so that a row's bits do not depend on how many there are. The library is looked for when the device is
// opened; where it is not found the tiles of product_prompt.cuh do all shapes.
#include "cuda/expand.cuh"
#include "cuda/linear.cuh"
#include "cuda/rows.cuh"
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define THREADS     256
#define MAX_SHAPES  64
#define PINNED_ROWS 4096 // the algorithm is the best for so many
#define LEAST_OUT   16   // narrower matrices are left to the tiles

// The functions that are used, by the types of the library's own header.
struct blas_functions {
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatmulDescCreate) desc_create;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    decltype(&cublasLtMatmul) matmul;
};

struct blas_shape {
    int64_t n_out, n_in;
    bool usable;
    cublasLtMatmulAlgo_t algorithm;
};

struct blas_state {
    void *library;
    struct blas_functions f;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    struct blas_shape shapes[MAX_SHAPES];
    int n_shape;
};

template <typename F> static bool find(void *library, const char *name, F *out) {
    *out = (F)dlsym(library, name);
    return *out != NULL;
}

static bool find_all(void *l, struct blas_functions *f) {
    return find(l, "cublasLtCreate", &f->create) && find(l, "cublasLtDestroy", &f->destroy) &&
           find(l, "cublasLtMatmulDescCreate", &f->desc_create) &&
           find(l, "cublasLtMatmulDescSetAttribute", &f->desc_set) &&
           find(l, "cublasLtMatrixLayoutCreate", &f->layout_create) &&
           find(l, "cublasLtMatrixLayoutDestroy", &f->layout_destroy) &&
           find(l, "cublasLtMatmulPreferenceCreate", &f->preference_create) &&
           find(l, "cublasLtMatmulPreferenceSetAttribute", &f->preference_set) &&
           find(l, "cublasLtMatmulPreferenceDestroy", &f->preference_destroy) &&
           find(l, "cublasLtMatmulAlgoGetHeuristic", &f->heuristic) && find(l, "cublasLtMatmul", &f->matmul);
}

bool blas_open(struct cuda_device *d) {
    struct blas_state *s = (struct blas_state *)calloc(1, sizeof *s);
    if (s == NULL) return false;
    s->library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (s->library == NULL) s->library = dlopen("/usr/local/cuda/lib64/libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    d->blas = s;
    cublasOperation_t transposed = CUBLAS_OP_T;
    bool ok =
        s->library != NULL && find_all(s->library, &s->f) && s->f.create(&s->handle) == CUBLAS_STATUS_SUCCESS &&
        s->f.desc_create(&s->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        s->f.desc_set(s->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) == CUBLAS_STATUS_SUCCESS;
    if (!ok) blas_close(d);
    return ok;
}

void blas_close(struct cuda_device *d) {
    struct blas_state *s = d->blas;
    if (s == NULL) return;
    if (s->handle != NULL) s->f.destroy(s->handle);
    if (s->library != NULL) dlclose(s->library);
    free(s);
    d->blas = NULL;
}

// The library's matrices are by columns: ours, by rows, are their transposes.
static cublasLtMatrixLayout_t layout(struct blas_state *s, cudaDataType_t type, int64_t n_row, int64_t n_col,
                                     int64_t stride) {
    cublasLtMatrixLayout_t l = NULL;
    s->f.layout_create(&l, type, (uint64_t)n_col, (uint64_t)n_row, stride);
    return l;
}

struct layouts {
    cublasLtMatrixLayout_t w, x, out;
};

static struct layouts layouts_of(struct blas_state *s, int64_t n_out, int64_t n_in, int64_t n_row, int64_t x_stride,
                                 int64_t out_stride) {
    return (struct layouts){layout(s, CUDA_R_16F, n_out, n_in, n_in), layout(s, CUDA_R_16F, n_row, n_in, x_stride),
                            layout(s, CUDA_R_32F, n_row, n_out, out_stride)};
}

static void free_layouts(struct blas_state *s, struct layouts *l) {
    s->f.layout_destroy(l->w);
    s->f.layout_destroy(l->x);
    s->f.layout_destroy(l->out);
}

static bool choose_algorithm(struct blas_state *s, int64_t n_out, int64_t n_in, cublasLtMatmulAlgo_t *out) {
    cublasLtMatmulPreference_t preference;
    if (s->f.preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return false;
    size_t workspace = 0;
    uint32_t no_split = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = 16;
    const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    s->f.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    s->f.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_split, sizeof no_split);
    for (int i = 0; i < 4; i++) s->f.preference_set(preference, aligned[i], &alignment, sizeof alignment);
    struct layouts l = layouts_of(s, n_out, n_in, PINNED_ROWS, n_in, n_out);
    cublasLtMatmulHeuristicResult_t result;
    int n = 0;
    bool ok = s->f.heuristic(s->handle, s->desc, l.w, l.x, l.out, l.out, preference, 1, &result, &n) ==
                  CUBLAS_STATUS_SUCCESS &&
              n == 1 && result.state == CUBLAS_STATUS_SUCCESS;
    if (ok) *out = result.algo;
    free_layouts(s, &l);
    s->f.preference_destroy(preference);
    return ok;
}

static struct blas_shape *shape_of(struct blas_state *s, int64_t n_out, int64_t n_in) {
    for (int i = 0; i < s->n_shape; i++)
        if (s->shapes[i].n_out == n_out && s->shapes[i].n_in == n_in) return &s->shapes[i];
    if (s->n_shape == MAX_SHAPES) return NULL;
    struct blas_shape *shape = &s->shapes[s->n_shape++];
    shape->n_out = n_out;
    shape->n_in = n_in;
    shape->usable = choose_algorithm(s, n_out, n_in, &shape->algorithm);
    return shape;
}

// ---- expansion ----

#define EXPAND_AHEAD 4 // words of eight 4-bit codes a thread

// Rows lie one behind another, so that a word's place in the matrix tells its group. Loads and stores of a warp are
// contiguous. Nothing branches before the last load, so that a thread's loads are all under way together.
template <bool BF16>
static __global__ void __launch_bounds__(THREADS)
    expand_q4_kernel(struct weight_view w, int shift, int64_t n_word, __half *out) {
    int64_t first = (int64_t)blockIdx.x * (THREADS * EXPAND_AHEAD) + threadIdx.x;
    uint32_t words[EXPAND_AHEAD];
    uint16_t scale[EXPAND_AHEAD], bias[EXPAND_AHEAD];
#pragma unroll
    for (int k = 0; k < EXPAND_AHEAD; k++) {
        int64_t i = min(first + k * THREADS, n_word - 1), g = i >> shift;
        words[k] = __ldg((const uint32_t *)w.data + i);
        scale[k] = __ldg((const uint16_t *)w.scales + g);
        bias[k] = __ldg((const uint16_t *)w.biases + g);
    }
#pragma unroll
    for (int k = 0; k < EXPAND_AHEAD; k++) {
        int64_t i = first + k * THREADS;
        uint32_t v[4];
        if (i >= n_word) break;
        if (BF16) {
            __half2 s = half_scale(__uint_as_float((uint32_t)scale[k] << 16)),
                    b = half_scale(__uint_as_float((uint32_t)bias[k] << 16));
            four_bit_pairs(words[k], s, b, v);
        } else {
            float s = __half2float(__ushort_as_half(scale[k])), b = __half2float(__ushort_as_half(bias[k]));
            for (int j = 0; j < 4; j++)
                v[j] = pack_weights(fmaf((float)(words[k] >> 8 * j & 15), s, b),
                                    fmaf((float)(words[k] >> (8 * j + 4) & 15), s, b));
        }
        ((uint4 *)out)[i] = *(uint4 *)v;
    }
}

// The same of matrices that are arranged: a block has eight units of eight outputs, a warp two units of one output at
// a time, so that what it stores is contiguous.
#define EXPAND_UNITS 8

static __global__ void __launch_bounds__(THREADS) expand_arranged_kernel(struct weight_view w, __half *out) {
    constexpr int ROWS = THREADS / 16 / EXPAND_UNITS; // outputs at once
    int unit = (int)blockIdx.x * EXPAND_UNITS + threadIdx.x / 16 % EXPAND_UNITS, word = threadIdx.x % 16;
    int64_t output = (int64_t)blockIdx.y * ARRANGED_OUTPUTS + threadIdx.x / (16 * EXPAND_UNITS);
    if (unit >= w.n_group / 2) return;
    const char *codes = w.data + arranged_codes(output, unit, w.row_bytes) + word * 4;
    const char *scales =
        (unit % 2 == 0 ? w.scales : w.biases) + arranged_scales(output, unit, w.n_group * 2) + word / 8 * 2;
    uint32_t words[EXPAND_AHEAD];
    uint16_t scale[EXPAND_AHEAD], bias[EXPAND_AHEAD];
#pragma unroll
    for (int k = 0; k < EXPAND_AHEAD; k++) {
        words[k] = __ldg((const uint32_t *)(codes + k * ROWS * 64));
        scale[k] = __ldg((const uint16_t *)(scales + k * ROWS * 8));
        bias[k] = __ldg((const uint16_t *)(scales + k * ROWS * 8 + 4));
    }
    static_assert(ROWS * EXPAND_AHEAD == ARRANGED_OUTPUTS, "a thread has a word of all its outputs at once");
    __half *to = out + output * w.n_in + unit * UNIT_INPUTS + word * 8;
#pragma unroll
    for (int k = 0; k < EXPAND_AHEAD; k++) {
        uint32_t v[4];
        four_bit_pairs(words[k], half_scale(__uint_as_float((uint32_t)scale[k] << 16)),
                       half_scale(__uint_as_float((uint32_t)bias[k] << 16)), v);
        *(uint4 *)(to + k * ROWS * w.n_in) = *(uint4 *)v;
    }
}

static void launch_expand_arranged(struct cuda_device *d, const struct weight_view &w, __half *out) {
    dim3 grid((unsigned)ceil_div(w.n_in, EXPAND_UNITS * UNIT_INPUTS), (unsigned)(w.n_out / ARRANGED_OUTPUTS));
    expand_arranged_kernel<<<grid, THREADS, 0, d->stream>>>(w, out);
}

// Scales of fp32 are rare enough for the kernel below.
static bool has_short_scales(const struct weight_view &w) { return w.dtype == DTYPE_BF16 || w.dtype == DTYPE_F16; }

static void launch_expand_q4(struct cuda_device *d, const struct weight_view &w, __half *out) {
    int64_t n_word = w.n_out * w.n_in / 8;
    int shift = 0; // words of a group are a power of two
    while ((8 << shift) < w.group) shift++;
    (w.dtype == DTYPE_BF16
         ? expand_q4_kernel<true>
         : expand_q4_kernel<false>)<<<(unsigned)ceil_div(n_word, THREADS * EXPAND_AHEAD), THREADS, 0, d->stream>>>(
        w, shift, n_word, out);
}

template <int BITS> static __global__ void __launch_bounds__(THREADS) expand_kernel(struct weight_view w, __half *out) {
    int64_t k = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 32, o = blockIdx.y;
    if (k >= w.n_in) return;
    uint32_t raw[raw_words<BITS>()], v[16];
    load_raw<BITS>(w, o, k, raw);
    float scale = 0, bias = 0;
    if (BITS < CLASS_BF16) {
        int64_t g = o * w.n_group + k / w.group;
        scale = load_float(w.scales, w.dtype, g);
        bias = load_float(w.biases, w.dtype, g);
    }
    expand_raw<BITS>(raw, w.dtype, scale, bias, v);
    for (int i = 0; i < 4; i++) *(uint4 *)(out + o * w.n_in + k + 8 * i) = *(uint4 *)(v + 4 * i);
}

template <int BITS> static void launch_expand(struct cuda_device *d, const struct weight_view &w, __half *out) {
    dim3 grid((unsigned)ceil_div(w.n_in, 32 * THREADS), (unsigned)w.n_out);
    expand_kernel<BITS><<<grid, THREADS, 0, d->stream>>>(w, out);
}

static void expand(struct cuda_device *d, const struct weight_view &w, __half *out) {
    switch (w.weight_class) {
    case CLASS_Q2: launch_expand<2>(d, w, out); break;
    case CLASS_Q3: launch_expand<3>(d, w, out); break;
    case CLASS_Q4:
        (w.arranged ? launch_expand_arranged : has_short_scales(w) ? launch_expand_q4 : launch_expand<4>)(d, w, out);
        break;
    case CLASS_Q5: launch_expand<5>(d, w, out); break;
    case CLASS_Q6: launch_expand<6>(d, w, out); break;
    case CLASS_Q8: launch_expand<8>(d, w, out); break;
    case CLASS_BF16: launch_expand<CLASS_BF16>(d, w, out); break;
    case CLASS_F16: launch_expand<CLASS_F16>(d, w, out); break;
    default:
        must(w.weight_class == CLASS_F32);
        launch_expand<CLASS_F32>(d, w, out);
        break;
    }
    cuda_launched(d, "weights to fp16");
}

// ---- scales of rows ----

struct scale_job {
    struct tensor outs[LINEAR_MAX_PARTS];
    const float *scales;
    bool divides;
};

#define SCALED_ROWS 64 // of one output a block, which nearly always has nothing to do

static __global__ void __launch_bounds__(THREADS) scale_kernel(const __grid_constant__ scale_job job) {
    const struct tensor &out = job.outs[blockIdx.y];
    int64_t first = (int64_t)blockIdx.x * SCALED_ROWS, end = min(first + SCALED_ROWS, out.n_row);
    if (!__syncthreads_or(first + threadIdx.x < end && job.scales[first + threadIdx.x] != 1)) return;
    for (int64_t row = first; row < end; row++) {
        float scale = job.scales[row];
        if (scale == 1) continue;
        if (job.divides) scale = 1 / scale;
        for (int64_t i = threadIdx.x; i < out.n_col; i += THREADS) ((float *)out.data)[row * out.stride + i] *= scale;
    }
}

static void scale_rows(struct cuda_device *d, const struct tensor *outs, int n_out, const float *scales, bool divides) {
    struct scale_job job = {{}, scales, divides};
    for (int i = 0; i < n_out; i++) job.outs[i] = outs[i];
    scale_kernel<<<dim3((unsigned)ceil_div(outs[0].n_row, SCALED_ROWS), (unsigned)n_out), THREADS, 0, d->stream>>>(job);
    cuda_launched(d, "scales of rows");
}

void linear_expanded_finish(struct cuda_device *d, const struct expanded_sum *sum) {
    if (sum->n_out > 0) scale_rows(d, sum->outs, sum->n_out, sum->x.scales, false);
}

// ---- the product ----

// By shape and layout alone, never by the number of rows.
bool linear_expanded_fits(struct cuda_device *d, const struct weight *w, const struct tensor &out,
                          const struct tensor &residual) {
    bool aligned = rows_are_wide(out) && (residual.data == NULL || residual.dtype == DTYPE_F32);
    if (d->blas == NULL || !aligned || w->n_out < LEAST_OUT || w->n_out % 8 != 0 || w->n_in % 32 != 0) return false;
    if (expanded_bytes(w->n_out, w->n_in) > d->expanded_bytes) return false;
    struct blas_shape *shape = shape_of(d->blas, w->n_out, w->n_in);
    return shape != NULL && shape->usable;
}

// The residual is brought into the output, where the product is added to it.
static void take_residual(struct cuda_device *d, const struct tensor &out, const struct tensor &residual,
                          const float *scales) {
    size_t width = (size_t)out.n_col * sizeof(float);
    if (residual.data != out.data)
        cuda_note(d,
                  cudaMemcpy2DAsync(out.data, (size_t)out.stride * sizeof(float), residual.data,
                                    (size_t)residual.stride * sizeof(float), width, (size_t)out.n_row,
                                    cudaMemcpyDeviceToDevice, d->stream),
                  "copy a residual");
    scale_rows(d, &out, 1, scales, true);
}

void linear_expanded(struct cuda_device *d, const struct weight *weight, const struct tensor &out,
                     const struct tensor &residual, void *room, struct expanded_sum *sum) {
    const struct prompt_rows *x = &sum->x;
    struct weight_view w = weight_view_of(weight);
    struct blas_state *s = d->blas;
    struct blas_shape *shape = shape_of(s, w.n_out, w.n_in);
    expand(d, w, (__half *)room);
    if (residual.data != NULL) take_residual(d, out, residual, x->scales);
    struct layouts l = layouts_of(s, w.n_out, w.n_in, out.n_row, x->stride, out.stride);
    float alpha = 1 / EXPANDED_SCALE, beta = residual.data != NULL ? 1 : 0;
    for (int term = 0; term < (x->second != 0 ? 2 : 1); term++) {
        cublasStatus_t status =
            s->f.matmul(s->handle, s->desc, &alpha, room, l.w, x->rows + term * x->second, l.x, &beta, out.data, l.out,
                        out.data, l.out, &shape->algorithm, NULL, 0, d->stream);
        if (status != CUBLAS_STATUS_SUCCESS) cuda_note(d, cudaErrorUnknown, "multiply matrices");
        beta = 1;
    }
    free_layouts(s, &l);
    cuda_launched(d, "linear, expanded");
    sum->outs[sum->n_out++] = out;
}
