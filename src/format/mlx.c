#include "format/mlx.h"

#include <math.h>

bool mlx_width_valid(int bits) { return (bits >= 2 && bits <= 6) || bits == 8; }
bool mlx_group_valid(int group) { return group == 32 || group == 64 || group == 128; }

bool mlx_find_widths(int64_t n_in, int64_t n_words, int64_t n_groups, int *bits, int *group) {
    if (n_in <= 0 || n_groups <= 0 || n_words <= 0 || n_in % n_groups || n_words > n_in) return false;
    int64_t g = n_in / n_groups, b = n_words * 32 / n_in;
    if (g > 128 || !mlx_group_valid((int)g) || !mlx_width_valid((int)b) || b * n_in != n_words * 32) return false;
    *bits = (int)b;
    *group = (int)g;
    return true;
}

// A window of bits over the stream: at most 7 bits of an earlier byte and 8 new ones are needed for one code.
void mlx_unpack_row(const void *packed, int bits, int64_t n, uint8_t *codes) {
    const uint8_t *p = packed;
    unsigned window = 0, mask = (1u << bits) - 1;
    int held = 0;
    for (int64_t i = 0; i < n; i++) {
        if (held < bits) {
            window |= (unsigned)*p++ << held;
            held += 8;
        }
        codes[i] = (uint8_t)(window & mask);
        window >>= bits;
        held -= bits;
    }
}

void mlx_pack_row(const uint8_t *codes, int bits, int64_t n, void *packed) {
    uint8_t *p = packed;
    unsigned window = 0;
    int held = 0;
    for (int64_t i = 0; i < n; i++) {
        window |= (unsigned)codes[i] << held;
        held += bits;
        if (held >= 8) {
            *p++ = (uint8_t)window;
            window >>= 8;
            held -= 8;
        }
    }
}

void mlx_dequantise_row(const void *packed, const float *scales, const float *biases, int bits, int group, int64_t n,
                        float *out) {
    const uint8_t *p = packed;
    uint8_t codes[128];
    for (int64_t i = 0; i < n; i += group, p += group * bits / 8, scales++, biases++) {
        mlx_unpack_row(p, bits, group, codes);
        for (int j = 0; j < group; j++) out[i + j] = (float)codes[j] * *scales + *biases;
    }
}

void mlx_quantise_row(const float *w, int bits, int group, int64_t n, void *packed, float *scales, float *biases) {
    uint8_t *p = packed, codes[128];
    const float top = (float)((1 << bits) - 1);
    for (int64_t i = 0; i < n; i += group, w += group, p += group * bits / 8) {
        float low = w[0], high = w[0];
        for (int j = 1; j < group; j++) {
            low = fminf(low, w[j]);
            high = fmaxf(high, w[j]);
        }
        // The extreme of larger magnitude is met exactly, so that zero and it both have a code.
        bool low_edge = fabsf(low) > fabsf(high);
        float scale = fmaxf((high - low) / top, 1e-7f), edge = low_edge ? low : high, bias = 0;
        if (!low_edge) scale = -scale;
        float zero_code = rintf(edge / scale);
        if (zero_code != 0) {
            scale = edge / zero_code;
            bias = edge;
        }
        for (int j = 0; j < group; j++) codes[j] = (uint8_t)fminf(fmaxf(rintf((w[j] - bias) / scale), 0), top);
        mlx_pack_row(codes, bits, group, p);
        *scales++ = scale;
        *biases++ = bias;
    }
}
