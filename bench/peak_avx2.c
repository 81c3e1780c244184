#include "base/clock.h"
#include "bench/peak.h"
#include <immintrin.h>

#define CHAINS 12
#define ROUNDS 4000000

double peak_avx2(void) {
    __m256 sum[CHAINS], x = _mm256_set1_ps(0.999f);
    for (int i = 0; i < CHAINS; i++) sum[i] = _mm256_set1_ps((float)i);
    int64_t start = clock_ns();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < CHAINS; i++) sum[i] = _mm256_fmadd_ps(sum[i], x, x);
        __asm__ volatile("" : "+x"(x)); // the rounds stay apart
    }
    double seconds = (double)(clock_ns() - start) * 1e-9;
    for (int i = 1; i < CHAINS; i++) sum[0] = _mm256_add_ps(sum[0], sum[i]);
    __asm__ volatile("" : : "x"(sum[0]));
    return (double)ROUNDS * CHAINS * 8 * 2 / seconds;
}
