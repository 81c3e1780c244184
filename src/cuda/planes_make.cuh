// Owns the making of planes (planes.cuh): a warp measures a unit, rounds it to integers, and stores it.
#ifndef TF_CUDA_PLANES_MAKE_CUH
#define TF_CUDA_PLANES_MAKE_CUH

#include "cuda/planes.cuh"
#include "cuda/planes_input.cuh"

#define PLANES_MAGIC 12582912.0f // 1.5 * 2^23: a float of that size has the units of an integer

struct plane_scale {
    float forth, back; // to integers, and from them: powers of two, and each the other's inverse
};

// `top`: the bits of a unit's largest magnitude; as integers, what is no number comes out on top. A unit of next to
// nothing has zeros for both; one with something that is no number comes back as none.
__device__ __forceinline__ struct plane_scale plane_scale_of(uint32_t top) {
    struct plane_scale s = {0, 0};
    // The quotient is a little above that of 2^15 and the largest integer, so that no integer lies above the largest.
    uint32_t exponent = __float_as_uint(__uint_as_float(top) * (32768.0f / PLANES_LARGEST)) >> 23;
    if (top >= 0x7f800000u)
        s.back = __uint_as_float(0x7fffffffu);
    else if (__uint_as_float(top) >= 1e-30f)
        s = (struct plane_scale){__uint_as_float((268 - exponent) << 23), __uint_as_float((exponent - 14) << 23)};
    return s;
}

// The largest magnitude of a warp's inputs, as plane_scale_of takes it.
__device__ __forceinline__ uint32_t plane_top(float4 v) {
    uint32_t a = max(__float_as_uint(fabsf(v.x)), __float_as_uint(fabsf(v.y)));
    uint32_t b = max(__float_as_uint(fabsf(v.z)), __float_as_uint(fabsf(v.w)));
    return __reduce_max_sync(0xffffffffu, max(a, b));
}

// One unit by one warp, whose lane l has the inputs 4 l to 4 l + 3; x and notes are the unit's.
template <int R>
__device__ __forceinline__ void plane_store(float4 v, float squares, char *x, struct plane_note *note) {
    int lane = threadIdx.x % 32;
    struct plane_scale scale = plane_scale_of(plane_top(v));
    uint32_t q[4] = {
        __float_as_uint(fmaf(v.x, scale.forth, PLANES_MAGIC)), __float_as_uint(fmaf(v.y, scale.forth, PLANES_MAGIC)),
        __float_as_uint(fmaf(v.z, scale.forth, PLANES_MAGIC)), __float_as_uint(fmaf(v.w, scale.forth, PLANES_MAGIC))};
    // Of eight inputs the even ones, then the odd ones: the order of the low and high codes of a byte. Two lanes have
    // eight: one gets the high bytes of both, the other the low ones.
    uint32_t low = __byte_perm(__byte_perm(q[0], q[2], 0x0040), __byte_perm(q[1], q[3], 0x0040), 0x5410);
    uint32_t high =
        __byte_perm(__byte_perm(q[0] + 128, q[2] + 128, 0x0051), __byte_perm(q[1] + 128, q[3] + 128, 0x0051), 0x5410);
    bool odd = lane % 2 != 0;
    uint32_t mine = odd ? low : high, other = __shfl_xor_sync(0xffffffffu, odd ? high : low, 1);
    uint32_t first = odd ? other : mine, second = odd ? mine : other;
    char *to = x + lane / 16 * (R * 128) + (odd ? 64 : 0) + lane % 16 / 2 * 8;
    *(uint2 *)to = make_uint2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
    int sum = (int)(q[0] + q[1] + q[2] + q[3] - 4 * 0x4b400000u);
    int all = __reduce_add_sync(0xffffffffu, sum), left = __reduce_add_sync(0xffffffffu, lane < 16 ? sum : 0);
    if (lane == 0) *(float4 *)note = make_float4((float)left, (float)(all - left), scale.back, squares);
}

// Brings the norm's weight nearer, which no earlier kernel writes.
__device__ __forceinline__ void warm_planes(const struct plane_input &in, int n_unit, int warp, int n_warp) {
    int lane = threadIdx.x % 32;
    if (in.norm_weight == NULL || lane >= 4) return;
    for (int unit = warp; unit < n_unit; unit += n_warp)
        asm volatile("prefetch.global.L1 [%0];" ::"l"(in.norm_weight + unit * PLANES_UNIT + lane * 32));
}

// Where a unit is and where its planes go to, which may be shared memory.
struct plane_place {
    int64_t row;
    int unit;
    char *x;
    struct plane_note *note;
};

// The units `warp`, `warp` + n_warp, ... of n: place(i) says which they are. A warp loads AHEAD of them at once. Code
// that a block runs once takes longer to come than to run: all units have the same few instructions.
template <int R, int AHEAD, typename PLACE>
__device__ __forceinline__ void make_units(const struct plane_input &in, int n, int warp, int n_warp, PLACE place) {
    int at = threadIdx.x % 32 * 4;
    bool fast = in.wide && in.x.dtype == DTYPE_F32;
#pragma unroll 1
    for (int first = warp; first < n; first += n_warp * AHEAD) {
        float4 v[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD && fast; k++) {
            struct plane_place p = place(min(first + k * n_warp, n - 1));
            v[k] = *(const float4 *)((const float *)in.x.data + p.row * in.x.stride + p.unit * PLANES_UNIT + at);
        }
#pragma unroll 1
        for (int k = 0; k < AHEAD && first + k * n_warp < n; k++) {
            struct plane_place p = place(first + k * n_warp);
            float4 x = v[0];
#pragma unroll
            for (int i = 1; i < AHEAD; i++)
                if (k == i) x = v[i];
            if (!fast) x = plane_load(in, p.row, p.unit * PLANES_UNIT + at);
            float squares = 0;
            if (in.norm_weight != NULL) {
                float4 w = plane_weight(in, p.unit * PLANES_UNIT + at);
                squares = warp_sum(fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, x.w * x.w))));
                x = make_float4(x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w);
            }
            plane_store<R>(x, squares, p.x, p.note);
        }
    }
}

// Those of a row.
template <int R, int AHEAD = 6>
__device__ __forceinline__ void make_planes(const struct plane_input &in, int64_t row, int n_unit,
                                            const struct planes &p, int warp, int n_warp) {
    make_units<R, AHEAD>(in, n_unit, warp, n_warp, [&](int i) {
        return (struct plane_place){row, i, p.x + i * (R * PLANES_UNIT_X), p.notes + i * R};
    });
}

// What a normed row's sums are multiplied with, by any warp, when all units are there.
template <int R>
__device__ __forceinline__ float plane_factor(const struct plane_input &in, int n_unit,
                                              const struct plane_note *notes) {
    if (in.norm_weight == NULL) return 1;
    float squares = 0;
    for (int unit = threadIdx.x % 32; unit < n_unit; unit += 32) squares += notes[unit * R].squares;
    return rsqrtf(warp_sum(squares) / (float)in.x.n_col + in.eps);
}

#endif
