#include "base/random.h"
#include <math.h>

#define ROUNDS 10

// Multipliers and key increments of Philox 4x32, from table 2 and section 4.3 of the paper named in the header.
#define MULTIPLIER_0 0xd2511f53u
#define MULTIPLIER_1 0xcd9e8d57u
#define INCREMENT_0  0x9e3779b9u // the golden ratio
#define INCREMENT_1  0xbb67ae85u // sqrt(3) - 1

struct random_block random_philox(const uint32_t counter[4], const uint32_t key[2]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t p0 = (uint64_t)MULTIPLIER_0 * c0;
        uint64_t p1 = (uint64_t)MULTIPLIER_1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += INCREMENT_0;
        k1 += INCREMENT_1;
    }
    return (struct random_block){{c0, c1, c2, c3}};
}

static struct random_block keyed_block(uint64_t key, uint64_t a, uint64_t b) {
    uint32_t counter[4] = {(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32)};
    uint32_t key_words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    return random_philox(counter, key_words);
}

static uint64_t join(uint32_t low, uint32_t high) { return (uint64_t)high << 32 | low; }

uint64_t random_bits(uint64_t key, uint64_t a, uint64_t b) {
    struct random_block block = keyed_block(key, a, b);
    return join(block.word[0], block.word[1]);
}

double random_unit(uint64_t bits) { return ((double)(bits >> 12) + 0.5) * 0x1p-52; }

double random_normal(uint64_t key, uint64_t a, uint64_t b) {
    const double two_pi = 6.283185307179586476925286766559;
    struct random_block block = keyed_block(key, a, b);
    double radius = sqrt(-2.0 * log(random_unit(join(block.word[0], block.word[1]))));
    return radius * cos(two_pi * random_unit(join(block.word[2], block.word[3])));
}
