// Owns MLX's affine quantisation: packing, dequantising, quantising, and finding a module's widths from its shapes.
// A row of n weights is n codes of `bits` bits, packed least significant bit first into a little-endian byte stream of
// n * bits / 8 bytes, and one scale and one bias for every `group` of them: w[i] = code[i] * scale[i / group] +
// bias[i / group]. Pure functions over the caller's memory; any thread may call.
#ifndef TF_FORMAT_MLX_H
#define TF_FORMAT_MLX_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool mlx_width_valid(int bits);  // 2, 3, 4, 5, 6, 8
bool mlx_group_valid(int group); // 32, 64, 128

// The widths of a matrix with n_in inputs whose packed rows have n_words 32-bit words and n_groups scales. False when
// no legal widths give these shapes.
bool mlx_find_widths(int64_t n_in, int64_t n_words, int64_t n_groups, int *bits, int *group);

// n codes of a packed row into codes. n * bits is a multiple of 8; packed need not be aligned.
void mlx_unpack_row(const void *packed, int bits, int64_t n, uint8_t *codes);
void mlx_pack_row(const uint8_t *codes, int bits, int64_t n, void *packed);

// out[i] = codes[i] * scale + bias in fp32, for a row of n codes; n is a multiple of group.
void mlx_dequantise_row(const void *packed, const float *scales, const float *biases, int bits, int group, int64_t n,
                        float *out);

// Codes, scales and biases as MLX's own quantiser finds them in fp32, before scales and biases are rounded to the type
// they are stored in. w holds finite values; n is a multiple of group.
void mlx_quantise_row(const float *w, int bits, int group, int64_t n, void *packed, float *scales, float *biases);

#endif
