// Owns the parts of int8 linears that the VNNI and the AMX methods share. Weights keep their integer codes, x is
// quantised to int8 a group, dot products of a group are exact, and every method combines them alike, so that one row
// alone and many rows give the same bits:
//   y = sum over 16 chains of groups g = c, c + 16, ..: acc_c += (w_scale[g] x_scale[g]) dot[g];  acc_c += w_bias[g]
//   x_sum[g]
// each step fused, and the chains added as vec_sum adds lanes. Pure functions; any thread.
#ifndef TF_CPU_X86_INT8_VNNI_H
#define TF_CPU_X86_INT8_VNNI_H

#include "cpu/kernel_table.h"

#define INT8_OUTS   16 // outputs of a panel
#define INT8_CHAINS 16
#define INT8_FEW    4 // rows: with more, laying the codes out for the dot-product unit pays

// Inputs whose codes lie in one tile: a group, or half of a large one.
static inline int int8_unit(int group) { return group < 64 ? group : 64; }

// A prepared row: codes, then a scale and a scaled sum of codes for each group; each part padded with zeros to 64
// bytes, the codes to 128. Codes for 4-bit weights are split: of each unit the even elements, then the odd ones, as
// masks and shifts leave MLX's codes.
static inline int64_t int8_codes_bytes(int64_t n_in) { return (n_in + 127) / 128 * 128; }
static inline int64_t int8_padded_groups(int64_t n_in, int group) { return (n_in / group + 15) / 16 * 16; }
static inline const float *int8_scales(const void *row, int64_t n_in) {
    return (const float *)((const char *)row + int8_codes_bytes(n_in));
}
static inline const float *int8_sums(const void *row, int64_t n_in, int group) {
    return int8_scales(row, n_in) + int8_padded_groups(n_in, group);
}
size_t int8_row_bytes(int64_t n_in, int group);
void int8_prepare(const float *x, int64_t n_in, int group, void *row);
void int8_prepare_split(const float *x, int64_t n_in, int group, void *row);

// As a method's multiply, for at most INT8_FEW rows: outputs are taken one after another, straight from memory. scratch
// is as large as for a panel.
void int8_few_rows(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                   int64_t y_stride, void *scratch);

// 16 outputs: codes as [n_in / 4][output][4], scales and biases as [group][output].
struct int8_panel {
    uint8_t *codes;
    float *scales, *biases;
    uint8_t *rows; // of unpacked codes, [16][n_in]
};
#define INT8_PANEL_PER_IN (2 * INT8_OUTS + INT8_OUTS * 2 * (int)sizeof(float) / 32) // bytes of scratch an input
struct int8_panel int8_open_panel(int64_t n_in, int group, void *scratch);
// Outputs [first, first + 16); those from last on repeat the one before it.
void int8_pack_panel(const struct weight *w, int64_t first, int64_t last, const struct int8_panel *panel);

#endif
