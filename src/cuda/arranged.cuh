// Owns the order into which matrices of the usual kind (units_q4.cuh) can be put once they are in the device's memory
// (arrange.cu): bytes of eight outputs stay in their own place, but change it among themselves, so that what a warp
// asks for lies together.
//   codes  [eight outputs][unit][output][64 bytes]
//   scales [eight outputs][pair of units][output]: two scales, then two biases; those of even units where the matrix
//          has its scales, those of odd units where it has its biases
#ifndef TF_CUDA_ARRANGED_CUH
#define TF_CUDA_ARRANGED_CUH

#include <stdint.h>

#define ARRANGED_OUTPUTS 8
#define ARRANGED_CODES   512 // bytes of eight outputs' codes in a unit
#define ARRANGED_SCALES  64  // bytes of their scales and biases

// Bytes from the matrix's first code to an output's in a unit.
__device__ __forceinline__ int64_t arranged_codes(int64_t output, int unit, int64_t row_bytes) {
    int64_t first = output / ARRANGED_OUTPUTS * (ARRANGED_OUTPUTS * row_bytes);
    return first + unit * ARRANGED_CODES + output % ARRANGED_OUTPUTS * 64;
}

// Bytes from the first scale, or in odd units from the first bias, to an output's. scale_bytes: of a row of scales.
__device__ __forceinline__ int64_t arranged_scales(int64_t output, int unit, int64_t scale_bytes) {
    int64_t first = output / ARRANGED_OUTPUTS * (ARRANGED_OUTPUTS * scale_bytes);
    return first + unit / 2 * ARRANGED_SCALES + output % ARRANGED_OUTPUTS * 8;
}

#endif
