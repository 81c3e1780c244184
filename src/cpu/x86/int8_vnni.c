// int8 linears with AVX512-VNNI.
#include "cpu/x86/int8_vnni.h"
#include "cpu/x86/codes_512.h"
#include "cpu/x86/vec_math.h"
#include "cpu/x86/x86.h"

#define OUT_BLOCK  64
#define ROW_BLOCK  256  // of 1024 inputs: a quarter of a megabyte, which stays in the second-level cache
#define SIDE       8    // rows whose sums of one group are in registers at a time
#define LOOK_AHEAD 4096 // bytes: hardware prefetching stops at the end of a page

// ---- rows ----

size_t int8_row_bytes(int64_t n_in, int group) {
    if (group == 0) return 64; // of plain weights there are none
    return (size_t)int8_codes_bytes(n_in) + 2 * (size_t)int8_padded_groups(n_in, group) * sizeof(float);
}

// Codes of n_vec vectors: the nearest multiples of the scale. Returns their sum.
INLINE int quantise_group(const float *x, int n, bool split, float inverse, int8_t *codes) {
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    int unit = int8_unit(n);
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < n; i += 32) {
        __m512i a = _mm512_cvtps_epi32(vec_mul(vec_load(x + i), vec_set(inverse)));
        __m512i b = _mm512_cvtps_epi32(vec_mul(vec_load(x + i + 16), vec_set(inverse)));
        sum = _mm512_add_epi32(sum, _mm512_add_epi32(a, b));
        int8_t *low = codes + i, *high = low + 16;
        if (split) {
            __m512i evens = _mm512_permutex2var_epi32(a, even, b);
            b = _mm512_permutex2var_epi32(a, odd, b);
            a = evens;
            low = codes + i / unit * unit + i % unit / 2;
            high = low + unit / 2;
        }
        _mm_storeu_si128((__m128i *)low, _mm512_cvtepi32_epi8(a));
        _mm_storeu_si128((__m128i *)high, _mm512_cvtepi32_epi8(b));
    }
    return _mm512_reduce_add_epi32(sum);
}

// Symmetric: the largest magnitude of a group becomes 127; ties go to the even code.
INLINE void prepare(const float *x, int64_t n_in, int group, bool split, void *row) {
    int8_t *codes = row;
    float *scales = (float *)int8_scales(row, n_in), *sums = (float *)int8_sums(row, n_in, group);
    int64_t n_group = n_in / group, padded = int8_padded_groups(n_in, group);
    for (int64_t g = 0; g < n_group; g++) {
        const __m512 magnitude = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff));
        vec most = vec_set(0);
        for (int i = 0; i < group; i += VEC_N)
            most = vec_max(_mm512_and_ps(vec_load(x + g * group + i), magnitude), most);
        float largest = vec_largest(most);
        scales[g] = largest / 127.0f;
        int sum = quantise_group(x + g * group, group, split, largest > 0 ? 127.0f / largest : 0, codes + g * group);
        sums[g] = scales[g] * (float)sum;
    }
    memset(codes + n_in, 0, (size_t)(int8_codes_bytes(n_in) - n_in));
    memset(scales + n_group, 0, (size_t)(padded - n_group) * sizeof(float));
    memset(sums + n_group, 0, (size_t)(padded - n_group) * sizeof(float));
}

void int8_prepare(const float *x, int64_t n_in, int group, void *row) { prepare(x, n_in, group, false, row); }
void int8_prepare_split(const float *x, int64_t n_in, int group, void *row) { prepare(x, n_in, group, true, row); }

// ---- a few rows: a lane is a group ----

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
        _mm_prefetch((const char *)p + 64 * i + LOOK_AHEAD, _MM_HINT_T0);
        __m512i v = load_bytes(p, 64 * i, bytes, whole);
        if (is_q4) {
            b->codes[2 * i] = _mm512_and_si512(v, mask);
            b->codes[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
        } else {
            b->codes[i] = v;
        }
    }
}

// Their dot products with x, of which `bytes` exist. A sum of groups takes 4, 8 or 16 parts, each of one register of
// codes or of two.
INLINE __m512i dot_block(const struct code_block *b, const int8_t *x, int64_t bytes, const int n_part, const bool two,
                         const bool whole) {
    __m512i part[16];
    for (int i = 0; i < n_part; i++) {
        const int j = two ? 2 * i : i;
        part[i] = _mm512_setzero_si512();
        if (!whole && 64 * j >= bytes) continue;
        part[i] = _mm512_dpbusd_epi32(part[i], b->codes[j], _mm512_loadu_si512(x + 64 * j));
        if (two) part[i] = _mm512_dpbusd_epi32(part[i], b->codes[j + 1], _mm512_loadu_si512(x + 64 * j + 64));
    }
    return sum_groups(part, n_part);
}

// What a few rows need of x, for any output.
struct few_rows {
    const struct weight *w;
    int64_t n_row, n_group;
    const int8_t *x[INT8_FEW];
    const float *scales[INT8_FEW], *sums[INT8_FEW];
};

// Groups [g0, g0 + 16), or those up to n_group, of output o.
INLINE void add_groups(const struct few_rows *r, int64_t o, const uint8_t *codes, int64_t g0, vec *sum, const int group,
                       const bool is_q4, const bool whole) {
    const bool two = is_q4 || group == 128; // 64 codes a register, 16 groups
    const int n_code = group / 4, n_part = two ? n_code / 2 : n_code;
    struct code_block block;
    int n = whole ? 16 : (int)(r->n_group - g0), per_byte = is_q4 ? 2 : 1;
    load_block(&block, codes + g0 * group / per_byte, n * group / per_byte, n_code / per_byte, is_q4, whole);
    __mmask16 mask = (__mmask16)(0xffffu >> (16 - n));
    vec scale = load_floats(r->w->dtype, r->w->scales, o * r->n_group + g0, n);
    vec bias = load_floats(r->w->dtype, r->w->biases, o * r->n_group + g0, n);
    for (int64_t t = 0; t < r->n_row; t++) {
        __m512i dot = dot_block(&block, r->x[t] + g0 * group, (n * group + 127) / 128 * 128, n_part, two, whole);
        vec product = vec_mul(scale, vec_load(r->scales[t] + g0));
        vec with_dot = _mm512_mask3_fmadd_ps(product, _mm512_cvtepi32_ps(dot), sum[t], mask);
        sum[t] = _mm512_mask3_fmadd_ps(bias, vec_load(r->sums[t] + g0), with_dot, mask);
    }
}

INLINE void multiply_few(const struct few_rows *r, int64_t first, int64_t last, float *y, int64_t y_stride,
                         uint8_t *unpacked, const int group, const bool is_q4) {
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
        for (; g + 16 <= r->n_group; g += 16) add_groups(r, o, codes, g, sum, group, is_q4, true);
        if (g < r->n_group) add_groups(r, o, codes, g, sum, group, is_q4, false);
        for (int64_t t = 0; t < r->n_row; t++) y[t * y_stride + o - first] = vec_sum(sum[t]);
    }
}

// Codes that are split by units, split by 128 elements instead: what goes with 64 bytes of 4-bit codes.
static void split_wider(const int8_t *codes, int64_t n_in, int group, int8_t *out) {
    int half = int8_unit(group) / 2;
    memset(out, 0, (size_t)int8_codes_bytes(n_in));
    for (int64_t i = 0; i < n_in; i += 2 * half) {
        int8_t *to = out + i / 128 * 128 + i % 128 / 2;
        memcpy(to, codes + i, (size_t)half);
        memcpy(to + 64, codes + i + half, (size_t)half);
    }
}

void int8_few_rows(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                   int64_t y_stride, void *scratch) {
    struct few_rows r = {.w = w, .n_row = n_row, .n_group = w->n_in / w->group};
    int64_t codes_bytes = int8_codes_bytes(w->n_in);
    for (int64_t t = 0; t < n_row; t++) {
        const char *row = (const char *)rows + (size_t)t * int8_row_bytes(w->n_in, w->group);
        int8_t *split = (int8_t *)scratch + t * codes_bytes;
        if (w->bits == 4) split_wider((const int8_t *)row, w->n_in, w->group, split);
        r.x[t] = w->bits == 4 ? split : (const int8_t *)row;
        r.scales[t] = int8_scales(row, w->n_in);
        r.sums[t] = int8_sums(row, w->n_in, w->group);
    }
    uint8_t *unpacked = scratch; // instead of split codes
    if (w->bits == 4) {
        if (w->group == 32)
            multiply_few(&r, first, last, y, y_stride, NULL, 32, true);
        else if (w->group == 64)
            multiply_few(&r, first, last, y, y_stride, NULL, 64, true);
        else
            multiply_few(&r, first, last, y, y_stride, NULL, 128, true);
    } else {
        if (w->group == 32)
            multiply_few(&r, first, last, y, y_stride, unpacked, 32, false);
        else if (w->group == 64)
            multiply_few(&r, first, last, y, y_stride, unpacked, 64, false);
        else
            multiply_few(&r, first, last, y, y_stride, unpacked, 128, false);
    }
}

// ---- many rows: a lane is an output ----

struct int8_panel int8_open_panel(int64_t n_in, int group, void *scratch) {
    struct int8_panel p = {.codes = scratch};
    p.rows = p.codes + INT8_OUTS * n_in;
    p.scales = (float *)(p.rows + INT8_OUTS * n_in);
    p.biases = p.scales + n_in / group * INT8_OUTS;
    return p;
}

static void pack_q4(const uint8_t *const rows[INT8_OUTS], int64_t n_in, int unit, uint8_t *codes) {
    const __m512i mask = _mm512_set1_epi8(15);
    for (int64_t i = 0; i < n_in; i += unit, codes += unit * INT8_OUTS) {
        for (int j = 0; j < unit / 32; j++) {
            __m512i column[4];
            load_columns_16x4(rows, i / 2 + 16 * j, column);
            for (int d = 0; d < 4; d++) {
                uint8_t *even = codes + (4 * j + d) * 64, *odd = even + unit / 8 * 64;
                _mm512_storeu_si512(even, _mm512_and_si512(column[d], mask));
                _mm512_storeu_si512(odd, _mm512_and_si512(_mm512_srli_epi16(column[d], 4), mask));
            }
        }
    }
}

static void pack_q8(const uint8_t *const rows[INT8_OUTS], int64_t n_in, uint8_t *codes) {
    for (int64_t i = 0; i < n_in; i += 16, codes += 16 * INT8_OUTS) {
        __m512i column[4];
        load_columns_16x4(rows, i, column);
        for (int d = 0; d < 4; d++) _mm512_storeu_si512(codes + d * 64, column[d]);
    }
}

void int8_pack_panel(const struct weight *w, int64_t first, int64_t last, const struct int8_panel *panel) {
    const uint8_t *rows[INT8_OUTS];
    int64_t outputs[INT8_OUTS];
    for (int j = 0; j < INT8_OUTS; j++) {
        outputs[j] = first + j < last ? first + j : last - 1;
        rows[j] = (const uint8_t *)w->data + (size_t)outputs[j] * weight_row_bytes(w);
    }
    load_group_columns(w, w->scales, outputs, 0, w->n_in / w->group, panel->scales);
    load_group_columns(w, w->biases, outputs, 0, w->n_in / w->group, panel->biases);
    if (w->bits == 4) {
        pack_q4(rows, w->n_in, int8_unit(w->group), panel->codes);
        return;
    }
    if (w->bits != 8) {
        struct code_unpacker u = code_unpacker_make(w->bits);
        for (int j = 0; j < INT8_OUTS; j++) {
            unpack_codes(&u, rows[j], w->n_in, panel->rows + j * w->n_in);
            rows[j] = panel->rows + j * w->n_in;
        }
    }
    pack_q8(rows, w->n_in, panel->codes);
}

// Up to SIDE rows, with their place in y.
struct side {
    const char *rows;
    size_t row_bytes;
    float *y;
    int64_t y_stride, n_out;
};

INLINE void side_of_rows(const struct weight *w, const struct int8_panel *panel, const struct side *s,
                         const int n_row) {
    vec chain[INT8_CHAINS][SIDE];
    for (int c = 0; c < INT8_CHAINS; c++)
        for (int t = 0; t < n_row; t++) chain[c][t] = vec_set(0);
    const uint8_t *codes = panel->codes;
    for (int64_t g = 0; g < w->n_in / w->group; g++) {
        __m512i dot[SIDE];
        for (int t = 0; t < n_row; t++) dot[t] = _mm512_setzero_si512();
        for (int i = 0; i < w->group / 4; i++, codes += 64) {
            __m512i four = _mm512_loadu_si512(codes);
            for (int t = 0; t < n_row; t++) {
                int32_t x;
                memcpy(&x, s->rows + (size_t)t * s->row_bytes + g * w->group + 4 * i, sizeof x);
                dot[t] = _mm512_dpbusd_epi32(dot[t], four, _mm512_set1_epi32(x));
            }
        }
        vec scale = vec_load(panel->scales + g * INT8_OUTS), bias = vec_load(panel->biases + g * INT8_OUTS);
        for (int t = 0; t < n_row; t++) {
            const char *row = s->rows + (size_t)t * s->row_bytes;
            vec product = vec_mul(scale, vec_set(int8_scales(row, w->n_in)[g]));
            vec sum = vec_fma(product, _mm512_cvtepi32_ps(dot[t]), chain[g % INT8_CHAINS][t]);
            chain[g % INT8_CHAINS][t] = vec_fma(bias, vec_set(int8_sums(row, w->n_in, w->group)[g]), sum);
        }
    }
    for (int t = 0; t < n_row; t++) {
        for (int width = INT8_CHAINS / 2; width > 0; width /= 2)
            for (int c = 0; c < width; c++) chain[c][t] = vec_add(chain[c][t], chain[c + width][t]);
        vec_store_n(s->y + t * s->y_stride, chain[0][t], s->n_out);
    }
}

static void multiply(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                     int64_t y_stride, void *scratch) {
    if (n_row <= INT8_FEW) {
        int8_few_rows(w, first, last, rows, n_row, y, y_stride, scratch);
        return;
    }
    struct int8_panel panel = int8_open_panel(w->n_in, w->group, scratch);
    for (int64_t o = first; o < last; o += INT8_OUTS) {
        int8_pack_panel(w, o, last, &panel);
        struct side s = {rows, int8_row_bytes(w->n_in, w->group), y + o - first, y_stride,
                         last - o < INT8_OUTS ? last - o : INT8_OUTS};
        int64_t t = 0;
        for (; t + SIDE <= n_row; t += SIDE, s.rows += SIDE * s.row_bytes, s.y += SIDE * y_stride)
            side_of_rows(w, &panel, &s, SIDE);
        for (; t < n_row; t++, s.rows += s.row_bytes, s.y += y_stride) side_of_rows(w, &panel, &s, 1);
    }
}

void cpu_x86_fill_int8_vnni(struct cpu_kernels *k) {
    for (int form = 0; form < CPU_N_FORM; form++)
        for (int c = CPU_Q2; c <= CPU_Q8; c++)
            k->linear[form][c] = (struct cpu_linear_method){
                .row_bytes = int8_row_bytes,
                .prepare = c == CPU_Q4 ? int8_prepare_split : int8_prepare,
                .multiply = multiply,
                .out_block = OUT_BLOCK,
                .row_block = ROW_BLOCK,
                .scratch_fixed = INT8_FEW * 128,
                .scratch_per_in = INT8_PANEL_PER_IN,
            };
}
