// Owns a unit: 16 outputs by 128 inputs of a weight matrix as it lies in shared memory, raw, with its scales and
// biases; fetching one, and turning its codes into pairs of bf16.
#ifndef TF_CUDA_UNITS_CUH
#define TF_CUDA_UNITS_CUH

#include "cuda/weights.cuh"

#define UNIT_INPUTS 128
#define UNIT_SCALES 16 // bytes of an output's scales in a unit: at most 4 of 4 bytes

template <int BITS> __host__ __device__ constexpr int element_bits() { return BITS == CLASS_F16 ? 16 : BITS; }
template <int BITS> __host__ __device__ constexpr int unit_row_bytes() {
    return UNIT_INPUTS * element_bits<BITS>() / 8;
}
// Rows are spread so that the threads of a quarter warp meet different banks.
template <int BITS> __host__ __device__ constexpr int unit_pitch() {
    return unit_row_bytes<BITS>() + (BITS == 4 ? 32 : BITS >= 8 ? 16 : 0);
}
template <int BITS> __host__ __device__ constexpr int unit_bytes() {
    return 16 * unit_pitch<BITS>() + (BITS < CLASS_BF16 ? 2 * 16 * UNIT_SCALES : 0);
}
template <int BITS> __host__ __device__ constexpr int unit_stages() { return BITS <= 4 ? 4 : BITS <= 8 ? 3 : 2; }

// Copies `bytes` of which `valid` exist; 16, 4 or 2 at a time, as far as the address allows.
template <int BYTES> __device__ __forceinline__ void copy_any(char *to, const char *from, int valid) {
    if (((uintptr_t)from & 3) == 0 && (valid & 3) == 0) {
        for (int i = 0; i < BYTES; i += 4) copy4(to + i, valid > i ? from + i : from, valid > i ? 4 : 0);
        return;
    }
    for (int i = 0; i < BYTES; i += 2) *(uint16_t *)(to + i) = valid > i ? *(const uint16_t *)(from + i) : 0;
}

template <int BITS>
__device__ __forceinline__ void fetch_scales(char *to, const char *from, const struct weight_view &w, int64_t o0, int u,
                                             int lane) {
    int size = w.dtype == DTYPE_F32 ? 4 : 2, n_group = UNIT_INPUTS / w.group, bytes = n_group * size;
    int m = lane / 2, half = lane % 2, part = bytes > 8 ? 8 : 4;
    if (half * part >= bytes) return;
    int64_t first = (int64_t)u * n_group + half * part / size, left = (w.n_group - first) * size;
    int valid = o0 + m >= w.n_out || left < 0 ? 0 : left < part ? (int)left : part;
    if (valid > bytes - half * part) valid = bytes - half * part;
    const char *source = valid > 0 ? from + ((o0 + m) * w.n_group + first) * size : from;
    if (part == 8)
        copy_any<8>(to + m * UNIT_SCALES + half * 8, source, valid);
    else
        copy_any<4>(to + m * UNIT_SCALES + half * 4, source, valid);
}

// Starts the copy of unit u of outputs [o0, o0 + 16), by one warp; what lies outside the matrix becomes zeros.
template <int BITS>
__device__ __forceinline__ void fetch_unit(char *unit, const struct weight_view &w, int64_t o0, int u) {
    constexpr int ROW = unit_row_bytes<BITS>(), PIECES = ROW / 16;
    int lane = threadIdx.x % 32;
    bool aligned = ((uintptr_t)w.data & 15) == 0 && (w.row_bytes & 15) == 0;
#pragma unroll
    for (int i = lane; i < 16 * PIECES; i += 32) {
        int m = i / PIECES, at = i % PIECES * 16;
        int64_t left = w.row_bytes - (int64_t)u * ROW - at;
        int valid = o0 + m >= w.n_out || left <= 0 ? 0 : left < 16 ? (int)left : 16;
        const char *source = valid > 0 ? w.data + (o0 + m) * w.row_bytes + (int64_t)u * ROW + at : w.data;
        if (aligned)
            copy16(unit + m * unit_pitch<BITS>() + at, source, valid);
        else
            copy_any<16>(unit + m * unit_pitch<BITS>() + at, source, valid);
    }
    if constexpr (BITS >= CLASS_BF16) return;
    char *scales = unit + 16 * unit_pitch<BITS>();
    fetch_scales<BITS>(scales, w.scales, w, o0, u, lane);
    fetch_scales<BITS>(scales + 16 * UNIT_SCALES, w.biases, w, o0, u, lane);
}

template <int BITS>
__device__ __forceinline__ void read_scales(const char *unit, const struct weight_view &w, int m, int group,
                                            float &scale, float &bias) {
    const char *scales = unit + 16 * unit_pitch<BITS>() + m * UNIT_SCALES;
    scale = load_float(scales, w.dtype, group);
    bias = load_float(scales + 16 * UNIT_SCALES, w.dtype, group);
}

// Codes 0..127 as bf16 pairs: 128 + q is exact in bf16, and so is taking the 128 away.
__device__ __forceinline__ uint32_t codes_minus_128(uint32_t pair) {
    __nv_bfloat162 v = *(__nv_bfloat162 *)&pair, offset = __floats2bfloat162_rn(128.0f, 128.0f);
    v = __hsub2(v, offset);
    return *(uint32_t *)&v;
}

// Four-bit codes come out of a word as pairs (j, j + 4): inputs are put into the same order.
template <int BITS> __host__ __device__ constexpr bool pairs_are_split() { return BITS == CLASS_Q4; }

// Eight codes that start at a byte of shared memory with 8-code alignment, as four pairs.
template <int BITS> __device__ __forceinline__ void eight_codes(const char *at, uint32_t out[4]) {
    uint64_t bits = 0;
    if constexpr (BITS == 2) {
        bits = *(const uint16_t *)at;
    } else if constexpr (BITS == 6) {
        const uint16_t *h = (const uint16_t *)at;
        bits = h[0] | (uint64_t)h[1] << 16 | (uint64_t)h[2] << 32;
    } else {
#pragma unroll
        for (int i = 0; i < BITS; i++) bits |= (uint64_t)(uint8_t)at[i] << (8 * i);
    }
    constexpr uint32_t MASK = (1u << BITS) - 1;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t low = (uint32_t)(bits >> (2 * i * BITS)) & MASK,
                 high = (uint32_t)(bits >> ((2 * i + 1) * BITS)) & MASK;
        out[i] = codes_minus_128((high << 16 | low) | 0x43004300u);
    }
}

// N (8 or 16) elements of output m from input i on, as N / 2 pairs.
template <int BITS, int N>
__device__ __forceinline__ void read_codes(const char *unit, int m, int i, uint32_t out[N / 2]) {
    const char *row = unit + m * unit_pitch<BITS>();
    if constexpr (BITS == CLASS_Q4) {
#pragma unroll
        for (int k = 0; k < N / 8; k++) {
            uint32_t word = *(const uint32_t *)(row + i / 2 + 4 * k);
#pragma unroll
            for (int j = 0; j < 4; j++) out[4 * k + j] = codes_minus_128(((word >> 4 * j) & 0x000f000fu) | 0x43004300u);
        }
    } else if constexpr (BITS == CLASS_Q8) {
#pragma unroll
        for (int k = 0; k < N / 4; k++) {
            uint32_t word = *(const uint32_t *)(row + i + 4 * k);
            out[2 * k] = pack_bf16((float)(word & 0xff), (float)(word >> 8 & 0xff));
            out[2 * k + 1] = pack_bf16((float)(word >> 16 & 0xff), (float)(word >> 24));
        }
    } else if constexpr (BITS < CLASS_Q8) {
#pragma unroll
        for (int k = 0; k < N / 8; k++) eight_codes<BITS>(row + (i / 8 + k) * BITS, out + 4 * k);
    } else if constexpr (BITS == CLASS_BF16) {
#pragma unroll
        for (int k = 0; k < N / 8; k++) *(uint4 *)(out + 4 * k) = *(const uint4 *)(row + 2 * (i + 8 * k));
    } else {
#pragma unroll
        for (int k = 0; k < N / 2; k++) {
            int e = i + 2 * k;
            if constexpr (BITS == CLASS_F16)
                out[k] = pack_bf16(__half2float(((const __half *)row)[e]), __half2float(((const __half *)row)[e + 1]));
            else
                out[k] = pack_bf16(((const float *)row)[e], ((const float *)row)[e + 1]);
        }
    }
}

#endif
