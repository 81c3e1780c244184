// Owns the noise of a draw (ops/draw.h), and a bound on it that needs no logarithm. Pure functions.
#ifndef TF_CPU_NOISE_H
#define TF_CPU_NOISE_H

#include "base/random.h"
#include <math.h>

static inline double cpu_noise_value(uint64_t seed, uint64_t position, int32_t id) {
    return -log(-log(random_unit(random_bits(seed, position, (uint64_t)id))));
}

// Above every noise value: the largest u is 1 - 2^-53, and -ln(-ln u) < -ln(1 - u) = 53 ln 2.
#define CPU_NOISE_MAX 36.74

// An upper bound within ln 2 of -ln(1 - u), which is itself above the noise since -ln u > 1 - u. With m = bits >> 12,
// 1 - u = (2^53 - 2 m - 1) 2^-53, so its binary logarithm's floor is the place of the highest bit. The last term covers
// the rounding of the exact value.
static inline double cpu_noise_limit(uint64_t bits) {
    const double ln2 = 0.69314718055994530942;
    uint64_t rest = (UINT64_C(1) << 53) - 2 * (bits >> 12) - 1;
    return (double)(53 - (63 - __builtin_clzll(rest))) * ln2 + 1e-9;
}

#endif
