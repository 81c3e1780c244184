#include "model/synth_internal.h"

#include "base/numeric.h"
#include "base/random.h"
#include <math.h>
#include <string.h>

// Weights need 64 random bits for every 16 codes, at the disk's speed: a counter through one multiply-xor-shift round
// of splitmix64's finaliser is random enough for that. The few small vectors use base/random.h.
static uint64_t mix(uint64_t key, uint64_t counter) {
    uint64_t x = key + counter * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// Codes are uniform over 0..n-1, with n = 2^bits: around their middle their variance is (n^2 - 1) / 12. Scales differ
// by up to a quarter from group to group, and half of them are negative, as in real files.
static float group_scale(const struct synth_tensor *t, int64_t group) {
    double n = (double)(1 << t->bits), step = t->spread / sqrt((n * n - 1) / 12);
    uint64_t bits = mix(~t->key, (uint64_t)group);
    double scale = step * (0.75 + 0.5 * (double)(bits >> 40) / (double)(1 << 24));
    return round_bf16((float)(bits & 1 ? -scale : scale));
}

static float vector_value(const struct synth_tensor *t, int64_t i) {
    if (t->fill == FILL_SCALES) return group_scale(t, i);
    if (t->fill == FILL_BIASES) return -(float)((1 << t->bits) - 1) / 2 * group_scale(t, i);
    if (t->fill == FILL_NORMAL) return t->centre + t->spread * (float)random_normal(t->key, (uint64_t)i, 0);
    return (float)log(0.01 * pow(400, random_unit(random_bits(t->key, (uint64_t)i, 0))));
}

void synth_fill(const struct synth_tensor *t, int64_t first, int64_t n, unsigned char *out) {
    if (t->fill == FILL_CODES) {
        for (int64_t i = 0; i < n; i += 8) {
            uint64_t word = mix(t->key, (uint64_t)(first + i) / 8);
            memcpy(out + i, &word, n - i < 8 ? (size_t)(n - i) : 8);
        }
        return;
    }
    int64_t size = (int64_t)safetensors_type_bytes(t->type);
    for (int64_t i = 0; i < n / size; i++) {
        float value = vector_value(t, first / size + i);
        uint16_t half = float_to_bf16(value);
        memcpy(out + i * size, size == 2 ? (const void *)&half : &value, (size_t)size);
    }
}
