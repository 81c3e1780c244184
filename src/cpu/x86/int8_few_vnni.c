// Integer linears of a few rows with AVX512-VNNI: a lane is a group, and each output's codes are read once, in order.
#include "cpu/x86/codes_512.h"
#include "cpu/x86/int8_vnni.h"
#include "cpu/x86/vec_math.h"

#define LOOK_AHEAD 4096 // bytes, of which hardware prefetching sees only those up to the end of a page

// Adds the 32-bit lanes of each group: part[i] holds 16 / n_part groups, so that there are 16 in all, in order.
INLINE __m512i pairs(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}
INLINE __m512i quads(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}
INLINE __m512i quarters(__m512i a, __m512i b) { // quarters 0 + 1 and 2 + 3 of a, then of b
    return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
}

INLINE __m512i sum_groups(const __m512i *part, const int n_part) {
    __m512i four[4];
    for (int i = 0; i < n_part / 4; i++)
        four[i] = quads(pairs(part[4 * i], part[4 * i + 1]), pairs(part[4 * i + 2], part[4 * i + 3]));
    if (n_part == 16) return quarters(quarters(four[0], four[1]), quarters(four[2], four[3]));
    if (n_part == 8) {
        const __m512i order = _mm512_set_epi32(15, 11, 14, 10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0);
        return _mm512_permutexvar_epi32(order, quarters(four[0], four[1]));
    }
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_epi32(order, four[0]);
}

// 64 bytes at p + i, of which those from `end` on do not exist.
INLINE __m512i load_bytes(const uint8_t *p, int64_t i, int64_t end, const bool whole) {
    if (whole) return _mm512_loadu_si512(p + i);
    int64_t n = end - i;
    if (n >= 64) return _mm512_loadu_si512(p + i);
    return n <= 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi8(~UINT64_C(0) >> (64 - n), p + i);
}

// Codes of 16 groups, one a byte, in the order that goes with x: 4-bit codes give the even elements of 128, then the
// odd.
struct code_block {
    __m512i codes[32];
};

INLINE void load_block(struct code_block *b, const uint8_t *p, int64_t bytes, const int n_load, const bool is_q4,
                       const bool whole) {
    const __m512i mask = _mm512_set1_epi8(15);
    for (int i = 0; i < n_load; i++) {
        _mm_prefetch((const char *)p + 64 * i + LOOK_AHEAD, _MM_HINT_T1);
        __m512i v = load_bytes(p, 64 * i, bytes, whole);
        if (is_q4) {
            b->codes[2 * i] = _mm512_and_si512(v, mask);
            b->codes[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
        } else {
            b->codes[i] = v;
        }
    }
}

// Sums of four products each, of one register of codes or of two, on top of `sum`.
INLINE __m512i dot_codes(__m512i sum, const __m512i *codes, const int8_t *x, const bool two) {
    sum = _mm512_dpbusd_epi32(sum, codes[0], _mm512_loadu_si512(x));
    return two ? _mm512_dpbusd_epi32(sum, codes[1], _mm512_loadu_si512(x + 64)) : sum;
}

// The groups' dot products with x, of which `bytes` exist in each plane. A sum of groups takes 4, 8 or 16 parts.
INLINE __m512i dot_block(const struct code_block *b, const int8_t *high, const int8_t *low, int64_t bytes,
                         const int n_part, const bool two, const bool whole) {
    __m512i part[16];
    for (int i = 0; i < n_part; i++) {
        const int j = two ? 2 * i : i;
        part[i] = _mm512_setzero_si512();
        if (!whole && 64 * j >= bytes) continue;
        part[i] = dot_codes(part[i], b->codes + j, high + 64 * j, two);
        if (low != NULL) part[i] = dot_codes(_mm512_slli_epi32(part[i], 8), b->codes + j, low + 64 * j, two);
    }
    return sum_groups(part, n_part);
}

// What a few rows need of x, for any output.
struct few_rows {
    const struct weight *w;
    int64_t n_row, n_group, plane_bytes;
    const int8_t *x[INT8_FEW];
    const float *scales[INT8_FEW], *sums[INT8_FEW];
};

// Groups [g0, g0 + 16), or those up to n_group, of output o.
INLINE void add_groups(const struct few_rows *r, int64_t o, const uint8_t *codes, int64_t g0, vec *sum, const int group,
                       const bool is_q4, const int planes, const bool whole) {
    const bool two = is_q4 || group == 128; // 64 codes a register, 16 groups
    const int n_code = group / 4, n_part = two ? n_code / 2 : n_code;
    struct code_block block;
    int n = whole ? 16 : (int)(r->n_group - g0), per_byte = is_q4 ? 2 : 1;
    load_block(&block, codes + g0 * group / per_byte, n * group / per_byte, n_code / per_byte, is_q4, whole);
    __mmask16 mask = (__mmask16)(0xffffu >> (16 - n));
    vec scale = load_floats(r->w->dtype, r->w->scales, o * r->n_group + g0, n);
    vec bias = load_floats(r->w->dtype, r->w->biases, o * r->n_group + g0, n);
    for (int64_t t = 0; t < r->n_row; t++) {
        const int8_t *high = r->x[t] + g0 * group, *low = planes == 2 ? high + r->plane_bytes : NULL;
        __m512i dot = dot_block(&block, high, low, (n * group + 127) / 128 * 128, n_part, two, whole);
        vec product = vec_mul(scale, vec_load(r->scales[t] + g0));
        vec with_dot = _mm512_mask3_fmadd_ps(product, _mm512_cvtepi32_ps(dot), sum[t], mask);
        sum[t] = _mm512_mask3_fmadd_ps(bias, vec_load(r->sums[t] + g0), with_dot, mask);
    }
}

INLINE void multiply_few(const struct few_rows *r, int64_t first, int64_t last, float *y, int64_t y_stride,
                         uint8_t *unpacked, const int group, const bool is_q4, const int planes) {
    const struct weight *w = r->w;
    struct code_unpacker u = {0};
    bool unpack = w->bits != 4 && w->bits != 8;
    if (unpack) u = code_unpacker_make(w->bits);
    for (int64_t o = first; o < last; o++) {
        const uint8_t *codes = (const uint8_t *)w->data + (size_t)o * weight_row_bytes(w);
        if (unpack) {
            unpack_codes(&u, codes, w->n_in, unpacked);
            codes = unpacked;
        }
        vec sum[INT8_FEW] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
        int64_t g = 0;
        for (; g + 16 <= r->n_group; g += 16) add_groups(r, o, codes, g, sum, group, is_q4, planes, true);
        if (g < r->n_group) add_groups(r, o, codes, g, sum, group, is_q4, planes, false);
        for (int64_t t = 0; t < r->n_row; t++) y[t * y_stride + o - first] = vec_sum(sum[t]);
    }
}

INLINE void multiply_grouped(const struct few_rows *r, int64_t first, int64_t last, float *y, int64_t y_stride,
                             uint8_t *unpacked, const bool is_q4, const int planes) {
    if (r->w->group == 32)
        multiply_few(r, first, last, y, y_stride, unpacked, 32, is_q4, planes);
    else if (r->w->group == 64)
        multiply_few(r, first, last, y, y_stride, unpacked, 64, is_q4, planes);
    else
        multiply_few(r, first, last, y, y_stride, unpacked, 128, is_q4, planes);
}

// Codes that are split by units, split by 128 elements instead: what goes with 64 bytes of 4-bit codes.
static void split_wider(const int8_t *codes, int64_t n_in, int group, int64_t plane_bytes, int8_t *out) {
    int half = int8_unit(group) / 2;
    memset(out, 0, (size_t)plane_bytes);
    for (int64_t i = 0; i < n_in; i += 2 * half) {
        int8_t *to = out + i / 128 * 128 + i % 128 / 2;
        memcpy(to, codes + i, (size_t)half);
        memcpy(to + 64, codes + i + half, (size_t)half);
    }
}

void int8_few_rows(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, int planes,
                   float *y, int64_t y_stride, void *scratch) {
    struct int8_row layout = int8_row_of(w->n_in, w->group, planes);
    struct few_rows r = {.w = w, .n_row = n_row, .n_group = w->n_in / w->group, .plane_bytes = layout.plane_bytes};
    bool is_q4 = w->bits == 4;
    for (int64_t t = 0; t < n_row; t++) {
        const char *row = (const char *)rows + t * layout.bytes;
        int8_t *split = (int8_t *)scratch + t * planes * layout.plane_bytes;
        for (int p = 0; p < planes && is_q4; p++)
            split_wider((const int8_t *)row + p * layout.plane_bytes, w->n_in, w->group, layout.plane_bytes,
                        split + p * layout.plane_bytes);
        r.x[t] = is_q4 ? split : (const int8_t *)row;
        r.scales[t] = int8_scales(&layout, row);
        r.sums[t] = int8_sums(&layout, row);
    }
    uint8_t *unpacked = scratch; // instead of split codes
    if (is_q4 && planes == 1)
        multiply_grouped(&r, first, last, y, y_stride, NULL, true, 1);
    else if (is_q4)
        multiply_grouped(&r, first, last, y, y_stride, NULL, true, 2);
    else if (planes == 1)
        multiply_grouped(&r, first, last, y, y_stride, unpacked, false, 1);
    else
        multiply_grouped(&r, first, last, y, y_stride, unpacked, false, 2);
}
