// Owns turning stored weights into bf16 in registers, 32 at a time.
#ifndef TF_CUDA_EXPAND_CUH
#define TF_CUDA_EXPAND_CUH

#include "cuda/units.cuh"

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

// round(q * scale + bias) with one rounding: bf16 arithmetic fuses the two where all three are bf16.
__device__ __forceinline__ uint32_t scale_pair(uint32_t codes, __nv_bfloat162 scale, __nv_bfloat162 bias) {
    __nv_bfloat162 v = __hfma2(*(__nv_bfloat162 *)&codes, scale, bias);
    return *(uint32_t *)&v;
}

// The pairs (0, 1), (2, 3), ... of eight 4-bit codes.
__device__ __forceinline__ void four_bit_pairs(uint32_t word, __nv_bfloat162 scale, __nv_bfloat162 bias,
                                               uint32_t out[4]) {
    uint32_t split[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        split[j] = scale_pair(codes_minus_128(((word >> 4 * j) & 0x000f000fu) | 0x43004300u), scale, bias);
    out[0] = __byte_perm(split[0], split[1], 0x5410);
    out[1] = __byte_perm(split[2], split[3], 0x5410);
    out[2] = __byte_perm(split[0], split[1], 0x7632);
    out[3] = __byte_perm(split[2], split[3], 0x7632);
}

// 32 weights as bf16, in order.
template <int BITS>
__device__ __forceinline__ void expand_raw(const uint32_t raw[], enum dtype type, float scale, float bias,
                                           uint32_t out[16]) {
    if constexpr (BITS == CLASS_BF16) {
#pragma unroll
        for (int i = 0; i < 16; i++) out[i] = raw[i];
    } else if constexpr (BITS == CLASS_F16) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float2 v = __half22float2(*(const __half2 *)&raw[i]);
            out[i] = pack_bf16(v.x, v.y);
        }
    } else if constexpr (BITS == CLASS_F32) {
#pragma unroll
        for (int i = 0; i < 16; i++) out[i] = pack_bf16(__uint_as_float(raw[2 * i]), __uint_as_float(raw[2 * i + 1]));
    } else {
        if (type == DTYPE_BF16 && BITS < 8) {
            __nv_bfloat162 s = __float2bfloat162_rn(scale), b = __float2bfloat162_rn(bias);
            if constexpr (BITS == CLASS_Q4) {
#pragma unroll
                for (int i = 0; i < 4; i++) four_bit_pairs(raw[i], s, b, out + 4 * i);
            } else {
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    uint32_t pair = raw_code<BITS>(raw, 2 * i) | raw_code<BITS>(raw, 2 * i + 1) << 16;
                    out[i] = scale_pair(codes_minus_128(pair | 0x43004300u), s, b);
                }
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < 16; i++)
            out[i] = pack_bf16(fmaf((float)raw_code<BITS>(raw, 2 * i), scale, bias),
                               fmaf((float)raw_code<BITS>(raw, 2 * i + 1), scale, bias));
    }
}

#endif
