// Owns the causal convolution over rows, for the instruction set that the including file is compiled for.
#ifndef TF_CPU_X86_CONV_BODY_H
#define TF_CPU_X86_CONV_BODY_H

#include "cpu/kernel_table.h"
#include "cpu/x86/vec_math.h"
#include <math.h>

// out[j] lane i = p[4 i + j]
#if defined(__AVX512F__)
INLINE void vec_load_strided4(const float *p, vec out[4]) {
    const __m512i pick = _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    vec a = vec_load(p), b = vec_load(p + 16), c = vec_load(p + 32), d = vec_load(p + 48);
    for (int j = 0; j < 4; j++) {
        __m512i index = _mm512_add_epi32(pick, _mm512_set1_epi32(j));
        vec low = _mm512_permutex2var_ps(a, index, b), high = _mm512_permutex2var_ps(c, index, d);
        out[j] = _mm512_mask_blend_ps(0xff00, low, high);
    }
}
#else
INLINE void vec_load_strided4(const float *p, vec out[4]) {
    const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0); // undoes the interleaving of 128-bit halves
    vec a = vec_load(p), b = vec_load(p + 8), c = vec_load(p + 16), d = vec_load(p + 24);
    vec ab0 = _mm256_unpacklo_ps(a, b), ab2 = _mm256_unpackhi_ps(a, b);
    vec cd0 = _mm256_unpacklo_ps(c, d), cd2 = _mm256_unpackhi_ps(c, d);
    out[0] = _mm256_shuffle_ps(ab0, cd0, 0x44);
    out[1] = _mm256_shuffle_ps(ab0, cd0, 0xee);
    out[2] = _mm256_shuffle_ps(ab2, cd2, 0x44);
    out[3] = _mm256_shuffle_ps(ab2, cd2, 0xee);
    for (int j = 0; j < 4; j++) out[j] = _mm256_permutevar8x32_ps(out[j], order);
}
#endif

// VEC_N channels from c on, of four taps: a channel's weights lie side by side, and each row serves four sums.
INLINE void conv_four_taps(const float *const *rows, const float *weight, int64_t n_row, int64_t c, float *const *out) {
    vec w[4], row[4];
    vec_load_strided4(weight + 4 * c, w);
    for (int j = 0; j < 3; j++) row[j + 1] = vec_load(rows[j] + c);
    for (int64_t i = 0; i < n_row; i++) {
        for (int j = 0; j < 3; j++) row[j] = row[j + 1];
        row[3] = vec_load(rows[i + 3] + c);
        vec sum = vec_mul(w[0], row[0]);
        for (int j = 1; j < 4; j++) sum = vec_fma(w[j], row[j], sum);
        vec_store(out[i] + c, vec_silu(sum));
    }
}

static void conv(const float *const *rows, const float *weight, int n_tap, int64_t n_row, int64_t n,
                 float *const *out) {
    int64_t c = 0;
    if (n_tap == 4)
        for (; c + VEC_N <= n; c += VEC_N) conv_four_taps(rows, weight, n_row, c, out);
    for (; c < n; c += VEC_N) {
        int64_t left = n - c < VEC_N ? n - c : VEC_N;
        for (int64_t i = 0; i < n_row; i++) {
            float sums[VEC_N] = {0};
            for (int64_t k = 0; k < left; k++)
                for (int j = 0; j < n_tap; j++)
                    sums[k] = fmaf(weight[(c + k) * n_tap + j], rows[i + j][c + k], sums[k]);
            vec_store_n(out[i] + c, vec_silu(vec_load(sums)), left);
        }
    }
}

static void fill_conv(struct cpu_kernels *k) { k->conv = conv; }

#endif
