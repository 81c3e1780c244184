// Owns turning stored weights into fp16 in registers, 32 at a time, for products in FORM_PROMPT. Each is multiplied by
// EXPANDED_SCALE, so that small ones keep their bits; products take that back.
#ifndef TF_CUDA_EXPAND_CUH
#define TF_CUDA_EXPAND_CUH

#include "cuda/units.cuh"

#define EXPANDED_SCALE 16.0f // of weights: fp16 then has all bits of those from 4e-6 to 4094

template <int BITS> __host__ __device__ constexpr int raw_words() { return element_bits<BITS>(); }

// 32 elements of output o from input k on (a multiple of 32), as they are stored; zeros outside the matrix.
template <int BITS>
__device__ __forceinline__ void load_raw(const struct weight_view &w, int64_t o, int64_t k, uint32_t raw[]) {
    constexpr int WORDS = raw_words<BITS>();
#pragma unroll
    for (int i = 0; i < WORDS; i++) raw[i] = 0;
    if (o >= w.n_out || k >= w.n_in) return;
    const char *from = w.data + o * w.row_bytes + k * element_bits<BITS>() / 8;
    bool whole = k + 32 <= w.n_in;
    if (WORDS % 4 == 0 && whole && ((uintptr_t)from & 15) == 0) {
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) {
            uint4 v = __ldg((const uint4 *)from + i);
            raw[4 * i] = v.x;
            raw[4 * i + 1] = v.y;
            raw[4 * i + 2] = v.z;
            raw[4 * i + 3] = v.w;
        }
    } else if (whole && ((uintptr_t)from & 3) == 0) {
#pragma unroll
        for (int i = 0; i < WORDS; i++) raw[i] = __ldg((const uint32_t *)from + i);
    } else {
        int n = (int)(w.n_in - k);
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const uint16_t *half = (const uint16_t *)from + 2 * i;
            if (element_bits<BITS>() == 32)
                raw[i] = i < n ? half[0] | (uint32_t)half[1] << 16 : 0;
            else
                raw[i] = (2 * i < n ? half[0] : 0) | (2 * i + 1 < n ? (uint32_t)half[1] << 16 : 0);
        }
    }
}

// Code i of 32 that lie in `raw`; everything is known when compiling.
template <int BITS> __device__ __forceinline__ uint32_t raw_code(const uint32_t raw[], int i) {
    int bit = i * BITS, word = bit / 32, shift = bit % 32;
    uint32_t v = raw[word] >> shift;
    if (shift + BITS > 32) v |= raw[word + 1] << (32 - shift);
    return v & ((1u << (BITS % 32)) - 1);
}

// A pair of codes, from 1024 + q: exact in fp16, and so is taking the 1024 away.
__device__ __forceinline__ __half2 half_codes(uint32_t pair) {
    pair |= 0x64006400u;
    return __hsub2(*(__half2 *)&pair, __floats2half2_rn(1024.0f, 1024.0f));
}

// round(q * scale + bias) with one rounding: scales and biases of 8 bits are exact in fp16.
__device__ __forceinline__ uint32_t scale_pair(uint32_t codes, __half2 scale, __half2 bias) {
    __half2 v = __hfma2(half_codes(codes), scale, bias);
    return *(uint32_t *)&v;
}

__device__ __forceinline__ __half2 half_scale(float x) { return __float2half2_rn(x * EXPANDED_SCALE); }

__device__ __forceinline__ uint32_t pack_weights(float low, float high) {
    return pack_f16(low * EXPANDED_SCALE, high * EXPANDED_SCALE);
}

// The pairs (0, 1), (2, 3), ... of eight 4-bit codes.
__device__ __forceinline__ void four_bit_pairs(uint32_t word, __half2 scale, __half2 bias, uint32_t out[4]) {
    uint32_t split[4];
#pragma unroll
    for (int j = 0; j < 4; j++) split[j] = scale_pair((word >> 4 * j) & 0x000f000fu, scale, bias);
    out[0] = __byte_perm(split[0], split[1], 0x5410);
    out[1] = __byte_perm(split[2], split[3], 0x5410);
    out[2] = __byte_perm(split[0], split[1], 0x7632);
    out[3] = __byte_perm(split[2], split[3], 0x7632);
}

// 32 weights, in order.
template <int BITS>
__device__ __forceinline__ void expand_raw(const uint32_t raw[], enum dtype type, float scale, float bias,
                                           uint32_t out[16]) {
    if constexpr (BITS == CLASS_BF16) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float2 v = unpack_bf16(raw[i]);
            out[i] = pack_weights(v.x, v.y);
        }
    } else if constexpr (BITS == CLASS_F16) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float2 v = __half22float2(*(const __half2 *)&raw[i]);
            out[i] = pack_weights(v.x, v.y);
        }
    } else if constexpr (BITS == CLASS_F32) {
#pragma unroll
        for (int i = 0; i < 16; i++)
            out[i] = pack_weights(__uint_as_float(raw[2 * i]), __uint_as_float(raw[2 * i + 1]));
    } else {
        if (type == DTYPE_BF16) {
            __half2 s = half_scale(scale), b = half_scale(bias);
            if constexpr (BITS == CLASS_Q4) {
#pragma unroll
                for (int i = 0; i < 4; i++) four_bit_pairs(raw[i], s, b, out + 4 * i);
            } else {
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    uint32_t pair = raw_code<BITS>(raw, 2 * i) | raw_code<BITS>(raw, 2 * i + 1) << 16;
                    out[i] = scale_pair(pair, s, b);
                }
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < 16; i++)
            out[i] = pack_weights(fmaf((float)raw_code<BITS>(raw, 2 * i), scale, bias),
                                  fmaf((float)raw_code<BITS>(raw, 2 * i + 1), scale, bias));
    }
}

#endif
