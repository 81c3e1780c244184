// Owns the shapes of AMX tiles. A tile is up to 16 rows of 64 bytes; a product takes rows of a as they lie in memory,
// and b with each run of 4 bytes of its depth (2 bf16 or 4 int8) side by side, one column after another.
#ifndef TF_CPU_X86_TILES_AMX_H
#define TF_CPU_X86_TILES_AMX_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TILE_ROWS  16
#define TILE_BYTES 1024

// The operand of LDTILECFG (Intel SDM, volume 2).
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static inline void tile_shape(struct tile_shapes *s, int tile, int64_t rows, int64_t row_bytes) {
    s->rows[tile] = (uint8_t)rows;
    s->row_bytes[tile] = (uint16_t)row_bytes;
}

#endif
