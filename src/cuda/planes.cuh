// Owns the form in which rows enter products with 4-bit codes in rounds: integers of 16 bits with one scale a row,
// x = scale * (256 high + low), in two planes of int8. Products of codes and planes are integers, and exact.
//
// Rows lie in tiles of R; a group is 64 inputs, a step 16 groups:
//   x     [tile][group][high, low][R][64 bytes]: 16 bytes for each of a matrix instruction's four columns of inputs
//   sums  [tile][step][3 terms][R][4][8 bytes]: a group's sum of integers as three bf16, which hold it exactly
//   scale [row]
#ifndef TF_CUDA_PLANES_CUH
#define TF_CUDA_PLANES_CUH

#include "cuda/device.cuh"

#define PLANES_THREADS 256      // of a block that makes planes: the order of its sums is part of a row's bits
#define PLANES_LARGEST 32639.0f // 127 * 256 + 127
#define PLANES_TILE    8        // R of planes in global memory

struct planes {
    char *x, *sums; // of one row: where its tile begins, plus 64 or 32 bytes for each row before it
    float *scale;
};

__host__ __device__ static inline int planes_steps(int n_group) { return (n_group + 15) / 16; }
__host__ __device__ static inline int planes_x_bytes(int n_group) { return n_group * 128; }                // of a row
__host__ __device__ static inline int planes_sum_bytes(int n_group) { return planes_steps(n_group) * 96; } // of a row

struct plane_input; // planes_input.cuh

// Planes of all rows in global memory, in tiles of PLANES_TILE.
struct plane_rows {
    char *x, *sums;
    float *scales;
    int n_group;
};

__device__ __forceinline__ struct planes planes_of_row(const struct plane_rows &p, int64_t row) {
    int64_t tile = row / PLANES_TILE, r = row % PLANES_TILE;
    struct planes at = {p.x + tile * PLANES_TILE * planes_x_bytes(p.n_group) + r * 64,
                        p.sums + tile * PLANES_TILE * planes_sum_bytes(p.n_group) + r * 32, p.scales + row};
    return at;
}

void carve_planes(struct carver *c, int64_t n_row, int64_t n_in, struct plane_rows *p);
void make_plane_rows(struct cuda_device *d, const struct plane_input &in, const struct plane_rows &p);

#endif
