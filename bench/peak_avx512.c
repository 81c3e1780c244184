#include "base/clock.h"
#include "bench/peak.h"
#include <immintrin.h>

#define CHAINS 16
#define ROUNDS 4000000

double peak_avx512(void) {
    __m512 sum[CHAINS], x = _mm512_set1_ps(0.999f);
    for (int i = 0; i < CHAINS; i++) sum[i] = _mm512_set1_ps((float)i);
    int64_t start = clock_ns();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < CHAINS; i++) sum[i] = _mm512_fmadd_ps(sum[i], x, x);
        __asm__ volatile("" : "+v"(x)); // the rounds stay apart
    }
    double seconds = (double)(clock_ns() - start) * 1e-9;
    for (int i = 1; i < CHAINS; i++) sum[0] = _mm512_add_ps(sum[0], sum[i]);
    __asm__ volatile("" : : "v"(sum[0]));
    return (double)ROUNDS * CHAINS * 16 * 2 / seconds;
}
