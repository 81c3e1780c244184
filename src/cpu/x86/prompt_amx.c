// Prompt linears on AMX tiles: weights are expanded to bf16 once for a block of rows, x is rounded to bf16, and each
// output is one fp32 chain over its inputs.
//
// Why a row's bits do not depend on its neighbours: TDPBF16PS treats each row of a alone, in one order over the depth;
// tiles of fewer rows only leave rows out; and a sum that is stored between two blocks of depth is stored whole, as
// fp32.
#include "cpu/x86/pack_bf16.h"
#include "cpu/x86/tiles_amx.h"
#include "cpu/x86/x86.h"

#define OUT_BLOCK   256
#define PANEL_DEPTH 1024 // by OUT_BLOCK: a quarter of a 2 MiB second-level cache
#define ROW_BLOCK   2048 // expanding a panel costs as much as multiplying some 100 rows by it
#define CHUNK_ROWS  256  // whose sums stay in the second-level cache while they go through a panel
#define STEP        32   // rows and outputs of four accumulator tiles
#define STEP_DEPTH  512  // of STEP rows: they stay in the first-level cache while a panel streams past

// Rows are 64 bytes further apart than needed, so that equal columns of many rows do not meet in one set of a cache.
static size_t row_bytes(int64_t n_in, int group) {
    (void)group;
    return (size_t)((n_in + PACK_DEPTH - 1) / PACK_DEPTH * PACK_DEPTH) * sizeof(uint16_t) + 64;
}

static void prepare(const float *x, int64_t n_in, int group, void *row) {
    (void)group;
    pack_bf16_row(x, n_in, false, row);
}

static void prepare_interleaved(const float *x, int64_t n_in, int group, void *row) {
    (void)group;
    pack_bf16_row(x, n_in, true, row);
}

// STEP_DEPTH of inputs for a chunk of rows and all outputs of a call.
struct pass {
    const char *rows; // at the first input
    int64_t row_bytes, n_row;
    const uint8_t *panel; // at the first input
    int64_t panel_stride; // bytes from 16 outputs to the next
    int64_t n_tile;       // of depth
    float *y;
    int64_t y_stride, n_out;
    bool first; // sums start at zero, else at what y holds
};

// Tiles 0 to 3 are sums of rows 0..15 | 16..31 by outputs 0..15 | 16..31, 4 and 5 the rows, 6 and 7 the outputs.
static void configure(int64_t n_row, int64_t n_out) {
    struct tile_shapes s = {.palette = 1};
    for (int i = 0; i < 4; i++) tile_shape(&s, i, n_row, n_out * (int64_t)sizeof(float));
    for (int i = 4; i < 6; i++) tile_shape(&s, i, n_row, 64);
    for (int i = 6; i < 8; i++) tile_shape(&s, i, 16, n_out * (int64_t)sizeof(float));
    _tile_loadconfig(&s);
}

static inline const char *pass_rows(const struct pass *p, int64_t row) { return p->rows + row * p->row_bytes; }

static inline const uint8_t *pass_panel(const struct pass *p, int64_t out) {
    return p->panel + out / PACK_OUTS * p->panel_stride;
}

// Tiles 4 to 7 for one tile of depth. The panel is read once in a while and must not drive the rows out of the
// first-level cache.
static inline __attribute__((always_inline)) void load_operands(const struct pass *p, const char *a, const uint8_t *b) {
    _tile_loadd(4, a, p->row_bytes);
    _tile_stream_loadd(6, b, 64);
    _tile_stream_loadd(7, b + p->panel_stride, 64);
    _tile_loadd(5, a + 16 * p->row_bytes, p->row_bytes);
}

// Four products, and meanwhile the operands of the next four.
static inline __attribute__((always_inline)) void multiply_and_load(const struct pass *p, const char *a,
                                                                    const uint8_t *b) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(4, a, p->row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_stream_loadd(6, b, 64);
    _tile_dpbf16ps(3, 5, 7);
    _tile_stream_loadd(7, b + p->panel_stride, 64);
    _tile_loadd(5, a + 16 * p->row_bytes, p->row_bytes);
}

// 32 rows by 32 outputs. The first operands are loaded already; the last products load those of the next step, so that
// they are on their way while the sums are stored.
static void full_step(const struct pass *p, int64_t row, int64_t out, const char *next_a, const uint8_t *next_b) {
    const char *a = pass_rows(p, row);
    const uint8_t *b = pass_panel(p, out);
    float *y0 = p->y + row * p->y_stride + out, *y1 = y0 + 16 * p->y_stride;
    int64_t y_bytes = p->y_stride * (int64_t)sizeof(float);
    if (p->first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, y0, y_bytes);
        _tile_loadd(1, y0 + 16, y_bytes);
        _tile_loadd(2, y1, y_bytes);
        _tile_loadd(3, y1 + 16, y_bytes);
    }
    for (int64_t k = 1; k < p->n_tile; k++) multiply_and_load(p, a + k * 64, b + k * PACK_TILE);
    multiply_and_load(p, next_a, next_b);
    _tile_stored(0, y0, y_bytes);
    _tile_stored(1, y0 + 16, y_bytes);
    _tile_stored(2, y1, y_bytes);
    _tile_stored(3, y1 + 16, y_bytes);
}

// The same products for fewer than 32 rows or outputs: up to 16 rows by 16 outputs at a time.
static void partial_step(const struct pass *p, int64_t row, int64_t out) {
    const char *a = pass_rows(p, row);
    const uint8_t *b = pass_panel(p, out);
    float *y = p->y + row * p->y_stride + out;
    int64_t y_bytes = p->y_stride * (int64_t)sizeof(float);
    if (p->first)
        _tile_zero(0);
    else
        _tile_loadd(0, y, y_bytes);
    for (int64_t k = 0; k < p->n_tile; k++) {
        _tile_loadd(4, a + k * 64, p->row_bytes);
        _tile_loadd(6, b + k * PACK_TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, y, y_bytes);
}

static void multiply_full(const struct pass *p, int64_t n_row, int64_t n_out) {
    int64_t per_row = n_out / STEP, n_step = n_row / STEP * per_row;
    if (n_step == 0) return;
    configure(16, 16);
    load_operands(p, pass_rows(p, 0), pass_panel(p, 0));
    for (int64_t s = 0; s < n_step; s++) {
        int64_t next = s + 1 < n_step ? s + 1 : s;
        full_step(p, s / per_row * STEP, s % per_row * STEP, pass_rows(p, next / per_row * STEP),
                  pass_panel(p, next % per_row * STEP));
    }
}

// Rows [row0, row1) and outputs [out0, out1), which lie outside the full steps.
static void multiply_partial(const struct pass *p, int64_t row0, int64_t row1, int64_t out0, int64_t out1) {
    for (int64_t row = row0; row < row1; row += 16) {
        for (int64_t out = out0; out < out1; out += 16) {
            configure(row1 - row < 16 ? row1 - row : 16, out1 - out < 16 ? out1 - out : 16);
            partial_step(p, row, out);
        }
    }
}

static void multiply_pass(const struct pass *p) {
    int64_t n_row = p->n_row / STEP * STEP, n_out = p->n_out / STEP * STEP;
    multiply_full(p, n_row, n_out);
    multiply_partial(p, 0, n_row, n_out, p->n_out);
    multiply_partial(p, n_row, p->n_row, 0, p->n_out);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void multiply(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                     int64_t y_stride, void *scratch) {
    uint8_t *panel = scratch;
    struct pass p = {.row_bytes = (int64_t)row_bytes(w->n_in, 0), .y_stride = y_stride, .n_out = last - first};
    for (int64_t k0 = 0; k0 < w->n_in; k0 += PANEL_DEPTH) {
        int64_t depth = least(w->n_in - k0, PANEL_DEPTH);
        pack_bf16_panel(w, first, last, k0, depth, panel + OUT_BLOCK * PANEL_DEPTH * sizeof(uint16_t), panel);
        p.panel_stride = (depth + PACK_DEPTH - 1) / PACK_DEPTH * PACK_TILE;
        for (int64_t row = 0; row < n_row; row += CHUNK_ROWS) {
            p.n_row = least(n_row - row, CHUNK_ROWS);
            p.y = y + row * y_stride;
            for (int64_t k = 0; k < depth; k += STEP_DEPTH) {
                p.rows = (const char *)rows + row * p.row_bytes + (k0 + k) * (int64_t)sizeof(uint16_t);
                p.panel = panel + k / PACK_DEPTH * PACK_TILE;
                p.n_tile = (least(depth - k, STEP_DEPTH) + PACK_DEPTH - 1) / PACK_DEPTH;
                p.first = k0 + k == 0;
                multiply_pass(&p);
            }
        }
    }
    _tile_release();
}

void cpu_x86_fill_prompt_amx(struct cpu_kernels *k) {
    for (int c = 0; c < CPU_N_CLASS; c++) {
        k->linear[FORM_PROMPT][c] = (struct cpu_linear_method){
            .row_bytes = row_bytes,
            .prepare = c == CPU_Q4 ? prepare_interleaved : prepare,
            .multiply = multiply,
            .out_block = OUT_BLOCK,
            .row_block = ROW_BLOCK,
            .scratch_fixed = OUT_BLOCK * PANEL_DEPTH * sizeof(uint16_t) + pack_bf16_scratch(PANEL_DEPTH),
        };
    }
}
