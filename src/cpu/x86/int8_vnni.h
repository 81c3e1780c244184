// Owns the parts that linears with quantised weights and integer activations share. Weights keep their integer codes;
// x is quantised to int8 a group, or to int16 as 256 high + low with both of them int8 (COMPUTE_INT8 and COMPUTE_BF16).
// So a group's dot product is an exact integer, and in rounds every method, for few rows and for many, combines them
// alike, which gives one row alone the bits that it has among many:
//   y = sum over 16 chains of groups g = c, c + 16, ..:
//     acc_c += (w_scale[g] x_scale[g]) dot[g];  acc_c += w_bias[g] x_sum[g]
// each step fused, and the chains added as vec_sum adds lanes. Pure functions; any thread.
#ifndef TF_CPU_X86_INT8_VNNI_H
#define TF_CPU_X86_INT8_VNNI_H

#include "cpu/kernel_table.h"

#define INT8_OUTS   16 // outputs of a panel
#define INT8_CHAINS 16
#define INT8_FEW    4 // rows: with more, laying the codes out for the dot-product unit pays

// Inputs whose codes lie in one tile: a group, or half of a large one.
static inline int int8_unit(int group) { return group < 64 ? group : 64; }

// A prepared row: one or two planes of codes, the high one first, then a scale and a scaled sum of codes for each
// group; each part padded with zeros to 64 bytes, the codes to 128. Codes for 4-bit weights are split: of each unit the
// even elements, then the odd ones, as masks and shifts leave MLX's codes.
struct int8_row {
    int planes;
    int64_t plane_bytes, padded_groups, bytes;
};

static inline struct int8_row int8_row_of(int64_t n_in, int group, int planes) {
    struct int8_row r = {.planes = planes, .plane_bytes = (n_in + 127) / 128 * 128};
    r.padded_groups = (n_in / group + 15) / 16 * 16;
    r.bytes = planes * r.plane_bytes + 2 * r.padded_groups * (int64_t)sizeof(float);
    return r;
}

static inline const float *int8_scales(const struct int8_row *r, const void *row) {
    return (const float *)((const char *)row + r->planes * r->plane_bytes);
}

static inline const float *int8_sums(const struct int8_row *r, const void *row) {
    return int8_scales(r, row) + r->padded_groups;
}

void int8_prepare(const float *x, int64_t n_in, int group, bool split, int planes, void *row);

// The outputs [first, last) of at most INT8_FEW rows, taken one after another, straight from memory.
// scratch: INT8_SCRATCH + INT8_SCRATCH_PER_IN * n_in bytes.
void int8_few_rows(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, int planes,
                   float *y, int64_t y_stride, void *scratch);

// 16 outputs: codes as [inputs / 4][output][4], scales and biases as [group][output].
struct int8_panel {
    uint8_t *codes;
    float *scales, *biases;
    uint8_t *rows; // of unpacked codes, [16][inputs]
};
#define INT8_SCRATCH        (2 * INT8_FEW * 128)
#define INT8_SCRATCH_PER_IN (2 * INT8_OUTS + 2 * INT8_OUTS * (int)sizeof(float) / 32)
struct int8_panel int8_open_panel(int64_t n_in, int group, void *scratch);
// Outputs [first, first + 16), those from last on being the one before it; inputs [k0, k0 + depth), of which both are
// multiples of 128 unless the inputs end there.
void int8_pack_panel(const struct weight *w, int64_t first, int64_t last, int64_t k0, int64_t depth,
                     const struct int8_panel *panel);

#endif
