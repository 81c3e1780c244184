// Integer linears with AVX2. Weights keep their integer codes; x is quantised to int8 a group, or to int16 as 256 high
// + low (COMPUTE_INT8 and COMPUTE_BF16). A lane is a group: outputs are taken one
// after another, eight groups at a time, for any number of rows.
//
// VPMADDUBSW adds two products of a code and an int8 in 16 bits: codes of up to 6 bits fit, 8-bit codes go by halves.
#include "cpu/weights.h"
#include "cpu/x86/vec_math.h"
#include "cpu/x86/x86.h"

#define OUT_BLOCK 64
#define ROW_BLOCK 256 // of 1024 inputs: a quarter of a megabyte
#define GROUPS    8

// A prepared row: one or two planes of codes, the high one first and each padded with zeros to 64, then a scale and a
// scaled sum of codes for each group, padded to GROUPS. Codes for 4-bit weights are split: of each 64 the even
// elements, then the odd ones.
struct layout {
    int planes;
    int64_t plane_bytes, padded_groups, bytes;
};

static struct layout layout_of(int64_t n_in, int group, int planes) {
    struct layout l = {.planes = planes, .plane_bytes = (n_in + 63) / 64 * 64};
    l.padded_groups = (n_in / group + GROUPS - 1) / GROUPS * GROUPS;
    l.bytes = planes * l.plane_bytes + (2 * l.padded_groups + 15) / 16 * 16 * (int64_t)sizeof(float);
    return l;
}

static size_t row_bytes(int64_t n_in, int group) { return group == 0 ? 64 : (size_t)layout_of(n_in, group, 1).bytes; }
static size_t row_bytes_two(int64_t n_in, int group) {
    return group == 0 ? 64 : (size_t)layout_of(n_in, group, 2).bytes; // of plain weights there are none
}

// Eight codes from element i on: the nearest multiples of the scale. Returns their sum.
static int32_t quantise_eight(vec x, const struct layout *l, int64_t i, bool split, int8_t *codes) {
    int32_t value[VEC_N], sum = 0;
    _mm256_storeu_si256((__m256i *)value, _mm256_cvtps_epi32(x));
    for (int j = 0; j < VEC_N; j++) {
        int64_t at = split ? i / 64 * 64 + (i + j) % 64 / 2 + j % 2 * 32 : i + j;
        int32_t high = l->planes == 2 ? (value[j] + 128) >> 8 : value[j];
        codes[at] = (int8_t)high;
        if (l->planes == 2) codes[l->plane_bytes + at] = (int8_t)(value[j] - 256 * high);
        sum += value[j];
    }
    return sum;
}

// The float whose bits are the largest of eight non-negative integers.
static float largest_of(__m256i v) {
    __m128i q = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1))));
}

// Symmetric: the largest magnitude of a group becomes 127, or 127.5 * 256 - 1, whose high part is 127; ties go to the
// even code.
static void prepare_codes(const float *x, int64_t n_in, int group, bool split, int planes, void *row) {
    struct layout l = layout_of(n_in, group, planes);
    float *scales = (float *)((char *)row + planes * l.plane_bytes), *sums = scales + l.padded_groups;
    float most_code = planes == 2 ? 32639.0f : 127.0f;
    memset(row, 0, (size_t)l.bytes);
    for (int64_t g = 0; g < n_in / group; g++) {
        __m256i most = _mm256_setzero_si256(); // as integers NaN is the largest of all, and makes the scale NaN
        for (int i = 0; i < group; i += VEC_N) {
            __m256i bits = _mm256_loadu_si256((const __m256i *)(x + g * group + i));
            most = _mm256_max_epi32(most, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
        }
        float largest = largest_of(most);
        vec inverse = vec_set(largest > 0 ? most_code / largest : 0);
        int32_t sum = 0;
        for (int64_t i = g * group; i < (g + 1) * group; i += VEC_N)
            sum += quantise_eight(vec_mul(vec_load(x + i), inverse), &l, i, split, row);
        scales[g] = largest / most_code;
        sums[g] = scales[g] * (float)sum;
    }
}

static void prepare(const float *x, int64_t n, int g, void *row) { prepare_codes(x, n, g, false, 1, row); }
static void prepare_split(const float *x, int64_t n, int g, void *row) { prepare_codes(x, n, g, true, 1, row); }
static void prepare_two(const float *x, int64_t n, int g, void *row) { prepare_codes(x, n, g, false, 2, row); }
static void prepare_split_two(const float *x, int64_t n, int g, void *row) { prepare_codes(x, n, g, true, 2, row); }

// Codes of 2, 3, 5 or 6 bits, 16 at a time: the two bytes that hold a code are brought into a word, where a
// multiplication puts its highest bit at the top.
static void unpack_codes(const uint8_t *packed, int bits, int64_t n, uint8_t *codes) {
    uint8_t bytes[32];
    uint16_t factor[16];
    for (int i = 0; i < 16; i++) {
        int bit = i % 8 * bits;
        bytes[2 * i] = (uint8_t)(bit / 8);
        bytes[2 * i + 1] = (uint8_t)(bit / 8 + 1);
        factor[i] = (uint16_t)(1u << (16 - bits - bit % 8));
    }
    __m256i pick = _mm256_loadu_si256((const __m256i *)bytes), times = _mm256_loadu_si256((const __m256i *)factor);
    int64_t i = 0, end = n * bits / 8;
    for (; i + 16 <= n && i * bits / 8 + bits + 8 <= end; i += 16) { // two loads of 8 bytes must not pass the end
        const uint8_t *p = packed + i * bits / 8;
        __m256i v = _mm256_set_m128i(_mm_loadl_epi64((const __m128i *)(p + bits)), _mm_loadl_epi64((const __m128i *)p));
        v = _mm256_mullo_epi16(_mm256_shuffle_epi8(v, pick), times);
        v = _mm256_srl_epi16(v, _mm_cvtsi32_si128(16 - bits));
        __m128i out = _mm_packus_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        _mm_storeu_si128((__m128i *)(codes + i), out);
    }
    cpu_unpack_codes(packed + i * bits / 8, bits, n - i, codes + i);
}

// Bytes [i, i + 32) of p, of which those from `end` on do not exist; end is a multiple of 16.
INLINE __m256i load_bytes(const uint8_t *p, int64_t i, int64_t end) {
    if (i + 32 <= end) return _mm256_loadu_si256((const __m256i *)(p + i));
    return i < end ? _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)(p + i))) : _mm256_setzero_si256();
}

// Codes of GROUPS groups, one a byte, 32 a register, in the order that goes with x.
struct code_block {
    __m256i codes[32];
};

INLINE void load_block(struct code_block *b, const uint8_t *p, int64_t bytes, const int n_code, const bool is_q4) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int i = 0; i < n_code; i++) {
        if (is_q4 && i % 2 == 1) continue;
        __m256i v = load_bytes(p, is_q4 ? 16 * i : 32 * i, bytes);
        b->codes[i] = is_q4 ? _mm256_and_si256(v, mask) : v;
        if (is_q4) b->codes[i + 1] = _mm256_and_si256(_mm256_srli_epi16(v, 4), mask);
    }
}

// 16-bit sums of two products each, of codes of up to 6 bits: two such sums still fit.
INLINE __m256i dot_twos(__m256i codes, const int8_t *x) {
    return _mm256_maddubs_epi16(codes, _mm256_loadu_si256((const __m256i *)x));
}

// 32-bit sums of four products each, of codes of 8 bits.
INLINE __m256i dot_fours(__m256i codes, const int8_t *x) {
    const __m256i ones = _mm256_set1_epi16(1), sixteens = _mm256_set1_epi16(16), mask = _mm256_set1_epi8(15);
    __m256i low = dot_twos(_mm256_and_si256(codes, mask), x);
    __m256i high = dot_twos(_mm256_and_si256(_mm256_srli_epi16(codes, 4), mask), x);
    return _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, sixteens));
}

// The sums of registers [j, j + n) of codes, of which those from `count` codes on do not exist.
INLINE __m256i dot_part(const struct code_block *b, const int8_t *x, int64_t count, int j, const int n,
                        const bool narrow_codes) {
    __m256i sum = _mm256_setzero_si256();
    for (int i = j; i < j + n && 32 * i < count; i += 2) {
        bool second = n > 1 && 32 * (i + 1) < count;
        if (narrow_codes) {
            __m256i twos = dot_twos(b->codes[i], x + 32 * i);
            if (second) twos = _mm256_add_epi16(twos, dot_twos(b->codes[i + 1], x + 32 * i + 32));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(twos, _mm256_set1_epi16(1)));
        } else {
            sum = _mm256_add_epi32(sum, dot_fours(b->codes[i], x + 32 * i));
            if (second) sum = _mm256_add_epi32(sum, dot_fours(b->codes[i + 1], x + 32 * i + 32));
        }
    }
    return sum;
}

// Dot products of the groups. A part is one group, or two in its halves; x exists for `count` codes of each plane, and
// without a low one `low` is NULL.
INLINE __m256i dot_block(const struct code_block *b, const int8_t *high, const int8_t *low, int64_t count,
                         const int n_code, const int n_part, const bool narrow_codes) {
    __m256i part[GROUPS];
    const int each = n_code / n_part; // 1, 2 or 4
    for (int i = 0; i < n_part; i++) {
        part[i] = dot_part(b, high, count, i * each, each, narrow_codes);
        if (low == NULL) continue;
        part[i] =
            _mm256_add_epi32(_mm256_slli_epi32(part[i], 8), dot_part(b, low, count, i * each, each, narrow_codes));
    }
    __m256i front = _mm256_hadd_epi32(_mm256_hadd_epi32(part[0], part[1]), _mm256_hadd_epi32(part[2], part[3]));
    if (n_part == 4) return _mm256_permutevar8x32_epi32(front, _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0));
    __m256i back = _mm256_hadd_epi32(_mm256_hadd_epi32(part[4], part[5]), _mm256_hadd_epi32(part[6], part[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(front, back, 0x20), _mm256_permute2x128_si256(front, back, 0x31));
}

struct matrix {
    const struct weight *w;
    struct layout layout;
    const char *rows;
    int64_t n_row, n_group;
    float *y;
    int64_t y_stride;
};

INLINE vec load_values(const struct weight *w, const void *values, int64_t first, int64_t n) {
    if (n == GROUPS) {
        if (w->dtype == DTYPE_F32) return vec_load((const float *)values + first);
        const uint16_t *halves = (const uint16_t *)values + first;
        return w->dtype == DTYPE_BF16 ? vec_load_bf16(halves) : vec_load_f16(halves);
    }
    float out[GROUPS] = {0};
    for (int64_t g = 0; g < n; g++) out[g] = cpu_load_float(w->dtype, values, first + g);
    return vec_load(out);
}

// Output o for all rows. sums: [n_row], between blocks of groups.
INLINE void multiply_output(const struct matrix *m, int64_t o, const uint8_t *codes, vec *sums, int64_t at,
                            const int group, const bool is_q4, const bool narrow_codes, const bool two) {
    const struct weight *w = m->w;
    const struct layout *l = &m->layout;
    const int n_code = group / 4, n_part = is_q4 && group == 32 ? 4 : GROUPS, per_byte = is_q4 ? 2 : 1;
    for (int64_t t = 0; t < m->n_row; t++) sums[t] = vec_set(0);
    for (int64_t g = 0; g < m->n_group; g += GROUPS) {
        int64_t n = m->n_group - g < GROUPS ? m->n_group - g : GROUPS;
        struct code_block block;
        load_block(&block, codes + g * group / per_byte, n * group / per_byte, n_code, is_q4);
        vec scale = load_values(w, w->scales, o * m->n_group + g, n);
        vec bias = load_values(w, w->biases, o * m->n_group + g, n);
        for (int64_t t = 0; t < m->n_row; t++) {
            const char *row = m->rows + t * l->bytes;
            const int8_t *high = (const int8_t *)row + g * group, *low = two ? high + l->plane_bytes : NULL;
            const float *scales = (const float *)(row + l->planes * l->plane_bytes) + g;
            __m256i dot = dot_block(&block, high, low, (n * group + 63) / 64 * 64, n_code, n_part, narrow_codes);
            sums[t] = vec_fma(vec_mul(scale, vec_load(scales)), _mm256_cvtepi32_ps(dot), sums[t]);
            sums[t] = vec_fma(bias, vec_load(scales + l->padded_groups), sums[t]);
        }
    }
    for (int64_t t = 0; t < m->n_row; t++) m->y[t * m->y_stride + at] = vec_sum(sums[t]);
}

INLINE void multiply_matrix(const struct matrix *m, int64_t first, int64_t last, uint8_t *unpacked, const int group,
                            const bool two) {
    const struct weight *w = m->w;
    vec sums[ROW_BLOCK];
    for (int64_t o = first; o < last; o++) {
        const uint8_t *codes = (const uint8_t *)w->data + (size_t)o * weight_row_bytes(w);
        if (w->bits == 4) {
            multiply_output(m, o, codes, sums, o - first, group, true, true, two);
        } else if (w->bits == 8) {
            multiply_output(m, o, codes, sums, o - first, group, false, false, two);
        } else {
            unpack_codes(codes, w->bits, w->n_in, unpacked);
            multiply_output(m, o, unpacked, sums, o - first, group, false, true, two);
        }
    }
}

INLINE void multiply_planes(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row,
                            float *y, int64_t y_stride, void *scratch, const bool two) {
    struct matrix m = {w, layout_of(w->n_in, w->group, two ? 2 : 1), rows, n_row, w->n_in / w->group, y, y_stride};
    if (w->group == 32)
        multiply_matrix(&m, first, last, scratch, 32, two);
    else if (w->group == 64)
        multiply_matrix(&m, first, last, scratch, 64, two);
    else
        multiply_matrix(&m, first, last, scratch, 128, two);
}

static void multiply(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                     int64_t y_stride, void *scratch) {
    multiply_planes(w, first, last, rows, n_row, y, y_stride, scratch, false);
}

static void multiply_two(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                         int64_t y_stride, void *scratch) {
    multiply_planes(w, first, last, rows, n_row, y, y_stride, scratch, true);
}

void cpu_x86_fill_integer_avx2(struct cpu_kernels *k, int planes) {
    for (int c = CPU_Q2; c <= CPU_Q8; c++) {
        struct cpu_linear_method m = {
            .row_bytes = planes == 2 ? row_bytes_two : row_bytes,
            .prepare = c == CPU_Q4 ? prepare_split : prepare,
            .multiply = planes == 2 ? multiply_two : multiply,
            .out_block = OUT_BLOCK,
            .row_block = ROW_BLOCK,
            .scratch_per_in = 1,
        };
        if (planes == 2) m.prepare = c == CPU_Q4 ? prepare_split_two : prepare_two;
        for (int form = 0; form < CPU_N_FORM; form++) k->linear[form][c] = m;
    }
}
