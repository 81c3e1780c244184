// linear in FORM_PROMPT for large matrices: the weights are expanded to bf16 once a call, and cuBLASLt multiplies.
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
#define LEAST_OUT   64   // narrower matrices are left to the tiles

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
static cublasLtMatrixLayout_t layout(struct blas_state *s, int64_t n_row, int64_t n_col, int64_t stride) {
    cublasLtMatrixLayout_t l = NULL;
    s->f.layout_create(&l, CUDA_R_16BF, (uint64_t)n_col, (uint64_t)n_row, stride);
    return l;
}

struct layouts {
    cublasLtMatrixLayout_t w, x, out;
};

static struct layouts layouts_of(struct blas_state *s, int64_t n_out, int64_t n_in, int64_t n_row, int64_t x_stride,
                                 int64_t out_stride) {
    return (struct layouts){layout(s, n_out, n_in, n_in), layout(s, n_row, n_in, x_stride),
                            layout(s, n_row, n_out, out_stride)};
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

// Eight 4-bit codes a thread: loads and stores of a warp are contiguous.
static __global__ void __launch_bounds__(THREADS) expand_q4_kernel(struct weight_view w, __nv_bfloat16 *out) {
    int64_t words = w.n_in / 8, i = (int64_t)blockIdx.x * THREADS + threadIdx.x, o = blockIdx.y;
    if (i >= words) return;
    uint32_t word = __ldg((const uint32_t *)(w.data + o * w.row_bytes) + i), v[4];
    int64_t g = o * w.n_group + i * 8 / w.group;
    if (w.dtype == DTYPE_BF16) {
        four_bit_pairs(word, __bfloat162bfloat162(((const __nv_bfloat16 *)w.scales)[g]),
                       __bfloat162bfloat162(((const __nv_bfloat16 *)w.biases)[g]), v);
    } else {
        float scale = load_float(w.scales, w.dtype, g), bias = load_float(w.biases, w.dtype, g);
        for (int k = 0; k < 4; k++)
            v[k] = pack_bf16(fmaf((float)(word >> 8 * k & 15), scale, bias),
                             fmaf((float)(word >> (8 * k + 4) & 15), scale, bias));
    }
    *(uint4 *)(out + o * w.n_in + i * 8) = *(uint4 *)v;
}

template <int BITS>
static __global__ void __launch_bounds__(THREADS) expand_kernel(struct weight_view w, __nv_bfloat16 *out) {
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

template <int BITS> static void launch_expand(struct cuda_device *d, const struct weight_view &w, __nv_bfloat16 *out) {
    dim3 grid((unsigned)ceil_div(w.n_in, 32 * THREADS), (unsigned)w.n_out);
    expand_kernel<BITS><<<grid, THREADS, 0, d->stream>>>(w, out);
}

static void expand(struct cuda_device *d, const struct weight_view &w, __nv_bfloat16 *out) {
    switch (w.weight_class) {
    case CLASS_Q2: launch_expand<2>(d, w, out); break;
    case CLASS_Q3: launch_expand<3>(d, w, out); break;
    case CLASS_Q4:
        expand_q4_kernel<<<dim3((unsigned)ceil_div(w.n_in, 8 * THREADS), (unsigned)w.n_out), THREADS, 0, d->stream>>>(
            w, out);
        break;
    case CLASS_Q5: launch_expand<5>(d, w, out); break;
    case CLASS_Q6: launch_expand<6>(d, w, out); break;
    case CLASS_Q8: launch_expand<8>(d, w, out); break;
    case CLASS_F16: launch_expand<CLASS_F16>(d, w, out); break;
    default:
        must(w.weight_class == CLASS_F32);
        launch_expand<CLASS_F32>(d, w, out);
        break;
    }
    cuda_launched(d, "weights to bf16");
}

// ---- the product ----

// By shape and layout alone, never by the number of rows.
bool linear_expanded_fits(struct cuda_device *d, const struct weight *w, const struct tensor &out,
                          const struct tensor &residual) {
    bool aligned =
        rows_are_wide(out) && (residual.data == NULL || (rows_are_wide(residual) && residual.stride == out.stride));
    if (d->blas == NULL || !aligned || w->n_out < LEAST_OUT || w->n_out % 8 != 0 || w->n_in % 32 != 0) return false;
    bool is_bf16 = w->kind == WEIGHT_PLAIN && w->dtype == DTYPE_BF16; // multiplied where it lies
    if (is_bf16 && (uintptr_t)w->data % 16 != 0) return false;
    if (!is_bf16 && expanded_bytes(w->n_out, w->n_in) > d->expanded_bytes) return false;
    struct blas_shape *shape = shape_of(d->blas, w->n_out, w->n_in);
    return shape != NULL && shape->usable;
}

// room: expanded_bytes of scratch.
void linear_expanded(struct cuda_device *d, const struct weight *weight, const __nv_bfloat16 *x, int64_t x_stride,
                     const struct tensor &out, const struct tensor &residual, void *room) {
    struct weight_view w = weight_view_of(weight);
    struct blas_state *s = d->blas;
    struct blas_shape *shape = shape_of(s, w.n_out, w.n_in);
    const void *values = w.data;
    if (w.weight_class != CLASS_BF16) {
        expand(d, w, (__nv_bfloat16 *)room);
        values = room;
    }
    struct layouts l = layouts_of(s, w.n_out, w.n_in, out.n_row, x_stride, out.stride);
    float one = 1, beta = residual.data != NULL ? 1 : 0;
    const void *added = residual.data != NULL ? residual.data : out.data;
    cublasStatus_t status = s->f.matmul(s->handle, s->desc, &one, values, l.w, x, l.x, &beta, added, l.out, out.data,
                                        l.out, &shape->algorithm, NULL, 0, d->stream);
    free_layouts(s, &l);
    if (status != CUBLAS_STATUS_SUCCESS) cuda_note(d, cudaErrorUnknown, "multiply matrices");
    cuda_launched(d, "linear, expanded");
}
