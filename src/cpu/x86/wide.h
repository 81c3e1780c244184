// Owns vectors of doubles and of 64-bit integers, as vec.h does for floats.
#ifndef TF_CPU_X86_WIDE_H
#define TF_CPU_X86_WIDE_H

#include "cpu/x86/vec_body.h"

#if defined(__AVX512F__)
#define WIDE_N 8
typedef __m512d wide;  // doubles
typedef __m512i words; // as many 64-bit integers
INLINE wide wide_set(double x) { return _mm512_set1_pd(x); }
INLINE wide wide_from_floats(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
INLINE wide wide_add(wide a, wide b) { return _mm512_add_pd(a, b); }
INLINE wide wide_sub(wide a, wide b) { return _mm512_sub_pd(a, b); }
INLINE wide wide_mul(wide a, wide b) { return _mm512_mul_pd(a, b); }
INLINE wide wide_div(wide a, wide b) { return _mm512_div_pd(a, b); }
INLINE wide wide_fma(wide a, wide b, wide c) { return _mm512_fmadd_pd(a, b, c); }
INLINE wide wide_max(wide a, wide b) { return _mm512_max_pd(a, b); }
INLINE unsigned wide_not_less(wide a, wide b) { return _mm512_cmp_pd_mask(a, b, _CMP_GE_OQ); }
// e where x >= bound, else 0
INLINE wide wide_where_not_less(wide x, wide bound, wide e) {
    return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(x, bound, _CMP_GE_OQ), e);
}
INLINE wide wide_of(words w) { return _mm512_castsi512_pd(w); }
INLINE words words_of(wide w) { return _mm512_castpd_si512(w); }
INLINE words words_set(uint64_t x) { return _mm512_set1_epi64((long long)x); }
INLINE words words_counting(void) { return _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0); }
INLINE words words_add(words a, words b) { return _mm512_add_epi64(a, b); }
INLINE words words_sub(words a, words b) { return _mm512_sub_epi64(a, b); }
INLINE words words_xor(words a, words b) { return _mm512_xor_si512(a, b); }
INLINE words words_and(words a, words b) { return _mm512_and_si512(a, b); }
INLINE words words_or(words a, words b) { return _mm512_or_si512(a, b); }
INLINE words words_right(words a, int n) { return _mm512_srli_epi64(a, (unsigned)n); }
INLINE words words_left(words a, int n) { return _mm512_slli_epi64(a, (unsigned)n); }
INLINE words words_mul32(words a, words b) { return _mm512_mul_epu32(a, b); } // of the low halves
#else
#define WIDE_N 4
typedef __m256d wide;
typedef __m256i words;
INLINE wide wide_set(double x) { return _mm256_set1_pd(x); }
INLINE wide wide_from_floats(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
INLINE wide wide_add(wide a, wide b) { return _mm256_add_pd(a, b); }
INLINE wide wide_sub(wide a, wide b) { return _mm256_sub_pd(a, b); }
INLINE wide wide_mul(wide a, wide b) { return _mm256_mul_pd(a, b); }
INLINE wide wide_div(wide a, wide b) { return _mm256_div_pd(a, b); }
INLINE wide wide_fma(wide a, wide b, wide c) { return _mm256_fmadd_pd(a, b, c); }
INLINE wide wide_max(wide a, wide b) { return _mm256_max_pd(a, b); }
INLINE unsigned wide_not_less(wide a, wide b) { return (unsigned)_mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_GE_OQ)); }
INLINE wide wide_where_not_less(wide x, wide bound, wide e) {
    return _mm256_and_pd(_mm256_cmp_pd(x, bound, _CMP_GE_OQ), e);
}
INLINE wide wide_of(words w) { return _mm256_castsi256_pd(w); }
INLINE words words_of(wide w) { return _mm256_castpd_si256(w); }
INLINE words words_set(uint64_t x) { return _mm256_set1_epi64x((long long)x); }
INLINE words words_counting(void) { return _mm256_set_epi64x(3, 2, 1, 0); }
INLINE words words_add(words a, words b) { return _mm256_add_epi64(a, b); }
INLINE words words_sub(words a, words b) { return _mm256_sub_epi64(a, b); }
INLINE words words_xor(words a, words b) { return _mm256_xor_si256(a, b); }
INLINE words words_and(words a, words b) { return _mm256_and_si256(a, b); }
INLINE words words_or(words a, words b) { return _mm256_or_si256(a, b); }
INLINE words words_right(words a, int n) { return _mm256_srli_epi64(a, n); }
INLINE words words_left(words a, int n) { return _mm256_slli_epi64(a, n); }
INLINE words words_mul32(words a, words b) { return _mm256_mul_epu32(a, b); }
#endif

#endif
