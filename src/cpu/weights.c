// Reads weights of every kind as fp32 values or integer codes.
#include "cpu/weights.h"
#include "base/numeric.h"
#include <string.h>

enum cpu_weight_class cpu_weight_class_of(const struct weight *w) {
    if (w->kind == WEIGHT_PLAIN) return w->dtype == DTYPE_F32 ? CPU_F32 : w->dtype == DTYPE_BF16 ? CPU_BF16 : CPU_F16;
    switch (w->bits) {
    case 2: return CPU_Q2;
    case 3: return CPU_Q3;
    case 4: return CPU_Q4;
    case 5: return CPU_Q5;
    case 6: return CPU_Q6;
    default: must(w->bits == 8); return CPU_Q8;
    }
}

float cpu_load_float(enum dtype type, const void *p, int64_t i) {
    if (type == DTYPE_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return type == DTYPE_BF16 ? bf16_to_float(h) : f16_to_float(h);
}

// Eight elements occupy exactly `bits` bytes, whatever the width.
static inline void unpack_eight(const uint8_t *bytes, int bits, uint8_t *codes) {
    uint64_t stream = 0;
    for (int b = 0; b < bits; b++) stream |= (uint64_t)bytes[b] << (8 * b);
    for (int i = 0; i < 8; i++) codes[i] = (uint8_t)(stream >> (i * bits) & ((1u << bits) - 1));
}

static inline void unpack(const uint8_t *bytes, int bits, int64_t n, uint8_t *codes) {
    for (int64_t i = 0; i < n; i += 8) unpack_eight(bytes + i / 8 * bits, bits, codes + i);
}

// The widths are written out so that the compiler sees constant shifts.
void cpu_unpack_codes(const uint8_t *bytes, int bits, int64_t n, uint8_t *codes) {
    switch (bits) {
    case 2: unpack(bytes, 2, n, codes); return;
    case 3: unpack(bytes, 3, n, codes); return;
    case 4: unpack(bytes, 4, n, codes); return;
    case 5: unpack(bytes, 5, n, codes); return;
    case 6: unpack(bytes, 6, n, codes); return;
    default: memcpy(codes, bytes, (size_t)n); return;
    }
}

void cpu_weight_row(const struct weight *w, int64_t row, float *out) {
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * weight_row_bytes(w);
    if (w->kind == WEIGHT_PLAIN) {
        for (int64_t i = 0; i < w->n_in; i++) out[i] = cpu_load_float(w->dtype, data, i);
        return;
    }
    int64_t n_group = w->n_in / w->group;
    for (int64_t g = 0; g < n_group; g++) {
        uint8_t codes[CPU_MAX_GROUP];
        float scale = cpu_load_float(w->dtype, w->scales, row * n_group + g);
        float bias = cpu_load_float(w->dtype, w->biases, row * n_group + g);
        cpu_unpack_codes(data + g * w->group * w->bits / 8, w->bits, w->group, codes);
        float *values = out + g * w->group;
        for (int i = 0; i < w->group; i++) values[i] = (float)codes[i] * scale + bias;
    }
}
