// Owns splitting numbers into two bf16, what they are rounded to and what that leaves, and laying plain weights out for
// tiles. The two together keep 16 bits. Pure functions; any thread.
#ifndef TF_CPU_X86_PACK_BF16_H
#define TF_CPU_X86_PACK_BF16_H

#include "cpu/kernel_table.h"

// A tile is 16 outputs by 32 inputs: row i holds pair i of inputs of output 0, then of output 1, and so on. A panel is
// [outputs / 16][inputs / 32] tiles. Outputs that do not exist repeat the last one.
#define PACK_OUTS  16
#define PACK_DEPTH 32
#define PACK_TILE  1024

static inline int64_t pack_padded(int64_t n) { return (n + PACK_DEPTH - 1) / PACK_DEPTH * PACK_DEPTH; }

// Which of the two; bf16 weights have no second one.
enum pack_term { PACK_ROUNDED, PACK_REST };

// One term of outputs [first, last), inputs [k0, k0 + depth) of a plain weight: k0 is a multiple of 32, and so is depth
// unless the inputs end there; then it is rounded up with zeros. scratch: pack_bf16_scratch(depth) bytes.
void pack_bf16_panel(const struct weight *w, enum pack_term term, int64_t first, int64_t last, int64_t k0,
                     int64_t depth, void *scratch, uint8_t *panel);
static inline size_t pack_bf16_scratch(int64_t depth) {
    return (size_t)(pack_padded(depth) * PACK_OUTS) * sizeof(uint16_t);
}

// Outputs [first, last), at most 16, of a bf16 weight as rows in the order of inputs, *stride elements apart: where
// they lie, or in scratch, padded with zeros to a multiple of 32. scratch: pack_bf16_scratch(n_in) bytes.
const uint16_t *pack_bf16_rows(const struct weight *w, int64_t first, int64_t last, void *scratch, int64_t *stride);

// Both terms of a row of x, zeros up to a multiple of 32.
void pack_bf16_row(const float *x, int64_t n, uint16_t *rounded, uint16_t *rest);

#endif
