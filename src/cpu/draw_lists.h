// Owns the sorted lists that a draw picks from, and walking over them in falling order. Pure functions, no allocation.
#ifndef TF_CPU_DRAW_LISTS_H
#define TF_CPU_DRAW_LISTS_H

#include "base/numeric.h"
#include <stdbool.h>

// A token with its unchanged logit as one integer: rising integers are falling logits, ties to the lower id. Not for
// NaN.
static inline uint64_t draw_entry(float logit, int32_t id) {
    uint32_t u = logit == 0 ? 0 : float_to_bits(logit); // both zeros are equal as logits
    uint32_t key = u >> 31 ? u : ~u & 0x7fffffffu;
    return (uint64_t)key << 32 | (uint32_t)id;
}

static inline int32_t draw_entry_id(uint64_t entry) { return (int32_t)(uint32_t)entry; }

static inline float draw_entry_logit(uint64_t entry) {
    uint32_t key = (uint32_t)(entry >> 32);
    return bits_to_float(key >> 31 ? key : ~key & 0x7fffffffu);
}

// Sorts entries whose ids rise at the start; returns where they are then: in entries or in other, room for as many.
uint64_t *draw_sort_entries(uint64_t *entries, int64_t n, uint64_t *other);

// A token whose logit a bias or a penalty has changed: few, and not representable in fp32.
struct draw_special {
    double logit;
    int32_t id;
};

// Falling by logit, ties to the lower id.
void draw_sort_specials(struct draw_special *s, int64_t n);

// The union of the two sorted lists, falling by s = logit / temperature, ties to the lower id.
struct draw_walk {
    const uint64_t *entries;
    const struct draw_special *specials;
    int64_t n_entry, n_special;
    double temperature;
    int64_t next_entry, next_special;
};

void draw_walk_restart(struct draw_walk *w);
bool draw_walk_next(struct draw_walk *w, double *s, int32_t *id); // false at the end

#endif
