// Owns units of the usual kind of weights (4-bit codes in groups of 64 with bf16 scales and biases, inputs in whole
// units, everything aligned): MT times 16 outputs by 128 inputs as they lie in shared memory, codes first, then two
// scales and two biases of each output. Addresses are taken once a tile and only moved on.
#ifndef TF_CUDA_UNITS_Q4_CUH
#define TF_CUDA_UNITS_Q4_CUH

#include "cuda/planes.cuh"
#include "cuda/units.cuh"

#define Q4_STAGES 4
#define Q4_CODES  (16 * 64) // bytes of 16 outputs' codes in a unit

template <int MT> __host__ __device__ constexpr int q4_unit_bytes() { return MT * (Q4_CODES + 16 * 8); }

static inline bool is_usual_q4(const struct weight_view &w) {
    bool aligned = (uintptr_t)w.data % 16 == 0 && (uintptr_t)w.scales % 4 == 0 && (uintptr_t)w.biases % 4 == 0;
    return w.weight_class == CLASS_Q4 && w.group == 64 && w.dtype == DTYPE_BF16 && w.n_in % UNIT_INPUTS == 0 && aligned;
}

// Outputs [o0, o0 + n) of a matrix, n <= 16 MT. Those behind the last are not fetched: what is in their place is any
// number, and nobody stores what comes of it.
struct q4_matrix {
    const char *codes, *scales, *biases; // of output o0
    int row_bytes, scale_bytes, last;    // last: the highest output that is fetched, counted from o0
};

__device__ __forceinline__ struct q4_matrix q4_matrix_of(const struct weight_view &w, int o0, int n = 65536) {
    struct q4_matrix m;
    int last = min((int)w.n_out, o0 + n) - 1;
    m.row_bytes = (int)w.row_bytes;
    m.scale_bytes = w.n_group * 2;
    m.codes = w.data + (int64_t)o0 * m.row_bytes;
    m.scales = w.scales + (int64_t)o0 * m.scale_bytes;
    m.biases = w.biases + (int64_t)o0 * m.scale_bytes;
    m.last = last - o0;
    return m;
}

// What this thread copies of each unit: 16 bytes of two outputs of each 16, and one output's two scales or two biases.
template <int MT> struct q4_source {
    const char *codes[2 * MT], *scales[MT];
    int last;
};

template <int MT>
__device__ __forceinline__ void q4_open(const struct q4_matrix &w, int unit, struct q4_source<MT> *q) {
    int lane = threadIdx.x % 32;
    const char *codes = w.codes + unit * 64 + lane % 4 * 16 + (int64_t)(lane / 4) * w.row_bytes;
#pragma unroll
    for (int t = 0; t < 2 * MT; t++) q->codes[t] = codes + (int64_t)(t * 8) * w.row_bytes;
    const char *scales = (lane < 16 ? w.scales : w.biases) + unit * 4 + (int64_t)(lane % 16) * w.scale_bytes;
#pragma unroll
    for (int t = 0; t < MT; t++) q->scales[t] = scales + (int64_t)(t * 16) * w.scale_bytes;
    q->last = w.last;
}

// As q4_open, of eight outputs of each of two matrices by turns.
template <int MT>
__device__ __forceinline__ void q4_open_pair(const struct q4_matrix &first, const struct q4_matrix &second, int unit,
                                             struct q4_source<MT> *q) {
    int lane = threadIdx.x % 32;
    int64_t codes = unit * 64 + lane % 4 * 16 + (int64_t)(lane / 4) * first.row_bytes;
    int64_t scales = unit * 4 + (int64_t)(lane % 8) * first.scale_bytes;
    const char *left = lane < 16 ? first.scales : first.biases, *right = lane < 16 ? second.scales : second.biases;
#pragma unroll
    for (int t = 0; t < MT; t++) {
        q->codes[2 * t] = first.codes + codes + (int64_t)(t * 8) * first.row_bytes;
        q->codes[2 * t + 1] = second.codes + codes + (int64_t)(t * 8) * first.row_bytes;
        q->scales[t] = (lane % 16 < 8 ? left : right) + scales + (int64_t)(t * 8) * first.scale_bytes;
    }
    q->last = first.last;
}

// An output's 64 bytes are four pieces; two of each four outputs have the halves exchanged, so that the threads of a
// half warp meet different banks.
__device__ __forceinline__ int q4_exchange(int output) { return (output & 2) * 16; }

// Starts the copy of the unit that is next, and moves on by `step` units. PAIR: it is of two matrices.
template <int MT, bool PAIR>
__device__ __forceinline__ void q4_fetch(struct q4_source<MT> *q, uint32_t unit, int step) {
    int lane = threadIdx.x % 32;
    uint32_t to = unit + lane / 4 * 64 + (lane % 4 * 16 ^ q4_exchange(lane / 4));
#pragma unroll
    for (int t = 0; t < 2 * MT; t++) {
        if ((PAIR ? t / 2 : t) * 8 + lane / 4 <= q->last)
            asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to + t * 512),
                         "l"(q->codes[t]), "l"(read_once()));
        q->codes[t] += step * 64;
    }
    to = unit + MT * Q4_CODES + lane % 16 * 8 + lane / 16 * 4;
#pragma unroll
    for (int t = 0; t < MT; t++) {
        if (PAIR ? t * 8 + lane % 8 <= q->last : t * 16 + lane % 16 <= q->last)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + t * 128), "l"(q->scales[t]));
        q->scales[t] += step * 4;
    }
}

__device__ __forceinline__ float2 bf16_pair(uint32_t word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

#endif
