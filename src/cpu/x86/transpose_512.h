// Owns turning 16 rows of memory into columns with AVX-512, which is how weights get into the layout that dot-product
// and tile instructions want.
#ifndef TF_CPU_X86_TRANSPOSE_512_H
#define TF_CPU_X86_TRANSPOSE_512_H

#include <immintrin.h>
#include <stdint.h>

// The 16 bytes at rows[i], rows[i + step], ... in the four quarters of a register. Masked broadcasts from memory need
// no shuffle unit, which is what a transposition waits for.
static inline __m512i gather_quarters(const uint8_t *const *rows, int step, int64_t offset) {
    __m512i r = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(rows[0] + offset)));
    r = _mm512_mask_broadcast_i32x4(r, 0x00f0, _mm_loadu_si128((const __m128i *)(rows[step] + offset)));
    r = _mm512_mask_broadcast_i32x4(r, 0x0f00, _mm_loadu_si128((const __m128i *)(rows[2 * step] + offset)));
    return _mm512_mask_broadcast_i32x4(r, 0xf000, _mm_loadu_si128((const __m128i *)(rows[3 * step] + offset)));
}

// Four dwords at `offset` of each of 16 rows: column[d] holds dword d of rows 0 to 15.
static inline void load_columns_16x4(const uint8_t *const rows[16], int64_t offset, __m512i column[4]) {
    __m512i r0 = gather_quarters(rows, 4, offset), r1 = gather_quarters(rows + 1, 4, offset);
    __m512i r2 = gather_quarters(rows + 2, 4, offset), r3 = gather_quarters(rows + 3, 4, offset);
    __m512i low01 = _mm512_unpacklo_epi32(r0, r1), high01 = _mm512_unpackhi_epi32(r0, r1);
    __m512i low23 = _mm512_unpacklo_epi32(r2, r3), high23 = _mm512_unpackhi_epi32(r2, r3);
    column[0] = _mm512_unpacklo_epi64(low01, low23);
    column[1] = _mm512_unpackhi_epi64(low01, low23);
    column[2] = _mm512_unpacklo_epi64(high01, high23);
    column[3] = _mm512_unpackhi_epi64(high01, high23);
}

// Two qwords at `offset` of each of 8 rows: column[q] holds qword q of rows 0 to 7.
static inline void load_columns_8x2(const uint8_t *const rows[8], int64_t offset, __m512i column[2]) {
    __m512i even = gather_quarters(rows, 2, offset), odd = gather_quarters(rows + 1, 2, offset);
    column[0] = _mm512_unpacklo_epi64(even, odd);
    column[1] = _mm512_unpackhi_epi64(even, odd);
}

#endif
