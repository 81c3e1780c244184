// Integer linears of rounds on AMX tiles: several rows, up to 16 at a time, by 16 outputs. A tile gives the exact dot
// products of one group and one plane of x, so its sums combine to the bits that a row alone has (int8_vnni.h).
#include "cpu/x86/int8_vnni.h"
#include "cpu/x86/tiles_amx.h"
#include "cpu/x86/vec_math.h"
#include "cpu/x86/x86.h"

#define OUT_BLOCK 128 // a block is read in one go, and its first lines are waited for
#define ROW_BLOCK 64
#define SIDE      16 // rows of a tile
#define AT_ONCE   4  // tiles in flight, 0 to 3: so many groups, or half with two planes
#define DOTS      (AT_ONCE * SIDE * INT8_OUTS)

struct side {
    const struct weight *w;
    struct int8_row layout;
    const char *rows;
    int64_t n_row;
    float *y;
    int64_t y_stride, n_out;
    vec *chains;   // [INT8_CHAINS][SIDE], a lane an output
    int32_t *dots; // [2][AT_ONCE][SIDE][INT8_OUTS]: of the groups at hand, and of those before them
};

// Tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 outputs.
static void configure(int64_t n_row, int unit) {
    struct tile_shapes s = {.palette = 1};
    for (int i = 0; i < 4; i++) tile_shape(&s, i, n_row, INT8_OUTS * 4);
    for (int i = 4; i < 6; i++) tile_shape(&s, i, n_row, unit);
    for (int i = 6; i < 8; i++) tile_shape(&s, i, unit / 4, INT8_OUTS * 4);
    _tile_loadconfig(&s);
}

// Dot products of one group into a tile and on to memory. The compilers want plain numbers for tiles.
#define MULTIPLY_GROUP(tile, rows_tile, outs_tile, a, b)                                                               \
    do {                                                                                                               \
        _tile_zero(tile);                                                                                              \
        for (int u = 0; u < n_unit; u++) {                                                                             \
            _tile_loadd(rows_tile, (a) + u * unit, s->layout.bytes);                                                   \
            _tile_loadd(outs_tile, (b) + u * unit * INT8_OUTS, 64);                                                    \
            _tile_dpbsud(tile, rows_tile, outs_tile);                                                                  \
        }                                                                                                              \
        _tile_stored(tile, dots + tile * SIDE * INT8_OUTS, 64);                                                        \
    } while (0)

// Groups [g, g + n) of a panel; with two planes, a group's two tiles follow one another.
static void multiply_groups(const struct side *s, const uint8_t *codes, int64_t g, int n, int32_t *dots) {
    int group = s->w->group, unit = int8_unit(group), n_unit = group / unit, width = group * INT8_OUTS;
    const char *a = s->rows + g * group, *low = a + s->layout.plane_bytes;
    const uint8_t *b = codes + g * width;
    MULTIPLY_GROUP(0, 4, 6, a, b);
    if (s->layout.planes == 2) {
        MULTIPLY_GROUP(1, 5, 7, low, b);
        if (n < 2) return;
        MULTIPLY_GROUP(2, 4, 6, a + group, b + width);
        MULTIPLY_GROUP(3, 5, 7, low + group, b + width);
        return;
    }
    if (n > 1) MULTIPLY_GROUP(1, 5, 7, a + group, b + width);
    if (n > 2) MULTIPLY_GROUP(2, 4, 6, a + 2 * group, b + 2 * width);
    if (n > 3) MULTIPLY_GROUP(3, 5, 7, a + 3 * group, b + 3 * width);
}

// Adds the dot products of group g to its chain.
INLINE void add_group(const struct side *s, const struct int8_panel *panel, int64_t g, const int32_t *dots,
                      const int planes) {
    vec scale = vec_load(panel->scales + g * INT8_OUTS), bias = vec_load(panel->biases + g * INT8_OUTS);
    const float *scales = int8_scales(&s->layout, s->rows) + g, *sums = int8_sums(&s->layout, s->rows) + g;
    int64_t n_row = s->n_row, stride = s->layout.bytes / (int64_t)sizeof(float);
    vec *chain = s->chains + g % INT8_CHAINS * SIDE;
    for (int64_t t = 0; t < n_row; t++) {
        __m512i dot = _mm512_load_si512(dots + t * INT8_OUTS);
        if (planes == 2)
            dot = _mm512_add_epi32(_mm512_slli_epi32(dot, 8), _mm512_load_si512(dots + (SIDE + t) * INT8_OUTS));
        vec product = vec_mul(scale, vec_set(scales[t * stride]));
        vec sum = vec_fma(product, _mm512_cvtepi32_ps(dot), chain[t]);
        chain[t] = vec_fma(bias, vec_set(sums[t * stride]), sum);
    }
}

// While the tiles multiply some groups, what they gave for the groups before is added up.
INLINE void multiply_side(const struct side *s, const struct int8_panel *panel, const int planes) {
    const int at_once = AT_ONCE / planes;
    int64_t n_group = s->w->n_in / s->w->group;
    for (int c = 0; c < INT8_CHAINS; c++)
        for (int64_t t = 0; t < s->n_row; t++) s->chains[c * SIDE + t] = vec_set(0);
    int32_t *next = s->dots, *ready = s->dots + DOTS;
    for (int64_t g = 0; g < n_group + at_once; g += at_once) {
        if (g < n_group)
            multiply_groups(s, panel->codes, g, n_group - g < at_once ? (int)(n_group - g) : at_once, next);
        for (int64_t i = g - at_once; i >= 0 && i < g && i < n_group; i++)
            add_group(s, panel, i, ready + i % at_once * planes * SIDE * INT8_OUTS, planes);
        int32_t *swap = next;
        next = ready;
        ready = swap;
    }
    for (int64_t t = 0; t < s->n_row; t++) {
        vec *chain = s->chains + t;
        for (int width = INT8_CHAINS / 2; width > 0; width /= 2)
            for (int c = 0; c < width; c++) chain[c * SIDE] = vec_add(chain[c * SIDE], chain[(c + width) * SIDE]);
        vec_store_n(s->y + t * s->y_stride, chain[0], s->n_out);
    }
}

static void multiply_planes(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row,
                            float *y, int64_t y_stride, void *scratch, int planes) {
    if (n_row <= INT8_FEW) {
        int8_few_rows(w, first, last, rows, n_row, planes, y, y_stride, scratch);
        return;
    }
    _Alignas(64) int32_t dots[2 * DOTS];
    vec chains[INT8_CHAINS * SIDE];
    struct int8_panel panel = int8_open_panel(w->n_in, w->group, scratch);
    struct side s = {
        .w = w, .layout = int8_row_of(w->n_in, w->group, planes), .y_stride = y_stride, .chains = chains, .dots = dots};
    int64_t shaped = 0;
    for (int64_t o = first; o < last; o += INT8_OUTS) {
        int8_pack_panel(w, o, last, 0, w->n_in, &panel);
        s.n_out = last - o < INT8_OUTS ? last - o : INT8_OUTS;
        for (int64_t t = 0; t < n_row; t += SIDE) {
            s.rows = (const char *)rows + t * s.layout.bytes;
            s.n_row = n_row - t < SIDE ? n_row - t : SIDE;
            s.y = y + t * y_stride + o - first;
            if (s.n_row != shaped) configure(s.n_row, int8_unit(w->group));
            shaped = s.n_row;
            if (planes == 1)
                multiply_side(&s, &panel, 1);
            else
                multiply_side(&s, &panel, 2);
        }
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
void cpu_x86_fill_integer_rows_amx(struct cpu_kernels *k, int planes) {
    for (int c = CPU_Q2; c <= CPU_Q8; c++) {
        struct cpu_linear_method *m = &k->linear[FORM_ROWS][c];
        m->multiply = planes == 2 ? multiply_two : multiply;
        m->out_block = OUT_BLOCK;
        m->row_block = ROW_BLOCK;
    }
}
