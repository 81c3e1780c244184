// Owns the making of planes (planes.cuh): measuring a row, and rounding it to integers.
#ifndef TF_CUDA_PLANES_MAKE_CUH
#define TF_CUDA_PLANES_MAKE_CUH

#include "cuda/planes.cuh"
#include "cuda/planes_input.cuh"

#define PLANES_MAGIC 12582912.0f // 1.5 * 2^23: a float of that size has the units of an integer
// How far a row goes: bits of the largest magnitude, as an integer, so that what is no number comes out on top.
__device__ __forceinline__ uint32_t plane_top(uint32_t top, float4 v) {
    top = max(top, __float_as_uint(fabsf(v.x)));
    top = max(top, __float_as_uint(fabsf(v.y)));
    top = max(top, __float_as_uint(fabsf(v.z)));
    return max(top, __float_as_uint(fabsf(v.w)));
}

struct plane_scale {
    float forth, back; // to integers, and from them
};

// A row of zeros has zeros for both; a row with something that is no number comes back as none.
__device__ __forceinline__ struct plane_scale plane_scale_of(uint32_t top, float factor) {
    float largest = __uint_as_float(top);
    struct plane_scale s = {0, 0};
    if (top >= 0x7f800000u)
        s.back = __uint_as_float(0x7fffffffu);
    else if (largest >= 1e-30f)
        s = (struct plane_scale){PLANES_LARGEST / largest, largest / PLANES_LARGEST * factor};
    return s;
}

// Sixteen inputs, the share of column c of a group: their two planes, and their sum. v[k] are inputs 4 k to 4 k + 3.
__device__ __forceinline__ int plane_store(const float4 v[4], float forth, char *high, char *low) {
    uint32_t q[16];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        q[4 * k] = __float_as_uint(fmaf(v[k].x, forth, PLANES_MAGIC));
        q[4 * k + 1] = __float_as_uint(fmaf(v[k].y, forth, PLANES_MAGIC));
        q[4 * k + 2] = __float_as_uint(fmaf(v[k].z, forth, PLANES_MAGIC));
        q[4 * k + 3] = __float_as_uint(fmaf(v[k].w, forth, PLANES_MAGIC));
    }
    uint32_t sum = 0, h[4], l[4];
#pragma unroll
    for (int w = 0; w < 4; w++) { // even inputs of eight, then odd ones: the order of the low and high codes of a byte
        const uint32_t *p = q + w / 2 * 8 + w % 2;
        l[w] = __byte_perm(__byte_perm(p[0], p[2], 0x0040), __byte_perm(p[4], p[6], 0x0040), 0x5410);
        h[w] = __byte_perm(__byte_perm(p[0] + 128, p[2] + 128, 0x0051), __byte_perm(p[4] + 128, p[6] + 128, 0x0051),
                           0x5410);
    }
#pragma unroll
    for (int i = 0; i < 16; i++) sum += q[i];
    *(uint4 *)high = make_uint4(h[0], h[1], h[2], h[3]);
    *(uint4 *)low = make_uint4(l[0], l[1], l[2], l[3]);
    return (int)(sum - 16 * 0x4b400000u);
}

// The sum of a group's integers as three terms.
template <int R> __device__ __forceinline__ void plane_store_sum(char *sums, int group, int sum) {
    int step = group / 16, k = group % 16;
    char *to = sums + step * (3 * R * 32) + k % 8 / 2 * 8 + k / 8 * 4 + k % 2 * 2;
    float left = (float)sum;
#pragma unroll
    for (int term = 0; term < 3; term++) {
        __nv_bfloat16 part = __float2bfloat16_rn(left);
        left -= __bfloat162float(part);
        *(__nv_bfloat16 *)(to + term * R * 32) = part;
    }
}

// Groups behind the last of a row, up to a whole step, have sums of zero.
template <int R> __device__ __forceinline__ void plane_pad_sums(char *sums, int n_group, int thread) {
    int group = n_group + thread;
    if (group < planes_steps(n_group) * 16) plane_store_sum<R>(sums, group, 0);
}

// One row by a block of PLANES_THREADS. `shared` has 8 pairs. The planes may lie in shared memory; a barrier follows.
template <int R>
__device__ __forceinline__ void make_planes(const struct plane_input &in, int64_t row, const struct planes &p,
                                            uint2 *shared) {
    int n = (int)in.x.n_col, thread = threadIdx.x, warp = thread / 32;
    float squares = 0;
    uint32_t top = 0;
    for (int i = thread * 4; i < n; i += PLANES_THREADS * 4 * PLANES_AHEAD) {
        float4 v[PLANES_AHEAD];
        plane_load(in, row, i, PLANES_THREADS * 4, v);
#pragma unroll
        for (int k = 0; k < PLANES_AHEAD; k++)
            squares = fmaf(v[k].x, v[k].x, fmaf(v[k].y, v[k].y, fmaf(v[k].z, v[k].z, fmaf(v[k].w, v[k].w, squares))));
        plane_weigh(in, i, PLANES_THREADS * 4, v);
#pragma unroll
        for (int k = 0; k < PLANES_AHEAD; k++) top = plane_top(top, v[k]);
    }
    squares = warp_sum(squares);
    top = __reduce_max_sync(0xffffffffu, top);
    if (thread % 32 == 0) shared[warp] = make_uint2(__float_as_uint(squares), top);
    __syncthreads();
    squares = 0;
    top = 0;
#pragma unroll
    for (int w = 0; w < PLANES_THREADS / 32; w++) {
        uint2 part = shared[w];
        squares += __uint_as_float(part.x);
        top = max(top, part.y);
    }
    float factor = in.norm_weight != NULL ? rsqrtf(squares / (float)n + in.eps) : 1.0f;
    struct plane_scale scale = plane_scale_of(top, factor);
    if (thread == 0) *p.scale = scale.back;
    for (int first = warp * 512; first < n; first += PLANES_THREADS * 16) { // a warp has eight groups
        int i = first + thread % 32 * 16, group = i / 64, c = thread % 4, sum = 0;
        if (i < n) {
            float4 v[4];
            plane_load(in, row, i, 4, v);
            plane_weigh(in, i, 4, v);
            char *to = p.x + group * (R * 128) + c * 16;
            sum = plane_store(v, scale.forth, to, to + R * 64);
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (i < n && c == 0) plane_store_sum<R>(p.sums, group, sum);
    }
    plane_pad_sums<R>(p.sums, n / 64, thread);
}

#endif
