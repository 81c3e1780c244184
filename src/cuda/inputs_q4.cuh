// Owns what a thread takes of rows in planes (planes.cuh) for products with 4-bit codes (product_q4.cuh).
#ifndef TF_CUDA_INPUTS_Q4_CUH
#define TF_CUDA_INPUTS_Q4_CUH

#include "cuda/planes.cuh"

// Where a thread finds its rows: lane 4 g + c multiplies with a plane of row 4 j + g / 2, and has sums of row 4 j + c.
// Any row that exists will do for those that do not. Places are bytes from where the planes' and the notes' unit
// begins.
template <int NT> struct q4_rows {
    const char *x, *notes;
    uint32_t x_at[NT], note_at[NT];
};

__device__ __forceinline__ uint32_t q4_input_at() {
    int lane = threadIdx.x % 32;
    return lane / 4 % 2 * 64 + lane % 4 * 16;
}

// Rows of planes in global memory; row(n) of column n.
template <int NT, typename ROW>
__device__ __forceinline__ void q4_take_rows(const struct plane_rows &p, struct q4_rows<NT> *r, ROW row) {
    int lane = threadIdx.x % 32;
    r->x = p.x;
    r->notes = (const char *)p.notes;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        r->x_at[j] = (uint32_t)(planes_of_row(p, row(4 * j + lane / 8)).x - p.x) + q4_input_at();
        r->note_at[j] = (uint32_t)((const char *)planes_of_row(p, row(4 * j + lane % 4)).notes - r->notes);
    }
}

// A thread's share of a unit's rows.
template <int NT> struct q4_inputs {
    uint4 x[2][NT]; // of a group
    float4 note[NT];
};

template <int NT, int R>
__device__ __forceinline__ void q4_load_group(const struct q4_rows<NT> &rows, int group, struct q4_inputs<NT> *in) {
#pragma unroll
    for (int j = 0; j < NT; j++) in->x[group][j] = *(const uint4 *)(rows.x + rows.x_at[j] + group * (R * 128));
}
template <int NT>
__device__ __forceinline__ void q4_load_notes(const struct q4_rows<NT> &rows, struct q4_inputs<NT> *in) {
#pragma unroll
    for (int j = 0; j < NT; j++) in->note[j] = *(const float4 *)(rows.notes + rows.note_at[j]);
}
template <int NT, int R>
__device__ __forceinline__ void q4_load(const struct q4_rows<NT> &rows, struct q4_inputs<NT> *in) {
    q4_load_group<NT, R>(rows, 0, in);
    q4_load_group<NT, R>(rows, 1, in);
    q4_load_notes<NT>(rows, in);
}

#endif
