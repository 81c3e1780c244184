// Integer linears of prompts on AMX tiles: 32 rows by 32 outputs at a time. A tile gives the exact dot products of one
// group and one plane of x, and each output is one fp32 chain over its groups:
//   acc += (w_scale[g] x_scale[g]) dot[g];  acc += w_bias[g] x_sum[g], each step fused
// A tile instruction treats each row alone, and a chain that is interrupted between two blocks of inputs is kept whole
// as fp32: so a row's bits do not depend on its neighbours.
#include "cpu/x86/int8_vnni.h"
#include "cpu/x86/tiles_amx.h"
#include "cpu/x86/vec_math.h"
#include "cpu/x86/x86.h"

#define OUT_BLOCK   256
#define PANEL_DEPTH 2048 // by OUT_BLOCK: a quarter of a 2 MiB second-level cache
#define ROW_BLOCK   2048 // laying out a panel costs as much as multiplying some tens of rows by it
#define STEP        32   // rows and outputs of four tiles
#define STEP_DEPTH  256  // of STEP rows: they stay in the first-level cache while a panel streams past
#define TILE_DOTS   256  // of one tile
#define PLANE_DOTS  (4 * TILE_DOTS)
#define AT_ONCE     2 // groups between two visits of the sums
#define MIN_GROUP   32

// Scratch: panels of OUT_BLOCK outputs, the sums of STEP rows, and dot products of AT_ONCE groups.
struct space {
    uint8_t *codes;         // [OUT_BLOCK / 16][PANEL_DEPTH / 4][16][4]
    float *scales, *biases; // [OUT_BLOCK / 16][PANEL_DEPTH / MIN_GROUP][16]
    uint8_t *unpacked;      // [16][PANEL_DEPTH]
    float *sums;            // [STEP][SUM_STRIDE]
    int32_t *dots;          // [AT_ONCE][plane][row half][output half][16][16]
};

#define PANEL_GROUPS (PANEL_DEPTH / MIN_GROUP)
#define SCALES_BYTES (OUT_BLOCK * PANEL_GROUPS * sizeof(float))
#define SUM_STRIDE   (OUT_BLOCK + 16) // rows that are 4 KiB apart would wait for one another
#define SPACE_BYTES                                                                                                    \
    ((OUT_BLOCK + INT8_OUTS) * PANEL_DEPTH + 2 * SCALES_BYTES + STEP * SUM_STRIDE * sizeof(float) +                    \
     2 * AT_ONCE * PLANE_DOTS * sizeof(int32_t))

static struct space open_space(void *scratch) {
    struct space s = {.codes = scratch};
    s.unpacked = s.codes + OUT_BLOCK * PANEL_DEPTH;
    s.scales = (float *)(s.unpacked + INT8_OUTS * PANEL_DEPTH);
    s.biases = s.scales + OUT_BLOCK * PANEL_GROUPS;
    s.sums = s.biases + OUT_BLOCK * PANEL_GROUPS;
    s.dots = (int32_t *)(s.sums + STEP * SUM_STRIDE);
    return s;
}

static struct int8_panel panel_of(const struct space *s, int64_t out) {
    int64_t i = out / INT8_OUTS;
    return (struct int8_panel){.codes = s->codes + i * INT8_OUTS * PANEL_DEPTH,
                               .scales = s->scales + i * INT8_OUTS * PANEL_GROUPS,
                               .biases = s->biases + i * INT8_OUTS * PANEL_GROUPS,
                               .rows = s->unpacked};
}

// Up to STEP rows by the outputs of a call, and inputs of one panel.
struct pass {
    const struct weight *w;
    const struct space *space;
    struct int8_row layout;
    const char *rows;        // whole
    int64_t n_row, n_out;    // n_out: a multiple of STEP
    int64_t k0;              // of the panel
    int64_t group0, n_group; // of the panel, at hand
};

// Tiles 0 to 3 are dot products of rows 0..15 | 16..31 by outputs 0..15 | 16..31; 4 and 5 are rows, 6 and 7 outputs.
static void configure(int64_t n_row, int unit) {
    struct tile_shapes s = {.palette = 1};
    int64_t low = n_row < 16 ? n_row : 16, high = n_row > 16 ? n_row - 16 : 1;
    for (int i = 0; i < 4; i++) tile_shape(&s, i, i < 2 ? low : high, INT8_OUTS * 4);
    tile_shape(&s, 4, low, unit);
    tile_shape(&s, 5, high, unit);
    for (int i = 6; i < 8; i++) tile_shape(&s, i, unit / 4, INT8_OUTS * 4);
    _tile_loadconfig(&s);
}

// One group and plane.
INLINE void multiply_plane(const char *a, int64_t row_bytes, const uint8_t *b, int unit, int n_unit, int32_t *dots,
                           const bool two) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int u = 0; u < n_unit; u++, a += unit, b += unit * INT8_OUTS) {
        _tile_loadd(4, a, row_bytes);
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + INT8_OUTS * PANEL_DEPTH, 64);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        if (!two) continue;
        _tile_loadd(5, a + 16 * row_bytes, row_bytes);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
    _tile_stored(0, dots, 64);
    _tile_stored(1, dots + TILE_DOTS, 64);
    if (!two) return;
    _tile_stored(2, dots + 2 * TILE_DOTS, 64);
    _tile_stored(3, dots + 3 * TILE_DOTS, 64);
}

// Group g of the panel by outputs [out, out + STEP).
INLINE void multiply_group(const struct pass *p, int64_t out, int64_t g, int32_t *dots, const bool two,
                           const int planes) {
    int group = p->w->group, unit = int8_unit(group);
    const uint8_t *b = p->space->codes + out * PANEL_DEPTH + g * group * INT8_OUTS;
    const char *a = p->rows + p->k0 + g * group;
    multiply_plane(a, p->layout.bytes, b, unit, group / unit, dots, two);
    if (planes == 2)
        multiply_plane(a + p->layout.plane_bytes, p->layout.bytes, b, unit, group / unit, dots + PLANE_DOTS, two);
}

// Adds the dot products of n_group groups from g on, of one tile, to the sums.
INLINE void add_tile(const struct pass *p, int64_t out, int64_t g, const int n_group, int tile, const int planes) {
    int64_t row = tile / 2 * 16, end = row + 16 < p->n_row ? row + 16 : p->n_row;
    int64_t stride = p->layout.bytes / (int64_t)sizeof(float), at = p->k0 / p->w->group + g + row * stride;
    struct int8_panel panel = panel_of(p->space, out + tile % 2 * INT8_OUTS);
    const float *scales = int8_scales(&p->layout, p->rows) + at, *x_sums = int8_sums(&p->layout, p->rows) + at;
    float *sums = p->space->sums + row * SUM_STRIDE + out + tile % 2 * INT8_OUTS;
    const int32_t *dots = p->space->dots + tile * TILE_DOTS;
    vec scale[AT_ONCE], bias[AT_ONCE];
    for (int i = 0; i < n_group; i++) {
        scale[i] = vec_load(panel.scales + (g + i) * INT8_OUTS);
        bias[i] = vec_load(panel.biases + (g + i) * INT8_OUTS);
    }
    for (; row < end; row++, dots += INT8_OUTS, scales += stride, x_sums += stride, sums += SUM_STRIDE) {
        vec sum = vec_load(sums);
        for (int i = 0; i < n_group; i++) {
            const int32_t *of_group = dots + i * planes * PLANE_DOTS;
            __m512i dot = _mm512_load_si512(of_group);
            if (planes == 2)
                dot = _mm512_add_epi32(_mm512_slli_epi32(dot, 8), _mm512_load_si512(of_group + PLANE_DOTS));
            sum = vec_fma(vec_mul(scale[i], vec_set(scales[i])), _mm512_cvtepi32_ps(dot), sum);
            sum = vec_fma(bias[i], vec_set(x_sums[i]), sum);
        }
        vec_store(sums, sum);
    }
}

INLINE void add_groups(const struct pass *p, int64_t out, int64_t g, const int n_group, const bool two,
                       const int planes) {
    for (int tile = 0; tile < (two ? 4 : 2); tile++) add_tile(p, out, g, n_group, tile, planes);
}

INLINE void multiply_pass(const struct pass *p, const bool two, const int planes) {
    int64_t end = p->group0 + p->n_group;
    for (int64_t out = 0; out < p->n_out; out += STEP) {
        for (int64_t g = p->group0; g < end; g += AT_ONCE) {
            for (int64_t i = 0; i < AT_ONCE && g + i < end; i++)
                multiply_group(p, out, g + i, p->space->dots + i * planes * PLANE_DOTS, two, planes);
            if (g + AT_ONCE <= end)
                add_groups(p, out, g, AT_ONCE, two, planes);
            else
                add_groups(p, out, g, 1, two, planes);
        }
    }
}

static void load_sums(const struct pass *p, const float *y, int64_t y_stride, int64_t n_out) {
    for (int64_t t = 0; t < p->n_row; t++) {
        float *sums = p->space->sums + t * SUM_STRIDE;
        if (p->k0 == 0)
            memset(sums, 0, (size_t)p->n_out * sizeof *sums);
        else
            memcpy(sums, y + t * y_stride, (size_t)n_out * sizeof *sums);
    }
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE void multiply_panel(struct pass *p, const char *rows, int64_t n_row, int64_t depth, float *y, int64_t y_stride,
                           int64_t n_out, const int planes) {
    int64_t n_group = depth / p->w->group, step = STEP_DEPTH / p->w->group;
    int64_t shaped = 0;
    for (int64_t t = 0; t < n_row; t += STEP, y += STEP * y_stride) {
        p->rows = rows + t * p->layout.bytes;
        p->n_row = least(n_row - t, STEP);
        if (p->n_row != shaped) configure(p->n_row, int8_unit(p->w->group));
        shaped = p->n_row;
        load_sums(p, y, y_stride, n_out);
        for (p->group0 = 0; p->group0 < n_group; p->group0 += step) {
            p->n_group = least(n_group - p->group0, step);
            if (p->n_row > 16)
                multiply_pass(p, true, planes);
            else
                multiply_pass(p, false, planes);
        }
        for (int64_t i = 0; i < p->n_row; i++)
            memcpy(y + i * y_stride, p->space->sums + i * SUM_STRIDE, (size_t)n_out * sizeof *y);
    }
}

INLINE void multiply_planes(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row,
                            float *y, int64_t y_stride, void *scratch, const int planes) {
    struct space space = open_space(scratch);
    int64_t n_out = last - first;
    struct pass p = {.w = w, .space = &space, .layout = int8_row_of(w->n_in, w->group, planes)};
    p.n_out = (n_out + STEP - 1) / STEP * STEP;
    for (p.k0 = 0; p.k0 < w->n_in; p.k0 += PANEL_DEPTH) {
        int64_t depth = least(w->n_in - p.k0, PANEL_DEPTH);
        for (int64_t out = 0; out < p.n_out; out += INT8_OUTS) {
            struct int8_panel panel = panel_of(&space, out);
            int64_t from = first + out < last ? first + out : last - 1; // of a step's other half there may be none
            int8_pack_panel(w, from, last, p.k0, depth, &panel);
        }
        multiply_panel(&p, rows, n_row, depth, y, y_stride, n_out, planes);
    }
    _tile_release();
}

static void multiply(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                     int64_t y_stride, void *scratch) {
    multiply_planes(w, first, last, rows, n_row, y, y_stride, scratch, 1);
}

static void multiply_two(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                         int64_t y_stride, void *scratch) {
    multiply_planes(w, first, last, rows, n_row, y, y_stride, scratch, 2);
}

// Over the VNNI methods, whose rows these are.
void cpu_x86_fill_integer_prompt_amx(struct cpu_kernels *k, int planes) {
    for (int c = CPU_Q2; c <= CPU_Q8; c++) {
        struct cpu_linear_method *m = &k->linear[FORM_PROMPT][c];
        m->multiply = planes == 2 ? multiply_two : multiply;
        m->out_block = OUT_BLOCK;
        m->row_block = ROW_BLOCK;
        m->scratch_fixed = SPACE_BYTES;
        m->scratch_per_in = 0;
    }
}
