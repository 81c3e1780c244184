// Owns the inner loop of products in FORM_ROWS for the usual kind of weights (units_q4.cuh): 16 MT outputs times 4 NT
// rows in planes (planes.cuh).
//
// Outputs are the M side of mma.m16n8k32 and rows its N side, the two planes of a row in neighbouring columns: a thread
// has both sums of an output and a row, and no row meets another. A word of eight codes is two operands as it lies, its
// low and its high halves of bytes. Each group is summed as integers; a unit's two groups, with their scales and
// biases, are added up, multiplied by the scale of the row's unit, and added to the sum. Warps share that: warp k of n
// takes the units k, k + n, ..., and the warps' sums are added as a tree. n follows from the number of inputs alone, so
// a row has the same bits in a round of any size.
#ifndef TF_CUDA_PRODUCT_Q4_CUH
#define TF_CUDA_PRODUCT_Q4_CUH

#include "cuda/units_q4.cuh"

#define Q4_WARPS   8 // that work on a tile together
#define Q4_THREADS (32 * Q4_WARPS)

// Warps that share a sum; the others have further outputs.
__host__ __device__ static inline int q4_sharing(int n_unit) {
    return n_unit >= 8 ? 8 : n_unit >= 4 ? 4 : n_unit >= 2 ? 2 : 1;
}

__device__ __forceinline__ void mma_codes(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_codes_first(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%10,%10,%10,%10};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

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
__device__ __forceinline__ void q4_load(const struct q4_rows<NT> &rows, int group, struct q4_inputs<NT> *in) {
#pragma unroll
    for (int j = 0; j < NT; j++) in->x[group][j] = *(const uint4 *)(rows.x + rows.x_at[j] + group * (R * 128));
}
template <int NT>
__device__ __forceinline__ void q4_load_notes(const struct q4_rows<NT> &rows, struct q4_inputs<NT> *in) {
#pragma unroll
    for (int j = 0; j < NT; j++) in->note[j] = *(const float4 *)(rows.notes + rows.note_at[j]);
}

// One unit: two groups of 64 inputs. EARLY: its inputs have been loaded. y: outputs g and g + 8 of each 16.
template <int MT, int NT, int R, bool EARLY>
__device__ __forceinline__ void q4_multiply(const char *unit, const struct q4_rows<NT> &rows, struct q4_inputs<NT> &in,
                                            float y[MT][NT][2]) {
    const uint32_t low = 0x0f0f0f0fu;
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    int at = g * 64 + (c / 2 * 16 ^ q4_exchange(g)) + c % 2 * 8;
    float2 scale[MT][2], bias[MT][2];
    float sum[MT][NT][2];
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint2 both = *(const uint2 *)(unit + MT * Q4_CODES + (t * 16 + i * 8 + g) * 8);
            scale[t][i] = bf16_pair(both.x);
            bias[t][i] = bf16_pair(both.y);
        }
#pragma unroll
    for (int s = 0; s < 2; s++) {
        if (!EARLY) q4_load<NT, R>(rows, s, &in);
#pragma unroll
        for (int t = 0; t < MT; t++) {
            const char *codes = unit + (at ^ s * 32) + t * Q4_CODES;
            uint2 up = *(const uint2 *)codes, down = *(const uint2 *)(codes + 512);
            const uint32_t a[2][4] = {{up.x & low, down.x & low, up.x >> 4 & low, down.x >> 4 & low},
                                      {up.y & low, down.y & low, up.y >> 4 & low, down.y >> 4 & low}};
#pragma unroll
            for (int j = 0; j < NT; j++) {
                int q[4];
                mma_codes_first(q, a[0], in.x[s][j].x, in.x[s][j].y);
                mma_codes(q, a[1], in.x[s][j].z, in.x[s][j].w);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float whole = (float)(q[2 * i] * 256 + q[2 * i + 1]);
                    sum[t][j][i] = s == 0 ? scale[t][i].x * whole : fmaf(scale[t][i].y, whole, sum[t][j][i]);
                }
            }
        }
    }
    if (!EARLY) q4_load_notes<NT>(rows, &in);
#pragma unroll
    for (int j = 0; j < NT; j++) {
        float4 note = in.note[j];
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float all = fmaf(bias[t][i].x, note.x, fmaf(bias[t][i].y, note.y, sum[t][j][i]));
                y[t][j][i] = fmaf(note.z, all, y[t][j][i]);
            }
    }
}

#endif
