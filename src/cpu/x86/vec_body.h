// Owns the vector of floats that kernels are written in once and compiled with twice: 16 lanes with AVX-512, 8 with
// AVX2. Included by files that are compiled for one of them; everything here is local to such a file.
#ifndef TF_CPU_X86_VEC_H
#define TF_CPU_X86_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)

#define VEC_N 16
typedef __m512 vec;

INLINE vec vec_set(float x) { return _mm512_set1_ps(x); }
INLINE vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vec_store(float *p, vec v) { _mm512_storeu_ps(p, v); }
INLINE vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
INLINE vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
INLINE vec vec_div(vec a, vec b) { return _mm512_div_ps(a, b); }
INLINE vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }   // a b + c
INLINE vec vec_fnma(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); } // c - a b
INLINE vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }               // b where either is NaN
INLINE vec vec_min(vec a, vec b) { return _mm512_min_ps(a, b); }
INLINE vec vec_round(vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vec vec_scale2(vec a, vec n) { return _mm512_scalef_ps(a, n); } // a 2^n, n an integer
// The first n lanes, 0 < n <= VEC_N; the others are zero, or not written.
INLINE vec vec_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps((__mmask16)(0xffffu >> (16 - n)), p); }
INLINE void vec_store_n(float *p, vec v, int64_t n) { _mm512_mask_storeu_ps(p, (__mmask16)(0xffffu >> (16 - n)), v); }
// Lanes of a below n, of b from n on; 0 <= n.
INLINE vec vec_blend_n(vec a, vec b, int64_t n) {
    return n >= 16 ? a : _mm512_mask_blend_ps((__mmask16)((1u << n) - 1), b, a);
}
INLINE unsigned vec_not_less(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); } // a bit a lane

INLINE vec vec_load_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
INLINE vec vec_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
INLINE void vec_store_f16(void *p, vec v) { _mm256_storeu_si256(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
INLINE void vec_store_bf16(void *p, vec v) {
    __m512i u = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i nan = _mm512_or_si512(u, _mm512_set1_epi32(0x400000)); // stays a NaN, as in base/numeric.h
    rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), nan);
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
// VEC_N e4m3 codes times 2^-8: as f16, whose exponent is biased by 8 more, they need no rounding.
INLINE vec vec_load_e4m3(const uint8_t *p) {
    __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i magnitude = _mm256_and_si256(c, _mm256_set1_epi16(0x7f));
    __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
    __m256i sign = _mm256_slli_epi16(_mm256_xor_si256(c, magnitude), 8);
    return _mm512_cvtph_ps(_mm256_or_si256(_mm256_or_si256(sign, nan), _mm256_slli_epi16(magnitude, 7)));
}
INLINE vec vec_load_u8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
// VEC_N 4-bit codes, low half of a byte first.
INLINE vec vec_load_u4(const uint8_t *p) {
    const __m512i shift = _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m512i half = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512i v = _mm512_permutexvar_epi32(half, _mm512_castsi128_si512(_mm_loadl_epi64((const __m128i *)p)));
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srlv_epi32(v, shift), _mm512_set1_epi32(15)));
}
// 1 / d for finite d in the normal range, to within an ulp: one Newton step on 14 bits.
INLINE vec vec_reciprocal(vec d) {
    vec r = _mm512_rcp14_ps(d);
    return vec_fma(vec_fnma(d, r, vec_set(1)), r, r);
}

INLINE __m256 vec_half_sum(vec v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }
INLINE __m256 vec_half_max(vec v) { return _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }

#else

#define VEC_N 8
typedef __m256 vec;

INLINE __m256i vec_first(int64_t n) { // all ones in the first n lanes
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}
INLINE vec vec_set(float x) { return _mm256_set1_ps(x); }
INLINE vec vec_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void vec_store(float *p, vec v) { _mm256_storeu_ps(p, v); }
INLINE vec vec_add(vec a, vec b) { return _mm256_add_ps(a, b); }
INLINE vec vec_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
INLINE vec vec_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
INLINE vec vec_div(vec a, vec b) { return _mm256_div_ps(a, b); }
INLINE vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vec vec_fnma(vec a, vec b, vec c) { return _mm256_fnmadd_ps(a, b, c); }
INLINE vec vec_max(vec a, vec b) { return _mm256_max_ps(a, b); }
INLINE vec vec_min(vec a, vec b) { return _mm256_min_ps(a, b); }
INLINE vec vec_round(vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vec vec_exp2i(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
INLINE vec vec_scale2(vec a, vec n) { // in two factors, since 2^n itself may not be a float
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1);
    return vec_mul(vec_mul(a, vec_exp2i(half)), vec_exp2i(_mm256_sub_epi32(i, half)));
}
INLINE vec vec_load_n(const float *p, int64_t n) { return _mm256_maskload_ps(p, vec_first(n)); }
INLINE void vec_store_n(float *p, vec v, int64_t n) { _mm256_maskstore_ps(p, vec_first(n), v); }
INLINE vec vec_blend_n(vec a, vec b, int64_t n) { return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(vec_first(n))); }
INLINE unsigned vec_not_less(vec a, vec b) { return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)); }

INLINE vec vec_load_bf16(const void *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
INLINE vec vec_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
INLINE void vec_store_f16(void *p, vec v) { _mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
INLINE void vec_store_bf16(void *p, vec v) {
    __m256i u = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    rounded = _mm256_blendv_epi8(rounded, nan, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
    rounded = _mm256_srli_epi32(rounded, 16);
    _mm_storeu_si128(p, _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1)));
}
INLINE vec vec_load_e4m3(const uint8_t *p) {
    __m128i c = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p));
    __m128i magnitude = _mm_and_si128(c, _mm_set1_epi16(0x7f));
    __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
    __m128i sign = _mm_slli_epi16(_mm_xor_si128(c, magnitude), 8);
    return _mm256_cvtph_ps(_mm_or_si128(_mm_or_si128(sign, nan), _mm_slli_epi16(magnitude, 7)));
}
INLINE vec vec_load_u8(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE vec vec_load_u4(const uint8_t *p) {
    const __m256i shift = _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0);
    int32_t codes;
    memcpy(&codes, p, sizeof codes);
    return _mm256_cvtepi32_ps(
        _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(codes), shift), _mm256_set1_epi32(15)));
}
INLINE vec vec_reciprocal(vec d) { return _mm256_div_ps(vec_set(1), d); }
INLINE __m256 vec_half_sum(vec v) { return v; }
INLINE __m256 vec_half_max(vec v) { return v; }

#endif
#endif
