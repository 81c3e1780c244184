// Integer linears with AVX512-VNNI: preparing rows, laying codes out, and many rows.
#include "cpu/x86/int8_vnni.h"
#include "cpu/x86/codes_512.h"
#include "cpu/x86/vec_math.h"
#include "cpu/x86/x86.h"

#define OUT_BLOCK 64
#define ROW_BLOCK 256 // of 1024 inputs: a quarter of a megabyte, which stays in the second-level cache
#define SIDE      8   // rows whose sums of one group are in registers at a time

// ---- rows ----

static size_t row_bytes(int64_t n_in, int group) { return group == 0 ? 64 : (size_t)int8_row_of(n_in, group, 1).bytes; }
static size_t row_bytes_two(int64_t n_in, int group) {
    return group == 0 ? 64 : (size_t)int8_row_of(n_in, group, 2).bytes; // of plain weights there are none
}

// 32 codes of one plane: a, then b.
INLINE void store_codes(__m512i a, __m512i b, int8_t *low, int8_t *high) {
    _mm_storeu_si128((__m128i *)low, _mm512_cvtepi32_epi8(a));
    _mm_storeu_si128((__m128i *)high, _mm512_cvtepi32_epi8(b));
}

// A group's codes: the nearest multiples of the scale. Returns their sum.
INLINE int quantise_group(const float *x, int n, bool split, int planes, float inverse, int8_t *codes, int64_t plane) {
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1)), half = _mm512_set1_epi32(128);
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
        if (planes == 2) { // what is left of 256 times the high part lies in [-128, 127], and its low byte is it
            store_codes(a, b, low + plane, high + plane);
            a = _mm512_srai_epi32(_mm512_add_epi32(a, half), 8);
            b = _mm512_srai_epi32(_mm512_add_epi32(b, half), 8);
        }
        store_codes(a, b, low, high);
    }
    return _mm512_reduce_add_epi32(sum);
}

// Symmetric: the largest magnitude of a group becomes 127, or 127.5 * 256 - 1, whose high part is 127; ties go to the
// even code.
void int8_prepare(const float *x, int64_t n_in, int group, bool split, int planes, void *row) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    struct int8_row layout = int8_row_of(n_in, group, planes);
    int64_t n_group = n_in / group;
    int8_t *codes = row;
    float *scales = (float *)int8_scales(&layout, row), *sums = (float *)int8_sums(&layout, row);
    float most_code = planes == 2 ? 32639.0f : 127.0f;
    for (int64_t g = 0; g < n_group; g++) {
        __m512i most = _mm512_setzero_si512(); // as integers NaN is the largest of all, and makes the scale NaN
        for (int i = 0; i < group; i += VEC_N)
            most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_loadu_si512(x + g * group + i), magnitude));
        uint32_t bits = (uint32_t)_mm512_reduce_max_epi32(most);
        float largest, inverse;
        memcpy(&largest, &bits, sizeof largest);
        inverse = largest > 0 ? most_code / largest : 0;
        scales[g] = largest / most_code;
        sums[g] = scales[g] * (float)quantise_group(x + g * group, group, split, planes, inverse, codes + g * group,
                                                    layout.plane_bytes);
    }
    for (int p = 0; p < planes; p++)
        memset(codes + p * layout.plane_bytes + n_in, 0, (size_t)(layout.plane_bytes - n_in));
    memset(scales + n_group, 0, (size_t)(layout.padded_groups - n_group) * sizeof(float));
    memset(sums + n_group, 0, (size_t)(layout.padded_groups - n_group) * sizeof(float));
}

static void prepare(const float *x, int64_t n, int g, void *row) { int8_prepare(x, n, g, false, 1, row); }
static void prepare_split(const float *x, int64_t n, int g, void *row) { int8_prepare(x, n, g, true, 1, row); }
static void prepare_two(const float *x, int64_t n, int g, void *row) { int8_prepare(x, n, g, false, 2, row); }
static void prepare_split_two(const float *x, int64_t n, int g, void *row) { int8_prepare(x, n, g, true, 2, row); }

// ---- panels of 16 outputs ----

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

void int8_pack_panel(const struct weight *w, int64_t first, int64_t last, int64_t k0, int64_t depth,
                     const struct int8_panel *panel) {
    const uint8_t *rows[INT8_OUTS];
    int64_t outputs[INT8_OUTS];
    for (int j = 0; j < INT8_OUTS; j++) {
        outputs[j] = first + j < last ? first + j : last - 1;
        rows[j] = (const uint8_t *)w->data + (size_t)outputs[j] * weight_row_bytes(w) + k0 * w->bits / 8;
    }
    load_group_columns(w, w->scales, outputs, k0 / w->group, depth / w->group, panel->scales);
    load_group_columns(w, w->biases, outputs, k0 / w->group, depth / w->group, panel->biases);
    if (w->bits == 4) {
        pack_q4(rows, depth, int8_unit(w->group), panel->codes);
        return;
    }
    if (w->bits != 8) {
        struct code_unpacker u = code_unpacker_make(w->bits);
        for (int j = 0; j < INT8_OUTS; j++) {
            unpack_codes(&u, rows[j], depth, panel->rows + j * depth);
            rows[j] = panel->rows + j * depth;
        }
    }
    pack_q8(rows, depth, panel->codes);
}

// ---- many rows: a lane is an output ----

// Up to SIDE rows, with their place in y.
struct side {
    struct int8_row layout;
    const char *rows;
    float *y;
    int64_t y_stride, n_out;
};

// Adds a group's dot products with one plane of x, which starts at x.
INLINE void dot_group(const uint8_t *codes, int group, const char *x, int64_t row_bytes, const int n_row,
                      __m512i *dot) {
    for (int i = 0; i < group; i += 4, codes += 64) {
        __m512i four = _mm512_loadu_si512(codes);
        for (int t = 0; t < n_row; t++) {
            int32_t value; // four codes: groups and rows start at multiples of four
            memcpy(&value, __builtin_assume_aligned(x + t * row_bytes + i, sizeof value), sizeof value);
            dot[t] = _mm512_dpbusd_epi32(dot[t], four, _mm512_set1_epi32(value));
        }
    }
}

INLINE void side_of_rows(const struct weight *w, const struct int8_panel *panel, const struct side *s, const int n_row,
                         const int planes) {
    vec chain[INT8_CHAINS][SIDE];
    int64_t row_bytes = s->layout.bytes;
    const float *scales = int8_scales(&s->layout, s->rows), *sums = int8_sums(&s->layout, s->rows);
    for (int c = 0; c < INT8_CHAINS; c++)
        for (int t = 0; t < n_row; t++) chain[c][t] = vec_set(0);
    for (int64_t g = 0; g < w->n_in / w->group; g++) {
        __m512i dot[SIDE];
        const uint8_t *codes = panel->codes + g * w->group * INT8_OUTS;
        for (int t = 0; t < n_row; t++) dot[t] = _mm512_setzero_si512();
        dot_group(codes, w->group, s->rows + g * w->group, row_bytes, n_row, dot);
        if (planes == 2) {
            for (int t = 0; t < n_row; t++) dot[t] = _mm512_slli_epi32(dot[t], 8);
            dot_group(codes, w->group, s->rows + s->layout.plane_bytes + g * w->group, row_bytes, n_row, dot);
        }
        vec scale = vec_load(panel->scales + g * INT8_OUTS), bias = vec_load(panel->biases + g * INT8_OUTS);
        for (int t = 0; t < n_row; t++) {
            int64_t at = t * row_bytes / (int64_t)sizeof(float) + g;
            vec product = vec_mul(scale, vec_set(scales[at]));
            vec sum = vec_fma(product, _mm512_cvtepi32_ps(dot[t]), chain[g % INT8_CHAINS][t]);
            chain[g % INT8_CHAINS][t] = vec_fma(bias, vec_set(sums[at]), sum);
        }
    }
    for (int t = 0; t < n_row; t++) {
        for (int width = INT8_CHAINS / 2; width > 0; width /= 2)
            for (int c = 0; c < width; c++) chain[c][t] = vec_add(chain[c][t], chain[c + width][t]);
        vec_store_n(s->y + t * s->y_stride, chain[0][t], s->n_out);
    }
}

INLINE void multiply_planes(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row,
                            float *y, int64_t y_stride, void *scratch, const int planes) {
    if (n_row <= INT8_FEW) {
        int8_few_rows(w, first, last, rows, n_row, planes, y, y_stride, scratch);
        return;
    }
    struct int8_panel panel = int8_open_panel(w->n_in, w->group, scratch);
    for (int64_t o = first; o < last; o += INT8_OUTS) {
        int8_pack_panel(w, o, last, 0, w->n_in, &panel);
        struct side s = {int8_row_of(w->n_in, w->group, planes), rows, y + o - first, y_stride,
                         last - o < INT8_OUTS ? last - o : INT8_OUTS};
        int64_t t = 0;
        for (; t + SIDE <= n_row; t += SIDE, s.rows += SIDE * s.layout.bytes, s.y += SIDE * y_stride)
            side_of_rows(w, &panel, &s, SIDE, planes);
        for (; t < n_row; t++, s.rows += s.layout.bytes, s.y += y_stride) side_of_rows(w, &panel, &s, 1, planes);
    }
}

static void multiply(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                     int64_t y_stride, void *scratch) {
    multiply_planes(w, first, last, rows, n_row, y, y_stride, scratch, 1);
}

static void multiply_two(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                         int64_t y_stride, void *scratch) {
    multiply_planes(w, first, last, rows, n_row, y, y_stride, scratch, 2);
}

void cpu_x86_fill_integer_vnni(struct cpu_kernels *k, int planes) {
    for (int c = CPU_Q2; c <= CPU_Q8; c++) {
        struct cpu_linear_method m = {
            .row_bytes = planes == 2 ? row_bytes_two : row_bytes,
            .prepare = c == CPU_Q4 ? prepare_split : prepare,
            .multiply = planes == 2 ? multiply_two : multiply,
            .out_block = OUT_BLOCK,
            .row_block = ROW_BLOCK,
            .scratch_fixed = INT8_SCRATCH,
            .scratch_per_in = INT8_SCRATCH_PER_IN,
        };
        if (planes == 2) m.prepare = c == CPU_Q4 ? prepare_split_two : prepare_two;
        for (int form = 0; form < CPU_N_FORM; form++) k->linear[form][c] = m;
    }
}
