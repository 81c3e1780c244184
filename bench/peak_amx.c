#include "base/clock.h"
#include "bench/peak.h"
#include <immintrin.h>
#include <stdint.h>

#define ROUNDS 300000

double peak_amx(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.row_bytes[i] = 64;
        shapes.rows[i] = 16;
    }
    _tile_loadconfig(&shapes);
    int64_t start = clock_ns();
    for (int round = 0; round < ROUNDS; round++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    double seconds = (double)(clock_ns() - start) * 1e-9;
    _tile_release();
    return (double)ROUNDS * 4 * 16 * 16 * 32 * 2 / seconds;
}
