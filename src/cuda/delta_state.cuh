// Owns the state of a head while a round's rows change it (delta_rows.cu): in registers, 32 keys of a column a thread.
#ifndef TF_CUDA_DELTA_STATE_CUH
#define TF_CUDA_DELTA_STATE_CUH

#include "cuda/delta_share.cuh"

// A thread's place: a column of the block's, and its first key.
struct place {
    int col, key0;
};
static __device__ __forceinline__ struct place place_of_thread() {
    int lane = threadIdx.x % 32;
    return (struct place){(int)threadIdx.x / 32 * 8 + lane % 8, lane / 8 * KEYS};
}
static __device__ __forceinline__ int padded(int key) { return key / KEYS * (KEYS + 4) + key % KEYS; }

// Asks for a head's whole state to come into the second cache.
static __device__ __forceinline__ void near_state(const struct delta_shape &s, const float *state) {
    for (int i = threadIdx.x * 32; i < s.key_dim * s.value_dim; i += blockDim.x * 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(state + i));
}

// The state before the lane's pending rows; zeros before position 0, where it was never written.
template <int BLOCKS>
static __device__ __forceinline__ void load_state(const struct delta_shape &s, const float *state, int rank,
                                                  bool is_zero, float v[KEYS]) {
    struct place at = place_of_thread();
    int col = rank * columns<BLOCKS>() + at.col;
#pragma unroll
    for (int i = 0; i < KEYS; i++) v[i] = 0;
    if (is_zero) return;
    state += at.key0 * s.value_dim + col;
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        if (at.key0 + i < s.key_dim && col < s.value_dim) v[i] = state[i * s.value_dim];
}

template <int BLOCKS>
static __device__ __forceinline__ void store_state(const struct delta_shape &s, float *state, int rank,
                                                   const float v[KEYS]) {
    struct place at = place_of_thread();
    int col = rank * columns<BLOCKS>() + at.col;
    state += at.key0 * s.value_dim + col;
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        if (at.key0 + i < s.key_dim && col < s.value_dim) state[i * s.value_dim] = v[i];
}

// This thread's range of q or k.
static __device__ __forceinline__ const float4 *range_of(const float *x) {
    return (const float4 *)(x + place_of_thread().key0 / KEYS * (KEYS + 4));
}

// From shared memory, where it stands in the program: loads stay ahead of what needs them, and what was read before is
// read again where registers have no room to keep it.
static __device__ __forceinline__ float4 load_here(const float4 *from) {
    float4 v;
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(shared_address(from)));
    return v;
}

// What a thread has of a row's keys; KEPT: in registers.
template <bool KEPT> struct row_keys {
    const float4 *from;
    float4 v[KEPT ? KEYS / 4 : 1];

    __device__ __forceinline__ void open(const float4 *k) {
        from = k;
#pragma unroll
        for (int i = 0; KEPT && i < KEYS / 4; i++) v[i] = load_here(k + i);
    }
    __device__ __forceinline__ float4 first(int i) const { return KEPT ? v[i] : from[i]; }
    __device__ __forceinline__ float4 again(int i) const { return KEPT ? v[i] : load_here(from + i); }
};

// S = decay S + k d^T, by the same instructions whether the row is new or comes out of the log.
template <bool KEPT>
static __device__ __forceinline__ void fold_row(const struct row_keys<KEPT> &k, float decay, float d, float v[KEYS]) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
        float4 x = k.again(i);
        v[4 * i] = fmaf(x.x, d, decay * v[4 * i]);
        v[4 * i + 1] = fmaf(x.y, d, decay * v[4 * i + 1]);
        v[4 * i + 2] = fmaf(x.z, d, decay * v[4 * i + 2]);
        v[4 * i + 3] = fmaf(x.w, d, decay * v[4 * i + 3]);
    }
}

// Over all keys of the column, for each of its threads.
static __device__ __forceinline__ float column_sum(float sum) {
    int first = threadIdx.x % 8;
    float all = __shfl_sync(0xffffffffu, sum, first);
#pragma unroll
    for (int i = 1; i < RANGES; i++) all += __shfl_sync(0xffffffffu, sum, first + 8 * i);
    return all;
}

// The column's products with keys and with queries.
template <bool KEPT>
static __device__ __forceinline__ void column_products(const struct row_keys<KEPT> &k, const float4 *q,
                                                       const float v[KEYS], float *by_key, float *by_query) {
    constexpr int AHEAD = KEPT ? 2 : 0;
    float a = 0, b = 0;
    float4 next[AHEAD + 1];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) next[i] = load_here(q + i);
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
        float4 x = k.first(i), y = KEPT ? next[0] : q[i];
#pragma unroll
        for (int j = 0; j + 1 < AHEAD; j++) next[j] = next[j + 1];
        if (i + AHEAD < KEYS / 4 && KEPT) next[AHEAD - 1] = load_here(q + i + AHEAD);
        a = fmaf(v[4 * i], x.x, a);
        b = fmaf(v[4 * i], y.x, b);
        a = fmaf(v[4 * i + 1], x.y, a);
        b = fmaf(v[4 * i + 1], y.y, b);
        a = fmaf(v[4 * i + 2], x.z, a);
        b = fmaf(v[4 * i + 2], y.z, b);
        a = fmaf(v[4 * i + 3], x.w, a);
        b = fmaf(v[4 * i + 3], y.w, b);
    }
    *by_key = column_sum(a);
    *by_query = column_sum(b);
}

#endif
