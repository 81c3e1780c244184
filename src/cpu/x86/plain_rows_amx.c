// Linears of rounds with bf16 weights on AMX tiles: 16 outputs are the rows of a product as they lie in memory, and up
// to 16 rows of x its columns, each the sum of two bf16 (pack_bf16.h). A tile instruction treats each column alone, so
// that the number of rows only decides how many there are.
#include "cpu/x86/pack_bf16.h"
#include "cpu/x86/tiles_amx.h"
#include "cpu/x86/transpose_512.h"
#include "cpu/x86/x86.h"

#define OUT_BLOCK  64
#define ROW_BLOCK  64
#define SIDE       16  // rows of x at a time
#define LOOK_AHEAD 512 // bytes of a weight's row

static int64_t term_bytes(int64_t n_in) { return pack_padded(n_in) * (int64_t)sizeof(uint16_t); }

static size_t row_bytes(int64_t n_in, int group) {
    (void)group;
    return (size_t)(2 * term_bytes(n_in));
}

static void prepare(const float *x, int64_t n_in, int group, void *row) {
    (void)group;
    pack_bf16_row(x, n_in, row, (uint16_t *)row + pack_padded(n_in));
}

// Columns of up to 16 rows: pair i of inputs of row 0, of row 1, ... A single row is its own columns.
static const char *columns_of(const char *rows, int64_t stride, int64_t n_row, int64_t *column_bytes, char *scratch) {
    *column_bytes = n_row == 1 ? 4 : 64;
    if (n_row == 1) return rows;
    const uint8_t *from[SIDE];
    for (int64_t t = 0; t < SIDE; t++) from[t] = (const uint8_t *)rows + (t < n_row ? t : n_row - 1) * stride;
    for (int64_t i = 0; i < stride; i += 16) {
        __m512i column[4];
        load_columns_16x4(from, i, column);
        for (int d = 0; d < 4; d++) _mm512_storeu_si512(scratch + (i + 4 * d) * SIDE, column[d]);
    }
    return scratch;
}

// Tile 0 is the sums of n_out outputs by n_row rows, 1 the outputs, 2 and 3 the two terms of the rows.
static void configure(int64_t n_out, int64_t n_row) {
    struct tile_shapes s = {.palette = 1};
    tile_shape(&s, 0, n_out, n_row * (int64_t)sizeof(float));
    tile_shape(&s, 1, n_out, 64);
    for (int i = 2; i < 4; i++) tile_shape(&s, i, 16, n_row * (int64_t)sizeof(float));
    _tile_loadconfig(&s);
}

// n_out weights' rows by the columns.
static void multiply_tile(const char *weights, int64_t weight_bytes, int64_t n_out, const char *columns,
                          int64_t column_bytes, int64_t n_tile) {
    _tile_zero(0);
    for (int64_t k = 0; k < n_tile; k++) {
        for (int64_t j = 0; j < n_out; j++) _mm_prefetch(weights + j * weight_bytes + k * 64 + LOOK_AHEAD, _MM_HINT_T0);
        _tile_loadd(1, weights + k * 64, weight_bytes);
        _tile_loadd(2, columns + k * 16 * column_bytes, column_bytes);
        _tile_loadd(3, columns + (n_tile + k) * 16 * column_bytes, column_bytes);
        _tile_dpbf16ps(0, 1, 2);
        _tile_dpbf16ps(0, 1, 3);
    }
}

// y[t][o] from the tile of sums.
static void store_sums(int64_t n_out, int64_t n_row, float *y, int64_t y_stride) {
    if (n_row == 1) {
        _tile_stored(0, y, sizeof(float));
        return;
    }
    _Alignas(64) float sums[PACK_OUTS][SIDE] = {{0}};
    const uint8_t *rows[PACK_OUTS];
    _tile_stored(0, sums, sizeof sums[0]);
    for (int j = 0; j < PACK_OUTS; j++) rows[j] = (const uint8_t *)sums[j];
    for (int64_t t = 0; t < n_row; t += 4) {
        __m512i column[4];
        load_columns_16x4(rows, t * (int64_t)sizeof(float), column);
        for (int d = 0; d < 4 && t + d < n_row; d++)
            _mm512_mask_storeu_epi32(y + (t + d) * y_stride, (__mmask16)(0xffffu >> (16 - n_out)), column[d]);
    }
}

static void multiply(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                     int64_t y_stride, void *scratch) {
    int64_t x_bytes = (int64_t)row_bytes(w->n_in, 0), shaped_out = 0, shaped_row = 0;
    char *columns = scratch, *expanded = columns + x_bytes * SIDE;
    for (int64_t t = 0; t < n_row; t += SIDE) {
        int64_t n = n_row - t < SIDE ? n_row - t : SIDE, column_bytes;
        const char *x = columns_of((const char *)rows + t * x_bytes, x_bytes, n, &column_bytes, columns);
        for (int64_t o = first; o < last; o += PACK_OUTS) {
            int64_t n_out = last - o < PACK_OUTS ? last - o : PACK_OUTS, stride;
            const uint16_t *weights = pack_bf16_rows(w, o, o + n_out, expanded, &stride);
            if (n_out != shaped_out || n != shaped_row) configure(n_out, n);
            shaped_out = n_out;
            shaped_row = n;
            multiply_tile((const char *)weights, stride * (int64_t)sizeof *weights, n_out, x, column_bytes,
                          x_bytes / 128);
            store_sums(n_out, n, y + t * y_stride + o - first, y_stride);
        }
    }
    _tile_release();
}

// Weights of other types are widened and multiplied in fp32.
void cpu_x86_fill_plain_rows_amx(struct cpu_kernels *k) {
    k->linear[FORM_ROWS][CPU_BF16] = (struct cpu_linear_method){
        .row_bytes = row_bytes,
        .prepare = prepare,
        .multiply = multiply,
        .out_block = OUT_BLOCK,
        .row_block = ROW_BLOCK,
        .scratch_fixed = 3 * SIDE * PACK_DEPTH * sizeof(uint16_t),
        .scratch_per_in = 3 * SIDE * sizeof(uint16_t), // columns of two terms, and weights that are padded
    };
}
