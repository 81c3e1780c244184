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

// Units go in pairs, and outputs in eights.
static inline bool can_be_arranged(const struct weight_view &w) {
    bool aligned = (uintptr_t)w.scales % 8 == 0 && (uintptr_t)w.biases % 8 == 0;
    return is_usual_q4(w) && aligned && w.n_out % ARRANGED_OUTPUTS == 0 && w.n_in % (2 * UNIT_INPUTS) == 0;
}

// Outputs [first, first + n) of a matrix, n <= 16 MT. Those behind the last are not fetched: what is in their place is
// any number, and nobody stores what comes of it.
struct q4_matrix {
    const char *codes, *scales, *biases;     // of the whole matrix
    int row_bytes, scale_bytes, first, last; // last: the highest output that is fetched, counted from the first
};

__device__ __forceinline__ struct q4_matrix q4_matrix_of(const struct weight_view &w, int first, int n = 65536) {
    return {
        w.data, w.scales, w.biases, (int)w.row_bytes, w.n_group * 2, first, min((int)w.n_out, first + n) - 1 - first};
}

// Where output o of those has its codes of a unit.
template <bool ARRANGED>
__device__ __forceinline__ const char *q4_codes_of(const struct q4_matrix &w, int o, int unit) {
    o += w.first;
    return w.codes + (ARRANGED ? arranged_codes(o, unit, w.row_bytes) : (int64_t)o * w.row_bytes + unit * 64);
}
// And what this thread copies of its scales and biases of a unit: two scales, or, by the upper half of a warp, two
// biases; all four if it is arranged.
template <bool ARRANGED>
__device__ __forceinline__ const char *q4_scales_from(const struct q4_matrix &w, int o, int unit) {
    bool first = ARRANGED ? unit % 2 == 0 : threadIdx.x % 32 < 16;
    int64_t at = ARRANGED ? arranged_scales(w.first + o, unit, w.scale_bytes)
                          : (int64_t)(w.first + o) * w.scale_bytes + unit * 4;
    return (first ? w.scales : w.biases) + at;
}

// Sixteen slots hold the outputs of one matrix in order; or, of a pair of matrices, eight of each.
__device__ __forceinline__ int q4_output_in(bool pair, int slot) { return pair ? slot / 16 * 8 + slot % 8 : slot; }
__device__ __forceinline__ bool q4_is_second(bool pair, int slot) { return pair && slot % 16 >= 8; }

// What this thread copies of each unit: 16 bytes of two outputs of each 16, and one output's two scales or two biases,
// or all four if it is arranged.
template <int MT, bool ARRANGED> struct q4_source {
    static constexpr int N_SCALES = ARRANGED ? (MT + 1) / 2 : MT;
    const char *codes[2 * MT], *scales[N_SCALES];
    int last;
};

// Which slot's scales or biases this thread copies at its nth.
template <bool ARRANGED> __device__ __forceinline__ int q4_scale_slot(int nth) {
    int lane = threadIdx.x % 32;
    return ARRANGED ? 32 * nth + lane : 16 * nth + lane % 16;
}

// PAIR: of two matrices that are alike; else `second` is not used.
template <int MT, bool PAIR, bool ARRANGED>
__device__ __forceinline__ void q4_open(const struct q4_matrix &first, const struct q4_matrix &second, int unit,
                                        struct q4_source<MT, ARRANGED> *q) {
    int lane = threadIdx.x % 32;
    int64_t eight = (int64_t)first.row_bytes * 8;
    const char *codes = q4_codes_of<ARRANGED>(first, lane / 4, unit) + lane % 4 * 16;
    const char *others = PAIR ? q4_codes_of<ARRANGED>(second, lane / 4, unit) + lane % 4 * 16 : codes + eight;
#pragma unroll
    for (int t = 0; t < MT; t++) {
        q->codes[2 * t] = codes + t * (PAIR ? eight : 2 * eight);
        q->codes[2 * t + 1] = others + t * (PAIR ? eight : 2 * eight);
    }
#pragma unroll
    for (int t = 0; t < q->N_SCALES; t++) {
        int slot = q4_scale_slot<ARRANGED>(t), o = q4_output_in(PAIR, slot);
        q->scales[t] = q4_is_second(PAIR, slot) ? q4_scales_from<ARRANGED>(second, o, unit)
                                                : q4_scales_from<ARRANGED>(first, o, unit);
    }
    q->last = first.last;
}

// An output's 64 bytes are four pieces; two of each four outputs have the halves exchanged, so that the threads of a
// half warp meet different banks.
__device__ __forceinline__ int q4_exchange(int output) { return (output & 2) * 16; }

// Where this thread puts its piece of every eight outputs.
__device__ __forceinline__ int q4_piece_at() {
    int lane = threadIdx.x % 32;
    return lane / 4 * 64 + (lane % 4 * 16 ^ q4_exchange(lane / 4));
}

__device__ __forceinline__ void q4_copy_codes(uint32_t to, const char *from) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "l"(read_once()));
}
// Scales or biases of the slot, to where the unit's are.
template <bool ARRANGED> __device__ __forceinline__ void q4_copy_scales(uint32_t to, int slot, const char *from) {
    if (ARRANGED)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to + slot * 8), "l"(from));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + slot * 8 + threadIdx.x % 32 / 16 * 4),
                     "l"(from));
}

// Bytes from a unit to the next; of arranged scales on average, which lie so for every second unit.
template <bool ARRANGED> __device__ constexpr int q4_codes_step() { return ARRANGED ? ARRANGED_CODES : 64; }
template <bool ARRANGED> __device__ constexpr int q4_scales_step() { return ARRANGED ? ARRANGED_SCALES / 2 : 4; }

// Starts the copy of the unit that is next, and moves on by `step` units, as many as share a sum (q4_sharing): of what
// is arranged that is an even number, since it has an even number of units.
template <int MT, bool PAIR, bool ARRANGED>
__device__ __forceinline__ void q4_fetch(struct q4_source<MT, ARRANGED> *q, uint32_t unit, int step) {
    int lane = threadIdx.x % 32;
    uint32_t to = unit + q4_piece_at();
#pragma unroll
    for (int t = 0; t < 2 * MT; t++) {
        if (q4_output_in(PAIR, t * 8 + lane / 4) <= q->last) q4_copy_codes(to + t * 512, q->codes[t]);
        q->codes[t] += step * q4_codes_step<ARRANGED>();
    }
#pragma unroll
    for (int t = 0; t < q->N_SCALES; t++) {
        int slot = q4_scale_slot<ARRANGED>(t);
        if (slot < 16 * MT && q4_output_in(PAIR, slot) <= q->last)
            q4_copy_scales<ARRANGED>(unit + MT * Q4_CODES, slot, q->scales[t]);
        q->scales[t] += step * q4_scales_step<ARRANGED>();
    }
}

__device__ __forceinline__ float2 bf16_pair(uint32_t word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

#endif
