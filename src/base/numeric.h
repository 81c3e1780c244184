// Owns conversions between fp32 and the 16- and 8-bit floating formats. Round to nearest even; NaN stays NaN.
#ifndef TF_BASE_NUMERIC_H
#define TF_BASE_NUMERIC_H

#include <stdint.h>
#include <string.h>

static inline float bits_to_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t float_to_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float bf16_to_float(uint16_t h) { return bits_to_float((uint32_t)h << 16); }

static inline uint16_t float_to_bf16(float f) {
    uint32_t u = float_to_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u); // keep NaN a NaN
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// fp32 rounded to the nearest bf16, as fp32.
static inline float round_bf16(float f) { return bf16_to_float(float_to_bf16(f)); }

float f16_to_float(uint16_t h);
uint16_t float_to_f16(float f);
float e4m3_to_float(uint8_t h); // OCP FP8 E4M3 (no infinity; 0x7f and 0xff are NaN)
uint8_t float_to_e4m3(float f); // saturates at 448

#endif
