// Owns the counter-based generator behind every random number of the product: Philox 4x32 with 10 rounds
// (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). A number is a pure
// function of key and counter; there is no state.
#ifndef TF_BASE_RANDOM_H
#define TF_BASE_RANDOM_H

#include <stdint.h>

struct random_block {
    uint32_t word[4];
};

struct random_block random_philox(const uint32_t counter[4], const uint32_t key[2]);

// 64 bits for (key, a, b): counter = {a low, a high, b low, b high}; the first two words, word[0] low.
uint64_t random_bits(uint64_t key, uint64_t a, uint64_t b);

// Uniform in the open interval (0, 1): (bits >> 12) + 0.5, times 2^-52. Each step is exact in double; with one bit more
// the largest value would round to 1.
double random_unit(uint64_t bits);

// Standard normal for (key, a, b), by Box-Muller on words of the same block.
double random_normal(uint64_t key, uint64_t a, uint64_t b);

#endif
