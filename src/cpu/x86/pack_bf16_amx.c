// Weights of every kind to panels of bf16 tiles.
#include "cpu/x86/pack_bf16.h"
#include "cpu/x86/codes_512.h"
#include <string.h>

#define MIN_GROUP 32

// What packing 16 outputs needs besides the weight.
struct packing {
    const struct weight *w;
    int64_t outputs[PACK_OUTS];
    int64_t k0, depth;
    float *scales, *biases; // [depth / group][PACK_OUTS]
    uint16_t *rows;         // [PACK_OUTS][padded]
    uint8_t *codes;         // [padded]
    int64_t padded;         // depth up to a multiple of 32
};

static int64_t pad(int64_t depth) { return (depth + PACK_DEPTH - 1) / PACK_DEPTH * PACK_DEPTH; }

size_t pack_bf16_scratch(int64_t depth) {
    int64_t n = pad(depth);
    return (size_t)(2 * (n / MIN_GROUP) * PACK_OUTS) * sizeof(float) + (size_t)(n * PACK_OUTS) * sizeof(uint16_t) +
           (size_t)n;
}

// ---- 4-bit codes, straight from memory ----

// 16 outputs by 32 codes. A register holds two dwords of eight codes for each of eight outputs; masking out code i of
// both gives 16 i-th codes, times a power of 16 that the scale takes back exactly.
static void pack_tile_q4(const uint8_t *const rows[PACK_OUTS], int64_t offset, const __m512 scale[2][8],
                         const __m512 bias[2], uint8_t *tile) {
    __m512i low[2], high[2];
    load_columns_8x2(rows, offset, low);
    load_columns_8x2(rows + 8, offset, high);
    for (int q = 0; q < 2; q++) {
        for (int i = 0; i < 8; i++) {
            __m512i mask = _mm512_set1_epi32((int)(0xfu << 4 * i));
            __m512 a = _mm512_cvtepu32_ps(_mm512_and_si512(low[q], mask));
            __m512 b = _mm512_cvtepu32_ps(_mm512_and_si512(high[q], mask));
            a = _mm512_fmadd_ps(a, scale[0][i], bias[0]);
            b = _mm512_fmadd_ps(b, scale[1][i], bias[1]);
            _mm512_storeu_si512(tile + (8 * q + i) * 64, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        }
    }
}

// The 16 outputs' values, each twice: outputs 0 to 7, then 8 to 15.
static void double_lanes(const float *values, __m512 out[2]) {
    const __m512i low = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    __m512 v = _mm512_loadu_ps(values);
    out[0] = _mm512_permutexvar_ps(low, v);
    out[1] = _mm512_permutexvar_ps(_mm512_add_epi32(low, _mm512_set1_epi32(8)), v);
}

static void pack_q4(const struct packing *p, uint8_t *tiles) {
    const struct weight *w = p->w;
    const uint8_t *rows[PACK_OUTS];
    for (int j = 0; j < PACK_OUTS; j++)
        rows[j] = (const uint8_t *)w->data + (size_t)p->outputs[j] * weight_row_bytes(w) + p->k0 / 2;
    for (int64_t g = 0; g < p->depth / w->group; g++) {
        __m512 scale[2][8], bias[2], one[2];
        double_lanes(p->scales + g * PACK_OUTS, one);
        double_lanes(p->biases + g * PACK_OUTS, bias);
        for (int h = 0; h < 2; h++) {
            scale[h][0] = one[h];
            for (int i = 1; i < 8; i++) scale[h][i] = _mm512_mul_ps(scale[h][i - 1], _mm512_set1_ps(1.0f / 16));
        }
        for (int64_t k = g * w->group; k < (g + 1) * w->group; k += PACK_DEPTH, tiles += PACK_TILE)
            pack_tile_q4(rows, k / 2, scale, bias, tiles);
    }
}

// ---- everything else: rows of bf16 first ----

static void pack_rows(const uint8_t *const rows[PACK_OUTS], int64_t depth, uint8_t *tiles) {
    for (int64_t offset = 0; offset < depth * 2; offset += 64, tiles += PACK_TILE) {
        for (int c = 0; c < 4; c++) {
            __m512i column[4];
            load_columns_16x4(rows, offset + 16 * c, column);
            for (int d = 0; d < 4; d++) _mm512_storeu_si512(tiles + (4 * c + d) * 64, column[d]);
        }
    }
}

static __m512i round_pair(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

static void expand_codes(const struct packing *p, const struct code_unpacker *u, int j, uint16_t *out) {
    const struct weight *w = p->w;
    const uint8_t *codes = (const uint8_t *)w->data + (size_t)p->outputs[j] * weight_row_bytes(w) + p->k0 * w->bits / 8;
    if (w->bits < 8) {
        unpack_codes(u, codes, p->depth, p->codes);
        codes = p->codes;
    }
    for (int64_t k = 0; k < p->depth; k += PACK_DEPTH) {
        __m512 scale = _mm512_set1_ps(p->scales[k / w->group * PACK_OUTS + j]);
        __m512 bias = _mm512_set1_ps(p->biases[k / w->group * PACK_OUTS + j]);
        __m512 a = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(codes + k))));
        __m512 b = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(codes + k + 16))));
        _mm512_storeu_si512(out + k, round_pair(_mm512_fmadd_ps(a, scale, bias), _mm512_fmadd_ps(b, scale, bias)));
    }
}

static void expand_plain(const struct packing *p, int j, uint16_t *out) {
    int64_t first = p->outputs[j] * p->w->n_in + p->k0;
    for (int64_t k = 0; k < p->depth; k += PACK_DEPTH) {
        int64_t left = p->depth - k;
        __m512 a = load_floats(p->w->dtype, p->w->data, first + k, left < 16 ? (int)left : 16);
        __m512 b = _mm512_setzero_ps();
        if (left > 16) b = load_floats(p->w->dtype, p->w->data, first + k + 16, left < 32 ? (int)left - 16 : 16);
        _mm512_storeu_si512(out + k, round_pair(a, b));
    }
}

// Row j as bf16: where it lies, or expanded.
static const uint16_t *row_of(const struct packing *p, const struct code_unpacker *u, int j) {
    const struct weight *w = p->w;
    if (w->kind == WEIGHT_PLAIN && w->dtype == DTYPE_BF16 && p->depth == p->padded)
        return (const uint16_t *)w->data + p->outputs[j] * w->n_in + p->k0;
    uint16_t *row = p->rows + j * p->padded;
    if (w->kind == WEIGHT_PLAIN)
        expand_plain(p, j, row);
    else
        expand_codes(p, u, j, row);
    return row;
}

static struct packing open_packing(const struct weight *w, int64_t k0, int64_t depth, void *scratch) {
    struct packing p = {.w = w, .k0 = k0, .depth = depth, .padded = pad(depth)};
    p.scales = scratch;
    p.biases = p.scales + p.padded / MIN_GROUP * PACK_OUTS;
    p.rows = (uint16_t *)(p.biases + p.padded / MIN_GROUP * PACK_OUTS);
    p.codes = (uint8_t *)(p.rows + p.padded * PACK_OUTS);
    return p;
}

static struct code_unpacker unpacker_of(const struct weight *w) {
    if (w->kind == WEIGHT_AFFINE && w->bits != 4 && w->bits != 8) return code_unpacker_make(w->bits);
    return (struct code_unpacker){0};
}

// Outputs [first, first + 16), those from last on being the one before it.
static void take_outputs(struct packing *p, int64_t first, int64_t last) {
    const struct weight *w = p->w;
    for (int j = 0; j < PACK_OUTS; j++) p->outputs[j] = first + j < last ? first + j : last - 1;
    if (w->kind != WEIGHT_AFFINE) return;
    load_group_columns(w, w->scales, p->outputs, p->k0 / w->group, p->depth / w->group, p->scales);
    load_group_columns(w, w->biases, p->outputs, p->k0 / w->group, p->depth / w->group, p->biases);
}

void pack_bf16_panel(const struct weight *w, int64_t first, int64_t last, int64_t k0, int64_t depth, void *scratch,
                     uint8_t *panel) {
    struct packing p = open_packing(w, k0, depth, scratch);
    struct code_unpacker u = unpacker_of(w);
    for (int64_t o = first; o < last; o += PACK_OUTS, panel += p.padded / PACK_DEPTH * PACK_TILE) {
        take_outputs(&p, o, last);
        if (w->kind == WEIGHT_AFFINE && w->bits == 4) {
            pack_q4(&p, panel);
            continue;
        }
        const uint8_t *rows[PACK_OUTS];
        for (int j = 0; j < PACK_OUTS; j++) rows[j] = (const uint8_t *)row_of(&p, &u, j);
        pack_rows(rows, p.padded, panel);
    }
}

const uint16_t *pack_bf16_rows(const struct weight *w, int64_t first, int64_t last, void *scratch, int64_t *stride) {
    struct packing p = open_packing(w, 0, w->n_in, scratch);
    struct code_unpacker u = unpacker_of(w);
    take_outputs(&p, first, last);
    const uint16_t *row = NULL;
    for (int64_t j = last - first < PACK_OUTS ? last - first - 1 : PACK_OUTS - 1; j >= 0; j--)
        row = row_of(&p, &u, (int)j);
    *stride = row == p.rows ? p.padded : w->n_in;
    return row;
}

void pack_bf16_row(const float *x, int64_t n_in, bool interleaved, uint16_t *row) {
    const __m512i order = _mm512_set_epi32(15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0);
    for (int64_t i = 0; i < n_in; i += PACK_DEPTH) {
        int64_t left = n_in - i;
        __m512 a = load_floats(DTYPE_F32, x, i, left < 16 ? (int)left : 16), b = _mm512_setzero_ps();
        if (left > 16) b = load_floats(DTYPE_F32, x, i + 16, left < 32 ? (int)left - 16 : 16);
        if (interleaved) {
            a = _mm512_permutexvar_ps(order, a);
            b = _mm512_permutexvar_ps(order, b);
        }
        _mm512_storeu_si512(row + i, round_pair(a, b));
    }
}
