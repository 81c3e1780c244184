// Owns sums over lanes and elementary functions, on the vectors of vec.h.
#ifndef TF_CPU_X86_VEC_MATH_H
#define TF_CPU_X86_VEC_MATH_H

#include "cpu/x86/vec_body.h"

// Lanes are added in one fixed order.
INLINE float vec_sum(vec v) {
    __m256 h = vec_half_sum(v);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

INLINE float vec_largest(vec v) {
    __m256 h = vec_half_max(v);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

// Weights and decays fall off exponentially, and a processor may take a hundred times as long for a number below the
// normal range: in between, such numbers are zeros. What runs in between must be a function that is not inlined, since
// the compiler knows of no connection between this setting and arithmetic.
INLINE unsigned flush_tiny_numbers(void) {
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | _MM_FLUSH_ZERO_ON | 0x40); // and denormals are zeros
    return before;
}
#define NOT_INLINED __attribute__((noinline))

// e^x to within an ulp or two; 0 below -105, inf above 89, NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2, and e^r is
// 1 + r + r^2 p(r) with p of degree 4 fitted to the least relative error (3e-9).
INLINE vec vec_exp(vec x) {
    x = vec_min(vec_set(89), vec_max(vec_set(-105), x));
    vec n = vec_round(vec_mul(x, vec_set(0x1.715476p+0f))); // 1 / ln 2
    vec r = vec_fnma(n, vec_set(0x1.62e4p-1f), x);          // ln 2, its first 15 bits,
    r = vec_fnma(n, vec_set(0x1.7f7d1cp-20f), r);           // and the rest
    vec p = vec_set(0x1.6a2434p-10f);
    p = vec_fma(p, r, vec_set(0x1.1239e2p-7f));
    p = vec_fma(p, r, vec_set(0x1.5558f2p-5f));
    p = vec_fma(p, r, vec_set(0x1.555492p-3f));
    p = vec_fma(p, r, vec_set(0x1.fffffcp-2f));
    vec e = vec_add(vec_fma(vec_mul(r, r), p, r), vec_set(1));
    return vec_scale2(e, n);
}

// 1 / (1 + e^-x). Below -80, where it is less than 1e-34, it stays at what it is there.
INLINE vec vec_sigmoid(vec x) {
    vec e = vec_exp(vec_sub(vec_set(0), vec_max(vec_set(-80), x)));
    return vec_reciprocal(vec_add(vec_set(1), e));
}

INLINE vec vec_silu(vec x) { return vec_mul(x, vec_sigmoid(x)); }

#endif
