// int8 linears with AVX2. Weights keep their integer codes, x is quantised to int8 a group, and a lane is a group:
// outputs are taken one after another, eight groups at a time, in both forms and for any number of rows.
//
// VPMADDUBSW adds two products of a code and an int8 in 16 bits: codes of up to 7 bits fit, 8-bit codes go by halves.
#include "cpu/weights.h"
#include "cpu/x86/vec_math.h"
#include "cpu/x86/x86.h"

#define OUT_BLOCK 64
#define ROW_BLOCK 256 // of 1024 inputs: a quarter of a megabyte
#define GROUPS    8

// A prepared row: codes padded with zeros to 64, then a scale and a scaled sum of codes for each group, padded to
// GROUPS. Codes for 4-bit weights are split: of each 64 the even elements, then the odd ones.
static int64_t codes_bytes(int64_t n_in) { return (n_in + 63) / 64 * 64; }
static int64_t padded_groups(int64_t n_in, int group) { return (n_in / group + GROUPS - 1) / GROUPS * GROUPS; }

static size_t row_bytes(int64_t n_in, int group) {
    if (group == 0) return 64; // of plain weights there are none
    return (size_t)codes_bytes(n_in) + (size_t)(2 * padded_groups(n_in, group) + 15) / 16 * 16 * sizeof(float);
}

// Symmetric: the largest magnitude of a group becomes 127; ties go to the even code.
static void prepare_codes(const float *x, int64_t n_in, int group, bool split, void *row) {
    int8_t *codes = row;
    float *scales = (float *)((char *)row + codes_bytes(n_in)), *sums = scales + padded_groups(n_in, group);
    memset(row, 0, row_bytes(n_in, group));
    for (int64_t g = 0; g < n_in / group; g++) {
        vec most = vec_set(0);
        for (int i = 0; i < group; i += VEC_N)
            most = vec_max(_mm256_andnot_ps(vec_set(-0.0f), vec_load(x + g * group + i)), most);
        float largest = vec_largest(most);
        vec inverse = vec_set(largest > 0 ? 127.0f / largest : 0);
        int32_t sum = 0, value[VEC_N];
        for (int64_t i = g * group; i < (g + 1) * group; i += VEC_N) {
            _mm256_storeu_si256((__m256i *)value, _mm256_cvtps_epi32(vec_mul(vec_load(x + i), inverse)));
            int8_t *to = codes + (split ? i / 64 * 64 + i % 64 / 2 : i);
            for (int j = 0; j < VEC_N; j++) {
                to[split ? j / 2 + j % 2 * 32 : j] = (int8_t)value[j];
                sum += value[j];
            }
        }
        scales[g] = largest / 127.0f;
        sums[g] = scales[g] * (float)sum;
    }
}

static void prepare(const float *x, int64_t n_in, int group, void *row) { prepare_codes(x, n_in, group, false, row); }
static void prepare_split(const float *x, int64_t n_in, int group, void *row) {
    prepare_codes(x, n_in, group, true, row);
}

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

// Dot products of four codes each.
INLINE __m256i dot_fours(__m256i codes, const int8_t *x, const bool narrow_codes) {
    const __m256i ones = _mm256_set1_epi16(1), sixteens = _mm256_set1_epi16(16), mask = _mm256_set1_epi8(15);
    __m256i v = _mm256_loadu_si256((const __m256i *)x);
    if (narrow_codes) return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, v), ones);
    __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(codes, mask), v);
    __m256i high = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(codes, 4), mask), v);
    return _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, sixteens));
}

// Dot products of the groups. A part is one group, or two in its halves; x exists for `count` codes.
INLINE __m256i dot_block(const struct code_block *b, const int8_t *x, int64_t count, const int n_code, const int n_part,
                         const bool narrow_codes) {
    __m256i part[GROUPS];
    const int each = n_code / n_part;
    for (int i = 0; i < n_part; i++) {
        part[i] = _mm256_setzero_si256();
        for (int j = i * each; j < (i + 1) * each; j++)
            if (32 * j < count) part[i] = _mm256_add_epi32(part[i], dot_fours(b->codes[j], x + 32 * j, narrow_codes));
    }
    __m256i low = _mm256_hadd_epi32(_mm256_hadd_epi32(part[0], part[1]), _mm256_hadd_epi32(part[2], part[3]));
    if (n_part == 4) return _mm256_permutevar8x32_epi32(low, _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0));
    __m256i high = _mm256_hadd_epi32(_mm256_hadd_epi32(part[4], part[5]), _mm256_hadd_epi32(part[6], part[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
}

struct matrix {
    const struct weight *w;
    const char *rows;
    int64_t n_row, n_group;
    float *y;
    int64_t y_stride;
};

INLINE vec load_values(const struct weight *w, const void *values, int64_t first, int64_t n) {
    float out[GROUPS] = {0};
    for (int64_t g = 0; g < n; g++) out[g] = cpu_load_float(w->dtype, values, first + g);
    return vec_load(out);
}

// Output o for all rows. sums: [n_row], between blocks of groups.
INLINE void multiply_output(const struct matrix *m, int64_t o, const uint8_t *codes, vec *sums, const int group,
                            const bool is_q4, const bool narrow_codes, int64_t at) {
    const struct weight *w = m->w;
    const int n_code = group / 4, n_part = is_q4 && group == 32 ? 4 : GROUPS, per_byte = is_q4 ? 2 : 1;
    size_t stride = row_bytes(w->n_in, group);
    for (int64_t t = 0; t < m->n_row; t++) sums[t] = vec_set(0);
    for (int64_t g = 0; g < m->n_group; g += GROUPS) {
        int64_t n = m->n_group - g < GROUPS ? m->n_group - g : GROUPS;
        struct code_block block;
        load_block(&block, codes + g * group / per_byte, n * group / per_byte, n_code, is_q4);
        vec scale = load_values(w, w->scales, o * m->n_group + g, n),
            bias = load_values(w, w->biases, o * m->n_group + g, n);
        for (int64_t t = 0; t < m->n_row; t++) {
            const char *row = m->rows + (size_t)t * stride;
            const float *scales = (const float *)(row + codes_bytes(w->n_in)),
                        *x_sums = scales + padded_groups(w->n_in, group);
            __m256i dot = dot_block(&block, (const int8_t *)row + g * group, (n * group + 63) / 64 * 64, n_code, n_part,
                                    narrow_codes);
            sums[t] = vec_fma(vec_mul(scale, vec_load(scales + g)), _mm256_cvtepi32_ps(dot), sums[t]);
            sums[t] = vec_fma(bias, vec_load(x_sums + g), sums[t]);
        }
    }
    for (int64_t t = 0; t < m->n_row; t++) m->y[t * m->y_stride + at] = vec_sum(sums[t]);
}

INLINE void multiply_matrix(const struct matrix *m, int64_t first, int64_t last, uint8_t *unpacked, const int group) {
    const struct weight *w = m->w;
    vec sums[ROW_BLOCK];
    for (int64_t o = first; o < last; o++) {
        const uint8_t *codes = (const uint8_t *)w->data + (size_t)o * weight_row_bytes(w);
        if (w->bits == 4) {
            multiply_output(m, o, codes, sums, group, true, true, o - first);
        } else if (w->bits == 8) {
            multiply_output(m, o, codes, sums, group, false, false, o - first);
        } else {
            unpack_codes(codes, w->bits, w->n_in, unpacked);
            multiply_output(m, o, unpacked, sums, group, false, true, o - first);
        }
    }
}

static void multiply(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                     int64_t y_stride, void *scratch) {
    struct matrix m = {w, rows, n_row, w->n_in / w->group, y, y_stride};
    if (w->group == 32)
        multiply_matrix(&m, first, last, scratch, 32);
    else if (w->group == 64)
        multiply_matrix(&m, first, last, scratch, 64);
    else
        multiply_matrix(&m, first, last, scratch, 128);
}

void cpu_x86_fill_int8_avx2(struct cpu_kernels *k) {
    for (int form = 0; form < CPU_N_FORM; form++)
        for (int c = CPU_Q2; c <= CPU_Q8; c++)
            k->linear[form][c] = (struct cpu_linear_method){
                .row_bytes = row_bytes,
                .prepare = c == CPU_Q4 ? prepare_split : prepare,
                .multiply = multiply,
                .out_block = OUT_BLOCK,
                .row_block = ROW_BLOCK,
                .scratch_per_in = 1,
            };
}
