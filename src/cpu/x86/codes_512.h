// Owns reading packed codes of any width, and the scales and biases of their groups, with AVX-512.
#ifndef TF_CPU_X86_CODES_512_H
#define TF_CPU_X86_CODES_512_H

#include "cpu/weights.h"
#include "cpu/x86/transpose_512.h"

// Constants for one width of at most 6 bits: 64 codes are taken apart at once. Eight neighbours share a quarter of one
// of two registers, so that packing words into bytes puts all of them in order.
struct code_unpacker {
    int bits;
    struct {
        __m512i words;  // brings a quarter's first four words into it
        __m512i bytes;  // then the two bytes that hold a code into the code's word
        __m512i factor; // then a multiplication puts the code's highest bit at the word's top
    } half[2];
};

static inline struct code_unpacker code_unpacker_make(int bits) {
    struct code_unpacker u = {.bits = bits};
    for (int h = 0; h < 2; h++) {
        uint16_t words[32], factor[32];
        uint8_t bytes[64];
        for (int i = 0; i < 32; i++) {
            int eight = i / 8 * 2 + h, bit = i % 8 * bits + eight * bits % 2 * 8;
            words[i] = (uint16_t)(eight * bits / 2 + i % 4);
            bytes[2 * i] = (uint8_t)(bit / 8);
            bytes[2 * i + 1] = (uint8_t)(bit / 8 + 1);
            factor[i] = (uint16_t)(1u << (16 - bits - bit % 8));
        }
        u.half[h].words = _mm512_loadu_si512(words);
        u.half[h].bytes = _mm512_loadu_si512(bytes);
        u.half[h].factor = _mm512_loadu_si512(factor);
    }
    return u;
}

// 64 codes as words, of which those in the given dwords exist.
static inline void unpack_words(const struct code_unpacker *u, const uint8_t *packed, __mmask16 dwords,
                                __m512i half[2]) {
    __m512i v = _mm512_maskz_loadu_epi32(dwords, packed);
    for (int h = 0; h < 2; h++) {
        half[h] = _mm512_shuffle_epi8(_mm512_permutexvar_epi16(u->half[h].words, v), u->half[h].bytes);
        half[h] = _mm512_srl_epi16(_mm512_mullo_epi16(half[h], u->half[h].factor), _mm_cvtsi32_si128(16 - u->bits));
    }
}

static inline __m512i unpack_64(const struct code_unpacker *u, const uint8_t *packed, __mmask16 dwords) {
    __m512i half[2];
    unpack_words(u, packed, dwords, half);
    return _mm512_packus_epi16(half[0], half[1]);
}

// n codes, a multiple of 32, in their own order.
static inline void unpack_codes(const struct code_unpacker *u, const uint8_t *packed, int64_t n, uint8_t *codes) {
    int64_t i = 0;
    for (; i + 64 <= n; i += 64, packed += 8 * u->bits)
        _mm512_storeu_si512(codes + i, unpack_64(u, packed, (__mmask16)((1u << 2 * u->bits) - 1)));
    if (i == n) return;
    __m512i rest = unpack_64(u, packed, (__mmask16)((1u << u->bits) - 1));
    _mm256_storeu_si256((__m256i *)(codes + i), _mm512_castsi512_si256(rest));
}

// Up to 16 values of type f32, bf16 or f16, from element `first` on; the rest are zeros.
static inline __m512 load_floats(enum dtype type, const void *p, int64_t first, int n) {
    __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (type == DTYPE_F32) return _mm512_maskz_loadu_ps(mask, (const float *)p + first);
    __m256i half = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)p + first);
    if (type == DTYPE_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// Values of n_group groups from group g0 on for 16 outputs: columns[g * 16 + j] is that of output outputs[j], group g0
// + g.
static inline void load_group_columns(const struct weight *w, const void *values, const int64_t outputs[16], int64_t g0,
                                      int64_t n_group, float *columns) {
    _Alignas(64) float block[16][16];
    const uint8_t *rows[16];
    for (int j = 0; j < 16; j++) rows[j] = (const uint8_t *)block[j];
    for (int64_t g = 0; g < n_group; g += 16) {
        int n = n_group - g < 16 ? (int)(n_group - g) : 16;
        for (int j = 0; j < 16; j++)
            _mm512_store_ps(block[j], load_floats(w->dtype, values, outputs[j] * (w->n_in / w->group) + g0 + g, n));
        for (int d = 0; d < n; d += 4) {
            __m512i column[4];
            load_columns_16x4(rows, d * (int64_t)sizeof(float), column);
            for (int i = 0; i < 4 && d + i < n; i++) _mm512_storeu_si512(columns + (g + d + i) * 16, column[i]);
        }
    }
}

#endif
