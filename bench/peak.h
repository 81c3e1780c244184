// Owns the measurement of what a processor's arithmetic units can do: products from registers alone. Each returns
// operations a second of the calling thread, where a multiplication and an addition are two.
#ifndef TF_BENCH_PEAK_H
#define TF_BENCH_PEAK_H

// Runs for some ten milliseconds. Only to be called where the processor has the instructions.
double peak_avx2(void);   // fp32, 8 lanes
double peak_avx512(void); // fp32, 16 lanes
double peak_amx(void);    // bf16 tiles

#endif
