#include "base/numeric.h"

// Adding a power of two whose last place is the smallest subnormal of the target format makes the addition itself round
// to nearest even; the difference of the bit patterns is then the target's mantissa.
static uint32_t subnormal_mantissa(float magnitude, float anchor) {
    return float_to_bits(magnitude + anchor) - float_to_bits(anchor);
}

float f16_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t mantissa = h & 0x3ffu;
    if (exponent == 0x1f) return bits_to_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) {
        float magnitude = (float)mantissa * 0x1p-24f;
        return bits_to_float(sign | float_to_bits(magnitude));
    }
    return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t float_to_f16(float f) {
    uint32_t u = float_to_bits(f);
    uint32_t sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((u >> 13) & 0x3ffu));
    if (u >= float_to_bits(65520.0f)) return (uint16_t)(sign | 0x7c00u); // halfway between the largest and the next
    if (u < float_to_bits(0x1p-14f)) return (uint16_t)(sign | subnormal_mantissa(bits_to_float(u), 0.5f));
    u += 0xfffu + ((u >> 13) & 1u);
    return (uint16_t)(sign | ((u >> 13) - (112u << 10)));
}

float e4m3_to_float(uint8_t h) {
    uint32_t sign = (uint32_t)(h & 0x80u) << 24;
    uint32_t exponent = (h >> 3) & 0xfu;
    uint32_t mantissa = h & 0x7u;
    if ((h & 0x7fu) == 0x7fu) return bits_to_float(sign | 0x7fc00000u);
    if (exponent == 0) return bits_to_float(sign | float_to_bits((float)mantissa * 0x1p-9f));
    return bits_to_float(sign | (exponent + 120) << 23 | mantissa << 20);
}

uint8_t float_to_e4m3(float f) {
    uint32_t u = float_to_bits(f);
    uint32_t sign = (u >> 24) & 0x80u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint8_t)(sign | 0x7fu);
    if (u >= float_to_bits(448.0f)) return (uint8_t)(sign | 0x7eu);
    if (u < float_to_bits(0x1p-6f)) return (uint8_t)(sign | subnormal_mantissa(bits_to_float(u), 0x1p14f));
    u += 0x7ffffu + ((u >> 20) & 1u);
    return (uint8_t)(sign | ((u >> 20) - (120u << 3)));
}
