// Owns expanding weights to panels of bf16 tiles: the b operand of the prompt's products. Pure functions; any thread.
#ifndef TF_CPU_X86_PACK_BF16_H
#define TF_CPU_X86_PACK_BF16_H

#include "cpu/kernel_table.h"

// A tile is 16 outputs by 32 inputs: row i holds pair i of inputs of output 0, then of output 1, and so on. A panel is
// [outputs / 16][inputs / 32] tiles. Outputs that do not exist repeat the last one.
#define PACK_OUTS  16
#define PACK_DEPTH 32
#define PACK_TILE  1024

// Expands outputs [first, last), inputs [k0, k0 + depth): k0 is a multiple of 128, and so is depth unless the inputs
// end there; then it is rounded up to 32 with zeros. Values are rounded to bf16. scratch: pack_bf16_scratch(depth)
// bytes.
void pack_bf16_panel(const struct weight *w, int64_t first, int64_t last, int64_t k0, int64_t depth, void *scratch,
                     uint8_t *panel);
size_t pack_bf16_scratch(int64_t depth); // grows with depth, by at most PACK_SCRATCH_PER_IN for each and 4096
#define PACK_SCRATCH_PER_IN 38

// Outputs [first, last), at most 16, as rows of bf16 in the order of inputs, *stride elements apart: where they lie, or
// in scratch, padded with zeros to a multiple of 32. scratch: pack_bf16_scratch(n_in) bytes.
const uint16_t *pack_bf16_rows(const struct weight *w, int64_t first, int64_t last, void *scratch, int64_t *stride);

// The row of x that goes with a panel: bf16, zeros up to a multiple of 32. 4-bit codes are expanded eight places apart,
// so that each pair of inputs is in one register; `interleaved` puts elements i and i + 8 of each 16 side by side to
// match.
void pack_bf16_row(const float *x, int64_t n_in, bool interleaved, uint16_t *row);

#endif
