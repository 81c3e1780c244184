// Prompt linears with plain weights on AMX tiles. x and the weights are sums of two bf16 (pack_bf16.h), bf16 weights
// their only one; each output is one fp32 chain over its inputs, in which the product of the two rests is left out.
//
// Why a row's bits do not depend on its neighbours: TDPBF16PS treats each row of a alone, in one order over the depth;
// tiles of fewer rows only leave rows out; and a sum that is stored between two blocks of depth is stored whole, as
// fp32.
#include "cpu/x86/pack_bf16.h"
#include "cpu/x86/tiles_amx.h"
#include "cpu/x86/x86.h"

#define OUT_BLOCK     256
#define PANEL_DEPTH   1024 // by OUT_BLOCK, and by two terms: half of a 2 MiB second-level cache
#define ROW_BLOCK     2048 // laying out a panel costs as much as multiplying some tens of rows by it
#define STEP          32   // rows and outputs of four accumulator tiles
#define STEP_DEPTH    512  // of STEP rows: they stay in the first-level cache while a panel streams past
#define SUM_STRIDE    (OUT_BLOCK + 16)
#define STREAM_FLOATS (1 << 19) // of all outputs: the second-level cache

// Rows are 64 bytes further apart than needed, so that equal columns of many rows do not meet in one set of a cache.
static size_t row_bytes(int64_t n_in, int group) {
    (void)group;
    return (size_t)pack_padded(n_in) * 2 * sizeof(uint16_t) + 64;
}

static void prepare(const float *x, int64_t n_in, int group, void *row) {
    (void)group;
    pack_bf16_row(x, n_in, row, (uint16_t *)row + pack_padded(n_in));
}

// STEP_DEPTH of inputs for up to STEP rows and all outputs of a call.
struct pass {
    const char *rows; // at the first input
    int64_t row_bytes, n_row;
    const uint8_t *panel; // at the first input
    int64_t panel_stride; // bytes from 16 outputs to the next
    int64_t n_tile;       // of depth
    int64_t n_out;
    const float *from; // sums so far; NULL: zeros
    int64_t from_stride;
    float *to; // [STEP][SUM_STRIDE]: sums stay in one place near by until they are done
};

// Tiles 0 to 3 are sums of rows 0..15 | 16..31 by outputs 0..15 | 16..31, 4 and 5 the rows, 6 and 7 the outputs.
static void configure(int64_t n_row, int64_t n_out) {
    struct tile_shapes s = {.palette = 1};
    for (int i = 0; i < 4; i++) tile_shape(&s, i, n_row, n_out * (int64_t)sizeof(float));
    for (int i = 4; i < 6; i++) tile_shape(&s, i, n_row, 64);
    for (int i = 6; i < 8; i++) tile_shape(&s, i, 16, n_out * (int64_t)sizeof(float));
    _tile_loadconfig(&s);
}

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
static void full_step(const struct pass *p, int64_t out, const uint8_t *next_b) {
    const uint8_t *b = pass_panel(p, out);
    const int64_t to_bytes = SUM_STRIDE * sizeof(float);
    float *to = p->to + out;
    if (p->from == NULL) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        const float *from = p->from + out, *high = from + 16 * p->from_stride;
        int64_t from_bytes = p->from_stride * (int64_t)sizeof(float);
        _tile_loadd(0, from, from_bytes);
        _tile_loadd(1, from + 16, from_bytes);
        _tile_loadd(2, high, from_bytes);
        _tile_loadd(3, high + 16, from_bytes);
    }
    for (int64_t k = 1; k < p->n_tile; k++) multiply_and_load(p, p->rows + k * 64, b + k * PACK_TILE);
    multiply_and_load(p, p->rows, next_b);
    _tile_stored(0, to, to_bytes);
    _tile_stored(1, to + 16, to_bytes);
    _tile_stored(2, to + 16 * SUM_STRIDE, to_bytes);
    _tile_stored(3, to + 16 * SUM_STRIDE + 16, to_bytes);
}

// The same products for up to 16 rows by 16 outputs.
static void partial_step(const struct pass *p, int64_t row, int64_t out) {
    const char *a = p->rows + row * p->row_bytes;
    const uint8_t *b = pass_panel(p, out);
    if (p->from == NULL)
        _tile_zero(0);
    else
        _tile_loadd(0, p->from + row * p->from_stride + out, p->from_stride * (int64_t)sizeof(float));
    for (int64_t k = 0; k < p->n_tile; k++) {
        _tile_loadd(4, a + k * 64, p->row_bytes);
        _tile_loadd(6, b + k * PACK_TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, p->to + row * SUM_STRIDE + out, SUM_STRIDE * sizeof(float));
}

static void multiply_pass(const struct pass *p) {
    int64_t full = p->n_row == STEP ? p->n_out / STEP * STEP : 0;
    if (full > 0) {
        configure(16, 16);
        load_operands(p, p->rows, p->panel);
        for (int64_t out = 0; out < full; out += STEP)
            full_step(p, out, pass_panel(p, out + STEP < full ? out + STEP : out));
    }
    for (int64_t row = 0; row < p->n_row; row += 16) {
        for (int64_t out = full; out < p->n_out; out += 16) {
            configure(p->n_row - row < 16 ? p->n_row - row : 16, p->n_out - out < 16 ? p->n_out - out : 16);
            partial_step(p, row, out);
        }
    }
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// An output that no cache will hold until it is read goes past them; that saves reading what was there.
static void store_sums(const struct pass *p, float *y, int64_t y_stride, bool stream) {
    for (int64_t t = 0; t < p->n_row; t++, y += y_stride) {
        const float *sums = p->to + t * SUM_STRIDE;
        if (!stream)
            memcpy(y, sums, (size_t)p->n_out * sizeof *y);
        else
            for (int64_t i = 0; i < p->n_out; i += 16) _mm512_stream_ps(y + i, _mm512_load_ps(sums + i));
    }
}

// Up to STEP rows by a panel of `depth` inputs from k0 on. The panel's second term, if there is one, is at `rest`.
static void multiply_panel(struct pass *p, const struct weight *w, const char *rows, const uint8_t *panel,
                           const uint8_t *rest, int64_t k0, int64_t depth, float *y, int64_t y_stride, bool stream) {
    const char *rows_rest = rows + pack_padded(w->n_in) * (int64_t)sizeof(uint16_t);
    const struct {
        const char *rows;
        const uint8_t *panel;
    } terms[] = {{rows, panel}, {rows_rest, panel}, {rows, rest}};
    p->from = k0 > 0 ? y : NULL;
    p->from_stride = y_stride;
    for (int64_t k = 0; k < depth; k += STEP_DEPTH) {
        p->n_tile = (least(depth - k, STEP_DEPTH) + PACK_DEPTH - 1) / PACK_DEPTH;
        for (int i = 0; i < 3 && terms[i].panel != NULL; i++) {
            p->rows = terms[i].rows + (k0 + k) * (int64_t)sizeof(uint16_t);
            p->panel = terms[i].panel + k / PACK_DEPTH * PACK_TILE;
            multiply_pass(p);
            p->from = p->to;
            p->from_stride = SUM_STRIDE;
        }
    }
    store_sums(p, y, y_stride, stream);
}

#define PANEL_BYTES (OUT_BLOCK * PANEL_DEPTH * sizeof(uint16_t))
#define SUMS_BYTES  (STEP * SUM_STRIDE * sizeof(float))

static void multiply(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                     int64_t y_stride, void *scratch) {
    float *sums = scratch;
    uint8_t *panel = (uint8_t *)scratch + SUMS_BYTES, *packing = panel + 2 * PANEL_BYTES;
    uint8_t *rest = w->dtype == DTYPE_BF16 ? NULL : panel + PANEL_BYTES;
    struct pass p = {.row_bytes = (int64_t)row_bytes(w->n_in, 0), .n_out = last - first, .to = sums};
    // One block of outputs, which is wanted soon, has no gaps between its rows.
    bool stream = y_stride > OUT_BLOCK && n_row * y_stride >= STREAM_FLOATS && (uintptr_t)y % 64 == 0 &&
                  y_stride % 16 == 0 && p.n_out % 16 == 0;
    for (int64_t k0 = 0; k0 < w->n_in; k0 += PANEL_DEPTH) {
        int64_t depth = least(w->n_in - k0, PANEL_DEPTH);
        pack_bf16_panel(w, PACK_ROUNDED, first, last, k0, depth, packing, panel);
        if (rest != NULL) pack_bf16_panel(w, PACK_REST, first, last, k0, depth, packing, rest);
        p.panel_stride = (depth + PACK_DEPTH - 1) / PACK_DEPTH * PACK_TILE;
        for (int64_t row = 0; row < n_row; row += STEP) {
            p.n_row = least(n_row - row, STEP);
            multiply_panel(&p, w, (const char *)rows + row * p.row_bytes, panel, rest, k0, depth, y + row * y_stride,
                           y_stride, stream && k0 + depth == w->n_in);
        }
    }
    _tile_release();
    _mm_sfence(); // streamed stores are not ordered with others
}

void cpu_x86_fill_plain_prompt_amx(struct cpu_kernels *k) {
    for (int c = CPU_F32; c <= CPU_F16; c++) {
        k->linear[FORM_PROMPT][c] = (struct cpu_linear_method){
            .row_bytes = row_bytes,
            .prepare = prepare,
            .multiply = multiply,
            .out_block = OUT_BLOCK,
            .row_block = ROW_BLOCK,
            .scratch_fixed = SUMS_BYTES + 2 * PANEL_BYTES + pack_bf16_scratch(PANEL_DEPTH),
        };
    }
}
