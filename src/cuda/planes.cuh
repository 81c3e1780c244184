// Owns the form in which rows enter products with 4-bit codes in rounds: integers of 16 bits in two planes of int8. A
// unit of 128 inputs of a row has one scale, a power of two, x = scale * (256 high + low), so that whoever has a unit's
// inputs can make its planes. Products of codes and planes are integers, and exact.
//
// Rows lie in tiles of R, units one after another; a group is 64 inputs:
//   x     [tile][unit][group][R][high, low][64 bytes]: 16 bytes for each of a matrix instruction's columns of inputs
//   notes [tile][unit][R] struct plane_note
//   factors [row]: what the sums of a normed row are multiplied with
#ifndef TF_CUDA_PLANES_CUH
#define TF_CUDA_PLANES_CUH

#include "cuda/device.cuh"

#define PLANES_LARGEST 32639.0f // 127 * 256 + 127
#define PLANES_TILE    4        // R of planes in global memory
#define PLANES_UNIT    128      // inputs
#define PLANES_UNIT_X  256      // bytes of a row's unit
#define PLANES_HEADS   8        // rows up to which those who write heads leave planes

// What a product must know of a row's unit.
struct __align__(16) plane_note {
    float sums[2]; // of a group's integers
    float scale;   // from integers back to inputs
    float squares; // sum over the unit's inputs, before the norm's weight
};

struct planes { // of one row, where unit 0 is
    char *x;
    struct plane_note *notes;
};

struct plane_input; // planes_input.cuh

// Planes of all rows in global memory, in tiles of PLANES_TILE.
struct plane_rows {
    char *x;
    struct plane_note *notes;
    float *factors;
    int n_unit;
};

__device__ __forceinline__ struct planes planes_of_row(const struct plane_rows &p, int64_t row) {
    int64_t first = row / PLANES_TILE * PLANES_TILE * p.n_unit, r = row % PLANES_TILE;
    struct planes at = {p.x + first * PLANES_UNIT_X + r * 128, p.notes + first + r};
    return at;
}

void carve_planes(struct carver *c, int64_t n_row, int64_t n_in, struct plane_rows *p);
// Whether whoever writes `out`, which may be the rows of a round's next product, is to make their planes too, and
// where: the next call finds them there (common.cuh, left). A row's elements are a multiple of n_multiple.
bool leave_planes(struct cuda_device *d, const struct tensor &out, int64_t n_multiple, struct plane_rows *p);
void make_plane_rows(struct cuda_device *d, const struct plane_input &in, const struct plane_rows &p);

#endif
