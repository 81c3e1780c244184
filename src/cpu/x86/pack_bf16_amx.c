// Plain weights and rows of x to terms of bf16.
#include "cpu/x86/pack_bf16.h"
#include "cpu/x86/codes_512.h"

// 32 values as bf16, and what is left of them.
struct split {
    __m512i rounded, rest;
};

static inline __m512 as_float(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

static struct split split_pair(__m512 low, __m512 high) {
    struct split s = {.rounded = (__m512i)_mm512_cvtne2ps_pbh(high, low)};
    low = _mm512_sub_ps(low, as_float(_mm512_castsi512_si256(s.rounded)));
    high = _mm512_sub_ps(high, as_float(_mm512_extracti64x4_epi64(s.rounded, 1)));
    s.rest = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    return s;
}

// Up to 32 values from element `first` on; the rest are zeros.
static struct split split_floats(enum dtype type, const void *x, int64_t first, int64_t n) {
    __m512 low = load_floats(type, x, first, n < 16 ? (int)n : 16), high = _mm512_setzero_ps();
    if (n > 16) high = load_floats(type, x, first + 16, n < 32 ? (int)n - 16 : 16);
    return split_pair(low, high);
}

static void pack_rows(const uint8_t *const rows[PACK_OUTS], int64_t depth, uint8_t *tiles) {
    for (int64_t offset = 0; offset < depth * 2; offset += 64, tiles += PACK_TILE) {
        for (int c = 0; c < 4; c++) {
            __m512i column[4];
            load_columns_16x4(rows, offset + 16 * c, column);
            for (int d = 0; d < 4; d++) _mm512_storeu_si512(tiles + (4 * c + d) * 64, column[d]);
        }
    }
}

// Inputs [k0, k0 + depth) of output o: where they lie, or in `row`.
static const uint16_t *term_of(const struct weight *w, enum pack_term term, int64_t o, int64_t k0, int64_t depth,
                               uint16_t *row) {
    int64_t first = o * w->n_in + k0;
    if (w->dtype == DTYPE_BF16 && depth % PACK_DEPTH == 0) return (const uint16_t *)w->data + first;
    for (int64_t k = 0; k < depth; k += PACK_DEPTH) {
        struct split s = split_floats(w->dtype, w->data, first + k, depth - k);
        _mm512_storeu_si512(row + k, term == PACK_ROUNDED ? s.rounded : s.rest);
    }
    return row;
}

void pack_bf16_panel(const struct weight *w, enum pack_term term, int64_t first, int64_t last, int64_t k0,
                     int64_t depth, void *scratch, uint8_t *panel) {
    int64_t padded = pack_padded(depth);
    for (int64_t o = first; o < last; o += PACK_OUTS, panel += padded / PACK_DEPTH * PACK_TILE) {
        const uint8_t *rows[PACK_OUTS];
        for (int64_t j = 0; j < PACK_OUTS; j++) {
            int64_t from = o + j < last ? o + j : last - 1;
            rows[j] = (const uint8_t *)term_of(w, term, from, k0, depth, (uint16_t *)scratch + j * padded);
        }
        pack_rows(rows, padded, panel);
    }
}

const uint16_t *pack_bf16_rows(const struct weight *w, int64_t first, int64_t last, void *scratch, int64_t *stride) {
    *stride = pack_padded(w->n_in);
    const uint16_t *row = NULL;
    for (int64_t o = last - 1; o >= first; o--)
        row = term_of(w, PACK_ROUNDED, o, 0, w->n_in, (uint16_t *)scratch + (o - first) * *stride);
    return row; // of the first output; without gaps between rows where they lie, since n_in is then a multiple of 32
}

void pack_bf16_row(const float *x, int64_t n, uint16_t *rounded, uint16_t *rest) {
    for (int64_t i = 0; i < n; i += PACK_DEPTH) {
        struct split s = split_floats(DTYPE_F32, x, i, n - i);
        _mm512_storeu_si512(rounded + i, s.rounded);
        _mm512_storeu_si512(rest + i, s.rest);
    }
}
