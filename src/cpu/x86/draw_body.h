// Owns the kernels over a row of logits that work in double precision or 64-bit integers, for the instruction set that
// the including file is compiled for.
#ifndef TF_CPU_X86_DRAW_BODY_H
#define TF_CPU_X86_DRAW_BODY_H

#include "cpu/kernel_table.h"
#include "cpu/noise.h"
#include "cpu/x86/wide.h"

// Philox 4x32 with 10 rounds: the constants of base/random.c.
#define PHILOX_ROUNDS       10
#define PHILOX_MULTIPLIER_0 0xd2511f53u
#define PHILOX_MULTIPLIER_1 0xcd9e8d57u
#define PHILOX_INCREMENT_0  0x9e3779b9u
#define PHILOX_INCREMENT_1  0xbb67ae85u

// Adding it to a double of less than 2^51 leaves the nearest integer in the low bits.
#define WIDE_MAGIC 0x1.8p52
#define TWO_52     0x1p52 // its bits, or a number below 2^52, are that number plus 2^52
#define LN_2       0x1.62e42fefa39efp-1

// e^x for x <= 0, and 0 below -700: x = n ln 2 + r, and e^r is 1 + r + r^2 p(r) with p of degree 7 fitted to the least
// relative error (2e-14).
INLINE wide wide_exp(wide x) {
    static const double p[] = {2.7493079913427802e-06, 2.4880811346526536e-05, 0.0001984153906325522,
                               0.0013888811141734444,  0.00833333309510433,    0.04166666696225946,
                               0.1666666666726519,     0.49999999999664324};
    wide bounded = wide_max(x, wide_set(-700));
    wide shifted = wide_fma(bounded, wide_set(1 / LN_2), wide_set(WIDE_MAGIC));
    wide r = wide_fma(wide_sub(shifted, wide_set(WIDE_MAGIC)), wide_set(-LN_2), bounded);
    wide sum = wide_set(p[0]);
    for (int i = 1; i < 8; i++) sum = wide_fma(sum, r, wide_set(p[i]));
    wide e = wide_add(wide_fma(wide_mul(r, r), sum, r), wide_set(1));
    e = wide_of(words_add(words_of(e), words_left(words_of(shifted), 52))); // times 2^n
    return wide_where_not_less(x, wide_set(-700), e);
}

static double sum_exp(const float *x, int64_t n, float shift, double scale) {
    wide sum = wide_set(0);
    float rest[WIDE_N];
    for (int64_t i = 0; i < n; i += WIDE_N) {
        const float *from = x + i;
        if (n - i < WIDE_N) {
            for (int j = 0; j < WIDE_N; j++) rest[j] = j < n - i ? x[i + j] : -INFINITY;
            from = rest;
        }
        sum = wide_add(sum,
                       wide_exp(wide_mul(wide_sub(wide_from_floats(from), wide_set((double)shift)), wide_set(scale))));
    }
    double lanes[WIDE_N], total = 0;
    memcpy(lanes, &sum, sizeof lanes);
    for (int j = 0; j < WIDE_N; j++) total += lanes[j];
    return total;
}

// random_bits(seed, position, id) of base/random.h. Only the low halves of the counters are kept clean.
INLINE words philox_bits(uint64_t seed, uint64_t position, words id) {
    words c0 = words_set(position & 0xffffffff), c1 = words_set(position >> 32), c2 = id, c3 = words_right(id, 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        words p0 = words_mul32(words_set(PHILOX_MULTIPLIER_0), c0),
              p1 = words_mul32(words_set(PHILOX_MULTIPLIER_1), c2);
        c0 = words_xor(words_xor(words_right(p1, 32), c1), words_set(k0));
        c1 = p1;
        c2 = words_xor(words_xor(words_right(p0, 32), c3), words_set(k1));
        c3 = p0;
        k0 += PHILOX_INCREMENT_0;
        k1 += PHILOX_INCREMENT_1;
    }
    return words_or(words_left(c1, 32), words_and(c0, words_set(0xffffffff)));
}

// cpu_noise_limit: the exponent of 2^52 - 1 - m, which is half of what is looked at there, is read from its double.
// Zero has a tiny exponent, hence a limit that lets everything through.
INLINE wide noise_limit(words bits) {
    words half = words_sub(words_set((UINT64_C(1) << 52) - 1), words_right(bits, 12)),
          two_52 = words_of(wide_set(TWO_52));
    wide value = wide_sub(wide_of(words_or(half, two_52)), wide_set(TWO_52));
    wide exponent = wide_sub(wide_of(words_or(words_right(words_of(value), 52), two_52)), wide_set(TWO_52));
    return wide_add(wide_mul(wide_sub(wide_set(1075), exponent), wide_set(LN_2)), wide_set(1e-9));
}

static int64_t survivors(const float *x, int64_t n, const struct cpu_noise *noise, int32_t *index) {
    int64_t found = 0;
    float rest[WIDE_N];
    for (int64_t i = 0; i < n; i += WIDE_N) {
        const float *from = x + i;
        if (n - i < WIDE_N) {
            for (int j = 0; j < WIDE_N; j++) rest[j] = j < n - i ? x[i + j] : -INFINITY;
            from = rest;
        }
        wide s = wide_div(wide_from_floats(from), wide_set(noise->temperature)), bound = wide_set(noise->bound);
        unsigned hits = wide_not_less(wide_add(s, wide_set(CPU_NOISE_MAX)), bound);
        if (n - i < WIDE_N) hits &= (1u << (n - i)) - 1;
        if (hits == 0) continue;
        words id = words_add(words_set((uint64_t)noise->first_id + (uint64_t)i), words_counting());
        hits &= wide_not_less(wide_add(s, noise_limit(philox_bits(noise->seed, noise->position, id))), bound);
        for (; hits != 0; hits &= hits - 1) index[found++] = (int32_t)(i + __builtin_ctz(hits));
    }
    return found;
}

static void fill_draw(struct cpu_kernels *k) {
    k->sum_exp = sum_exp;
    k->survivors = survivors;
}

#endif
